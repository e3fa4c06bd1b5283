package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// OTLP fills Options with exporters to a collector over OTLP/HTTP, as the variables of the OpenTelemetry specification say
// (OTEL_EXPORTER_OTLP_ENDPOINT, …_TRACES_ENDPOINT, …_METRICS_ENDPOINT, OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER,
// OTEL_TRACES_SAMPLER, OTEL_SDK_DISABLED). An endpoint that is given here stands for the first of these. Without any endpoint it
// changes nothing. It connects to nobody: a collector that is not there is noticed, and told, when there is something to send.
//
// Headers, timeouts, certificates, compression and the sizes of queues are read from the process's environment by the exporters
// themselves.
func OTLP(ctx context.Context, o *Options, endpoint string, getenv func(string) string) error {
	if on, _ := strconv.ParseBool(getenv("OTEL_SDK_DISABLED")); on {
		return nil
	}
	if endpoint == "" {
		endpoint = getenv("OTEL_EXPORTER_OTLP_ENDPOINT")
	}
	traces, err := signal(endpoint, "traces", getenv)
	if err != nil {
		return err
	}
	metrics, err := signal(endpoint, "metrics", getenv)
	if err != nil {
		return err
	}
	if traces != "" {
		if o.Sampler, err = sampler(getenv("OTEL_TRACES_SAMPLER"), getenv("OTEL_TRACES_SAMPLER_ARG")); err != nil {
			return err
		}
		if o.Spans, err = otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(traces)); err != nil {
			return fmt.Errorf("OTLP traces: %w", err)
		}
	}
	if metrics != "" {
		if o.Metrics, err = otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(metrics)); err != nil {
			return fmt.Errorf("OTLP metrics: %w", err)
		}
	}
	return nil
}

// signal is the URL that traces or metrics are sent to, "" for none.
func signal(base, name string, getenv func(string) string) (string, error) {
	upper := strings.ToUpper(name)
	switch exporter := getenv("OTEL_" + upper + "_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return "", nil
	default:
		return "", fmt.Errorf("OTEL_%s_EXPORTER is %q: say otlp or none", upper, exporter)
	}
	url := getenv("OTEL_EXPORTER_OTLP_" + upper + "_ENDPOINT")
	if url == "" && base != "" {
		url = strings.TrimSuffix(base, "/") + "/v1/" + name
	}
	if url == "" {
		return "", nil
	}
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return "", fmt.Errorf("the OTLP endpoint for %s must begin with http:// or https://, such as http://127.0.0.1:4318", name)
	}
	for _, v := range []string{"OTEL_EXPORTER_OTLP_" + upper + "_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p := getenv(v); p != "" {
			if p != "http/protobuf" {
				return "", fmt.Errorf("%s is %q: pawl speaks http/protobuf (a collector's port for it is 4318)", v, p)
			}
			break
		}
	}
	return url, nil
}

// sampler reads OTEL_TRACES_SAMPLER.
func sampler(name, arg string) (sdktrace.Sampler, error) {
	ratio := func() (sdktrace.Sampler, error) {
		if arg == "" {
			return sdktrace.AlwaysSample(), nil
		}
		f, err := strconv.ParseFloat(arg, 64)
		if err != nil || f < 0 || f > 1 {
			return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q: say a share between 0 and 1", arg)
		}
		return sdktrace.TraceIDRatioBased(f), nil
	}
	root, parent := strings.CutPrefix(name, "parentbased_")
	var s sdktrace.Sampler
	var err error
	switch root {
	case "":
		s, parent = sdktrace.AlwaysSample(), true
	case "always_on":
		s = sdktrace.AlwaysSample()
	case "always_off":
		s = sdktrace.NeverSample()
	case "traceidratio":
		s, err = ratio()
	default:
		err = fmt.Errorf("OTEL_TRACES_SAMPLER is %q: say always_on, always_off or traceidratio, also with parentbased_ before it", name)
	}
	if err != nil {
		return nil, err
	}
	if parent {
		s = sdktrace.ParentBased(s)
	}
	return s, nil
}

// once tells the log when an exporter begins to fail and when it works again, and not of every attempt between.
type once struct {
	what   string
	log    *slog.Logger
	failed atomic.Bool
}

func (o *once) tell(err error) {
	switch {
	case err != nil && !o.failed.Swap(true):
		o.log.Warn("the OTLP collector takes no "+o.what+"; they are dropped until it does", "error", err)
	case err == nil && o.failed.Swap(false):
		o.log.Info("the OTLP collector takes " + o.what + " again")
	}
}

type spansOnce struct {
	sdktrace.SpanExporter
	once
}

// ExportSpans implements sdktrace.SpanExporter. Its errors end here.
func (e *spansOnce) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.tell(e.SpanExporter.ExportSpans(ctx, spans))
	return nil
}

type metricsOnce struct {
	sdkmetric.Exporter
	once
}

// Export implements sdkmetric.Exporter. Its errors end here.
func (e *metricsOnce) Export(ctx context.Context, rm *metricdata.ResourceMetrics) error {
	e.tell(e.Exporter.Export(ctx, rm))
	return nil
}
