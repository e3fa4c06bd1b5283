package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// scrape reads the metrics of a host as "name{label=value,…}" → value, once its gauges are there.
func scrape(t *testing.T, h *hosttest.Host) map[string]float64 {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		families, err := h.Telemetry().Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				var labels []string
				for _, l := range m.Label {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
				name := f.GetName() + "{" + strings.Join(labels, ",") + "}"
				switch {
				case m.Gauge != nil:
					all[name] = m.Gauge.GetValue()
				case m.Counter != nil:
					all[name] = m.Counter.GetValue()
				case m.Histogram != nil:
					all[name+"_sum"], all[name+"_count"] = m.Histogram.GetSampleSum(), float64(m.Histogram.GetSampleCount())
				}
			}
		}
		if _, ok := all["pawl_runs_by_state{state=queued}"]; ok {
			return all
		}
		if time.Now().After(deadline) {
			t.Fatalf("the gauges did not come: %v", all)
		}
	}
}

func wantMetrics(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
	}
	if t.Failed() {
		t.Logf("all: %v", got)
	}
}

const writeAndCharge = `[{"calls":[{"tool_call_id":"c1","tool":"write_file","arguments":{"path":"/memories/a","content":"x"}},{"tool_call_id":"c2","tool":"charge","arguments":{}}]},{"final":1}]`

func TestMetricsFollowApprovalsAndSurviveARestart(t *testing.T) {
	t.Parallel()
	clock, s := hosttest.NewClock(), memstore.New()
	t.Cleanup(func() { s.Close() })
	tools := map[string]hosttest.Func{"charge": func(ctx context.Context, s *plugins.Session) error {
		_, err := hosttest.Op(ctx, s, "output", json.RawMessage(s.Arguments()))
		return err
	}}
	h := hosttest.New(t, hosttest.Options{Store: s, Clock: clock, Tools: tools})
	h.Script("two", writeAndCharge, `{"charge":true}`)
	h.Script("asks", `[{"calls":[{"tool":"ask","arguments":{"reason":"await_input","payload":{"question":"?"}}}]},{"final":1}]`, "")
	h.Agent("ext", `{"planner":{"kind":"external"},"tools":["echo"]}`)
	decided, expires := h.Settled(h.Create(hosttest.Member, "two").ID), h.Settled(h.Create(hosttest.Member, "two").ID)
	h.Settled(h.Create(hosttest.Member, "asks").ID)
	h.Create(hosttest.Member, "ext")
	wantMetrics(t, scrape(t, h), map[string]float64{
		"pawl_approvals_pending{tool=write_file}": 2, "pawl_approvals_pending{tool=charge}": 2, "pawl_approvals_pending{tool=ask}": 1,
		"pawl_runs_by_state{state=awaiting_approval}": 2, "pawl_runs_by_state{state=awaiting_input}": 1,
		"pawl_runs_by_state{state=awaiting_planner}": 1, "pawl_runs_by_state{state=queued}": 0, "pawl_runs_by_state{state=running}": 0,
		"pawl_approvals_expired_total{tool=charge}": 0,
	})
	clock.Advance(90 * time.Second)
	if _, err := h.DecideAll(hosttest.Owner, decided, "approve"); err != nil {
		t.Fatal(err)
	}
	h.Settled(decided.ID)
	want := map[string]float64{
		"pawl_approvals_pending{tool=write_file}": 1, "pawl_approvals_pending{tool=charge}": 1, "pawl_approvals_pending{tool=ask}": 1,
		"pawl_runs_by_state{state=awaiting_approval}": 1, "pawl_runs_by_state{state=awaiting_input}": 1,
		"pawl_runs_by_state{state=awaiting_planner}": 1, "pawl_runs_by_state{state=queued}": 0, "pawl_runs_by_state{state=running}": 0,
	}
	got := scrape(t, h)
	wantMetrics(t, got, want)
	wantMetrics(t, got, map[string]float64{
		"pawl_approvals_decisions_total{decision=approve,tool=charge}": 1, "pawl_approvals_decisions_total{decision=approve,tool=write_file}": 1,
		"pawl_approvals_wait_time_seconds{tool=charge}_sum": 90, "pawl_approvals_wait_time_seconds{tool=charge}_count": 1,
	})
	h.Stop()

	h = hosttest.New(t, hosttest.Options{Store: s, Clock: clock, Tools: tools})
	wantMetrics(t, scrape(t, h), want)
	clock.Advance(25 * time.Hour)
	if err := h.Sweep(context.Background()); err != nil {
		t.Fatal(err)
	}
	if r := h.Settled(expires.ID); r.State != "failed" {
		t.Fatalf("the run is %s", r.State)
	}
	wantMetrics(t, scrape(t, h), map[string]float64{
		"pawl_approvals_pending{tool=write_file}": 0, "pawl_approvals_pending{tool=ask}": 0, "pawl_runs_by_state{state=awaiting_approval}": 0,
		"pawl_runs_by_state{state=awaiting_input}": 0, "pawl_runs_by_state{state=awaiting_planner}": 1,
		"pawl_approvals_expired_total{tool=charge}": 1, "pawl_approvals_expired_total{tool=ask}": 1,
	})
	h.Stop()

	// A host without one of the tools has no label for it.
	h = hosttest.New(t, hosttest.Options{Store: s, Clock: clock})
	for name := range scrape(t, h) {
		if strings.Contains(name, "charge") {
			t.Errorf("%s names a tool that is not installed", name)
		}
	}
}

// The first count happens while runs are made and decided; each is counted once.
func TestCountingWhileRunsMove(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Idle: true})
	h.Script("ops", `[{"calls":[{"tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}]},{"final":1}]`, "")
	var early []string
	for range 50 {
		early = append(early, h.Create(hosttest.Member, "ops").ID)
	}
	const more, decided = 200, 30
	var wg sync.WaitGroup
	wg.Go(func() {
		for range more {
			h.Create(hosttest.Member, "ops")
		}
	})
	wg.Go(func() {
		for _, id := range early[:decided] {
			r, err := h.GetRun(context.Background(), hosttest.Owner, id)
			if err == nil {
				_, err = h.DecideAll(hosttest.Owner, r, "reject")
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	h.Start()
	wg.Wait()
	for _, id := range early[:decided] {
		h.Settled(id)
	}
	want := float64(len(early) + more - decided)
	wantMetrics(t, scrape(t, h), map[string]float64{
		"pawl_approvals_pending{tool=write_file}": want, "pawl_runs_by_state{state=awaiting_approval}": want,
		"pawl_runs_by_state{state=queued}": 0, "pawl_runs_by_state{state=running}": 0,
		"pawl_approvals_decisions_total{decision=reject,tool=write_file}": decided,
	})
}

func TestTheLogReadsAsTheNarrative(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("ops", `[{"calls":[{"tool_call_id":"c1","tool":"write_file","arguments":{"path":"/memories/a","content":"canary-argument"}}]},{"final":"canary-output"}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "ops").ID)
	if _, err := h.DecideAll(hosttest.Owner, r, "approve"); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	last := h.Settled(h.Create(hosttest.Member, "ops").ID)
	h.Clock.Advance(48 * time.Hour)
	if err := h.Sweep(context.Background()); err != nil {
		t.Fatal(err)
	}
	a := r.Pause.Approvals[0]
	call := fmt.Sprintf("approval_id=%s tool=write_file call_id=%s", a.ID, a.CallID)
	log := h.Log.String()
	rest := log
	for _, line := range []string{
		`msg="run created" tenant=demo run_id=` + r.ID,
		`msg="approval requested" tenant=demo run_id=` + r.ID + ` ` + call + ` reason=approval_required`,
		`msg="run paused" tenant=demo run_id=` + r.ID + ` state=awaiting_approval`,
		`msg="approval decided" tenant=demo run_id=` + r.ID + ` ` + call + ` decision=approve by=owner`,
		`msg="run resumed" tenant=demo run_id=` + r.ID,
		`msg="run ended" tenant=demo run_id=` + r.ID + ` state=succeeded`,
		`msg="approval expired" tenant=demo run_id=` + last.ID,
		`msg="run ended" tenant=demo run_id=` + last.ID + ` state=failed error=approval_expired`,
	} {
		_, after, ok := strings.Cut(rest, line)
		if !ok {
			t.Fatalf("no line %s, or not at its place:\n%s", line, log)
		}
		rest = after
	}
	if strings.Contains(log, "canary") || strings.Contains(log, r.Pause.ResumeToken) {
		t.Errorf("the log tells too much:\n%s", log)
	}
}

// What a start counts is what was followed before it: after a part of a pause was decided, and from entries of an older version, which
// do not say what waits.
func TestCountingAfterARestart(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	t.Cleanup(func() { s.Close() })
	h := hosttest.New(t, hosttest.Options{Store: s})
	h.Script("both", `[{"calls":[{"tool_call_id":"mine","tool":"ask","arguments":{"reason":"await_input","payload":{"question":"?"}}},
		{"tool_call_id":"theirs","tool":"gated_write","arguments":{}}]},{"final":1}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "both").ID)
	if len(r.Pause.Approvals) != 2 || r.State != store.RunAwaitingApproval {
		t.Fatalf("the run is %s with %d approvals", r.State, len(r.Pause.Approvals))
	}
	check := func(h *hosttest.Host, approval, input, ask, gated float64) {
		t.Helper()
		wantMetrics(t, scrape(t, h), map[string]float64{
			"pawl_runs_by_state{state=awaiting_approval}": approval, "pawl_runs_by_state{state=awaiting_input}": input,
			"pawl_approvals_pending{tool=ask}": ask, "pawl_approvals_pending{tool=gated_write}": gated,
		})
	}
	check(h, 1, 0, 1, 1)
	i := slices.IndexFunc(r.Pause.Approvals, func(a host.Approval) bool { return a.Tool == "ask" })
	answer := host.Decision{ApprovalID: r.Pause.Approvals[i].ID, Kind: "respond", Value: json.RawMessage(`"yes"`)}
	if _, err := h.Decide(t.Context(), hosttest.Member, r.ID, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: []host.Decision{answer}})); err != nil {
		t.Fatal(err)
	}
	check(h, 1, 0, 0, 1)
	h.Stop()
	h = hosttest.New(t, hosttest.Options{Store: s})
	check(h, 1, 0, 0, 1)
	h.Stop()

	var old store.Change
	if err := s.View(t.Context(), func(rd store.Reader) error {
		return rd.Scan(store.Range{Prefix: store.K("due")}, func(it store.Item) bool {
			if elems, err := it.Key.Elems(); err == nil && elems[2] == "pause" {
				old.Put(it.Key, nil)
			}
			return true
		})
	}); err != nil || len(old.Puts) != 1 {
		t.Fatal(len(old.Puts), err)
	}
	if _, err := s.Commit(t.Context(), &old); err != nil {
		t.Fatal(err)
	}
	h = hosttest.New(t, hosttest.Options{Store: s})
	check(h, 1, 0, 0, 1)
	if _, err := h.Cancel(t.Context(), hosttest.Owner, r.ID); err != nil {
		t.Fatal(err)
	}
	check(h, 0, 0, 0, 0)
}
