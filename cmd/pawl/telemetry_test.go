package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

// collector is an OTLP/HTTP receiver.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	spans   []*otlp.Span
	metrics map[string]bool
	service string
	raw     bytes.Buffer // everything, as it came
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{metrics: map[string]bool{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
			http.Error(w, "not OTLP", http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.raw.Write(body)
		var answer proto.Message
		switch r.URL.Path {
		case "/v1/traces":
			var req coltrace.ExportTraceServiceRequest
			if err = proto.Unmarshal(body, &req); err == nil {
				for _, rs := range req.ResourceSpans {
					for _, a := range rs.Resource.Attributes {
						if a.Key == "service.name" {
							c.service = a.Value.GetStringValue()
						}
					}
					for _, ss := range rs.ScopeSpans {
						c.spans = append(c.spans, ss.Spans...)
					}
				}
			}
			answer = &coltrace.ExportTraceServiceResponse{}
		case "/v1/metrics":
			var req colmetrics.ExportMetricsServiceRequest
			if err = proto.Unmarshal(body, &req); err == nil {
				for _, rm := range req.ResourceMetrics {
					for _, sm := range rm.ScopeMetrics {
						for _, m := range sm.Metrics {
							c.metrics[m.Name] = true
						}
					}
				}
			}
			answer = &colmetrics.ExportMetricsServiceResponse{}
		}
		if err != nil || answer == nil {
			http.Error(w, "not OTLP", http.StatusBadRequest)
			return
		}
		out, _ := proto.Marshal(answer)
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(out)
	}))
	t.Cleanup(c.Close)
	return c
}

// take returns the spans with a name, and forgets them.
func (c *collector) take(name string) (found []*otlp.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var rest []*otlp.Span
	for _, s := range c.spans {
		if s.Name == name {
			found = append(found, s)
		} else {
			rest = append(rest, s)
		}
	}
	c.spans = rest
	return found
}

func spanAttr(s *otlp.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			if d := a.Value.GetDoubleValue(); d != 0 {
				return fmt.Sprint(d)
			}
			return a.Value.GetStringValue()
		}
	}
	return ""
}

func spanEvents(s *otlp.Span) (names []string) {
	for _, e := range s.Events {
		names = append(names, e.Name)
	}
	return names
}

// A run that stops in one process and ends in another, as a collector sees it.
func TestOTLPAcrossARestart(t *testing.T) {
	t.Parallel()
	out := newCollector(t)
	c := newChild(t, "pawl")
	c.env = append(c.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+out.URL, "OTEL_SERVICE_NAME=pawl-test")
	mustStart(t, c)
	owner := c.as("owner")
	mustCall(t, owner, http.MethodPut, agentPath("ops"), json.RawMessage(
		`{"planner":{"kind":"script","turns":[{"calls":[{"tool":"write_file","arguments":{"path":"/memories/canary-path","content":"canary-content"}}]},{"final":"canary-output"}]},"tools":["write_file"]}`), nil)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, c.base+"/v1/runs", strings.NewReader(`{"agent":"ops","session_id":"s-1","tool_context":{"k":"canary-context"}}`))
	req.Header.Set("Authorization", "Bearer "+c.keys["owner"])
	req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var run host.Run
	if err := json.NewDecoder(resp.Body).Decode(&run); err != nil || run.State != store.RunAwaitingApproval {
		t.Fatalf("%s: %s %v", resp.Status, run.State, err)
	}
	if err := c.stop(t.Context()); err != nil { // sends what is queued
		t.Fatal(err)
	}
	roots, tools, requests := out.take("invoke_agent"), out.take("execute_tool"), out.take("POST /v1/runs")
	if len(roots) != 1 || len(tools) != 1 || len(requests) != 1 {
		t.Fatalf("%d invoke_agent, %d execute_tool, %d requests; the rest %v", len(roots), len(tools), len(requests), out.spans)
	}
	root, tool, request := roots[0], tools[0], requests[0]
	if got := fmt.Sprintf("%x", root.TraceId); got != "0af7651916cd43dd8448eb211c80319c" || fmt.Sprintf("%x", request.ParentSpanId) != "b7ad6b7169203331" {
		t.Errorf("the caller's trace does not go on: %s, request below %x", got, request.ParentSpanId)
	}
	if !bytes.Equal(root.ParentSpanId, request.SpanId) || !bytes.Equal(tool.ParentSpanId, root.SpanId) || request.Kind != otlp.Span_SPAN_KIND_SERVER {
		t.Errorf("not one tree: request %x, run %x<%x, tool <%x", request.SpanId, root.SpanId, root.ParentSpanId, tool.ParentSpanId)
	}
	if spanAttr(root, "pawl.run.outcome") != "awaiting_approval" || spanAttr(tool, "pawl.tool.outcome") != "awaiting_approval" || spanAttr(root, "session.id") != "s-1" {
		t.Errorf("outcomes: %v, %v", root, tool)
	}
	if got := spanEvents(tool); len(got) != 1 || got[0] != "tool.approval_requested" {
		t.Errorf("events of the stopped call: %v", got)
	}
	if out.service != "pawl-test" {
		t.Errorf("the service is %q", out.service)
	}

	mustStart(t, c)
	owner = c.as("owner")
	mustCall(t, owner, http.MethodPost, runPath(run.ID)+"/approvals", map[string]any{"decisions": []map[string]any{{"approval_id": run.Pause.Approvals[0].ID, "kind": "approve"}}}, nil)
	if !eventually(t.Context(), 30*time.Second, func() bool { return getRun(t, owner, run.ID).State == store.RunSucceeded }) {
		t.Fatal("the run did not end")
	}
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	roots, tools = out.take("invoke_agent"), out.take("execute_tool")
	if len(roots) != 1 || len(tools) != 1 {
		t.Fatalf("%d invoke_agent, %d execute_tool", len(roots), len(tools))
	}
	resumed := roots[0]
	if len(resumed.ParentSpanId) != 0 || bytes.Equal(resumed.TraceId, root.TraceId) || len(resumed.Links) == 0 ||
		!bytes.Equal(resumed.Links[0].SpanId, root.SpanId) || !bytes.Equal(resumed.Links[0].TraceId, root.TraceId) {
		t.Errorf("the resumed trace: %v", resumed)
	}
	if spanAttr(resumed, "pawl.run.resumed_from_span_id") != fmt.Sprintf("%x", root.SpanId) || spanAttr(resumed, "pawl.run.suspension_seconds") == "" ||
		spanAttr(resumed, "pawl.run.outcome") != "succeeded" || spanAttr(resumed, "session.id") != "s-1" || spanAttr(resumed, "pawl.run.id") != run.ID {
		t.Errorf("the resumed span: %v", resumed)
	}
	for _, s := range []*otlp.Span{resumed, tools[0]} {
		if got := spanEvents(s); len(got) != 1 || got[0] != "tool.approval_decided" {
			t.Errorf("events of %s: %v", s.Name, got)
		}
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	for _, name := range []string{"pawl.approvals.pending", "pawl.approvals.wait_time", "pawl.approvals.decisions", "pawl.approvals.expired", "pawl.runs.by_state"} {
		if !out.metrics[name] {
			t.Errorf("the collector was not told %s; it was told %v", name, out.metrics)
		}
	}
	if all := out.raw.String(); strings.Contains(all, "canary") || strings.Contains(all, c.keys["owner"]) || strings.Contains(all, run.Pause.ResumeToken) {
		t.Error("the collector was told arguments, a key or a token")
	}
}

// A collector that hangs, or is not there, costs a warning and nothing else.
func TestACollectorThatTakesNothing(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	stuck := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(func() { close(hang); stuck.Close() })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + ln.Addr().String()
	ln.Close()
	for name, url := range map[string]string{"hangs": stuck.URL, "is not there": nobody} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChild(t, "pawl")
			c.env = append(c.env, "PAWL_OTLP_ENDPOINT="+url, "OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_BSP_MAX_QUEUE_SIZE=16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=8",
				"OTEL_EXPORTER_OTLP_TIMEOUT=100", "OTEL_BSP_EXPORT_TIMEOUT=100")
			mustStart(t, c)
			owner := c.as("owner")
			mustCall(t, owner, http.MethodPut, agentPath("ops"), json.RawMessage(demoAgent), nil)
			warned := func() int { return strings.Count(c.log.text(), "the OTLP collector takes no spans") }
			if !eventually(t.Context(), time.Minute, func() bool {
				mustCall(t, owner, http.MethodPost, "/v1/runs", map[string]any{"agent": "ops"}, nil)
				return warned() > 0
			}) {
				t.Fatalf("no warning: %s", c.log.text())
			}
			for range 100 { // more than the queue holds
				mustCall(t, owner, http.MethodPost, "/v1/runs", map[string]any{"agent": "ops"}, nil)
			}
			if n := warned(); n != 1 {
				t.Errorf("%d warnings:\n%s", n, c.log.text())
			}
			if err := c.stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTelemetrySettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ env, want string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318", "must begin with http"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "pawl speaks http/protobuf"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_TRACES_EXPORTER=jaeger", "say otlp or none"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_TRACES_SAMPLER=sometimes", "OTEL_TRACES_SAMPLER"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=2", "between 0 and 1"},
		{"PAWL_OTLP_ENDPOINT=http://127.0.0.1:4318", "traces=true metrics=true"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_METRICS_EXPORTER=none OTEL_TRACES_SAMPLER=parentbased_traceidratio", "traces=true metrics=false"},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127.0.0.1:4318/v1/metrics", "traces=false metrics=true"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_SDK_DISABLED=true", ""},
		{"", ""},
	} {
		a, err := settings(t, strings.Fields(c.env), nil)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		told, err := a.openTelemetry(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
		text := log.String()
		if err != nil {
			text = err.Error()
			if exitCode(err) != exitUsage {
				t.Errorf("%s: the exit code is %d", c.env, exitCode(err))
			}
		} else if err := told.Shutdown(t.Context()); err != nil {
			t.Logf("%s: %v", c.env, err) // nobody listens there
		}
		if !strings.Contains(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%s: %q", c.env, text)
		}
	}
}
