package host_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

func TestAgents_SavingChecksTheirShapeWithPointers(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	ok := func(more string) string { return `{"planner":{"kind":"external"},"tools":["echo"]` + more + `}` }
	on := func(rule string) string { return ok(`,"interrupt_on":{"echo":` + rule + `}`) }
	when := func(field string) string { return on(`{"when":{"a":` + field + `}}`) }
	script := func(turns string) string {
		return `{"planner":{"kind":"script","turns":` + turns + `},"tools":["echo"]}`
	}
	before := h.Stored()
	for _, tc := range []struct{ name, doc, pointer string }{
		{"no JSON", `{`, ""},
		{"no object", `[]`, ""},
		{"null", `null`, "/planner"},
		{"empty", `{}`, "/planner"},
		{"no tools", `{"planner":{"kind":"external"}}`, "/tools"},
		{"null tools", `{"planner":{"kind":"external"},"tools":null}`, "/tools"},
		{"unknown member", ok(`,"tool":[]`), "/tool"},
		{"another case", ok(`,"System":"x"`), "/System"},
		{"a member of a later issue", ok(`,"subagents":{}`), "/subagents"},
		{"an unknown preset", ok(`,"permissions":"unlocked"`), "/permissions"},
		{"a preset in another case", ok(`,"permissions":"Locked"`), "/permissions"},
		{"an empty preset", ok(`,"permissions":""`), "/permissions"},
		{"several presets", ok(`,"permissions":["locked"]`), "/permissions"},
		{"a preset that is a flag", ok(`,"permissions":true`), "/permissions"},
		{"a tool twice", `{"planner":{"kind":"external"},"tools":["echo","echo"]}`, "/tools/1"},
		{"an empty tool", `{"planner":{"kind":"external"},"tools":[""]}`, "/tools/0"},
		{"a tool that is a number", `{"planner":{"kind":"external"},"tools":["echo",7]}`, "/tools/1"},
		{"planner without a kind", `{"planner":{},"tools":[]}`, "/planner/kind"},
		{"planner that is a text", `{"planner":"external","tools":[]}`, "/planner"},
		{"unknown planner", `{"planner":{"kind":"oracle"},"tools":[]}`, "/planner/kind"},
		{"the planner of direct calls", `{"planner":{"kind":"direct"},"tools":[]}`, "/planner/kind"},
		{"external with turns", `{"planner":{"kind":"external","turns":[]},"tools":[]}`, "/planner/turns"},
		{"script without turns", `{"planner":{"kind":"script"},"tools":[]}`, "/planner/turns"},
		{"script with no turn", script(`[]`), "/planner/turns"},
		{"an empty turn", script(`[{"final":1},{}]`), "/planner/turns/1"},
		{"a turn with both", script(`[{"calls":[{"tool":"echo"}],"final":1}]`), "/planner/turns/0"},
		{"a turn without calls", script(`[{"calls":[]}]`), "/planner/turns/0"},
		{"a call without a tool", script(`[{"calls":[{"arguments":{}}]}]`), "/planner/turns/0/calls/0/tool"},
		{"an unknown member of a call", script(`[{"calls":[{"tool":"echo","args":{}}]}]`), "/planner/turns/0/calls/0/args"},
		{"two calls of one label", script(`[{"calls":[{"tool_call_id":"a","tool":"echo"},{"tool_call_id":"a","tool":"echo"}]}]`), "/planner/turns/0/calls/1/tool_call_id"},
		{"an unknown member of a turn", script(`[{"finale":1}]`), "/planner/turns/0/finale"},
		{"a rule that is a text", on(`"yes"`), "/interrupt_on/echo"},
		{"a rule that is null", on(`null`), "/interrupt_on/echo"},
		{"a typo in a rule", on(`{"allowed_decision":["approve"]}`), "/interrupt_on/echo/allowed_decision"},
		{"no decisions", on(`{"allowed_decisions":[]}`), "/interrupt_on/echo/allowed_decisions"},
		{"an unknown decision", on(`{"allowed_decisions":["approve","allow"]}`), "/interrupt_on/echo/allowed_decisions/1"},
		{"a ttl without a unit", on(`{"ttl":"60"}`), "/interrupt_on/echo/ttl"},
		{"a negative ttl", on(`{"ttl":"-1h"}`), "/interrupt_on/echo/ttl"},
		{"an empty list of alternatives", on(`{"when":[]}`), "/interrupt_on/echo/when"},
		{"an empty alternative", on(`{"when":[{"a":{"min":1}},{}]}`), "/interrupt_on/echo/when/1"},
		{"a matcher's typo", when(`{"eqals":1}`), "/interrupt_on/echo/when/a/eqals"},
		{"a field without matchers", when(`{}`), "/interrupt_on/echo/when/a"},
		{"a bad regex", when(`{"regex":"("}`), "/interrupt_on/echo/when/a/regex"},
		{"a regex that RE2 has not", when(`{"regex":"(?=x)"}`), "/interrupt_on/echo/when/a/regex"},
		{"a min that is a text", when(`{"min":"1"}`), "/interrupt_on/echo/when/a/min"},
		{"missing: match", when(`{"missing":"match"}`), "/interrupt_on/echo/when/a/missing"},
		{"a duration without a unit", ok(`,"approval_ttl":"60"`), "/approval_ttl"},
		{"no duration", ok(`,"approval_ttl":"soon"`), "/approval_ttl"},
		{"a duration of zero", ok(`,"approval_ttl":"0s"`), "/approval_ttl"},
		{"a duration as a number", ok(`,"approval_ttl":60`), "/approval_ttl"},
		{"too many turns", ok(`,"limits":{"turns":10001}`), "/limits/turns"},
		{"negative turns", ok(`,"limits":{"turns":-1}`), "/limits/turns"},
		{"an unknown limit", ok(`,"limits":{"memory":1}`), "/limits/memory"},
		{"a bad limit", ok(`,"limits":{"active":"x"}`), "/limits/active"},
		{"a system that is no text", ok(`,"system":{}`), "/system"},
	} {
		_, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "a", hosttest.Body(raw(tc.doc)))
		if host.CodeOf(err) != host.CodeInvalid || !strings.HasPrefix(pointerOf(err), tc.pointer) {
			t.Errorf("%s: %v at %q, want invalid at %q", tc.name, err, pointerOf(err), tc.pointer)
		}
	}
	for _, name := range []string{"", " ", "a b", "a/b", "../a", ".a", "-a", "ä", strings.Repeat("a", 129), "a\x00"} {
		_, _, err := h.SaveAgent(t.Context(), hosttest.Owner, name, hosttest.Body(raw(ok(""))))
		if host.CodeOf(err) != host.CodeInvalid {
			t.Errorf("name %q: %v", name, err)
		}
	}
	h.Unchanged(before)
	for _, doc := range []string{
		ok(""), ok(`,"approval_ttl":"90s","limits":{"turns":5,"active":"10m"},"system":"be kind"`), `{"planner":{"kind":"external"},"tools":[]}`,
		ok(`,"permissions":"auto"`), ok(`,"permissions":"interactive"`), ok(`,"permissions":"locked"`),
		`{"planner":{"kind":"external"},"tools":["not.installed"]}`,         // tools come and go
		script(`[{"calls":[{"tool":"other","arguments":{"any":1}}]}]`),      // and their schemas
		on(`{"when":[{"a":{"min":1,"max":2}},{"/b/c~1d":{"regex":"^x"}}]}`), // nor are fields checked against them
	} {
		if _, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "a", hosttest.Body(raw(doc))); err != nil {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func TestAgents_RunsKeepTheVersionTheyBeganWith(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	v1 := `{"planner":{"kind":"script","turns":[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"final":"one"}]},"tools":["transfer"],"interrupt_on":{"transfer":true}}`
	v2 := `{"planner":{"kind":"script","turns":[{"calls":[{"tool":"echo","arguments":{}}]},{"final":"two"}]},"tools":["echo"]}`
	h.Agent("a", v1)
	old, older := h.Create(hosttest.Member, "a"), h.Create(hosttest.Member, "a")
	saved, created, err := h.SaveAgent(t.Context(), hosttest.Admin, "a", hosttest.Body(raw(v2)))
	if err != nil || created || saved.Version != 2 {
		t.Fatalf("version %d, created %v, %v", saved.Version, created, err)
	}
	if r := h.Settled(h.Create(hosttest.Member, "a").ID); r.AgentVersion != 2 || string(r.Output) != `"two"` {
		t.Errorf("a new run is of version %d and gave %s", r.AgentVersion, r.Output)
	}
	if err := h.DeleteAgent(t.Context(), hosttest.Owner, "a"); err != nil {
		t.Fatal(err)
	}
	_, err = createWithAs(h, hosttest.Member, "a")
	refusal(t, err, host.CodeNotFound)
	_, err = h.GetAgent(t.Context(), hosttest.Owner, "a")
	refusal(t, err, host.CodeNotFound)
	refusal(t, h.DeleteAgent(t.Context(), hosttest.Owner, "a"), host.CodeNotFound)
	agents, _, err := h.Agents(t.Context(), hosttest.Member, host.Page{})
	if err != nil || len(agents) != 0 {
		t.Errorf("%+v, %v", agents, err)
	}
	h = restart(t, h, hosttest.Options{})
	for _, r := range []host.Run{old, older} {
		if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
			t.Fatal(err)
		}
		if r = h.Settled(r.ID); r.AgentVersion != 1 || r.State != store.RunSucceeded || string(r.Output) != `"one"` {
			t.Errorf("the old run is of version %d, %s with %s", r.AgentVersion, r.State, r.Output)
		}
	}
	saved, created, err = h.SaveAgent(t.Context(), hosttest.Owner, "a", hosttest.Body(raw(v1)))
	if err != nil || !created || saved.Version != 3 {
		t.Errorf("saved again after a delete: version %d, created %v, %v; numbers go on", saved.Version, created, err)
	}
	if got, err := h.GetAgent(t.Context(), hosttest.Member, "a"); err != nil || got.Version != 3 || got.UpdatedBy != "owner" {
		t.Errorf("%+v, %v", got, err)
	}
	var actions []string
	for _, row := range h.AuditRows("demo") {
		if row.TargetKind == "agent" && row.TargetID == "a" {
			actions = append(actions, row.Action+" "+fmt.Sprint(row.Detail["version"]))
		}
	}
	want := []string{"agent.save 1", "agent.save 2", "agent.delete 2", "agent.save 3"}
	if !slices.Equal(actions, want) {
		t.Errorf("audit %v, want %v", actions, want)
	}
}

func TestAgents_ARemovedDefaultIsLoggedAndAudited(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for i, tc := range []struct {
		rules   string
		removed []string
	}{
		{`{}`, nil},
		{`{"echo":true}`, nil},
		{`{"write_file":true,"edit_file":true}`, nil},
		{`{"write_file":{"when":{"path":{"under":["/"]}}}}`, nil},
		{`{"write_file":false}`, []string{"write_file under /memories/", "write_file under /skills/"}},
		{`{"edit_file":{"when":{"path":{"under":["/skills/"]}}}}`, []string{"edit_file under /memories/"}},
		{`{"write_file":{"when":{"content":{"prefix":"x"}}},"edit_file":false}`, []string{"edit_file under /memories/", "edit_file under /skills/", "write_file under /memories/", "write_file under /skills/"}},
	} {
		name := fmt.Sprintf("agent-%d", i)
		h.Agent(name, `{"planner":{"kind":"external"},"tools":["write_file","edit_file"],"interrupt_on":`+tc.rules+`}`)
		var removed []string
		for _, row := range h.AuditRows("demo") {
			if row.Action == "agent.default_removed" && row.TargetID == name {
				removed = append(removed, row.Detail["stop"].(string))
				if row.Outcome != "ok" || *row.ActorID != "owner" {
					t.Errorf("row %+v", row)
				}
			}
		}
		slices.Sort(removed)
		if !slices.Equal(removed, tc.removed) {
			t.Errorf("%s: audited %v, want %v", tc.rules, removed, tc.removed)
		}
		for _, stop := range tc.removed {
			if !strings.Contains(h.Log.String(), stop) {
				t.Errorf("%s: %q is not in the log", tc.rules, stop)
			}
		}
		if logged := strings.Count(h.Log.String(), "agent="+name+" "); logged != len(tc.removed) {
			t.Errorf("%s: %d lines in the log, want %d", tc.rules, logged, len(tc.removed))
		}
		// And what it means: a write to a removed prefix runs, one to a kept prefix stops.
		r := h.Batch(hosttest.Member, name, `[{"tool":"write_file","arguments":{"path":"/memories/a","content":"b"}}]`)
		if stopped, want := r.Pause != nil, !slices.Contains(tc.removed, "write_file under /memories/"); stopped != want && i != 6 {
			t.Errorf("%s: a write to /memories/ stopped: %v", tc.rules, stopped)
		}
	}
}

func TestAgents_ToolsOutsideTheListAreUnknown(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("default", `{"planner":{"kind":"external"},"tools":["echo","gone"]}`)
	h.Agent("none", `{"planner":{"kind":"external"},"tools":[]}`)
	for _, tc := range []struct{ agent, tool, want string }{
		{"default", "echo", "{}"}, {"default", "read_echo", "unknown_tool"}, {"default", "gone", "unknown_tool"}, {"default", "Echo", "unknown_tool"},
		{"default", "test.echo", "unknown_tool"}, {"default", "echo ", "unknown_tool"}, {"none", "echo", "unknown_tool"},
	} {
		r, err := createWith(h, tc.agent, call(tc.tool, `{}`))
		if err != nil {
			t.Fatal(err)
		}
		if r = h.Settled(r.ID); resultsOf(r) != tc.want || r.Pause != nil {
			t.Errorf("%s calls %q: %s", tc.agent, tc.tool, resultsOf(r))
		}
		runs, _, err := h.ListRuns(t.Context(), hosttest.Member, host.RunFilter{}, host.Page{Limit: 200})
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.CallTool(t.Context(), hosttest.Member, tc.tool, host.Idempotency{}, hosttest.Body(host.DirectCall{Agent: tc.agent, Arguments: raw(`{}`)}))
		if tc.want != "unknown_tool" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		refusal(t, err, host.CodeNotFound)
		after, _, err := h.ListRuns(t.Context(), hosttest.Member, host.RunFilter{}, host.Page{Limit: 200})
		if err != nil || len(after) != len(runs) {
			t.Errorf("a refused direct call of %q left a run", tc.tool)
		}
	}
	if n := h.Ran.Count("read_echo"); n != 0 {
		t.Errorf("a tool outside the list ran %d times", n)
	}
	other := hosttest.New(t, hosttest.Options{})
	_, err := other.CallTool(t.Context(), hosttest.Member, "echo", host.Idempotency{}, hosttest.Body(host.DirectCall{Arguments: raw(`{}`)}))
	refusal(t, err, host.CodeNotFound) // default exists once somebody saved it
}

func TestAgents_LimitsEndARunThatNeverEnds(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	turns := strings.Repeat(`{"calls":[{"tool":"echo","arguments":{}}]},`, 5)
	h.Agent("loop", `{"planner":{"kind":"script","turns":[`+turns+`{"final":1}]},"tools":["echo"],"limits":{"turns":3}}`)
	if r := h.Settled(h.Create(hosttest.Member, "loop").ID); r.State != store.RunFailed || r.Error.Code != "limit" || len(r.Calls) != 3 {
		t.Errorf("run %s, %+v, %d calls", r.State, r.Error, len(r.Calls))
	}
	h.Agent("short", `{"planner":{"kind":"external"},"tools":["transfer"],"interrupt_on":{"transfer":{"ttl":"2h"}},"approval_ttl":"30m"}`)
	h.Agent("long", `{"planner":{"kind":"external"},"tools":["transfer"],"interrupt_on":{"transfer":{"ttl":"2h"}},"approval_ttl":"300h"}`)
	h.Agent("host", `{"planner":{"kind":"external"},"tools":["transfer"],"interrupt_on":{"transfer":true},"approval_ttl":"300h"}`)
	for agent, want := range map[string]string{"short": "2026-11-29T12:30:00.000Z", "long": "2026-11-29T14:00:00.000Z", "host": "2026-11-30T12:00:00.000Z"} {
		r, err := createWith(h, agent, call("transfer", `{"amount":1}`))
		if err != nil || r.Pause.ExpiresAt.String() != want {
			t.Errorf("%s: the pause expires at %v, want %s: the smallest bound wins (%v)", agent, r.Pause.ExpiresAt, want, err)
		}
	}
}

func TestAgents_RacingSavesAreOneVersionEach(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	var wg sync.WaitGroup
	versions := make([]uint64, 20)
	created := make([]bool, 20)
	for i := range versions {
		wg.Go(func() {
			a, first, err := h.SaveAgent(t.Context(), hosttest.Owner, "a", hosttest.Body(raw(fmt.Sprintf(`{"planner":{"kind":"external"},"tools":[],"system":"%d"}`, i))))
			if err != nil {
				t.Error(err)
			}
			versions[i], created[i] = a.Version, first
		})
	}
	wg.Wait()
	last := slices.Index(versions, 20)
	slices.Sort(versions)
	for i, v := range versions {
		if v != uint64(i+1) {
			t.Fatalf("versions %v", versions)
		}
	}
	n := 0
	for _, c := range created {
		if c {
			n++
		}
	}
	if a, err := h.GetAgent(t.Context(), hosttest.Member, "a"); err != nil || a.System != fmt.Sprint(last) || n != 1 {
		t.Errorf("the current version is %q, want that of version 20 (%d); %d were the first; %v", a.System, last, n, err)
	}
}

// A subagent's own interrupt_on removes a default for itself: that is told like the agent's own.
func TestAgents_ADefaultRemovedBelowIsAudited(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("a", `{"planner":{"kind":"external"},"tools":["task"],"subagents":[{"name":"w","planner":{"kind":"script","turns":[{"final":1}]},"tools":["write_file"],
		"interrupt_on":{"write_file":false},"subagents":[{"name":"v","planner":{"kind":"script","turns":[{"final":1}]},"tools":["write_file"]}]}]}`)
	var got []string
	for _, row := range h.AuditRows("demo") {
		if row.Action == "agent.default_removed" {
			got = append(got, fmt.Sprint(row.Detail["subagent"], ": ", row.Detail["stop"]))
		}
	}
	if want := []string{"w: write_file under /memories/", "w: write_file under /skills/"}; !slices.Equal(got, want) {
		t.Errorf("audited %q, want %q", got, want)
	}
}

// Whoever saves is told what an entry takes away, once where it is taken away, and not again below.
func TestAgents_ARemovedDefaultIsToldWithTheSave(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	worker := `{"name":"w","planner":{"kind":"script","turns":[{"final":1}]},"tools":["write_file"]%s}`
	doc := `{"planner":{"kind":"external"},"tools":["task","write_file"],"interrupt_on":{"write_file":%s},"subagents":[%s]}`
	under := `{"when":{"path":{"under":["/memories/"]}}}`
	for name, tc := range map[string]struct {
		doc  string
		want []string
	}{
		"kept":      {fmt.Sprintf(doc, "true", fmt.Sprintf(worker, "")), nil},
		"inherited": {fmt.Sprintf(doc, under, fmt.Sprintf(worker, "")), []string{"interrupt_on: the default stop of write_file under /skills/ is gone"}},
		"below":     {fmt.Sprintf(doc, "true", fmt.Sprintf(worker, `,"interrupt_on":{"write_file":`+under+`}`)), []string{"subagents/0: interrupt_on: the default stop of write_file under /skills/ is gone"}},
	} {
		saved, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "a", hosttest.Body(json.RawMessage(tc.doc)))
		if err != nil || len(saved.Warnings) != len(tc.want) {
			t.Errorf("%s: %q, %v", name, saved.Warnings, err)
			continue
		}
		for i, w := range tc.want {
			if !strings.HasPrefix(saved.Warnings[i], w) {
				t.Errorf("%s: %q, want %q", name, saved.Warnings[i], w)
			}
		}
	}
}

// An entry for a tool that only a subagent has is no mistake where the subagent inherits it.
func TestAgents_DoubtsLookBelow(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for name, tc := range map[string]struct {
		own  string
		want []string
	}{
		"inherited": {"", nil},
		"its own":   {`,"interrupt_on":{"transfr":true}`, []string{`interrupt_on: no tool of this agent, or of a subagent that inherits from it, is called "transfer"`, `subagents/0: interrupt_on: no tool`}},
	} {
		doc := `{"planner":{"kind":"external"},"tools":["task"],"interrupt_on":{"transfer":true},"subagents":[{"name":"w","planner":{"kind":"script","turns":[{"final":1}]},"tools":["transfer"]` + tc.own + `}]}`
		saved, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "a", hosttest.Body(json.RawMessage(doc)))
		if err != nil || len(saved.Warnings) != len(tc.want) {
			t.Fatalf("%s: %q, %v", name, saved.Warnings, err)
		}
		for i, w := range tc.want {
			if !strings.HasPrefix(saved.Warnings[i], w) {
				t.Errorf("%s: %q, want %q", name, saved.Warnings[i], w)
			}
		}
	}
}

// What a save accepts and is probably a mistake is told with it: a misspelt name in interrupt_on stops nothing.
func TestAgents_AMisspeltNameIsToldWithTheSave(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	a, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "typo", hosttest.Body(json.RawMessage(
		`{"planner":{"kind":"external"},"tools":["write_file","nosuch"],"interrupt_on":{"wirte_file":true,"write_file":true,"test.write_file":true}}`)))
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Warnings) != 2 || !strings.Contains(a.Warnings[0], `"nosuch"`) || !strings.Contains(a.Warnings[1], `"wirte_file"`) {
		t.Errorf("warnings %q", a.Warnings)
	}
	if again, err := h.GetAgent(t.Context(), hosttest.Owner, "typo"); err != nil || again.Warnings != nil {
		t.Errorf("%v %q", err, again.Warnings)
	}
}
