package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, o Options) *Telemetry {
	t.Helper()
	told, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = told.Shutdown(context.Background()) })
	return told
}

func TestASpanHasTheIdsItWasGiven(t *testing.T) {
	out := tracetest.NewInMemoryExporter()
	told := open(t, Options{Spans: out})
	parent := Remote("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	root := told.Begin(parent, "x")
	if root.TraceID() != parent.TraceID() || root.SpanID() == parent.SpanID() || !root.IsSampled() {
		t.Errorf("begun as %v below %v", root, parent)
	}
	child := Child(root, "c")
	if !child.Equal(Child(Load(Stored(root)), "c")) || child.Equal(Child(root, "d")) || child.Equal(Child(told.Begin(parent, "x"), "c")) || child.TraceID() != root.TraceID() {
		t.Errorf("the child's ids do not follow from its parent's and its name: %v", child)
	}
	at := time.Unix(1000, 0)
	told.Emit(Span{Name: "child", Context: child, Parent: root, Start: at, End: at.Add(-time.Hour)}) // a clock was set back
	told.Emit(Span{Name: "root", Context: root, Parent: parent, Start: at, End: at.Add(time.Second), Links: []Link{{To: parent}}, Events: []Event{{Name: "e", Time: at}}})
	if err := told.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := out.GetSpans()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	c, r := spans[0], spans[1]
	if c.SpanContext.SpanID() != child.SpanID() || c.Parent.SpanID() != root.SpanID() || c.SpanContext.TraceID() != root.TraceID() || c.EndTime.Before(c.StartTime) {
		t.Errorf("the child %+v", c)
	}
	if r.SpanContext.SpanID() != root.SpanID() || r.Parent.SpanID() != parent.SpanID() || !r.StartTime.Equal(at) || len(r.Links) != 1 || len(r.Events) != 1 {
		t.Errorf("the root %+v", r)
	}
}

func TestWhatIsNotSampledIsNamedAndNotWritten(t *testing.T) {
	out := tracetest.NewInMemoryExporter()
	told := open(t, Options{Spans: out, Sampler: sdktrace.ParentBased(sdktrace.NeverSample())})
	off := Remote("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	for _, parent := range []SpanContext{{}, off} {
		s := told.Begin(parent, "x")
		if !s.IsValid() || s.IsSampled() || Child(s, "c").IsSampled() {
			t.Errorf("%v below %v", s, parent)
		}
		told.Emit(Span{Name: "x", Context: s})
	}
	told.Emit(Span{Name: "kept", Context: told.Begin(Remote("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), "x")})
	if err := told.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if spans := out.GetSpans(); len(spans) != 1 || spans[0].Name != "kept" {
		t.Errorf("%v", spans)
	}
	var none *Telemetry // and where there is no tracing at all, there is still a name
	if s := none.Begin(SpanContext{}, "x"); !s.IsValid() || s.IsSampled() || TraceID(With(t.Context(), s)) != s.TraceID().String() {
		t.Errorf("%v", s)
	}
	none.Emit(Span{Name: "x"})
	if TraceID(t.Context()) != "" {
		t.Error("a context without a span has a trace")
	}
}

func TestWhatIsNoTraceparentIsNone(t *testing.T) {
	for _, text := range []string{
		"", "x", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", strings.Repeat("0", 5000),
	} {
		if s := Remote(text); s.IsValid() {
			t.Errorf("%.60q is taken for %v", text, s)
		}
	}
	if s := Load([]byte{1, 2, 3}); s.IsValid() || Stored(SpanContext{}) != nil {
		t.Errorf("%v", s)
	}
}

// flaky takes nothing while it is broken.
type flaky struct {
	*tracetest.InMemoryExporter
	broken bool
}

func (f *flaky) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if f.broken {
		return errors.New("connection refused")
	}
	return f.InMemoryExporter.ExportSpans(ctx, spans)
}

func TestAFailingExporterIsToldOnce(t *testing.T) {
	var log bytes.Buffer
	out := &flaky{tracetest.NewInMemoryExporter(), true}
	told := open(t, Options{Spans: out, Log: slog.New(slog.NewTextHandler(&log, nil))})
	send := func() {
		told.Emit(Span{Name: "x", Context: told.Begin(SpanContext{}, "x"), Start: time.Now(), End: time.Now()})
		if err := told.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	}
	send()
	send()
	out.broken = false
	send()
	send()
	out.broken = true
	send()
	if got := log.String(); strings.Count(got, "takes no spans") != 2 || strings.Count(got, "takes spans again") != 1 {
		t.Errorf("the log:\n%s", got)
	}
}
