package telemetry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The words of OpenTelemetry that the host uses.
type (
	// SpanContext names a span: trace id, span id, whether it is kept.
	SpanContext = trace.SpanContext
	// Attr is an attribute of a span, an event or a link.
	Attr = attribute.KeyValue
)

// The kinds of attributes.
var (
	String  = attribute.String
	Strings = attribute.StringSlice
	Int     = attribute.Int
	Float   = attribute.Float64
	Bool    = attribute.Bool
)

// Span is a span that is over.
type Span struct {
	Name       string
	Server     bool        // it answered a request from outside
	Context    SpanContext // as Begin or Child gave it
	Parent     SpanContext // zero: a root
	Start, End time.Time
	Attrs      []Attr
	Events     []Event
	Links      []Link
	Failed     bool
}

// Event is a moment of a span.
type Event struct {
	Name  string
	Time  time.Time
	Attrs []Attr
}

// Link names a span of another trace that this one follows from.
type Link struct {
	To    SpanContext
	Attrs []Attr
}

// Begin names a new span: in its parent's trace, or, if that is not valid, in a new one. It asks the sampler; Emit drops what that
// does not take. Without tracing the span is named all the same, so that logs and audit rows have a trace id.
func (t *Telemetry) Begin(parent SpanContext, name string) SpanContext {
	var ids [24]byte
	_, _ = rand.Read(ids[:]) // never fails, says its contract
	c := trace.SpanContextConfig{TraceID: trace.TraceID(ids[:16]), SpanID: trace.SpanID(ids[16:])}
	if parent.IsValid() {
		c.TraceID = parent.TraceID()
	}
	if t.Tracing() {
		taken := t.sampler.ShouldSample(sdktrace.SamplingParameters{
			ParentContext: trace.ContextWithSpanContext(context.Background(), parent), TraceID: c.TraceID, Name: name, Kind: trace.SpanKindInternal,
		})
		c.TraceFlags = c.TraceFlags.WithSampled(taken.Decision == sdktrace.RecordAndSample)
	}
	return trace.NewSpanContext(c)
}

// Child names a span below a parent, the same one each time: so that who comes back for it, also in another process, need not
// have kept it.
func Child(parent SpanContext, of string) SpanContext {
	id := parent.SpanID()
	sum := sha256.Sum256(append(id[:], of...))
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: parent.TraceID(), SpanID: trace.SpanID(sum[:8]), TraceFlags: parent.TraceFlags()})
}

// Emit queues a span for export, if it is one that is kept. It never waits.
func (t *Telemetry) Emit(s Span) {
	if !t.Tracing() || !s.Context.IsSampled() {
		return
	}
	ctx := context.WithValue(context.Background(), givenKey{}, s.Context)
	kind := trace.SpanKindInternal
	if s.Server {
		kind = trace.SpanKindServer
	}
	opts := []trace.SpanStartOption{trace.WithSpanKind(kind), trace.WithTimestamp(s.Start), trace.WithAttributes(s.Attrs...)}
	if s.Parent.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, s.Parent)
	} else {
		opts = append(opts, trace.WithNewRoot())
	}
	for _, l := range s.Links {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: l.To, Attributes: l.Attrs}))
	}
	_, span := t.tracer.Start(ctx, s.Name, opts...)
	for _, e := range s.Events {
		span.AddEvent(e.Name, trace.WithTimestamp(e.Time), trace.WithAttributes(e.Attrs...))
	}
	if s.Failed {
		span.SetStatus(codes.Error, "") // a description could quote what a tool or a model said
	}
	if s.End.Before(s.Start) {
		s.End = s.Start
	}
	span.End(trace.WithTimestamp(s.End))
}

// given hands the SDK the ids that Begin or Child has made.
type given struct{}

type givenKey struct{}

// NewIDs implements sdktrace.IDGenerator.
func (given) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	c, _ := ctx.Value(givenKey{}).(SpanContext)
	return c.TraceID(), c.SpanID()
}

// NewSpanID implements sdktrace.IDGenerator.
func (given) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	c, _ := ctx.Value(givenKey{}).(SpanContext)
	return c.SpanID()
}

// With returns a context in which what follows belongs to a span.
func With(ctx context.Context, c SpanContext) context.Context {
	return trace.ContextWithSpanContext(ctx, c)
}

// From returns the span that the context belongs to; the zero value, which is not valid, if there is none.
func From(ctx context.Context) SpanContext { return trace.SpanContextFromContext(ctx) }

// TraceID is the trace that the context belongs to, in hex, "" for none.
func TraceID(ctx context.Context) string {
	if c := From(ctx); c.HasTraceID() {
		return c.TraceID().String()
	}
	return ""
}

// Remote reads a W3C traceparent header; the zero value for none or a malformed one. A tracestate is not taken over: it is the
// caller's free text.
func Remote(traceparent string) SpanContext {
	if traceparent == "" {
		return SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	return trace.SpanContextFromContext(ctx)
}

// Stored is a span context as a record keeps it: trace id and span id, and a byte of flags.
func Stored(c SpanContext) []byte {
	if !c.IsValid() {
		return nil
	}
	t, s := c.TraceID(), c.SpanID()
	return append(append(t[:], s[:]...), byte(c.TraceFlags()))
}

// Load is the inverse of Stored; the zero value for anything else.
func Load(b []byte) SpanContext {
	if len(b) != 25 {
		return SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID(b[:16]), SpanID: trace.SpanID(b[16:24]), TraceFlags: trace.TraceFlags(b[24])})
}
