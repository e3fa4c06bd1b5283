package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// CreateRun starts a run of an agent. Its creation, the gate of its first batch and the pause, if it must stop, are one
// commit.
func (h *Host) CreateRun(ctx context.Context, a Actor, idem Idempotency, body Lazy[NewRun]) (Run, error) {
	if err := h.allow(ctx, a, "run.create", policy.Resource{Kind: "run", Tenant: a.Tenant, CreatedBy: a.ID, Subject: a.ID}); err != nil {
		return Run{}, h.refused(ctx, a, "run.create", "tenant", a.Tenant, err)
	}
	req, err := body()
	if err != nil {
		return Run{}, err
	}
	if req.Agent == "" {
		return Run{}, invalid("/agent", "name the agent to run; GET /v1/agents lists them")
	}
	if stored, ok, _ := h.replay(ctx, a, idem); ok { // whatever became of the agent since
		return stored.run, nil
	}
	agent, err := h.currentAgent(ctx, a.Tenant, req.Agent)
	if err != nil {
		return Run{}, err
	}
	subject := cmp.Or(req.User, a.ID)
	if subject != a.ID {
		if a, err = h.Fresh(ctx, a); err != nil {
			return Run{}, err
		}
		res := policy.Resource{Kind: "run", Tenant: a.Tenant, CreatedBy: a.ID, Subject: subject, Agent: req.Agent}
		if err := h.allow(ctx, a, "run.act_as", res); err != nil {
			return Run{}, h.refused(ctx, a, "run.act_as", "principal", subject, err)
		}
		if err := checkName(subject, "/user"); err != nil {
			return Run{}, err
		}
	}
	if len(req.SessionID) > 256 {
		return Run{}, invalid("/session_id", "at most 256 bytes")
	}
	if err := checkContext(req.ToolContext, a.Tenant, subject, req.SessionID); err != nil {
		return Run{}, err
	}
	external := agent.kind == "external"
	if !external && (req.Calls != nil || req.PlannerState != nil) {
		return Run{}, invalid("/calls", "calls and planner_state belong to agents with an external planner; this one plans by %s", agent.kind)
	}
	if cerr := CheckBatch(req.Calls); cerr != nil {
		return Run{}, cerr
	}
	if req.Calls != nil && len(req.Calls) == 0 {
		return Run{}, invalid("/calls", "a batch has at least one call; leave calls out to begin without one")
	}
	return h.startRun(ctx, a, idem, agent, agent.kind, req, 201)
}

// startRun makes the run and takes it to its first stop, its end, or the queue.
func (h *Host) startRun(ctx context.Context, a Actor, idem Idempotency, agent *agentVersion, planner string, req NewRun, status int) (Run, error) {
	for {
		stored, repeat, err := h.replay(ctx, a, idem)
		if err != nil || repeat {
			return stored.run, err
		}
		if err := h.space(h.reserve); err != nil {
			return Run{}, err
		}
		r, s, err := h.newRun(ctx, a, agent, planner, req)
		if err != nil {
			return Run{}, err
		}
		h.remember(&s.change, a, idem, stored.version, status, r.ID)
		if len(req.Calls) > 0 {
			if err := h.propose(ctx, s, r.root(), req.Calls, nil); err != nil {
				return Run{}, err
			}
		}
		if err := h.settle(ctx, s); err != nil {
			return Run{}, err
		}
		if err := h.commit(ctx, s); errors.Is(err, store.ErrConflict) {
			continue // a twin with the same Idempotency-Key was first
		} else if err != nil {
			return Run{}, err
		}
		v, err := h.view(ctx, a, r)
		if r.State == store.RunQueued {
			h.queue.push(ref{tenant: r.Tenant, id: r.ID, gated: true})
		}
		return v, err
	}
}

func (h *Host) newRun(ctx context.Context, a Actor, agent *agentVersion, planner string, req NewRun) (*run, *step, error) {
	now := h.now()
	id := h.id("run")
	r := &run{key: runKey(a.Tenant, id), agent: agent, frames: []*frame{{agent: agent}}}
	r.Run = store.Run{
		Tenant: a.Tenant, ID: id, Agent: agent.name, AgentVersion: agent.version, Planner: planner, State: store.RunQueued,
		CreatedBy: a.ID, SessionID: req.SessionID, CreatedAt: now, UpdatedAt: now,
	}
	var subject personRecord
	if req.User != "" && req.User != a.ID {
		var err error
		if subject, err = h.people.principal(ctx, h.store, a.Tenant, req.User); err != nil {
			return nil, nil, err
		}
		if subject.exists() && subject.Disabled {
			e := errf(CodeForbidden, "%s is disabled, and nobody acts for them; enable the principal, or leave them out of the chat", req.User)
			e.Reasons = []string{"subject_disabled"}
			return nil, nil, h.refused(ctx, a, "run.act_as", "principal", req.User, e)
		}
		r.Subject = req.User
	}
	r.ctx = store.RunContext{Tools: h.pinTools(agent.allTools()), Kind: a.Kind, Roles: a.Roles}
	for _, part := range []struct {
		raw  json.RawMessage
		at   string
		into *store.Body
	}{{req.Input, "/input", &r.ctx.Input}, {req.ToolContext, "/tool_context", &r.ctx.ToolContext}} {
		if part.raw == nil {
			continue
		}
		canonical, err := ijson.Parse(part.raw)
		if err != nil {
			return nil, nil, invalid(part.at, "not I-JSON: %v", err)
		}
		if *part.into, err = h.body(ctx, a.Tenant, canonical); err != nil {
			return nil, nil, err
		}
	}
	if agent.doc.System != "" {
		r.Messages++
	}
	if req.Input != nil {
		r.Messages++
	}
	s := h.step(r)
	s.create()
	if r.Subject != "" {
		s.change.Require(subject.key, subject.version) // disabled meanwhile, they are refused
		addRow(&s.change, a.Tenant, a.did(ctx, now, "run.act_as", "run", id, map[string]any{"subject": r.Subject, "agent": agent.name}))
	}
	if err := h.setPlannerState(ctx, s, req.PlannerState); err != nil {
		return nil, nil, err
	}
	return r, s, nil
}

func (h *Host) setPlannerState(ctx context.Context, s *step, raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	b, err := h.body(ctx, s.r.Tenant, raw)
	if err != nil {
		return err
	}
	s.r.HasState = true
	s.change.Put(s.r.key.With("state"), store.Encode(b))
	return nil
}

// ToolOutcome is how a direct call stands: Done with a result or an error, or not yet.
type ToolOutcome struct {
	Run    Run
	Result json.RawMessage
	Error  *store.Failure
	Done   bool
}

// CallTool calls one tool as a run of one call, under an agent (its list, its rules), and waits until it stopped or ended, or
// ctx is done.
func (h *Host) CallTool(ctx context.Context, a Actor, tool string, idem Idempotency, body Lazy[DirectCall]) (ToolOutcome, error) {
	if err := h.allow(ctx, a, "tool.call", policy.Resource{Kind: "tool", Tenant: a.Tenant, ID: tool, Tool: tool, CreatedBy: a.ID, Subject: a.ID}); err != nil {
		return ToolOutcome{}, h.refused(ctx, a, "tool.call", "tool", tool, err)
	}
	if _, ok := h.plugins.Lookup(tool); !ok {
		return ToolOutcome{}, errf(CodeNotFound, "no tool %q is installed; GET /v1/tools lists them", clip(tool, 129))
	}
	req, err := body()
	if err != nil {
		return ToolOutcome{}, err
	}
	if req.Agent == "" {
		req.Agent = "default"
	}
	agent, err := h.currentAgent(ctx, a.Tenant, req.Agent)
	if err != nil {
		return ToolOutcome{}, err
	}
	if _, ok := h.pinTools(agent.doc.Tools)[tool]; !ok {
		return ToolOutcome{}, errf(CodeNotFound, "the agent %q has no tool %q; GET /v1/agents/%s shows its tools", req.Agent, tool, req.Agent)
	}
	if err := checkContext(req.ToolContext, a.Tenant, a.ID, ""); err != nil {
		return ToolOutcome{}, err
	}
	rec, _, err := h.idempotent(ctx, a, idem)
	if err != nil {
		return ToolOutcome{}, err
	}
	v, err := h.startRun(ctx, a, idem, agent, plannerDirect, NewRun{
		Agent: req.Agent, ToolContext: req.ToolContext, Calls: []ProposedCall{{Tool: tool, Arguments: req.Arguments}},
	}, 200)
	if err != nil {
		return ToolOutcome{}, err
	}
	if rec != nil && rec.Status == 202 {
		return ToolOutcome{Run: v}, nil // a repeat gets the status of the first answer
	}
	if v, err = h.WaitRun(ctx, a, v.ID); err != nil {
		return ToolOutcome{}, err
	}
	out := ToolOutcome{Run: v}
	if idem.Key != "" && !v.State.Ended() {
		if err := h.rememberWaiting(context.WithoutCancel(ctx), a, idem, v.ID); err != nil {
			return ToolOutcome{}, err
		}
	}
	if v.State.Ended() {
		out.Done, out.Result, out.Error = true, v.Output, v.Error
		if out.Error == nil && v.State == store.RunCancelled {
			out.Error = &store.Failure{Code: codeCancelled, Message: "the run was cancelled"}
		}
	}
	return out, nil
}

// rememberWaiting notes that a direct call was answered before it ended, so that a repeat gets the same status.
func (h *Host) rememberWaiting(ctx context.Context, a Actor, idem Idempotency, runID string) error {
	_, version, err := h.idempotent(ctx, a, idem)
	if err != nil {
		return err
	}
	var c store.Change
	h.remember(&c, a, idem, version, 202, runID)
	if _, err := h.write(ctx, &c); !errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil // a twin of this request has noted the same
}

// Propose takes a turn of an external planner. The same batch again is answered with the run as it is.
func (h *Host) Propose(ctx context.Context, a Actor, id string, idem Idempotency, body Lazy[Batch]) (Run, error) {
	parse := sync.OnceValues(body) // once, however often the race is lost
	v, err := h.driveExternal(ctx, a, id, idem, func(r *run) (func(*step) error, error) {
		req, err := parse()
		switch {
		case err != nil:
			return nil, err
		case req.Turn == nil:
			return nil, invalid("/turn", "say which turn this is: the run's turn + 1")
		case len(req.Calls) == 0:
			return nil, invalid("/calls", "a batch has at least one call; end the run with /finish")
		}
		if err := CheckBatch(req.Calls); err != nil {
			return nil, err
		}
		return func(s *step) error {
			if *req.Turn == r.Turn && r.Turn > 0 {
				same, err := h.sameBatch(ctx, r, req.Calls)
				if err != nil {
					return err
				}
				if same {
					return errRepeat
				}
			}
			if err := h.turnOpen(r, *req.Turn); err != nil {
				return err
			}
			if err := h.setPlannerState(ctx, s, req.PlannerState); err != nil {
				return err
			}
			if err := h.propose(ctx, s, r.root(), req.Calls, nil); err != nil {
				return err
			}
			return h.settle(ctx, s)
		}, nil
	})
	return v, h.refused(ctx, a, "run.drive", "run", id, err)
}

// Finish ends a run of an external planner with its output.
func (h *Host) Finish(ctx context.Context, a Actor, id string, idem Idempotency, body Lazy[Final]) (Run, error) {
	parse := sync.OnceValues(body)
	v, err := h.driveExternal(ctx, a, id, idem, func(r *run) (func(*step) error, error) {
		req, err := parse()
		if err != nil {
			return nil, err
		}
		if req.Turn == nil {
			return nil, invalid("/turn", "say which turn this is: the run's turn + 1")
		}
		output := json.RawMessage("null")
		if req.Output != nil {
			if output, err = ijson.Parse(req.Output); err != nil {
				return nil, invalid("/output", "not I-JSON: %v", err)
			}
		}
		return func(s *step) error {
			if err := h.turnOpen(r, *req.Turn); err != nil {
				return err
			}
			b, err := h.body(ctx, r.Tenant, output)
			if err != nil {
				return err
			}
			s.end(store.RunSucceeded, &b, nil)
			return nil
		}, nil
	})
	return v, h.refused(ctx, a, "run.drive", "run", id, err)
}

// errRepeat means that the request repeats what is stored: the answer is the run as it is.
var errRepeat = errors.New("repeat")

// driveExternal is what Propose and Finish share: find, check, move, commit, again after a lost race.
func (h *Host) driveExternal(ctx context.Context, a Actor, id string, idem Idempotency, check func(*run) (func(*step) error, error)) (Run, error) {
	for {
		r, err := h.open(ctx, a, id)
		if err != nil {
			return Run{}, err
		}
		if err := h.allow(ctx, a, "run.drive", runResource(r.Run)); err != nil {
			return Run{}, err
		}
		move, err := check(r)
		if err != nil {
			return Run{}, err
		}
		stored, repeat, err := h.replay(ctx, a, idem)
		if err != nil || repeat {
			return stored.run, err
		}
		s := h.step(r)
		if err := move(s); errors.Is(err, errRepeat) {
			return h.view(ctx, a, r)
		} else if err != nil {
			return Run{}, err
		}
		h.remember(&s.change, a, idem, stored.version, 200, r.ID)
		if err := h.commit(ctx, s); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Run{}, err
		}
		v, err := h.view(ctx, a, r)
		if r.State == store.RunQueued {
			h.queue.push(ref{tenant: r.Tenant, id: r.ID, gated: true})
		}
		return v, err
	}
}

// turnOpen reports whether the run waits for its client's turn with this number.
func (h *Host) turnOpen(r *run, turn int) error {
	if r.Planner != "external" {
		return errf(CodeWrongState, "the run plans by %s; only runs of an external planner take turns from a client", r.Planner)
	}
	if turn != r.Turn+1 {
		return errf(CodeWrongTurn, "the next turn of the run is %d, not %d", r.Turn+1, turn)
	}
	if r.State != store.RunAwaitingPlanner {
		return errf(CodeWrongTurn, "the run is %s; turn %d can begin when it is awaiting_planner", r.State, turn)
	}
	return nil
}

// sameBatch reports whether the proposed calls are those of the stored batch.
func (h *Host) sameBatch(ctx context.Context, r *run, proposed []ProposedCall) (bool, error) {
	root := r.root()
	if len(proposed) != len(root.calls) {
		return false, nil
	}
	inline := 0
	for i, p := range proposed {
		c, _, err := h.resolve(ctx, r, root, p, i, &inline)
		if err != nil {
			return false, err
		}
		old := root.calls[i]
		if c.Tool != old.Tool || c.ToolCallID != old.ToolCallID || c.ArgsDigest != old.ArgsDigest {
			return false, nil
		}
	}
	return true, nil
}

// Cancel ends a run. Cancelling an ended run changes nothing and is no error.
func (h *Host) Cancel(ctx context.Context, a Actor, id string) (Run, error) {
	for {
		r, err := h.open(ctx, a, id)
		if err != nil {
			return Run{}, err
		}
		if err := h.allow(ctx, a, "run.cancel", runResource(r.Run)); err != nil {
			return Run{}, h.refused(ctx, a, "run.cancel", "run", id, err)
		}
		if r.State.Ended() {
			return h.view(ctx, a, r)
		}
		s := h.step(r)
		if err := applyDecisions(ctx, h, s, false); err != nil {
			return Run{}, err
		}
		s.cancel(a)
		if err := h.commit(ctx, s); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Run{}, err
		}
		h.queue.interrupt(a.Tenant, id)
		return h.view(ctx, a, r)
	}
}

// RotateToken makes the resume token of an open pause useless and gives a new one.
func (h *Host) RotateToken(ctx context.Context, a Actor, id string) (Run, error) {
	for {
		r, err := h.open(ctx, a, id)
		if err != nil {
			return Run{}, err
		}
		if err := h.allow(ctx, a, "token.rotate", runResource(r.Run)); err != nil {
			return Run{}, h.refused(ctx, a, "token.rotate", "run", id, err)
		}
		if !r.State.Paused() {
			return Run{}, h.refused(ctx, a, "token.rotate", "run", id, errf(CodeWrongState, "the run is %s and has no resume token", r.State))
		}
		if r.overdue(h.now()) {
			return Run{}, h.refused(ctx, a, "token.rotate", "run", id, errf(CodeApprovalExpired, "the pause expired at %s; start a new run", Time(r.pause.ExpiresAt)))
		}
		s := h.step(r)
		s.rotate(a)
		if err := h.commit(ctx, s); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Run{}, err
		}
		return h.view(ctx, a, r)
	}
}
