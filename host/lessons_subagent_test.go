package host_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/host/planner"
	"github.com/pawlhost/pawl/store"
)

// lessons_subagent: the same below the root's planner. (The ids: see lessons_race_test.go.)

// places are where a batch may be proposed: by the root, and two levels below it.
var places = []struct {
	name  string
	agent func(turns, rest string) string
}{
	{"root", scripted},
	{"subagent", func(turns, rest string) string {
		mid := sub("mid", `[{"calls":[`+task("down", "leaf", "x")+`]},{"final":"mid"}]`, `,"subagents":[`+sub("leaf", turns, "")+`]`)
		return scripted(`[{"calls":[`+task("mid", "mid", "x")+`]},{"final":"done"}]`, rest+`,"subagents":[`+mid+`]`)
	}},
}

// told is the message with a call's result, as the model is told it.
func told(t *testing.T, h *hosttest.Host, run, label string) host.Message {
	t.Helper()
	msgs, err := h.Trajectory(t.Context(), hosttest.Member, run)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Backward(msgs) {
		if m.Role == "tool" && m.ToolCallID == label {
			return m
		}
	}
	t.Fatalf("nothing is told of %s: %+v", label, msgs)
	return host.Message{}
}

// What an edit may be, at the root and below: valid against the schema, within what stopped the call, not denied; what another rule
// stops waits again before anything runs; the model is told what ran and who changed it.
func TestInvariant8_EditsAtTheRootAndBelow(t *testing.T) {
	t.Parallel()
	for _, place := range places {
		t.Run(place.name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{Rules: rules(strings.TrimPrefix(bigRule, "package pawl.rules\nimport rego.v1\n"))})
			h.Agent("pay", place.agent(`[{"calls":[{"tool_call_id":"pay","tool":"transfer","arguments":{"amount":200,"to":"bob"}},{"tool_call_id":"say","tool":"echo","arguments":{}}]},{"final":"end"}]`,
				`,"interrupt_on":{"transfer":{"when":{"amount":{"min":100},"to":{"prefix":"b"}}}}`))
			r := h.Settled(h.Create(hosttest.Member, "pay").ID)
			first := r.Pause.Approvals[0]
			edit := func(id, args string) error {
				_, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: id, Kind: "edit", Arguments: raw(args)})
				return err
			}
			before := h.Stored()
			for _, tc := range []struct {
				args    string
				code    host.Code
				pointer string
			}{
				{`{"amount":"200","to":"bob"}`, host.CodeInvalid, "/amount"}, // the wrong type
				{`{"amount":null,"to":"bob"}`, host.CodeInvalid, "/amount"},
				{`{"to":"bob"}`, host.CodeInvalid, ""},                             // a required member is missing
				{`{"amount":200,"to":"bob","note":"x"}`, host.CodeInvalid, ""},     // an unknown one
				{`{"tool":"echo","arguments":{}}`, host.CodeInvalid, ""},           // another tool
				{`{"amount":200,"amount":1,"to":"bob"}`, host.CodeInvalid, ""},     // two readers, two amounts
				{`{"amount":99.999,"to":"bob"}`, host.CodeOutOfScope, ""},          // below what stopped it
				{`{"amount":200,"to":"alice"}`, host.CodeOutOfScope, ""},           // to somebody else
				{`{"amount":200}`, host.CodeOutOfScope, ""},                        // to nobody: doubt counts as outside
				{`{"amount":9001,"to":"bob"}`, host.CodeInvalid, ""},               // denied
				{`"amount"`, host.CodeInvalid, ""}, {`null`, host.CodeInvalid, ""}, // no object
			} {
				if e := refusal(t, edit(first.ID, tc.args), tc.code); e.Pointer != "/decisions/0/arguments"+tc.pointer {
					t.Errorf("%s: pointer %q", tc.args, e.Pointer)
				}
			}
			h.Unchanged(before)
			// Another rule stops the edited call: it waits again, and its sibling with it.
			if err := edit(first.ID, `{"amount":5000,"to":"bill"}`); err != nil {
				t.Fatal(err)
			}
			r = h.Settled(r.ID)
			const shown = `{"amount":5000,"currency":"EUR","to":"bill"}`
			second := r.Pause.Approvals[0]
			if r.State != store.RunAwaitingApproval || len(h.Ran.All()) != 0 || second.ID == first.ID || !slices.Contains(second.Rules, "big") || string(second.Arguments) != shown ||
				second.ParentCallID != first.ParentCallID || second.Subagent != first.Subagent || second.CallID != first.CallID {
				t.Fatalf("the run is %s, ran %q, asks %+v", r.State, h.Ran.All(), second)
			}
			refusal(t, edit(first.ID, `{"amount":300,"to":"bob"}`), host.CodeAlreadyDecided)
			refusal(t, edit(second.ID, `{"amount":300,"to":"bob"}`), host.CodeOutOfScope) // outside the rule that stops it now
			if err := edit(second.ID, `{"amount":6000,"to":"ben"}`); err != nil {
				t.Fatal(err)
			}
			r = h.Settled(r.ID)
			const ran = `{"amount":6000,"currency":"EUR","to":"ben"}`
			c := byLabel(r, "pay")[0]
			if r.State != store.RunSucceeded || resultOf(c) != ran || string(c.EditedArguments) != ran || string(c.Arguments) != `{"amount":200,"currency":"EUR","to":"bob"}` {
				t.Errorf("the run is %s, the call ended with %s, shows %s edited to %s", r.State, resultOf(c), c.Arguments, c.EditedArguments)
			}
			if got := h.Ran.All(); !slices.Equal(got, []string{"transfer " + ran, "echo {}"}) {
				t.Errorf("ran %q", got)
			}
			if m := told(t, h, r.ID, "pay"); m.Decision == nil || m.Decision.Kind != "edit" || m.Decision.DecidedBy != "admin" || string(m.Decision.Edited) != ran || string(m.Result) != ran || (m.Frame == 0) != (place.name == "root") {
				t.Errorf("the model is told %s", text(t, m, nil))
			}
		})
	}
}

// MX13, at the root and below: numbers, booleans, lists and nested objects keep their types through an edit.
func TestInvariant6_EditedTypesSurviveAtTheRootAndBelow(t *testing.T) {
	t.Parallel()
	const edited = `{"b":false,"f":1.5,"i":100,"l":[1,"1",true,null,[],{}],"o":{"x":{"y":0}},"s":"","z":null}`
	for _, place := range places {
		h := hosttest.New(t, hosttest.Options{})
		h.Agent("say", place.agent(`[{"calls":[{"tool_call_id":"say","tool":"echo","arguments":{"n":1}}]},{"final":1}]`, `,"interrupt_on":{"echo":true}`))
		r := h.Settled(h.Create(hosttest.Member, "say").ID)
		if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(edited)}); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
		if got := resultOf(byLabel(r, "say")[0]); got != edited || !slices.Equal(h.Ran.All(), []string{"echo " + edited}) || string(told(t, h, r.ID, "say").Decision.Edited) != edited {
			t.Errorf("%s: ran %q with result %s", place.name, h.Ran.All(), got)
		}
	}
}

// A task that waits at the gate is edited as any call: to another input, not to a subagent that there is none of.
func TestInvariant8_AnEditOfATaskNamesASubagent(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", scripted(`[{"calls":[`+task("t", "a", "x")+`]},{"final":1}]`, `,"interrupt_on":{"task":true},"subagents":[`+
		sub("a", `[{"final":"a"}]`, "")+`,`+sub("b", `[{"final":"b"}]`, "")+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	edit := func(args string) error {
		_, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(args)})
		return err
	}
	if e := refusal(t, edit(`{"subagent":"nobody","input":"x"}`), host.CodeInvalid); e.Pointer != "/decisions/0/arguments/subagent" {
		t.Errorf("pointer %q", e.Pointer)
	}
	if err := edit(`{"subagent":"b","input":"y"}`); err != nil {
		t.Fatal(err)
	}
	if got := resultsOf(h.Settled(r.ID)); got != `"b"` {
		t.Errorf("results %s", got)
	}
	msgs, err := h.Trajectory(t.Context(), hosttest.Member, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	if given := slices.IndexFunc(msgs, func(m host.Message) bool { return m.Frame == 1 && m.Role == "user" }); given < 0 || string(msgs[given].Content) != `"y"` {
		t.Errorf("the subagent was told %s", text(t, msgs, nil))
	}
	if m := told(t, h, r.ID, "t"); m.Decision == nil || string(m.Decision.Edited) != `{"input":"y","subagent":"b"}` {
		t.Errorf("the model is told %s", text(t, m, nil))
	}
}

// A task that is rejected, or answered in its subagent's place, opens none.
func TestInvariant8_ATaskThatNobodyApprovedOpensNoSubagent(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{"reject": "rejected", "respond": `"the answer"`} {
		h := hosttest.New(t, hosttest.Options{})
		h.Agent("lead", scripted(`[{"calls":[`+task("t", "w", "x")+`]},{"final":1}]`, `,"interrupt_on":{"task":true},"subagents":[`+sub("w", `[{"calls":[{"tool":"echo","arguments":{}}]},{"final":"w"}]`, "")+`]`))
		r := h.Settled(h.Create(hosttest.Member, "lead").ID)
		if _, err := h.DecideAll(hosttest.Admin, r, kind); err != nil {
			t.Fatal(err)
		}
		if r = h.Settled(r.ID); r.State != store.RunSucceeded || resultsOf(r) != want || len(h.Ran.All()) != 0 {
			t.Errorf("%s: the run is %s, results %s, ran %q", kind, r.State, resultsOf(r), h.Ran.All())
		}
	}
}

// MX3. One answer that names no approval is not for two questions, wherever they were asked.
func TestToken_UserInputIsNotForTwoQuestionsOfSubagents(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	asks := `[{"calls":[{"tool_call_id":"q","tool":"ask","arguments":{"reason":"await_input","payload":{"question":"Which?"}}}]},{"final":1}]`
	h.Agent("lead", scripted(`[{"calls":[`+task("a", "x", "1")+`,`+task("b", "y", "2")+`]},{"final":1}]`, `,"subagents":[`+sub("x", asks, "")+`,`+sub("y", asks, "")+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	v, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
	if err != nil || len(v.Pause.Approvals) != 2 || v.State != store.RunAwaitingInput {
		t.Fatalf("the run is %s: %+v, %v", v.State, v.Pause, err)
	}
	before := h.Stored()
	_, err = resume(h, hosttest.Member, v.Pause.ResumeToken, host.Answer{UserInput: raw(`"blue"`)})
	refusal(t, err, host.CodeAmbiguous)
	h.Unchanged(before)
	var ds []host.Decision
	for i, ap := range v.Pause.Approvals {
		ds = append(ds, host.Decision{ApprovalID: ap.ID, Kind: "respond", Value: raw(fmt.Sprint(i))})
	}
	slices.Reverse(ds) // in whatever order, each answer reaches its question
	if _, err := resume(h, hosttest.Member, v.Pause.ResumeToken, host.Answer{Decisions: ds}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	for i, ap := range v.Pause.Approvals {
		for _, c := range r.Calls {
			if c.ID == ap.CallID && !strings.Contains(string(c.Result), fmt.Sprintf(`"user_input":%d`, i)) {
				t.Errorf("question %d got %s", i, c.Result)
			}
		}
	}
}

// forgetful is a planner that never proposes the same batch twice: a second question about one turn gets another answer.
type forgetful struct {
	host.Planner
	mu    sync.Mutex
	asked []int // by turn
}

func (f *forgetful) Next(config json.RawMessage, v host.Frame) (host.Proposal, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, v.Turn)
	if slices.Contains(f.asked[:len(f.asked)-1], v.Turn) {
		return host.Proposal{Done: true, Output: raw(`"forgot"`)}, nil
	}
	return f.Planner.Next(config, v)
}

// SA4. Going on never depends on a model that repeats itself: over a stop and a restart each turn was asked for once.
func TestResumeOrder_NoPlannerIsAskedAgainAboutATurn(t *testing.T) {
	t.Parallel()
	p := &forgetful{Planner: planner.All()["script"]}
	o := hosttest.Options{Config: func(c *host.Config) {
		c.Planners = maps.Clone(c.Planners)
		c.Planners["script"] = p
	}}
	h := hosttest.New(t, o)
	h.Agent("pay", scripted(`[{"calls":[{"tool":"echo","arguments":{}}]},{"calls":[`+pay+`]},{"calls":[{"tool":"ask","arguments":{"reason":"await_input","payload":{}}}]},{"final":"done"}]`, `,"interrupt_on":{"transfer":true}`))
	r := h.Settled(h.Create(hosttest.Member, "pay").ID)
	for _, kind := range []string{"approve", "respond"} {
		h = restart(t, h, o)
		if _, err := h.DecideAll(hosttest.Admin, r, kind); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
	}
	if string(r.Output) != `"done"` || !slices.Equal(p.asked, []int{0, 1, 2, 3}) {
		t.Errorf("the run ended with %s, the planner was asked after the turns %v", r.Output, p.asked)
	}
}

// SA6. A stop below, in a run that nobody watches, made by a service: it is listed for those who may decide it, and it ends.
func TestInvariant12_ANestedStopThatNobodyWatchesIsListedAndExpires(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", nested(3, `[{"calls":[`+pay+`]},{"final":1}]`, gatedTransfer))
	r := h.Create(hosttest.Service, "lead")
	r = h.Settled(r.ID)
	aps, _, err := h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{})
	if err != nil || len(aps) != 1 || aps[0].RunID != r.ID || aps[0].Subagent != "w/w/w" {
		t.Fatalf("listed: %+v, %v", aps, err)
	}
	h.Clock.Advance(time.Time(aps[0].ExpiresAt).Sub(h.Clock.Now()))
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); r.State != store.RunFailed || r.Error.Code != "approval_expired" {
		t.Errorf("the run is %s: %+v", r.State, r.Error)
	}
	if aps, _, err = h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{}); err != nil || len(aps) != 0 {
		t.Errorf("still listed: %+v, %v", aps, err)
	}
}

// ST2, MX7. Stops in parallel subagents: what the events say is open is what GET says, whenever the run rests; the event of a pause names
// them all.
func TestEvents_TheLiveSetOfParallelSubagentsEqualsWhatGETShows(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	question := `{"calls":[{"tool_call_id":"q","tool":"ask","arguments":{"reason":"await_input","payload":{}}}]}`
	h.Agent("lead", scripted(`[{"calls":[`+task("a", "x", "1")+`,`+task("b", "y", "2")+`,`+task("c", "z", "3")+`]},{"final":1}]`, `,"interrupt_on":{"transfer":true},"subagents":[`+
		sub("x", `[{"calls":[`+pay+`]},`+question+`,{"final":1}]`, "")+`,`+sub("y", `[`+question+`,{"calls":[`+pay+`]},{"final":1}]`, "")+`,`+
		sub("z", `[{"calls":[{"tool":"echo","arguments":{}}]},{"final":1}]`, "")+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	sizes := ""
	for !r.State.Ended() {
		live := map[string]bool{}
		for _, e := range logOf(t, h, hosttest.Member, r.ID) {
			switch w := parse(t, e); w.Type {
			case "approval.requested":
				var ap host.Approval
				if err := json.Unmarshal(w.Approval, &ap); err != nil {
					t.Fatal(err)
				}
				live[ap.ID] = true
			case "approval.decided":
				delete(live, w.ApprovalID)
			case "run.paused":
				if len(w.ApprovalIDs) != len(live) || slices.ContainsFunc(w.ApprovalIDs, func(id string) bool { return !live[id] }) {
					t.Errorf("run.paused names %v, open are %v", w.ApprovalIDs, live)
				}
			}
		}
		shown := map[string]bool{}
		for _, ap := range r.Pause.Approvals {
			if ap.State == store.ApprovalPending {
				shown[ap.ID] = true
			}
		}
		queue, _, err := h.Approvals(t.Context(), hosttest.Member, "pending", host.Page{})
		if err != nil || !maps.Equal(live, shown) || len(queue) != len(shown) {
			t.Errorf("live %v, GET %v, a queue of %d, %v", live, shown, len(queue), err)
		}
		sizes += fmt.Sprint(len(shown), " ")
		// First the questions by their subject, then the rest: the pause stays open in between.
		var own, rest []host.Decision
		for _, ap := range r.Pause.Approvals {
			if ap.State == store.ApprovalPending && ap.Reason == "await_input" {
				own = append(own, host.Decision{ApprovalID: ap.ID, Kind: "respond", Value: raw("1")})
			} else if ap.State == store.ApprovalPending {
				rest = append(rest, host.Decision{ApprovalID: ap.ID, Kind: "approve"})
			}
		}
		by, ds := hosttest.Member, own
		if len(own) == 0 {
			by, ds = hosttest.Admin, rest
		}
		if _, err := h.Answer(by, r.ID, ds...); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
	}
	if sizes != "2 1 2 1 " || r.State != store.RunSucceeded {
		t.Errorf("the run is %s; open were %s", r.State, sizes)
	}
}

// MX1, below: many subagents stop at once. Each approval is its own call's; what is beyond the bound of a run is told so and the rest goes on.
func TestSubagent_ManyStopAtOnceAndTooManyAreToldSo(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	var tasks []string
	for i := range 70 {
		tasks = append(tasks, task(fmt.Sprintf("t%d", i), "w", fmt.Sprint(i)))
	}
	h.Agent("lead", scripted(`[{"calls":[`+strings.Join(tasks, ",")+`]},{"final":"done"}]`, `,"interrupt_on":{"transfer":true},"subagents":[`+sub("w", `[{"calls":[`+pay+`]},{"final":1}]`, "")+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	if r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 63 {
		t.Fatalf("the run is %s: %+v", r.State, r.Error)
	}
	seen := map[string]bool{}
	for _, ap := range r.Pause.Approvals {
		seen[ap.ID], seen[ap.CallID], seen[ap.ParentCallID] = true, true, true
	}
	if len(seen) != 3*63 {
		t.Errorf("%d distinct ids of 63 approvals, their calls and their tasks", len(seen))
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	limited := 0
	for _, c := range r.Calls {
		if c.Error != nil && c.Error.Code == "limit" {
			limited++
		}
	}
	if r.State != store.RunSucceeded || limited != 7 || h.Ran.Count("transfer") != 63 {
		t.Errorf("the run is %s, %d tasks were too many, %d tools ran", r.State, limited, h.Ran.Count("transfer"))
	}
}

// What changed while a run was stopped, at the root and below: other tool bytes never run under an old approval; a new rule stops the
// approved call once more, and its sibling with it; a new deny refuses it.
func TestInvariant8_AChangedHostOnlyTightensAtTheRootAndBelow(t *testing.T) {
	t.Parallel()
	for _, place := range places {
		for name, tc := range map[string]struct {
			o       hosttest.Options
			results string // of pay and say; "" while they wait
		}{
			"nothing changed": {hosttest.Options{}, `{"amount":7,"currency":"EUR"} {}`},
			"other bytes":     {hosttest.Options{Describe: " (second edition)"}, "tool_changed tool_changed"},
			"a new rule":      {hosttest.Options{Rules: rules(`pause contains {"rule": "new"} if input.call.tool == "transfer"`)}, ""},
			"a new deny":      {hosttest.Options{Rules: rules(denyTransfer)}, "denied {}"},
		} {
			t.Run(place.name+", "+name, func(t *testing.T) {
				t.Parallel()
				h := hosttest.New(t, hosttest.Options{})
				h.Agent("pay", place.agent(`[{"calls":[`+pay+`,{"tool_call_id":"say","tool":"echo","arguments":{}}]},{"final":"end"}]`, `,"interrupt_on":{"transfer":true}`))
				r := h.Settled(h.Create(hosttest.Member, "pay").ID)
				first := r.Pause.Approvals[0]
				idle := tc.o
				idle.Idle = true
				h = restart(t, h, idle)
				if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
					t.Fatal(err)
				}
				h = restart(t, h, tc.o)
				r = h.Settled(r.ID)
				if tc.results == "" {
					if r.State != store.RunAwaitingApproval || len(h.Ran.All()) != 0 || len(r.Pause.Approvals) != 1 || r.Pause.Approvals[0].CallID != first.CallID || !slices.Equal(r.Pause.Approvals[0].Rules, []string{"interrupt_on/transfer", "new"}) {
						t.Fatalf("the run is %s, ran %q, asks %s", r.State, h.Ran.All(), text(t, r.Pause, nil))
					}
					if _, err := h.DecideAll(hosttest.Admin, r, "reject"); err != nil {
						t.Fatal(err)
					}
					r, tc.results = h.Settled(r.ID), "rejected {}"
				}
				if got := resultOf(byLabel(r, "pay")[0]) + " " + resultOf(byLabel(r, "say")[0]); r.State != store.RunSucceeded || got != tc.results {
					t.Errorf("the run is %s, results %s, want %s", r.State, got, tc.results)
				}
			})
		}
	}
}
