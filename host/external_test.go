package host_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

// batch is a client's turn; calls is a JSON array.
func batch(turn int, calls string) host.Batch {
	b := host.Batch{Turn: &turn}
	if err := json.Unmarshal([]byte(calls), &b.Calls); err != nil {
		panic(err)
	}
	return b
}

func propose(h *hosttest.Host, a host.Actor, run string, b host.Batch) (host.Run, error) {
	return h.Propose(h.Context(), a, run, host.Idempotency{}, hosttest.Body(b))
}

func finish(h *hosttest.Host, a host.Actor, run string, turn int, output string) (host.Run, error) {
	f := host.Final{Turn: &turn}
	if output != "" {
		f.Output = raw(output)
	}
	return h.Finish(h.Context(), a, run, host.Idempotency{}, hosttest.Body(f))
}

const echoOne = `[{"tool_call_id":"a","tool":"echo","arguments":{"n":1}}]`

func TestExternal_TakesTurnsUntilItFinishes(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("mine", `{"transfer":true}`)
	r := h.Create(hosttest.Member, "mine")
	if r.State != store.RunAwaitingPlanner || r.Turn != 0 || len(r.Calls) != 0 {
		t.Fatalf("state %s at turn %d", r.State, r.Turn)
	}
	for turn := 1; turn <= 3; turn++ {
		v, err := propose(h, hosttest.Member, r.ID, batch(turn, fmt.Sprintf(`[{"tool":"echo","arguments":{"turn":%d}}]`, turn)))
		if err != nil || v.Turn != turn {
			t.Fatalf("turn %d: %v", turn, err)
		}
		if r = h.Settled(r.ID); r.State != store.RunAwaitingPlanner || r.Turn != turn || len(r.Calls) != turn {
			t.Fatalf("after turn %d: state %s, turn %d, %d calls", turn, r.State, r.Turn, len(r.Calls))
		}
		if got := resultOf(r.Calls[turn-1]); got != fmt.Sprintf(`{"turn":%d}`, turn) {
			t.Errorf("turn %d: %s", turn, got)
		}
	}
	_, err := finish(h, hosttest.Member, r.ID, 3, `"early"`)
	refusal(t, err, host.CodeWrongTurn)
	v, err := finish(h, hosttest.Member, r.ID, 4, `{"b":1, "a":2}`)
	if err != nil || v.State != store.RunSucceeded || string(v.Output) != `{"a":2,"b":1}` {
		t.Fatalf("finish: %v, state %s, output %s", err, v.State, v.Output)
	}
	_, err = finish(h, hosttest.Member, r.ID, 4, `1`)
	if host.CodeOf(err) != host.CodeWrongTurn && host.CodeOf(err) != host.CodeWrongState {
		t.Errorf("finish again: %v", err)
	}
	_, err = propose(h, hosttest.Member, r.ID, batch(4, echoOne))
	refusal(t, err, host.CodeWrongTurn)
	null := h.Create(hosttest.Member, "mine")
	if v, err := finish(h, hosttest.Member, null.ID, 1, "null"); err != nil || string(v.Output) != "null" {
		t.Errorf("a null output: %v, %s", err, v.Output)
	}
}

func TestExternal_WrongTurnsChangeNothingAndARepeatIsAnswered(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("mine", `{"transfer":true}`)
	r := h.Settled(h.Batch(hosttest.Member, "mine", echoOne).ID)
	ran := h.Ran.Count("echo")
	before := h.Stored()
	for _, tc := range []struct {
		name    string
		batch   host.Batch
		code    host.Code
		pointer string
	}{
		{"a turn skipped", batch(3, echoOne), host.CodeWrongTurn, ""},
		{"turn 0", batch(0, echoOne), host.CodeWrongTurn, ""},
		{"a negative turn", batch(-1, echoOne), host.CodeWrongTurn, ""},
		{"the last turn with other arguments", batch(1, `[{"tool_call_id":"a","tool":"echo","arguments":{"n":2}}]`), host.CodeWrongTurn, ""},
		{"the last turn with another label", batch(1, `[{"tool_call_id":"b","tool":"echo","arguments":{"n":1}}]`), host.CodeWrongTurn, ""},
		{"the last turn with one call more", batch(1, `[{"tool_call_id":"a","tool":"echo","arguments":{"n":1}},{"tool":"echo"}]`), host.CodeWrongTurn, ""},
		{"no turn", host.Batch{Calls: batch(1, echoOne).Calls}, host.CodeInvalid, "/turn"},
		{"no calls", batch(2, `[]`), host.CodeInvalid, "/calls"},
		{"no tool", batch(2, `[{"arguments":{}}]`), host.CodeInvalid, "/calls/0/tool"},
		{"two calls of one label", batch(2, `[{"tool_call_id":"x","tool":"echo"},{"tool_call_id":"x","tool":"echo"}]`), host.CodeInvalid, "/calls/1/tool_call_id"},
		{"too many calls", batch(2, "["+strings.Repeat(`{"tool":"echo"},`, 128)+`{"tool":"echo"}]`), host.CodeInvalid, "/calls"},
	} {
		_, err := propose(h, hosttest.Member, r.ID, tc.batch)
		if host.CodeOf(err) != tc.code || pointerOf(err) != tc.pointer {
			t.Errorf("%s: %v at %q, want %s at %q", tc.name, err, pointerOf(err), tc.code, tc.pointer)
		}
	}
	// The same batch in another spelling is the stored batch.
	v, err := propose(h, hosttest.Member, r.ID, batch(1, `[{"tool_call_id":"a","tool":"echo","arguments":{"n":1.0}}]`))
	if err != nil || v.Turn != 1 || v.State != store.RunAwaitingPlanner {
		t.Errorf("a repeat of the stored batch: %v, state %s", err, v.State)
	}
	h.Unchanged(before)
	if n := h.Ran.Count("echo"); n != ran {
		t.Errorf("something ran: %v", h.Ran.All())
	}
	// Also while it waits, and at the end.
	gated := h.Batch(hosttest.Member, "mine", twoCalls)
	before = h.Stored()
	if v, err := propose(h, hosttest.Member, gated.ID, batch(1, twoCalls)); err != nil || v.State != store.RunAwaitingApproval || v.Pause.ResumeToken == "" {
		t.Errorf("a repeat of a paused batch: %v, state %s", err, v.State)
	}
	_, err = propose(h, hosttest.Member, gated.ID, batch(2, echoOne)) // HS6: a new turn does not end the pause
	refusal(t, err, host.CodeWrongTurn)
	_, err = finish(h, hosttest.Member, gated.ID, 2, "1")
	refusal(t, err, host.CodeWrongTurn)
	h.Unchanged(before)
}

func TestExternal_PlannerStateComesBackAsItWasGiven(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("mine", `{"transfer":true}`)
	create := host.NewRun{Agent: "mine", PlannerState: raw(`{"step":1,"html":"<&>"}`)}
	r, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(create))
	if err != nil || string(r.PlannerState) != `{"step":1,"html":"<&>"}` && string(r.PlannerState) != `{"html":"<&>","step":1}` {
		t.Fatalf("state %s, %v", r.PlannerState, err)
	}
	big := `{"blob":"` + strings.Repeat("é", 100<<10) + `"}`
	b := batch(1, twoCalls)
	b.PlannerState = raw(big)
	if _, err := propose(h, hosttest.Member, r.ID, b); err != nil {
		t.Fatal(err)
	}
	h = restart(t, h, hosttest.Options{})
	if r, err = h.GetRun(t.Context(), hosttest.Member, r.ID); err != nil || string(r.PlannerState) != big {
		t.Fatalf("%d bytes of planner_state came back as %d, %v", len(big), len(r.PlannerState), err)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	v, err := propose(h, hosttest.Member, r.ID, batch(2, echoOne))
	if err != nil || string(v.PlannerState) != big {
		t.Errorf("a turn without planner_state changed it: %v", err)
	}
	h.Settled(r.ID)
	b = batch(3, echoOne)
	b.PlannerState = raw("null")
	if v, err = propose(h, hosttest.Member, r.ID, b); err != nil || string(v.PlannerState) != "null" {
		t.Errorf("null is a value of planner_state: %s, %v", v.PlannerState, err)
	}
}

func TestExternal_CallsThatAllFailAtTheGateHandTheMoveBack(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(`deny contains "no" if input.call.tool == "echo"`)})
	h.External("mine", `{"transfer":true}`)
	const calls = `[{"tool":"nothing","arguments":{}},{"tool":"transfer","arguments":{"amount":"x"}},{"tool":"echo","arguments":{}}]`
	r := h.Batch(hosttest.Member, "mine", calls)
	if got := resultsOf(r); r.State != store.RunAwaitingPlanner || r.Turn != 1 || got != "unknown_tool invalid_arguments denied" {
		t.Fatalf("state %s, turn %d, results %s", r.State, r.Turn, got)
	}
	v, err := propose(h, hosttest.Member, r.ID, batch(2, calls))
	if got := resultsOf(v); err != nil || v.State != store.RunAwaitingPlanner || v.Turn != 2 || len(v.Calls) != 6 {
		t.Fatalf("%v, state %s, turn %d, results %s", err, v.State, v.Turn, got)
	}
	if v, err = propose(h, hosttest.Member, r.ID, batch(2, calls)); err != nil || v.Turn != 2 || len(v.Calls) != 6 {
		t.Errorf("a repeat of it: %v, turn %d, %d calls", err, v.Turn, len(v.Calls))
	}
	// Beside a call that stops, the failed ones are finished and it alone waits.
	v, err = propose(h, hosttest.Member, r.ID, batch(3, `[{"tool":"nothing"},{"tool":"transfer","arguments":{"amount":1}}]`))
	if err != nil || v.State != store.RunAwaitingApproval || len(v.Pause.Approvals) != 1 || resultOf(v.Calls[6]) != "unknown_tool" {
		t.Errorf("%v, state %s", err, v.State)
	}
	if len(h.Ran.All()) != 0 {
		t.Errorf("ran %v", h.Ran.All())
	}
}

func TestExternal_WhoDrivesARun(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("mine", `{}`)
	h.Script("script", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"final":1}]`, gatedTransfer)
	for _, tc := range []struct {
		by   host.Actor
		code host.Code
	}{
		{hosttest.Member, ""}, {hosttest.Admin, ""}, {hosttest.Owner, ""},
		{hosttest.Member2, host.CodeNotFound}, {hosttest.OtherAdmin, host.CodeNotFound}, {hosttest.OtherMember, host.CodeNotFound},
	} {
		r := h.Create(hosttest.Member, "mine")
		for what, err := range map[string]error{
			"propose": func() error { _, err := propose(h, tc.by, r.ID, batch(1, echoOne)); return err }(),
			"finish": func() error {
				r := h.Create(hosttest.Member, "mine")
				_, err := finish(h, tc.by, r.ID, 1, "1")
				return err
			}(),
		} {
			if host.CodeOf(err) != tc.code {
				t.Errorf("%s as %s/%s: %v, want %q", what, tc.by.Tenant, tc.by.ID, err, tc.code)
			}
		}
		h.Settled(r.ID)
	}
	r := h.Create(hosttest.Member, "script")
	before := h.Stored()
	_, err := propose(h, hosttest.Member, r.ID, batch(r.Turn+1, echoOne))
	if host.CodeOf(err) != host.CodeWrongState && host.CodeOf(err) != host.CodeWrongTurn {
		t.Errorf("a script's run took a client's turn: %v", err)
	}
	_, err = h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "script", Calls: batch(1, echoOne).Calls}))
	refusal(t, err, host.CodeInvalid)
	h.Unchanged(before)
}

func TestExternal_OneOfRacingTurnsWins(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("mine", `{}`)
	r := h.Create(hosttest.Member, "mine")
	errs := make(chan error, 10)
	for i := range cap(errs) {
		go func() {
			_, err := propose(h, hosttest.Member, r.ID, batch(1, fmt.Sprintf(`[{"tool":"echo","arguments":{"n":%d}}]`, i)))
			errs <- err
		}()
	}
	won := 0
	for range cap(errs) {
		switch err := <-errs; host.CodeOf(err) {
		case "":
			won++
		case host.CodeWrongTurn:
		default:
			t.Error(err)
		}
	}
	if r = h.Settled(r.ID); won != 1 || h.Ran.Count("echo") != 1 || len(r.Calls) != 1 {
		t.Errorf("%d won, ran %v", won, h.Ran.All())
	}
}
