package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// traces is where hosts under test send their spans.
type traces struct {
	t   testing.TB
	out *tracetest.InMemoryExporter
	to  *telemetry.Telemetry
}

func newTraces(t testing.TB) *traces {
	tr := &traces{t: t, out: tracetest.NewInMemoryExporter()}
	return tr
}

// config gives a host its telemetry. A host that is restarted gets another one with the same exporter.
func (tr *traces) config(c *host.Config) {
	to, err := telemetry.New(telemetry.Options{Spans: keep{tr.out}})
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.to, c.Telemetry = to, to
	tr.t.Cleanup(func() {
		if err := to.Shutdown(context.Background()); err != nil {
			tr.t.Error(err)
		}
	})
}

// keep outlives the process that exports to it.
type keep struct{ *tracetest.InMemoryExporter }

func (keep) Shutdown(context.Context) error { return nil }

// spans returns what was exported so far and not returned yet, in the order of its end.
func (tr *traces) spans() spans {
	tr.t.Helper()
	if err := tr.to.Flush(context.Background()); err != nil {
		tr.t.Fatal(err)
	}
	out := tr.out.GetSpans()
	tr.out.Reset()
	return spans{tr.t, out}
}

// stretches waits until n more stretches of runs have ended, each with all its spans, and returns those. A run shows its new state from the
// commit on, and its spans are written after it, the stretch's own last.
func (tr *traces) stretches(n int) spans {
	tr.t.Helper()
	got := tr.spans()
	for deadline := time.Now().Add(time.Minute); len(got.like("invoke_agent", "pawl.frame.depth", "0")) < n; got.all = append(got.all, tr.spans().all...) {
		if time.Now().After(deadline) {
			tr.t.Fatalf("less than %d stretches have ended:\n%s", n, got)
		}
		time.Sleep(time.Millisecond)
	}
	return got
}

type spans struct {
	t   testing.TB
	all tracetest.SpanStubs
}

func attr(of []attribute.KeyValue, key string) string {
	for _, a := range of {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

// one is the single span with this name and these attributes (name, value pairs).
func (s spans) one(name string, attrs ...string) tracetest.SpanStub {
	s.t.Helper()
	found := s.like(name, attrs...)
	if len(found) != 1 {
		s.t.Fatalf("%d spans %s %q among:\n%s", len(found), name, attrs, s)
	}
	return found[0]
}

func (s spans) like(name string, attrs ...string) (found tracetest.SpanStubs) {
	for _, sp := range s.all {
		ok := sp.Name == name
		for i := 0; i < len(attrs); i += 2 {
			ok = ok && attr(sp.Attributes, attrs[i]) == attrs[i+1]
		}
		if ok {
			found = append(found, sp)
		}
	}
	return found
}

func (s spans) String() string {
	var b strings.Builder
	for _, sp := range s.all {
		fmt.Fprintf(&b, "%s %s<%s %v events %v links %v\n", sp.Name, sp.SpanContext.SpanID(), sp.Parent.SpanID(), sp.Attributes, sp.Events, sp.Links)
	}
	return b.String()
}

func event(t testing.TB, sp tracetest.SpanStub, name string) sdktrace.Event {
	t.Helper()
	i := slices.IndexFunc(sp.Events, func(e sdktrace.Event) bool { return e.Name == name })
	if i < 0 {
		t.Fatalf("%s has no event %s: %v", sp.Name, name, sp.Events)
	}
	return sp.Events[i]
}

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// The story of two traces: one that ends when the run stops for a person, one that begins with the answer, in another process.
func TestTraceOfAStopAcrossARestart(t *testing.T) {
	t.Parallel()
	tr, clock, s := newTraces(t), hosttest.NewClock(), memstore.New()
	t.Cleanup(func() { s.Close() })
	h := hosttest.New(t, hosttest.Options{Store: s, Clock: clock, Config: tr.config})
	h.Script("ops", `[{"calls":[{"tool_call_id":"e1","tool":"echo","arguments":{}}]},
		{"calls":[{"tool_call_id":"w1","tool":"write_file","arguments":{"path":"/memories/a","content":"x"}},{"tool_call_id":"w2","tool":"write_file","arguments":{"path":"/free","content":"y"}}]},{"final":1}]`, "")
	ctx := telemetry.With(t.Context(), telemetry.Remote("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	r, err := h.CreateRun(ctx, hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "ops", SessionID: "s-1"}))
	if err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	h.Stop()
	first := tr.spans()
	same(t, "the number of spans", len(first.all), 3)
	root := first.one("invoke_agent")
	same(t, "the trace", root.SpanContext.TraceID(), "0af7651916cd43dd8448eb211c80319c")
	same(t, "the parent", root.Parent.SpanID(), "b7ad6b7169203331")
	for key, want := range map[string]string{
		"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "ops", "gen_ai.conversation.id": "s-1", "session.id": "s-1", "pawl.tenant": "demo",
		"pawl.run.id": r.ID, "pawl.run.outcome": "awaiting_approval", "pawl.run.state": "awaiting_approval", "pawl.run.turn": "2", "pawl.frame.depth": "0",
	} {
		same(t, key, attr(root.Attributes, key), want)
	}
	done := first.one("execute_tool", "gen_ai.tool.call.id", "e1")
	same(t, "the outcome", attr(done.Attributes, "pawl.tool.outcome"), "ok")
	same(t, "the call's parent", done.Parent.SpanID(), root.SpanContext.SpanID())
	stopped := first.one("execute_tool", "gen_ai.tool.call.id", "w1")
	same(t, "the call's parent", stopped.Parent.SpanID(), root.SpanContext.SpanID())
	same(t, "the tool", attr(stopped.Attributes, "gen_ai.tool.name"), "write_file")
	same(t, "the outcome", attr(stopped.Attributes, "pawl.tool.outcome"), "awaiting_approval")
	asked := event(t, stopped, "tool.approval_requested").Attributes
	same(t, "the tool asked about", attr(asked, "gen_ai.tool.name"), "write_file")
	same(t, "the call asked about", attr(asked, "pawl.call.id"), r.Pause.Approvals[0].CallID)
	same(t, "the decisions allowed", attr(asked, "pawl.approval.allowed_decisions"), `["approve","edit","reject","respond"]`)

	clock.Advance(time.Hour)
	h = hosttest.New(t, hosttest.Options{Store: s, Clock: clock, Config: tr.config})
	request := telemetry.Remote("00-11111111111111111111111111111111-2222222222222222-01")
	if _, err := h.Decide(telemetry.With(t.Context(), request), hosttest.Admin, r.ID, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: []host.Decision{
		{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: json.RawMessage(`{"path":"/memories/b","content":"z"}`)},
	}})); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	h.Stop()
	second := tr.spans()
	same(t, "the number of spans", len(second.all), 3)
	resumed := second.one("invoke_agent")
	if resumed.Parent.IsValid() || resumed.SpanContext.TraceID() == root.SpanContext.TraceID() || resumed.SpanContext.TraceID() == request.TraceID() {
		t.Errorf("the resumed trace is no new one:\n%s", second)
	}
	same(t, "the link", resumed.Links[0].SpanContext.SpanID(), root.SpanContext.SpanID())
	same(t, "the trace linked to", resumed.Links[0].SpanContext.TraceID(), root.SpanContext.TraceID())
	same(t, "the request linked to", resumed.Links[1].SpanContext.SpanID(), request.SpanID())
	for key, want := range map[string]string{
		"pawl.run.resumed_from_span_id": root.SpanContext.SpanID().String(), "pawl.run.suspension_seconds": "3600", "pawl.run.id": r.ID, "session.id": "s-1",
		"pawl.run.outcome": "succeeded", "pawl.pause.id": r.Pause.ID,
	} {
		same(t, key, attr(resumed.Attributes, key), want)
	}
	call := second.one("execute_tool", "gen_ai.tool.call.id", "w1")
	for _, e := range []sdktrace.Event{event(t, resumed, "tool.approval_decided"), event(t, call, "tool.approval_decided")} {
		for key, want := range map[string]string{
			"pawl.approval.decision": "edit", "pawl.approval.decided_by": "admin", "pawl.approval.arguments_changed": "true",
			"gen_ai.tool.name": "write_file", "pawl.call.id": r.Pause.Approvals[0].CallID,
		} {
			same(t, key, attr(e.Attributes, key), want)
		}
	}
	same(t, "the outcome", attr(call.Attributes, "pawl.tool.outcome"), "ok")
	if sibling := second.one("execute_tool", "gen_ai.tool.call.id", "w2"); len(sibling.Events) != 0 {
		t.Errorf("a call that nobody was asked about has events: %v", sibling.Events)
	}

	i := slices.IndexFunc(h.AuditRows("demo"), func(a host.AuditRow) bool { return a.Action == "approval.decide" })
	same(t, "the audit row's trace", h.AuditRows("demo")[i].TraceID, request.TraceID())
}

// Each way that a stretch ends, and how its calls look then. Spans are never written twice, and never left out.
func TestTraceOutcomes(t *testing.T) {
	t.Parallel()
	write := `{"tool_call_id":"c","tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}`
	for name, c := range map[string]struct {
		call, decide  string
		stop, outcome string // of the call
		run           string
		fault         bool
	}{
		"approved":  {write, "approve", "awaiting_approval", "ok", "succeeded", false},
		"rejected":  {write, "reject", "awaiting_approval", "rejected", "succeeded", false},
		"responded": {write, "respond", "awaiting_approval", "responded", "succeeded", false},
		"asks":      {`{"tool_call_id":"c","tool":"ask","arguments":{"reason":"await_input","payload":{"question":"?"}}}`, "respond", "awaiting_input", "ok", "succeeded", false},
		"fails":     {`{"tool_call_id":"c","tool":"fail","arguments":{}}`, "", "", "tool_error", "succeeded", true},
		"unknown":   {`{"tool_call_id":"c","tool":"canary_made_up","arguments":{}}`, "", "", "unknown_tool", "succeeded", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTraces(t)
			h := hosttest.New(t, hosttest.Options{Config: tr.config})
			h.Script("a", `[{"calls":[`+c.call+`]},{"final":1}]`, "")
			r := h.Settled(h.Create(hosttest.Member, "a").ID)
			if c.stop != "" {
				got := tr.stretches(1)
				same(t, "the call's outcome", attr(got.one("execute_tool").Attributes, "pawl.tool.outcome"), c.stop)
				same(t, "the run's outcome", attr(got.one("invoke_agent").Attributes, "pawl.run.outcome"), c.stop)
				if _, err := h.DecideAll(hosttest.Owner, r, c.decide); err != nil {
					t.Fatal(err)
				}
				h.Settled(r.ID)
			}
			h.Stop()
			got := tr.spans()
			call := got.one("execute_tool")
			same(t, "the call's outcome", attr(call.Attributes, "pawl.tool.outcome"), c.outcome)
			same(t, "the run's outcome", attr(got.one("invoke_agent").Attributes, "pawl.run.outcome"), c.run)
			same(t, "an error", call.Status.Code == codes.Error, c.fault)
			if c.decide != "" {
				same(t, "the decision", attr(event(t, call, "tool.approval_decided").Attributes, "pawl.approval.decision"), c.decide)
			}
			if strings.Contains(got.String(), "canary") {
				t.Errorf("a span has what a model made up:\n%s", got)
			}
		})
	}
}

func TestTraceOfCancelAndExpiry(t *testing.T) {
	t.Parallel()
	tr := newTraces(t)
	h := hosttest.New(t, hosttest.Options{Config: tr.config})
	h.Script("a", `[{"calls":[{"tool_call_id":"c","tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}]},{"final":1}]`, "")
	cancelled, expired := h.Settled(h.Create(hosttest.Member, "a").ID), h.Settled(h.Create(hosttest.Member, "a").ID)
	first := tr.stretches(2)
	same(t, "stretches", len(first.like("invoke_agent", "pawl.run.outcome", "awaiting_approval")), 2)
	if _, err := h.Cancel(t.Context(), hosttest.Owner, cancelled.ID); err != nil {
		t.Fatal(err)
	}
	h.Clock.Advance(25 * time.Hour)
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := tr.spans()
	same(t, "spans after the stops", len(got.all), 1) // nothing ran
	sweep := got.one("expire_approvals", "pawl.run.id", expired.ID)
	same(t, "the link", sweep.Links[0].SpanContext.SpanID(), first.one("invoke_agent", "pawl.run.id", expired.ID).SpanContext.SpanID())
	same(t, "the call", attr(event(t, sweep, "tool.approval_expired").Attributes, "pawl.call.id"), expired.Pause.Approvals[0].CallID)
	rows := h.AuditRows("demo")
	i := slices.IndexFunc(rows, func(a host.AuditRow) bool { return a.Action == "approval.expire" })
	same(t, "the audit row's trace", rows[i].TraceID, sweep.SpanContext.TraceID())
	if !strings.Contains(h.Log.String(), `msg="approval expired"`) || !strings.Contains(h.Log.String(), "trace_id="+rows[i].TraceID) {
		t.Errorf("the log does not name the trace of the expiry:\n%s", h.Log)
	}
}

// The client's moves: a stretch ends when it is the client's turn, and its next request begins another, in the client's trace.
func TestTraceOfAnExternalPlanner(t *testing.T) {
	t.Parallel()
	tr := newTraces(t)
	h := hosttest.New(t, hosttest.Options{Config: tr.config})
	h.Agent("ext", `{"planner":{"kind":"external"},"tools":["echo"]}`)
	r := h.Create(hosttest.Member, "ext")
	same(t, "the outcome", attr(tr.spans().one("invoke_agent").Attributes, "pawl.run.outcome"), "awaiting_planner")
	client := telemetry.Remote("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	one := 1
	if _, err := h.Propose(telemetry.With(t.Context(), client), hosttest.Member, r.ID, host.Idempotency{}, hosttest.Body(host.Batch{
		Turn: &one, Calls: []host.ProposedCall{{ToolCallID: "c", Tool: "echo", Arguments: json.RawMessage(`{}`)}},
	})); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	got := tr.stretches(1)
	turn := got.one("invoke_agent", "pawl.run.outcome", "awaiting_planner")
	same(t, "the parent", turn.Parent.SpanID(), client.SpanID())
	same(t, "the call's parent", got.one("execute_tool").Parent.SpanID(), turn.SpanContext.SpanID())
	two := 2
	if _, err := h.Finish(t.Context(), hosttest.Member, r.ID, host.Idempotency{}, hosttest.Body(host.Final{Turn: &two, Output: json.RawMessage(`1`)})); err != nil {
		t.Fatal(err)
	}
	same(t, "the outcome", attr(tr.spans().one("invoke_agent").Attributes, "pawl.run.outcome"), "succeeded")
}

// A stop two subagents down: every level has its spans before and after.
func TestTraceOfSubagents(t *testing.T) {
	t.Parallel()
	tr := newTraces(t)
	h := hosttest.New(t, hosttest.Options{Config: tr.config})
	h.Agent("lead", nested(2, `[{"calls":[`+pay+`]},{"final":1}]`, `{"transfer":true}`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	check := func(got spans, outcome, tool string) {
		t.Helper()
		same(t, "the number of spans", len(got.all), 6)
		parent := got.one("invoke_agent", "pawl.frame.depth", "0")
		for depth := 1; depth <= 2; depth++ {
			agent := got.one("invoke_agent", "pawl.frame.depth", fmt.Sprint(depth))
			task := got.like("execute_tool", "gen_ai.tool.name", "task")
			i := slices.IndexFunc(task, func(s tracetest.SpanStub) bool { return s.Parent.SpanID() == parent.SpanContext.SpanID() })
			if i < 0 {
				t.Fatalf("no task below depth %d:\n%s", depth-1, got)
			}
			same(t, "the subagent's parent", agent.Parent.SpanID(), task[i].SpanContext.SpanID())
			same(t, "the subagent's name", attr(agent.Attributes, "gen_ai.agent.name"), "w")
			same(t, "the task's outcome", attr(task[i].Attributes, "pawl.tool.outcome"), outcome)
			parent = agent
		}
		call := got.one("execute_tool", "gen_ai.tool.name", "transfer")
		same(t, "the call's parent", call.Parent.SpanID(), parent.SpanContext.SpanID())
		same(t, "the call's outcome", attr(call.Attributes, "pawl.tool.outcome"), tool)
		for _, sp := range got.all {
			same(t, "the trace", sp.SpanContext.TraceID(), parent.SpanContext.TraceID())
		}
	}
	check(tr.stretches(1), "awaiting_approval", "awaiting_approval")
	if _, err := h.DecideAll(hosttest.Owner, r, "approve"); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	check(tr.stretches(1), "ok", "ok")
}

// A message takes the place of a stop two subagents down: what was given up is told in the trace that goes on.
func TestTraceOfASupersededPause(t *testing.T) {
	t.Parallel()
	tr := newTraces(t)
	h := hosttest.New(t, hosttest.Options{Config: tr.config})
	h.Agent("lead", nested(2, `[{"calls":[`+pay+`]},{"final":1}]`, `{"transfer":true}`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	before := tr.stretches(1).one("invoke_agent", "pawl.frame.depth", "0")
	if _, err := say(h, hosttest.Member, r.ID, true); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	got := tr.stretches(1)
	root := got.one("invoke_agent", "pawl.frame.depth", "0")
	same(t, "the link", root.Links[0].SpanContext.SpanID(), before.SpanContext.SpanID())
	same(t, "the decisions", len(root.Events), 0)
	same(t, "the calls that were given up", len(got.like("execute_tool", "pawl.tool.outcome", "cancelled")), 3)
	ids := map[string]bool{}
	for _, sp := range got.all {
		ids[sp.SpanContext.SpanID().String()] = true
	}
	for _, sp := range got.all {
		if sp.Parent.IsValid() && !ids[sp.Parent.SpanID().String()] {
			t.Errorf("the parent of %s is not there:\n%s", sp.Name, got)
		}
	}
	same(t, "the number of ids", len(ids), len(got.all))
}

// A host that is killed while a run is on its way: the next one ends the span that the first had begun.
func TestTraceOfAStretchThatChangesProcess(t *testing.T) {
	t.Parallel()
	tr, s := newTraces(t), memstore.New()
	t.Cleanup(func() { s.Close() })
	dead := hosttest.New(t, hosttest.Options{Store: s, Idle: true, Config: tr.config})
	dead.Script("a", `[{"calls":[{"tool_call_id":"c","tool":"echo","arguments":{}}]},{"final":1}]`, "")
	ctx := telemetry.With(t.Context(), telemetry.Remote("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	r, err := dead.CreateRun(ctx, hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "spans while the run is on its way", len(tr.spans().all), 0)
	h := hosttest.New(t, hosttest.Options{Store: s, Config: tr.config})
	h.Settled(r.ID)
	got := tr.stretches(1)
	same(t, "the parent", got.one("invoke_agent").Parent.SpanID(), "b7ad6b7169203331")
	same(t, "the call's parent", got.one("execute_tool").Parent.SpanID(), got.one("invoke_agent").SpanContext.SpanID())
}

// Invariant 14: what is secret or said by models, tools and people is in no log, span, metric or audit row.
// Public failure HV3.
func TestInvariant14_NothingToldIsTold(t *testing.T) {
	t.Parallel()
	tr := newTraces(t)
	h := hosttest.New(t, hosttest.Options{Config: tr.config, Tools: map[string]hosttest.Func{
		"blab": func(ctx context.Context, s *plugins.Session) error {
			_, err := hosttest.Op(ctx, s, "log", map[string]any{"level": "error", "message": "canary-log"})
			return errors.Join(err, errors.New("canary-failure"))
		},
	}})
	write := func(label string) string {
		return fmt.Sprintf(`{"tool_call_id":%q,"tool":"write_file","arguments":{"path":"/memories/canary-path","content":"canary-content"}}`, label)
	}
	h.Script("a", `[{"calls":[{"tool":"blab","arguments":{"x":"canary-blab"}},{"tool":"canary-tool","arguments":{}}]},
		{"calls":[`+write("c1")+`,`+write("c2")+`,`+write("c3")+`,`+write("c4")+`]},
		{"calls":[{"tool":"ask","arguments":{"reason":"await_input","payload":{"question":"canary-question","title":"canary-title"}}}]},{"final":"canary-output"}]`, "")
	r, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{Key: "canary-key", Method: "POST", Path: "/v1/runs", Body: "x"}, hosttest.Body(host.NewRun{
		Agent: "a", Input: json.RawMessage(`"canary-input"`), ToolContext: json.RawMessage(`{"secret":"canary-context"}`),
	}))
	if err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	tokens := []string{r.Pause.ResumeToken}
	var ds []host.Decision
	for i, kind := range []string{"approve", "edit", "reject", "respond"} {
		d := host.Decision{ApprovalID: r.Pause.Approvals[i].ID, Kind: kind, Message: "canary-message"}
		switch kind {
		case "edit":
			d.Arguments = json.RawMessage(`{"path":"/memories/canary-edited","content":"canary-edit"}`)
		case "respond":
			d.Value = json.RawMessage(`"canary-value"`)
		}
		ds = append(ds, d)
	}
	if _, err := h.Decide(t.Context(), hosttest.Owner, r.ID, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: ds, ToolContext: json.RawMessage(`{"more":"canary-more"}`)})); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	tokens = append(tokens, r.Pause.ResumeToken)
	if _, err := h.Resume(t.Context(), hosttest.Member, r.Pause.ResumeToken, host.Idempotency{}, hosttest.Body(host.Answer{UserInput: json.RawMessage(`"canary-answer"`)})); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); r.State != store.RunSucceeded || string(r.Output) != `"canary-output"` {
		t.Fatalf("the run is %s, its output %s", r.State, r.Output)
	}
	rows, _ := json.Marshal(h.AuditRows("demo"))
	families, err := h.Telemetry().Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := tr.stretches(3)
	if len(got.like("invoke_agent")) != 3 || len(got.like("execute_tool")) < 8 {
		t.Errorf("too few spans to search:\n%s", got)
	}
	for what, text := range map[string]string{"the log": h.Log.String(), "the audit log": string(rows), "the spans": got.String(), "the metrics": fmt.Sprint(families)} {
		for _, secret := range append(tokens, "canary", hosttest.HostKey) {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s tell: %s", what, text[max(0, i-200):min(len(text), i+80)])
			}
		}
	}
}

// Without an exporter nothing of traces is kept.
func TestNoTracesNoRecord(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("a", `[{"calls":[{"tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}]},{"final":1}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "a").ID)
	var head store.Run
	if err := h.Store.View(t.Context(), func(rd store.Reader) error {
		it, err := rd.Get(store.K("t", "demo", "run", r.ID))
		if err != nil {
			return err
		}
		return store.Decode(it.Value, &head)
	}); err != nil || head.Trace != nil {
		t.Errorf("%v %v", head.Trace, err)
	}
}
