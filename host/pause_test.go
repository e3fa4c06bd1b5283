package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

// asks is a batch in which tools ask, one for each reason; "free" stands for a call that does not ask.
func asks(reasons ...string) string {
	var calls []string
	for i, reason := range reasons {
		if reason == "free" {
			calls = append(calls, fmt.Sprintf(`{"tool_call_id":"c%d","tool":"echo","arguments":{"n":%d}}`, i, i))
			continue
		}
		calls = append(calls, fmt.Sprintf(`{"tool_call_id":"c%d","tool":"ask","arguments":{"reason":%q,"payload":{"title":"T%d","question":"Q%d"}}}`, i, reason, i, i))
	}
	return "[" + strings.Join(calls, ",") + "]"
}

func TestToolPause_TheStrictestReasonGivesTheState(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{}`)
	for _, tc := range []struct {
		reasons []string
		state   store.RunState
	}{
		{[]string{"approval_required"}, store.RunAwaitingApproval},
		{[]string{"constraints_conflict"}, store.RunAwaitingApproval},
		{[]string{"await_input"}, store.RunAwaitingInput},
		{[]string{"external_event"}, store.RunAwaitingEvent},
		{[]string{"external_event", "await_input"}, store.RunAwaitingInput},
		{[]string{"await_input", "external_event", "free"}, store.RunAwaitingInput},
		{[]string{"await_input", "approval_required"}, store.RunAwaitingApproval},
		{[]string{"approval_required", "await_input", "external_event"}, store.RunAwaitingApproval},
		{[]string{"external_event", "constraints_conflict"}, store.RunAwaitingApproval},
	} {
		r := h.Settled(h.Batch(hosttest.Member, "ask", asks(tc.reasons...)).ID)
		if r.State != tc.state || r.AwaitingSince == nil {
			t.Errorf("%v: state %s, want %s", tc.reasons, r.State, tc.state)
			continue
		}
		if r.Pause.Reason != tc.reasons[0] || string(r.Pause.Payload) != `{"question":"Q0","title":"T0"}` && string(r.Pause.Payload) != `{"title":"T0","question":"Q0"}` {
			t.Errorf("%v: the pause shows reason %s and payload %s, want those of its first approval", tc.reasons, r.Pause.Reason, r.Pause.Payload)
		}
		for i, ap := range r.Pause.Approvals {
			if ap.Title != fmt.Sprintf("T%d", i) && len(tc.reasons) == len(r.Pause.Approvals) {
				t.Errorf("%v: title %q", tc.reasons, ap.Title)
			}
			if slices.Contains(ap.Allowed, "edit") {
				t.Errorf("%v: a tool's own stop allows %v; there is nothing to edit", tc.reasons, ap.Allowed)
			}
		}
	}
}

func TestToolPause_TheObservationIsTheOneResult(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{}`)
	for _, reason := range []string{"approval_required", "await_input", "constraints_conflict"} {
		for _, tc := range []struct {
			decision host.Decision
			want     string
		}{
			{host.Decision{Kind: "approve"}, `{"reason":%q,"decision":"approve"}`},
			{host.Decision{Kind: "approve", Message: "fine"}, `{"reason":%q,"decision":"approve","message":"fine"}`},
			{host.Decision{Kind: "reject", Message: "<no> & never"}, `{"reason":%q,"decision":"reject","message":"<no> & never"}`},
			{host.Decision{Kind: "respond", Value: raw(`{"b":1,"a":[]}`)}, `{"reason":%q,"decision":"respond","user_input":{"a":[],"b":1}}`},
			{host.Decision{Kind: "respond", Message: "text"}, `{"reason":%q,"decision":"respond","user_input":"text","message":"text"}`},
		} {
			r := h.Settled(h.Batch(hosttest.Member, "ask", asks(reason)).ID)
			d := tc.decision
			d.ApprovalID = r.Pause.Approvals[0].ID
			if _, err := h.Answer(hosttest.Admin, r.ID, d); err != nil {
				t.Fatal(err)
			}
			r = h.Settled(r.ID)
			if got, want := resultOf(r.Calls[0]), fmt.Sprintf(tc.want, reason); r.State != store.RunAwaitingPlanner || got != want {
				t.Errorf("%s, %s: state %s, result %s, want %s", reason, d.Kind, r.State, got, want)
			}
		}
	}
	if n := h.Ran.Count("ask"); n != 15 {
		t.Errorf("the tool ran %d times for 15 calls", n)
	}
}

func TestToolPause_AnEditIsNotAllowed(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{}`)
	r := h.Settled(h.Batch(hosttest.Member, "ask", asks("approval_required")).ID)
	before := h.Stored()
	_, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{}`)})
	refusal(t, err, host.CodeNotAllowed)
	h.Unchanged(before)
}

func TestInvariant7_TheSubjectAnswersItsOwnQuestionAndNothingElse(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{}`)
	r := h.Settled(h.Batch(hosttest.Member, "ask", asks("await_input", "approval_required")).ID)
	question, approval := r.Pause.Approvals[0].ID, r.Pause.Approvals[1].ID
	respond := func(id string) host.Decision {
		return host.Decision{ApprovalID: id, Kind: "respond", Value: raw(`"mine"`)}
	}
	before := h.Stored()
	for _, tc := range []struct {
		by   host.Actor
		ds   []host.Decision
		code host.Code
	}{
		{hosttest.Member, []host.Decision{respond(question), {ApprovalID: approval, Kind: "approve"}}, host.CodeForbidden},
		{hosttest.Member, []host.Decision{{ApprovalID: approval, Kind: "approve"}}, host.CodeForbidden},
		{hosttest.Member2, []host.Decision{respond(question)}, host.CodeNotFound},
		{hosttest.Service, []host.Decision{respond(question)}, host.CodeForbidden},
		{hosttest.Admin, []host.Decision{{ApprovalID: approval, Kind: "approve"}}, host.CodeIncomplete}, // the admin may decide both
	} {
		_, err := h.Answer(tc.by, r.ID, tc.ds...)
		refusal(t, err, tc.code)
	}
	h.Unchanged(before)
	half, err := h.Answer(hosttest.Member, r.ID, respond(question))
	if err != nil || half.State != store.RunAwaitingApproval || half.Pause == nil {
		t.Fatalf("the subject's own answer: %v, state %s; the pause stays open for the approval", err, half.State)
	}
	_, err = h.Answer(hosttest.Member, r.ID, respond(question))
	refusal(t, err, host.CodeAlreadyDecided)
	_, err = h.Answer(hosttest.Admin, r.ID, respond(question), host.Decision{ApprovalID: approval, Kind: "approve"})
	refusal(t, err, host.CodeAlreadyDecided) // decided once is decided
	if _, err := resume(h, hosttest.Admin, r.Pause.ResumeToken, host.Answer{Decisions: []host.Decision{{ApprovalID: approval, Kind: "reject"}}}); err != nil {
		t.Fatalf("the other half by the same token: %v", err)
	}
	r = h.Settled(r.ID)
	want := `{"reason":"await_input","decision":"respond","user_input":"mine"} {"reason":"approval_required","decision":"reject"}`
	if got := resultsOf(r); got != want {
		t.Errorf("results %s", got)
	}
	// The other way round: the state follows what is still open.
	r = h.Settled(h.Batch(hosttest.Member, "ask", asks("approval_required", "await_input")).ID)
	for _, ap := range r.Pause.Approvals {
		_, err := h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: ap.ID, Kind: "approve"})
		if (err == nil) != (ap.Reason == "await_input") {
			t.Errorf("a member approves its own %s: %v", ap.Reason, err)
		}
	}
}

// Public failure DX2.
func TestInvariant3_FinishedSiblingsOfAToolsStopKeepTheirResults(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{}`)
	r := h.Settled(h.Batch(hosttest.Member, "ask", asks("free", "approval_required", "free", "await_input", "free")).ID)
	var states []string
	for _, c := range r.Calls {
		states = append(states, string(c.State))
	}
	if got := strings.Join(states, " "); got != "finished awaiting finished awaiting finished" || len(r.Pause.Approvals) != 2 {
		t.Fatalf("calls are %s with %d approvals", got, len(r.Pause.Approvals))
	}
	if got := resultsOf(r); got != `{"n":0}  {"n":2}  {"n":4}` {
		t.Errorf("results at the pause: %s", got)
	}
	h = restart(t, h, hosttest.Options{})
	if _, err := h.DecideAll(hosttest.Admin, r, "respond"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunAwaitingPlanner || len(h.Ran.All()) != 0 {
		t.Errorf("state %s; after the restart ran %v, and nothing of this batch was left to run", r.State, h.Ran.All())
	}
	finished := map[string]int{}
	paused := false
	for _, e := range h.Events(r.ID) {
		switch e["type"] {
		case "call.finished":
			id := e["tool_call_id"].(string)
			finished[id]++
			if (id == "c0" || id == "c2" || id == "c4") == paused {
				t.Errorf("%s finished; pause open: %v", id, paused)
			}
		case "run.paused":
			paused = true
		}
	}
	if fmt.Sprint(finished) != "map[c0:1 c1:1 c2:1 c3:1 c4:1]" {
		t.Errorf("call.finished by call: %v", finished)
	}
}

func TestInvariant4_APauseOpensOnlyWhenNothingOfTheBatchRuns(t *testing.T) {
	t.Parallel()
	release, begun := make(chan struct{}), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{
		"read_ask": func(ctx context.Context, s *plugins.Session) error {
			_, err := hosttest.Op(ctx, s, "pause", map[string]any{"reason": "await_input", "payload": map[string]any{}})
			return err
		},
		"read_slowly": func(ctx context.Context, s *plugins.Session) error {
			close(begun)
			<-release
			_, err := hosttest.Op(ctx, s, "output", 1)
			return err
		},
	}})
	h.External("ask", `{}`)
	r := h.Batch(hosttest.Member, "ask", `[{"tool":"read_ask"},{"tool":"read_slowly"}]`)
	<-begun
	for deadline := time.Now().Add(10 * time.Second); ; {
		v, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if v.Pause != nil || v.State != store.RunRunning && v.State != store.RunQueued {
			t.Fatalf("state %s, pause %+v while a sibling runs", v.State, v.Pause)
		}
		if v.Calls[0].State == store.CallAwaiting {
			break // the tool has asked, durably, and nobody is told yet
		}
		if time.Now().After(deadline) {
			t.Fatalf("the asking call is %s", v.Calls[0].State)
		}
	}
	aps, _, err := h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{})
	if err != nil || len(aps) != 0 {
		t.Errorf("announced before quiescence: %+v, %v", aps, err)
	}
	close(release)
	if r = h.Settled(r.ID); r.State != store.RunAwaitingInput || resultOf(r.Calls[1]) != "1" {
		t.Errorf("state %s, results %s", r.State, resultsOf(r))
	}
}

// Public failure HS4.
func TestToolPause_APayloadAbove64KiBIsRefusedAndTheRunGoesOn(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{}`)
	const frame = len(`{"p":""}`)
	for _, tc := range []struct {
		size  int
		state store.RunState
	}{{64 << 10, store.RunAwaitingInput}, {64<<10 + 1, store.RunAwaitingPlanner}, {300 << 10, store.RunAwaitingPlanner}} {
		r := h.Settled(h.Batch(hosttest.Member, "ask", `[{"tool":"ask","arguments":{"reason":"await_input","payload":{"p":"`+strings.Repeat("x", tc.size-frame)+`"}}},{"tool":"echo","arguments":{}}]`).ID)
		if r.State != tc.state || resultOf(r.Calls[1]) != "{}" {
			t.Errorf("%d bytes: state %s, sibling %s", tc.size, r.State, resultOf(r.Calls[1]))
		}
		if tc.state == store.RunAwaitingPlanner && resultOf(r.Calls[0]) != "tool_error" {
			t.Errorf("%d bytes: the call ended with %s", tc.size, resultOf(r.Calls[0]))
		}
	}
}

// Public failure MX5.
func TestInvariant12_EveryPauseOfARunIsItsOwn(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("again", `[{"calls":[{"tool":"ask","arguments":{"reason":"approval_required","payload":{}}}]},{"final":1}]`, `{"ask":true}`)
	r := h.Create(hosttest.Member, "again")
	seen := map[string]bool{}
	var tokens []string
	for range 6 { // gate, tool, and once more for each proposal of the same call
		if r.Pause == nil {
			t.Fatalf("state %s", r.State)
		}
		for _, id := range []string{r.Pause.ID, r.Pause.Approvals[0].ID} {
			if seen[id] {
				t.Fatalf("id %s came twice", id)
			}
			seen[id] = true
		}
		full, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, old := range tokens {
			if old == full.Pause.ResumeToken {
				t.Fatal("two pauses share a token")
			}
			_, err := resume(h, hosttest.Admin, old, approveAll(r))
			refusal(t, err, host.CodeTokenUsed)
		}
		tokens = append(tokens, full.Pause.ResumeToken)
		h = restart(t, h, hosttest.Options{})
		if _, err := resume(h, hosttest.Admin, full.Pause.ResumeToken, approveAll(r)); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
	}
	aps, err := h.RunApprovals(t.Context(), hosttest.Member, r.ID)
	if err != nil || len(aps) != 7 {
		t.Errorf("%d approvals of the run, %v; want the six decided and the one that is open", len(aps), err)
	}
}

func TestScript_ProposesTheSameCallAgainOnlyAfterAnApproval(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("ask", `[{"calls":[{"tool_call_id":"q","tool":"ask","arguments":{"reason":"approval_required","payload":{}}},{"tool_call_id":"e","tool":"echo","arguments":{}}]},{"final":1}]`, "")
	for kind, again := range map[string]bool{"approve": true, "reject": false, "respond": false} {
		echoed := h.Ran.Count("echo")
		r := h.Settled(h.Create(hosttest.Member, "ask").ID)
		if _, err := h.DecideAll(hosttest.Admin, r, kind); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
		if again {
			if r.State != store.RunAwaitingApproval || r.Turn != 2 || len(r.Calls) != 3 || r.Calls[2].Tool != "ask" || r.Calls[2].ToolCallID != "q" {
				t.Errorf("%s: state %s, turn %d, %d calls; want the asking call alone once more", kind, r.State, r.Turn, len(r.Calls))
			}
		} else if r.State != store.RunSucceeded || len(r.Calls) != 2 {
			t.Errorf("%s: state %s with %d calls, want the next turn", kind, r.State, len(r.Calls))
		}
		if n := h.Ran.Count("echo") - echoed; n != 1 {
			t.Errorf("%s: the sibling ran %d times", kind, n)
		}
	}
}
