package api

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/pawlhost/pawl/host"
)

// metrics counts requests and shows the host's own numbers. Labels are routes and never paths, so that their number is
// fixed and no id gets in.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	streams  atomic.Int64
	slow     prometheus.Counter
	handler  http.Handler
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pawl_http_requests_total", Help: "Requests by route, method and status."}, []string{"route", "method", "status"}),
		seconds:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pawl_http_request_seconds", Help: "Time to answer, waits included.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}, []string{"route"}),
	}
	m.slow = prometheus.NewCounter(prometheus.CounterOpts{Name: "pawl_slow_sockets_total", Help: "WebSockets closed because their client did not read."})
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.requests, m.seconds, m.slow, hostStats{s.host},
		gauge("pawl_websockets", "Open WebSockets.", func() float64 { return float64(s.sockets.count()) }),
		gauge("pawl_event_streams", "Open server-sent event streams.", func() float64 { return float64(m.streams.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pawl_info", Help: "1, with the version.", ConstLabels: prometheus.Labels{"version": s.opts.Version}}, func() float64 { return 1 }),
	)
	m.handler = promhttp.HandlerFor(prometheus.Gatherers{reg, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return s.host.Telemetry().Gatherer().Gather() })}, promhttp.HandlerOpts{DisableCompression: true})
	return m
}

func gauge(name, help string, f func() float64) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
}

func (m *metrics) request(route, method string, status int, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		method = "other" // a client invents methods
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}

// stream counts an event stream until the returned function is called.
func (m *metrics) stream() (end func()) {
	m.streams.Add(1)
	return func() { m.streams.Add(-1) }
}

func serveMetrics(s *Server, w http.ResponseWriter, r *request) error {
	if !s.opts.MetricsOpen {
		if err := s.host.May(r.Context(), r.actor, "metrics.read"); err != nil {
			return err
		}
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	s.metrics.handler.ServeHTTP(w, r.Request)
	return nil
}

// hostStats shows the host's numbers as they are when they are asked for.
type hostStats struct{ host *host.Host }

var (
	waitingDesc   = prometheus.NewDesc("pawl_runs_waiting", "Runs that wait for a worker.", nil, nil)
	drivenDesc    = prometheus.NewDesc("pawl_runs_driven", "Runs that a worker drives now.", nil, nil)
	commitsDesc   = prometheus.NewDesc("pawl_commits_total", "Committed steps of runs.", nil, nil)
	runsDesc      = prometheus.NewDesc("pawl_run_transitions_total", "Runs that were created, paused, decided, finished.", []string{"to"}, nil)
	spaceDesc     = prometheus.NewDesc("pawl_store_free_bytes", "Free bytes of the store's medium.", nil, nil)
	readyDesc     = prometheus.NewDesc("pawl_ready", "1 while new runs are accepted.", nil, nil)
	refusedDesc   = prometheus.NewDesc("pawl_refusals_total", "Refused acts; of repeated ones the audit log has one row a minute, this counts all.", nil, nil)
	reloadsDesc   = prometheus.NewDesc("pawl_policy_reloads_total", "Reloads of the rules folder; of a refused one the old rules stay in force.", []string{"outcome"}, nil)
	loadedDesc    = prometheus.NewDesc("pawl_policy_loaded_seconds", "When the rules in force were loaded, in seconds since 1970.", nil, nil)
	brokenDesc    = prometheus.NewDesc("pawl_policy_refused", "1 while the rules folder has contents that are not in force.", nil, nil)
	abandonedDesc = prometheus.NewDesc("pawl_policy_abandoned_total", "Policy evaluations that ran out of time.", nil, nil)
)

// Describe implements prometheus.Collector.
func (hostStats) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{waitingDesc, drivenDesc, commitsDesc, runsDesc, spaceDesc, readyDesc, refusedDesc, abandonedDesc, reloadsDesc, loadedDesc, brokenDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c hostStats) Collect(ch chan<- prometheus.Metric) {
	v := c.host.Stats()
	gauge := func(d *prometheus.Desc, n float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n)
	}
	total := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge(waitingDesc, float64(v.Waiting))
	gauge(drivenDesc, float64(v.Driven))
	ready := 0.0
	if v.Ready {
		ready = 1
	}
	gauge(readyDesc, ready)
	if v.SpaceKnown {
		gauge(spaceDesc, float64(v.SpaceFree))
	}
	total(commitsDesc, v.Commits)
	total(runsDesc, v.Created, "created")
	total(runsDesc, v.Paused, "paused")
	total(runsDesc, v.Decided, "decided")
	total(runsDesc, v.Finished, "finished")
	total(refusedDesc, v.Refused)
	total(abandonedDesc, v.PolicyAbandoned)
	total(reloadsDesc, v.RulesTaken, "ok")
	total(reloadsDesc, v.RulesRefused, "error")
	gauge(loadedDesc, float64(v.RulesLoaded.Unix()))
	broken := 0.0
	if v.RulesBroken {
		broken = 1
	}
	gauge(brokenDesc, broken)
}
