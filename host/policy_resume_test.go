package host_test

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

// both runs a test twice: the rules changed between two processes, and below one that runs.
func both(t *testing.T, name string, f func(t *testing.T, reloaded bool)) {
	for _, way := range []string{"restarted", "reloaded"} {
		t.Run(name+"/"+way, func(t *testing.T) {
			t.Parallel()
			f(t, way == "reloaded")
		})
	}
}

func rules(body string) fs.FS {
	return fstest.MapFS{"people.rego": {Data: []byte("package pawl.rules\nimport rego.v1\n" + body + "\n")}}
}

// restart ends a host and starts another on its store, with its clock and other options: the operator changed something.
func restart(t *testing.T, old *hosttest.Host, o hosttest.Options) *hosttest.Host {
	t.Helper()
	old.Stop()
	o.Store, o.Clock = old.Store, old.Clock
	return hosttest.New(t, o)
}

const (
	pauseEcho     = `pause contains {"rule": "quiet", "message": "no noise now"} if input.call.tool == "echo"`
	denyTransfer  = `deny contains {"rule": "frozen", "message": "accounts are frozen"} if input.call.tool == "transfer"`
	twoCalls      = `[{"tool_call_id":"pay","tool":"transfer","arguments":{"amount":10}},{"tool_call_id":"say","tool":"echo","arguments":{"hi":1}}]`
	paid          = `{"amount":10,"currency":"EUR"}`
	gatedTransfer = `{"transfer":true}`
)

// The decision is taken on a host that drives nothing, so that the run goes on only after the last restart.
func TestInvariant8_PolicyOnResumeOnlyTightens(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		before   string
		decision host.Decision
		after    string
		results  string
		ran      []string
	}{
		{"a deny that came between", "", host.Decision{Kind: "approve"}, denyTransfer, `denied {"hi":1}`, []string{`echo {"hi":1}`}},
		{"a deny for edited arguments", "", host.Decision{Kind: "edit", Arguments: raw(`{"amount":11}`)}, denyTransfer, `denied {"hi":1}`, []string{`echo {"hi":1}`}},
		{"a deny for the free sibling", "", host.Decision{Kind: "approve"}, `deny contains "silence" if input.call.tool == "echo"`, paid + ` denied`, []string{"transfer " + paid}},
		{"a deny that sees the edited arguments and not the first", "", host.Decision{Kind: "edit", Arguments: raw(`{"amount":7}`)},
			`deny contains "ten" if input.call.arguments.amount == 10`, `{"amount":7,"currency":"EUR"} {"hi":1}`, []string{`transfer {"amount":7,"currency":"EUR"}`, `echo {"hi":1}`}},
		{"a rule that was removed, and a reject", `pause contains {"rule": "all"} if true`, host.Decision{Kind: "reject", Message: "no"}, "", `rejected rejected`, nil},
		{"a rule that was removed, and an approve", `pause contains {"rule": "all"} if true`, host.Decision{Kind: "approve"}, "", paid + ` {"hi":1}`, []string{"transfer " + paid, `echo {"hi":1}`}},
		{"a rule that was removed, and a respond", `pause contains {"rule": "all"} if true`, host.Decision{Kind: "respond", Value: raw("0")}, "", `0 0`, nil},
		{"a new rule, and a reject", "", host.Decision{Kind: "reject"}, `pause contains {"rule": "new"} if input.call.tool == "transfer"`, `rejected {"hi":1}`, []string{`echo {"hi":1}`}},
		{"a new deny, and a respond", "", host.Decision{Kind: "respond", Value: raw("0")}, denyTransfer, `0 {"hi":1}`, []string{`echo {"hi":1}`}},
		{"the rules that were approved", `pause contains {"rule": "all"} if true`, host.Decision{Kind: "approve"}, `pause contains {"rule": "all"} if true`,
			paid + ` {"hi":1}`, []string{"transfer " + paid, `echo {"hi":1}`}},
		{"a rule of the wrong shape (doubt stops)", "", host.Decision{Kind: "approve"}, `pause contains {"rule": 7} if input.call.tool == "transfer"`, `denied {"hi":1}`, []string{`echo {"hi":1}`}},
	} {
		both(t, tc.name, func(t *testing.T, reloaded bool) {
			folder := newFolder(rules(tc.before))
			h := hosttest.New(t, hosttest.Options{Rules: folder, Idle: true})
			h.External("pay", gatedTransfer)
			r := h.Batch(hosttest.Member, "pay", twoCalls)
			if r.State != store.RunAwaitingApproval {
				t.Fatalf("state %s", r.State)
			}
			var ds []host.Decision
			for _, ap := range r.Pause.Approvals {
				d := tc.decision
				d.ApprovalID = ap.ID
				ds = append(ds, d)
			}
			if _, err := h.Answer(hosttest.Admin, r.ID, ds...); err != nil {
				t.Fatal(err)
			}
			if reloaded {
				folder.replace(h, rules(tc.after)) // of one case they are the same
				h.Start()
			} else {
				h = restart(t, h, hosttest.Options{Rules: rules(tc.after)})
			}
			r = h.Settled(r.ID)
			if got := resultsOf(r); r.State != store.RunAwaitingPlanner || got != tc.results {
				t.Errorf("state %s, results %s, want %s", r.State, got, tc.results)
			}
			if got := h.Ran.All(); !slices.Equal(got, tc.ran) {
				t.Errorf("ran %v, want %v", got, tc.ran)
			}
		})
	}
}

func TestInvariant1_ANewRuleWaitsAgainForThatCallAloneAndItsSiblingWaitsToo(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	token := r.Pause.ResumeToken
	h = restart(t, h, hosttest.Options{Rules: rules(pauseEcho)})
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 1 || r.Pause.Approvals[0].ToolCallID != "say" ||
		!slices.Equal(r.Pause.Approvals[0].Rules, []string{"quiet"}) || r.Pause.Approvals[0].Message != "no noise now" {
		t.Fatalf("state %s, pause %+v; want one approval, for the new rule", r.State, r.Pause)
	}
	if ran := h.Ran.All(); len(ran) != 0 {
		t.Fatalf("%v ran although its sibling waits", ran)
	}
	_, err := h.Resume(t.Context(), hosttest.Admin, token, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: []host.Decision{{ApprovalID: r.Pause.Approvals[0].ID, Kind: "approve"}}}))
	refusal(t, err, host.CodeTokenUsed) // the token of the first pause does not open the second
	// Once more a restart, with yet another rule for the call that waits: what was approved is not asked again.
	h = restart(t, h, hosttest.Options{Rules: rules(pauseEcho + "\n" + `pause contains {"rule": "loud"} if input.call.tool == "echo"`)})
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.Pause == nil || len(r.Pause.Approvals) != 1 || !slices.Contains(r.Pause.Approvals[0].Rules, "loud") {
		t.Fatalf("state %s, pause %+v", r.State, r.Pause)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if got := resultsOf(r); got != paid+` {"hi":1}` {
		t.Errorf("results %s", got)
	}
	if len(r.Calls[0].ApprovalIDs) != 1 || len(r.Calls[1].ApprovalIDs) != 2 {
		t.Errorf("approvals %v and %v, want one and two", r.Calls[0].ApprovalIDs, r.Calls[1].ApprovalIDs)
	}
}

func TestInvariant6_OtherToolBytesNeverRunUnderAnOldApproval(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	edited := h.Batch(hosttest.Member, "pay", twoCalls)
	old := r.Pause.Approvals[0].ToolDigest
	h = restart(t, h, hosttest.Options{Describe: " (second edition)"})
	_, err := h.Answer(hosttest.Admin, edited.ID, host.Decision{ApprovalID: edited.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":1}`)})
	if e := refusal(t, err, host.CodeInvalid); e.Pointer != "/decisions/0/arguments" || !strings.Contains(e.Detail, "new run") {
		t.Errorf("editing for a tool that changed: %q at %q", e.Detail, e.Pointer)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if got := resultsOf(r); r.State != store.RunAwaitingPlanner || got != "tool_changed tool_changed" || len(h.Ran.All()) != 0 {
		t.Errorf("state %s, results %s, ran %v", r.State, got, h.Ran.All())
	}
	fresh := h.Batch(hosttest.Member, "pay", twoCalls)
	if fresh.Pause == nil || fresh.Pause.Approvals[0].ToolDigest == old {
		t.Errorf("a new run shows the old digest: %+v", fresh.Pause)
	}
	// A reject and a respond need no tool.
	if _, err := h.DecideAll(hosttest.Admin, edited, "respond"); err != nil {
		t.Fatal(err)
	}
	if got := resultsOf(h.Settled(edited.ID)); got != `"the answer" tool_changed` {
		t.Errorf("results %s", got)
	}
}

// Public failure BY20.
func TestInvariant5_PolicyThatCannotAnswerDenies(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, rule string }{
		{"an element that is no stop", `pause contains "stop" if input.call.tool == "echo"`},
		{"an unknown decision", `pause contains {"rule": "x", "allowed_decisions": ["allow"]} if input.call.tool == "echo"`},
		{"no common decision", `pause contains {"rule": "x", "allowed_decisions": ["approve"]} if input.call.tool == "echo"
pause contains {"rule": "y", "allowed_decisions": ["reject"]} if input.call.tool == "echo"`},
		{"an evaluation that fails", `pause contains {"rule": "x", "title": t} if { input.call.tool == "echo"; t := sprintf("%d", [1/0]) }
deny contains "e" if { input.call.tool == "echo"; to_number("x") == 1 }
deny contains 7 if input.call.tool == "echo"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{Rules: rules(tc.rule)})
			h.External("say", `{}`)
			r := h.Settled(h.Batch(hosttest.Member, "say", `[{"tool":"echo","arguments":{}},{"tool":"read_echo","arguments":{}}]`).ID)
			if got := resultsOf(r); got != "denied {}" || h.Ran.Count("echo") != 0 {
				t.Errorf("state %s, results %s, ran %v", r.State, got, h.Ran.All())
			}
		})
	}
}
