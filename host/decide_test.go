package host_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/store"
)

func raw(s string) json.RawMessage { return json.RawMessage(s) }

// refusal fails the test unless err has the code, and returns what it says.
func refusal(t testing.TB, err error, code host.Code) *host.Error {
	t.Helper()
	e, ok := errors.AsType[*host.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("error %v, want code %s", err, code)
	}
	return e
}

// resultOf is how a call ended, for comparing: its result, or its error's code.
func resultOf(c host.Call) string {
	if c.Error != nil {
		if c.Result != nil {
			return "both " + string(c.Result) + " and " + c.Error.Code
		}
		return c.Error.Code
	}
	return string(c.Result)
}

func resultsOf(r host.Run) string {
	var out []string
	for _, c := range r.Calls {
		out = append(out, resultOf(c))
	}
	return strings.Join(out, " ")
}

// Public failures BY2, BY4.
func TestInvariant8_ABadAnswerChangesNothing(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", `{"transfer":{"when":{"amount":{"min":100}},"allowed_decisions":["approve","edit","reject"]},"echo":true}`)
	const batch = `[{"tool_call_id":"pay","tool":"transfer","arguments":{"amount":250}},{"tool_call_id":"say","tool":"echo","arguments":{"x":1}}]`
	other := h.Batch(hosttest.Member, "pay", batch)
	r := h.Batch(hosttest.Member, "pay", batch)
	pay, say := r.Pause.Approvals[0].ID, r.Pause.Approvals[1].ID
	both := func(d host.Decision) host.Answer {
		d.ApprovalID = pay
		return host.Answer{Decisions: []host.Decision{d, {ApprovalID: say, Kind: "approve"}}}
	}
	edit := func(args string) host.Answer { return both(host.Decision{Kind: "edit", Arguments: raw(args)}) }
	good := both(host.Decision{Kind: "approve"}).Decisions
	withContext := func(tc string) host.Answer { return host.Answer{Decisions: good, ToolContext: raw(tc)} }
	nullKind := host.Answer{}
	if err := ijson.Decode([]byte(`{"decisions":[{"approval_id":"`+pay+`","kind":null}]}`), &nullKind); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		by      host.Actor
		answer  host.Answer
		code    host.Code
		pointer string
	}{
		{"one of two", hosttest.Admin, host.Answer{Decisions: []host.Decision{{ApprovalID: pay, Kind: "approve"}}}, host.CodeIncomplete, ""},
		{"none of two", hosttest.Admin, host.Answer{Decisions: []host.Decision{}}, host.CodeIncomplete, ""},
		{"no decisions", hosttest.Admin, host.Answer{}, host.CodeInvalid, "/decisions"},
		{"user_input without a token", hosttest.Admin, host.Answer{UserInput: raw(`"yes"`)}, host.CodeInvalid, "/user_input"},
		{"unknown kind", hosttest.Admin, both(host.Decision{Kind: "approved"}), host.CodeInvalid, "/decisions/0/kind"},
		{"another case of a kind", hosttest.Admin, both(host.Decision{Kind: "Approve"}), host.CodeInvalid, "/decisions/0/kind"},
		{"missing kind", hosttest.Admin, both(host.Decision{}), host.CodeInvalid, "/decisions/0/kind"},
		{"null kind", hosttest.Admin, nullKind, host.CodeInvalid, "/decisions/0/kind"},
		{"no approval id", hosttest.Admin, host.Answer{Decisions: []host.Decision{{Kind: "approve"}}}, host.CodeInvalid, "/decisions/0/approval_id"},
		{"made-up approval", hosttest.Admin, host.Answer{Decisions: []host.Decision{good[0], {ApprovalID: "apr_1", Kind: "approve"}}}, host.CodeInvalid, "/decisions/1/approval_id"},
		{"an approval of another run", hosttest.Admin, host.Answer{Decisions: []host.Decision{good[0], {ApprovalID: other.Pause.Approvals[1].ID, Kind: "approve"}}}, host.CodeInvalid, "/decisions/1/approval_id"},
		{"one approval twice", hosttest.Admin, host.Answer{Decisions: []host.Decision{good[0], good[1], good[0]}}, host.CodeInvalid, "/decisions/2/approval_id"},
		{"the digest of something else", hosttest.Admin, both(host.Decision{Kind: "approve", ArgsDigest: hosttest.Digest(`{}`)}), host.CodeChanged, ""},
		{"a kind that the rule does not allow", hosttest.Admin, both(host.Decision{Kind: "respond", Value: raw("1")}), host.CodeNotAllowed, "/decisions/0/kind"},
		{"edit without arguments", hosttest.Admin, both(host.Decision{Kind: "edit"}), host.CodeInvalid, "/decisions/0/arguments"},
		{"approve with arguments", hosttest.Admin, both(host.Decision{Kind: "approve", Arguments: raw(`{"amount":1}`)}), host.CodeInvalid, "/decisions/0/arguments"},
		{"reject with a value", hosttest.Admin, both(host.Decision{Kind: "reject", Value: raw(`1`)}), host.CodeInvalid, "/decisions/0/value"},
		{"respond with nothing, after a good decision", hosttest.Admin, host.Answer{Decisions: []host.Decision{good[0], {ApprovalID: say, Kind: "respond"}}}, host.CodeInvalid, "/decisions/1/value"},
		{"edit of the wrong type", hosttest.Admin, edit(`{"amount":"250"}`), host.CodeInvalid, "/decisions/0/arguments/amount"},
		{"edit without a required member", hosttest.Admin, edit(`{"currency":"EUR"}`), host.CodeInvalid, "/decisions/0/arguments"},
		{"edit with an unknown member", hosttest.Admin, edit(`{"amount":250,"tip":1}`), host.CodeInvalid, "/decisions/0/arguments"},
		{"edit that is no object", hosttest.Admin, edit(`[250]`), host.CodeInvalid, "/decisions/0/arguments"},
		{"edit with one name twice", hosttest.Admin, edit(`{"amount":250,"amount":1}`), host.CodeInvalid, "/decisions/0/arguments"},
		{"edit beyond the integers of a double", hosttest.Admin, edit(`{"amount":9007199254740993}`), host.CodeInvalid, "/decisions/0/arguments"},
		{"edit below what stopped it", hosttest.Admin, edit(`{"amount":99.99}`), host.CodeOutOfScope, "/decisions/0/arguments"},
		{"a message above 16 KiB", hosttest.Admin, both(host.Decision{Kind: "reject", Message: strings.Repeat("x", 16<<10+1)}), host.CodeInvalid, "/decisions/0/message"},
		{"the caller's own approvals", hosttest.Admin, withContext(`{"approvals":{"transfer":true}}`), host.CodeInvalid, "/tool_context/approvals"},
		{"the caller's empty approvals", hosttest.Admin, withContext(`{"approvals":null}`), host.CodeInvalid, "/tool_context/approvals"},
		{"another tenant_id", hosttest.Admin, withContext(`{"tenant_id":"other"}`), host.CodeInvalid, "/tool_context/tenant_id"},
		{"another user_id", hosttest.Admin, withContext(`{"user_id":"admin"}`), host.CodeInvalid, "/tool_context/user_id"},
		{"a session_id where there is none", hosttest.Admin, withContext(`{"session_id":"s"}`), host.CodeInvalid, "/tool_context/session_id"},
		{"a tool_context that is no object", hosttest.Admin, withContext(`[]`), host.CodeInvalid, "/tool_context"},
		{"its own member", hosttest.Member, host.Answer{Decisions: good}, host.CodeForbidden, ""},
		{"a member whose decisions are malformed too", hosttest.Member, both(host.Decision{Kind: "x"}), host.CodeForbidden, ""},
		{"a service with every role", hosttest.Service, host.Answer{Decisions: good}, host.CodeForbidden, ""},
		{"another member", hosttest.Member2, host.Answer{Decisions: good}, host.CodeNotFound, ""},
		{"another tenant's admin", hosttest.OtherAdmin, host.Answer{Decisions: good}, host.CodeNotFound, ""},
	} {
		before := h.Stored()
		_, err := h.Decide(t.Context(), tc.by, r.ID, host.Idempotency{}, hosttest.Body(tc.answer))
		e, ok := errors.AsType[*host.Error](err)
		if !ok || e.Code != tc.code || !strings.HasPrefix(e.Pointer, tc.pointer) || (tc.pointer == "") != (e.Pointer == "") {
			t.Errorf("%s: error %v at %q, want %s at %q", tc.name, err, pointerOf(err), tc.code, tc.pointer)
		}
		if ok && e.Code == host.CodeIncomplete {
			want := []string{pay, say}
			if len(tc.answer.Decisions) == 1 {
				want = []string{say}
			}
			if !slices.Equal(e.Outstanding, want) {
				t.Errorf("%s: outstanding %v, want %v", tc.name, e.Outstanding, want)
			}
		}
		h.Unchanged(before)
		if t.Failed() {
			t.Fatalf("%s: stopped here, since what follows would only repeat it", tc.name)
		}
	}
	if n := len(h.Ran.All()); n != 0 {
		t.Fatalf("tools ran: %v", h.Ran.All())
	}
	if _, err := h.Answer(hosttest.Admin, r.ID, good...); err != nil {
		t.Fatal(err)
	}
	if got := resultsOf(h.Settled(r.ID)); got != `{"amount":250,"currency":"EUR"} {"x":1}` {
		t.Errorf("after the good answer: %s", got)
	}
}

func pointerOf(err error) string {
	if e, ok := errors.AsType[*host.Error](err); ok {
		return e.Pointer
	}
	return ""
}

// Public failure DX10.
func TestInvariant9_OneOfAHundredConcurrentDecisionsWins(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":10}}]},{"final":true}]`, `{"transfer":true}`)
	r := h.Create(hosttest.Member, "pay")
	id := r.Pause.Approvals[0].ID
	var wg sync.WaitGroup
	start := make(chan struct{})
	errs := make([]error, 100)
	for i := range errs {
		wg.Go(func() {
			<-start
			_, errs[i] = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: id, Kind: "approve"})
		})
	}
	close(start)
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		e := refusal(t, err, host.CodeAlreadyDecided)
		if len(e.Decisions) != 1 || e.Decisions[0].ApprovalID != id || e.Decisions[0].Kind != "approve" || e.Decisions[0].DecidedBy != "admin" || time.Time(e.Decisions[0].DecidedAt).IsZero() {
			t.Fatalf("a loser is told %+v, not who decided what", e.Decisions)
		}
	}
	if won != 1 {
		t.Errorf("%d requests won, want 1", won)
	}
	if r = h.Settled(r.ID); r.State != store.RunSucceeded || h.Ran.Count("transfer") != 1 {
		t.Errorf("run %s, the tool ran %d times", r.State, h.Ran.Count("transfer"))
	}
	outcomes := map[string]int{}
	for _, row := range h.AuditRows("demo") {
		if row.Action == "approval.decide" {
			outcomes[row.Outcome]++
		}
	}
	if outcomes["ok"] != 1 || outcomes["error"] != 1 || len(outcomes) != 2 {
		t.Errorf("audit rows by outcome %v, want one ok and one error", outcomes)
	}
	events := 0
	for _, e := range h.Events(r.ID) {
		if e["type"] == "approval.decided" {
			events++
		}
	}
	if events != 1 {
		t.Errorf("%d approval.decided events", events)
	}
	// A loser that comes after the end is told the same.
	_, err := h.Answer(hosttest.Owner, r.ID, host.Decision{ApprovalID: id, Kind: "reject"})
	if e := refusal(t, err, host.CodeAlreadyDecided); len(e.Decisions) != 1 || e.Decisions[0].Kind != "approve" {
		t.Errorf("told %+v", e.Decisions)
	}
}

// Public failure DX6.
func TestInvariant9_RacingApproveAndRejectAgreeOnOneOutcome(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":10}}]},{"final":true}]`, `{"transfer":true}`)
	for range 10 {
		ran := h.Ran.Count("transfer")
		r := h.Create(hosttest.Member, "pay")
		var wg sync.WaitGroup
		kinds := []string{"approve", "reject"}
		errs := make([]error, 2)
		for i, kind := range kinds {
			wg.Go(func() {
				_, errs[i] = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: kind})
			})
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("approve: %v, reject: %v; exactly one wins", errs[0], errs[1])
		}
		won, lost := 0, 1
		if errs[0] != nil {
			won, lost = 1, 0
		}
		if e := refusal(t, errs[lost], host.CodeAlreadyDecided); e.Decisions[0].Kind != kinds[won] {
			t.Fatalf("the loser is told %q, the winner was %q", e.Decisions[0].Kind, kinds[won])
		}
		r = h.Settled(r.ID)
		if n := h.Ran.Count("transfer") - ran; n != 1-won || (resultOf(r.Calls[0]) == "rejected") != (won == 1) {
			t.Fatalf("%s won, the tool ran %d times, the call ended with %s", kinds[won], n, resultOf(r.Calls[0]))
		}
	}
}

// Public failures DX6, MX11.
func TestInvariant8_RejectAndApproveInOneBatch(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("mix", `[{"calls":[{"tool_call_id":"a","tool":"transfer","arguments":{"amount":1}},{"tool_call_id":"b","tool":"transfer","arguments":{"amount":2}},`+
		`{"tool_call_id":"c","tool":"echo","arguments":{}},{"tool_call_id":"d","tool":"transfer","arguments":{"amount":4}}]},{"final":"end"}]`, `{"transfer":true}`)
	r := h.Create(hosttest.Member, "mix")
	if len(r.Pause.Approvals) != 3 || len(h.Ran.All()) != 0 {
		t.Fatalf("%d approvals, ran %v", len(r.Pause.Approvals), h.Ran.All())
	}
	ap := r.Pause.Approvals
	if _, err := h.Answer(hosttest.Admin, r.ID,
		host.Decision{ApprovalID: ap[2].ID, Kind: "respond", Value: raw(`{"by":"hand"}`)},
		host.Decision{ApprovalID: ap[0].ID, Kind: "reject", Message: "no"},
		host.Decision{ApprovalID: ap[1].ID, Kind: "approve"}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if got := resultsOf(r); r.State != store.RunSucceeded || got != `rejected {"amount":2,"currency":"EUR"} {} {"by":"hand"}` {
		t.Errorf("run %s: %s", r.State, got)
	}
	if r.Calls[0].Error.Message != "no" {
		t.Errorf("the model is told %q", r.Calls[0].Error.Message)
	}
	if got := h.Ran.All(); !slices.Equal(got, []string{`transfer {"amount":2,"currency":"EUR"}`, "echo {}"}) {
		t.Errorf("ran %v", got)
	}
	msgs, err := h.Trajectory(t.Context(), hosttest.Member, r.ID)
	results := map[string]int{}
	for i, m := range msgs {
		if m.Seq != i+1 {
			t.Errorf("message %d has seq %d", i+1, m.Seq)
		}
		if m.Role == "tool" {
			results[m.ToolCallID]++
		}
	}
	if fmt.Sprint(results) != "map[a:1 b:1 c:1 d:1]" || err != nil {
		t.Errorf("results by call %v, %v; want one each", results, err)
	}
	finished := map[string]int{}
	for _, e := range h.Events(r.ID) {
		if e["type"] == "call.finished" {
			finished[e["tool_call_id"].(string)]++
		}
	}
	if fmt.Sprint(finished) != "map[a:1 b:1 c:1 d:1]" {
		t.Errorf("call.finished events %v, want one each", finished)
	}
}

// Public failure MX9.
func TestRespond_FalsyValuesAreRealValues(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{"echo":true}`)
	values := []string{"false", "0", `""`, "null", "[]", "{}"}
	for _, stop := range []struct{ name, tool, args, result string }{
		{"at the gate", "echo", `{}`, `%s`},
		{"of a tool", "ask", `{"reason":"await_input","payload":{}}`, `{"reason":"await_input","decision":"respond","user_input":%s}`},
	} {
		var calls []string
		for range values {
			calls = append(calls, fmt.Sprintf(`{"tool":%q,"arguments":%s}`, stop.tool, stop.args))
		}
		r := h.Batch(hosttest.Member, "ask", "["+strings.Join(calls, ",")+"]")
		r = h.Settled(r.ID)
		var ds []host.Decision
		for i, ap := range r.Pause.Approvals {
			ds = append(ds, host.Decision{ApprovalID: ap.ID, Kind: "respond", Value: raw(values[i])})
		}
		if _, err := h.Answer(hosttest.Admin, r.ID, ds...); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
		for i, c := range r.Calls {
			if want := fmt.Sprintf(stop.result, values[i]); c.State != store.CallFinished || resultOf(c) != want {
				t.Errorf("%s: responded %s, the call is %s with %s, want %s", stop.name, values[i], c.State, resultOf(c), want)
			}
		}
	}
}

// Public failure EX4.
func TestExpiry_HoldsAtItsMomentSweptOrNot(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":10}}]},{"final":true}]`, `{"transfer":{"ttl":"1h"}}`)
	inTime, late := h.Create(hosttest.Member, "pay"), h.Create(hosttest.Member, "pay")
	if got := time.Time(late.Pause.ExpiresAt).Sub(h.Clock.Now()); got != time.Hour {
		t.Fatalf("the pause is open for %v, want the rule's 1h", got)
	}
	h.Clock.Advance(time.Hour - time.Millisecond)
	if _, err := h.DecideAll(hosttest.Admin, inTime, "approve"); err != nil {
		t.Errorf("a millisecond before: %v", err)
	}
	h.Clock.Advance(time.Millisecond)
	h.Settled(inTime.ID)
	try := func() {
		t.Helper()
		_, err := h.DecideAll(hosttest.Admin, late, "approve")
		refusal(t, err, host.CodeApprovalExpired)
		_, err = h.Decide(t.Context(), hosttest.Admin, late.ID, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: []host.Decision{}}))
		refusal(t, err, host.CodeApprovalExpired)
		_, err = h.Resume(t.Context(), hosttest.Admin, late.Pause.ResumeToken, host.Idempotency{}, hosttest.Body(host.Answer{UserInput: raw("1")}))
		refusal(t, err, host.CodeTokenExpired)
	}
	before := h.Stored()
	try() // not swept yet
	h.Unchanged(before)
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	try()
	r := h.Settled(late.ID)
	if r.State != store.RunFailed || r.Error == nil || r.Error.Code != "approval_expired" || r.Error.Message != "approval expired" {
		t.Errorf("run %s, error %+v", r.State, r.Error)
	}
	if got := resultOf(r.Calls[0]); got != "cancelled" || !strings.Contains(r.Calls[0].Error.Message, "expired") {
		t.Errorf("the call ended with %s: %+v", got, r.Calls[0].Error)
	}
	if n := h.Ran.Count("transfer"); n != 1 {
		t.Errorf("the tool ran %d times, want once for the decision in time", n)
	}
}
