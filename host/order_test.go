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
	deadline := time.Now().Add(30 * time.Second)
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
		{[]string{host.AskPlannerFirst, host.ApplyDecisions, host.Repair, host.Tighten}, `call approve ended with code "cancelled"`},
		{[]string{host.ApplyDecisions, host.AskPlannerFirst, host.Repair, host.Tighten}, `call approve ended with code "cancelled"`},
	} {
		t.Run(strings.Join(tc.order, ", "), func(t *testing.T) {
			t.Parallel()
			if v := resumeIn(t, tc.order); !strings.Contains(v, tc.breaks) {
				t.Errorf("the wrong order broke %q, expected %q", v, tc.breaks)
			}
		})
	}
}

// The same with a run that is stopped at depth 2 in two branches, each with a finished call behind it: the decisions lie in frames
// below the root's, two to a branch, and one of each branch is denied when the run goes on.
func resumeFramesIn(t *testing.T, order []string) (verdict string) {
	t.Helper()
	st := memstore.New()
	defer st.Close()
	branch := func(name, first, second string, amounts ...int) string {
		gated := func(label string, amount int) string {
			return fmt.Sprintf(`{"tool_call_id":%q,"tool":"transfer","arguments":{"amount":%d,"to":%q}}`, label, amount, label)
		}
		leaf := sub("leaf", fmt.Sprintf(`[{"calls":[{"tool_call_id":"before-%s","tool":"echo","arguments":{"to":"before-%s"}}]},
			{"calls":[%s,%s,{"tool_call_id":"free-%s","tool":"echo","arguments":{"to":"free-%s"}}]},{"final":%q}]`,
			name, name, gated(first, amounts[0]), gated(second, amounts[1]), name, name, name), "")
		return sub(name, `[{"calls":[`+task("leaf-"+name, "leaf", "x")+`]},{"final":"`+name+`"}]`, `,"subagents":[`+leaf+`]`)
	}
	h := hosttest.New(t, hosttest.Options{Store: st})
	h.Agent("lead", scripted(`[{"calls":[`+task("to-left", "left", "x")+`,`+task("to-right", "right", "x")+`]},{"final":"done"}]`,
		`,"interrupt_on":{"transfer":true},"subagents":[`+branch("left", "approve", "reject", 1, 2)+`,`+branch("right", "respond", "denied", 3, 4)+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	h.Stop()
	ran := h.Ran.All()
	if len(r.Pause.Approvals) != 4 || len(ran) != 2 {
		t.Fatalf("%d approvals, executed %q", len(r.Pause.Approvals), ran)
	}
	h = hosttest.New(t, hosttest.Options{Store: st, Idle: true})
	var ds []host.Decision
	for _, a := range r.Pause.Approvals {
		kind := strings.Replace(a.ToolCallID, "denied", "approve", 1)
		ds = append(ds, host.Decision{ApprovalID: a.ID, Kind: kind, Message: "by hand"})
	}
	if _, err := h.Answer(hosttest.Admin, r.ID, ds...); err != nil {
		t.Fatal(err)
	}
	h = hosttest.New(t, hosttest.Options{Store: st, Idle: true, Rules: rules(`deny contains {"rule": "four", "message": "not four"} if input.call.arguments.amount == 4`)})
	if order != nil {
		h.SetResumeOrder(order...)
	}
	h.Start()
	defer h.Stop()
	deadline := time.Now().Add(20 * time.Second)
	for r, _ = h.GetRun(t.Context(), hosttest.Owner, r.ID); !r.State.Ended(); r, _ = h.GetRun(t.Context(), hosttest.Owner, r.ID) {
		if r.State.Paused() {
			return fmt.Sprintf("asked again about %d calls that were decided", len(r.Pause.Approvals))
		}
		if time.Now().After(deadline) {
			return "the run hangs in " + string(r.State)
		}
	}
	if r.State != store.RunSucceeded {
		return fmt.Sprintf("the run ended %s: %+v", r.State, r.Error)
	}
	if len(r.Calls) != 12 {
		return fmt.Sprintf("%d calls: a planner was asked while its batch was open", len(r.Calls))
	}
	for _, c := range [][2]string{
		{"to-left", `"left"`}, {"to-right", `"right"`}, {"leaf-left", `"left"`}, {"approve", `{"amount":1,"currency":"EUR","to":"approve"}`}, {"reject", "rejected"},
		{"respond", `"by hand"`}, {"denied", "denied"}, {"free-left", `{"to":"free-left"}`}, {"free-right", `{"to":"free-right"}`},
	} {
		label, want := c[0], c[1]
		if c := byLabel(r, label)[0]; c.State != store.CallFinished || resultOf(c) != want {
			return fmt.Sprintf("call %s is %s with %s, not %s", label, c.State, resultOf(c), want)
		}
	}
	ran = append(ran, h.Ran.All()...)
	if got := strings.Join(ran, " "); len(ran) != 5 || strings.Count(got, "before") != 2 || strings.Count(got, "free") != 2 || strings.Count(got, `"amount":1`) != 1 {
		return "what ran: " + got
	}
	return ""
}

func TestResumeOrder_RightOneHoldsInSubagents(t *testing.T) {
	t.Parallel()
	if v := resumeFramesIn(t, nil); v != "" {
		t.Error(v)
	}
}

func TestResumeOrder_EachWrongOneIsCaughtInSubagents(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		order  []string
		breaks string
	}{
		{[]string{host.Repair, host.ApplyDecisions, host.Tighten}, "with cancelled, not"},                        // repair destroys what was approved below
		{[]string{host.Tighten, host.ApplyDecisions, host.Repair}, "call denied is finished with {"},             // the deny comes too early to be seen
		{[]string{host.ApplyDecisions, host.Repair}, "call denied is finished with {"},                           // nobody asks policy again
		{[]string{host.Repair, host.Tighten}, "with cancelled, not"},                                             // the decisions are lost
		{[]string{host.ApplyInOneBranch, host.Repair, host.Tighten}, "with cancelled, not"},                      // those of the other branch are lost
		{[]string{host.AskPlannerFirst, host.ApplyDecisions, host.Repair, host.Tighten}, "call to-left is "},     // the root goes on without its subagents
		{[]string{host.AskInnermostFirst, host.ApplyDecisions, host.Repair, host.Tighten}, " is awaiting with "}, // a subagent goes on without its calls
		{[]string{host.ApplyDecisions, host.RestartSubagents, host.Repair, host.Tighten}, "asked again about 3"}, // elsewhere a resumed run begins its subagents again
	} {
		t.Run(strings.Join(tc.order, ", "), func(t *testing.T) {
			t.Parallel()
			if v := resumeFramesIn(t, tc.order); !strings.Contains(v, tc.breaks) {
				t.Errorf("the wrong order broke %q, expected %q", v, tc.breaks)
			}
		})
	}
}
