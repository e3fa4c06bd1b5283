package host_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

const memoryWrite = `[{"calls":[{"tool_call_id":"c1","tool":"write_file","arguments":{"path":"/memories/AGENTS.md","content":"hi"}}]},` +
	`{"calls":[{"tool_call_id":"c2","tool":"read_file","arguments":{"path":"/memories/AGENTS.md"}}]},{"final":"done"}]`

func TestDefaultStopsHoldAWriteToMemories(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("ops", memoryWrite, "")
	r := h.Create(hosttest.Member, "ops")
	if r.State != store.RunAwaitingApproval || r.Pause == nil || r.Pause.ResumeToken == "" {
		t.Fatalf("state %s, pause %+v; want awaiting_approval with a token for its creator", r.State, r.Pause)
	}
	if n := h.Ran.Count("write_file"); n != 0 {
		t.Fatalf("the tool ran %d times before the decision", n)
	}
	if _, err := h.DecideAll(hosttest.Member, r, "approve"); host.CodeOf(err) != host.CodeForbidden {
		t.Fatalf("a member decided its own run: %v", err)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunSucceeded || string(r.Output) != `"done"` {
		t.Fatalf("run ended %s with %s, error %v", r.State, r.Output, r.Error)
	}
	if got := string(r.Calls[1].Result); !strings.Contains(got, `"hi"`) {
		t.Fatalf("read_file shows %s", got)
	}
	if n := h.Ran.Count("write_file"); n != 1 {
		t.Fatalf("the approved call ran %d times", n)
	}
	var types []string
	for _, e := range h.Events(r.ID) {
		types = append(types, e["type"].(string))
	}
	want := "run.created run.started approval.requested run.paused approval.decided run.resumed call.started call.finished call.started call.finished message run.finished"
	if got := strings.Join(types, " "); got != want {
		t.Errorf("events\n got %s\nwant %s", got, want)
	}
}

func TestDecisions_EachMeansWhatItSays(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		decision host.Decision
		ran      int
		result   string
		code     string
	}{
		{"approve runs it as shown", host.Decision{Kind: "approve"}, 1, `{"amount":10,"currency":"EUR"}`, ""},
		{"edit runs the edited arguments", host.Decision{Kind: "edit", Arguments: json.RawMessage(`{"amount": 7.50}`)}, 1, `{"amount":7.5,"currency":"EUR"}`, ""},
		{"reject is an error result", host.Decision{Kind: "reject", Message: "too much"}, 0, "", "rejected"},
		{"respond is the result, null too", host.Decision{Kind: "respond", Value: json.RawMessage("null")}, 0, "null", ""},
		{"respond false is a real value", host.Decision{Kind: "respond", Value: json.RawMessage("false")}, 0, "false", ""},
		{"respond with a message", host.Decision{Kind: "respond", Message: "paid by hand"}, 0, `"paid by hand"`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":10}}]},{"final":true}]`, `{"transfer":true}`)
			r := h.Create(hosttest.Member, "pay")
			d := tc.decision
			d.ApprovalID = r.Pause.Approvals[0].ID
			if _, err := h.Decide(t.Context(), hosttest.Admin, r.ID, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: []host.Decision{d}})); err != nil {
				t.Fatal(err)
			}
			r = h.Settled(r.ID)
			if r.State != store.RunSucceeded {
				t.Fatalf("run ended %s: %+v", r.State, r.Error)
			}
			c := r.Calls[0]
			if string(c.Result) != tc.result || (c.Error == nil) != (tc.code == "") || c.Error != nil && c.Error.Code != tc.code {
				t.Errorf("result %s error %+v, want %s %s", c.Result, c.Error, tc.result, tc.code)
			}
			if n := h.Ran.Count("transfer"); n != tc.ran {
				t.Errorf("the tool ran %d times, want %d", n, tc.ran)
			}
		})
	}
}
