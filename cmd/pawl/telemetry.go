package main

import (
	"context"
	"log/slog"

	"github.com/pawlhost/pawl/host/telemetry"
)

// openTelemetry makes the metrics, and sends them and traces to a collector if the settings name one. It connects to nobody yet.
func (a *app) openTelemetry(ctx context.Context, log *slog.Logger) (*telemetry.Telemetry, error) {
	v, _ := buildVersion()
	o := telemetry.Options{Version: v, Log: log}
	if err := telemetry.OTLP(ctx, &o, a.otlp, a.getenv); err != nil {
		return nil, usagef("%w", err)
	}
	if o.Spans != nil || o.Metrics != nil {
		log.Info("telemetry goes to a collector", "traces", o.Spans != nil, "metrics", o.Metrics != nil)
	}
	return telemetry.New(o)
}
