package host

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pawlhost/pawl/store"
)

// advance moves a run on as far as planners and the gate can: planners whose batch is done are asked, subagents are opened. It
// returns the calls to run now; busy has those that run already. more tells that one commit has become heavy enough: commit, and
// ask again. It only builds on the step; the caller commits.
func (h *Host) advance(ctx context.Context, s *step, busy map[string]bool) (next []*store.Call, more bool, err error) {
	r := s.r
	for !r.State.Ended() {
		if f := r.idle(); f != nil {
			if r.State == store.RunAwaitingPlanner {
				return nil, false, nil
			}
			if err := h.turn(ctx, s, f); err != nil {
				return nil, false, err
			}
		} else {
			next = r.runnable(busy)
			opened := false
			for _, c := range next {
				if c.Task {
					opened = true
					if err := h.openFrame(ctx, s, c); err != nil {
						return nil, false, err
					}
				}
			}
			if !opened {
				return next, false, nil
			}
		}
		if s.heavy() {
			return nil, true, nil
		}
	}
	return nil, false, nil
}

// settle is advance for a run that nobody drives at this moment: afterwards it waits for a driver, for people, for its client, or has
// ended.
func (h *Host) settle(ctx context.Context, s *step) error {
	next, more, err := h.advance(ctx, s, nil)
	switch {
	case err != nil:
		return err
	case len(next) > 0 || more:
		s.r.State = store.RunQueued
	default:
		h.rest(s)
	}
	return nil
}

// rest opens the pause of a run in which nothing runs and nothing can: quiescence.
func (h *Host) rest(s *step) {
	if s.r.State.Ended() || s.r.State == store.RunAwaitingPlanner {
		return
	}
	s.suspend(s.r.stops(), h.approvalTTL)
}

// turn asks the planner of a frame whose batch is done.
func (h *Host) turn(ctx context.Context, s *step, f *frame) error {
	r := s.r
	kind := f.agent.kind
	if f.parent == nil {
		kind = r.Planner
	}
	fail := func(code, message string) error {
		h.endFrame(s, f, nil, &store.Failure{Code: code, Message: message})
		return nil
	}
	switch {
	case r.overBudget(r.root()):
		s.end(store.RunFailed, nil, &store.Failure{Code: codeLimit, Message: "the run used up its active time; raise limits.active of the agent"})
		return nil
	case r.overBudget(f):
		return fail(codeLimit, "it used up its active time; raise its limits.active")
	case r.Bytes > maxRunBytes:
		s.end(store.RunFailed, nil, &store.Failure{Code: codeLimit, Message: tooManyBytes})
		return nil
	}
	view, err := h.frame(ctx, r, f)
	if err != nil {
		return err
	}
	p, err := f.agent.plan(kind, h.planners).Next(f.agent.doc.Planner, view)
	switch {
	case err != nil:
		return fail("planner_error", err.Error())
	case p.Failure != nil:
		return fail(p.Failure.Code, p.Failure.Message)
	case p.Done:
		out, err := h.body(ctx, r.Tenant, p.Output)
		if err != nil {
			return err
		}
		h.endFrame(s, f, &out, nil)
		return nil
	case p.Wait:
		s.await()
		return nil
	}
	if open := len(p.Calls) + r.open(); f.parent != nil && open > maxOpenCalls {
		return fail(codeLimit, fmt.Sprintf("the batches of the run's subagents have %d calls together; at most %d", open, maxOpenCalls))
	}
	return h.propose(ctx, s, f, p.Calls, p.Cursor)
}

// endFrame ends a frame with its output or its failure: the root's is the run's, a subagent's is the result of the call that opened
// it.
func (h *Host) endFrame(s *step, f *frame, output *store.Body, failure *store.Failure) {
	c := f.call()
	switch {
	case c == nil && failure != nil:
		s.end(store.RunFailed, nil, failure)
	case c == nil:
		s.end(store.RunSucceeded, output, nil)
	case failure != nil:
		code := codeToolError
		if failure.Code == codeLimit {
			code = codeLimit
		}
		s.leave(f, nil, &store.Failure{Code: code, Message: fmt.Sprintf("the subagent %s failed: %s: %s", f.Subagent, failure.Code, failure.Message)})
	default:
		s.leave(f, output, nil)
	}
}

// maxRunBytes bounds what the calls of a run hold, since a run is read as a whole.
const maxRunBytes = 16 << 20

const tooManyBytes = "the arguments and results of this run are together larger than 16 MiB; go on in a new run"

// propose gates a batch and begins the frame's turn with it; a frame that has used up its turns ends instead.
func (h *Host) propose(ctx context.Context, s *step, f *frame, proposed []ProposedCall, cursor json.RawMessage) error {
	if f.Turn >= f.agent.turns {
		h.endFrame(s, f, nil, &store.Failure{Code: codeLimit, Message: fmt.Sprintf("the run used up its %d turns; raise limits.turns of the agent", f.agent.turns)})
		return nil
	}
	calls, err := h.gate(ctx, s.r, f, proposed)
	if err == nil {
		s.begin(f, calls, cursor)
	}
	return err
}

// frame is what the planner sees.
func (h *Host) frame(ctx context.Context, r *run, f *frame) (Frame, error) {
	v := Frame{Turn: f.Turn, Cursor: f.Cursor}
	for _, c := range f.calls {
		args, err := h.callArguments(ctx, r.Tenant, c)
		if err != nil {
			return v, err
		}
		o := Outcome{Call: ProposedCall{ToolCallID: c.ToolCallID, Tool: c.Tool, Arguments: args}, Error: c.Error}
		if c.Result != nil {
			if o.Result, err = h.text(ctx, r.Tenant, *c.Result); err != nil {
				return v, err
			}
			o.Again = c.Observed && c.Decision != nil && c.Decision.Kind == kindApprove
		}
		v.Last = append(v.Last, o)
	}
	return v, nil
}
