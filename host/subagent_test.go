package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// task is a proposed call that gives work to a subagent.
func task(label, subagent, input string) string {
	return fmt.Sprintf(`{"tool_call_id":%q,"tool":"task","arguments":{"subagent":%q,"input":%q}}`, label, subagent, input)
}

// scripted is an agent's document whose planner plays the turns; rest are further members, with a comma in front.
func scripted(turns, rest string) string {
	return fmt.Sprintf(`{"planner":{"kind":"script","turns":%s},"tools":["task","transfer","echo","read_echo","ask","gated_write","write_file","fail"]%s}`, turns, rest)
}

// sub is a subagent's document.
func sub(name, turns, rest string) string {
	return strings.Replace(scripted(turns, rest), "{", fmt.Sprintf(`{"name":%q,`, name), 1)
}

const pay = `{"tool_call_id":"pay","tool":"transfer","arguments":{"amount":7}}`

// nested is an agent whose one task leads, depth levels down, to a subagent with these turns.
func nested(depth int, turns, interruptOn string) string {
	doc := sub("w", turns, "")
	for d := depth - 1; d >= 1; d-- {
		doc = sub("w", `[{"calls":[`+task("t", "w", "go on")+`]},{"final":{"from":`+fmt.Sprint(d)+`}}]`, `,"subagents":[`+doc+`]`)
	}
	return scripted(`[{"calls":[`+task("t", "w", "begin")+`]},{"final":"done"}]`, `,"subagents":[`+doc+`],"interrupt_on":`+interruptOn)
}

func byLabel(r host.Run, label string) (out []host.Call) {
	for _, c := range r.Calls {
		if c.ToolCallID == label {
			out = append(out, c)
		}
	}
	return out
}

func TestSubagent_AnswersItsTask(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", scripted(`[{"calls":[`+task("t1", "clerk", "add it up")+`]},{"final":"done"}]`, `,"system":"You lead.","subagents":[`+
		sub("clerk", `[{"calls":[{"tool_call_id":"e","tool":"echo","arguments":{"n":1}}]},{"final":{"sum":3}}]`, `,"system":"You add."`)+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	if r.State != store.RunSucceeded || len(r.Calls) != 2 {
		t.Fatalf("the run is %s with %d calls: %+v", r.State, len(r.Calls), r.Error)
	}
	tk, e := r.Calls[0], r.Calls[1]
	if string(tk.Result) != `{"sum":3}` || tk.ParentCallID != "" || e.ParentCallID != tk.ID || string(e.Result) != `{"n":1}` || r.Turn != 1 {
		t.Errorf("turn %d, task %+v, call inside %+v", r.Turn, tk, e)
	}
	msgs, err := h.Trajectory(t.Context(), hosttest.Member, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, m := range msgs {
		if m.Seq != i+1 {
			t.Errorf("message %d has the number %d", i+1, m.Seq)
		}
		got = append(got, fmt.Sprintf("%d %s %s%s", m.Frame, m.Role, m.Content, m.Result))
	}
	want := []string{
		`0 system "You lead."`, `0 assistant `, `1 system "You add."`, `1 user "add it up"`, `1 assistant `, `1 tool {"n":1}`, `1 assistant {"sum":3}`,
		`0 tool {"sum":3}`, `0 assistant "done"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the trajectory is\n%q, want\n%q", got, want)
	}
}

// All four decisions mean the same at every depth, before and after a restart.
func TestSubagent_EachDecisionAtEveryDepth(t *testing.T) {
	t.Parallel()
	for depth := 1; depth <= 3; depth++ {
		for kind, want := range map[string]string{
			"approve": `{"amount":7,"currency":"EUR"}`, "edit": `{"amount":8,"currency":"EUR"}`, "reject": "rejected", "respond": `"by hand"`,
		} {
			t.Run(fmt.Sprintf("%s at depth %d", kind, depth), func(t *testing.T) {
				t.Parallel()
				h := hosttest.New(t, hosttest.Options{})
				h.Agent("lead", nested(depth, `[{"calls":[`+pay+`,{"tool_call_id":"e","tool":"echo","arguments":{}}]},{"final":"below"}]`, gatedTransfer))
				r := h.Settled(h.Create(hosttest.Member, "lead").ID)
				if r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 1 {
					t.Fatalf("the run is %s: %+v", r.State, r.Pause)
				}
				ap := r.Pause.Approvals[0]
				parent := byLabel(r, "t")[depth-1]
				if ap.ParentCallID != parent.ID || ap.Subagent != strings.Repeat("w/", depth-1)+"w" || parent.State != store.CallStarted {
					t.Errorf("the approval is of %q in %q, want %q; its task is %s", ap.ParentCallID, ap.Subagent, parent.ID, parent.State)
				}
				if n := len(h.Ran.All()); n != 0 {
					t.Errorf("%d tools ran before the decision", n)
				}
				h = restart(t, h, hosttest.Options{})
				d := host.Decision{ApprovalID: ap.ID, Kind: kind}
				switch kind {
				case "edit":
					d.Arguments = json.RawMessage(`{"amount":8}`)
				case "respond":
					d.Value = json.RawMessage(`"by hand"`)
				}
				if _, err := h.Answer(hosttest.Admin, r.ID, d); err != nil {
					t.Fatal(err)
				}
				r = h.Settled(r.ID)
				if r.State != store.RunSucceeded || string(r.Output) != `"done"` {
					t.Fatalf("the run is %s with %s: %+v", r.State, r.Output, r.Error)
				}
				c := byLabel(r, "pay")[0]
				got := string(c.Result)
				if c.Error != nil {
					got = c.Error.Code
				}
				if got != want {
					t.Errorf("the call ended with %s, want %s", got, want)
				}
				ran := map[string]int{"approve": 1, "edit": 1}[kind]
				if h.Ran.Count("transfer") != ran || h.Ran.Count("echo") != 1 {
					t.Errorf("what ran: %q", h.Ran.All())
				}
			})
		}
	}
}

// A run stops at depth 3 in two branches at once. The pause opens when both rest, with both approvals; the host restarts; each tool
// runs once.
func TestInvariant3_TwoBranchesStopAtDepthThreeAndEachToolRunsOnce(t *testing.T) {
	t.Parallel()
	deep := func(name, label string) string {
		leaf := sub("leaf", `[{"calls":[{"tool_call_id":"`+label+`-before","tool":"echo","arguments":{"l":"`+label+`"}}]},
			{"calls":[{"tool_call_id":"`+label+`","tool":"transfer","arguments":{"amount":1,"to":"`+label+`"}}]},{"final":"`+label+`"}]`, "")
		mid := sub("mid", `[{"calls":[`+task(label+"-mid", "leaf", "x")+`]},{"final":"mid"}]`, `,"subagents":[`+leaf+`]`)
		return sub(name, `[{"calls":[`+task(label+"-top", "mid", "x")+`]},{"final":"top"}]`, `,"subagents":[`+mid+`]`)
	}
	doc := scripted(`[{"calls":[`+task("a", "left", "x")+`,`+task("b", "right", "x")+`]},{"final":"done"}]`,
		`,"interrupt_on":{"transfer":true},"subagents":[`+deep("left", "L")+`,`+deep("right", "R")+`]`)
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", doc)
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	if r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 2 {
		t.Fatalf("the run is %s: %+v", r.State, r.Pause)
	}
	for _, e := range h.Events(r.ID) {
		if e["type"] == "run.paused" && len(e["approval_ids"].([]any)) != 2 {
			t.Errorf("announced with %v", e["approval_ids"])
		}
	}
	if h.Ran.Count("echo") != 2 || h.Ran.Count("transfer") != 0 {
		t.Errorf("before the decision: %q", h.Ran.All())
	}
	// One of two is not enough, and changes nothing.
	before := h.Stored()
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "approve"}); host.CodeOf(err) != host.CodeIncomplete {
		t.Errorf("half of a decision: %v", err)
	}
	h.Unchanged(before)
	first := h
	h = restart(t, h, hosttest.Options{})
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunSucceeded {
		t.Fatalf("the run is %s: %+v", r.State, r.Error)
	}
	ran := append(first.Ran.All(), h.Ran.All()...)
	slices.Sort(ran)
	want := []string{`echo {"l":"L"}`, `echo {"l":"R"}`, `transfer {"amount":1,"currency":"EUR","to":"L"}`, `transfer {"amount":1,"currency":"EUR","to":"R"}`}
	if !slices.Equal(ran, want) {
		t.Errorf("what ran: %q", ran)
	}
}

// The gate is the same for a tool called directly and through a subagent, whose own interrupt_on takes the place of what it would
// inherit. (A nested tool's approval was dropped elsewhere: agent-framework 6062.)
// Public failure SA2.
func TestInvariant5_TheSameGateDirectAndThroughASubagent(t *testing.T) {
	t.Parallel()
	turns := `[{"calls":[` + pay + `]},{"final":1}]`
	write := `[{"calls":[{"tool_call_id":"w","tool":"write_file","arguments":{"path":"/memories/x","content":"y"}}]},{"final":1}]`
	lead := `[{"calls":[` + task("t", "w", "x") + `]},{"final":1}]`
	for name, tc := range map[string]struct {
		doc   string
		stops bool
	}{
		"direct":                       {scripted(turns, `,"interrupt_on":{"transfer":true}`), true},
		"inherited":                    {scripted(lead, `,"interrupt_on":{"transfer":true},"subagents":[`+sub("w", turns, "")+`]`), true},
		"its own":                      {scripted(lead, `,"subagents":[`+sub("w", turns, `,"interrupt_on":{"transfer":true}`)+`]`), true},
		"its own lets it go":           {scripted(lead, `,"interrupt_on":{"transfer":true},"subagents":[`+sub("w", turns, `,"interrupt_on":{}`)+`]`), false},
		"the defaults hold below":      {scripted(lead, `,"subagents":[`+sub("w", write, "")+`]`), true},
		"the defaults hold in its own": {scripted(lead, `,"subagents":[`+sub("w", write, `,"interrupt_on":{"transfer":true}`)+`]`), true},
		"the task itself":              {scripted(lead, `,"interrupt_on":{"task":{"when":{"subagent":{"equals":"w"}}}},"subagents":[`+sub("w", turns, "")+`]`), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Agent("a", tc.doc)
			r := h.Settled(h.Create(hosttest.Member, "a").ID)
			if (r.State == store.RunAwaitingApproval) != tc.stops {
				t.Fatalf("the run is %s", r.State)
			}
			if tc.stops && len(h.Ran.All()) > 0 {
				t.Errorf("ran before the decision: %q", h.Ran.All())
			}
		})
	}
}

// Two nested pauses beside a plain call: the plain call runs once over both resumes. (deepagents 420.)
// Public failure DX4.
func TestInvariant3_ASiblingOfASubagentRunsOnceOverAllResumes(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", scripted(`[{"calls":[`+task("t", "w", "x")+`,{"tool_call_id":"plain","tool":"read_echo","arguments":{"plain":1}}]},{"final":"done"}]`,
		`,"interrupt_on":{"transfer":true},"subagents":[`+sub("w", `[{"calls":[`+pay+`]},{"calls":[`+pay+`]},{"final":1}]`, "")+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	for i := range 2 {
		if r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 1 {
			t.Fatalf("stop %d: %s %+v", i, r.State, r.Pause)
		}
		if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
	}
	if r.State != store.RunSucceeded || h.Ran.Count("read_echo") != 1 || h.Ran.Count("transfer") != 2 {
		t.Errorf("%s, what ran: %q", r.State, h.Ran.All())
	}
}

// Children run at the same time: each waits inside its tool for the other.
func TestSubagent_ChildrenRunInParallel(t *testing.T) {
	t.Parallel()
	meet := make(chan string)
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"meet": func(ctx context.Context, s *plugins.Session) error {
		select {
		case meet <- "hello":
		case <-meet:
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := hosttest.Op(ctx, s, "output", true)
		return err
	}}})
	turns := `[{"calls":[{"tool":"meet","arguments":{}}]},{"final":"met"}]`
	doc := strings.ReplaceAll(scripted(`[{"calls":[`+task("a", "x", "1")+`,`+task("b", "y", "2")+`]},{"final":"done"}]`,
		`,"subagents":[`+sub("x", turns, "")+`,`+sub("y", turns, "")+`]`), `"fail"`, `"meet"`)
	h.Agent("lead", doc)
	if r := h.Settled(h.Create(hosttest.Member, "lead").ID); r.State != store.RunSucceeded {
		t.Errorf("the run is %s: %+v %+v", r.State, r.Error, r.Calls)
	}
}

// A pause opens only when every frame rests: while another child's tool runs nothing is announced.
func TestInvariant4_APauseOpensWhenEveryFrameRests(t *testing.T) {
	t.Parallel()
	started, leave := make(chan struct{}), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"slow": func(ctx context.Context, s *plugins.Session) error {
		close(started)
		select {
		case <-leave:
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := hosttest.Op(ctx, s, "output", true)
		return err
	}}})
	doc := strings.ReplaceAll(scripted(`[{"calls":[`+task("a", "x", "1")+`,`+task("b", "y", "2")+`]},{"final":"done"}]`,
		`,"interrupt_on":{"transfer":true},"subagents":[`+sub("x", `[{"calls":[{"tool":"slow","arguments":{}}]},{"calls":[`+pay+`]},{"final":1}]`, "")+`,`+
			sub("y", `[{"calls":[`+pay+`]},{"final":1}]`, "")+`]`), `"fail"`, `"slow"`)
	h.Agent("lead", doc)
	id := h.Create(hosttest.Member, "lead").ID
	<-started
	r, err := h.GetRun(t.Context(), hosttest.Owner, id)
	if err != nil || r.State != store.RunRunning || r.Pause != nil {
		t.Fatalf("while a child runs: %s %+v %v", r.State, r.Pause, err)
	}
	aps, _, err := h.Approvals(t.Context(), hosttest.Owner, "pending", host.Page{})
	if err != nil || len(aps) != 0 {
		t.Errorf("%d approvals are listed while a child runs, %v", len(aps), err)
	}
	close(leave)
	if r = h.Settled(id); r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 2 {
		t.Errorf("the run is %s: %+v", r.State, r.Pause)
	}
}

func TestSubagent_ItsFailureIsTheErrorOfItsTask(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ call, subagent, code, says string }{
		"exhausted": {task("t", "w", "x"), sub("w", `[{"calls":[`+pay+`]}]`, ""), "tool_error", "script_exhausted"},
		"too long":  {task("t", "w", "x"), sub("w", `[{"calls":[`+pay+`]},{"calls":[`+pay+`]},{"final":1}]`, `,"limits":{"turns":1}`), "limit", "1 turns"},
		"unknown":   {task("t", "nobody", "x"), sub("w", `[{"final":1}]`, ""), "invalid_arguments", `no subagent "nobody"; it has: w`},
		"no input":  {`{"tool_call_id":"t","tool":"task","arguments":{"subagent":"w"}}`, sub("w", `[{"final":1}]`, ""), "invalid_arguments", "input"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Agent("lead", scripted(`[{"calls":[`+tc.call+`]},{"final":"recovered"}]`, `,"subagents":[`+tc.subagent+`]`))
			r := h.Settled(h.Create(hosttest.Member, "lead").ID)
			if string(r.Output) != `"recovered"` {
				t.Fatalf("the run is %s: %+v", r.State, r.Error)
			}
			if c := byLabel(r, "t")[0]; c.Error == nil || c.Error.Code != tc.code || !strings.Contains(c.Error.Message, tc.says) {
				t.Errorf("the task ended with %+v, want %s: … %s", c.Error, tc.code, tc.says)
			}
		})
	}
}

// A tool outside a subagent's own list is unknown to it, although its agent has it.
func TestInvariant5_ASubagentHasItsOwnTools(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", `{"planner":{"kind":"script","turns":[{"calls":[`+task("t", "w", "x")+`]},{"final":1}]},"tools":["task","transfer"],"subagents":[
		{"name":"w","planner":{"kind":"script","turns":[{"calls":[`+pay+`,`+task("below", "w", "x")+`]},{"final":1}]},"tools":["echo"]}]}`)
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	for _, label := range []string{"pay", "below"} {
		if c := byLabel(r, label)[0]; c.Error == nil || c.Error.Code != "unknown_tool" {
			t.Errorf("%s ended with %+v", label, c.Error)
		}
	}
}

func TestAgents_ShapesOfSubagents(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	final := `[{"final":1}]`
	deep := sub("w", final, "")
	for range 8 {
		deep = sub("w", final, `,"subagents":[`+deep+`]`)
	}
	for name, tc := range map[string]struct{ subagents, pointer string }{
		"no name":         {`[{"planner":{"kind":"external"},"tools":[]}]`, "/subagents/0/name"},
		"twice":           {`[` + sub("a", final, "") + `,` + sub("a", final, "") + `]`, "/subagents/1/name"},
		"external":        {`[{"name":"a","planner":{"kind":"external"},"tools":[]}]`, "/subagents/0/planner/kind"},
		"inside":          {`[` + sub("a", final, `,"subagents":[`+sub("b", `[]`, "")+`]`) + `]`, "/subagents/0/subagents/0/planner/turns"},
		"interrupts":      {`[` + sub("a", final, `,"interrupt_on":{"echo":{"when":{"x":{"regex":"("}}}}`) + `]`, "/subagents/0/interrupt_on/echo/when/x/regex"},
		"unknown":         {`[` + sub("a", final, `,"colour":"red"`) + `]`, "/subagents/0/colour"},
		"nested too deep": {`[` + deep + `]`, strings.Repeat("/subagents/0", 9)},
	} {
		_, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "a", hosttest.Body(json.RawMessage(scripted(final, `,"subagents":`+tc.subagents))))
		if host.CodeOf(err) != host.CodeInvalid || pointerOf(err) != tc.pointer {
			t.Errorf("%s: %v at %q, want invalid at %q", name, err, pointerOf(err), tc.pointer)
		}
	}
}

// Whoever ends a run ends all of its frames: no call is left open, in whatever frame.
func TestInvariant9_TheEndOfARunEndsEveryFrame(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, h *hosttest.Host, id string){
		"cancelled": func(t *testing.T, h *hosttest.Host, id string) {
			if _, err := h.Cancel(t.Context(), hosttest.Member, id); err != nil {
				t.Fatal(err)
			}
		},
		"expired": func(t *testing.T, h *hosttest.Host, _ string) {
			h.Clock.Advance(25 * time.Hour)
			if err := h.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Agent("lead", nested(3, `[{"calls":[`+pay+`]},{"final":1}]`, gatedTransfer))
			id := h.Settled(h.Create(hosttest.Member, "lead").ID).ID
			end(t, h, id)
			r := h.Settled(id)
			if !r.State.Ended() || len(r.Calls) != 4 {
				t.Fatalf("the run is %s with %d calls", r.State, len(r.Calls))
			}
			for _, c := range r.Calls {
				if c.State != store.CallFinished || c.Error == nil || c.Error.Code != "cancelled" {
					t.Errorf("call %s is %s with %+v", c.ToolCallID, c.State, c.Error)
				}
			}
		})
	}
}

// A cancel while a child's tool runs: one terminal state, and the result that comes late is recorded.
func TestInvariant9_CancelWhileAChildRuns(t *testing.T) {
	t.Parallel()
	started, leave := make(chan struct{}), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"stubborn": func(ctx context.Context, s *plugins.Session) error {
		close(started)
		<-leave
		_, err := hosttest.Op(context.WithoutCancel(ctx), s, "output", true)
		return err
	}}})
	doc := strings.ReplaceAll(scripted(`[{"calls":[`+task("a", "x", "1")+`]},{"final":"done"}]`,
		`,"subagents":[`+sub("x", `[{"calls":[{"tool_call_id":"s","tool":"stubborn","arguments":{}}]},{"final":1}]`, "")+`]`), `"fail"`, `"stubborn"`)
	h.Agent("lead", doc)
	id := h.Create(hosttest.Member, "lead").ID
	<-started
	r, err := h.Cancel(t.Context(), hosttest.Member, id)
	if err != nil || r.State != store.RunCancelled {
		t.Fatalf("%s, %v", r.State, err)
	}
	close(leave)
	for deadline := time.Now().Add(20 * time.Second); ; {
		if r, err = h.GetRun(t.Context(), hosttest.Owner, id); err != nil {
			t.Fatal(err)
		}
		if c := byLabel(r, "s")[0]; c.State == store.CallFinished {
			if a := byLabel(r, "a")[0]; a.State != store.CallFinished || a.Error == nil || r.State != store.RunCancelled {
				t.Errorf("the run is %s, its task %s with %+v", r.State, a.State, a.Error)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the call never ended")
		}
	}
}

// Nobody is there to ask: every stop is a refusal, at once, with its reason; also in subagents, also when a tool stops itself.
// Public failure BY28.
func TestInvariant5_UnattendedStopsAreRefusals(t *testing.T) {
	t.Parallel()
	turns := `[{"calls":[` + pay + `,{"tool_call_id":"asks","tool":"ask","arguments":{"reason":"await_input","payload":{"question":"who?"}}},{"tool_call_id":"e","tool":"echo","arguments":{}}]},{"final":"done"}]`
	for name, doc := range map[string]string{
		"direct": scripted(turns, `,"unattended":true,"interrupt_on":{"transfer":true}`),
		"below":  scripted(`[{"calls":[`+task("t", "w", "x")+`]},{"final":"done"}]`, `,"unattended":true,"interrupt_on":{"transfer":true},"subagents":[`+sub("w", turns, "")+`]`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Agent("cron", doc)
			r := h.Settled(h.Create(hosttest.Service, "cron").ID)
			if r.State != store.RunSucceeded {
				t.Fatalf("the run is %s: %+v", r.State, r.Error)
			}
			for label, says := range map[string]string{"pay": "approval_required (interrupt_on/transfer", "asks": "await_input"} {
				if c := byLabel(r, label)[0]; c.Error == nil || c.Error.Code != "denied" || !strings.Contains(c.Error.Message, says) {
					t.Errorf("%s ended with %+v", label, c.Error)
				}
			}
			if h.Ran.Count("transfer") != 0 || h.Ran.Count("echo") != 1 {
				t.Errorf("what ran: %q", h.Ran.All())
			}
			if n := strings.Count(h.Log.String(), "call denied"); n != 2 {
				t.Errorf("the log tells of %d denied calls", n)
			}
		})
	}
}

// The host dies after each number of commits while two subagents work, stop and are decided: every call has one result.
// Public failure DX12.
func TestInvariants2And3_AtEveryCommitOfSubagents(t *testing.T) {
	t.Parallel()
	branch := func(name string) string {
		return sub(name, `[{"calls":[{"tool_call_id":"`+name+`1","tool":"write_file","arguments":{"path":"/memories/`+name+`","content":"1"}}]},
			{"calls":[{"tool_call_id":"`+name+`2","tool":"gated_write","arguments":{}}]},{"final":1}]`, "")
	}
	doc := scripted(`[{"calls":[`+task("t1", "x", "1")+`,`+task("t2", "y", "2")+`]},{"final":"done"}]`, `,"subagents":[`+branch("x")+`,`+branch("y")+`]`)
	ended := false
	for commits := 2; !ended; commits++ {
		if commits > 80 {
			t.Fatal("the run never ends")
		}
		func() {
			st := memstore.New()
			defer st.Close()
			h := hosttest.New(t, hosttest.Options{Store: st, Idle: true})
			h.Agent("ops", doc)
			var r host.Run
			for life := 0; ; life++ {
				if life > 80 {
					t.Fatalf("after %d commits a life the run makes no progress: %s", commits, r.State)
				}
				m := newMortal(st, commits)
				h = hosttest.New(t, hosttest.Options{Store: m})
				alive := live(t, h, m, &r)
				h.Stop()
				if alive {
					ended = life == 0
					break
				}
			}
			if r.State != store.RunSucceeded || len(r.Calls) != 8 {
				t.Fatalf("%d commits a life: the run is %s with %d calls: %+v", commits, r.State, len(r.Calls), r.Error)
			}
			for _, c := range r.Calls {
				if c.State != store.CallFinished || c.Error != nil {
					t.Errorf("%d commits a life: call %s is %s with %+v", commits, c.ToolCallID, c.State, c.Error)
				}
				if strings.HasSuffix(c.ToolCallID, "1") && c.Tool == "write_file" && string(c.Result) != `{"version":1}` {
					t.Errorf("%d commits a life: %s wrote %s", commits, c.ToolCallID, c.Result)
				}
			}
		}()
	}
}

// However wide a run grows, each of its steps fits a commit: its pause, its cancel, its expiry, its decision.
func TestLimits_OfWideRuns(t *testing.T) {
	t.Parallel()
	many := func(n int, call func(i int) string) string {
		var calls []string
		for i := range n {
			calls = append(calls, call(i))
		}
		return strings.Join(calls, ",")
	}
	tasks := func(n int) string {
		return many(n, func(i int) string { return task(fmt.Sprint("t", i), "w", "x") })
	}
	gated := many(31, func(i int) string {
		return fmt.Sprintf(`{"tool_call_id":"p%d","tool":"transfer","arguments":{"amount":1}}`, i)
	})
	wide := scripted(`[{"calls":[`+tasks(100)+`]},{"final":"done"}]`, `,"interrupt_on":{"transfer":true},"subagents":[`+sub("w", `[{"calls":[`+gated+`]},{"final":1}]`, "")+`]`)
	for name, end := range map[string]func(h *hosttest.Host, r host.Run) error{
		"cancelled": func(h *hosttest.Host, r host.Run) error {
			_, err := h.Cancel(t.Context(), hosttest.Member, r.ID)
			return err
		},
		"failed": func(h *hosttest.Host, _ host.Run) error {
			h.Clock.Advance(25 * time.Hour)
			return h.Sweep(t.Context())
		},
		"succeeded": func(h *hosttest.Host, r host.Run) error {
			_, err := h.DecideAll(hosttest.Admin, r, "reject")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Agent("wide", wide)
			r := h.Settled(h.Create(hosttest.Member, "wide").ID)
			if r.State != store.RunAwaitingApproval {
				t.Fatalf("the run is %s: %+v", r.State, r.Error)
			}
			stopped, limited := len(r.Pause.Approvals), 0
			for _, c := range r.Calls {
				if c.Error != nil && c.Error.Code == "limit" {
					limited++
				}
			}
			if stopped < 300 || stopped > 600 || limited == 0 {
				t.Errorf("%d approvals and %d calls beyond the limits", stopped, limited)
			}
			if err := end(h, r); err != nil {
				t.Fatal(err)
			}
			for r = h.Settled(r.ID); r.Pause != nil; r = h.Settled(r.ID) { // what was beyond the limit of one pause comes in the next
				if _, err := h.DecideAll(hosttest.Admin, r, "reject"); err != nil {
					t.Fatal(err)
				}
			}
			if string(r.State) != name {
				t.Errorf("the run is %s: %+v", r.State, r.Error)
			}
		})
	}
	t.Run("many frames", func(t *testing.T) {
		t.Parallel()
		h := hosttest.New(t, hosttest.Options{})
		turns := many(12, func(int) string { return `{"calls":[` + tasks(100) + `]}` })
		h.Agent("long", scripted(`[`+turns+`,{"final":"done"}]`, `,"subagents":[`+sub("w", `[{"final":1}]`, `,"system":"s"`)+`]`))
		r := h.Settled(h.Create(hosttest.Member, "long").ID)
		if r.State != store.RunSucceeded || len(r.Calls) != 1200 {
			t.Fatalf("the run is %s with %d calls: %+v", r.State, len(r.Calls), r.Error)
		}
		answered := 0
		for _, c := range r.Calls {
			if string(c.Result) == "1" {
				answered++
			}
		}
		if answered < 700 || answered > 1000 {
			t.Errorf("%d subagents have answered", answered)
		}
	})
}
