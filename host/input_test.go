package host_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

func say(h *hosttest.Host, a host.Actor, run string, supersede bool) (host.Run, error) {
	return h.Input(h.Context(), a, run, host.Idempotency{}, hosttest.Body(host.NewInput{Input: json.RawMessage(`"never mind"`), Supersede: supersede}))
}

// A message while people are asked is refused and the pause kept, or takes its place when the caller says so: never as a success.
// (deepagents 5547: open calls were labelled as cancelled by the user, with the status of a success.)
// Public failure HS6.
func TestInvariant9_AMessageKeepsThePauseOrTakesItsPlace(t *testing.T) {
	t.Parallel()
	for name, doc := range map[string]string{
		"script":   scripted(`[{"calls":[`+pay+`,{"tool_call_id":"e","tool":"echo","arguments":{}}]},{"final":"done"}]`, `,"interrupt_on":{"transfer":true}`),
		"external": `{"planner":{"kind":"external"},"tools":["transfer","echo"],"interrupt_on":{"transfer":true}}`,
		"subagent": nested(2, `[{"calls":[`+pay+`,{"tool_call_id":"e","tool":"echo","arguments":{}}]},{"final":1}]`, gatedTransfer),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Agent("a", doc)
			var r host.Run
			if name == "external" {
				r = h.Batch(hosttest.Member, "a", `[`+pay+`,{"tool_call_id":"e","tool":"echo","arguments":{}}]`)
			} else {
				r = h.Settled(h.Create(hosttest.Member, "a").ID)
			}
			asked, token := r.Pause.Approvals[0].ID, r.Pause.ResumeToken
			before := h.Stored()
			_, err := say(h, hosttest.Member, r.ID, false)
			if e, ok := err.(*host.Error); !ok || e.Code != host.CodeWrongState || len(e.Outstanding) != 1 || e.Outstanding[0] != asked || !strings.Contains(e.Detail, "supersede") {
				t.Fatalf("a message while paused: %v", err)
			}
			h.Unchanged(before)
			if _, err := say(h, hosttest.Member2, r.ID, true); host.CodeOf(err) != host.CodeNotFound {
				t.Errorf("somebody else's message: %v", err)
			}
			if _, err := say(h, hosttest.Member, r.ID, true); err != nil {
				t.Fatal(err)
			}
			r = h.Settled(r.ID)
			want := store.RunSucceeded
			if name == "external" {
				want = store.RunAwaitingPlanner
			}
			if r.State != want || r.Pause != nil {
				t.Fatalf("the run is %s, pause %+v: %+v", r.State, r.Pause, r.Error)
			}
			for _, c := range r.Calls {
				if c.State != store.CallFinished || c.Error == nil || c.Error.Code != "cancelled" || !strings.Contains(c.Error.Message, "new message") {
					t.Errorf("%s is %s with %+v", c.ToolCallID, c.State, c.Error)
				}
			}
			if len(h.Ran.All()) != 0 {
				t.Errorf("ran: %q", h.Ran.All())
			}
			ap, err := h.GetApproval(t.Context(), hosttest.Admin, asked)
			if err != nil || ap.State != store.ApprovalSuperseded {
				t.Errorf("the approval is %s, %v", ap.State, err)
			}
			// What the old pause gave out is of no use any more.
			if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: asked, Kind: "approve"}); host.CodeOf(err) != host.CodeWrongState {
				t.Errorf("a late approval: %v", err)
			}
			if _, err := h.Resume(t.Context(), hosttest.Admin, token, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: []host.Decision{{ApprovalID: asked, Kind: "approve"}}})); host.CodeOf(err) != host.CodeTokenUsed {
				t.Errorf("a late token: %v", err)
			}
			var types []string
			for _, e := range h.Events(r.ID) {
				types = append(types, e["type"].(string))
			}
			if !strings.Contains(strings.Join(types, " "), "approval.superseded") {
				t.Errorf("the events are %q", types)
			}
			msgs, err := h.Trajectory(t.Context(), hosttest.Member, r.ID)
			if err != nil {
				t.Fatal(err)
			}
			told := 0
			for i, m := range msgs {
				if m.Seq != i+1 {
					t.Errorf("message %d has the number %d", i+1, m.Seq)
				}
				if m.Role == "user" && m.Frame == 0 && string(m.Content) == `"never mind"` {
					told++
				}
			}
			if told != 1 {
				t.Errorf("the message stands %d times in %+v", told, msgs)
			}
			rows := 0
			for _, row := range h.AuditRows("demo") {
				if row.Action == "pause.supersede" && row.ActorID != nil && *row.ActorID == "member" {
					rows++
				}
			}
			if rows != 1 {
				t.Errorf("%d audit rows", rows)
			}
		})
	}
}

func TestInput_OfARunThatWaitsForItsPlannerOrHasEnded(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("a", `{}`)
	r := h.Create(hosttest.Member, "a")
	if _, err := say(h, hosttest.Member, r.ID, false); err != nil {
		t.Fatal(err)
	}
	if now := h.Settled(r.ID); now.State != store.RunAwaitingPlanner {
		t.Errorf("the run is %s", now.State)
	}
	if _, err := h.Cancel(t.Context(), hosttest.Member, r.ID); err != nil {
		t.Fatal(err)
	}
	before := h.Stored()
	if _, err := say(h, hosttest.Member, r.ID, true); host.CodeOf(err) != host.CodeWrongState {
		t.Errorf("a message to an ended run: %v", err)
	}
	h.Unchanged(before)
}

// A planner that proposes the same rejected call again and again is told no by the host after the third time. (deepagents 2946.)
// Public failure HS8.
func TestInvariant8_NobodyIsAskedForEverAboutTheSameCall(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]string{"gate": pay, "tool": `{"tool_call_id":"pay","tool":"gated_write","arguments":{"x":1}}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			turn := `{"calls":[` + call + `]},`
			other := strings.NewReplacer(`"amount":7`, `"amount":8`, `"x":1`, `"x":2`).Replace(turn)
			h.Script("stubborn", `[`+strings.Repeat(turn, 4)+other+`{"final":"done"}]`, gatedTransfer)
			r := h.Settled(h.Create(hosttest.Member, "stubborn").ID)
			for i := range 4 { // three times the same, then another one
				if r.Pause == nil {
					t.Fatalf("after %d rejects the run is %s: %+v", i, r.State, r.Calls)
				}
				if _, err := h.DecideAll(hosttest.Admin, r, "reject"); err != nil {
					t.Fatal(err)
				}
				r = h.Settled(r.ID)
			}
			if r.State != store.RunSucceeded || len(r.Calls) != 5 {
				t.Fatalf("the run is %s with %d calls", r.State, len(r.Calls))
			}
			if e := r.Calls[3].Error; e == nil || e.Code != "denied" || !strings.Contains(e.Message, "3 times") {
				t.Errorf("the fourth proposal ended with %+v", r.Calls[3])
			}
			if len(r.Calls[4].ApprovalIDs) != 1 {
				t.Error("another call is asked about")
			}
		})
	}
}

// Also when there are more rejected calls than are remembered, people are not asked for ever about those that are.
func TestInvariant8_ManyRejectedCallsInTurnAreNotAskedForEver(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	var turns []string
	for i := range 80 {
		turns = append(turns, fmt.Sprintf(`{"calls":[{"tool":"transfer","arguments":{"amount":%d}}]}`, i%17))
	}
	h.Script("a", `[`+strings.Join(turns, ",")+`,{"final":1}]`, gatedTransfer)
	r := h.Settled(h.Create(hosttest.Member, "a").ID)
	asked := 0
	for ; r.Pause != nil; asked++ {
		if _, err := h.DecideAll(hosttest.Admin, r, "reject"); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
	}
	if r.State != store.RunSucceeded || asked > 16*3+80/17+1 {
		t.Errorf("the run is %s; people were asked %d times", r.State, asked)
	}
}
