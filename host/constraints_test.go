package host_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

const limitRule = `fine if {
	is_number(input.call.arguments.amount)
	input.call.arguments.amount <= 100
}
pause contains {"rule": "team/limit", "reason": "constraints_conflict", "title": "Above the limit", "message": "100 without a second person",
	"allowed_decisions": ["approve", "edit", "reject"]} if {
	input.call.tool == "transfer"
	not fine
}`

// A limit that is exceeded: the reason is told everywhere, whoever may decide may override it by approving, and the requester may not.
func TestConstraintsConflict_FromTheRuleToTheResult(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(limitRule)})
	h.External("pay", `{"echo":true}`)
	r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":500}},{"tool":"echo","arguments":{"hi":1}},{"tool":"transfer","arguments":{"amount":5}}]`)
	if r.State != store.RunAwaitingApproval || r.Pause.Reason != "constraints_conflict" || len(r.Pause.Approvals) != 2 {
		t.Fatalf("state %s, pause %+v", r.State, r.Pause)
	}
	limit, asked := r.Pause.Approvals[0], r.Pause.Approvals[1]
	if limit.Reason != "constraints_conflict" || limit.Title != "Above the limit" || limit.Message == "" || !slices.Equal(limit.Rules, []string{"team/limit"}) || slices.Contains(limit.Allowed, "respond") {
		t.Errorf("%+v", limit)
	}
	if asked.Reason != "approval_required" {
		t.Errorf("%+v", asked)
	}
	out, err := h.Evaluate(t.Context(), hosttest.Admin, hosttest.Body(host.Evaluation{Agent: "pay", Call: host.ProposedCall{Tool: "transfer", Arguments: raw(`{"amount":500}`)}}))
	if err != nil || !strings.Contains(string(out), `"reason":"constraints_conflict"`) {
		t.Errorf("%s, %v", out, err)
	}
	_, err = h.DecideAll(hosttest.Member, r, "approve")
	refusal(t, err, host.CodeForbidden)
	_, err = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: limit.ID, Kind: "respond", Value: raw(`1`)}, host.Decision{ApprovalID: asked.ID, Kind: "approve"})
	refusal(t, err, host.CodeNotAllowed)
	_, err = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: limit.ID, Kind: "edit", Arguments: raw(`{"amount":50}`)}, host.Decision{ApprovalID: asked.ID, Kind: "approve"})
	refusal(t, err, host.CodeOutOfScope) // within the limit is outside of what was asked: the model may propose that itself
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: limit.ID, Kind: "edit", Arguments: raw(`{"amount":400}`)}, host.Decision{ApprovalID: asked.ID, Kind: "approve"}); err != nil {
		t.Fatal(err)
	}
	if got := resultsOf(h.Settled(r.ID)); got != `{"amount":400,"currency":"EUR"} {"hi":1} {"amount":5,"currency":"EUR"}` {
		t.Errorf("results %s", got)
	}
	var reasons []string
	for _, ev := range h.Events(r.ID) {
		if ev["type"] == "approval.requested" {
			reasons = append(reasons, ev["approval"].(map[string]any)["reason"].(string))
		}
	}
	if !slices.Equal(reasons, []string{"constraints_conflict", "approval_required"}) {
		t.Errorf("announced %q", reasons)
	}
}

// A limit is news to the approver also beside a rule that only asks.
func TestConstraintsConflict_IsNotHiddenByAnotherRule(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(limitRule)})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":500}}]`)
	ap := r.Pause.Approvals[0]
	if ap.Reason != "constraints_conflict" || r.Pause.Reason != "constraints_conflict" || !slices.Equal(ap.Rules, []string{"interrupt_on/transfer", "team/limit"}) || len(ap.Allowed) != 3 {
		t.Errorf("%+v", ap)
	}
}

// The other reasons belong to tools and to events: nobody could answer a stop of policy that claims one of them.
func TestInvariant5_ARuleWithAnotherReasonDenies(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{`"await_input"`, `"external_event"`, `"because"`, `""`, `null`, `7`, `["constraints_conflict"]`} {
		h := hosttest.New(t, hosttest.Options{Rules: rules(`pause contains {"rule": "x", "reason": ` + reason + `} if input.call.tool == "echo"`)})
		h.External("say", `{}`)
		r := h.Settled(h.Batch(hosttest.Member, "say", `[{"tool":"echo","arguments":{}}]`).ID)
		if log := h.Log.String(); !strings.Contains(log, "people.rego:3: pause: reason ") {
			t.Errorf("reason %s: the host does not warn: %s", reason, log)
		}
		if got := resultsOf(r); got != "denied" || !strings.Contains(r.Calls[0].Error.Message, "policy_shape") || h.Ran.Count("echo") != 0 {
			t.Errorf("reason %s: state %s, %s", reason, r.State, got)
		}
	}
}
