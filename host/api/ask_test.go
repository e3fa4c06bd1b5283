package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins/bundled"
)

// asking saves an agent that asks one question with the bundled tool.
func (r *rig) asking(name, schema string) {
	r.t.Helper()
	r.Agent(name, fmt.Sprintf(`{"planner":{"kind":"script","turns":[
		{"calls":[{"tool_call_id":"q","tool":"ask_user","arguments":{"question":"Which colour?","title":"Paint","schema":%s}}]},{"final":"painted"}]},"tools":["ask_user"]}`, schema))
}

// observed is the result of the run's question.
func (r *rig) observed(who, run string) string {
	r.t.Helper()
	r.Settled(run)
	var v host.Run
	if err := json.Unmarshal(r.ok(who, "GET", "/v1/runs/"+run, nil).raw, &v); err != nil {
		r.t.Fatal(err)
	}
	if v.State != "succeeded" || len(v.Calls) != 1 || v.Calls[0].Error != nil {
		r.t.Errorf("the run is %s with calls %+v", v.State, v.Calls)
	}
	return string(v.Calls[0].Result)
}

const colour = `{"type":"object","properties":{"colour":{"enum":["red","blue"]}},"required":["colour"]}`

// The whole way of a question, by every wire: asked, answered badly (400, still open), over a restart, answered well.
func TestAskUser_ByEveryWire(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Bundled: bundled.FS})
	r.asking("paint", colour)
	const good = `{"reason":"await_input","decision":"respond","user_input":{"colour":"blue"}}`
	bad, blue := map[string]string{"colour": "green"}, map[string]string{"colour": "blue"}
	respond := func(run host.Run, value any) map[string]any {
		return map[string]any{"decisions": []any{map[string]any{"approval_id": run.Pause.Approvals[0].ID, "kind": "respond", "value": value}}}
	}
	for _, wire := range []struct {
		name   string
		answer func(run host.Run, value any) map[string]any // the problem, nil when it was taken
		at     string
	}{
		{"decide", func(run host.Run, value any) map[string]any {
			a := r.do("member", "POST", "/v1/runs/"+run.ID+"/approvals", respond(run, value))
			if a.status == 200 {
				return nil
			}
			return a.json
		}, "/decisions/0/value"},
		{"resume token", func(run host.Run, value any) map[string]any {
			a := r.do("member", "POST", "/v1/resume", map[string]any{"resume_token": run.Pause.ResumeToken, "user_input": value})
			if a.status == 200 {
				return nil
			}
			return a.json
		}, "/user_input"},
		{"socket, decide", func(run host.Run, value any) map[string]any {
			w := r.ws("member")
			w.text(with(respond(run, value), "type", "decide", "id", "1", "run", run.ID))
			return answerOf(t, w)
		}, "/decisions/0/value"},
		{"socket, resume", func(run host.Run, value any) map[string]any {
			w := r.ws("member")
			w.text(map[string]any{"type": "resume", "id": "1", "resume_token": run.Pause.ResumeToken, "user_input": value})
			return answerOf(t, w)
		}, "/user_input"},
	} {
		run := r.run("member", "paint")
		if run.State != "awaiting_input" || run.Pause == nil || run.Pause.Reason != "await_input" {
			t.Fatalf("%s: state %s", wire.name, run.State)
		}
		ap := run.Pause.Approvals[0]
		if string(ap.Schema) == "" || strings.Join(ap.Allowed, " ") != "reject respond" || ap.Title != "Paint" || ap.Message != "Which colour?" {
			t.Errorf("%s: the approval shows %+v", wire.name, ap)
		}
		w := r.ws("member")
		w.text(sub("s", run.ID))
		told, err := json.Marshal(w.want("pause")["pause"])
		if err != nil || !strings.Contains(string(told), `"enum":["red","blue"]`) || !strings.Contains(string(told), run.Pause.ResumeToken) {
			t.Errorf("%s: a socket is told %s, %v", wire.name, told, err)
		}
		for _, value := range []any{"green", nil, false} {
			if p := wire.answer(run, value); p["code"] != "invalid" || p["pointer"] != wire.at {
				t.Errorf("%s, %v: %v", wire.name, value, p)
			}
		}
		if p := wire.answer(run, bad); p["code"] != "invalid" || p["pointer"] != wire.at+"/colour" || p["status"] != 400.0 {
			t.Errorf("%s: %v", wire.name, p)
		}
		open := r.ok("member", "GET", "/v1/runs/"+run.ID, nil)
		if open.str("state") != "awaiting_input" || open.str("pause", "resume_token") != run.Pause.ResumeToken {
			t.Errorf("%s: after bad answers %s", wire.name, open.raw)
		}
		if p := wire.answer(run, blue); p != nil {
			t.Errorf("%s: the good answer: %v", wire.name, p)
		}
		if got := r.observed("member", run.ID); got != good {
			t.Errorf("%s: the observation is %s", wire.name, got)
		}
		trajectory := string(r.ok("member", "GET", "/v1/runs/"+run.ID+"/trajectory", nil).raw)
		if !strings.Contains(trajectory, `"user_input":{"colour":"blue"}`) || strings.Contains(trajectory, "green") {
			t.Errorf("%s: the trajectory is %s", wire.name, trajectory)
		}
	}
}

// answerOf is what a socket answers to the frame with id 1: nil for an ack, else the problem.
func answerOf(t *testing.T, w *rawWS) map[string]any {
	t.Helper()
	for {
		m, err := w.read()
		if err != nil {
			t.Fatal(err)
		}
		if m["id"] != "1" {
			continue
		}
		if m["type"] == "ack" {
			return nil
		}
		p, _ := m["problem"].(map[string]any)
		return p
	}
}

func TestAskUser_ARestartKeepsTheQuestionAndItsSchema(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Bundled: bundled.FS})
	r.asking("paint", colour)
	run := r.run("member", "paint")
	r.Stop()
	again := newRig(t, api.Options{Dev: true}, hosttest.Options{Bundled: bundled.FS, Store: r.Store, Clock: r.Clock})
	p := again.refused("member", "POST", "/v1/resume", map[string]any{"resume_token": run.Pause.ResumeToken, "user_input": "green"}, 400, "invalid")
	if p.str("pointer") != "/user_input" {
		t.Errorf("%s", p.raw)
	}
	again.ok("member", "POST", "/v1/resume", map[string]any{"resume_token": run.Pause.ResumeToken, "user_input": map[string]string{"colour": "red"}})
	if got := again.observed("member", run.ID); got != `{"reason":"await_input","decision":"respond","user_input":{"colour":"red"}}` {
		t.Errorf("the observation is %s", got)
	}
}

func TestAskUser_TheRequesterAnswersAloneAndAnotherMemberSeesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Bundled: bundled.FS})
	r.asking("paint", `{}`)
	for who, want := range map[string]int{"member": 200, "admin": 200, "owner": 200, "bot": 403, "member2": 404, "other_admin": 404} {
		run := r.run("member", "paint")
		body := map[string]any{"decisions": []any{map[string]any{"approval_id": run.Pause.Approvals[0].ID, "kind": "respond", "value": who}}}
		path := "/v1/runs/" + run.ID
		if a := r.do(who, "POST", path+"/approvals", body); a.status != want {
			t.Errorf("%s answers: %d %s, want %d", who, a.status, a.raw, want)
		}
		if want == 200 {
			if got := r.observed("member", run.ID); !strings.Contains(got, fmt.Sprintf(`"user_input":%q`, who)) {
				t.Errorf("%s: %s", who, got)
			}
			continue
		}
		if a := r.do(who, "GET", path, nil); want == 404 && (a.status != 404 || strings.Contains(string(a.raw), "colour")) {
			t.Errorf("%s reads the question: %d %s", who, a.status, a.raw)
		}
		if a := r.ok("member", "GET", path, nil); a.str("state") != "awaiting_input" {
			t.Errorf("%s has moved it to %s", who, a.str("state"))
		}
	}
}

// A rejected question is an answer, too: the run goes on and nobody asks again.
func TestAskUser_ARejectionIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Bundled: bundled.FS})
	r.asking("paint", colour)
	run := r.run("member", "paint")
	path := "/v1/runs/" + run.ID + "/approvals"
	r.refused("member", "POST", path, decisions(run.Pause, "approve"), 400, "not_allowed")
	r.refused("member", "POST", path, decisions(run.Pause, "respond"), 400, "invalid") // neither value nor message
	body := decisions(run.Pause, "reject")
	body["decisions"].([]map[string]any)[0]["message"] = "ask the painter"
	r.ok("member", "POST", path, body)
	if got := r.observed("member", run.ID); got != `{"reason":"await_input","decision":"reject","message":"ask the painter"}` {
		t.Errorf("the observation is %s", got)
	}
}

// A schema that says nothing is not shown: there is nothing that an answer has to match.
func TestAskUser_WithoutASchemaShowsNone(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Bundled: bundled.FS})
	r.asking("any", "{}")
	r.Agent("none", `{"planner":{"kind":"script","turns":[{"calls":[{"tool_call_id":"q","tool":"ask_user","arguments":{"question":"Which?"}}]},{"final":1}]},"tools":["ask_user"]}`)
	for _, agent := range []string{"any", "none"} {
		run := r.Settled(r.Create(hosttest.Member, agent).ID)
		if run.Pause == nil || run.Pause.Approvals[0].Schema != nil {
			t.Fatalf("%s: %+v", agent, run.Pause)
		}
		a := r.ok("member", "GET", "/v1/approvals/"+run.Pause.Approvals[0].ID, nil)
		if _, has := a.json["schema"]; has {
			t.Errorf("%s: %s", agent, a.raw)
		}
	}
}
