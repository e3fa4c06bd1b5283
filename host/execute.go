package host

import (
	"cmp"
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
		s.grant(store.Grant{Key: approvalFlag(a), Tool: c.Tool, Digest: c.Digest, ArgsDigest: a.ArgsDigest, Frame: a.Frame})
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
	for c := range s.r.calls() {
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

// tightenPending asks policy once more about every frame, unless this process has just done so. What it stops waits until the run
// rests.
func tightenPending(ctx context.Context, h *Host, s *step, gated bool) error {
	if gated {
		return nil
	}
	for _, f := range s.r.frames {
		if err := h.tighten(ctx, s, f); err != nil {
			return err
		}
	}
	return nil
}

// ended is how a call ended that this process ran; no commit holds it yet. panicked is what the host's own
// code panicked with, and where.
type ended struct {
	call     *store.Call
	res      *plugins.Result
	panicked string
}

// drivePending runs what can run, in every frame, until the run rests or ends. Each commit holds one call's end and the starts that
// follow from it, or the last call's end and the next turn.
func (h *Host) drivePending(ctx, guest context.Context, s *step, attempts map[string]int) (err error) {
	var (
		r    = s.r
		busy = map[string]bool{}
		ends = make(chan ended)
		last []ended // what s records
	)
	defer func() { // every guest has an owner who waits for it
		for range busy {
			e := <-ends
			if e.panicked == "" && !stopping(guest) {
				last = append(last, e)
			}
		}
		if (errors.Is(err, store.ErrConflict) || r.State.Ended()) && len(last) > 0 {
			if rerr := h.recordEnded(ctx, r.Tenant, r.ID, last); rerr != nil {
				err = rerr
			}
		}
	}()
	for {
		next, more, err := h.advance(ctx, s, busy)
		if err != nil {
			return err
		}
		if r.State == store.RunQueued {
			r.State, r.Boot = store.RunRunning, h.boot // the next turn begins under the same claim
		}
		for _, c := range next {
			s.start(c)
		}
		if len(next) == 0 && len(busy) == 0 && !more {
			h.rest(s)
		}
		if err := h.commit(ctx, s); errors.Is(err, store.ErrTooLarge) && len(last) > 0 {
			return h.recordTooLarge(ctx, r.Tenant, r.ID, last)
		} else if err != nil {
			if errors.Is(err, store.ErrConflict) {
				for _, e := range last {
					attempts[e.call.ID]++
				}
			}
			return err
		}
		if last = nil; r.State != store.RunRunning {
			if len(busy) > 0 {
				h.queue.interrupt(r.Tenant, r.ID) // the run ended in one frame while tools ran in others
			}
			return nil
		}
		for _, c := range next {
			busy[c.ID] = true
			f := r.frame(c.Frame) // here: the run's frames change while the tool runs
			h.guests.Go(func() { ends <- h.run(guest, r, f, c) })
		}
		if more {
			s = h.step(r)
			continue
		}
		e := <-ends
		s = h.step(r) // its moment is that of the end, however long the call took
		delete(busy, e.call.ID)
		if e.panicked != "" {
			panic(e.panicked)
		}
		if stopping(guest) {
			return nil // nothing of the attempt is visible; the next boot runs the call again
		}
		if attempts[e.call.ID] >= maxAttempts {
			s.fail(e.call, codeToolError, "other runs kept changing what this call read; try again")
			continue
		}
		last = []ended{e}
		if err := h.record(ctx, s, e.call, e.res); err != nil {
			return err
		}
	}
}

// run runs a call's tool. It writes nothing.
func (h *Host) run(guest context.Context, r *run, f *frame, c *store.Call) (e ended) {
	e.call = c
	defer func() {
		if p := recover(); p != nil {
			e.panicked = fmt.Sprintf("%v, in the goroutine of a call: %s", p, stack()) // the driver panics with it, where no stack tells
		}
	}()
	e.res = h.invoke(guest, r, f, c)
	return e
}

// stops are the calls that must wait and have no approval yet.
func (r *run) stops() (out []stopped) {
	for _, f := range r.frames {
		for _, c := range f.calls {
			if c.State != store.CallAwaiting || c.Stop == nil {
				continue
			}
			st := stopped{
				call: c, subagent: f.path(), origin: c.Stop.Origin, reason: c.Stop.Reason, rules: c.Stop.Rules, title: c.Stop.Title,
				message: c.Stop.Message, payload: c.Stop.Payload, schema: c.Stop.Schema, allowed: c.Stop.Allowed, revision: c.Stop.Revision, ttl: c.Stop.TTL,
			}
			if st.ttl == 0 || f.agent.ttl > 0 && f.agent.ttl < st.ttl {
				st.ttl = f.agent.ttl
			}
			if st.origin != originGate {
				st.asked()
			}
			out = append(out, st)
		}
	}
	return out
}

// asked fills in what a tool's own stop says to people.
func (st *stopped) asked() {
	var p struct{ Title, Message, Question string }
	_ = json.Unmarshal(st.payload, &p) // a payload of another shape has no title
	st.origin = originTool
	st.title = clip(cmp.Or(p.Title, st.call.Tool+" asks"), 256)
	st.message = clip(cmp.Or(p.Message, p.Question), maxErrorText)
	st.allowed = answersTo(st.call.Stop)
}

// recordTooLarge fails calls whose writes, logs and result do not fit one commit. It returns store.ErrConflict: the run goes on
// from what is stored.
func (h *Host) recordTooLarge(ctx context.Context, tenant, id string, ends []ended) error {
	r, err := h.load(ctx, tenant, id)
	if err != nil {
		return err
	}
	s := h.step(r)
	for _, e := range ends {
		for c := range r.calls() {
			if c.ID == e.call.ID && c.State == store.CallStarted {
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
func (h *Host) invoke(ctx context.Context, r *run, f *frame, c *store.Call) *plugins.Result {
	fail := func(code, message string) *plugins.Result {
		return &plugins.Result{Failure: &plugins.Failure{Code: code, Message: message}}
	}
	tool, code := h.tool(r, f, c.Tool)
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
	for f := r.frame(c.Frame); f != nil && f.parent != nil; f = f.parent {
		f.ActiveMS, f.dirty = f.ActiveMS+res.Active.Milliseconds(), true
	}
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
	case res.Pause != nil:
		stop := &store.Stop{Origin: originTool, Reason: res.Pause.Reason, Payload: res.Pause.Payload, Schema: res.Pause.Schema}
		if r.frame(c.Frame).agent.unattended {
			s.fail(c, codeDenied, nobodyThere(stop))
			return nil
		}
		if why, ok := r.tiresome(c); ok {
			s.fail(c, codeDenied, why)
			return nil
		}
		before := r.asked()
		if c.State, c.Stop = store.CallAwaiting, stop; before+question(c) > maxQuestions {
			s.fail(c, codeLimit, tooManyQuestions)
			return nil
		}
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

// maxQuestions bounds what the stops of a run say: they are suspended in one commit.
const maxQuestions = 1 << 20

const tooManyQuestions = "what the calls of this run ask is together larger than 1 MiB; ask less at once, put large things elsewhere and name them"

// question is about what the approval of a stopped call will take.
func question(c *store.Call) int {
	if c.Stop == nil {
		return 0
	}
	n := 2<<10 + len(c.Stop.Payload) + len(c.Stop.Schema) + len(c.Stop.Title) + len(c.Stop.Message)
	for _, r := range c.Stop.Rules {
		n += len(r)
	}
	return n
}

// asked is the size of what waits to be asked.
func (r *run) asked() (n int) {
	for c := range r.calls() {
		n += question(c)
	}
	return n
}

// recordEnded records ends of calls in a run that has ended; it does nothing in one that goes on. A finished result is never thrown away.
func (h *Host) recordEnded(ctx context.Context, tenant, id string, ends []ended) error {
	for _, e := range ends {
		if err := h.recordLate(ctx, tenant, id, e); err != nil {
			return err
		}
	}
	return nil
}

// recordLate records one end. When the run stays as it is and the commit is refused all the same, it is what the call read that others
// have changed: the call cannot run again, so it ends without its writes.
func (h *Host) recordLate(ctx context.Context, tenant, id string, e ended) error {
	var before uint64
	unfit := false // as it is, the end cannot be recorded
	for {
		r, err := h.load(ctx, tenant, id)
		if err != nil || !r.State.Ended() {
			return err
		}
		var c *store.Call
		for open := range r.calls() {
			if open.ID == e.call.ID && open.State == store.CallStarted {
				c = open
			}
		}
		if c == nil {
			return nil
		}
		s := h.step(r)
		r.Unsettled--
		switch {
		case e.res.Pause != nil:
			s.fail(c, codeCancelled, "the run ended while the tool asked; nobody is asked any more")
		case unfit, r.Version == before:
			s.fail(c, codeCancelled, "the run ended, and what this call brought could not be kept: another run had changed what it read, or it is too large")
		default:
			if err := h.record(ctx, s, c, e.res); err != nil {
				return err
			}
		}
		before = r.Version
		err = h.commit(ctx, s)
		if errors.Is(err, store.ErrTooLarge) && !unfit {
			unfit = true
		} else if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// settleOrphans closes the calls that a cancelled run left started when its process died: nobody will bring their result.
func (h *Host) settleOrphans(ctx context.Context, r *run) error {
	s := h.step(r)
	for c := range r.calls() {
		if c.State == store.CallStarted {
			s.fail(c, codeCancelled, "the run was cancelled and the host stopped while this call ran; none of its writes was kept")
		}
	}
	r.Unsettled = 0
	return h.commit(ctx, s)
}

// overBudget reports whether what has run in the frame, and below it, took more than its agent may.
func (r *run) overBudget(f *frame) bool {
	used := f.ActiveMS
	if f.parent == nil {
		used = r.ActiveMS
	}
	return used > f.agent.active.Milliseconds()
}

// commit seals the step and makes it durable. Afterwards the run in memory has the version of the store.
func (h *Host) commit(ctx context.Context, s *step) error {
	h.beginStretch(ctx, s)
	s.trace = s.traceID(ctx)
	h.tally.begin.RLock()
	receipt, err := h.write(ctx, s.seal())
	if err == nil {
		h.tally.add(s)
	}
	h.tally.begin.RUnlock()
	if err != nil {
		return err
	}
	s.r.Version = receipt.Version
	h.observeStep(s)
	h.traceStep(ctx, s)
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
