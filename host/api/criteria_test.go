package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
)

// The success criteria of human-in-the-loop that need a wire; the others are in ../criteria_test.go.

// The host has no worker until the test has read approval.decided: whoever published it, it was the handler.
func TestSeed_OneSSEConnectionObservesRequestedThenDecidedByTheHandlerThenTheRest(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Idle: true})
	run := r.paused("member")
	s := r.stream("member", run.ID, "")
	var got []string
	until := func(last string) (e sse) {
		t.Helper()
		for e.event != last {
			e = s.next()
			got = append(got, e.event)
		}
		return e
	}
	var requested struct {
		Approval struct {
			ID        string          `json:"id"`
			Tool      string          `json:"tool"`
			Arguments json.RawMessage `json:"arguments"`
			Allowed   []string        `json:"allowed_decisions"`
		} `json:"approval"`
	}
	if err := json.Unmarshal([]byte(until("approval.requested").data), &requested); err != nil {
		t.Fatal(err)
	}
	ap := requested.Approval
	if ap.ID != run.Pause.Approvals[0].ID || ap.Tool != "write_file" || string(ap.Arguments) != `{"content":"hi","path":"/memories/AGENTS.md"}` || len(ap.Allowed) != 4 {
		t.Errorf("requested %+v", ap)
	}
	until("run.paused")
	r.ok("admin", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"))
	if e := until("approval.decided"); !strings.Contains(e.data, ap.ID) || !strings.Contains(e.data, `"kind":"approve"`) {
		t.Errorf("decided %s", e.data)
	}
	if n := len(r.Ran.All()); n != 0 {
		t.Fatalf("%d tools executed on a host without a worker", n)
	}
	r.Start()
	until("run.finished")
	s.ends()
	want := "run.created run.started approval.requested run.paused approval.decided run.resumed call.started call.finished message run.finished"
	if strings.Join(got, " ") != want {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, " "), want)
	}
}

func TestSeed_TheStatusesOfTheDecidingRoute(t *testing.T) {
	t.Parallel()
	r := dev(t)
	r.Agent("two", `{"planner":{"kind":"script","turns":[{"calls":[
		{"tool_call_id":"a","tool":"transfer","arguments":{"amount":200}},{"tool_call_id":"b","tool":"write_file","arguments":{"path":"/memories/b","content":""}}]},{"final":1}]},
		"tools":["transfer","write_file"],"interrupt_on":{"transfer":{"when":{"amount":{"min":100}},"allowed_decisions":["approve","edit"]}}}`)
	run := r.run("member", "two")
	a, b := run.Pause.Approvals[0].ID, run.Pause.Approvals[1].ID
	path := "/v1/runs/" + run.ID + "/approvals"
	decide := func(ds ...map[string]any) map[string]any { return map[string]any{"decisions": ds} }
	kind := func(id, kind string) map[string]any { return map[string]any{"approval_id": id, "kind": kind} }
	edit := func(args string) map[string]any { return with(kind(a, "edit"), "arguments", json.RawMessage(args)) }
	if p := r.refused("admin", "POST", path, decide(kind(a, "approve")), 409, "incomplete"); len(p.json["outstanding"].([]any)) != 1 || p.json["outstanding"].([]any)[0] != b {
		t.Errorf("outstanding: %s", p.raw)
	}
	r.refused("member", "POST", path, decide(kind(a, "approve"), kind(b, "approve")), 403, "forbidden")
	r.refused("member2", "POST", path, decide(kind(a, "approve"), kind(b, "approve")), 404, "not_found")
	if p := r.refused("admin", "POST", path, decide(edit(`{"amount":"x"}`), kind(b, "approve")), 400, "invalid"); p.str("pointer") != "/decisions/0/arguments/amount" {
		t.Errorf("%s", p.raw)
	}
	r.refused("admin", "POST", path, decide(edit(`{"amount":99}`), kind(b, "approve")), 400, "out_of_scope")
	r.refused("admin", "POST", path, decide(kind(a, "reject"), kind(b, "approve")), 400, "not_allowed")
	// A decision cannot name another tool: the member is unknown to it.
	if p := r.refused("admin", "POST", path, decide(with(edit(`{"amount":200}`), "tool", "write_file"), kind(b, "approve")), 400, "invalid"); p.str("pointer") != "/decisions/0/tool" {
		t.Errorf("%s", p.raw)
	}
	if list := r.ok("member", "GET", path, nil); strings.Count(string(list.raw), `"state":"pending"`) != 2 {
		t.Errorf("after the refusals: %s", list.raw)
	}
	if n := len(r.Ran.All()); n != 0 {
		t.Errorf("%d tools executed", n)
	}
	r.ok("admin", "POST", path, decide(edit(`{"amount":150}`), kind(b, "reject")))
	r.refused("owner", "POST", path, decide(kind(a, "approve"), kind(b, "approve")), 409, "already_decided")
	r.Settled(run.ID)
	if got := r.Ran.All(); len(got) != 1 || got[0] != `transfer {"amount":150,"currency":"EUR"}` {
		t.Errorf("executed %q", got)
	}
}
