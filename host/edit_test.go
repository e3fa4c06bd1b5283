package host_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

func TestInvariant8_DoubtAboutAnEditCountsAsOutside(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", `{"transfer":{"when":{"to":{"prefix":"ext-"}}}}`)
	r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":1,"to":"ext-7"}}]`)
	before := h.Stored()
	_, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":1}`)})
	refusal(t, err, host.CodeOutOfScope) // at the gate a missing field stops; in an edit it is not within what stopped the call
	h.Unchanged(before)
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":1,"to":"ext-8"}`)}); err != nil {
		t.Fatal(err)
	}
	if got := resultsOf(h.Settled(r.ID)); got != `{"amount":1,"currency":"EUR","to":"ext-8"}` {
		t.Errorf("got %s", got)
	}
	// A call without the field stops at the gate (doubt stops), and an edit that gives it the field outside the rule leaves it.
	r = h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":1}}]`)
	if r.Pause == nil {
		t.Fatalf("a matcher without its field let the call through: %s", r.State)
	}
	_, err = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":1,"to":"int-8"}`)})
	refusal(t, err, host.CodeOutOfScope)
}

// Public failure MX13.
func TestInvariant6_EditedValuesKeepTheirTypes(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("say", `{"echo":true}`)
	for _, tc := range []struct{ edit, ran string }{
		{`{"n": 1.50, "i": 1e2, "neg": -0}`, `{"i":100,"n":1.5,"neg":0}`},
		{`{"b": false, "z": null, "s": ""}`, `{"b":false,"s":"","z":null}`},
		{`{"l": [1, "1", true, null, [], {}]}`, `{"l":[1,"1",true,null,[],{}]}`},
		{`{"o": {"b": {"y": true}, "a": [{"x": 0}]}}`, `{"o":{"a":[{"x":0}],"b":{"y":true}}}`},
		{`{}`, `{}`},
		{"{\"s\": \"<a href='x'>&\u2028é\\u0041\"}", "{\"s\":\"<a href='x'>&\u2028éA\"}"},
	} {
		r := h.Batch(hosttest.Member, "say", `[{"tool":"echo","arguments":{"original":true}}]`)
		ap := r.Pause.Approvals[0]
		if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: ap.ID, Kind: "edit", Arguments: raw(tc.edit)}); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
		c := r.Calls[0]
		if resultOf(c) != tc.ran || string(c.EditedArguments) != tc.ran || string(c.Arguments) != `{"original":true}` {
			t.Errorf("edit %s: ran with %s, shown edited %s and original %s", tc.edit, resultOf(c), c.EditedArguments, c.Arguments)
		}
		aps, err := h.RunApprovals(t.Context(), hosttest.Member, r.ID)
		if err != nil || len(aps) != 1 || aps[0].Decision == nil || !aps[0].Decision.Changed || aps[0].ArgsDigest != ap.ArgsDigest || string(aps[0].Arguments) != `{"original":true}` {
			t.Errorf("edit %s: the approval now shows %+v, %v; it must still show what was asked", tc.edit, aps, err)
		}
		msgs, err := h.Trajectory(t.Context(), hosttest.Member, r.ID)
		last := msgs[len(msgs)-1]
		if err != nil || last.Decision == nil || last.Decision.Kind != "edit" || last.Decision.DecidedBy != "admin" || string(last.Decision.Edited) != tc.ran {
			t.Errorf("edit %s: the model is told %+v, %v", tc.edit, last.Decision, err)
		}
	}
}

func TestEdit_ThatChangesNothingSaysSo(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", `{"transfer":true}`)
	for _, tc := range []struct {
		edit    string
		changed bool
	}{
		{`{"amount":100,"currency":"EUR"}`, false},
		{`{"currency":"EUR", "amount":1e2}`, false}, // another spelling of the same
		{`{"amount":100}`, false},                   // the default is filled in
		{`{"amount":100,"currency":"USD"}`, true},
	} {
		r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":100}}]`)
		if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(tc.edit)}); err != nil {
			t.Fatal(err)
		}
		h.Settled(r.ID)
		aps, err := h.RunApprovals(t.Context(), hosttest.Admin, r.ID)
		if err != nil || aps[0].Decision.Changed != tc.changed {
			t.Errorf("%s: changed %v, want %v (%v)", tc.edit, aps[0].Decision.Changed, tc.changed, err)
		}
	}
}

const bigRule = `package pawl.rules
import rego.v1
pause contains {"rule": "big"} if { input.call.tool == "transfer"; input.call.arguments.amount > 1000 }
deny contains {"rule": "huge", "message": "nobody moves that much"} if { input.call.tool == "transfer"; input.call.arguments.amount > 9000 }
`

// Public failure MX5.
func TestInvariant1_AnEditThatAnotherRuleStopsWaitsAgainBeforeAnyCallRuns(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: fstest.MapFS{"big.rego": {Data: []byte(bigRule)}}})
	h.External("pay", `{"transfer":true}`)
	r := h.Batch(hosttest.Member, "pay", `[{"tool_call_id":"free","tool":"echo","arguments":{}},{"tool_call_id":"pay","tool":"transfer","arguments":{"amount":10}}]`)
	if len(r.Pause.Approvals) != 1 || !slices.Equal(r.Pause.Approvals[0].Rules, []string{"interrupt_on/transfer"}) {
		t.Fatalf("approvals %+v", r.Pause.Approvals)
	}
	first := r.Pause.Approvals[0]
	_, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: first.ID, Kind: "edit", Arguments: raw(`{"amount":9001}`)})
	if e := refusal(t, err, host.CodeInvalid); !strings.Contains(e.Detail, "nobody moves that much") || e.Pointer != "/decisions/0/arguments" {
		t.Errorf("a denied edit says %q at %q", e.Detail, e.Pointer)
	}
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: first.ID, Kind: "edit", Arguments: raw(`{"amount":5000}`)}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunAwaitingApproval || len(h.Ran.All()) != 0 {
		t.Fatalf("state %s, ran %v; the edited call must wait again and its sibling with it", r.State, h.Ran.All())
	}
	second := r.Pause.Approvals[0]
	if len(r.Pause.Approvals) != 1 || second.ID == first.ID || second.PauseID == first.PauseID || second.ToolCallID != "pay" || !slices.Contains(second.Rules, "big") {
		t.Fatalf("approvals %+v", r.Pause.Approvals)
	}
	const shown = `{"amount":5000,"currency":"EUR"}`
	if string(second.Arguments) != shown || second.ArgsDigest != hosttest.Digest(shown) || string(first.Arguments) == shown {
		t.Errorf("shown %s with digest %s", second.Arguments, second.ArgsDigest)
	}
	if !strings.Contains(string(r.Pause.Payload), shown) {
		t.Errorf("the pause shows %s", r.Pause.Payload)
	}
	for _, c := range r.Calls {
		if c.State != store.CallPlanned && c.State != store.CallAwaiting {
			t.Errorf("call %s is %s", c.ToolCallID, c.State)
		}
	}
	// A stale button: the old approval decides nothing, and the new pause is untouched.
	before := h.Stored()
	_, err = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: first.ID, Kind: "approve"})
	refusal(t, err, host.CodeAlreadyDecided)
	_, err = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: second.ID, Kind: "edit", Arguments: raw(`{"amount":20}`)})
	refusal(t, err, host.CodeOutOfScope)
	_, err = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: second.ID, Kind: "approve", ArgsDigest: first.ArgsDigest})
	refusal(t, err, host.CodeChanged)
	h.Unchanged(before)
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: second.ID, Kind: "approve", ArgsDigest: second.ArgsDigest}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if got := resultsOf(r); got != `{} `+shown || string(r.Calls[1].EditedArguments) != shown || len(r.Calls[1].ApprovalIDs) != 2 {
		t.Errorf("results %s, edited %s, approvals %v", got, r.Calls[1].EditedArguments, r.Calls[1].ApprovalIDs)
	}
	if got := h.Ran.All(); !slices.Equal(got, []string{"echo {}", "transfer " + shown}) {
		t.Errorf("ran %v", got)
	}
	// The approval that showed the original still does; the one that showed the edit too.
	aps, err := h.RunApprovals(t.Context(), hosttest.Admin, r.ID)
	if err != nil || len(aps) != 2 || string(aps[0].Arguments) != `{"amount":10,"currency":"EUR"}` || string(aps[1].Arguments) != shown {
		t.Errorf("approvals show %+v, %v", aps, err)
	}
}

func TestInvariant6_EveryApprovalShowsWhatItsDigestSays(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(`pause contains {"rule": "big"} if { input.call.tool == "transfer"; input.call.arguments.amount > 1000 }`)})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":10}}]`)
	for _, args := range []string{`{"amount":5000}`, `{"amount":6000}`} { // the first edit meets another rule, the second stays within both
		if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(args)}); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
	}
	if got := resultsOf(r); got != `{"amount":6000,"currency":"EUR"}` {
		t.Fatalf("state %s, results %s", r.State, got)
	}
	aps, err := h.RunApprovals(t.Context(), hosttest.Member, r.ID)
	if err != nil || len(aps) != 2 {
		t.Fatalf("%d approvals, %v", len(aps), err)
	}
	for i, want := range []string{`{"amount":10,"currency":"EUR"}`, `{"amount":5000,"currency":"EUR"}`} {
		if string(aps[i].Arguments) != want || aps[i].ArgsDigest != hosttest.Digest(want) {
			t.Errorf("approval %d shows %s with digest %s; what was asked is %s", i, aps[i].Arguments, aps[i].ArgsDigest, want)
		}
	}
}

// Whoever asks again about a batch asks about the same batch: a call whose arguments were refused before the gate is not in it.
func TestEdit_IsJudgedInTheBatchThatTheGateSaw(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(`deny contains {"rule": "alone", "message": "not beside a write"} if {
	input.call.tool == "transfer"
	some b in input.batch
	b.tool == "write_file"
}`)})
	h.External("a", `{"transfer":true}`)
	r := h.Settled(h.Batch(hosttest.Member, "a", `[`+pay+`,{"tool_call_id":"bad","tool":"write_file","arguments":{"path":7}}]`).ID)
	if r.Pause == nil {
		t.Fatalf("the run is %s", r.State)
	}
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":8}`)}); err != nil {
		t.Errorf("an edit beside a call that was refused before the gate: %v", err)
	}
	if r = h.Settled(r.ID); h.Ran.Count("transfer") != 1 {
		t.Errorf("the run is %s, ran %q", r.State, h.Ran.All())
	}
}
