package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// The kinds of decisions.
const (
	kindApprove = "approve"
	kindEdit    = "edit"
	kindReject  = "reject"
	kindRespond = "respond"
)

const maxDecisionText = 16 << 10

// Decide answers the open pause of a run. It decides every pending approval that the actor may decide, or changes nothing.
// Of racing requests exactly one wins; the others get CodeAlreadyDecided with who decided what.
func (h *Host) Decide(ctx context.Context, a Actor, id string, idem Idempotency, body Lazy[Answer]) (Run, error) {
	var r *run
	find := func() (_ *run, err error) { r, err = h.open(ctx, a, id); return r, err }
	v, err := h.answerPause(ctx, a, find, idem, body, false)
	return v, h.refusedDecision(ctx, a, r, err)
}

// Resume answers the pause that a token names. Holding the token is not enough: policy must allow the actor too. Unknown,
// malformed and foreign tokens look alike.
func (h *Host) Resume(ctx context.Context, a Actor, token string, idem Idempotency, body Lazy[Answer]) (Run, error) {
	unknown := errNotFound("resume token")
	pauseID, keyID, mac, ok := parseToken(token)
	if !ok {
		return Run{}, unknown
	}
	var known *run
	find := func() (*run, error) {
		r, err := h.pauseRun(ctx, a.Tenant, pauseID)
		if errors.Is(err, store.ErrNotFound) {
			return nil, unknown
		}
		if err != nil {
			return nil, err
		}
		current, superseded := h.verify(a.Tenant, r.ID, r.pause, keyID, mac)
		if !current && !superseded {
			return nil, unknown
		}
		known = r
		if _, err := h.decider(ctx, a, r); err != nil {
			return nil, err
		}
		if superseded {
			return nil, errf(CodeTokenUsed, "this resume token was superseded; GET the run to be given the current one")
		}
		return r, nil
	}
	v, err := h.answerPause(ctx, a, find, idem, body, true)
	return v, h.refusedDecision(ctx, a, known, err)
}

// pauseRun loads the run of a pause, with that pause (which may not be its last one).
func (h *Host) pauseRun(ctx context.Context, tenant, pauseID string) (*run, error) {
	r := &run{}
	err := h.store.View(ctx, func(rd store.Reader) error {
		it, err := rd.Get(pausesKey(tenant).With(pauseID))
		if err != nil {
			return err
		}
		if err := r.read(rd, tenant, string(it.Value)); err != nil {
			return err
		}
		if r.PauseID != pauseID {
			r.PauseID, r.approvals = pauseID, nil
			return r.readPause(rd)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, h.bind(ctx, r)
}

// answerPause is the one door for every answer of a person. find loads the run and checks that the actor may see it.
func (h *Host) answerPause(ctx context.Context, a Actor, find func() (*run, error), idem Idempotency, body Lazy[Answer], byToken bool) (Run, error) {
	parse := sync.OnceValues(body)
	for {
		a, err := h.Fresh(ctx, a) // who may decide is asked by the rights of this moment, and the commit requires that they still hold
		if err != nil {
			return Run{}, err
		}
		r, err := find()
		if err != nil {
			return Run{}, err
		}
		mine, err := h.decider(ctx, a, r)
		if err != nil {
			return Run{}, err
		}
		// A repeat of the request that won is answered before anything of it is judged again: tools and rules may have
		// changed since. The same key with another body is told so after what is wrong with that body itself.
		stored, repeat, misused := h.replay(ctx, a, idem)
		if repeat {
			return stored.run, nil
		}
		if misused != nil && (byToken || !isCode(misused, CodeIdempotency)) {
			return Run{}, misused
		}
		if byToken { // a used token is told before its decisions are read
			if err := h.tokenSpent(r); err != nil {
				return Run{}, err
			}
		}
		answer, err := parse()
		if err != nil {
			return Run{}, err
		}
		if err := checkContext(answer.ToolContext, r.Tenant, r.subject(), r.SessionID); err != nil {
			return Run{}, err
		}
		decisions, err := r.decisions(answer, byToken)
		if err != nil {
			return Run{}, err
		}
		plan, err := h.checkDecisions(ctx, r, decisions)
		if err != nil {
			return Run{}, err
		}
		if misused != nil {
			return Run{}, misused
		}
		if err := h.decidable(r, mine, plan); err != nil {
			return Run{}, err
		}
		if err := h.space(h.low); err != nil {
			return Run{}, err
		}
		v, err := h.commitAnswer(ctx, a, r, plan, answer, idem, stored.version)
		if !errors.Is(err, store.ErrConflict) {
			return v, err
		}
		h.people.forget()
		// Somebody else was first: look again, and say what they did.
	}
}

// tokenSpent tells whether the pause of a valid token has ended.
func (h *Host) tokenSpent(r *run) error {
	switch {
	case r.pause.State == store.PauseExpired, r.overdue(h.now()):
		return errf(CodeTokenExpired, "the pause of this resume token expired at %s", Time(r.pause.ExpiresAt))
	case r.pause.State != store.PauseOpen:
		e := errf(CodeTokenUsed, "this resume token was used; its pause was %s", r.pause.State)
		e.Decisions = r.decidedBy()
		return e
	}
	return nil
}

// overdue reports whether the open pause has expired and was not swept yet.
func (r *run) overdue(now time.Time) bool {
	return r.pause.State == store.PauseOpen && !now.Before(r.pause.ExpiresAt)
}

// decisions are those of the answer; a token's user_input is a respond to the single question of a tool.
func (r *run) decisions(ans Answer, byToken bool) ([]Decision, error) {
	switch {
	case ans.UserInput == nil && ans.Decisions == nil:
		if byToken {
			return nil, invalid("", "give user_input or decisions")
		}
		return nil, invalid("/decisions", "give the decisions")
	case ans.UserInput == nil:
		return ans.Decisions, nil
	case !byToken:
		return nil, invalid("/user_input", "user_input goes with a resume token; give decisions here")
	case ans.Decisions != nil:
		return nil, invalid("/user_input", "give user_input or decisions, not both")
	}
	var open, gates []*store.Approval
	for _, ap := range r.approvals {
		if ap.State != store.ApprovalPending {
			continue
		}
		if ap.Origin == originTool {
			open = append(open, ap)
		} else {
			gates = append(gates, ap)
		}
	}
	switch {
	case len(open) == 0 && slices.ContainsFunc(r.approvals, func(ap *store.Approval) bool {
		return ap.Origin == originTool && ap.State == store.ApprovalDecided
	}):
		return nil, r.alreadyDecided(nil) // the same answer once more, while somebody else's part is open
	case len(open) == 0 && len(gates) > 0:
		return nil, invalid("/user_input", "no tool has asked; this stop is decided with decisions")
	case len(open) != 1:
		return nil, &Error{Code: CodeAmbiguous, Pointer: "/user_input", Detail: fmt.Sprintf("%d questions are open; answer each by decisions with its approval_id", len(open))}
	}
	return []Decision{{ApprovalID: open[0].ID, Kind: kindRespond, Value: ans.UserInput, at: "/user_input"}}, nil
}

// planned is a decision that has passed the checks which do not depend on who was first.
type planned struct {
	Decision
	approval *store.Approval
	call     *store.Call
	edited   json.RawMessage
}

// checkDecisions checks the decisions against the approvals: what is wrong with the request itself (400).
func (h *Host) checkDecisions(ctx context.Context, r *run, ds []Decision) ([]planned, error) {
	seen := map[string]bool{}
	var out []planned
	for i, d := range ds {
		at := fmt.Sprintf("/decisions/%d", i)
		if d.ApprovalID == "" {
			return nil, invalid(at+"/approval_id", "name the approval; GET /v1/runs/{run}/approvals lists them")
		}
		if seen[d.ApprovalID] {
			return nil, invalid(at+"/approval_id", "this approval is decided twice in one request")
		}
		seen[d.ApprovalID] = true
		p := planned{Decision: d}
		var err error
		if p.approval, p.call, err = h.approval(ctx, r, d.ApprovalID); err != nil {
			if errors.Is(err, store.ErrNotFound) {
				return nil, invalid(at+"/approval_id", "this run has no such approval; GET /v1/runs/{run}/approvals lists them")
			}
			return nil, err
		}
		if err := h.checkDecision(ctx, r, &p, at); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// approval finds an approval of the run, also one of an earlier pause.
func (h *Host) approval(ctx context.Context, r *run, id string) (*store.Approval, *store.Call, error) {
	for _, a := range r.approvals {
		if a.ID == id {
			if c := r.call(a); c != nil {
				return a, c, nil
			}
		}
	}
	a, c := new(store.Approval), new(store.Call)
	err := h.store.View(ctx, func(rd store.Reader) error {
		if err := get(rd, approvalKey(r.key, id), a); err != nil {
			return err
		}
		return get(rd, callKey(r.key, &store.Call{Frame: a.Frame, Turn: a.Turn, Index: a.Index}), c)
	})
	return a, c, err
}

func (h *Host) checkDecision(ctx context.Context, r *run, p *planned, at string) error {
	switch p.Kind {
	case kindApprove, kindEdit, kindReject, kindRespond:
	default:
		return invalid(at+"/kind", "say approve, edit, reject or respond")
	}
	if !slices.Contains(p.approval.Allowed, p.Kind) {
		return &Error{Code: CodeNotAllowed, Pointer: at + "/kind", Detail: fmt.Sprintf("%s is not among the allowed decisions %q of this approval", p.Kind, p.approval.Allowed)}
	}
	if len(p.Message) > maxDecisionText {
		return invalid(at+"/message", "at most %d bytes", maxDecisionText)
	}
	if p.Arguments != nil && p.Kind != kindEdit {
		return invalid(at+"/arguments", "arguments belong to an edit")
	}
	if p.Value != nil && p.Kind != kindRespond {
		return invalid(at+"/value", "a value belongs to a respond")
	}
	switch p.Kind {
	case kindRespond:
		if p.Value == nil && p.Message == "" {
			return invalid(at+"/value", "a respond needs a value or a message: it is the call's result")
		}
		return p.checkAnswer(at)
	case kindEdit:
		if p.Arguments == nil {
			return invalid(at+"/arguments", "an edit needs the arguments to run instead")
		}
		return h.checkEdit(ctx, r, p, at+"/arguments")
	}
	return nil
}

// checkEdit holds edited arguments to what the model could have proposed and to what stopped the call: valid against the
// schema, still within every rule that fired, not denied. Whether another rule stops them is asked when the batch goes on.
func (h *Host) checkEdit(ctx context.Context, r *run, p *planned, at string) error {
	c := p.call
	args, err := ijson.Parse(p.Arguments)
	if err != nil {
		return invalid(at, "not I-JSON: %v", err)
	}
	f := r.frame(c.Frame)
	if f == nil || r.State.Ended() || p.approval.State != store.ApprovalPending {
		return nil // too late to matter; the caller is told so
	}
	tool, code := h.tool(r, f, c.Tool)
	if code != "" {
		return invalid(at, "%s", toolProblem(code, c.Tool))
	}
	filled, err := tool.Check(args)
	if se, ok := errors.AsType[*plugins.SchemaError](err); ok {
		return invalid(at+se.Pointer, "%s", se.Message)
	} else if err != nil {
		return invalid(at, "%v", err)
	}
	if p.edited, err = ijson.Parse(filled); err != nil {
		return invalid(at, "not I-JSON: %v", err)
	}
	if c.Task {
		if _, err := f.task(p.edited); err != nil {
			return invalid(at+"/subagent", "%v", err)
		}
	}
	ctx = h.policy.bind(ctx)
	docs, i, tc, err := h.editDocs(ctx, r, f, c, p.edited)
	if err != nil {
		return err
	}
	all, missing, denied := h.policy.Fires(ctx, f.agent.interrupts, h.gateInput(r, f, docs, i, f.Turn, f.Before, tc), p.approval.Rules)
	switch {
	case denied != nil:
		return invalid(at, "%s", denial(*denied))
	case !all:
		gone, err := h.goneRules(ctx, r, f, c, missing)
		if err != nil {
			return err
		}
		return outOfScope(at, missing, gone)
	}
	return nil
}

func (h *Host) editDocs(ctx context.Context, r *run, f *frame, edited *store.Call, args json.RawMessage) (docs []*policy.Call, at int, toolContext json.RawMessage, err error) {
	all := make([]json.RawMessage, len(f.calls))
	for i, c := range f.calls {
		if c.ID == edited.ID {
			at, all[i] = i, args
		} else if !gated(c) {
			continue
		} else if all[i], err = h.callArguments(ctx, r.Tenant, c); err != nil {
			return nil, 0, nil, err
		}
	}
	toolContext, err = h.text(ctx, r.Tenant, r.ctx.ToolContext)
	return h.gateCalls(f.calls, all), at, toolContext, err
}

// decidable checks the state: whether the pause is still open for these decisions (409, 410), and whether they are complete.
func (h *Host) decidable(r *run, mine map[string]bool, plan []planned) error {
	if r.pause == nil {
		return errf(CodeWrongState, "the run is %s and waits for no decision", r.State)
	}
	if r.pause.State == store.PauseExpired || r.overdue(h.now()) {
		return errf(CodeApprovalExpired, "the pause expired at %s; start a new run", Time(r.pause.ExpiresAt))
	}
	for _, p := range plan {
		switch p.approval.State {
		case store.ApprovalDecided:
			return r.alreadyDecided(plan)
		case store.ApprovalExpired:
			return errf(CodeApprovalExpired, "%s has expired; GET the run for what is open now", p.approval.ID)
		case store.ApprovalCancelled, store.ApprovalSuperseded:
			return errf(CodeWrongState, "%s was %s; GET the run for what is open now", p.approval.ID, p.approval.State)
		}
	}
	switch r.pause.State {
	case store.PauseDecided:
		return r.alreadyDecided(plan)
	case store.PauseOpen:
	default:
		return errf(CodeWrongState, "the pause was %s; nothing is left to decide", r.pause.State)
	}
	for _, p := range plan {
		if !mine[p.approval.ID] {
			e := errf(CodeForbidden, "you may not decide %s", p.approval.ID)
			e.Reasons = []string{"not_your_decision"}
			return e
		}
		if p.ArgsDigest != "" && p.ArgsDigest != p.approval.ArgsDigest {
			return errf(CodeChanged, "the arguments of %s are not those with the digest %s; look at the approval again", p.approval.ID, clip(p.ArgsDigest, 80))
		}
	}
	named := map[string]bool{}
	for _, p := range plan {
		named[p.approval.ID] = true
	}
	var outstanding []string
	for _, a := range r.approvals {
		if a.State == store.ApprovalPending && mine[a.ID] && !named[a.ID] {
			outstanding = append(outstanding, a.ID)
		}
	}
	if len(outstanding) > 0 {
		e := errf(CodeIncomplete, "a request decides every approval that you may decide, or changes nothing; still missing: %d", len(outstanding))
		e.Outstanding = outstanding
		return e
	}
	if len(plan) == 0 {
		return r.alreadyDecided(plan) // what was this actor's to decide, somebody has decided
	}
	return nil
}

// alreadyDecided tells who decided what: of the last pause, and of the approvals that the request names, which may be of an earlier one.
func (r *run) alreadyDecided(plan []planned) error {
	e := errf(CodeAlreadyDecided, "somebody else decided first")
	e.Decisions = r.decidedBy()
	for _, p := range plan {
		if !slices.Contains(r.approvals, p.approval) && p.approval.Decision != nil {
			e.Decisions = append(e.Decisions, decidedBy(p.approval))
		}
	}
	return e
}

func (r *run) decidedBy() []DecidedBy {
	out := []DecidedBy{}
	for _, a := range r.approvals {
		if a.Decision != nil {
			out = append(out, decidedBy(a))
		}
	}
	return out
}

func decidedBy(a *store.Approval) DecidedBy {
	d := a.Decision
	return DecidedBy{ApprovalID: a.ID, Kind: d.Kind, DecidedBy: d.DecidedBy, DecidedAt: Time(d.DecidedAt)}
}

// commitAnswer makes the decisions durable, and queues the run in the commit of the last one.
func (h *Host) commitAnswer(ctx context.Context, a Actor, r *run, plan []planned, ans Answer, idem Idempotency, version uint64) (Run, error) {
	s := h.step(r)
	inline := maxInline - 256<<10 // edited arguments stand in the approvals and in the calls
	for _, p := range plan {
		d := &store.Decision{Kind: p.Kind, DecidedBy: a.ID, DecidedAt: s.now, Message: p.Message}
		switch p.Kind {
		case kindEdit:
			b, err := h.inlined(ctx, r.Tenant, p.edited, &inline)
			if err != nil {
				return Run{}, err
			}
			d.Value, d.Digest = &b, ijson.Digest(p.edited)
			d.Changed = d.Digest != p.approval.ArgsDigest
		case kindRespond:
			if p.Value == nil {
				break
			}
			value, err := ijson.Parse(p.Value)
			if err != nil {
				return Run{}, invalid("", "a value is not I-JSON: %v", err)
			}
			b, err := h.body(ctx, r.Tenant, value)
			if err != nil {
				return Run{}, err
			}
			d.Value = &b
		}
		s.decide(p.approval, d)
	}
	if err := h.mergeContext(ctx, s, ans.ToolContext); err != nil {
		return Run{}, err
	}
	if !slices.ContainsFunc(r.approvals, func(ap *store.Approval) bool { return ap.State == store.ApprovalPending }) {
		s.resume()
	} else {
		r.State = r.awaits()
	}
	h.remember(&s.change, a, idem, version, 200, r.ID)
	a.require(&s.change)
	if err := h.commit(ctx, s); err != nil {
		return Run{}, err
	}
	view, err := h.view(ctx, a, r)
	if r.State == store.RunQueued {
		h.queue.push(ref{tenant: r.Tenant, id: r.ID})
	}
	return view, err
}

// mergeContext merges a caller's tool_context over the stored one, shallowly: the caller wins.
func (h *Host) mergeContext(ctx context.Context, s *step, raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	r := s.r
	stored, err := h.text(ctx, r.Tenant, r.ctx.ToolContext)
	if err != nil {
		return err
	}
	m := map[string]json.RawMessage{}
	for _, doc := range []json.RawMessage{stored, raw} {
		if len(doc) > 0 {
			if err := json.Unmarshal(doc, &m); err != nil {
				return err
			}
		}
	}
	merged, err := ijson.Parse(mustJSON(m))
	if err != nil {
		return err
	}
	if len(merged) > maxToolContext {
		return invalid("/tool_context", "the merged tool_context is larger than %d bytes", maxToolContext)
	}
	if r.ctx.ToolContext, err = h.body(ctx, r.Tenant, merged); err != nil {
		return err
	}
	s.change.Put(r.key.With("ctx"), store.Encode(r.ctx))
	return nil
}

const maxToolContext = 1 << 20

// checkContext refuses the members that are the host's: a caller may repeat the truth, and never change it.
func checkContext(raw json.RawMessage, tenant, user, session string) error {
	if len(raw) == 0 {
		return nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil || m == nil {
		return invalid("/tool_context", "tool_context is an object")
	}
	if _, ok := m["approvals"]; ok {
		return invalid("/tool_context/approvals", "approvals are the host's: a person's decision sets them, never a caller")
	}
	for name, truth := range map[string]string{"tenant_id": tenant, "user_id": user, "session_id": session} {
		v, ok := m[name]
		if !ok {
			continue
		}
		var s string
		if json.Unmarshal(v, &s) != nil || s != truth {
			return invalid("/tool_context/"+name, "%s is the host's: leave it out or repeat its value", name)
		}
	}
	return nil
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
