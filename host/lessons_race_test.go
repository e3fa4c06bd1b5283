package host_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

// The ids in comments (EX6, LA10, …) are those of other systems' public failures: each row of that log that concerns a server like
// this one has a test. lessons_race: what is decided in the same instant as something else.

// rounds is how often a race is run: 10,000 times, a tenth of it with -short.
func rounds() int {
	if testing.Short() {
		return 1000
	}
	return 10_000
}

// EX6. A decision at the instant of the sweep, of one approval, of three in two subagents, and of a pause whose question the subject
// has answered already: one outcome, one terminal event, one audit row an approval.
func TestInvariant9_DecisionRacesTheSweeper(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	leaf := `[{"calls":[{"tool_call_id":"x","tool":"transfer","arguments":{"amount":1}},{"tool_call_id":"y","tool":"transfer","arguments":{"amount":2}}]},{"final":1}]`
	question := `{"tool_call_id":"q","tool":"ask","arguments":{"reason":"await_input","payload":{}}}`
	agents := []struct {
		name, doc string
		transfers int
	}{
		{"flat", scripted(`[{"calls":[`+pay+`]},{"final":1}]`, `,"interrupt_on":{"transfer":true}`), 1},
		{"lead", scripted(`[{"calls":[`+task("a", "one", "x")+`,`+task("b", "two", "x")+`]},{"final":1}]`,
			`,"interrupt_on":{"transfer":true},"subagents":[`+sub("one", leaf, "")+`,`+sub("two", `[{"calls":[`+pay+`]},{"final":1}]`, "")+`]`), 3},
		{"asks", scripted(`[{"calls":[`+question+`,{"tool_call_id":"p","tool":"ask","arguments":{"reason":"approval_required","payload":{}}}]},{"final":1}]`, ""), 0},
	}
	for _, a := range agents {
		h.Agent(a.name, a.doc[:len(a.doc)-1]+`,"approval_ttl":"1s"}`)
	}
	rnd := rand.New(rand.NewPCG(9, 1))
	outcomes := map[string]int{}
	want := map[string]string{} // by approval: the action of its one row
	transfers := 0
	for i := range rounds() {
		agent := agents[i%len(agents)]
		r := h.Settled(h.Create(hosttest.Member, agent.name).ID)
		if !r.State.Paused() {
			t.Fatalf("round %d: the run is %s", i, r.State)
		}
		open := r.Pause.Approvals
		if agent.name == "asks" {
			if _, err := h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: open[0].ID, Kind: "respond", Value: raw("false")}); err != nil {
				t.Fatal(err)
			}
			want[open[0].ID] = "approval.decide"
			open = open[1:]
		}
		kind := "approve"
		if agent.name == "asks" {
			kind = "reject" // what is approved asks again
		}
		var ds []host.Decision
		for _, ap := range open {
			ds = append(ds, host.Decision{ApprovalID: ap.ID, Kind: kind})
		}
		sweep := func() {
			h.Clock.Advance(time.Second)
			if err := h.Sweep(context.Background()); err != nil {
				t.Error(err)
			}
		}
		// The sweep comes before the decision is judged, while it is, or after it.
		when, lead := rnd.IntN(8), rnd.IntN(64)
		under := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if <-under; when > 0 {
				for range lead {
					runtime.Gosched()
				}
				sweep()
			}
		})
		_, err := h.Decide(context.Background(), hosttest.Admin, r.ID, host.Idempotency{}, func() (host.Answer, error) {
			if when == 0 {
				sweep()
			}
			close(under)
			for range rnd.IntN(32) {
				runtime.Gosched()
			}
			return host.Answer{Decisions: ds}, nil
		})
		wg.Wait()
		r = h.Settled(r.ID)
		outcome, action, decided, expired := "decided", "approval.decide", len(open), 0
		if err != nil {
			refusal(t, err, host.CodeApprovalExpired)
			outcome, action, decided, expired = "expired", "approval.expire", 0, len(open)
		} else {
			transfers += agent.transfers
		}
		outcomes[outcome+" "+agent.name]++
		for _, ap := range open {
			want[ap.ID] = action
		}
		if agent.name == "asks" {
			decided++
		}
		counts := map[string]int{}
		for _, e := range h.Events(r.ID) {
			counts[e["type"].(string)]++
		}
		if (err == nil) != (r.State == store.RunSucceeded) || !r.State.Ended() || counts["run.finished"] != 1 || counts["approval.decided"] != decided || counts["approval.expired"] != expired {
			t.Fatalf("round %d of %s: %s (%v), the run is %s, events %v", i, agent.name, outcome, err, r.State, counts)
		}
	}
	t.Log(outcomes)
	if len(outcomes) != 2*len(agents) {
		t.Errorf("a race was none: %v", outcomes)
	}
	if n := h.Ran.Count("transfer"); n != transfers {
		t.Errorf("the tool ran %d times for %d approvals", n, transfers)
	}
	rows := map[string]int{}
	for _, row := range h.AuditRows("demo") {
		if row.Action == "approval.expire" || row.Action == "approval.decide" && row.Outcome == "ok" {
			rows[row.TargetID]++
			if row.Action != want[row.TargetID] {
				t.Errorf("approval %s: %s, want %s", row.TargetID, row.Action, want[row.TargetID])
			}
		}
	}
	for id := range want {
		if rows[id] != 1 {
			t.Errorf("approval %s has %d rows", id, rows[id])
		}
	}
	if len(rows) != len(want) {
		t.Errorf("%d approvals have a row of %d", len(rows), len(want))
	}
}

// LA10. A pause is completed while four who wait for it register, 10,000 in all: two that ask for the run, one that reads its events
// from the start, one that reads them from now. Each is woken.
func TestInvariant4_APauseCompletesWhileItsWaitersRegister(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"final":1}]`, gatedTransfer)
	for i := range rounds() / 4 {
		r := h.Create(hosttest.Member, "pay")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for a hang: nothing here takes long
		hangs := func(who string, err error) {
			t.Helper()
			t.Errorf("round %d: who %s hangs: %v", i, who, err)
		}
		events := func(who string, after *uint64) {
			v, _, s, err := h.WatchRun(ctx, hosttest.Member, r.ID, after)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for last := ""; last != "run.finished" && !(after == nil && v.State.Ended()); {
				evs, err := s.Next(ctx)
				if err != nil {
					hangs(who, err)
					return
				}
				last = evs[len(evs)-1].Type
			}
		}
		judged := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for range i % 16 {
				runtime.Gosched() // now earlier, now later
			}
			_, err := h.Decide(ctx, hosttest.Admin, r.ID, host.Idempotency{}, func() (host.Answer, error) {
				close(judged)
				return host.Answer{Decisions: []host.Decision{{ApprovalID: r.Pause.Approvals[0].ID, Kind: []string{"approve", "reject"}[i%2]}}}, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		wait := func() {
			for <-judged; ; {
				v, err := h.WaitRun(ctx, hosttest.Member, r.ID)
				if err != nil || ctx.Err() != nil {
					hangs(fmt.Sprintf("waits for a run that is %s", v.State), err)
					return
				}
				if v.State.Ended() {
					return
				}
				runtime.Gosched() // it has stopped, as before
			}
		}
		wg.Go(wait)
		wg.Go(wait)
		wg.Go(func() { events("reads from now", nil) })
		wg.Go(func() { events("reads from the start", new(uint64)) })
		wg.Wait()
		cancel()
		if t.Failed() {
			return
		}
	}
}

// Whoever races for a pause (two who decide, the holder of its token, the requester who answers, cancels or says something else, the
// sweeper): it ends once, every approval of it ends once and is told and audited once, and what nobody approved has not run.
func TestInvariant9_WhateverRacesForAPauseItEndsOnce(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	labelled := func(label string) string {
		return fmt.Sprintf(`{"tool_call_id":%q,"tool":"transfer","arguments":{"amount":1,"to":%q}}`, label, label)
	}
	const question = `{"tool_call_id":"q","tool":"ask","arguments":{"reason":"await_input","payload":{}}}`
	h.Agent("flat", scripted(`[{"calls":[`+labelled("a")+`,`+question+`]},{"calls":[`+labelled("b")+`]},{"final":1}]`, `,"interrupt_on":{"transfer":true}`))
	h.Agent("lead", scripted(`[{"calls":[`+task("x", "one", "x")+`,`+task("y", "two", "y")+`]},{"final":1}]`, `,"interrupt_on":{"transfer":true},"subagents":[`+
		sub("one", `[{"calls":[`+labelled("a")+`]},{"final":1}]`, "")+`,`+sub("two", `[{"calls":[`+question+`]},{"calls":[`+labelled("b")+`]},{"final":1}]`, "")+`]`))
	rnd := rand.New(rand.NewPCG(3, 5))
	approved := 0
	ends := map[string]int{}
	for i := range rounds() / 10 {
		r := h.Settled(h.Create(hosttest.Member, []string{"flat", "lead"}[i%2]).ID)
		full, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
		if err != nil || full.Pause == nil {
			t.Fatalf("round %d: the run is %s, %v", i, r.State, err)
		}
		decide := func(a host.Actor, kind string) func() error {
			return func() error { _, err := h.DecideAll(a, full, kind); return err }
		}
		acts := []func() error{
			decide(hosttest.Admin, "reject"), decide(hosttest.Owner, "approve"), decide(hosttest.Admin, "respond"),
			func() error {
				_, err := resume(h, hosttest.Owner, full.Pause.ResumeToken, approveAll(full))
				return err
			},
			func() error { _, err := h.Cancel(t.Context(), hosttest.Member, r.ID); return err },
			func() error { _, err := say(h, hosttest.Member, r.ID, true); return err },
			func() error { _, err := h.RotateToken(t.Context(), hosttest.Admin, r.ID); return err },
			func() error {
				for _, ap := range full.Pause.Approvals {
					if ap.Reason == "await_input" {
						_, err := h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: ap.ID, Kind: "respond", Value: raw("1")})
						return err
					}
				}
				return nil
			},
			func() error {
				h.Clock.Advance(24 * time.Hour)
				return h.Sweep(context.Background())
			},
		}
		var wg sync.WaitGroup
		for _, n := range rnd.Perm(len(acts))[:2+rnd.IntN(4)] {
			wg.Go(func() {
				err := acts[n]()
				switch host.CodeOf(err) {
				case host.CodeForbidden: // what it was for is over, and what is asked next is not theirs
				case "", host.CodeAlreadyDecided, host.CodeWrongState, host.CodeApprovalExpired, host.CodeTokenExpired, host.CodeTokenUsed, host.CodeNotAllowed:
				default:
					t.Errorf("round %d: act %d is answered %v", i, n, err)
				}
			})
		}
		wg.Wait()
		for r = h.Settled(r.ID); !r.State.Ended(); r = h.Settled(r.ID) { // whatever is open still can be answered
			var ds []host.Decision
			for _, ap := range r.Pause.Approvals {
				if ap.State == store.ApprovalPending {
					ds = append(ds, host.Decision{ApprovalID: ap.ID, Kind: "reject"})
				}
			}
			_, err := h.Answer(hosttest.Admin, r.ID, ds...)
			if host.CodeOf(err) == host.CodeApprovalExpired { // it opened while the clock jumped, after the sweep
				err = h.Sweep(t.Context())
			}
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
		ends[string(r.State)]++
		aps, err := h.RunApprovals(t.Context(), hosttest.Admin, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		told, open, finished := map[string]string{}, "", 0
		for _, e := range h.Events(r.ID) {
			switch typ := e["type"].(string); typ {
			case "approval.decided", "approval.expired", "approval.superseded":
				id := e["approval_id"].(string)
				if told[id] != "" {
					t.Errorf("round %d: of %s both %s and %s are told", i, id, told[id], typ)
				}
				told[id] = typ
			case "run.paused":
				if open != "" {
					t.Errorf("round %d: a pause opens while another is open", i)
				}
				open = e["pause_id"].(string)
			case "run.resumed":
				open = ""
			case "run.finished":
				finished++
			}
		}
		for _, ap := range aps {
			want := map[store.ApprovalState]string{store.ApprovalDecided: "approval.decided", store.ApprovalExpired: "approval.expired", store.ApprovalSuperseded: "approval.superseded", store.ApprovalCancelled: ""}
			if w, ok := want[ap.State]; !ok || told[ap.ID] != w {
				t.Errorf("round %d: approval %s is %s, told is %q", i, ap.ID, ap.State, told[ap.ID])
			}
			if ap.Tool == "transfer" && ap.Decision != nil && ap.Decision.Kind == "approve" {
				approved++
			}
		}
		unfinished := func(c host.Call) bool { return c.State != store.CallFinished }
		for deadline := time.Now().Add(20 * time.Second); slices.ContainsFunc(r.Calls, unfinished); { // a cancelled run's tool may still be at work
			if r, err = h.GetRun(t.Context(), hosttest.Member, r.ID); err != nil || time.Now().After(deadline) {
				t.Fatalf("round %d: the run is %s, its calls %s, %v", i, r.State, text(t, r.Calls, nil), err)
			}
		}
		if finished != 1 {
			t.Errorf("round %d: run.finished %d times", i, finished)
		}
		if t.Failed() {
			t.Fatalf("round %d: events %s", i, text(t, h.Events(r.ID), nil))
		}
	}
	t.Log(ends, approved)
	if n := h.Ran.Count("transfer"); n > approved || approved == 0 {
		t.Errorf("the tool ran %d times for %d approvals", n, approved)
	}
	if aps, _, err := h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{}); err != nil || len(aps) != 0 {
		t.Errorf("still listed: %d, %v", len(aps), err)
	}
	rows := map[string]int{}
	for _, row := range h.AuditRows("demo") {
		if row.Action == "approval.expire" || row.Action == "approval.decide" && row.Outcome == "ok" {
			if rows[row.TargetID]++; rows[row.TargetID] > 1 {
				t.Errorf("approval %s has %d rows", row.TargetID, rows[row.TargetID])
			}
		}
	}
}
