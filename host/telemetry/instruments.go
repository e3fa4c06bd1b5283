package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// instruments are the host's metrics. Their attributes are tools that are installed, kinds of decisions and states of runs:
// few, and no tenant's.
type instruments struct {
	meter     metric.Meter
	waited    metric.Float64Histogram
	decisions metric.Int64Counter
	expired   metric.Int64Counter
	denied    metric.Int64Counter
	pending   metric.Int64ObservableGauge
	byState   metric.Int64ObservableGauge
}

// waits are the bounds of the histogram of human time: from a second to three days.
var waits = []float64{1, 5, 15, 30, 60, 120, 300, 900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600, 72 * 3600}

func newInstruments(m metric.Meter) (*instruments, error) {
	i := &instruments{meter: m}
	var errs [6]error
	i.waited, errs[0] = m.Float64Histogram("pawl.approvals.wait_time", metric.WithUnit("s"),
		metric.WithDescription("From an approval's request to its decision."), metric.WithExplicitBucketBoundaries(waits...))
	i.decisions, errs[1] = m.Int64Counter("pawl.approvals.decisions", metric.WithUnit("{decision}"), metric.WithDescription("Decisions on approvals."))
	i.expired, errs[2] = m.Int64Counter("pawl.approvals.expired", metric.WithUnit("{approval}"), metric.WithDescription("Approvals that nobody decided in time."))
	i.pending, errs[3] = m.Int64ObservableGauge("pawl.approvals.pending", metric.WithUnit("{approval}"), metric.WithDescription("Approvals that wait for a decision."))
	i.byState, errs[4] = m.Int64ObservableGauge("pawl.runs.by_state", metric.WithUnit("{run}"), metric.WithDescription("Runs that have not ended, by state."))
	i.denied, errs[5] = m.Int64Counter("pawl.calls.denied", metric.WithUnit("{call}"), metric.WithDescription("Calls that policy denied, or that nobody was there to be asked about."))
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return i, nil
}

// Decided counts a decision, and how long it was waited for.
func (i *instruments) Decided(tool, kind string, waited time.Duration) {
	t := attribute.String("tool", tool)
	i.decisions.Add(context.Background(), 1, metric.WithAttributes(t, attribute.String("decision", kind)))
	i.waited.Record(context.Background(), max(0, waited.Seconds()), metric.WithAttributes(t))
}

// Denied counts a call that policy denied, or that nobody was there to be asked about.
func (i *instruments) Denied(tool string, n int64) {
	i.denied.Add(context.Background(), n, metric.WithAttributes(attribute.String("tool", tool)))
}

// Expired counts approvals that nobody decided.
func (i *instruments) Expired(tool string, n int64) {
	i.expired.Add(context.Background(), n, metric.WithAttributes(attribute.String("tool", tool)))
}

// Gauges asks f at every collection for the approvals that are pending, by tool, and the runs that have not ended, by state; not
// ok means that they are not known yet, and nothing is reported. Call it once.
func (i *instruments) Gauges(f func() (pending, byState map[string]int64, ok bool)) error {
	_, err := i.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		pending, byState, ok := f()
		if !ok {
			return nil
		}
		for tool, n := range pending {
			o.ObserveInt64(i.pending, n, metric.WithAttributes(attribute.String("tool", tool)))
		}
		for state, n := range byState {
			o.ObserveInt64(i.byState, n, metric.WithAttributes(attribute.String("state", state)))
		}
		return nil
	}, i.pending, i.byState)
	return err
}
