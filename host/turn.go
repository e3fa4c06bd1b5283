package host

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pawlhost/pawl/store"
)

// advance moves a run whose batch is done: it asks the planner until the run has something to run, stops, ends or waits for
// its client. It only builds on the step; the caller commits.
func (h *Host) advance(ctx context.Context, s *step) error {
	r := s.r
	for {
		if r.Turn >= r.agent.turns {
			s.end(store.RunFailed, nil, &store.Failure{Code: codeLimit, Message: fmt.Sprintf("the run used up its %d turns; raise limits.turns of the agent", r.agent.turns)})
			return nil
		}
		if r.Bytes > maxRunBytes {
			s.end(store.RunFailed, nil, &store.Failure{Code: codeLimit, Message: tooManyBytes})
			return nil
		}
		f, err := h.frame(ctx, r)
		if err != nil {
			return err
		}
		p, err := r.agent.plan(r.Planner, h.planners).Next(r.agent.doc.Planner, f)
		switch {
		case err != nil:
			s.end(store.RunFailed, nil, &store.Failure{Code: "planner_error", Message: err.Error()})
			return nil
		case p.Failure != nil:
			f := *p.Failure
			s.end(store.RunFailed, nil, &f)
			return nil
		case p.Done:
			out, err := h.body(ctx, r.Tenant, p.Output)
			if err != nil {
				return err
			}
			s.end(store.RunSucceeded, &out, nil)
			return nil
		case p.Wait:
			s.await()
			return nil
		}
		ready, err := h.propose(ctx, s, p.Calls, p.Cursor)
		if err != nil || ready {
			return err
		}
	}
}

// maxRunBytes bounds what the calls of a run hold, since a run is read as a whole.
const maxRunBytes = 16 << 20

const tooManyBytes = "the arguments and results of this run are together larger than 16 MiB; go on in a new run"

// propose gates a batch and begins the turn with it. It reports whether the run has something to run or has stopped; false
// means that every call of the batch got its error at the gate.
func (h *Host) propose(ctx context.Context, s *step, proposed []ProposedCall, cursor json.RawMessage) (ready bool, err error) {
	calls, stops, err := h.gate(ctx, s.r, proposed)
	if err != nil {
		return false, err
	}
	s.begin(calls, cursor)
	if len(stops) > 0 {
		s.suspend(stops, h.ttl(s.r))
		return true, nil
	}
	for _, c := range calls {
		if c.State == store.CallPlanned {
			s.r.State = store.RunQueued
			return true, nil
		}
	}
	return false, nil
}

// frame is what the planner sees.
func (h *Host) frame(ctx context.Context, r *run) (Frame, error) {
	f := Frame{Turn: r.Turn, Cursor: r.Cursor}
	for _, c := range r.calls {
		args, err := h.callArguments(ctx, r.Tenant, c)
		if err != nil {
			return f, err
		}
		o := Outcome{Call: ProposedCall{ToolCallID: c.ToolCallID, Tool: c.Tool, Arguments: args}, Error: c.Error}
		if c.Result != nil {
			if o.Result, err = h.text(ctx, r.Tenant, *c.Result); err != nil {
				return f, err
			}
			o.Again = c.Observed && c.Decision != nil && c.Decision.Kind == kindApprove
		}
		f.Last = append(f.Last, o)
	}
	return f, nil
}
