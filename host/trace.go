package host

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/store"
)

// A stretch is the time in which a run goes on by itself: from its beginning, or from the answer to a stop, to the next stop or the end.
// Each is one invoke_agent span. Its ids and its beginning are kept with the run, in the commit that begins it, and the span is written
// by the commit that ends it: nothing is open meanwhile, and a host that takes over a run after a crash ends the same span.
//
// The calls of a stretch are execute_tool spans, written when they end or when the run stops for them. Their ids follow from
// the stretch's and the call's, so that what is below a call can name it before it is written.
//
// No span holds arguments, results, messages or tokens: only names, ids, codes and times.

// beginStretch names the stretch that a step begins, if it does, before the step is sealed.
func (h *Host) beginStretch(ctx context.Context, s *step) {
	s.begun = s.begins()
	if !s.begun {
		return
	}
	r := s.r
	r.Trace = nil
	if !h.telemetry.Tracing() {
		return
	}
	parent := telemetry.From(ctx)
	t := &store.Trace{Began: s.now, Request: telemetry.Stored(parent)}
	if s.was.State.Paused() { // a trace of its own: the one before has ended
		parent = telemetry.SpanContext{}
		t.Pause, t.Waited = s.was.PauseID, s.now.Sub(s.was.AwaitingSince).Milliseconds()
		if s.was.Trace != nil {
			t.From = s.was.Trace.Span
		}
	}
	t.Span = telemetry.Stored(h.telemetry.Begin(parent, "invoke_agent"))
	r.Trace = t
}

// begins reports whether the step sets the run going: a new run, an answered or superseded pause, a turn of an external planner.
func (s *step) begins() bool {
	r := s.r
	switch was := s.was.State; {
	case s.new:
		return true
	case was.Paused():
		return r.PauseID != s.was.PauseID || r.pause.State == store.PauseDecided || r.pause.State == store.PauseSuperseded
	case was == store.RunAwaitingPlanner:
		return r.State != store.RunCancelled && (r.State != was || r.root().Turn != s.was.Turn)
	}
	return false
}

// going reports whether a run goes on by itself.
func going(s store.RunState) bool { return s == store.RunQueued || s == store.RunRunning }

// traceID is the trace that a step belongs to: its request's, else its stretch's; "" for none.
func (s *step) traceID(ctx context.Context) string {
	id := telemetry.TraceID(ctx)
	if id == "" && s.r.Trace != nil {
		id = telemetry.Load(s.r.Trace.Span).TraceID().String()
	}
	return id
}

// traceStep writes the spans that a committed step has ended.
func (h *Host) traceStep(ctx context.Context, s *step) {
	t := s.r.Trace
	if t == nil || !h.telemetry.Tracing() {
		return
	}
	w := &spanWriter{h: h, s: s, t: t, root: telemetry.Load(t.Span), end: h.clock()}
	if !w.root.IsSampled() || !s.begun && !going(s.was.State) && !s.was.State.Ended() {
		return // a stop that ended without setting the run going has been told when it began
	}
	stopped := len(s.opened) > 0
	over := (s.begun || going(s.was.State)) && !going(s.r.State)
	for _, c := range s.ended() {
		w.call(c, w.outcome(c))
	}
	for _, a := range s.opened {
		if c := s.r.call(a); c != nil {
			w.call(c, awaiting(a.Reason), w.requested(c, a))
		}
	}
	for _, l := range s.left {
		w.frame(l.frame, l.call, "")
	}
	if over {
		for _, f := range s.r.frames[1:] {
			if c := f.call(); c != nil {
				w.frame(f, c, string(s.r.State))
				if stopped && c.State == store.CallStarted {
					w.call(c, string(s.r.State))
				}
			}
		}
		w.stretch(h.decidedBefore(ctx, s))
	}
}

// ended are the calls that the step finished, in order.
func (s *step) ended() []*store.Call {
	return slices.SortedFunc(func(yield func(*store.Call) bool) {
		for c := range maps.Keys(s.dirt) {
			if c.State == store.CallFinished && !yield(c) {
				return
			}
		}
	}, func(a, b *store.Call) int {
		return cmp.Or(a.Frame-b.Frame, a.Turn-b.Turn, a.Index-b.Index)
	})
}

// spanWriter writes the spans of one step.
type spanWriter struct {
	h    *Host
	s    *step
	t    *store.Trace
	root telemetry.SpanContext
	end  time.Time
}

// agentSpan is the invoke_agent span that the calls of a frame are in: the stretch's, or that of a subagent.
func (w *spanWriter) agentSpan(parentCall string) telemetry.SpanContext {
	if parentCall == "" {
		return w.root
	}
	return telemetry.Child(w.root, "agent "+parentCall)
}

// since is when something of the stretch began that may have begun before it.
func (w *spanWriter) since(began time.Time) time.Time {
	switch {
	case began.IsZero():
		return w.end
	case began.Before(w.t.Began):
		return w.t.Began
	}
	return began
}

func (w *spanWriter) run(attrs ...telemetry.Attr) []telemetry.Attr {
	r := w.s.r
	attrs = append(attrs, telemetry.String("pawl.tenant", r.Tenant), telemetry.String("pawl.run.id", r.ID), telemetry.String("pawl.run.state", string(r.State)))
	if r.SessionID != "" {
		attrs = append(attrs, telemetry.String("gen_ai.conversation.id", r.SessionID), telemetry.String("session.id", r.SessionID))
	}
	return attrs
}

// stretch writes the span of the stretch, with the decisions that it resumed from.
func (w *spanWriter) stretch(decided []*store.Approval) {
	r := w.s.r
	span := telemetry.Span{
		Name: "invoke_agent", Context: w.root, Start: w.t.Began, End: w.end, Failed: r.State == store.RunFailed,
		Attrs: w.run(telemetry.String("gen_ai.operation.name", "invoke_agent"), telemetry.String("gen_ai.agent.name", r.Agent),
			telemetry.Int("pawl.agent.version", int(r.AgentVersion)), telemetry.String("pawl.run.outcome", string(r.State)),
			telemetry.Int("pawl.run.turn", r.Turn), telemetry.Int("pawl.frame.depth", 0)),
	}
	if r.Error != nil {
		span.Attrs = append(span.Attrs, telemetry.String("error.type", r.Error.Code))
	}
	request := telemetry.Load(w.t.Request)
	if w.t.Pause == "" {
		span.Parent = request
	} else {
		span.Attrs = append(span.Attrs, telemetry.String("pawl.pause.id", w.t.Pause), telemetry.Float("pawl.run.suspension_seconds", float64(w.t.Waited)/1000))
		if from := telemetry.Load(w.t.From); from.IsValid() {
			span.Attrs = append(span.Attrs, telemetry.String("pawl.run.resumed_from_span_id", from.SpanID().String()))
			span.Links = append(span.Links, telemetry.Link{To: from, Attrs: []telemetry.Attr{telemetry.String("pawl.link", "suspended")}})
		}
		if request.IsValid() {
			span.Links = append(span.Links, telemetry.Link{To: request, Attrs: []telemetry.Attr{telemetry.String("pawl.link", "deciding_request")}})
		}
	}
	for _, a := range decided {
		span.Events = append(span.Events, w.decided(a.Decision, telemetry.String("gen_ai.tool.name", a.Tool), telemetry.String("pawl.call.id", a.CallID),
			telemetry.String("pawl.approval.id", a.ID)))
	}
	w.h.telemetry.Emit(span)
}

// frame writes the span of a subagent's stretch.
func (w *spanWriter) frame(f *frame, c *store.Call, outcome string) {
	if outcome == "" {
		outcome = w.outcome(c)
	}
	w.h.telemetry.Emit(telemetry.Span{
		Name: "invoke_agent", Context: w.agentSpan(c.ID), Parent: telemetry.Child(w.root, c.ID), Start: w.since(c.StartedAt), End: w.end,
		Failed: c.State == store.CallFinished && faulty(c),
		Attrs: w.run(telemetry.String("gen_ai.operation.name", "invoke_agent"), telemetry.String("gen_ai.agent.name", f.Subagent),
			telemetry.String("pawl.run.outcome", outcome), telemetry.Int("pawl.run.turn", f.Turn), telemetry.Int("pawl.frame.depth", f.Depth)),
	})
}

// call writes the span of a call.
func (w *spanWriter) call(c *store.Call, outcome string, events ...telemetry.Event) {
	span := telemetry.Span{
		Name: "execute_tool", Context: telemetry.Child(w.root, c.ID), Parent: w.agentSpan(c.ParentCallID), Start: w.since(c.StartedAt), End: w.end,
		Failed: c.State == store.CallFinished && faulty(c),
		Attrs: w.run(telemetry.String("gen_ai.operation.name", "execute_tool"), telemetry.String("gen_ai.tool.name", toolName(c)),
			telemetry.String("gen_ai.tool.call.id", c.ToolCallID), telemetry.String("gen_ai.tool.type", "function"),
			telemetry.String("pawl.call.id", c.ID), telemetry.String("pawl.tool.outcome", outcome),
			telemetry.Int("pawl.run.turn", c.Turn), telemetry.Int("pawl.call.index", c.Index)),
	}
	if c.State == store.CallFinished && c.Error != nil {
		span.Attrs = append(span.Attrs, telemetry.String("error.type", c.Error.Code))
	}
	if d := c.Decision; d != nil && w.t.Pause != "" && !d.DecidedAt.Before(w.t.Began.Add(-time.Duration(w.t.Waited)*time.Millisecond)) {
		span.Events = append(span.Events, w.decided(d, telemetry.String("gen_ai.tool.name", toolName(c)), telemetry.String("pawl.call.id", c.ID)))
	}
	span.Events = append(span.Events, events...)
	w.h.telemetry.Emit(span)
}

func (w *spanWriter) requested(c *store.Call, a *store.Approval) telemetry.Event {
	return telemetry.Event{Name: "tool.approval_requested", Time: w.end, Attrs: []telemetry.Attr{
		telemetry.String("gen_ai.tool.name", toolName(c)), telemetry.String("gen_ai.tool.call.id", c.ToolCallID), telemetry.String("pawl.call.id", c.ID),
		telemetry.String("pawl.approval.id", a.ID), telemetry.String("pawl.approval.reason", a.Reason), telemetry.Strings("pawl.approval.allowed_decisions", a.Allowed),
	}}
}

// decided tells who decided what, and that the arguments were changed, never to what. It is dated within the span: the moment of the
// decision is an attribute.
func (w *spanWriter) decided(d *store.Decision, of ...telemetry.Attr) telemetry.Event {
	return telemetry.Event{Name: "tool.approval_decided", Time: w.t.Began, Attrs: append(of,
		telemetry.String("pawl.approval.decision", d.Kind), telemetry.String("pawl.approval.decided_by", d.DecidedBy),
		telemetry.String("pawl.approval.decided_at", Time(d.DecidedAt).String()), telemetry.Bool("pawl.approval.arguments_changed", d.Changed))}
}

// outcome is how a finished call ended, as an attribute.
func (w *spanWriter) outcome(c *store.Call) string {
	switch {
	case c.Error != nil:
		return c.Error.Code
	case c.StartedAt.IsZero() && c.Decision != nil && c.Decision.Kind == kindRespond:
		return "responded"
	}
	return "ok"
}

// faulty: a call that people or rules kept from running has not failed.
func faulty(c *store.Call) bool {
	if c.Error == nil {
		return false
	}
	switch c.Error.Code {
	case codeRejected, codeDenied, codeCancelled:
		return false
	}
	return true
}

// toolName is the name of the tool; what a model made up has none here.
func toolName(c *store.Call) string {
	if c.Digest == "" {
		return "unknown"
	}
	return c.Tool
}

// awaiting is the state of a run that only waits for this reason.
func awaiting(reason string) string {
	switch reason {
	case reasonInput:
		return string(store.RunAwaitingInput)
	case reasonEvent:
		return string(store.RunAwaitingEvent)
	}
	return string(store.RunAwaitingApproval)
}

// decidedBefore are the decided approvals of the pause that the stretch resumed from.
func (h *Host) decidedBefore(ctx context.Context, s *step) []*store.Approval {
	r, before := s.r, s.r.Trace.Pause
	if before == "" {
		return nil
	}
	if r.PauseID != before {
		r = &run{Run: store.Run{PauseID: before}, key: r.key}
		err := h.store.View(context.WithoutCancel(ctx), func(rd store.Reader) error { return r.readPause(rd) })
		if err != nil {
			h.log.Warn("a span lacks its decisions", "run_id", s.r.ID, "tenant", s.r.Tenant, "error", err)
			return nil
		}
	}
	return slices.DeleteFunc(slices.Clone(r.approvals), func(a *store.Approval) bool { return a.Decision == nil })
}

// traceExpiry writes the span of a pause that the sweeper ended.
func (h *Host) traceExpiry(ctx context.Context, s *step, began time.Time) {
	w := &spanWriter{s: s}
	span := telemetry.Span{Name: "expire_approvals", Context: telemetry.From(ctx), Start: began, End: h.clock(), Attrs: w.run(telemetry.String("pawl.pause.id", s.r.PauseID))}
	if t := s.r.Trace; t != nil {
		span.Links = []telemetry.Link{{To: telemetry.Load(t.Span), Attrs: []telemetry.Attr{telemetry.String("pawl.link", "suspended")}}}
	}
	for _, a := range s.settled {
		span.Events = append(span.Events, telemetry.Event{Name: "tool.approval_expired", Time: began, Attrs: []telemetry.Attr{
			telemetry.String("gen_ai.tool.name", a.Tool), telemetry.String("pawl.call.id", a.CallID), telemetry.String("pawl.approval.id", a.ID),
		}})
	}
	h.telemetry.Emit(span)
}
