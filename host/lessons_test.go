package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/store"
)

// Other systems of this kind have failed in public. Each test here is one such failure that must not be ours.

// Public failure LA2.
func TestInvariant12_AfterARestartTheQueueListsExactlyWhatCanBeAnswered(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{"transfer":true}`)
	for _, calls := range []string{twoCalls, asks("await_input"), asks("approval_required", "external_event"), asks("constraints_conflict")} {
		h.Settled(h.Batch(hosttest.Member, "ask", calls).ID)
	}
	decided := h.Batch(hosttest.Member, "ask", twoCalls)
	if _, err := h.DecideAll(hosttest.Admin, decided, "approve"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Cancel(t.Context(), hosttest.Member, h.Batch(hosttest.Member, "ask", twoCalls).ID); err != nil {
		t.Fatal(err)
	}
	h.Settled(decided.ID)
	h = restart(t, h, hosttest.Options{})
	aps, _, err := h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{})
	if err != nil || len(aps) != 5 {
		t.Fatalf("%d approvals are listed, want 5, %v", len(aps), err)
	}
	byRun := map[string][]host.Decision{}
	for _, ap := range aps {
		kind := "reject"
		if !slices.Contains(ap.Allowed, kind) {
			t.Errorf("%s allows only %v", ap.ID, ap.Allowed)
		}
		byRun[ap.RunID] = append(byRun[ap.RunID], host.Decision{ApprovalID: ap.ID, Kind: kind})
	}
	for run, ds := range byRun {
		if _, err := h.Answer(hosttest.Admin, run, ds...); err != nil {
			t.Errorf("a listed pause cannot be answered: %v", err)
		}
		if r := h.Settled(run); r.State != store.RunAwaitingPlanner {
			t.Errorf("answered, and the run is %s", r.State)
		}
	}
	if aps, _, err = h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{}); err != nil || len(aps) != 0 {
		t.Errorf("still listed: %+v, %v", aps, err)
	}
}

// Public failures LA6, MX5.
func TestInvariant2_AnApprovalIsForItsCallAndNotForTheNextOneLikeIt(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	const pay = `{"calls":[{"tool_call_id":"p","tool":"transfer","arguments":{"amount":1}}]}`
	h.Script("pay", "["+pay+","+pay+`,{"final":1}]`, gatedTransfer)
	r := h.Create(hosttest.Member, "pay")
	first := r.Pause.Approvals[0]
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunAwaitingApproval || h.Ran.Count("transfer") != 1 || r.Pause.Approvals[0].ID == first.ID {
		t.Fatalf("state %s, ran %d times; the same call in the next turn is asked again", r.State, h.Ran.Count("transfer"))
	}
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: first.ID, Kind: "approve", ArgsDigest: first.ArgsDigest}); host.CodeOf(err) != host.CodeAlreadyDecided {
		t.Errorf("the old button: %v", err)
	}
}

// Public failure LA10.
func TestInvariant4_ADecisionWakesWhoeverWaits(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"final":1}]`, gatedTransfer)
	for range 50 {
		r := h.Create(hosttest.Member, "pay")
		if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 3 { // they register while the run ends
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if v, err := h.WaitRun(ctx, hosttest.Member, r.ID); err != nil || v.State != store.RunSucceeded {
					t.Errorf("a waiter saw %s, %v", v.State, err)
				}
			})
		}
		wg.Wait()
	}
}

// Public failure BY10.
func TestInvariant4_AToolStartsOnlyAfterItsDecisionIsDurable(t *testing.T) {
	t.Parallel()
	var h *hosttest.Host
	var seen []string
	h = hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"look": func(ctx context.Context, s *plugins.Session) error {
		var req struct {
			Context struct {
				RunID string `json:"run_id"`
			}
		}
		if err := json.Unmarshal(s.Request(), &req); err != nil {
			return err
		}
		aps, err := h.RunApprovals(ctx, hosttest.Admin, req.Context.RunID)
		if err != nil {
			return err
		}
		for _, ap := range aps {
			seen = append(seen, string(ap.State))
		}
		r, err := h.GetRun(ctx, hosttest.Admin, req.Context.RunID)
		if err != nil {
			return err
		}
		seen = append(seen, string(r.Calls[0].State))
		_, err = hosttest.Op(ctx, s, "output", 1)
		return err
	}}})
	h.External("ask", `{"look":true}`)
	r := h.Batch(hosttest.Member, "ask", `[{"tool":"look"}]`)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); resultOf(r.Calls[0]) != "1" || !slices.Equal(seen, []string{"decided", "started"}) {
		t.Errorf("result %s; when it started the store showed %v", resultOf(r.Calls[0]), seen)
	}
}

// Public failures BY12, BY18.
func TestInvariant6_PolicyJudgesWhatRuns(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(`pause contains {"rule": "bare"} if { input.call.tool == "echo"; not input.call.arguments.quiet }`)})
	h.External("pay", `{"transfer":{"when":{"currency":{"equals":"EUR"}}},"echo":false}`)
	for _, tc := range []struct {
		tool, args string
		stops      bool
	}{
		{"transfer", `{"amount":1}`, true}, // the default is filled in before policy looks
		{"transfer", `{"amount":1,"currency":"USD"}`, false},
		{"transfer", `{"amount":1,"currency":"\u0045UR"}`, true}, // another spelling is the same text
		{"echo", `{}`, true},                                     // false in interrupt_on takes nothing from people's rules
		{"echo", `{"quiet":true}`, false},
	} {
		r, err := createWith(h, "pay", call(tc.tool, tc.args))
		if err != nil {
			t.Fatal(err)
		}
		if (r.Pause != nil) != tc.stops {
			t.Errorf("%s %s: state %s, want a stop: %v", tc.tool, tc.args, r.State, tc.stops)
		}
	}
}

// Public failure BY22.
func TestInvariant5_ARuleOfABareNameCoversEveryPluginsTool(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	err := h.Plugins.AddFunc(plugins.Manifest{ABI: abi.Version, Name: "two", Tools: []plugins.ToolSpec{{Name: "echo", Description: "another", InputSchema: raw(`{"type":"object"}`), Effects: abi.EffectsRead}}},
		func(ctx context.Context, s *plugins.Session) error {
			_, err := hosttest.Op(ctx, s, "output", "two")
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	h.External("bare", `{"echo":true}`)
	h.External("one", `{"two.echo":true}`)
	for _, tc := range []struct {
		agent, tool string
		stops       bool
		result      string
	}{
		{"bare", "test.echo", true, ""}, {"bare", "two.echo", true, ""}, {"one", "two.echo", true, ""}, {"one", "test.echo", false, "{}"}, {"one", "echo", false, "unknown_tool"},
	} {
		r, err := createWith(h, tc.agent, call(tc.tool, `{}`))
		if err != nil {
			t.Fatal(err)
		}
		if r = h.Settled(r.ID); (r.Pause != nil) != tc.stops || resultsOf(r) != tc.result {
			t.Errorf("%s calls %s: state %s, results %s", tc.agent, tc.tool, r.State, resultsOf(r))
		}
	}
}

// Public failure EX2.
func TestWaiting_ThatTimesOutChangesNothing(t *testing.T) {
	t.Parallel()
	release, begun := make(chan struct{}), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"slow": func(ctx context.Context, s *plugins.Session) error {
		close(begun)
		<-release
		_, err := hosttest.Op(ctx, s, "output", 1)
		return err
	}}})
	h.External("default", `{"transfer":true}`)
	paused := h.Batch(hosttest.Member, "default", twoCalls)
	r := h.Batch(hosttest.Member, "default", `[{"tool":"slow"}]`)
	<-begun
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	before := h.Stored()
	for _, id := range []string{r.ID, paused.ID} {
		if v, err := h.WaitRun(gone, hosttest.Member, id); err != nil || v.ID != id || v.State.Ended() {
			t.Errorf("a waiter that gave up: %s, %v; it gets the run as it is", v.State, err)
		}
	}
	h.Unchanged(before)
	close(release)
	if got := resultsOf(h.Settled(r.ID)); got != "1" {
		t.Errorf("the call ended with %s", got)
	}
	if _, err := h.DecideAll(hosttest.Admin, paused, "approve"); err != nil {
		t.Error(err)
	}
}

func TestInvariant9_APauseHalfDecidedExpiresOnce(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{}`)
	r := h.Settled(h.Batch(hosttest.Member, "ask", asks("await_input", "approval_required", "free")).ID)
	full, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "respond", Value: raw("1")}); err != nil {
		t.Fatal(err)
	}
	h.Clock.Advance(24 * time.Hour)
	for range 2 {
		if err := h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r = h.Settled(r.ID)
	if r.State != store.RunFailed || r.Error.Code != "approval_expired" || r.Pause != nil {
		t.Fatalf("run %s, %+v", r.State, r.Error)
	}
	if resultOf(r.Calls[2]) != `{"n":2}` || r.Calls[1].Error == nil || r.Calls[0].State != store.CallFinished {
		t.Errorf("results %s", resultsOf(r))
	}
	aps, err := h.RunApprovals(t.Context(), hosttest.Member, r.ID)
	if err != nil || aps[0].State != store.ApprovalDecided || aps[1].State != store.ApprovalExpired {
		t.Errorf("approvals %s and %s, %v", aps[0].State, aps[1].State, err)
	}
	count := map[string]int{}
	for _, e := range h.Events(r.ID) {
		count[e["type"].(string)]++
	}
	if count["approval.expired"] != 1 || count["approval.decided"] != 1 || count["run.finished"] != 1 || count["call.finished"] != 3 {
		t.Errorf("events %v", count)
	}
	expired := 0
	for _, row := range h.AuditRows("demo") {
		if row.Action == "approval.expire" {
			expired++
			if row.ActorKind != "system" || row.ActorID != nil || row.TargetID != aps[1].ID {
				t.Errorf("row %+v", row)
			}
		}
	}
	if expired != 1 {
		t.Errorf("%d approval.expire rows", expired)
	}
	_, err = h.Resume(t.Context(), hosttest.Admin, full.Pause.ResumeToken, host.Idempotency{}, unread(t))
	refusal(t, err, host.CodeTokenExpired)
}

func TestEvaluate_AnswersAsTheGateWouldAndRunsNothing(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(bigRule[len("package pawl.rules\nimport rego.v1\n"):])})
	h.External("pay", `{"transfer":{"when":{"amount":{"min":100}},"allowed_decisions":["approve","reject"],"ttl":"1h","title":"Pay?"}}`)
	before := h.Stored()
	for _, tc := range []struct{ tool, args, want string }{
		{"transfer", `{"amount":1}`, `"effect":"allow"`},
		{"transfer", `{"amount":100}`, `"effect":"pause"`},
		{"transfer", `{"amount":100}`, `"rules":["interrupt_on/transfer"]`},
		{"transfer", `{"amount":100}`, `"allowed_decisions":["approve","reject"]`},
		{"transfer", `{"amount":1001}`, `"rules":["big","interrupt_on/transfer"]`},
		{"transfer", `{"amount":9001}`, `"nobody moves that much"`},
		{"transfer", `{"amount":"x"}`, `"invalid_arguments"`},
		{"nothing", `{}`, `"unknown_tool"`},
	} {
		got, err := h.Evaluate(t.Context(), hosttest.Admin, hosttest.Body(host.Evaluation{Agent: "pay", Call: host.ProposedCall{Tool: tc.tool, Arguments: raw(tc.args)}}))
		if err != nil || !strings.Contains(string(got), tc.want) {
			t.Errorf("%s %s: %s, %v, want %s", tc.tool, tc.args, got, err, tc.want)
		}
	}
	_, err := h.Evaluate(t.Context(), hosttest.Admin, hosttest.Body(host.Evaluation{Agent: "none", Call: host.ProposedCall{Tool: "echo"}}))
	refusal(t, err, host.CodeNotFound)
	h.Unchanged(before)
	if len(h.Ran.All()) != 0 {
		t.Errorf("ran %v", h.Ran.All())
	}
}

func TestTrajectory_TellsTheModelWhatHappenedInDenseOrder(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("all", `{"planner":{"kind":"script","turns":[{"calls":[{"tool_call_id":"a","tool":"transfer","arguments":{"amount":1}},{"tool_call_id":"b","tool":"echo","arguments":{}}]},{"final":"<done>"}]},`+
		`"tools":["transfer","echo"],"interrupt_on":{"transfer":true},"system":"Be <kind>."}`)
	big := strings.Repeat("é", 100<<10)
	r, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "all", Input: raw(`{"big":"` + big + `"}`)}))
	if err != nil {
		t.Fatal(err)
	}
	value := `{"big":"` + big + `"}`
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "respond", Value: raw(value)}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if resultOf(r.Calls[0]) != value || string(r.Output) != `"<done>"` {
		t.Errorf("a large answer came back as %d bytes, output %s", len(resultOf(r.Calls[0])), r.Output)
	}
	msgs, err := h.Trajectory(t.Context(), hosttest.Member, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, m := range msgs {
		if m.Seq != i+1 {
			t.Errorf("message %d has seq %d", i+1, m.Seq)
		}
		got = append(got, m.Role+m.ToolCallID)
	}
	if want := "system user assistant toola toolb assistant"; strings.Join(got, " ") != want {
		t.Fatalf("roles %v, want %s", got, want)
	}
	if string(msgs[0].Content) != `"Be <kind>."` || string(msgs[1].Content) != value || len(msgs[2].ToolCalls) != 2 ||
		string(msgs[3].Result) != value || msgs[3].Decision == nil || msgs[3].Decision.Kind != "respond" || msgs[4].Decision != nil || string(msgs[5].Content) != `"<done>"` {
		t.Errorf("messages %.2000s", text(t, msgs, nil))
	}
}

// Public failure MX1.
func TestRuns_ManyPausesAtOnceAreAllTheirOwn(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	var wg sync.WaitGroup
	runs := make([]host.Run, 50)
	for i := range runs {
		wg.Go(func() {
			var err error
			if runs[i], err = createWith(h, "pay", call("transfer", fmt.Sprintf(`{"amount":%d}`, i+1))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ids := map[string]bool{}
	for _, r := range runs {
		ids[r.ID], ids[r.Pause.ID], ids[r.Pause.Approvals[0].ID], ids[r.Pause.ResumeToken] = true, true, true, true
	}
	if len(ids) != 200 {
		t.Fatalf("%d distinct ids and tokens of 200", len(ids))
	}
	for i, r := range runs { // each token decides its own run
		wg.Go(func() {
			if _, err := resume(h, hosttest.Admin, r.Pause.ResumeToken, approveAll(r)); err != nil {
				t.Error(err)
			}
			if got, want := resultsOf(h.Settled(r.ID)), fmt.Sprintf(`{"amount":%d,"currency":"EUR"}`, i+1); got != want {
				t.Errorf("run %d ended with %s", i, got)
			}
		})
	}
	wg.Wait()
}

// Public failure HV3.
func TestInvariant14_LogsAndAuditRowsHoldNoArguments(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	const canary = "canary-5f2d"
	c := func(where string) string { return canary + "-" + where }
	h.External("pay", `{"transfer":true}`)
	calls := []host.ProposedCall{
		{ToolCallID: "a", Tool: "transfer", Arguments: raw(`{"amount":1,"to":"` + c("argument") + `"}`)},
		{ToolCallID: "b", Tool: "transfer", Arguments: raw(`{"amount":2,"to":"` + c("argument") + `"}`)},
		{ToolCallID: "c", Tool: "transfer", Arguments: raw(`{"amount":"` + c("invalid") + `"}`)},
		{ToolCallID: "d", Tool: "echo", Arguments: raw(`{"x":"` + c("free") + `"}`)},
		{ToolCallID: "e", Tool: "write_file", Arguments: raw(`{"path":"/` + c("path") + `","content":"` + c("content") + `"}`)},
	}
	r, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{Key: c("key"), Method: "POST", Path: "/v1/runs"}, hosttest.Body(host.NewRun{
		Agent: "pay", Input: raw(`"` + c("input") + `"`), ToolContext: raw(`{"k":"` + c("context") + `"}`), Calls: calls, PlannerState: raw(`"` + c("state") + `"`),
	}))
	if err != nil {
		t.Fatal(err)
	}
	bad := host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":"` + c("bad-edit") + `"}`)}
	if _, err := h.Answer(hosttest.Admin, r.ID, bad); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("a refused edit: %v", err)
	}
	if _, err := h.DecideAll(hosttest.Member, r, "approve"); err == nil {
		t.Error("a member decided")
	}
	if _, err := h.Answer(hosttest.Admin, r.ID,
		host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":3,"to":"` + c("edit") + `"}`), Message: c("message")},
		host.Decision{ApprovalID: r.Pause.Approvals[1].ID, Kind: "respond", Value: raw(`"` + c("value") + `"`)}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if got := resultsOf(r); !strings.Contains(got, c("edit")) || !strings.Contains(got, c("value")) {
		t.Fatalf("results %s", got)
	}
	if _, err := finish(h, hosttest.Member, r.ID, 2, `"`+c("output")+`"`); err != nil {
		t.Fatal(err)
	}
	rows := text(t, h.AuditRows("demo"), nil)
	if !strings.Contains(rows, `"decision":"edit"`) || !strings.Contains(h.Log.String(), r.ID) {
		t.Error("nothing was audited or logged, so this shows nothing")
	}
	for what, s := range map[string]string{"an audit row": rows, "the log": h.Log.String()} {
		if i := strings.Index(s, canary); i >= 0 {
			t.Errorf("%s holds …%s…", what, s[max(0, i-100):min(len(s), i+60)])
		}
	}
}

// A transport decodes requests so. null is a value where values are, and never a missing member.
func TestRequests_NullIsAValueWhereValuesAre(t *testing.T) {
	t.Parallel()
	var ans host.Answer
	if err := ijson.Decode([]byte(`{"decisions":[{"approval_id":"a","kind":"respond","value":null,"arguments":null}],"user_input":null}`), &ans); err != nil {
		t.Fatal(err)
	}
	if len(ans.Decisions) != 1 || string(ans.Decisions[0].Value) != "null" || string(ans.Decisions[0].Arguments) != "null" || string(ans.UserInput) != "null" {
		t.Errorf("decoded to %+v", ans)
	}
	var run host.NewRun
	if err := ijson.Decode([]byte(`{"agent":"a","input":null,"planner_state":null}`), &run); err != nil || string(run.Input) != "null" || string(run.PlannerState) != "null" {
		t.Errorf("decoded to %+v, %v", run, err)
	}
	var fin host.Final
	if err := ijson.Decode([]byte(`{"turn":1,"output":null}`), &fin); err != nil || string(fin.Output) != "null" {
		t.Errorf("decoded to %+v, %v", fin, err)
	}
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{"transfer":true}`)
	r := h.Settled(h.Batch(hosttest.Member, "ask", asks("await_input")).ID)
	full, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resume(h, hosttest.Member, full.Pause.ResumeToken, host.Answer{UserInput: ans.UserInput}); err != nil {
		t.Fatal(err)
	}
	if got := resultOf(h.Settled(r.ID).Calls[0]); got != `{"reason":"await_input","decision":"respond","user_input":null}` {
		t.Errorf("the observation is %s", got)
	}
	gate := h.Batch(hosttest.Member, "ask", twoCalls)
	_, err = h.Answer(hosttest.Admin, gate.ID, host.Decision{ApprovalID: gate.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw("null")})
	if e := refusal(t, err, host.CodeInvalid); e.Pointer != "/decisions/0/arguments" {
		t.Errorf("an edit to null: pointer %q", e.Pointer)
	}
	_, _, err = h.Approvals(t.Context(), hosttest.Admin, "decided", host.Page{})
	if e := refusal(t, err, host.CodeInvalid); e.Pointer != "/state" {
		t.Errorf("pointer %q", e.Pointer)
	}
}
