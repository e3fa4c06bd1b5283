package api_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/host/telemetry"
)

// tracedRig is a rig whose spans can be read.
func tracedRig(t *testing.T) (*rig, func() tracetest.SpanStubs) {
	t.Helper()
	out := tracetest.NewInMemoryExporter()
	told, err := telemetry.New(telemetry.Options{Spans: out})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = told.Shutdown(context.Background()) })
	r := newRig(t, api.Options{Dev: true, MetricsOpen: true}, hosttest.Options{Config: func(c *host.Config) { c.Telemetry = told }})
	return r, func() tracetest.SpanStubs {
		if err := told.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		return out.GetSpans()
	}
}

func attributes(s tracetest.SpanStub) string {
	var b strings.Builder
	for _, a := range s.Attributes {
		fmt.Fprintf(&b, "%s=%s ", a.Key, a.Value.String())
	}
	return b.String()
}

// The caller's trace goes on: in the request's span, in problems, in audit rows and in the log.
func TestTheCallersTraceGoesOn(t *testing.T) {
	t.Parallel()
	r, spans := tracedRig(t)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	with := []string{"Traceparent", "00-" + trace + "-b7ad6b7169203331-01", "Tracestate", "canary=state"}
	run := r.do("member", "POST", "/v1/runs", map[string]any{"agent": "ops"}, with...)
	refused := r.do("member", "POST", "/v1/runs/"+run.str("id")+"/approvals", map[string]any{"decisions": []any{}}, with...)
	if refused.status != 403 || refused.str("trace_id") != trace {
		t.Errorf("%d, trace %q", refused.status, refused.str("trace_id"))
	}
	rows := r.ok("owner", "GET", "/v1/audit?action=approval.decide", nil)
	if !strings.Contains(string(rows.raw), `"trace_id":"`+trace+`"`) {
		t.Errorf("no audit row has the trace: %s", rows.raw)
	}
	if !strings.Contains(r.log.String(), "trace_id="+trace) {
		t.Error("the log does not have the trace")
	}
	found := map[string]tracetest.SpanStub{}
	for deadline := time.Now().Add(20 * time.Second); found["POST /v1/runs/{run}/approvals"].Name == ""; { // a request's span ends after its answer
		if time.Now().After(deadline) {
			t.Fatalf("only these spans came: %v", found)
		}
		for _, s := range spans() {
			found[s.Name] = s
			if s.SpanContext.TraceState().Len() != 0 {
				t.Errorf("%s took over the tracestate", s.Name)
			}
		}
	}
	post := found["POST /v1/runs"]
	if post.Parent.SpanID().String() != "b7ad6b7169203331" || post.SpanContext.TraceID().String() != trace {
		t.Errorf("the request is below %s in %s", post.Parent.SpanID(), post.SpanContext.TraceID())
	}
	if got := attributes(post); !strings.Contains(got, "http.response.status_code=201 ") || !strings.Contains(got, "pawl.principal=member ") {
		t.Errorf("the request says %s", got)
	}
	if s := found["invoke_agent"]; s.Parent.SpanID() != post.SpanContext.SpanID() {
		t.Errorf("the run is not below its request: %s", s.Parent.SpanID())
	}
	if s := found["POST /v1/runs/{run}/approvals"]; !strings.Contains(attributes(s), "status_code=403 ") {
		t.Errorf("the refused request says %s", attributes(s))
	}

	// What is no traceparent begins a trace of its own.
	for _, bad := range [][]string{
		{"Traceparent", "00-00000000000000000000000000000000-b7ad6b7169203331-01"},
		{"Traceparent", "canary"},
	} {
		got := r.do("member", "POST", "/v1/runs/"+run.str("id")+"/approvals", map[string]any{"decisions": []any{}}, bad...).str("trace_id")
		if len(got) != 32 || got == trace || strings.Trim(got, "0") == "" {
			t.Errorf("%q: trace %q", bad, got)
		}
	}
}

// A socket and a stream have no span for as long as they are open; a decision by a frame has one.
func TestSpansOfSocketsAndStreams(t *testing.T) {
	t.Parallel()
	r, spans := tracedRig(t)
	run := r.paused("member")
	w := r.ws("admin")
	w.text(map[string]any{"type": "decide", "id": "1", "run": run.ID, "decisions": decisions(run.Pause, "reject")["decisions"]})
	w.want("ack")
	w.text(map[string]any{"type": "decide", "id": "2", "run": run.ID, "decisions": decisions(run.Pause, "reject")["decisions"]})
	refused := w.problem(409, "2")["trace_id"]
	r.Settled(run.ID)
	r.ok("owner", "GET", "/v1/runs/"+run.ID+"/events", nil) // ends with the run
	var frames []string
	for _, s := range spans() {
		if strings.Contains(attributes(s), "/v1/ws ") {
			frames = append(frames, s.SpanContext.TraceID().String())
		}
		if s.Name == "GET /v1/ws" || strings.HasSuffix(s.Name, "/events") {
			t.Errorf("a span %s", s.Name)
		}
	}
	if len(frames) != 2 || any(frames[1]) != refused {
		t.Errorf("the frames' traces are %v, the problem's %v", frames, refused)
	}
	for _, row := range r.AuditRows("demo") {
		if row.Action == "approval.decide" && (row.TraceID != frames[0] && row.TraceID != frames[1]) {
			t.Errorf("the audit row has the trace %q of no frame", row.TraceID)
		}
	}
}

// Every audit row that a request causes has its trace id, also while nothing is exported.
func TestEveryAuditRowHasATrace(t *testing.T) {
	t.Parallel()
	r := dev(t)
	r.ok("owner", "PUT", "/v1/agents/mine", map[string]any{"planner": map[string]any{"kind": "external"}, "tools": []string{"echo"}})
	r.do("owner", "DELETE", "/v1/agents/mine", nil)
	k := r.do("owner", "POST", "/v1/keys", map[string]any{"principal": "x", "roles": []string{"member"}, "kind": "user"})
	r.do("owner", "DELETE", "/v1/keys/"+k.str("id"), nil)
	run := r.paused("member")
	r.ok("owner", "POST", "/v1/runs/"+run.ID+"/token", map[string]any{})
	r.ok("owner", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "reject"))
	r.do("owner", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "reject"))
	expired, gone := r.paused("member"), r.paused("member")
	r.ok("owner", "POST", "/v1/runs/"+gone.ID+"/cancel", map[string]any{})
	r.Clock.Advance(25 * time.Hour)
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.Settled(expired.ID); got.State != "failed" {
		t.Fatalf("the run is %s", got.State)
	}
	seen := map[string]bool{}
	for _, row := range r.AuditRows("demo") {
		if row.ActorKind == host.KindSystem && row.Action == "key.create" || row.Action == "agent.save" && row.TargetID != "mine" {
			continue // made by the test itself, without a request
		}
		seen[row.Action] = true
		if len(row.TraceID) != 32 {
			t.Errorf("%s of %s by %v has the trace %q", row.Action, row.TargetID, row.ActorID, row.TraceID)
		}
	}
	for _, action := range []string{"agent.save", "agent.delete", "key.create", "key.revoke", "token.rotate", "approval.decide", "approval.expire", "run.cancel"} {
		if !seen[action] {
			t.Errorf("no row %s", action)
		}
	}
}
