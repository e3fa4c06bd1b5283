package host_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

func TestSweep_ExpiresWhatNobodyAnswered(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("ops", memoryWrite, "")
	r := h.Create(hosttest.Member, "ops")
	h.Clock.Advance(24*time.Hour - time.Millisecond)
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v, _ := h.GetRun(t.Context(), hosttest.Member, r.ID); v.State != store.RunAwaitingApproval {
		t.Fatalf("a millisecond before its time the run is %s", v.State)
	}
	h.Clock.Advance(time.Millisecond)
	// At its time it is over, swept or not.
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); host.CodeOf(err) != host.CodeApprovalExpired {
		t.Fatalf("deciding at expires_at: %v", err)
	}
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	v, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
	if err != nil || v.State != store.RunFailed || v.Error == nil || v.Error.Code != "approval_expired" || v.Error.Message != "approval expired" {
		t.Fatalf("%v: %s %+v", err, v.State, v.Error)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); host.CodeOf(err) != host.CodeApprovalExpired {
		t.Errorf("deciding after the sweep: %v", err)
	}
	if h.Ran.Count("write_file") != 0 {
		t.Error("an expired call ran")
	}
	counts := map[string]int{}
	for _, e := range h.Events(r.ID) {
		counts[e["type"].(string)]++
	}
	if counts["approval.expired"] != 1 || counts["run.finished"] != 1 {
		t.Errorf("events: %v", counts)
	}
	for _, row := range h.AuditRows("demo") {
		if row.Action == "approval.expire" {
			if row.ActorKind != "system" || row.ActorID != nil || row.TargetID != r.Pause.Approvals[0].ID || row.Detail["tool"] != "write_file" {
				t.Errorf("expiry row: %+v", row)
			}
			return
		}
	}
	t.Error("no audit row for the expiry")
}

func TestSweep_ForgetsAnEndedRunAfterItsRetention(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("ops", memoryWrite, "")
	gone := h.Create(hosttest.Member, "ops")
	if _, err := h.DecideAll(hosttest.Admin, gone, "approve"); err != nil {
		t.Fatal(err)
	}
	h.Settled(gone.ID)
	h.Clock.Advance(29 * 24 * time.Hour)
	kept := h.Create(hosttest.Member, "ops")
	h.Clock.Advance(24 * time.Hour)
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.GetRun(t.Context(), hosttest.Owner, gone.ID); host.CodeOf(err) != host.CodeNotFound {
		t.Errorf("the run whose retention is over: %v", err)
	}
	if v, err := h.GetRun(t.Context(), hosttest.Owner, kept.ID); err != nil || !v.State.Ended() {
		t.Errorf("the run that expired a moment ago: %v %s", err, v.State)
	}
	for _, a := range []host.Actor{hosttest.Owner, hosttest.Member} {
		if runs, _, err := h.ListRuns(t.Context(), a, host.RunFilter{}, host.Page{}); err != nil || len(runs) != 1 {
			t.Errorf("%s lists %d runs (%v)", a.ID, len(runs), err)
		}
	}
	// Nothing of it is left but what its tools wrote and what the audit says.
	err := h.Store.View(t.Context(), func(rd store.Reader) error {
		return rd.Scan(store.Range{Prefix: store.K("t", "demo")}, func(it store.Item) bool {
			elems, _ := it.Key.Elems()
			for _, e := range elems {
				if e == gone.ID {
					t.Errorf("left over: %v", elems)
				}
			}
			return true
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// A blob lives as long as a record names it.
func TestClean_KeepsTheBlobsOfLivingRuns(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	if _, err := h.EnsureKey(t.Context(), "demo", host.NewKey{Principal: "x", Roles: []string{"member"}, Kind: "user"}); err != nil {
		t.Fatal(err)
	}
	big := func(c string) string {
		return `[{"calls":[{"tool":"transfer","arguments":{"amount":1,"to":"` + strings.Repeat(c, 100_000) + `"}}]},{"final":1}]`
	}
	h.Script("kept", big("k"), `{"transfer":true}`)
	h.Script("gone", big("g"), `{"transfer":true}`)
	kept, gone := h.Create(hosttest.Member, "kept"), h.Create(hosttest.Member, "gone")
	if _, err := h.Cancel(t.Context(), hosttest.Owner, gone.ID); err != nil {
		t.Fatal(err)
	}
	blob := func(r host.Run) error {
		_, err := h.Store.Blob(t.Context(), "demo", store.Digest(r.Pause.Approvals[0].ArgsDigest))
		return err
	}
	clean := func() {
		t.Helper()
		if err := h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.Clean(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	h.Clock.Advance(2 * time.Hour)
	clean()
	if err := errors.Join(blob(kept), blob(gone)); err != nil {
		t.Fatalf("the arguments of runs that are kept: %v", err)
	}
	h.Clock.Advance(30 * 24 * time.Hour)
	clean() // gone's retention is over; kept has just expired and is kept
	if err := blob(kept); err != nil {
		t.Errorf("the arguments of a run that is kept: %v", err)
	}
	if err := blob(gone); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the arguments of a run that is gone: %v", err)
	}
}

// The queue's log is trimmed by age; a cursor into what is gone is told so, the start is where the log begins now.
func TestClean_TrimsTheQueue(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	if _, err := h.EnsureKey(t.Context(), "demo", host.NewKey{Principal: "x", Roles: []string{"member"}, Kind: "user"}); err != nil {
		t.Fatal(err)
	}
	h.Script("one", `[{"final":1}]`, "")
	h.Create(hosttest.Member, "one")
	_, early, s, err := h.WatchQueue(t.Context(), hosttest.Owner, "")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	old := h.Create(hosttest.Member, "one")
	h.Clock.Advance(31 * 24 * time.Hour)
	young := h.Create(hosttest.Member, "one")
	if err := h.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, s, err = h.WatchQueue(t.Context(), hosttest.Owner, "0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	events, err := s.Next(t.Context())
	if err != nil || len(events) == 0 || events[0].RunID != young.ID || events[0].Type != "run.created" {
		t.Errorf("from the start: %v %v", events, err)
	}
	_, _, gone, err := h.WatchQueue(t.Context(), hosttest.Owner, early)
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if _, err := gone.Next(t.Context()); host.CodeOf(err) != host.CodeCursorExpired {
		t.Errorf("a cursor before %s: %v", old.ID, err)
	}
}
