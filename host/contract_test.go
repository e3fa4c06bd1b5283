package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

// The contract of a stop that a tool raises, for each of the four reasons: what the run is, who may answer, what the planner
// sees, and whether an approval is a permission.
var reasons = []struct {
	reason    string
	state     store.RunState
	requester bool // may answer alone
	permits   bool // an approval leaves the trusted flag
}{
	{"approval_required", store.RunAwaitingApproval, false, true},
	{"constraints_conflict", store.RunAwaitingApproval, false, true},
	{"external_event", store.RunAwaitingEvent, false, true},
	{"await_input", store.RunAwaitingInput, true, false},
}

// gatedBy is a tool that stops for a reason until it finds its trusted flag. Its result is the context that it ran with.
func gatedBy(reason string) hosttest.Func {
	return func(ctx context.Context, s *plugins.Session) error {
		var req struct {
			Context struct {
				Approvals   map[string]bool `json:"approvals"`
				ToolContext map[string]any  `json:"tool_context"`
			}
		}
		if err := json.Unmarshal(s.Request(), &req); err != nil {
			return err
		}
		if !req.Context.Approvals["key/"+reason] {
			_, err := hosttest.Op(ctx, s, "pause", map[string]any{"reason": reason, "payload": map[string]any{
				"title": "Go on?", "approval_key": "key/" + reason, "seen": req.Context.ToolContext["n"],
			}})
			return err
		}
		_, err := hosttest.Op(ctx, s, "output", req.Context.ToolContext)
		return err
	}
}

func gated(t *testing.T) *hosttest.Host {
	t.Helper()
	tools := map[string]hosttest.Func{}
	for _, r := range reasons {
		tools["do_"+r.reason] = gatedBy(r.reason)
	}
	h := hosttest.New(t, hosttest.Options{Tools: tools})
	h.External("tools", `{}`)
	return h
}

func do(reason, text string) string {
	return fmt.Sprintf(`[{"tool_call_id":"c","tool":"do_%s","arguments":{"text":%q}}]`, reason, text)
}

func TestToolStop_WhoMayAnswer(t *testing.T) {
	t.Parallel()
	h := gated(t)
	for _, c := range reasons {
		for _, kind := range []string{"approve", "reject", "respond"} {
			for _, who := range []host.Actor{hosttest.Owner, hosttest.Admin, hosttest.Member, hosttest.Member2, hosttest.Service, hosttest.OtherAdmin} {
				for _, byToken := range []bool{false, true} {
					r := mine(t, h, h.Settled(h.Batch(hosttest.Member, "tools", do(c.reason, "a")).ID))
					if r.State != c.state || r.Pause.Reason != c.reason {
						t.Fatalf("%s: state %s, reason %s", c.reason, r.State, r.Pause.Reason)
					}
					ans := host.Answer{Decisions: []host.Decision{{ApprovalID: r.Pause.Approvals[0].ID, Kind: kind}}}
					if kind == "respond" {
						ans.Decisions[0].Value = raw(`7`)
					}
					var err error
					if byToken {
						_, err = resume(h, who, r.Pause.ResumeToken, ans)
					} else {
						_, err = h.Answer(who, r.ID, ans.Decisions...)
					}
					want := host.CodeForbidden
					switch {
					case who.Tenant != "demo", who.ID == "member2" && !byToken: // a valid token tells that there is a run; its holder gets 403
						want = host.CodeNotFound
					case who.ID == "owner", who.ID == "admin", who.ID == "member" && c.requester:
						want = ""
					}
					if want == "" {
						if err != nil {
							t.Errorf("%s by %s, token %v: %v", c.reason, who.ID, byToken, err)
						}
						continue
					}
					refusal(t, err, want)
					if after := mine(t, h, r); !reflect.DeepEqual(after, r) {
						t.Errorf("%s: a refused %s has made %+v of %+v", who.ID, kind, after, r)
					}
				}
			}
		}
	}
}

func TestToolStop_ThePlannerSeesTheObservationAndItsTrajectoryTellsWho(t *testing.T) {
	t.Parallel()
	h := gated(t)
	for _, c := range reasons {
		for kind, want := range map[string]string{
			"approve": `{"reason":%q,"decision":"approve","message":"why"}`,
			"reject":  `{"reason":%q,"decision":"reject","message":"why"}`,
			"respond": `{"reason":%q,"decision":"respond","user_input":false,"message":"why"}`,
		} {
			r := h.Settled(h.Batch(hosttest.Member, "tools", do(c.reason, "a")).ID)
			d := host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: kind, Message: "why"}
			if kind == "respond" {
				d.Value = raw(`false`)
			}
			if _, err := h.Answer(hosttest.Admin, r.ID, d); err != nil {
				t.Fatal(err)
			}
			r = h.Settled(r.ID)
			want := fmt.Sprintf(want, c.reason)
			if got := resultOf(r.Calls[0]); r.State != store.RunAwaitingPlanner || got != want || r.Calls[0].Error != nil {
				t.Errorf("%s, %s: state %s, observation %s, want %s", c.reason, kind, r.State, got, want)
			}
			tr, err := h.Trajectory(t.Context(), hosttest.Member, r.ID)
			if err != nil {
				t.Fatal(err)
			}
			last := tr[len(tr)-1]
			if last.Role != "tool" || string(last.Result) != want || last.Decision == nil || last.Decision.Kind != kind || last.Decision.DecidedBy != "admin" {
				t.Errorf("%s, %s: the model is told %+v", c.reason, kind, last)
			}
		}
	}
}

// An approval permits one later call of the same tool with the same arguments, and nothing else.
func TestToolStop_AnApprovalServesOneCallOfTheSameArguments(t *testing.T) {
	t.Parallel()
	h := gated(t)
	for _, c := range reasons {
		r := h.Settled(h.Batch(hosttest.Member, "tools", do(c.reason, "a")).ID)
		next := func(text string) host.Run {
			t.Helper()
			if _, err := propose(h, hosttest.Member, r.ID, batch(r.Turn+1, do(c.reason, text))); err != nil {
				t.Fatal(err)
			}
			return h.Settled(r.ID)
		}
		answer := func(kind string) {
			t.Helper()
			if _, err := h.DecideAll(hosttest.Admin, r, kind); err != nil {
				t.Fatal(err)
			}
			r = h.Settled(r.ID)
		}
		answer("approve")
		if r = next("b"); r.State != c.state {
			t.Fatalf("%s: other arguments ran: %s", c.reason, resultsOf(r))
		}
		answer("reject")
		h = restart(t, h, hosttest.Options{Tools: map[string]hosttest.Func{
			"do_approval_required": gatedBy("approval_required"), "do_constraints_conflict": gatedBy("constraints_conflict"),
			"do_external_event": gatedBy("external_event"), "do_await_input": gatedBy("await_input"),
		}})
		if r = next("a"); (r.State == store.RunAwaitingPlanner) != c.permits {
			t.Fatalf("%s: the approved call: %s", c.reason, r.State)
		}
		if !c.permits {
			continue
		}
		if got := resultOf(r.Calls[len(r.Calls)-1]); !strings.Contains(got, `"approvals":{"key/`+c.reason+`":true}`) {
			t.Errorf("%s: ran with %s", c.reason, got)
		}
		if r = next("a"); r.State != c.state {
			t.Errorf("%s: the flag served a second call: %s", c.reason, resultsOf(r))
		}
	}
}

// What penguiflow's host applications send on resume, {"approvals": {…: true}}, is refused here: it is how a caller would
// approve for itself. Everything else of the context is the caller's, and wins over what was stored.
func TestToolStop_ResumeMergesTheCallersContextAndTakesNoApprovalsFromIt(t *testing.T) {
	t.Parallel()
	h := gated(t)
	created, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{
		Agent: "tools", ToolContext: raw(`{"n":1,"keep":{"a":1},"deep":{"a":1}}`),
		Calls: []host.ProposedCall{{Tool: "do_await_input", Arguments: raw(`{}`)}, {Tool: "do_approval_required", Arguments: raw(`{}`)}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	r := mine(t, h, h.Settled(created.ID))
	if got := string(r.Pause.Payload); !strings.Contains(got, `"seen":1`) {
		t.Errorf("the tool paused with %s", got)
	}
	before := h.Stored()
	question := []host.Decision{{ApprovalID: r.Pause.Approvals[0].ID, Kind: "respond", Value: raw(`"yes"`)}}
	for _, forged := range []string{`{"approvals":{"key/approval_required":true}}`, `{"approvals":{}}`, `{"approvals":null}`} {
		_, err := resume(h, hosttest.Member, r.Pause.ResumeToken, host.Answer{Decisions: question, ToolContext: raw(forged)})
		pointed(t, err, "/tool_context/approvals", "")
	}
	h.Unchanged(before)
	if _, err := resume(h, hosttest.Member, r.Pause.ResumeToken, host.Answer{Decisions: question, ToolContext: raw(`{"n":2,"deep":{"b":2},"new":[]}`)}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[1].ID, Kind: "approve"}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if _, err := propose(h, hosttest.Member, r.ID, batch(2, `[{"tool":"do_approval_required","arguments":{}}]`)); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	want := `{"approvals":{"key/approval_required":true},"deep":{"b":2},"keep":{"a":1},"n":2,"new":[],"tenant_id":"demo","user_id":"member"}`
	if got := resultOf(r.Calls[2]); got != want {
		t.Errorf("the tool ran with\n %s\nwant\n %s", got, want)
	}
}

// A rule says that a limit is exceeded; an operator overrides it, and the requester does not.
func TestConstraintsConflict_OfARuleIsOverriddenByAnOperator(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(`pause contains {"rule": "limit", "reason": "constraints_conflict", "message": "above the limit"} if input.call.arguments.amount > 100`)})
	h.External("pay", `{}`)
	if r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":100}}]`); r.Pause != nil {
		t.Errorf("within the limit: %s", r.State)
	}
	r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":101}}]`)
	ap := r.Pause.Approvals[0]
	if r.State != store.RunAwaitingApproval || ap.Reason != "constraints_conflict" || ap.Message != "above the limit" || !slices.Contains(ap.Rules, "limit") {
		t.Fatalf("state %s, approval %+v", r.State, ap)
	}
	_, err := h.DecideAll(hosttest.Member, r, "approve")
	refusal(t, err, host.CodeForbidden)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); resultOf(r.Calls[0]) != `{"amount":101,"currency":"EUR"}` {
		t.Errorf("state %s, results %s", r.State, resultsOf(r))
	}
}

// A chat backend starts a run for its user; the tool's question is the user's to answer, and not the backend's.
func TestToolStop_AQuestionIsForTheUserOfTheRunAndNotForTheServiceThatMadeIt(t *testing.T) {
	t.Parallel()
	h := gated(t)
	k := ensure(t, h, "demo", "chat", "service", "admin")
	put(t, h, hosttest.Owner, "chat", host.PrincipalDoc{Kind: "service", Roles: []string{"admin"}, ActAs: true})
	chat := login(t, h, k)
	made, err := h.CreateRun(t.Context(), chat, host.Idempotency{}, hosttest.Body(host.NewRun{
		Agent: "tools", User: "member", Calls: []host.ProposedCall{{Tool: "do_await_input", Arguments: raw(`{}`)}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	r := mine(t, h, h.Settled(made.ID))
	if r.CreatedBy != "chat" || r.Subject != "member" || r.State != store.RunAwaitingInput || r.Pause.Approvals[0].Subject != "member" {
		t.Fatalf("%+v", r)
	}
	answer := host.Answer{UserInput: raw(`"blue"`)}
	_, err = resume(h, chat, r.Pause.ResumeToken, answer)
	refusal(t, err, host.CodeForbidden)
	_, err = h.DecideAll(hosttest.Member2, r, "respond")
	refusal(t, err, host.CodeNotFound)
	if _, err := resume(h, hosttest.Member, r.Pause.ResumeToken, answer); err != nil {
		t.Fatal(err)
	}
	if got := resultOf(h.Settled(r.ID).Calls[0]); got != `{"reason":"await_input","decision":"respond","user_input":"blue"}` {
		t.Error(got)
	}
}
