package host

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// view renders a run for an actor who may see it, with the resume token of an open pause where the actor may have it. It reads
// one consistent view of its own, so that a head and its calls always fit together.
func (h *Host) view(ctx context.Context, a Actor, r *run) (Run, error) {
	v, err := h.render(ctx, r.Tenant, r.ID)
	if err != nil {
		return Run{}, runError(err)
	}
	return h.withToken(ctx, a, v), nil
}

func (h *Host) withToken(ctx context.Context, a Actor, v rendered) Run {
	if v.run.State.Paused() && !v.run.overdue(h.now()) && h.mayHold(ctx, a, v.run) {
		v.view.Pause.ResumeToken = h.token(v.run.Tenant, v.run.ID, v.run.pause)
	}
	return v.view
}

// rendered renders a run that the actor may see.
func (h *Host) rendered(ctx context.Context, a Actor, id string) (rendered, error) {
	v, err := h.render(ctx, a.Tenant, id)
	if err != nil {
		return v, runError(err)
	}
	if !h.sees(ctx, a, v.run.Run) {
		return v, errNotFound("run")
	}
	return v, nil
}

type rendered struct {
	run   *run
	calls []*store.Call // of all turns
	view  Run
	// seq is the head of the run's log that the view shows.
	seq uint64
}

// render reads a run and all its calls.
func (h *Host) render(ctx context.Context, tenant, id string) (rendered, error) {
	var (
		out   rendered
		calls []*store.Call
		state store.Body
		body  store.Body
	)
	r := &run{}
	err := h.store.View(ctx, func(rd store.Reader) error {
		if err := r.read(rd, tenant, id); err != nil {
			return err
		}
		var err error
		if calls = r.root().calls; r.Turn > 1 || r.Frames > 0 {
			if calls, err = readCalls(rd, r.key); err != nil {
				return err
			}
		}
		if r.HasState {
			if err := get(rd, r.key.With("state"), &state); err != nil {
				return err
			}
		}
		if r.HasOutput {
			if err := get(rd, r.key.With("out"), &body); err != nil {
				return err
			}
		}
		out.seq, err = rd.LogHead(runLog(r.key))
		return err
	})
	if err != nil {
		return out, err
	}
	out.run, out.calls = r, calls
	v := Run{
		ID: id, Agent: r.Agent, AgentVersion: r.AgentVersion, State: r.State, CreatedBy: r.CreatedBy, Subject: r.subject(), SessionID: r.SessionID,
		Turn: r.Turn, CreatedAt: Time(r.CreatedAt), UpdatedAt: Time(r.UpdatedAt), Error: r.Error, Calls: []Call{},
	}
	for _, c := range calls {
		cv, err := h.callView(ctx, tenant, c)
		if err != nil {
			return out, err
		}
		v.Calls = append(v.Calls, cv)
	}
	if r.HasState {
		if v.PlannerState, err = h.text(ctx, tenant, state); err != nil {
			return out, err
		}
	}
	if r.HasOutput {
		if v.Output, err = h.text(ctx, tenant, body); err != nil {
			return out, err
		}
	}
	if !r.AwaitingSince.IsZero() {
		since := Time(r.AwaitingSince)
		v.AwaitingSince = &since
	}
	if r.State.Paused() {
		if v.Pause, err = h.pauseView(ctx, r); err != nil {
			return out, err
		}
	}
	out.view = v
	return out, nil
}

func readCalls(rd store.Reader, run store.Key) (calls []*store.Call, err error) {
	var derr error
	err = rd.Scan(store.Range{Prefix: callsKey(run)}, func(it store.Item) bool {
		c := new(store.Call)
		if derr = store.Decode(it.Value, c); derr != nil {
			return false
		}
		calls = append(calls, c)
		return true
	})
	// In the order in which they were proposed, whatever the frame.
	slices.SortStableFunc(calls, func(a, b *store.Call) int { return cmp.Or(a.AskMessage-b.AskMessage, a.Index-b.Index) })
	return calls, errors.Join(err, derr)
}

func (h *Host) callView(ctx context.Context, tenant string, c *store.Call) (v Call, err error) {
	v = Call{
		ID: c.ID, ToolCallID: c.ToolCallID, Turn: c.Turn, Index: c.Index, ParentCallID: c.ParentCallID, Tool: c.Tool, State: c.State,
		Error: c.Error, ApprovalIDs: c.Approvals,
	}
	if v.Arguments, err = h.text(ctx, tenant, c.Arguments); err != nil {
		return v, err
	}
	if c.EditedDigest != "" {
		if v.EditedArguments, err = h.text(ctx, tenant, c.Edited); err != nil {
			return v, err
		}
	}
	if c.Result != nil {
		v.Result, err = h.text(ctx, tenant, *c.Result)
	}
	return v, err
}

// pauseView renders the open pause of a loaded run, without its token.
func (h *Host) pauseView(ctx context.Context, r *run) (*Pause, error) {
	v := &Pause{ID: r.pause.ID, RunID: r.ID, CreatedAt: Time(r.pause.CreatedAt), ExpiresAt: Time(r.pause.ExpiresAt), Approvals: []Approval{}}
	for _, ap := range r.approvals {
		av, err := h.approvalView(ctx, r.Run, ap, r.call(ap))
		if err != nil {
			return nil, err
		}
		v.Approvals = append(v.Approvals, av)
	}
	first := v.Approvals[0]
	v.Reason, v.Payload = first.Reason, pausePayload(first)
	return v, nil
}

// pausePayload is what a client shows of a pause: the tool's own payload, or the call that the gate stopped.
func pausePayload(a Approval) json.RawMessage {
	if a.Payload != nil {
		return a.Payload
	}
	return mustJSON(struct {
		Tool      string          `json:"tool"`
		Arguments json.RawMessage `json:"arguments"`
		Title     string          `json:"title"`
		Message   string          `json:"message"`
	}{a.Tool, a.Arguments, a.Title, a.Message})
}

// approvalView hydrates an approval with the arguments that will run; they live in the call alone.
func (h *Host) approvalView(ctx context.Context, r store.Run, ap *store.Approval, c *store.Call) (Approval, error) {
	if c == nil {
		return Approval{}, store.ErrCorrupt
	}
	v := Approval{
		ID: ap.ID, RunID: r.ID, PauseID: ap.PauseID, CallID: ap.CallID, ToolCallID: c.ToolCallID, ParentCallID: c.ParentCallID, Agent: r.Agent, Subagent: ap.Subagent,
		CreatedBy: r.CreatedBy, Subject: r.Subject, Tool: ap.Tool, ToolDigest: c.Digest, ArgsDigest: ap.ArgsDigest, Reason: ap.Reason,
		Rules: list(ap.Rules), Title: ap.Title, Message: ap.Message, Payload: ap.Payload, Schema: ap.Schema, Allowed: list(ap.Allowed), State: ap.State,
		CreatedAt: Time(ap.CreatedAt), ExpiresAt: Time(ap.ExpiresAt), Decision: decided(ap.Decision),
	}
	if v.Subject == "" {
		v.Subject = r.CreatedBy
	}
	if string(v.Schema) == "{}" {
		v.Schema = nil // any answer will do
	}
	body := c.Arguments
	if ap.Arguments != nil {
		body = *ap.Arguments
	}
	var err error
	if v.Arguments, err = h.text(ctx, r.Tenant, body); err != nil {
		return v, err
	}
	if d := ap.Decision; d != nil && d.Kind == kindEdit {
		v.Decision.Arguments, err = h.text(ctx, r.Tenant, *d.Value)
	}
	return v, err
}

func decided(d *store.Decision) *Decided {
	if d == nil {
		return nil
	}
	return &Decided{Kind: d.Kind, DecidedBy: d.DecidedBy, DecidedAt: Time(d.DecidedAt), Message: d.Message, Changed: d.Changed}
}

// GetRun returns a run. It changes nothing and runs nothing.
func (h *Host) GetRun(ctx context.Context, a Actor, id string) (Run, error) {
	v, err := h.rendered(ctx, a, id)
	if err != nil {
		return Run{}, err
	}
	return h.withToken(ctx, a, v), nil
}

// OpenPause returns the open pause of a run, with its token where the actor may have it; nil when none is open.
func (h *Host) OpenPause(ctx context.Context, a Actor, id string) (*Pause, error) {
	v, err := h.GetRun(ctx, a, id)
	return v.Pause, err
}

// page walks an index: pick names the items to keep ("" skips one), at most the page's limit of them. The cursor is opaque, and
// a page may be short although more follows: the work of one answer is bounded.
func (h *Host) page(ctx context.Context, p Page, prefix store.Key, children bool, pick func(store.Reader, store.Item) (string, error)) (ids []string, next string, err error) {
	limit := p.limit()
	rg := store.Range{Prefix: prefix, Children: children, Reverse: p.Newest}
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	if after != "" {
		rg.After = prefix + store.Key(after)
		if _, err := store.Key(after).Elems(); err != nil {
			return nil, "", errCursor()
		}
	}
	err = h.store.View(ctx, func(rd store.Reader) error {
		var perr error
		var last store.Key
		read, more := 0, false
		err := rd.Scan(rg, func(it store.Item) bool {
			if len(ids) == limit || read == maxPageReads {
				more = true
				return false
			}
			read++
			last = it.Key
			id, err := pick(rd, it)
			if err != nil {
				perr = err
				return false
			}
			if id != "" {
				ids = append(ids, id)
			}
			return true
		})
		if more {
			next = pageCursor(string(last[len(prefix):]))
		}
		return errors.Join(err, perr)
	})
	return ids, next, err
}

const maxPageReads = 2000

func (p Page) limit() int {
	if p.Limit <= 0 {
		return 50
	}
	return p.Limit
}

// after is the place that the cursor names, "" for the beginning.
func (p Page) after() (string, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err != nil || len(b) == 0 && p.Cursor != "" {
		return "", errCursor()
	}
	return string(b), nil
}

func errCursor() *Error {
	return invalid("/cursor", "not a cursor of this list; use the next of an earlier answer")
}

func pageCursor(after string) string { return base64.RawURLEncoding.EncodeToString([]byte(after)) }

// ListRuns lists the runs that the actor may see, oldest first, without tokens.
func (h *Host) ListRuns(ctx context.Context, a Actor, f RunFilter, p Page) ([]Run, string, error) {
	if err := h.allow(ctx, a, "run.list", policy.Resource{Kind: "run", Tenant: a.Tenant}); err != nil {
		return nil, "", h.refused(ctx, a, "run.list", "tenant", a.Tenant, err)
	}
	prefix, children := runsKey(a.Tenant), true
	if !h.seesAll(ctx, a) {
		prefix, children = ownKey(a.Tenant, a.ID), false
	}
	ids, next, err := h.page(ctx, p, prefix, children, func(rd store.Reader, it store.Item) (string, error) {
		head, err := readHead(rd, a.Tenant, it.Key.Last())
		if errors.Is(err, store.ErrNotFound) {
			return "", nil // an index entry that outlived its run
		}
		if err != nil {
			return "", err
		}
		if (f.State != "" && string(head.State) != f.State) || (f.Agent != "" && head.Agent != f.Agent) || !h.sees(ctx, a, head) {
			return "", nil
		}
		return head.ID, nil
	})
	if err != nil {
		return nil, "", err
	}
	runs := []Run{}
	var size int64
	for _, id := range ids {
		v, err := h.render(ctx, a.Tenant, id)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		runs = append(runs, v.view)
		if size += v.run.Bytes; size > maxPageBytes && id != ids[len(ids)-1] {
			return runs, pageCursor(string(store.K(id))), nil
		}
	}
	return runs, next, nil
}

// maxPageBytes ends a page early: an answer is bounded by its bytes as well as by its number.
const maxPageBytes = 8 << 20

// seesAll reports whether the actor may read runs that are nobody's in particular: then lists walk the whole tenant. Each item
// is still asked for on its own.
func (h *Host) seesAll(ctx context.Context, a Actor) bool {
	return h.permitted(ctx, a, "run.read", policy.Resource{Kind: "run", Tenant: a.Tenant}).Allow
}

// RunApprovals lists the approvals of a run, oldest first.
func (h *Host) RunApprovals(ctx context.Context, a Actor, id string) ([]Approval, error) {
	r, err := h.open(ctx, a, id)
	if err != nil {
		return nil, err
	}
	type pair struct {
		a *store.Approval
		c *store.Call
	}
	var pairs []pair
	err = h.store.View(ctx, func(rd store.Reader) error {
		var derr error
		if err := rd.Scan(store.Range{Prefix: r.key.With("apr")}, func(it store.Item) bool {
			ap := new(store.Approval)
			if derr = store.Decode(it.Value, ap); derr != nil {
				return false
			}
			pairs = append(pairs, pair{a: ap})
			return true
		}); err != nil || derr != nil {
			return errors.Join(err, derr)
		}
		for i := range pairs {
			pairs[i].c = new(store.Call)
			ap := pairs[i].a
			if err := get(rd, callKey(r.key, &store.Call{Frame: ap.Frame, Turn: ap.Turn, Index: ap.Index}), pairs[i].c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := []Approval{}
	for _, p := range pairs {
		v, err := h.approvalView(ctx, r.Run, p.a, p.c)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// GetApproval returns one approval by its id, whatever became of it.
func (h *Host) GetApproval(ctx context.Context, a Actor, id string) (Approval, error) {
	f := struct {
		head store.Run
		a    store.Approval
		c    store.Call
	}{}
	err := h.store.View(ctx, func(rd store.Reader) error {
		it, err := rd.Get(approvalsKey(a.Tenant).With(id))
		if err != nil {
			return err
		}
		if f.head, err = readHead(rd, a.Tenant, string(it.Value)); err != nil {
			return err
		}
		key := runKey(a.Tenant, f.head.ID)
		if err := get(rd, approvalKey(key, id), &f.a); err != nil {
			return err
		}
		return get(rd, callKey(key, &store.Call{Frame: f.a.Frame, Turn: f.a.Turn, Index: f.a.Index}), &f.c)
	})
	if errors.Is(err, store.ErrNotFound) || err == nil && !h.sees(ctx, a, f.head) {
		return Approval{}, errNotFound("approval")
	}
	if err != nil {
		return Approval{}, err
	}
	return h.approvalView(ctx, f.head, &f.a, &f.c)
}

// Approvals lists the tenant's queue: the pending approvals that the actor may see, oldest first.
func (h *Host) Approvals(ctx context.Context, a Actor, state string, p Page) ([]Approval, string, error) {
	if err := h.allow(ctx, a, "approval.list", policy.Resource{Kind: "approval", Tenant: a.Tenant}); err != nil {
		return nil, "", h.refused(ctx, a, "approval.list", "tenant", a.Tenant, err)
	}
	if state != "" && state != string(store.ApprovalPending) {
		return nil, "", invalid("/state", "the queue lists state=pending; decided approvals are at their runs")
	}
	prefix := pendKey(a.Tenant)
	if !h.seesAll(ctx, a) {
		prefix = pendByKey(a.Tenant, a.ID)
	}
	type found struct {
		head store.Run
		a    *store.Approval
		c    *store.Call
	}
	var all []found
	_, next, err := h.page(ctx, p, prefix, false, func(rd store.Reader, it store.Item) (string, error) {
		f := found{a: new(store.Approval), c: new(store.Call)}
		var err error
		if f.head, err = readHead(rd, a.Tenant, string(it.Value)); errors.Is(err, store.ErrNotFound) {
			return "", nil
		} else if err != nil {
			return "", err
		}
		id := it.Key.Last()
		if err := get(rd, approvalKey(runKey(a.Tenant, f.head.ID), id), f.a); err != nil {
			return "", err
		}
		// The primary record decides; an index key may have come back.
		// What is over and not swept yet can no longer be decided.
		if f.a.State != store.ApprovalPending || !f.head.State.Paused() || !h.now().Before(f.a.ExpiresAt) || !h.sees(ctx, a, f.head) {
			return "", nil
		}
		if err := get(rd, callKey(runKey(a.Tenant, f.head.ID), &store.Call{Frame: f.a.Frame, Turn: f.a.Turn, Index: f.a.Index}), f.c); err != nil {
			return "", err
		}
		all = append(all, f)
		return id, nil
	})
	if err != nil {
		return nil, "", err
	}
	out := []Approval{}
	size := 0
	for i, f := range all {
		v, err := h.approvalView(ctx, f.head, f.a, f.c)
		if err != nil {
			return nil, "", err
		}
		out = append(out, v)
		if size += len(v.Arguments) + len(v.Payload); size > maxPageBytes && i < len(all)-1 {
			return out, pageCursor(string(store.K(ms(f.a.CreatedAt), f.a.ID))), nil
		}
	}
	return out, next, nil
}

// Trajectory returns the messages of a run, of all its frames. Most are derived from the calls, which number them when they are
// proposed and when they end; nothing is stored twice.
func (h *Host) Trajectory(ctx context.Context, a Actor, id string) ([]Message, error) {
	v, err := h.rendered(ctx, a, id)
	if err != nil {
		return nil, err
	}
	agent, err := h.agentVersion(ctx, a.Tenant, v.run.Agent, v.run.AgentVersion)
	if err != nil {
		return nil, err
	}
	msgs := []Message{}
	seq := 0
	if agent.doc.System != "" {
		seq++
		msgs = append(msgs, Message{Seq: seq, Role: "system", Content: mustJSON(agent.doc.System)})
	}
	if in := v.run.ctx.Input; in.Inline != nil || in.Blob != "" {
		seq++
		content, err := h.text(ctx, a.Tenant, in)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, Message{Seq: seq, Role: "user", Content: content})
	}
	added, err := h.added(ctx, a.Tenant, v.run)
	if err != nil {
		return nil, err
	}
	msgs = append(msgs, added...)
	asks := map[int]*Message{}
	for i, c := range v.calls {
		cv := v.view.Calls[i]
		ask := asks[c.AskMessage]
		if ask == nil {
			ask = &Message{Seq: c.AskMessage, Frame: c.Frame, Role: "assistant"}
			asks[c.AskMessage] = ask
		}
		ask.ToolCalls = append(ask.ToolCalls, ProposedCall{ToolCallID: c.ToolCallID, Tool: c.Tool, Arguments: cv.Arguments})
		for _, m := range opened(c) {
			if m.Content, err = h.part(ctx, agent, a.Tenant, c, m.part); err != nil {
				return nil, err
			}
			msgs = append(msgs, m.Message)
		}
		if c.State != store.CallFinished {
			continue
		}
		m := Message{Seq: c.ResultMessage, Frame: c.Frame, Role: "tool", ToolCallID: c.ToolCallID, Result: cv.Result, Error: c.Error}
		if d := c.Decision; d != nil {
			m.Decision = &MessageDecision{Kind: d.Kind, DecidedBy: d.DecidedBy}
			if d.Kind == kindEdit {
				m.Decision.Edited = cv.EditedArguments
			}
		}
		msgs = append(msgs, m)
	}
	for _, m := range asks {
		msgs = append(msgs, *m)
	}
	if v.run.FinalMessage > 0 {
		msgs = append(msgs, Message{Seq: v.run.FinalMessage, Role: "assistant", Content: v.view.Output})
	}
	slices.SortFunc(msgs, func(a, b Message) int { return a.Seq - b.Seq })
	return msgs, nil
}

// added are the messages that a user added after the run had begun.
func (h *Host) added(ctx context.Context, tenant string, r *run) (msgs []Message, err error) {
	var stored []store.Message
	err = h.store.View(ctx, func(rd store.Reader) error {
		var derr error
		err := rd.Scan(store.Range{Prefix: messagesKey(r.key)}, func(it store.Item) bool {
			var m store.Message
			elems, kerr := it.Key.Elems()
			if derr = errors.Join(kerr, store.Decode(it.Value, &m)); derr != nil {
				return false
			}
			seq, _ := elems[len(elems)-1].(uint64)
			msgs, stored = append(msgs, Message{Seq: int(seq), Role: "user"}), append(stored, m)
			return true
		})
		return errors.Join(err, derr)
	})
	for i := range msgs {
		if err == nil {
			msgs[i].Content, err = h.text(ctx, tenant, stored[i].Content)
		}
	}
	return msgs, err
}

type part struct {
	Message
	part string
}

// opened are the messages of a task call's frame that are no calls of it, without their texts.
func opened(c *store.Call) (msgs []part) {
	if c.Opened == nil {
		return nil
	}
	for _, m := range []part{
		{Message{Seq: c.Opened.System, Role: "system"}, partSystem}, {Message{Seq: c.Opened.Input, Role: "user"}, partInput},
		{Message{Seq: c.Opened.Final, Role: "assistant"}, partResult},
	} {
		if m.Frame = c.Opened.Frame; m.Seq > 0 {
			msgs = append(msgs, m)
		}
	}
	return msgs
}

// marshal encodes without changing what is already JSON: < and & stay as they are.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func stack() string { return strings.TrimSpace(string(debug.Stack())) }
