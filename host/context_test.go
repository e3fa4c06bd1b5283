package host_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

// showContext is a tool that returns the context it was given.
func showContext(ctx context.Context, s *plugins.Session) error {
	var req struct {
		Context struct {
			ToolContext json.RawMessage `json:"tool_context"`
		}
	}
	if err := json.Unmarshal(s.Request(), &req); err != nil {
		return err
	}
	_, err := hosttest.Op(ctx, s, "output", req.Context.ToolContext)
	return err
}

func TestToolContext_IsMergedShallowlyAndTheHostsMembersStayTheHosts(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"context": showContext}})
	h.External("ctx", `{"context":true}`)
	create := func(tc, session string) (host.Run, error) {
		return h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{
			Agent: "ctx", SessionID: session, ToolContext: raw(tc), Calls: []host.ProposedCall{{Tool: "context"}},
		}))
	}
	for _, tc := range []struct{ context, pointer string }{
		{`{"approvals":{}}`, "/tool_context/approvals"},
		{`{"tenant_id":"other"}`, "/tool_context/tenant_id"},
		{`{"user_id":"admin"}`, "/tool_context/user_id"},
		{`{"user_id":null}`, "/tool_context/user_id"},
		{`{"session_id":"s2"}`, "/tool_context/session_id"},
		{`"x"`, "/tool_context"},
		{`null`, "/tool_context"},
	} {
		_, err := create(tc.context, "s1")
		if e := refusal(t, err, host.CodeInvalid); e.Pointer != tc.pointer {
			t.Errorf("%s: pointer %q, want %q", tc.context, e.Pointer, tc.pointer)
		}
	}
	r, err := create(`{"a":1,"b":{"x":1},"tenant_id":"demo","user_id":"member","session_id":"s1"}`, "s1")
	if err != nil {
		t.Fatal(err)
	}
	answer := host.Answer{Decisions: []host.Decision{{ApprovalID: r.Pause.Approvals[0].ID, Kind: "approve"}}, ToolContext: raw(`{"session_id":"s2"}`)}
	_, err = h.Decide(t.Context(), hosttest.Admin, r.ID, host.Idempotency{}, hosttest.Body(answer))
	if e := refusal(t, err, host.CodeInvalid); e.Pointer != "/tool_context/session_id" {
		t.Errorf("pointer %q", e.Pointer)
	}
	// The run's user, not the decider's own name.
	answer.ToolContext = raw(`{"b":{"y":2},"c":[3],"tenant_id":"demo","user_id":"member","session_id":"s1"}`)
	if _, err := h.Decide(t.Context(), hosttest.Admin, r.ID, host.Idempotency{}, hosttest.Body(answer)); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	want := `{"a":1,"approvals":{},"b":{"y":2},"c":[3],"session_id":"s1","tenant_id":"demo","user_id":"member"}`
	if got := resultOf(r.Calls[0]); got != want {
		t.Errorf("the tool got\n %s\nwant\n %s", got, want)
	}
	if len(r.Calls[0].ApprovalIDs) != 1 {
		t.Errorf("a context on resume re-opened the decision: %v", r.Calls[0].ApprovalIDs)
	}
}

// showRequest is a tool that returns all that it was given.
func showRequest(ctx context.Context, s *plugins.Session) error {
	_, err := hosttest.Op(ctx, s, "output", s.Request())
	return err
}

func TestPolicy_SeesTheContextAndTheHistoryOfAResumedRun(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(`deny contains "frozen" if input.untrusted.tool_context.mode == "frozen"
pause contains {"rule": "after_a_no"} if { input.history.rejected > 0; input.call.tool == "echo" }`)})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	_, err := h.Decide(t.Context(), hosttest.Admin, r.ID, host.Idempotency{}, hosttest.Body(host.Answer{
		Decisions: []host.Decision{{ApprovalID: r.Pause.Approvals[0].ID, Kind: "approve"}}, ToolContext: raw(`{"mode":"frozen"}`),
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got := resultsOf(h.Settled(r.ID)); got != "denied denied" {
		t.Errorf("results %s; the merged context is what policy judges on resume", got)
	}
	r = h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":1}}]`)
	if _, err := h.DecideAll(hosttest.Admin, r, "reject"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if v, err := propose(h, hosttest.Member, r.ID, batch(2, echoOne)); err != nil || v.Pause == nil || !slices.Equal(v.Pause.Approvals[0].Rules, []string{"after_a_no"}) {
		t.Errorf("state %s, %v", v.State, err)
	}
}

func TestPolicy_TheSameQuestionHasTheSameAnswerOnResume(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(`pause contains {"rule": "busy"} if input.history.calls >= 2
pause contains {"rule": "tired"} if input.history.approved >= 1
pause contains {"rule": "crowded"} if count(input.batch) != 1`)})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	if len(r.Pause.Approvals) != 1 || !slices.Equal(r.Pause.Approvals[0].Rules, []string{"interrupt_on/transfer"}) {
		t.Fatalf("stops %+v", r.Pause.Approvals)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if got := resultsOf(r); r.State != store.RunAwaitingPlanner || got != paid+` {"hi":1}` {
		t.Fatalf("state %s, results %s, pause %+v; neither rules nor facts have changed, so nothing new may stop", r.State, got, r.Pause)
	}
	// What came before the next batch does count.
	v, err := propose(h, hosttest.Member, r.ID, batch(2, twoCalls))
	if err != nil || v.Pause == nil || !slices.Contains(v.Pause.Approvals[0].Rules, "busy") || !slices.Contains(v.Pause.Approvals[0].Rules, "tired") {
		t.Errorf("state %s, %v", v.State, err)
	}
}
