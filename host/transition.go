package host

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/pawlhost/pawl/store"
)

// step builds one transition of one run: a pure function of the loaded run, a fact and a moment to a store.Change. It
// reads no clock, no store and no randomness; ids come from the caller. Run transitions are built only here.
//
// Every step requires the head at the version that was loaded, so that of two writers exactly one wins and the other
// reloads and reconsiders.
type step struct {
	r    *run
	now  time.Time
	ids  func(prefix string) string
	keep time.Duration // retention after the end
	was  store.Run
	new  bool
	dirt map[*store.Call]bool
	// change collects what is not derived from the run's records when the step is sealed.
	change store.Change
	grants bool // they have changed
	// finished holds the log back: nothing may follow run.finished.
	finished bool
	// What happened, for those who watch once the step is committed: approvals that were opened and closed.
	opened, settled []*store.Approval
	left            []left // frames that ended
	begun           bool   // the run was set going: a new stretch of it, see trace.go
	// rows are the audit rows; the request's trace, which commit knows, is put into them when the step is sealed.
	rows  []auditRecord
	trace string
}

func (r *run) step(now time.Time, ids func(string) string) *step {
	s := &step{r: r, now: now, ids: ids, was: r.Run, dirt: map[*store.Call]bool{}}
	s.finished = r.State.Ended()
	s.change.Require(r.key, r.Version)
	return s
}

// create is what a run begins with.
func (s *step) create() {
	r := s.r
	s.new = true
	s.change.Put(r.key.With("ctx"), store.Encode(r.ctx))
	s.change.Put(ownKey(r.Tenant, r.CreatedBy).With(r.ID), nil)
	if sub := r.subject(); sub != r.CreatedBy {
		s.change.Put(ownKey(r.Tenant, sub).With(r.ID), nil)
	}
	s.event("run.created", map[string]any{"agent": r.Agent, "agent_version": r.AgentVersion, "created_by": r.CreatedBy}, hydrate{})
	if r.ctx.Input.Inline != nil || r.ctx.Input.Blob != "" {
		s.event("message", map[string]any{"message": Message{Seq: r.Messages, Role: "user"}}, hydrate{Input: true})
	}
}

// seal completes the change. The run in memory is what the store holds once the change is committed, but for its version.
func (s *step) seal() *store.Change {
	r := s.r
	r.UpdatedAt = s.now
	for c := range s.dirt {
		s.change.Put(callKey(r.key, c), store.Encode(c))
	}
	if s.grants {
		r.HasGrants = len(r.grants) > 0
		s.change.Put(r.key.With("grants"), store.Encode(store.Grants{List: r.grants}))
	}
	root := r.root()
	r.Turn, r.Batch, r.Cursor, r.Before = root.Turn, root.Batch, root.Cursor, root.Before
	r.Live = nil
	for _, f := range r.frames[1:] {
		r.Live = append(r.Live, f.ID)
		if f.dirty {
			s.change.Put(frameKey(r.key, f.ID), store.Encode(f.Frame))
			f.dirty = false
		}
	}
	if len(s.settled) > 0 && r.State.Paused() && r.PauseID == s.was.PauseID { // somebody has decided a part
		s.change.Put(dueKey(r.pause.ExpiresAt, duePause, r.Tenant, r.ID, r.pause.ID), r.waits())
	}
	for _, row := range s.rows {
		row.Trace = s.trace
		addRow(&s.change, r.Tenant, row)
	}
	s.change.Put(r.key, store.Encode(r.Run))
	if was, is := !s.new && s.was.State == store.RunAwaitingPlanner, r.State == store.RunAwaitingPlanner; is && !was {
		s.change.Put(idleKey(r.Tenant, r.ID), nil)
	} else if was && !is {
		s.change.Delete(idleKey(r.Tenant, r.ID))
	}
	if was, is := live(s.was), live(r.Run); is && (!was || s.new) {
		s.change.Put(liveKey(r.Tenant, r.ID), nil)
	} else if was && !is && !s.new {
		s.change.Delete(liveKey(r.Tenant, r.ID))
	}
	return &s.change
}

// live reports whether there is something to drive: such runs are found again after a crash.
func live(r store.Run) bool {
	return r.State == store.RunQueued || r.State == store.RunRunning || r.Unsettled > 0
}

// event appends to the run's log, and approval and run-state events to the tenant's queue too, in this commit.
func (s *step) event(kind string, data map[string]any, hy hydrate) {
	if s.finished {
		return
	}
	rec := eventRecord{Type: kind, At: s.now, Run: s.r.ID, Hydrate: hy}
	if len(data) > 0 {
		rec.Data = mustJSON(data)
	}
	s.change.Append(runLog(s.r.key), store.Encode(rec))
	if queued[kind] {
		rec.By, rec.For = s.r.CreatedBy, s.r.Subject
		rec.Agent = s.r.Agent
		s.change.Append(queueLog(s.r.Tenant), store.Encode(rec))
	}
}

// queued are the events of a run that its tenant's queue shows too.
var queued = map[string]bool{
	"run.created": true, "run.paused": true, "run.resumed": true, "run.finished": true,
	"approval.requested": true, "approval.decided": true, "approval.expiring": true, "approval.expired": true, "approval.superseded": true,
}

func (s *step) audit(row auditRecord) {
	row.At = s.now
	s.rows = append(s.rows, row)
}

func (s *step) touch(c *store.Call) { s.dirt[c] = true }

// message numbers the next message of the trajectory.
func (s *step) message() int {
	s.r.Messages++
	return s.r.Messages
}

// claim makes this process the run's driver.
func (s *step) claim(boot string) {
	r := s.r
	r.State, r.Boot = store.RunRunning, boot
	if r.Resume {
		s.event("run.resumed", map[string]any{"pause_id": r.PauseID}, hydrate{})
		r.Resume = false
	}
}

// say adds what a user says to a run that has begun.
func (s *step) say(content store.Body) {
	m := Message{Seq: s.message(), Role: "user"}
	s.change.Put(messagesKey(s.r.key).With(m.Seq), store.Encode(store.Message{Content: content}))
	s.event("message", map[string]any{"message": m}, hydrate{Message: m.Seq})
}

// said numbers a message of a subagent's frame; its text is elsewhere, part tells where.
func (s *step) said(c *store.Call, role, part string) int {
	m := Message{Seq: s.message(), Frame: c.Opened.Frame, Role: role}
	s.event("message", map[string]any{"message": m}, hydrate{Call: &callRef{c.Frame, c.Turn, c.Index}, Part: part})
	return m.Seq
}

// open begins the frame of a started task call.
func (s *step) open(parent *frame, c *store.Call, name string) {
	r := s.r
	r.Frames++
	f := &frame{
		Frame:  store.Frame{ID: r.Frames, Parent: parent.ID, Index: c.Index, Depth: parent.Depth + 1, Subagent: name},
		parent: parent, agent: parent.agent.subagents[name], dirty: true,
	}
	r.frames = append(r.frames, f)
	c.Opened = &store.Opened{Frame: f.ID, Subagent: f.path()}
	if f.agent.doc.System != "" {
		c.Opened.System = s.said(c, "system", partSystem)
	}
	c.Opened.Input = s.said(c, "user", partInput)
}

// leave ends a frame with the result of the call that opened it, or with its failure.
func (s *step) leave(f *frame, output *store.Body, failure *store.Failure) {
	s.left = append(s.left, left{f, f.call()})
	s.r.frames = slices.DeleteFunc(s.r.frames, func(g *frame) bool { return g == f })
	c := f.call()
	if failure != nil {
		s.fail(c, failure.Code, failure.Message)
		return
	}
	c.Opened.Final = s.said(c, "assistant", partResult)
	s.succeed(c, *output)
}

// heavy reports whether the step has gathered about as much as one commit should hold.
func (s *step) heavy() bool {
	return s.r.Bytes-s.was.Bytes > 1<<20 || len(s.change.Appends)+len(s.dirt) > 1000
}

// left is a frame that ended, with the call that had opened it.
type left struct {
	frame *frame
	call  *store.Call
}

// begin starts a new turn of a frame with a gated batch.
func (s *step) begin(f *frame, calls []*store.Call, cursor json.RawMessage) {
	r := s.r
	if r.State == store.RunAwaitingPlanner {
		r.State = store.RunQueued
	}
	if !r.Begun {
		r.Begun = true
		s.event("run.started", nil, hydrate{})
	}
	r.AwaitingSince = time.Time{}
	f.Turn++
	f.Batch = len(calls)
	f.Cursor = cursor
	f.calls = calls
	f.Before = r.History
	f.dirty = true
	r.History.Calls += len(calls)
	ask := s.message()
	for _, c := range calls {
		c.ID = s.ids("call")
		c.Frame, c.Turn, c.AskMessage = f.ID, f.Turn, ask
		if call := f.call(); call != nil {
			c.ParentCallID = call.ID
		}
		r.Bytes += int64(c.Arguments.Size())
		s.touch(c)
		if c.State == store.CallFinished { // it got its error at the gate
			s.finishedCall(c)
		}
	}
}

// start marks a call as running, durably, before any of its code runs.
func (s *step) start(c *store.Call) {
	if c.State == store.CallStarted {
		return // a second attempt: the first one left nothing visible
	}
	c.State, c.StartedAt, c.Stop = store.CallStarted, s.now, nil
	digest := c.ArgsDigest
	if c.EditedDigest != "" {
		digest = c.EditedDigest
	}
	// A trusted flag serves one call of the same frame, bytes and arguments: of two that are alike, the next such call gets the other.
	s.r.grants = slices.DeleteFunc(s.r.grants, func(g store.Grant) bool {
		if g.Tool == c.Tool && g.Digest == c.Digest && g.ArgsDigest == digest && g.Frame == c.Frame && !slices.Contains(c.Grants, g.Key) {
			c.Grants = append(c.Grants, g.Key)
			s.grants = true
			return true
		}
		return false
	})
	s.touch(c)
	s.event("call.started", callEvent(c), hydrate{})
}

// callEvent is what the events of a call say of it.
func callEvent(c *store.Call) map[string]any {
	m := map[string]any{"call_id": c.ID, "tool_call_id": c.ToolCallID, "tool": c.Tool, "turn": c.Turn, "index": c.Index}
	if c.ParentCallID != "" {
		m["parent_call_id"] = c.ParentCallID
	}
	return m
}

// grant leaves a trusted flag for one later call of the same tool bytes and the same arguments.
func (s *step) grant(g store.Grant) {
	s.r.grants = append(s.r.grants, g)
	s.grants = true
}

// succeed ends a call with its result.
func (s *step) succeed(c *store.Call, result store.Body) {
	s.r.Bytes += int64(result.Size())
	c.Result, c.Error, c.Stop = &result, nil, nil
	c.State = store.CallFinished
	s.finishedCall(c)
}

// fail ends a call with an error.
func (s *step) fail(c *store.Call, code, message string) {
	c.Result, c.Error, c.Stop = nil, &store.Failure{Code: code, Message: clip(message, maxErrorText)}, nil
	c.State = store.CallFinished
	s.finishedCall(c)
}

func (s *step) finishedCall(c *store.Call) {
	c.ResultMessage = s.message()
	s.touch(c)
	data := callEvent(c)
	hy := hydrate{}
	if c.Error != nil {
		data["error"] = c.Error
	} else {
		hy.Call = &callRef{c.Frame, c.Turn, c.Index}
	}
	s.event("call.finished", data, hy)
}

// stopped is one call that must wait, and what its approval asks.
type stopped struct {
	call     *store.Call
	subagent string
	origin   string
	reason   string
	rules    []string
	title    string
	message  string
	payload  json.RawMessage
	schema   json.RawMessage
	allowed  []string
	revision string
	ttl      time.Duration
}

// suspend opens the pause of the run, with all that waits, in one commit: nobody decides a growing set.
func (s *step) suspend(stops []stopped, ttl time.Duration) {
	r := s.r
	for _, st := range stops {
		if st.ttl > 0 {
			ttl = min(ttl, st.ttl)
		}
	}
	p := &store.Pause{ID: s.ids("pause"), State: store.PauseOpen, CreatedAt: s.now, ExpiresAt: s.now.Add(ttl).Truncate(time.Millisecond)}
	r.pause, r.approvals = p, nil
	for _, st := range stops {
		c := st.call
		a := &store.Approval{
			ID: s.ids("apr"), PauseID: p.ID, CallID: c.ID, Tool: c.Tool, Frame: c.Frame, Turn: c.Turn, Index: c.Index,
			ArgsDigest: cmp.Or(c.EditedDigest, c.ArgsDigest), Origin: st.origin, Reason: st.reason, Rules: st.rules,
			Title: st.title, Message: st.message, Payload: st.payload, Schema: st.schema, Allowed: st.allowed, Revision: st.revision,
			Subagent: st.subagent,
			State:    store.ApprovalPending, CreatedAt: s.now, ExpiresAt: p.ExpiresAt,
		}
		if c.EditedDigest != "" {
			edited := c.Edited
			a.Arguments = &edited
		}
		c.State, c.Stop = store.CallAwaiting, nil // why it waits is in the approval from here on
		c.Approvals = append(c.Approvals, a.ID)
		s.touch(c)
		p.Approvals = append(p.Approvals, a.ID)
		r.approvals = append(r.approvals, a)
		s.opened = append(s.opened, a)
		s.change.Put(approvalKey(r.key, a.ID), store.Encode(a))
		s.change.Put(approvalsKey(r.Tenant).With(a.ID), []byte(r.ID))
		for _, k := range s.pendKeys(a) {
			s.change.Put(k, []byte(r.ID))
		}
		s.event("approval.requested", nil, hydrate{Approval: a.ID})
	}
	r.State, r.Boot, r.AwaitingSince, r.PauseID = r.awaits(), "", s.now, p.ID
	s.change.Put(pauseKey(r.key, p.ID), store.Encode(p))
	s.change.Put(pausesKey(r.Tenant).With(p.ID), []byte(r.ID))
	s.change.Put(dueKey(p.ExpiresAt, duePause, r.Tenant, r.ID, p.ID), r.waits())
	s.change.Put(dueKey(warnAt(p), dueWarn, r.Tenant, r.ID, p.ID), nil)
	s.event("run.paused", map[string]any{"pause_id": p.ID, "reason": stops[0].reason, "approval_ids": p.Approvals}, hydrate{Pause: p.ID})
}

// awaits is the state that follows from the approvals which are still open.
func (r *run) awaits() store.RunState {
	state := store.RunAwaitingEvent
	for _, a := range r.approvals {
		if a.State != store.ApprovalPending {
			continue
		}
		switch a.Reason {
		case reasonApproval, reasonConflict:
			return store.RunAwaitingApproval
		case reasonInput:
			state = store.RunAwaitingInput
		}
	}
	return state
}

// pendKeys are the index entries of a pending approval.
func (s *step) pendKeys(a *store.Approval) []store.Key {
	r := s.r
	keys := []store.Key{
		pendKey(r.Tenant).With(ms(a.CreatedAt), a.ID),
		pendByKey(r.Tenant, r.CreatedBy).With(ms(a.CreatedAt), a.ID),
	}
	if sub := r.subject(); sub != r.CreatedBy {
		keys = append(keys, pendByKey(r.Tenant, sub).With(ms(a.CreatedAt), a.ID))
	}
	return keys
}

// settle closes one approval.
func (s *step) settle(a *store.Approval, state store.ApprovalState, d *store.Decision) {
	a.State, a.Decision = state, d
	s.settled = append(s.settled, a)
	s.change.Put(approvalKey(s.r.key, a.ID), store.Encode(a))
	for _, k := range s.pendKeys(a) {
		s.change.Delete(k)
	}
}

// close ends the pause, exactly once.
func (s *step) close(state store.PauseState) {
	r := s.r
	r.pause.State, r.pause.ClosedAt = state, s.now
	s.change.Put(pauseKey(r.key, r.pause.ID), store.Encode(r.pause))
	s.change.Delete(dueKey(r.pause.ExpiresAt, duePause, r.Tenant, r.ID, r.pause.ID))
	s.change.Delete(dueKey(warnAt(r.pause), dueWarn, r.Tenant, r.ID, r.pause.ID))
}

// warnAt is when a pause is announced to expire: in the last tenth of its time.
func warnAt(p *store.Pause) time.Time {
	return p.ExpiresAt.Add(-p.ExpiresAt.Sub(p.CreatedAt) / 10)
}

// warn announces that the pause will expire.
func (s *step) warn() {
	for _, a := range s.r.approvals {
		if a.State == store.ApprovalPending {
			s.event("approval.expiring", map[string]any{"approval_id": a.ID, "call_id": a.CallID, "expires_at": Time(a.ExpiresAt)}, hydrate{})
		}
	}
}

// decide records a decision on one approval.
func (s *step) decide(a *store.Approval, d *store.Decision) {
	s.settle(a, store.ApprovalDecided, d)
	s.event("approval.decided", map[string]any{"approval_id": a.ID, "call_id": a.CallID, "decision": decided(d)}, hydrate{})
	s.audit(auditRecord{
		ActorKind: KindUser, Actor: d.DecidedBy, Action: "approval.decide", TargetKind: "pending_approval", Target: a.ID, Outcome: outcomeOK,
		Detail: mustJSON(map[string]any{"decided_by": d.DecidedBy, "decision": d.Kind, "tool": a.Tool, "call_id": a.CallID, "run_id": s.r.ID}),
	})
	switch d.Kind {
	case kindApprove, kindEdit:
		s.r.History.Approved++
	case kindReject:
		s.r.History.Rejected++
		if c := s.r.call(a); c != nil {
			s.r.rejected(c)
		}
	}
}

// rotate supersedes the resume token of the open pause.
func (s *step) rotate(by Actor) {
	r := s.r
	r.pause.Generation++
	s.change.Put(pauseKey(r.key, r.pause.ID), store.Encode(r.pause))
	s.audit(auditRecord{ActorKind: by.Kind, Actor: by.ID, Action: "token.rotate", TargetKind: "pause", Target: r.pause.ID, Outcome: outcomeOK})
}

// resume closes a decided pause and queues the run, in the commit of its last decision.
func (s *step) resume() {
	s.close(store.PauseDecided)
	s.r.State, s.r.Resume, s.r.AwaitingSince = store.RunQueued, true, time.Time{}
}

// expire ends a run whose pause nobody answered.
func (s *step) expire() {
	for _, a := range s.r.approvals {
		if a.State != store.ApprovalPending {
			continue
		}
		s.settle(a, store.ApprovalExpired, nil)
		s.event("approval.expired", map[string]any{"approval_id": a.ID, "call_id": a.CallID}, hydrate{})
		s.audit(auditRecord{
			ActorKind: KindSystem, Action: "approval.expire", TargetKind: "pending_approval", Target: a.ID, Outcome: outcomeOK,
			Detail: mustJSON(map[string]any{"tool": a.Tool, "call_id": a.CallID, "run_id": s.r.ID}),
		})
	}
	s.close(store.PauseExpired)
	s.abandon("the approval expired before anybody decided")
	s.end(store.RunFailed, nil, &store.Failure{Code: "approval_expired", Message: "approval expired"})
}

// cancel ends a run by somebody's wish. Calls that run at this moment stay started: their result is recorded when it comes.
func (s *step) cancel(by Actor) {
	r := s.r
	if r.State.Paused() {
		for _, a := range r.approvals {
			if a.State == store.ApprovalPending {
				s.settle(a, store.ApprovalCancelled, nil)
			}
		}
		s.close(store.PauseCancelled)
	}
	s.abandon("the run was cancelled")
	s.audit(auditRecord{
		ActorKind: by.Kind, Actor: by.ID, Action: "run.cancel", TargetKind: "run", Target: r.ID, Outcome: outcomeOK,
		Detail: mustJSON(map[string]any{"agent": r.Agent}),
	})
	s.end(store.RunCancelled, nil, nil)
}

// supersede ends the open pause because a new message takes its place. What waited gets an honest error: a newer wish is no
// approval, and no success either.
func (s *step) supersede(by Actor) {
	r := s.r
	for _, a := range r.approvals {
		if a.State != store.ApprovalPending {
			continue
		}
		s.settle(a, store.ApprovalSuperseded, nil)
		s.event("approval.superseded", map[string]any{"approval_id": a.ID, "call_id": a.CallID}, hydrate{})
	}
	s.close(store.PauseSuperseded)
	s.abandon("a new message took the place of the pause before anybody decided")
	for _, f := range slices.Backward(r.frames[1:]) {
		s.left = append(s.left, left{f, f.call()})
	}
	r.frames = r.frames[:1]
	s.audit(auditRecord{
		ActorKind: by.Kind, Actor: by.ID, Action: "pause.supersede", TargetKind: "pause", Target: r.pause.ID, Outcome: outcomeOK,
		Detail: mustJSON(map[string]any{"run_id": r.ID}),
	})
	r.State, r.AwaitingSince = store.RunQueued, time.Time{}
	s.event("run.resumed", map[string]any{"pause_id": r.PauseID}, hydrate{})
}

// abandon gives an honest error to the calls that will never end by themselves: those that did not run, those whose tools have run and
// wait for an answer, and those whose subagents end with them.
func (s *step) abandon(why string) {
	for _, f := range slices.Backward(s.r.frames) {
		for _, c := range f.calls {
			switch {
			case c.State == store.CallAwaiting && s.r.hasAsked(c):
				s.fail(c, codeCancelled, why+"; the tool had run and asked, and nobody answered: what it wrote before stays")
			case c.State == store.CallPlanned, c.State == store.CallAwaiting:
				s.fail(c, codeCancelled, why+"; this call did not run")
			case c.State == store.CallStarted && c.Task:
				s.fail(c, codeCancelled, why+"; this subagent did not finish")
			case c.State == store.CallStarted && s.was.State.Paused(): // a pause opens when nothing runs: a crash has interrupted it
				s.fail(c, codeCancelled, why+"; the host had stopped while this call ran, and nothing of it was kept")
			}
		}
	}
}

// hasAsked reports whether a waiting call was stopped by its own tool, which has run.
func (r *run) hasAsked(c *store.Call) bool {
	return c.Stop != nil && c.Stop.Origin != originGate || slices.ContainsFunc(r.approvals, func(a *store.Approval) bool {
		return a.CallID == c.ID && a.Origin == originTool
	})
}

// end brings the run to a terminal state. run.finished is the last event of its log.
func (s *step) end(state store.RunState, output *store.Body, failure *store.Failure) {
	r := s.r
	s.abandon("the run ended") // in other frames, when one of them ends it
	for c := range r.calls() {
		if c.State == store.CallStarted {
			r.Unsettled++ // its result is recorded when it comes
		}
	}
	r.State, r.Error, r.Boot, r.AwaitingSince = state, failure, "", time.Time{}
	data := map[string]any{"state": state}
	hy := hydrate{}
	if state == store.RunSucceeded {
		r.FinalMessage = s.message()
		r.HasOutput = true
		s.change.Put(r.key.With("out"), store.Encode(output))
		hy.Output = true
		s.event("message", map[string]any{"message": Message{Seq: r.FinalMessage, Role: "assistant"}}, hy)
	}
	if failure != nil {
		failure.Message = clip(failure.Message, maxErrorText)
		data["error"] = failure
	}
	s.event("run.finished", data, hy)
	s.finished = true
	s.change.Put(dueKey(s.now.Add(s.keep), dueRetain, r.Tenant, r.ID), nil)
}

// await leaves the move to the client.
func (s *step) await() {
	s.r.State, s.r.Boot, s.r.AwaitingSince = store.RunAwaitingPlanner, "", s.now
}

const maxErrorText = 1 << 10

// clip bounds a text for the head of a run, at a rune's edge, and says that it did.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
