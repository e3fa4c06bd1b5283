package host_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

// Public failure LA4.
func TestIdempotency_ARepeatedDecisionIsAnsweredAndNotRepeated(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":10}}]},{"final":true}]`, `{"transfer":true}`)
	r := h.Create(hosttest.Member, "pay")
	idem := host.Idempotency{Key: "k1", Method: "POST", Path: "/v1/runs/" + r.ID + "/approvals", Body: "digest of the body"}
	send := func(a host.Actor, i host.Idempotency, ds ...host.Decision) (host.Run, error) {
		return h.Decide(t.Context(), a, r.ID, i, hosttest.Body(host.Answer{Decisions: ds}))
	}
	approve := host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "approve"}

	_, err := send(hosttest.Admin, host.Idempotency{Key: "k1", Method: "POST", Path: idem.Path, Body: "an incomplete body"})
	refusal(t, err, host.CodeInvalid)
	// Only a 2xx is kept: the same key with the corrected body goes through, and twenty at once are one decision.
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() { _, errs[i] = send(hosttest.Admin, idem, approve) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("a repeat with its Idempotency-Key: %v", err)
		}
	}
	h.Settled(r.ID)
	h.Clock.Advance(23*time.Hour + 59*time.Minute)
	again, err := send(hosttest.Admin, idem, approve)
	if err != nil || again.State != store.RunSucceeded || again.ID != r.ID {
		t.Fatalf("a repeat shows %s, %v; want the run rendered afresh", again.State, err)
	}
	changed := idem
	changed.Body = "another body"
	_, err = send(hosttest.Admin, changed, approve)
	refusal(t, err, host.CodeIdempotency)
	_, err = send(hosttest.Owner, idem, approve) // keys are per principal
	refusal(t, err, host.CodeAlreadyDecided)
	elsewhere := idem
	elsewhere.Path = "/v1/resume" // and per path
	_, err = send(hosttest.Admin, elsewhere, approve)
	refusal(t, err, host.CodeAlreadyDecided)
	h.Clock.Advance(time.Minute)
	_, err = send(hosttest.Admin, idem, approve) // 24 h are over
	refusal(t, err, host.CodeAlreadyDecided)
	if n := h.Ran.Count("transfer"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestIdempotency_OneRunForRacingTwins(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":10}}]},{"final":true}]`, `{"transfer":true}`)
	idem := host.Idempotency{Key: "create", Method: "POST", Path: "/v1/runs", Body: "b"}
	create := func(i host.Idempotency) (host.Run, error) {
		return h.CreateRun(t.Context(), hosttest.Member, i, hosttest.Body(host.NewRun{Agent: "pay"}))
	}
	var wg sync.WaitGroup
	ids := make([]string, 20)
	for i := range ids {
		wg.Go(func() {
			r, err := create(idem)
			if err != nil {
				t.Error(err)
			}
			ids[i] = r.ID
		})
	}
	wg.Wait()
	if len(slices.Compact(ids)) != 1 {
		t.Fatalf("one key made the runs %v", slices.Compact(ids))
	}
	runs, _, err := h.ListRuns(t.Context(), hosttest.Member, host.RunFilter{}, host.Page{})
	if err != nil || len(runs) != 1 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	again, err := create(idem)
	if err != nil || again.Pause == nil || again.Pause.ResumeToken == "" {
		t.Errorf("a repeated create lost the token of its pause: %+v, %v", again.Pause, err)
	}
	h.Clock.Advance(24 * time.Hour)
	if fresh, err := create(idem); err != nil || fresh.ID == ids[0] {
		t.Errorf("after 24 h the key still names run %s, %v", fresh.ID, err)
	}
}

func TestIdempotency_ARepeatIsAnsweredAlsoWhenTheToolHasChangedSince(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	idem := host.Idempotency{Key: "edit", Method: "POST", Path: "/v1/runs/" + r.ID + "/approvals", Body: "b"}
	edit := host.Answer{Decisions: []host.Decision{{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":3}`)}}}
	if _, err := h.Decide(t.Context(), hosttest.Admin, r.ID, idem, hosttest.Body(edit)); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	h = restart(t, h, hosttest.Options{Describe: " (second edition)"})
	v, err := h.Decide(t.Context(), hosttest.Admin, r.ID, idem, hosttest.Body(edit))
	if err != nil || v.State != store.RunAwaitingPlanner {
		t.Errorf("a client that lost the answer and repeats its request is told %v", err)
	}
}
