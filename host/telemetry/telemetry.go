// Package telemetry is the one place that knows OpenTelemetry: spans and metrics in the host's own words, rendered for
// Prometheus and, where the operator configured it, sent by OTLP.
//
// Spans are written when they are over, in one go, from what the host has recorded (see [Span]). So nothing is ever left open, not
// while a run waits for people and not by a crash, and a span may be ended by another process than the one that began it.
//
// Nothing here slows a request: spans and metrics go through bounded queues in memory, and are dropped when those are full.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the name of the instrumentation, on every span and metric.
const Scope = "github.com/pawlhost/pawl"

// Options configure a Telemetry. The zero value has metrics for Prometheus, and no spans.
type Options struct {
	// Spans receives the spans; nil: none are made.
	Spans sdktrace.SpanExporter
	// Sampler says which traces are kept. Nil: those whose parent is kept, and all without a parent.
	Sampler sdktrace.Sampler
	// Metrics receives the metrics from time to time; nil: they are only to be scraped.
	Metrics sdkmetric.Exporter
	// Version is the program's.
	Version string
	// Log is told, once, when an exporter begins to fail, and when it works again. Nil: nobody is.
	Log *slog.Logger
}

// Telemetry makes spans and counts. Its methods are safe for concurrent use. A nil one names spans, and drops them.
type Telemetry struct {
	spans    *sdktrace.TracerProvider // nil: off
	tracer   trace.Tracer
	sampler  sdktrace.Sampler
	meters   *sdkmetric.MeterProvider
	registry *prometheus.Registry
	*instruments
}

// New makes a Telemetry. Call Shutdown when nothing is told to it any more.
func New(o Options) (*Telemetry, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	res, err := describe(o.Version)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{registry: prometheus.NewRegistry(), sampler: o.Sampler}
	scraped, err := otelprom.New(otelprom.WithRegisterer(t.registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	metrics := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(scraped)}
	if o.Metrics != nil {
		metrics = append(metrics, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(&metricsOnce{Exporter: o.Metrics, once: once{what: "metrics", log: o.Log}})))
	}
	t.meters = sdkmetric.NewMeterProvider(metrics...)
	if t.instruments, err = newInstruments(t.meters.Meter(Scope)); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	if o.Spans == nil {
		return t, nil
	}
	if t.sampler == nil {
		t.sampler = sdktrace.ParentBased(sdktrace.AlwaysSample())
	}
	t.spans = sdktrace.NewTracerProvider(
		sdktrace.WithResource(res), sdktrace.WithIDGenerator(given{}),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // Emit is only asked for what the sampler has taken
		sdktrace.WithBatcher(&spansOnce{SpanExporter: o.Spans, once: once{what: "spans", log: o.Log}}),
	)
	t.tracer = t.spans.Tracer(Scope)
	return t, nil
}

// describe is what every span and metric says of its origin: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
func describe(version string) (*resource.Resource, error) {
	res, err := resource.New(context.Background(),
		resource.WithTelemetrySDK(),
		resource.WithAttributes(String("service.name", "pawl"), String("service.version", version)),
		resource.WithFromEnv(),
	)
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("telemetry: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return res, nil
}

// Tracing reports whether spans are made at all.
func (t *Telemetry) Tracing() bool { return t != nil && t.spans != nil }

// Gatherer has the metrics for a scrape.
func (t *Telemetry) Gatherer() prometheus.Gatherer { return t.registry }

// Flush sends what is queued. It returns early when ctx is done.
func (t *Telemetry) Flush(ctx context.Context) error {
	err := t.meters.ForceFlush(ctx)
	if t.spans != nil {
		err = errors.Join(err, t.spans.ForceFlush(ctx))
	}
	return err
}

// Shutdown sends what is queued and ends the goroutines. What is not sent when ctx is done is dropped.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	metrics := make(chan error, 1)
	go func() { metrics <- t.meters.Shutdown(ctx) }() // beside the spans: neither has the other's time
	var err error
	if t.spans != nil {
		err = t.spans.Shutdown(ctx)
	}
	return errors.Join(err, <-metrics)
}
