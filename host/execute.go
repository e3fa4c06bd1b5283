package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

// maxAttempts bounds how often a call is run again because another run wrote what it had read.
const maxAttempts = 32

// drive takes a run as far as it goes: until it stops, ends, waits for its client, or the host stops. Only one driver works
// on a run at a time (see queue.go). Nothing of a call is visible before its result is committed.
//
// guest ends the guests (a cancelled run, a host that stops); what is recorded is recorded all the same.
func (h *Host) drive(guest context.Context, at ref) error {
	ctx := context.WithoutCancel(guest)
	r, err := h.load(ctx, at.tenant, at.id)
	if err != nil {
		return err
	}
	attempts := map[string]int{}
	gated := at.gated
	for {
		if r.State.Ended() && r.Unsettled > 0 {
			return h.settleOrphans(ctx, r)
		}
		if r.State != store.RunQueued && (r.State != store.RunRunning || r.Boot == "") {
			return nil
		}
		s := h.step(r)
		s.claim(h.boot)
		// The order of resumption (design section 3): decisions, then repair, then the pending batch, then the planner.
		if err := h.resumeRun(ctx, s, gated); err != nil {
			return err
		}
		gated = true
		err := h.drivePending(ctx, guest, s, attempts)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
		// Somebody else wrote: a cancel, or another run wrote what a call had read. Reload and reconsider.
		if r, err = h.load(ctx, at.tenant, at.id); err != nil {
			return err
		}
	}
}

// resumeOrder is the order in which a run goes on. Each step assumes the ones before it: repair must not see a call whose
// decision is not applied yet (it would destroy the approval), the pending batch must not run before both, and the planner
// must not be asked while a call of the batch is open (it would propose the batch a second time). The tests build the wrong
// orders and show what each one breaks.
var resumeOrder = []resumeStep{applyDecisions, repair, tightenPending}

type resumeStep func(ctx context.Context, h *Host, s *step, gated bool) error

func (h *Host) resumeRun(ctx context.Context, s *step, gated bool) error {
	for _, f := range h.order {
		if err := f(ctx, h, s, gated); err != nil {
			return err
		}
	}
	return nil
}

// applyDecisions gives each decided call what its decision means.
func applyDecisions(ctx context.Context, h *Host, s *step, _ bool) error {
	r := s.r
	for _, a := range r.approvals {
		c := r.call(a)
		if c == nil || c.State != store.CallAwaiting || a.State != store.ApprovalDecided || c.Approvals[len(c.Approvals)-1] != a.ID {
			continue
		}
		if err := h.applyDecision(ctx, s, c, a); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) applyDecision(ctx context.Context, s *step, c *store.Call, a *store.Approval) error {
	d := a.Decision
	c.Decision = d
	s.touch(c)
	if a.Origin == originTool {
		return h.observe(ctx, s, c, a)
	}
	switch d.Kind {
	case kindApprove, kindEdit:
		c.State = store.CallPlanned
		c.Passed = union(c.Passed, a.Rules)
		if d.Kind == kindEdit {
			c.Edited, c.EditedDigest = *d.Value, d.Digest
		}
	case kindRespond:
		v, err := h.answer(ctx, s.r.Tenant, d)
		if err != nil {
			return err
		}
		s.succeed(c, v)
	default: // a reject, and anything that is not an approval
		s.fail(c, codeRejected, rejection(d))
	}
	return nil
}

func rejection(d *store.Decision) string {
	if d.Message == "" {
		return "rejected by " + d.DecidedBy
	}
	return d.Message
}

// answer is the result that a respond decision gives.
func (h *Host) answer(ctx context.Context, tenant string, d *store.Decision) (store.Body, error) {
	if d.Value != nil {
		return *d.Value, nil
	}
	return h.body(ctx, tenant, mustJSON(d.Message))
}

// observe ends a call that its tool had paused: the result is the observation. An approval also leaves a trusted flag for one
// later call of the same tool bytes and arguments.
func (h *Host) observe(ctx context.Context, s *step, c *store.Call, a *store.Approval) error {
	d := a.Decision
	o := struct {
		Reason    string          `json:"reason"`
		Decision  string          `json:"decision"`
		UserInput json.RawMessage `json:"user_input,omitempty"`
		Message   string          `json:"message,omitempty"`
	}{Reason: a.Reason, Decision: d.Kind, Message: d.Message}
	if d.Kind == kindRespond {
		v, err := h.answer(ctx, s.r.Tenant, d)
		if err != nil {
			return err
		}
		if o.UserInput, err = h.text(ctx, s.r.Tenant, v); err != nil {
			return err
		}
	}
	if d.Kind == kindApprove && a.Reason != reasonInput { // a question to the requester is no approval: it may be answered alone
		if len(s.r.grants) == maxBatch { // of flags that nobody came for, the oldest goes
			s.r.grants = s.r.grants[1:]
		}
		s.grant(store.Grant{Key: approvalFlag(a), Tool: c.Tool, Digest: c.Digest, ArgsDigest: a.ArgsDigest})
	}
	body, err := h.body(ctx, s.r.Tenant, mustJSON(o))
	if err != nil {
		return err
	}
	c.Observed = true
	s.succeed(c, body)
	return nil
}

// approvalFlag is the name under which the tool will find its approval.
func approvalFlag(a *store.Approval) string {
	var p struct {
		Key string `json:"approval_key"`
	}
	if json.Unmarshal(a.Payload, &p) == nil && p.Key != "" {
		return p.Key // the runtime bounds it
	}
	return a.Tool
}

// repair gives an honest error to the calls that dangle: waiting, with nothing left that could decide them. A call with a
// decision never dangles.
func repair(_ context.Context, _ *Host, s *step, _ bool) error {
	for _, c := range s.r.calls {
		if c.State == store.CallAwaiting && c.Stop == nil && !s.r.undecided(c) {
			s.fail(c, codeCancelled, "the call was interrupted before anybody decided it; it did not run")
		}
	}
	return nil
}

// undecided reports whether the call still has an approval that somebody can decide.
func (r *run) undecided(c *store.Call) bool {
	return slices.ContainsFunc(r.approvals, func(a *store.Approval) bool {
		return a.CallID == c.ID && a.State == store.ApprovalPending
	})
}

// tightenPending asks policy once more, unless this process has just done so. New stops open a new pause.
func tightenPending(ctx context.Context, h *Host, s *step, gated bool) error {
	if gated {
		return nil
	}
	stops, err := h.tighten(ctx, s)
	if err != nil || len(stops) == 0 {
		return err
	}
	s.suspend(stops, h.ttl(s.r))
	return nil
}

// drivePending runs the pending batch, then asks the planner, and so on. Each commit holds one call's end and the next
// call's start, or the last call's end and the next turn.
func (h *Host) drivePending(ctx, guest context.Context, s *step, attempts map[string]int) error {
	r := s.r
	var ends results
	for {
		next := r.runnable()
		if len(next) == 0 && r.State == store.RunRunning {
			if stops := r.stops(); len(stops) > 0 {
				s.suspend(stops, h.ttl(r)) // quiescence: nothing of the batch runs any more
			} else if h.overBudget(r) {
				s.end(store.RunFailed, nil, &store.Failure{Code: codeLimit, Message: "the run used up its active time; raise limits.active of the agent"})
			} else if err := h.advance(ctx, s); err != nil {
				return err
			}
			if r.State == store.RunQueued {
				r.State, r.Boot = store.RunRunning, h.boot // the next turn begins under the same claim
				continue
			}
		}
		if r.State != store.RunRunning {
			return h.commitResults(ctx, s, ends)
		}
		for _, c := range next {
			s.start(c)
		}
		if err := h.commitResults(ctx, s, ends); err != nil {
			return err
		}
		var err error
		if len(next) == 1 {
			s, ends, err = h.runOne(ctx, guest, r, next[0], attempts)
		} else {
			s, ends, err = h.runParallel(ctx, guest, r, next)
		}
		if s == nil || err != nil {
			return err
		}
	}
}

// runnable are the calls to run now: all that are left where the whole batch only reads, else the next in call order.
func (r *run) runnable() []*store.Call {
	var left []*store.Call
	parallel := true
	for _, c := range r.calls {
		if c.Effects != effectsRead {
			parallel = false
		}
		if c.State == store.CallPlanned || c.State == store.CallStarted {
			left = append(left, c)
		}
	}
	if len(left) > 1 && !parallel {
		// A call that had started goes first: it is the one that a crash or a conflict interrupted.
		for _, c := range left {
			if c.State == store.CallStarted {
				return []*store.Call{c}
			}
		}
		return left[:1]
	}
	return left
}

const effectsRead = "read"

// stops are the calls of the batch that their tools have stopped.
func (r *run) stops() []stopped {
	var out []stopped
	for _, c := range r.calls {
		if c.State != store.CallAwaiting || c.Stop == nil {
			continue
		}
		var p struct{ Title, Message, Question string }
		_ = json.Unmarshal(c.Stop.Payload, &p) // a payload of another shape has no title
		title := p.Title
		if title == "" {
			title = c.Tool + " asks"
		}
		message := p.Message
		if message == "" {
			message = p.Question
		}
		out = append(out, stopped{
			call: c, origin: originTool, reason: c.Stop.Reason, title: clip(title, 256), message: clip(message, maxErrorText),
			payload: c.Stop.Payload, schema: c.Stop.Schema, allowed: answersTo(c.Stop),
		})
	}
	return out
}

// results are ends of calls that no commit holds yet.
type results map[*store.Call]*plugins.Result

// runOne runs a call and returns the step that records its end; nil when the host is stopping.
func (h *Host) runOne(ctx, guest context.Context, r *run, c *store.Call, attempts map[string]int) (*step, results, error) {
	attempts[c.ID]++
	res := h.invoke(guest, r, c)
	if stopping(guest) {
		return nil, nil, nil // nothing of the attempt is visible; the next boot runs the call again
	}
	s := h.step(r)
	if attempts[c.ID] > maxAttempts {
		s.fail(c, codeToolError, "other runs kept changing what this call read; try again")
		return s, nil, nil
	}
	return s, results{c: res}, h.record(ctx, s, c, res)
}

// runParallel runs calls that only read at the same time, committing each end as it comes, and returns the step that records
// the last one.
func (h *Host) runParallel(ctx, guest context.Context, r *run, calls []*store.Call) (*step, results, error) {
	type ended struct {
		c   *store.Call
		res *plugins.Result
	}
	ends := make(chan ended, len(calls))
	for _, c := range calls {
		h.guests.Go(func() { ends <- ended{c, h.invoke(guest, r, c)} })
	}
	var failed error
	for i := range calls {
		e := <-ends // drain them all: every guest has an owner who waits for it
		if failed != nil || stopping(guest) {
			continue
		}
		s := h.step(r)
		if failed = h.record(ctx, s, e.c, e.res); failed != nil {
			continue
		}
		if i == len(calls)-1 {
			return s, results{e.c: e.res}, nil
		}
		failed = h.commitResults(ctx, s, results{e.c: e.res})
	}
	return nil, nil, failed
}

// commitResults commits a step that records ends of calls. If it loses because the run was cancelled meanwhile, the ends are
// recorded all the same: a finished result is never thrown away. An end that is larger than a commit can be is a failure of
// its call.
func (h *Host) commitResults(ctx context.Context, s *step, ends results) error {
	err := h.commit(ctx, s)
	switch {
	case len(ends) == 0:
	case errors.Is(err, store.ErrConflict):
		if rerr := h.recordEnded(ctx, s.r.Tenant, s.r.ID, ends); rerr != nil {
			return rerr
		}
	case errors.Is(err, store.ErrTooLarge):
		return h.recordTooLarge(ctx, s.r.Tenant, s.r.ID, ends)
	}
	return err
}

// recordTooLarge fails calls whose writes, logs and result do not fit one commit. It returns store.ErrConflict: the run goes on
// from what is stored.
func (h *Host) recordTooLarge(ctx context.Context, tenant, id string, ends results) error {
	r, err := h.load(ctx, tenant, id)
	if err != nil {
		return err
	}
	s := h.step(r)
	for old := range ends {
		for _, c := range r.calls {
			if c.ID == old.ID && c.State == store.CallStarted {
				s.fail(c, codeLimit, "the call's writes, logs and result are together larger than one commit can be; write less in one call")
			}
		}
	}
	if err := h.commit(ctx, s); err != nil {
		return err
	}
	return store.ErrConflict
}

// invoke runs the tool. It writes nothing.
func (h *Host) invoke(ctx context.Context, r *run, c *store.Call) *plugins.Result {
	fail := func(code, message string) *plugins.Result {
		return &plugins.Result{Failure: &plugins.Failure{Code: code, Message: message}}
	}
	tool, code := h.tool(r, c.Tool)
	if code != "" {
		return fail(code, toolProblem(code, c.Tool))
	}
	args, err := h.callArguments(ctx, r.Tenant, c)
	if err != nil {
		return fail(codeToolError, "the stored arguments cannot be read")
	}
	tc, err := h.trustedContext(ctx, r, c)
	if err != nil {
		return fail(codeToolError, "the stored context cannot be read")
	}
	space := kvKey(r.Tenant, tool.Plugin)
	return h.plugins.Call(ctx, plugins.Call{
		Tool: tool, Owner: r.Tenant, RunID: r.ID, CallID: c.ID, Time: c.StartedAt, Arguments: args, ToolContext: tc, Approvals: flags(c.Grants),
		KV: plugins.KV{
			Get: func(ctx context.Context, key string) (plugins.KVItem, error) { return h.kvGet(ctx, space, key) },
			List: func(ctx context.Context, prefix, after string, limit int) ([]string, error) {
				return h.kvList(ctx, space, prefix, after, limit)
			},
		},
		Progress: func(p json.RawMessage) { h.progress.publish(r.key, r.ID, c, h.now(), p) },
	})
}

func flags(grants []string) json.RawMessage {
	m := map[string]bool{}
	for _, g := range grants {
		m[g] = true
	}
	return mustJSON(m)
}

// trustedContext is the caller's tool_context with the host's own members in it.
func (h *Host) trustedContext(ctx context.Context, r *run, c *store.Call) (json.RawMessage, error) {
	raw, err := h.text(ctx, r.Tenant, r.ctx.ToolContext)
	if err != nil {
		return nil, err
	}
	m := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, err
		}
	}
	m["tenant_id"], m["user_id"] = mustJSON(r.Tenant), mustJSON(r.subject())
	if r.SessionID != "" {
		m["session_id"] = mustJSON(r.SessionID)
	}
	m["approvals"] = flags(c.Grants)
	return mustJSON(m), nil
}

// record puts a call's end into the step: its result or error, its writes with what they rest on, its logs.
func (h *Host) record(ctx context.Context, s *step, c *store.Call, res *plugins.Result) error {
	r := s.r
	r.ActiveMS += res.Active.Milliseconds()
	for _, l := range res.Logs {
		s.event("call.log", map[string]any{"call_id": c.ID, "tool_call_id": c.ToolCallID, "level": l.Level, "message": l.Message}, hydrate{})
	}
	switch {
	case res.Failure != nil:
		s.fail(c, res.Failure.Code, res.Failure.Message)
		return nil // a failed call writes nothing
	case len(res.Writes) > 0 && c.Effects == effectsRead:
		s.fail(c, codeToolError, "the tool is declared effects: read and wrote to its key-value space; declare it effects: write")
		return nil
	case r.Bytes+int64(len(res.Output)) > maxRunBytes:
		s.fail(c, codeLimit, tooManyBytes)
		return nil
	case res.Pause != nil && r.asked()+len(res.Pause.Payload)+len(res.Pause.Schema) > maxQuestions:
		s.fail(c, codeLimit, fmt.Sprintf("the questions of the batch are together larger than %d bytes; put large things elsewhere and name them", maxQuestions))
		return nil
	case res.Pause != nil:
		c.State, c.Stop = store.CallAwaiting, &store.Stop{Reason: res.Pause.Reason, Payload: res.Pause.Payload, Schema: res.Pause.Schema}
		s.touch(c)
	default:
		output, err := ijson.Parse(res.Output)
		if err != nil {
			s.fail(c, codeToolError, "the tool's result is not I-JSON: "+err.Error())
			return nil
		}
		body, err := h.body(ctx, r.Tenant, output)
		if err != nil {
			return err
		}
		s.succeed(c, body)
	}
	h.putKV(&s.change, r.Tenant, c, res)
	return nil
}

// maxQuestions bounds the payloads of a batch's own stops: they are suspended in one commit.
const maxQuestions = 1 << 20

// asked is the size of the questions that calls of the batch have raised.
func (r *run) asked() (n int) {
	for _, c := range r.calls {
		if c.Stop != nil {
			n += len(c.Stop.Payload) + len(c.Stop.Schema)
		}
	}
	return n
}

// recordEnded records ends of calls in a run that was cancelled; it does nothing in one that goes on.
func (h *Host) recordEnded(ctx context.Context, tenant, id string, ends results) error {
	for {
		r, err := h.load(ctx, tenant, id)
		if err != nil || !r.State.Ended() {
			return err
		}
		s := h.step(r)
		for old, res := range ends {
			for _, c := range r.calls {
				if c.ID != old.ID || c.State != store.CallStarted {
					continue
				}
				r.Unsettled--
				if res.Pause != nil {
					s.fail(c, codeCancelled, "the run was cancelled while the tool asked")
				} else if err := h.record(ctx, s, c, res); err != nil {
					return err
				}
			}
		}
		if err := h.commit(ctx, s); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// settleOrphans closes the calls that a cancelled run left started when its process died: nobody will bring their result.
func (h *Host) settleOrphans(ctx context.Context, r *run) error {
	s := h.step(r)
	for _, c := range r.calls {
		if c.State == store.CallStarted {
			s.fail(c, codeCancelled, "the run was cancelled and the host stopped while this call ran; none of its writes was kept")
		}
	}
	r.Unsettled = 0
	return h.commit(ctx, s)
}

func (h *Host) overBudget(r *run) bool {
	return r.agent.active > 0 && r.ActiveMS > r.agent.active.Milliseconds()
}

// commit seals the step and makes it durable. Afterwards the run in memory has the version of the store.
func (h *Host) commit(ctx context.Context, s *step) error {
	receipt, err := h.write(ctx, s.seal())
	if err != nil {
		return err
	}
	s.r.Version = receipt.Version
	h.observeStep(s)
	return nil
}

// write commits a change; its errors have the codes that clients know.
func (h *Host) write(ctx context.Context, c *store.Change) (store.Receipt, error) {
	r, err := h.store.Commit(ctx, c)
	return r, coded(err)
}

// mustJSON encodes a value of the program's own making.
func mustJSON(v any) json.RawMessage {
	b, err := marshal(v)
	if err != nil {
		panic(fmt.Sprintf("host: encode %T: %v", v, err))
	}
	return b
}
