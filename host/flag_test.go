package host_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

// Public failure LA6.
func TestTrustedFlag_ServesOneLaterCallOfTheSameArguments(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	const write = `{"calls":[{"tool":"gated_write","arguments":{"text":"a"}}]}`
	h.Script("writer", "["+write+","+write+`,{"final":"done"}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "writer").ID)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	// First turn: observation, then the same call again, which wrote. Second turn of the script: asks anew.
	if got := resultsOf(h.Settled(r.ID)); r.State != store.RunAwaitingApproval || len(r.Calls) != 3 ||
		got != `{"reason":"approval_required","decision":"approve"} {"written":true} ` {
		t.Fatalf("state %s, results %s; one approval must let one call write", r.State, got)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "reject"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunSucceeded || len(r.Calls) != 3 || resultOf(r.Calls[2]) != `{"reason":"approval_required","decision":"reject"}` {
		t.Errorf("state %s with %d calls; a rejected pause is not proposed again", r.State, len(r.Calls))
	}
	if n := h.Ran.Count("gated_write"); n != 3 {
		t.Errorf("ran %d times, want 3", n)
	}
}

// Public failure BY14.
func TestTrustedFlag_IsNotForOtherArgumentsOtherRunsOrTheCaller(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("writer", `{}`)
	call := func(text string) string {
		return `[{"tool":"gated_write","arguments":{"text":"` + text + `"}}]`
	}
	propose := func(r host.Run, calls string) host.Run {
		t.Helper()
		v, err := h.Propose(t.Context(), hosttest.Member, r.ID, host.Idempotency{}, hosttest.Body(batch(r.Turn+1, calls)))
		if err != nil {
			t.Fatal(err)
		}
		return h.Settled(v.ID)
	}
	r := h.Settled(h.Batch(hosttest.Member, "writer", call("a")).ID)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if other := h.Settled(h.Batch(hosttest.Member, "writer", call("a")).ID); other.State != store.RunAwaitingApproval {
		t.Errorf("another run used the flag: %s", other.State)
	}
	if r = propose(r, call("b")); r.State != store.RunAwaitingApproval {
		t.Fatalf("other arguments used the flag: %s %s", r.State, resultsOf(r))
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "respond"); err != nil { // an answer is no approval
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r = propose(r, call("b")); r.State != store.RunAwaitingApproval {
		t.Fatalf("a respond set the flag: %s", resultsOf(r))
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "reject"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	two := `[{"tool_call_id":"1","tool":"gated_write","arguments":{"text":"a"}},{"tool_call_id":"2","tool":"gated_write","arguments":{"text":"a"}}]`
	if r = propose(r, two); r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 1 || resultOf(r.Calls[3]) != `{"written":true}` {
		t.Fatalf("state %s, results %s; the flag is for exactly one of two equal calls", r.State, resultsOf(r))
	}
}

func TestTrustedFlag_SurvivesARestart(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("writer", `[{"calls":[{"tool":"gated_write","arguments":{}}]},{"final":"done"}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "writer").ID)
	h.Stop()
	idle := hosttest.New(t, hosttest.Options{Store: h.Store, Clock: h.Clock, Idle: true})
	if _, err := idle.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	h = restart(t, idle, hosttest.Options{})
	if r = h.Settled(r.ID); r.State != store.RunSucceeded || resultOf(r.Calls[1]) != `{"written":true}` {
		t.Errorf("state %s, results %s", r.State, resultsOf(r))
	}
}

func TestTrustedFlag_TheReplayedCallIsGatedAgainWithItsEditedArguments(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("writer", `[{"calls":[{"tool":"gated_write","arguments":{"text":"a"}}]},{"final":"done"}]`, `{"gated_write":true}`)
	r := h.Create(hosttest.Member, "writer")
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"text":"b"}`)}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID) // the tool itself asks now, for what a person made of the call
	ap := r.Pause.Approvals[0]
	if ap.Reason != "approval_required" || string(ap.Payload) == "" || string(ap.Arguments) != `{"text":"b"}` || ap.ArgsDigest != hosttest.Digest(`{"text":"b"}`) {
		t.Fatalf("the tool's stop shows %+v", ap)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.Pause == nil || string(r.Pause.Approvals[0].Arguments) != `{"text":"b"}` || r.Calls[1].State != store.CallAwaiting {
		t.Fatalf("state %s: the same call again is gated again, with the arguments that were approved", r.State)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); r.State != store.RunSucceeded || resultOf(r.Calls[1]) != `{"written":true}` || len(r.Calls) != 2 {
		t.Errorf("state %s, results %s", r.State, resultsOf(r))
	}
}

func TestTrustedFlag_IsNamedByTheToolWhereThePayloadNamesNone(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"publish": func(ctx context.Context, s *plugins.Session) error {
		var req struct {
			Context struct {
				Approvals   map[string]bool `json:"approvals"`
				ToolContext struct {
					Approvals map[string]bool `json:"approvals"`
				} `json:"tool_context"`
			}
		}
		if err := json.Unmarshal(s.Request(), &req); err != nil {
			return err
		}
		if !req.Context.Approvals["publish"] {
			_, err := hosttest.Op(ctx, s, "pause", map[string]any{"reason": "approval_required", "payload": map[string]any{"approval_key": 7}})
			return err
		}
		_, err := hosttest.Op(ctx, s, "output", []any{req.Context.Approvals, req.Context.ToolContext.Approvals})
		return err
	}}})
	h.Script("p", `[{"calls":[{"tool":"publish"}]},{"final":1}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "p").ID)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); len(r.Calls) != 2 || resultOf(r.Calls[1]) != `[{"publish":true},{"publish":true}]` {
		t.Errorf("state %s, results %s", r.State, resultsOf(r))
	}
}

// A question to the requester is answered by the requester alone, so an approval of it permits nothing.
func TestInvariant7_AnApprovedQuestionSetsNoFlag(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("q", `[{"calls":[{"tool":"ask","arguments":{"reason":"await_input","payload":{"approval_key":"gated_write"}}}]},{"final":1}]`, "")
	r := h.Create(hosttest.Member, "q")
	r = h.Settled(r.ID)
	if _, err := h.DecideAll(hosttest.Member, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID) // the script proposes the call again, which asks again
	if r.State != store.RunAwaitingInput || len(r.Calls) != 2 {
		t.Fatalf("%s with %d calls", r.State, len(r.Calls))
	}
	err := h.Store.View(t.Context(), func(rd store.Reader) error {
		it, err := rd.Get(store.K("t", "demo", "run", r.ID))
		if err != nil {
			return err
		}
		var head store.Run
		if err := store.Decode(it.Value, &head); err != nil || head.HasGrants {
			t.Errorf("grants %v (%v)", head.HasGrants, err)
		}
		var c store.Call
		it, err = rd.Get(store.K("t", "demo", "run", r.ID, "call", 0, 2, 0))
		if err != nil {
			return err
		}
		if err := store.Decode(it.Value, &c); err != nil || len(c.Grants) != 0 {
			t.Errorf("the next call carries %q (%v)", c.Grants, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Two calls that are alike ask, and both are approved: each replay carries its own flag.
func TestTrustedFlag_OfTwoAlikeServesOneCallEach(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("twins", `[{"calls":[{"tool_call_id":"a","tool":"gated_write","arguments":{}},{"tool_call_id":"b","tool":"gated_write","arguments":{}}]},{"final":"done"}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "twins").ID)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunSucceeded || len(r.Calls) != 4 || string(r.Calls[2].Result) != `{"written":true}` || string(r.Calls[3].Result) != `{"written":true}` {
		t.Errorf("the run is %s: %+v", r.State, r.Calls)
	}
}
