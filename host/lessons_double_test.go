package host_test

import (
	"bytes"
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
	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// lessons_double: decisions that are used twice, lost, stale, or taken for another one's. (The ids: see lessons_race_test.go.)

// held is a tool that tells when it has begun and returns when it is let go.
func held(begun chan<- struct{}, leave <-chan struct{}) hosttest.Func {
	return func(ctx context.Context, s *plugins.Session) error {
		begun <- struct{}{}
		select {
		case <-leave:
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := hosttest.Op(ctx, s, "output", true)
		return err
	}
}

// DX10. A used decision is refused, one after the other and together, also while the tool that it let go still runs.
func TestInvariant9_AUsedDecisionIsRefusedWhileItsToolRuns(t *testing.T) {
	t.Parallel()
	begun, leave := make(chan struct{}, 2), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"slow": held(begun, leave)}})
	h.Script("work", `[{"calls":[{"tool":"slow","arguments":{}}]},{"final":1}]`, `{"slow":true}`)
	r := h.Create(hosttest.Member, "work")
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	<-begun
	again := func() {
		_, err := h.DecideAll(hosttest.Owner, r, "approve")
		if host.CodeOf(err) != host.CodeAlreadyDecided {
			t.Errorf("the decision again: %v", err)
		}
		_, err = resume(h, hosttest.Admin, r.Pause.ResumeToken, approveAll(r))
		if host.CodeOf(err) != host.CodeTokenUsed {
			t.Errorf("the token again: %v", err)
		}
	}
	again()
	again()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(again)
	}
	wg.Wait()
	close(leave)
	if end := h.Settled(r.ID); end.State != store.RunSucceeded || h.Ran.Count("slow") != 1 {
		t.Errorf("the run is %s, the tool ran %d times", end.State, h.Ran.Count("slow"))
	}
	again()
}

// DX14. Three levels of approval of one run, each decided on a host that was started for it and carried out by the next one: one
// pause and one approval a level.
func TestInvariant12_OnePauseALevelWhoeverLooks(t *testing.T) {
	t.Parallel()
	o := hosttest.Options{Rules: rules(`pause contains {"rule": "big"} if { input.call.tool == "transfer"; input.call.arguments.amount > 1000 }`), Idle: true}
	drives := o
	drives.Idle = false
	h := hosttest.New(t, o)
	h.Script("levels", `[{"calls":[{"tool":"transfer","arguments":{"amount":10}}]},{"calls":[{"tool":"ask","arguments":{"reason":"await_input","payload":{}}}]},{"final":1}]`, gatedTransfer)
	r := h.Create(hosttest.Member, "levels")
	var levels []string
	ran := 0
	for _, d := range []host.Decision{{Kind: "edit", Arguments: raw(`{"amount":5000}`)}, {Kind: "approve"}, {Kind: "respond", Value: raw("1")}} {
		if r.Pause == nil || len(r.Pause.Approvals) != 1 {
			t.Fatalf("level %d: the run is %s with %+v", len(levels)+1, r.State, r.Pause)
		}
		d.ApprovalID = r.Pause.Approvals[0].ID
		levels = append(levels, r.Pause.ID)
		h = restart(t, h, o)
		if _, err := h.Answer(hosttest.Admin, r.ID, d); err != nil {
			t.Fatal(err)
		}
		h = restart(t, h, drives)
		r = h.Settled(r.ID)
		ran += h.Ran.Count("transfer")
	}
	var paused []string
	for _, e := range h.Events(r.ID) {
		if e["type"] == "run.paused" {
			paused = append(paused, e["pause_id"].(string))
		}
	}
	aps, err := h.RunApprovals(t.Context(), hosttest.Admin, r.ID)
	if err != nil || r.State != store.RunSucceeded || ran != 1 || !slices.Equal(paused, levels) || len(aps) != 3 {
		t.Errorf("the run is %s, the tool ran %d times, pauses %v of %v, %d approvals, %v", r.State, ran, paused, levels, len(aps), err)
	}
}

// DX16. What was due for a pause comes after its decision: no warning, no expiry and no failure is told of a run that has gone on, nor
// of its next pause before that one's own time.
func TestInvariant9_NothingStaleIsToldOfARunThatWentOn(t *testing.T) {
	t.Parallel()
	begun, leave := make(chan struct{}, 1), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"slow": held(begun, leave)}})
	h.Agent("work", `{"planner":{"kind":"script","turns":[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"calls":[{"tool":"slow","arguments":{}}]},{"final":1}]},
		"tools":["slow","transfer"],"interrupt_on":{"slow":true,"transfer":true},"approval_ttl":"1h"}`)
	sweep := func(d time.Duration) {
		t.Helper()
		h.Clock.Advance(d)
		if err := h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r := h.Create(hosttest.Member, "work")
	sweep(30 * time.Minute)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); r.State != store.RunAwaitingApproval {
		t.Fatalf("the run is %s", r.State)
	}
	sweep(31 * time.Minute) // the first pause's end, had it been left open
	if v, err := h.GetRun(t.Context(), hosttest.Member, r.ID); err != nil || v.State != store.RunAwaitingApproval || v.Pause.ID != r.Pause.ID {
		t.Fatalf("the second pause: the run is %s, %v", v.State, err)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	<-begun
	sweep(2 * time.Hour) // the second's, while what it let go runs
	close(leave)
	if r = h.Settled(r.ID); r.State != store.RunSucceeded {
		t.Errorf("the run is %s: %+v", r.State, r.Error)
	}
	sweep(48 * time.Hour)
	seq := float64(0)
	for _, e := range h.Events(r.ID) {
		if e["type"] == "approval.expired" || e["type"] == "approval.expiring" || e["state"] == "failed" {
			t.Errorf("a stale event: %v", e)
		}
		if seq++; e["seq"] != seq {
			t.Errorf("event %v has the number %v", e["type"], e["seq"])
		}
	}
}

// LA4. The approved tool ran, then the run failed: whoever repeats the decision is told the result that is there, and nothing runs
// again.
func TestInvariant2_ADecisionRepeatedAfterTheRunFailedHasNoSecondEffect(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]}]`, gatedTransfer) // no final: the run fails after it
	r := h.Create(hosttest.Member, "pay")
	idem := host.Idempotency{Key: "k", Method: "POST", Path: "/v1/runs/" + r.ID + "/approvals", Body: "b"}
	decide := func(i host.Idempotency) (host.Run, error) {
		return h.Decide(t.Context(), hosttest.Admin, r.ID, i, hosttest.Body(approveAll(r)))
	}
	if _, err := decide(idem); err != nil {
		t.Fatal(err)
	}
	if r := h.Settled(r.ID); r.State != store.RunFailed || r.Error.Code != "script_exhausted" {
		t.Fatalf("the run is %s: %+v", r.State, r.Error)
	}
	for range 3 {
		v, err := decide(idem)
		if err != nil || v.State != store.RunFailed || resultOf(v.Calls[0]) != `{"amount":1,"currency":"EUR"}` {
			t.Errorf("a repeat: %s with %s, %v", v.State, resultsOf(v), err)
		}
		_, err = decide(host.Idempotency{})
		refusal(t, err, host.CodeAlreadyDecided)
	}
	h = restart(t, h, hosttest.Options{})
	if _, err := decide(idem); err != nil || h.Ran.Count("transfer") != 0 {
		t.Errorf("after a restart: %v, the tool ran %d times", err, h.Ran.Count("transfer"))
	}
}

// LA8. Whatever the reason of a pause: right before its commit nobody can see it, after it a host that was killed has it.
func TestInvariant4_EveryPauseIsDurableBeforeItIsAnnounced(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"approval_required", "await_input", "external_event", "constraints_conflict", "gate"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			mem := memstore.New()
			defer mem.Close()
			st := &intercepted{Store: mem}
			h := hosttest.New(t, hosttest.Options{Store: st})
			h.External("ask", gatedTransfer)
			call := `[{"tool":"transfer","arguments":{"amount":1}}]`
			if reason != "gate" {
				call = asks(reason)
			}
			r := h.Create(hosttest.Member, "ask")
			looked := false
			st.mu.Lock()
			st.before = func(c *store.Change) func() {
				if !slices.ContainsFunc(c.Appends, func(a store.Append) bool { return bytes.Contains(a.Data, []byte("run.paused")) }) {
					return nil
				}
				return func() {
					looked = true
					aps, _, err := h.Approvals(context.Background(), hosttest.Admin, "pending", host.Page{})
					v, gerr := h.GetRun(context.Background(), hosttest.Member, r.ID)
					if err != nil || gerr != nil || len(aps) != 0 || v.Pause != nil || v.State.Paused() {
						t.Errorf("before the commit: %d approvals, the run is %s with %+v, %v %v", len(aps), v.State, v.Pause, err, gerr)
					}
					for _, e := range logOf(t, h, hosttest.Member, r.ID) {
						if strings.HasPrefix(e.Type, "approval.") || e.Type == "run.paused" {
							t.Errorf("before the commit somebody reads %s", e.Type)
						}
					}
				}
			}
			st.mu.Unlock()
			if _, err := propose(h, hosttest.Member, r.ID, batch(1, call)); err != nil {
				t.Fatal(err)
			}
			if r = h.Settled(r.ID); !looked || r.Pause == nil {
				t.Fatalf("the run is %s, the commit of its pause was seen: %v", r.State, looked)
			}
			// The old host is not stopped in order: it is forgotten where it stands.
			next := hosttest.New(t, hosttest.Options{Store: mem, Clock: h.Clock})
			if _, err := next.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "reject"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// BY8. Two pauses cannot share an id: where an index names another run, by a flaw or by a forger, a token and an id open nothing.
func TestInvariant7_AnIndexThatNamesAnotherRunOpensNothing(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	shown := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":1}}]`)
	forged := h.Batch(hosttest.Member2, "pay", `[{"tool":"transfer","arguments":{"amount":1000000}}]`)
	ap := shown.Pause.Approvals[0].ID
	var c store.Change
	c.Put(store.K("t", "demo", "pause", shown.Pause.ID), []byte(forged.ID))
	c.Put(store.K("t", "demo", "apr", ap), []byte(forged.ID))
	if _, err := h.Store.Commit(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	before := h.Stored()
	if _, err := resume(h, hosttest.Admin, shown.Pause.ResumeToken, approveAll(shown)); host.CodeOf(err) != host.CodeNotFound {
		t.Errorf("the token: %v", err)
	}
	if v, err := h.GetApproval(t.Context(), hosttest.Admin, ap); host.CodeOf(err) != host.CodeNotFound {
		t.Errorf("the approval: %+v, %v", v, err)
	}
	if _, err := h.Answer(hosttest.Admin, forged.ID, host.Decision{ApprovalID: ap, Kind: "approve"}); host.CodeOf(err) != host.CodeInvalid {
		t.Errorf("its id for the other run: %v", err)
	}
	h.Unchanged(before)
	if n := len(h.Ran.All()); n != 0 {
		t.Errorf("%d tools ran", n)
	}
	if _, err := h.DecideAll(hosttest.Admin, shown, "approve"); err != nil { // by its run it is found all the same
		t.Error(err)
	}
}

// BY22, BY14. Two plugins export one tool name: an approval that permits one tool's next call permits nothing to its namesake.
func TestTrustedFlag_IsNotForTheNamesakeOfAnotherPlugin(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for _, plugin := range []string{"one", "two"} {
		m := plugins.Manifest{ABI: abi.Version, Name: plugin, Tools: []plugins.ToolSpec{{Name: "do_it", Description: "asks first", InputSchema: raw(`{"type":"object"}`), Effects: abi.EffectsWrite}}}
		if err := h.Plugins.AddFunc(m, gatedBy("approval_required")); err != nil {
			t.Fatal(err)
		}
	}
	h.External("tools", `{}`)
	turn := func(r host.Run, tool string) host.Run {
		t.Helper()
		if _, err := propose(h, hosttest.Member, r.ID, batch(r.Turn+1, fmt.Sprintf(`[{"tool":%q,"arguments":{}}]`, tool))); err != nil {
			t.Fatal(err)
		}
		return h.Settled(r.ID)
	}
	r := turn(h.Create(hosttest.Member, "tools"), "one.do_it")
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = turn(h.Settled(r.ID), "two.do_it")
	if r.State != store.RunAwaitingApproval || r.Pause.Approvals[0].Tool != "two.do_it" {
		t.Fatalf("the namesake: the run is %s, %s", r.State, resultsOf(r))
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "reject"); err != nil {
		t.Fatal(err)
	}
	if r = turn(h.Settled(r.ID), "one.do_it"); r.State != store.RunAwaitingPlanner || r.Calls[2].Error != nil {
		t.Errorf("the tool that was approved: the run is %s, %s", r.State, resultsOf(r))
	}
}

// HS2. Data that comes along with a decision never opens what is decided again.
func TestInvariant9_DataOfADecisionDoesNotAskAgain(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}},{"tool":"ask","arguments":{"reason":"await_input","payload":{}}}]},{"final":1}]`, gatedTransfer)
	r := h.Create(hosttest.Member, "pay")
	for range 2 { // at the gate, then what the tool asks
		ans := host.Answer{ToolContext: raw(`{"extra":{"k":1},"status":"pending","decisions":[],"paused":true}`)}
		for _, ap := range r.Pause.Approvals {
			ans.Decisions = append(ans.Decisions, host.Decision{ApprovalID: ap.ID, Kind: ap.Allowed[0], Message: "with more to say"})
		}
		decide := func() error {
			_, err := h.Decide(t.Context(), hosttest.Admin, r.ID, host.Idempotency{}, hosttest.Body(ans))
			return err
		}
		if err := decide(); err != nil {
			t.Fatal(err)
		}
		ans.ToolContext = raw(`{"more":1}`)
		refusal(t, decide(), host.CodeAlreadyDecided)
		last := r.Pause.ID
		if r = h.Settled(r.ID); r.Pause != nil && r.Pause.ID == last {
			t.Fatalf("the pause is open again: %+v", r.Pause)
		}
	}
	if n := h.Ran.Count("transfer"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// ST6. What a client has seen is only ever added to: over stops, decisions and a restart, messages and calls stay where they were.
func TestInvariant13_APauseTakesNothingAway(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", scripted(`[{"calls":[{"tool_call_id":"e","tool":"echo","arguments":{}}]},{"calls":[`+pay+`]},{"calls":[`+task("t", "w", "x")+`]},{"final":"done"}]`,
		`,"interrupt_on":{"transfer":true},"subagents":[`+sub("w", `[{"calls":[`+pay+`]},{"final":1}]`, "")+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	var messages, calls []string
	ids := func() (msgs, ids []string) {
		t.Helper()
		tr, err := h.Trajectory(t.Context(), hosttest.Member, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range tr {
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			msgs = append(msgs, string(b))
		}
		for _, c := range r.Calls {
			ids = append(ids, c.ID)
		}
		return msgs, ids
	}
	for stop := 0; ; stop++ {
		m, c := ids()
		// What was said stays, in its order; so do the calls. (A subagent's messages come before its task's result.)
		for _, was := range [][2][]string{{messages, m}, {calls, c}} {
			i := 0
			for _, x := range was[1] {
				if i < len(was[0]) && was[0][i] == x {
					i++
				}
			}
			if i < len(was[0]) {
				t.Errorf("stop %d: %s is gone from %q", stop, was[0][i], was[1])
			}
		}
		if messages, calls = m, c; r.State.Ended() {
			break
		}
		if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
			t.Fatal(err)
		}
		h = restart(t, h, hosttest.Options{})
		r = h.Settled(r.ID)
	}
	if len(calls) != 4 || r.State != store.RunSucceeded {
		t.Errorf("the run is %s with %d calls", r.State, len(calls))
	}
}

// A tool that runs long takes nothing from the time of the pause after it.
func TestInvariant9_APauseLastsItsWholeTimeHoweverLongTheToolRan(t *testing.T) {
	t.Parallel()
	begun, leave := make(chan struct{}, 1), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"slow": held(begun, leave)}})
	h.Agent("work", `{"planner":{"kind":"script","turns":[{"calls":[{"tool":"slow","arguments":{}}]},{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"final":1}]},
		"tools":["slow","transfer"],"interrupt_on":{"transfer":true},"approval_ttl":"1h"}`)
	id := h.Create(hosttest.Member, "work").ID
	<-begun
	h.Clock.Advance(2 * time.Hour)
	close(leave)
	r := h.Settled(id)
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.Pause == nil || time.Time(r.Pause.ExpiresAt).Sub(h.Clock.Now()) != time.Hour || !time.Time(r.Pause.CreatedAt).Equal(h.Clock.Now()) {
		t.Fatalf("the run is %s with %+v", r.State, r.Pause)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Error(err)
	}
}
