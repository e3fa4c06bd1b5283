package host_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// A batch of four gated calls is decided in four ways and denied in a fifth; the run then goes on in some order of resumption.
// verdict says what the order broke, "" if nothing: the same checks for the right order and for each wrong one.
func resumeIn(t *testing.T, order []string) (verdict string) {
	t.Helper()
	st := memstore.New()
	defer st.Close()
	h := hosttest.New(t, hosttest.Options{Store: st, Idle: true})
	h.Script("mix", `[{"calls":[
		{"tool_call_id":"approve","tool":"transfer","arguments":{"amount":1}},
		{"tool_call_id":"reject","tool":"transfer","arguments":{"amount":2}},
		{"tool_call_id":"respond","tool":"transfer","arguments":{"amount":3}},
		{"tool_call_id":"denied","tool":"transfer","arguments":{"amount":4}},
		{"tool_call_id":"free","tool":"echo","arguments":{}}]},{"final":"done"}]`, `{"transfer":true}`)
	r := h.Create(hosttest.Member, "mix")
	var ds []host.Decision
	for _, a := range r.Pause.Approvals {
		kind := a.ToolCallID
		if kind == "denied" {
			kind = "approve"
		}
		ds = append(ds, host.Decision{ApprovalID: a.ID, Kind: kind, Message: "by hand"})
	}
	if _, err := h.Decide(t.Context(), hosttest.Admin, r.ID, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: ds})); err != nil {
		t.Fatal(err)
	}
	// The host restarts under rules that deny one of the approved calls.
	h = hosttest.New(t, hosttest.Options{Store: st, Idle: true, Rules: fstest.MapFS{"deny.rego": {Data: []byte(
		"package pawl.rules\n\ndeny contains {\"rule\": \"four\", \"message\": \"not four\"} if input.call.arguments.amount == 4\n")}}})
	if order != nil {
		h.SetResumeOrder(order...)
	}
	h.Start()
	defer h.Stop()
	deadline := time.Now().Add(5 * time.Second)
	for r, _ = h.GetRun(t.Context(), hosttest.Owner, r.ID); !r.State.Ended(); r, _ = h.GetRun(t.Context(), hosttest.Owner, r.ID) {
		if time.Now().After(deadline) {
			return "the run hangs in " + string(r.State)
		}
	}
	if r.State != store.RunSucceeded {
		return fmt.Sprintf("the run ended %s: %+v", r.State, r.Error)
	}
	if len(r.Calls) != 5 {
		return fmt.Sprintf("%d calls: the planner was asked while the batch was open", len(r.Calls))
	}
	for _, c := range r.Calls {
		if c.State != store.CallFinished || (c.Result == nil) == (c.Error == nil) {
			return fmt.Sprintf("call %s is %s with result %s and error %v", c.ToolCallID, c.State, c.Result, c.Error)
		}
		code := ""
		if c.Error != nil {
			code = c.Error.Code
		}
		if want := map[string]string{"reject": "rejected", "denied": "denied"}[c.ToolCallID]; code != want {
			return fmt.Sprintf("call %s ended with code %q, not %q", c.ToolCallID, code, want)
		}
	}
	if got := fmt.Sprint(h.Ran.All()); !strings.Contains(got, `"amount":1`) || strings.Count(got, "transfer") != 1 || strings.Count(got, "echo") != 1 {
		return "what ran: " + got
	}
	return ""
}

func TestResumeOrder_RightOneHolds(t *testing.T) {
	t.Parallel()
	if v := resumeIn(t, nil); v != "" {
		t.Error(v)
	}
}

func TestResumeOrder_EachWrongOneIsCaught(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		order  []string
		breaks string
	}{
		{[]string{host.Repair, host.ApplyDecisions, host.Tighten}, `call approve ended with code "cancelled"`}, // repair destroys the approval
		{[]string{host.Tighten, host.ApplyDecisions, host.Repair}, `call denied ended with code ""`},           // the deny comes too early to be seen
		{[]string{host.ApplyDecisions, host.Repair}, `call denied ended with code ""`},                         // nobody asks policy again
		{[]string{host.Repair, host.Tighten}, `call approve ended with code "cancelled"`},                      // the decisions are lost
		{[]string{host.AskPlannerFirst, host.ApplyDecisions, host.Repair, host.Tighten}, "call approve is planned"},
		{[]string{host.ApplyDecisions, host.AskPlannerFirst, host.Repair, host.Tighten}, "call approve is planned"},
	} {
		t.Run(strings.Join(tc.order, ", "), func(t *testing.T) {
			t.Parallel()
			if v := resumeIn(t, tc.order); !strings.Contains(v, tc.breaks) {
				t.Errorf("the wrong order broke %q, expected %q", v, tc.breaks)
			}
		})
	}
}
