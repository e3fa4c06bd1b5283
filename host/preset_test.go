package host_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

const presetBatch = `[{"tool_call_id":"r","tool":"read_echo","arguments":{"r":1}},{"tool_call_id":"w","tool":"echo","arguments":{"w":1}}]`

func presetAgent(h *hosttest.Host, preset, more string) {
	h.Agent("a", `{"planner":{"kind":"external"},"tools":["read_echo","echo","transfer"],"permissions":"`+preset+`"`+more+`}`)
}

func TestPreset_InteractiveAsksForEveryCall(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	presetAgent(h, "interactive", `,"interrupt_on":{"echo":false,"read_echo":{"title":"Reading","allowed_decisions":["approve","reject"]}}`)
	r := h.Batch(hosttest.Member, "a", presetBatch)
	if r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 2 || len(h.Ran.All()) != 0 {
		t.Fatalf("state %s, pause %+v, ran %v", r.State, r.Pause, h.Ran.All())
	}
	read, write := r.Pause.Approvals[0], r.Pause.Approvals[1]
	if !slices.Equal(read.Rules, []string{"interrupt_on/read_echo", "preset.interactive"}) || read.Title != "Reading" || len(read.Allowed) != 2 {
		t.Errorf("%+v; the agent's own words come before the preset's", read)
	}
	if !slices.Equal(write.Rules, []string{"preset.interactive"}) || write.Title != "Allow echo?" || write.Reason != "approval_required" || len(write.Allowed) != 4 {
		t.Errorf("%+v", write)
	}
	// Any arguments are within "every call asks".
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: read.ID, Kind: "approve"}, host.Decision{ApprovalID: write.ID, Kind: "edit", Arguments: raw(`{"w":2}`)}); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); resultsOf(r) != `{"r":1} {"w":2}` {
		t.Errorf("%s: %s", r.State, resultsOf(r))
	}
}

func TestPreset_LockedRunsWhatOnlyReads(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	presetAgent(h, "locked", `,"interrupt_on":{"transfer":true}`)
	r := h.Settled(h.Batch(hosttest.Member, "a", `[{"tool":"read_echo","arguments":{"r":1}},{"tool":"echo","arguments":{}},{"tool":"transfer","arguments":{"amount":1}}]`).ID)
	if got := resultsOf(r); got != `{"r":1} denied denied` || h.Ran.Count("echo")+h.Ran.Count("transfer") != 0 {
		t.Errorf("%s: %s, ran %v", r.State, got, h.Ran.All())
	}
	if msg := r.Calls[1].Error.Message; !strings.Contains(msg, "locked") {
		t.Errorf("the model reads %q", msg)
	}
	saved, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "a", hosttest.Body(raw(`{"planner":{"kind":"external"},"tools":["read_echo","echo"],"permissions":"locked"}`)))
	if err != nil || len(saved.Warnings) != 1 || !strings.Contains(saved.Warnings[0], `"echo"`) || saved.Permissions == nil || *saved.Permissions != "locked" {
		t.Errorf("%+v, %v; want one warning, of the tool that can never run", saved, err)
	}
}

// A run keeps the preset of the version that it began with, in both directions.
func TestPreset_ARunKeepsThatOfItsVersion(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	presetAgent(h, "interactive", "")
	r := h.Batch(hosttest.Member, "a", presetBatch)
	presetAgent(h, "locked", "")
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); resultsOf(r) != `{"r":1} {"w":1}` {
		t.Errorf("%s: %s", r.State, resultsOf(r))
	}
	if r = h.Settled(h.Batch(hosttest.Member, "a", presetBatch).ID); resultsOf(r) != `{"r":1} denied` {
		t.Errorf("a new run: %s", resultsOf(r))
	}
	presetAgent(h, "auto", "")
	if r = h.Settled(h.Batch(hosttest.Member, "a", presetBatch).ID); resultsOf(r) != `{"r":1} {"w":1}` {
		t.Errorf("auto: %s", resultsOf(r))
	}
}

func TestPreset_PolicyEvaluateTellsIt(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	presetAgent(h, "interactive", "")
	out, err := h.Evaluate(t.Context(), hosttest.Admin, hosttest.Body(host.Evaluation{Agent: "a", Call: host.ProposedCall{Tool: "read_echo", Arguments: raw(`{}`)}}))
	if err != nil || !strings.Contains(string(out), `"preset.interactive"`) || !strings.Contains(string(out), `"effect":"pause"`) {
		t.Errorf("%s, %v", out, err)
	}
}

// Whatever a subagent says of itself, it is never freer than the agents above it, at any depth.
func TestPreset_ASubagentIsNeverFreerThanItsParents(t *testing.T) {
	t.Parallel()
	const read = `{"tool_call_id":"r","tool":"read_echo","arguments":{"r":1}}`
	leaf := func(preset string) string {
		return sub("leaf", `[{"calls":[`+read+`]},{"calls":[`+pay+`]},{"final":1}]`, preset)
	}
	mid := func(preset, leafs string) string {
		return sub("mid", `[{"calls":[`+task("m", "leaf", "go")+`]},{"final":2}]`, preset+`,"subagents":[`+leaf(leafs)+`]`)
	}
	for name, tc := range map[string]struct {
		root, mid, leaf string
		stops           []string // labels, in the order in which they are asked about
		pay             string
	}{
		"locked above":                 {`,"permissions":"locked"`, `,"permissions":"auto"`, `,"permissions":"auto"`, nil, "denied"},
		"locked in the middle":         {``, `,"permissions":"locked"`, ``, nil, "denied"},
		"locked below":                 {``, ``, `,"permissions":"locked"`, nil, "denied"},
		"interactive above":            {`,"permissions":"interactive"`, `,"permissions":"auto"`, `,"permissions":"auto"`, []string{"t", "m", "r", "pay"}, paid7},
		"interactive in the middle":    {``, `,"permissions":"interactive"`, ``, []string{"m", "r", "pay"}, paid7},
		"locked above and interactive": {`,"permissions":"locked"`, ``, `,"permissions":"interactive"`, []string{"r"}, "denied"},
		"none":                         {``, ``, ``, nil, paid7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Agent("lead", scripted(`[{"calls":[`+task("t", "mid", "begin")+`]},{"final":"done"}]`, tc.root+`,"subagents":[`+mid(tc.mid, tc.leaf)+`]`))
			r := h.Settled(h.Create(hosttest.Member, "lead").ID)
			var stops []string
			for r.State == store.RunAwaitingApproval {
				for _, ap := range r.Pause.Approvals {
					stops = append(stops, ap.ToolCallID)
					if !slices.Equal(ap.Rules, []string{"preset.interactive"}) {
						t.Errorf("%s stops by %q", ap.ToolCallID, ap.Rules)
					}
				}
				if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
					t.Fatal(err)
				}
				r = h.Settled(r.ID)
			}
			if r.State != store.RunSucceeded || !slices.Equal(stops, tc.stops) {
				t.Errorf("state %s, stops %q, want %q", r.State, stops, tc.stops)
			}
			if got := byLabel(r, "pay"); len(got) != 1 || resultOf(got[0]) != tc.pay {
				t.Errorf("pay: %+v, want %s", got, tc.pay)
			}
			if got := byLabel(r, "r"); len(got) != 1 || resultOf(got[0]) != `{"r":1}` {
				t.Errorf("a read: %+v", got)
			}
		})
	}
}

const paid7 = `{"amount":7,"currency":"EUR"}`
