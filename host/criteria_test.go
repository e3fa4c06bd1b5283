package host_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

// The success criteria of human-in-the-loop, one test each under the name of the criterion, with a direct check. The long bodies about the
// same things are named for the invariants. What needs a wire is in api/criteria_test.go.

// mixed is a batch of a gated call between two free ones.
const mixed = `[{"calls":[{"tool_call_id":"a","tool":"echo","arguments":{"n":1}},{"tool_call_id":"pay","tool":"transfer","arguments":{"amount":10}},` +
	`{"tool_call_id":"b","tool":"read_echo","arguments":{"n":2}}]},{"final":"done"}]`

func TestSeed_AConfiguredToolSuspendsTheRunAndNoToolOfItsBatchExecutes(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", mixed, gatedTransfer)
	r := h.Settled(h.Create(hosttest.Member, "pay").ID)
	if r.State != store.RunAwaitingApproval || r.AwaitingSince == nil || len(r.Pause.Approvals) != 1 || r.Pause.Approvals[0].ToolCallID != "pay" {
		t.Fatalf("the run is %s since %v with %+v", r.State, r.AwaitingSince, r.Pause)
	}
	if ran := h.Ran.All(); len(ran) != 0 {
		t.Errorf("executed: %q", ran)
	}
	for _, c := range r.Calls {
		if c.State != store.CallPlanned && c.State != store.CallAwaiting {
			t.Errorf("call %s is %s", c.ToolCallID, c.State)
		}
	}
}

func TestSeed_EachDecisionResumesTheRunAndGivesTheDocumentedResult(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		decision host.Decision
		result   string // or the code of the error
		executed []string
	}{
		{host.Decision{Kind: "approve"}, `{"amount":10,"currency":"EUR"}`, []string{`transfer {"amount":10,"currency":"EUR"}`}},
		{host.Decision{Kind: "edit", Arguments: raw(`{"amount":9}`)}, `{"amount":9,"currency":"EUR"}`, []string{`transfer {"amount":9,"currency":"EUR"}`}},
		{host.Decision{Kind: "reject", Message: "too much"}, "rejected", nil},
		{host.Decision{Kind: "respond", Message: "paid by hand"}, `"paid by hand"`, nil},
	} {
		t.Run(tc.decision.Kind, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Script("pay", mixed, gatedTransfer)
			r := h.Create(hosttest.Member, "pay")
			d := tc.decision
			d.ApprovalID = r.Pause.Approvals[0].ID
			if _, err := h.Answer(hosttest.Admin, r.ID, d); err != nil {
				t.Fatal(err)
			}
			r = h.Settled(r.ID)
			c := r.Calls[1]
			if r.State != store.RunSucceeded || string(r.Output) != `"done"` || resultOf(c) != tc.result {
				t.Errorf("the run is %s with %s; the call ended with %s, want %s", r.State, r.Output, resultOf(c), tc.result)
			}
			if d.Kind == "reject" && c.Error.Message != "too much" {
				t.Errorf("the model is told %q", c.Error.Message)
			}
			var transfers []string
			for _, ran := range h.Ran.All() {
				if strings.HasPrefix(ran, "transfer") {
					transfers = append(transfers, ran)
				}
			}
			if !slices.Equal(transfers, tc.executed) || h.Ran.Count("echo") != 1 || h.Ran.Count("read_echo") != 1 {
				t.Errorf("executed %q", h.Ran.All())
			}
		})
	}
}

func TestSeed_PartialApprovalIsRefusedWithWhatIsOutstandingAndAMemberMayNotDecide(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", `{"transfer":true,"echo":true}`)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	first, second := r.Pause.Approvals[0].ID, r.Pause.Approvals[1].ID
	before := h.Stored()
	_, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: first, Kind: "approve"})
	if e := refusal(t, err, host.CodeIncomplete); !slices.Equal(e.Outstanding, []string{second}) {
		t.Errorf("outstanding %v, want %s", e.Outstanding, second)
	}
	_, err = h.DecideAll(hosttest.Member, r, "approve") // its own creator
	refusal(t, err, host.CodeForbidden)
	_, err = h.DecideAll(hosttest.Member2, r, "approve") // who may not even see it
	refusal(t, err, host.CodeNotFound)
	h.Unchanged(before)
	if aps, err := h.RunApprovals(t.Context(), hosttest.Member, r.ID); err != nil || len(aps) != 2 {
		t.Errorf("its creator sees %d of what is pending, %v", len(aps), err)
	}
	if n := len(h.Ran.All()); n != 0 {
		t.Errorf("%d tools executed", n)
	}
}

// The host restarts between the decision and the resumption: the repair of dangling calls then meets a call that has a decision.
func TestSeed_AnApprovedToolExecutesOnceAfterResumeAndRepairDoesNotReplaceIt(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Idle: true})
	h.Script("pay", mixed, gatedTransfer)
	r := h.Create(hosttest.Member, "pay")
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	h = restart(t, h, hosttest.Options{})
	r = h.Settled(r.ID)
	if got := resultsOf(r); got != `{"n":1} {"amount":10,"currency":"EUR"} {"n":2}` {
		t.Errorf("results %s", got)
	}
	if h.Ran.Count("transfer") != 1 || len(h.Ran.All()) != 3 {
		t.Errorf("executed %q", h.Ran.All())
	}
}

func TestSeed_OfTwoConcurrentFinalApprovalsOneWinsAndTheToolExecutesOnce(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", mixed, gatedTransfer)
	for i := range 20 {
		r := h.Create(hosttest.Member, "pay")
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for n, a := range []host.Actor{hosttest.Admin, hosttest.Owner} {
			wg.Go(func() { _, errs[n] = h.DecideAll(a, r, "approve") })
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("round %d: %v and %v; exactly one wins", i, errs[0], errs[1])
		}
		refusal(t, errors.Join(errs...), host.CodeAlreadyDecided)
		h.Settled(r.ID)
		resumed := 0
		for _, e := range h.Events(r.ID) {
			if e["type"] == "run.resumed" {
				resumed++
			}
		}
		if resumed != 1 || h.Ran.Count("transfer") != i+1 {
			t.Fatalf("round %d: %d transitions, %d executions", i, resumed, h.Ran.Count("transfer"))
		}
	}
}

func TestSeed_AnEditThatMissesTheSchemaOrLeavesTheRulesScopeIsRefusedAndTheApprovalStaysPending(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("write", `{"write_file":{"when":{"path":{"under":["/memories/"]}}}}`)
	r := h.Batch(hosttest.Member, "write", `[{"tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}]`)
	ap := r.Pause.Approvals[0]
	before := h.Stored()
	for args, code := range map[string]host.Code{
		`{"path":7,"content":"x"}`: host.CodeInvalid, `{"path":"/memories/a"}`: host.CodeInvalid, `{"path":"/memories/a","content":"x","mode":1}`: host.CodeInvalid,
		`{"path":"/tmp/a","content":"x"}`: host.CodeOutOfScope, `{"path":"/memories/../tmp/a","content":"x"}`: host.CodeOutOfScope, `{"path":"/memoriesx","content":"x"}`: host.CodeOutOfScope,
	} {
		_, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: ap.ID, Kind: "edit", Arguments: raw(args)})
		if e := refusal(t, err, code); !strings.HasPrefix(e.Pointer, "/decisions/0/arguments") {
			t.Errorf("%s: pointer %q", args, e.Pointer)
		}
	}
	h.Unchanged(before)
	if aps, _, err := h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{}); err != nil || len(aps) != 1 || aps[0].ID != ap.ID {
		t.Errorf("pending: %+v, %v", aps, err)
	}
}

// This test is not parallel: no other test of the package runs beside it, so that each goroutine it finds is one of these runs'.
func TestSeed_ASuspendedRunOccupiesNoWorkerAndNoGoroutine(t *testing.T) {
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", mixed, gatedTransfer)
	h.Script("ask", `[{"calls":[{"tool":"ask","arguments":{"reason":"await_input","payload":{}}}]},{"final":1}]`, "")
	h.Agent("lead", nested(2, `[{"calls":[`+pay+`]},{"final":1}]`, gatedTransfer))
	suspend := func() {
		t.Helper()
		for _, agent := range []string{"pay", "ask", "lead"} {
			if r := h.Settled(h.Create(hosttest.Member, agent).ID); !r.State.Paused() {
				t.Fatalf("a run of %s is %s", agent, r.State)
			}
		}
	}
	suspend() // what is made once is there
	known := goleak.IgnoreCurrent()
	for range 20 {
		suspend()
	}
	if err := goleak.Find(known); err != nil {
		t.Errorf("goroutines of suspended runs: %v", err)
	}
	if s := h.Stats(); s.Waiting != 0 || s.Driven != 0 {
		t.Errorf("%d suspended runs wait for a worker, %d have one", s.Waiting, s.Driven)
	}
}

func TestSeed_AResumedRunDoesNotExecuteCompletedCallsAgain(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	// A call of an earlier turn, a finished sibling of a tool's own stop, and a stop at the gate, over two restarts.
	h.Script("work", `[{"calls":[{"tool":"echo","arguments":{"turn":1}}]},
		{"calls":[{"tool":"echo","arguments":{"turn":2}},{"tool":"ask","arguments":{"reason":"await_input","payload":{}}}]},
		{"calls":[{"tool":"transfer","arguments":{"amount":3}}]},{"final":"done"}]`, gatedTransfer)
	r := h.Settled(h.Create(hosttest.Member, "work").ID)
	var ran []string
	for _, kind := range []string{"respond", "approve"} {
		h.Stop()
		ran = append(ran, h.Ran.All()...)
		h = restart(t, h, hosttest.Options{})
		if _, err := h.DecideAll(hosttest.Admin, r, kind); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
	}
	want := []string{
		`echo {"turn":1}`, `echo {"turn":2}`, `ask {"payload":{},"reason":"await_input"}`, `transfer {"amount":3,"currency":"EUR"}`,
	}
	if ran = append(ran, h.Ran.All()...); r.State != store.RunSucceeded || !slices.Equal(ran, want) {
		t.Errorf("the run is %s, executed\n%q, want\n%q", r.State, ran, want)
	}
}

// The sweeper is the host's own, on its own ticks; only the clock is the test's.
func TestSeed_TheExpirySweeperFailsAStaleRunWithApprovalExpiredAndEmitsRunFinished(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Config: func(c *host.Config) { c.SweepInterval = time.Millisecond }})
	h.Script("pay", mixed, gatedTransfer)
	r := h.Create(hosttest.Member, "pay")
	h.Clock.Advance(24 * time.Hour)
	for deadline := time.Now().Add(20 * time.Second); !r.State.Ended(); {
		var err error
		if r, err = h.GetRun(t.Context(), hosttest.Member, r.ID); err != nil || time.Now().After(deadline) {
			t.Fatalf("the run is still %s, %v", r.State, err)
		}
	}
	if r.State != store.RunFailed || r.Error == nil || r.Error.Code != "approval_expired" || r.Error.Message != "approval expired" {
		t.Errorf("the run is %s with %+v", r.State, r.Error)
	}
	events := h.Events(r.ID)
	if last := events[len(events)-1]; last["type"] != "run.finished" || last["state"] != "failed" {
		t.Errorf("the last event is %v", last)
	}
	if n := len(h.Ran.All()); n != 0 {
		t.Errorf("%d tools executed", n)
	}
}

func TestSeed_EveryOutcomeOfAnApprovalIsAuditedWithoutArguments(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool_call_id":"pay","tool":"transfer","arguments":{"amount":4711,"to":"canary"}}]},{"final":1}]`, gatedTransfer)
	seen := 0
	rows := func() (out []host.AuditRow) { // the new rows about approvals
		all := h.AuditRows("demo")
		for _, row := range all[seen:] {
			if strings.HasPrefix(row.Action, "approval.") {
				out = append(out, row)
			}
		}
		seen = len(all)
		return out
	}
	for _, kind := range []string{"approve", "edit", "reject", "respond"} {
		r := h.Create(hosttest.Member, "pay")
		ap := r.Pause.Approvals[0]
		rows()
		if _, err := h.DecideAll(hosttest.Member, r, "approve"); host.CodeOf(err) != host.CodeForbidden {
			t.Fatal(err)
		}
		if got := rows(); len(got) != 1 || got[0].Action != "approval.decide" || got[0].Outcome != "denied" || got[0].ActorKind != "user" || *got[0].ActorID != "member" || got[0].TargetID != ap.ID {
			t.Errorf("a member's 403: %s", text(t, got, nil))
		}
		d := host.Decision{ApprovalID: ap.ID, Kind: kind}
		switch kind {
		case "edit":
			d.Arguments = raw(`{"amount":4712,"to":"canary"}`)
		case "respond":
			d.Value = raw(`"canary"`)
		case "reject":
			d.Message = "canary"
		}
		if _, err := h.Answer(hosttest.Admin, r.ID, d); err != nil {
			t.Fatal(err)
		}
		got := rows()
		if len(got) != 1 {
			t.Fatalf("%s: %s", kind, text(t, got, nil))
		}
		row := got[0]
		if row.Action != "approval.decide" || row.Outcome != "ok" || row.ActorKind != "user" || *row.ActorID != "admin" || row.TargetKind != "pending_approval" || row.TargetID != ap.ID ||
			row.Detail["decided_by"] != "admin" || row.Detail["decision"] != kind || row.Detail["tool"] != "transfer" || row.Detail["call_id"] != ap.CallID {
			t.Errorf("%s: %s", kind, text(t, row, nil))
		}
		if _, err := h.Answer(hosttest.Owner, r.ID, d); host.CodeOf(err) != host.CodeAlreadyDecided {
			t.Fatal(err)
		}
		if got := rows(); len(got) != 1 || got[0].Action != "approval.decide" || got[0].Outcome != "error" || *got[0].ActorID != "owner" {
			t.Errorf("a loser's 409: %s", text(t, got, nil))
		}
		h.Settled(r.ID)
	}
	r := h.Create(hosttest.Member, "pay")
	rows()
	h.Clock.Advance(24 * time.Hour)
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := rows(); len(got) != 1 || got[0].Action != "approval.expire" || got[0].ActorKind != "system" || got[0].ActorID != nil ||
		got[0].TargetKind != "pending_approval" || got[0].TargetID != r.Pause.Approvals[0].ID || got[0].Detail["tool"] != "transfer" {
		t.Errorf("an expiry: %s", text(t, got, nil))
	}
	all := text(t, h.AuditRows("demo"), nil)
	for _, argument := range []string{"canary", "4711", "4712"} {
		if strings.Contains(all, argument) {
			t.Errorf("a row contains %s", argument)
		}
	}
}

func TestSeed_WithNoConfigurationAWriteToMemoriesSuspends(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for _, path := range []string{"/memories/AGENTS.md", "/skills/x.md", "/tmp/x"} {
		h.Agent("plain", fmt.Sprintf(`{"planner":{"kind":"script","turns":[{"calls":[{"tool":"write_file","arguments":{"path":%q,"content":"x"}}]},{"final":1}]},"tools":["write_file"]}`, path))
		r := h.Settled(h.Create(hosttest.Member, "plain").ID)
		if stops := path != "/tmp/x"; (r.State == store.RunAwaitingApproval) != stops {
			t.Errorf("a write to %s: the run is %s", path, r.State)
		}
	}
	if got := h.Ran.All(); len(got) != 1 || !strings.Contains(got[0], "/tmp/x") {
		t.Errorf("executed %q", got)
	}
}

func TestSeed_ASubagentsInterruptSuspendsTheParentRunAndResumesIntoTheChild(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", nested(1, `[{"calls":[{"tool_call_id":"e","tool":"echo","arguments":{"before":1}}]},{"calls":[`+pay+`]},{"final":"below"}]`, gatedTransfer))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	tk := byLabel(r, "t")[0]
	if r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 1 || r.Pause.Approvals[0].ParentCallID != tk.ID || tk.Tool != "task" {
		t.Fatalf("the run is %s: %+v", r.State, r.Pause)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunSucceeded || resultOf(byLabel(r, "t")[0]) != `"below"` || resultOf(byLabel(r, "pay")[0]) != `{"amount":7,"currency":"EUR"}` {
		t.Errorf("the run is %s: %s", r.State, resultsOf(r))
	}
	if h.Ran.Count("echo") != 1 || h.Ran.Count("transfer") != 1 {
		t.Errorf("executed %q", h.Ran.All())
	}
}

func TestSeed_SuspendedAndResumedTracesAreLinkedAndTheApprovalSeriesExist(t *testing.T) {
	t.Parallel()
	tr := newTraces(t)
	h := hosttest.New(t, hosttest.Options{Config: tr.config})
	h.Script("pay", mixed, gatedTransfer)
	r, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "pay", SessionID: "s-1"}))
	if err != nil {
		t.Fatal(err)
	}
	series := scrape(t, h)
	h.Clock.Advance(90 * time.Second)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	maps.Copy(series, scrape(t, h))
	h.Stop() // all spans are written
	spans := tr.spans()
	suspended, resumed := spans.one("invoke_agent", "pawl.run.outcome", "awaiting_approval"), spans.one("invoke_agent", "pawl.run.outcome", "succeeded")
	if len(resumed.Links) == 0 || resumed.Links[0].SpanContext.SpanID() != suspended.SpanContext.SpanID() || resumed.SpanContext.TraceID() == suspended.SpanContext.TraceID() {
		t.Errorf("the resumed trace has the links %v", resumed.Links)
	}
	if from, waited := attr(resumed.Attributes, "pawl.run.resumed_from_span_id"), attr(resumed.Attributes, "pawl.run.suspension_seconds"); from != suspended.SpanContext.SpanID().String() || waited != "90" {
		t.Errorf("resumed from %q after %q seconds", from, waited)
	}
	for _, sp := range []string{attr(suspended.Attributes, "session.id"), attr(resumed.Attributes, "session.id")} {
		if sp != "s-1" {
			t.Errorf("a trace of the session %q", sp)
		}
	}
	for _, name := range []string{"pawl_approvals_pending{tool=transfer}", "pawl_approvals_wait_time_seconds{tool=transfer}_count", "pawl_approvals_decisions_total{decision=approve,tool=transfer}", "pawl_approvals_expired_total{tool=transfer}", "pawl_runs_by_state{state=awaiting_approval}"} {
		if _, ok := series[name]; !ok {
			t.Errorf("no series %s", name)
		}
	}
}

func TestSeed_AWhenMatcherScopesAnInterruptToAPathPrefix(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("write", `{"write_file":{"when":{"path":{"under":["/contracts/"]}}}}`)
	for path, stops := range map[string]bool{"/contracts/a": true, "/contracts": true, "/contracts/../notes/a": true, "/notes/a": false, "/contractsx": false} {
		r := h.Settled(h.Batch(hosttest.Member, "write", fmt.Sprintf(`[{"tool":"write_file","arguments":{"path":%q,"content":"x"}}]`, path)).ID)
		if (r.State == store.RunAwaitingApproval) != stops {
			t.Errorf("a write to %s: the run is %s", path, r.State)
		}
	}
}

func TestSeed_PendingApprovalsAreIsolatedBetweenTenantsAndBetweenMembers(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", mixed, gatedTransfer)
	r := h.Create(hosttest.Member, "pay")
	id := r.Pause.Approvals[0].ID
	for _, tc := range []struct {
		who  host.Actor
		sees bool
	}{
		{hosttest.Owner, true}, {hosttest.Admin, true}, {hosttest.Member, true}, {hosttest.Member2, false}, {hosttest.OtherAdmin, false}, {hosttest.OtherMember, false},
	} {
		list, _, err := h.Approvals(t.Context(), tc.who, "pending", host.Page{})
		if err != nil || (len(list) == 1) != tc.sees {
			t.Errorf("%s/%s lists %d, %v", tc.who.Tenant, tc.who.ID, len(list), err)
		}
		_, byRun := h.RunApprovals(t.Context(), tc.who, r.ID)
		_, byID := h.GetApproval(t.Context(), tc.who, id)
		for _, err := range []error{byRun, byID} {
			if (err == nil) != tc.sees || err != nil && host.CodeOf(err) != host.CodeNotFound {
				t.Errorf("%s/%s reads it: %v", tc.who.Tenant, tc.who.ID, err)
			}
		}
		if !tc.sees {
			_, err = h.DecideAll(tc.who, r, "approve")
			refusal(t, err, host.CodeNotFound)
		}
	}
}

// A default may be relaxed by name, and removed only in so many words, which are logged and audited when the agent is saved.
func TestSeed_ADefaultInterruptIsRemovedOnlyExplicitlyAndThatIsAudited(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for interruptOn, removed := range map[string]bool{`{}`: false, `{"transfer":true}`: false, `{"write_file":{"allowed_decisions":["approve"]}}`: false, `{"write_file":false}`: true} {
		name := "a" + fmt.Sprint(len(interruptOn))
		h.External(name, interruptOn)
		r := h.Settled(h.Batch(hosttest.Member, name, `[{"tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}]`).ID)
		audited := slices.ContainsFunc(h.AuditRows("demo"), func(row host.AuditRow) bool { return row.Action == "agent.default_removed" && row.TargetID == name })
		if (r.State == store.RunAwaitingApproval) == removed || audited != removed {
			t.Errorf("%s: the run is %s, the removal audited: %v", interruptOn, r.State, audited)
		}
	}
}
