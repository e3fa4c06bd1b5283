package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/pawlhost/pawl/sdk/client"
)

func (r *rig) client(who string) *client.Client { return client.New(r.web.URL+"/", r.keys[who]) }

// The Go client over the real wire: whatever it sends, the strict parser takes.
func TestGoClientDoesTheWholeJob(t *testing.T) {
	t.Parallel()
	r := dev(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	owner, admin, member := r.client("owner"), r.client("admin"), r.client("member")
	doc := map[string]any{"planner": map[string]any{"kind": "script", "turns": json.RawMessage(memoryWrite)}, "tools": []string{"write_file"}}
	if v, err := owner.SaveAgent(ctx, "mine", doc); err != nil || v.Version != 1 {
		t.Fatalf("%+v, %v", v, err)
	}
	if _, err := member.SaveAgent(ctx, "mine", doc); client.Code(err) != "forbidden" {
		t.Errorf("a member saved an agent: %v", err)
	}
	if d, err := member.Agent(ctx, "mine"); err != nil || !json.Valid(d) {
		t.Errorf("%s %v", d, err)
	}
	run, err := member.CreateRun(ctx, client.NewRun{Agent: "mine", Input: "go", SessionID: "s", ToolContext: map[string]int{"x": 1}, Wait: 20 * time.Second})
	if err != nil || run.State != client.AwaitingApproval || run.Pause.ResumeToken == "" {
		t.Fatalf("%+v %v", run, err)
	}
	if runs, next, err := member.Runs(ctx, client.AwaitingApproval, "mine", client.Page{Limit: 5}); err != nil || len(runs) != 1 || next != "" {
		t.Errorf("%v %q %v", runs, next, err)
	}
	if as, _, err := admin.Pending(ctx, client.Page{}); err != nil || len(as) != 1 || as[0].ID != run.Pause.Approvals[0].ID {
		t.Errorf("%v %v", as, err)
	}

	ws, err := admin.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	zero := uint64(0)
	if err := ws.FollowRun("1", run.ID, &zero); err != nil {
		t.Fatal(err)
	}
	if err := ws.FollowQueue("q", ""); err != nil {
		t.Fatal(err)
	}
	var pause *client.Pause
	for pause == nil {
		f, err := ws.Read()
		if err != nil {
			t.Fatal(err)
		}
		pause = f.Pause
	}
	if _, err := member.Decide(ctx, run.ID, client.Approve(pause)...); client.Code(err) != "forbidden" {
		t.Errorf("a member decided: %v", err)
	}
	if _, err := admin.Decide(ctx, run.ID); client.Code(err) != "incomplete" {
		t.Errorf("nothing decided: %v", err)
	}
	if err := ws.Resume("go", pause.ResumeToken, client.Approve(pause)...); err != nil {
		t.Fatal(err)
	}
	acked, seqs := false, []uint64{}
	for last := ""; last != "run.finished" || !acked; {
		f, err := ws.Read()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case f.Type == "ack" && f.ID == "go":
			acked = f.Run.ID == run.ID
		case f.Type == "event" && f.ID == "1":
			seqs = append(seqs, f.Seq)
			last = f.Event.Type
		case f.Type == "error":
			t.Fatal(f.Problem)
		}
	}
	n := 0
	for e, err := range member.Events(ctx, run.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if e.Seq != uint64(n) || e.RunID != run.ID || e.Time.IsZero() {
			t.Errorf("event %d: %+v", n, e)
		}
	}
	if n != len(seqs) {
		t.Errorf("%d events by SSE, %d by WebSocket", n, len(seqs))
	}
	for e, err := range member.Events(ctx, run.ID, uint64(n)) {
		t.Errorf("after the end: %+v %v", e, err)
	}
	if _, err := admin.Resume(ctx, pause.ResumeToken, client.Approve(pause)...); client.Code(err) != "token_used" {
		t.Errorf("a used token: %v", err)
	}
	if ms, err := member.Trajectory(ctx, run.ID); err != nil || len(ms) < 3 {
		t.Errorf("%v %v", ms, err)
	}
	if as, err := member.RunApprovals(ctx, run.ID); err != nil || as[0].Decision.DecidedBy != "admin" {
		t.Errorf("%v %v", as, err)
	}
	if o, err := member.CallTool(ctx, "", "echo", map[string]any{}); err != nil || !o.Done || string(o.Result) != "{}" {
		t.Errorf("%+v %v", o, err)
	}
	if o, err := member.CallTool(ctx, "", "write_file", map[string]any{"path": "/memories/a", "content": ""}); err != nil || o.Done || o.Run.Pause == nil {
		t.Errorf("%+v %v", o, err)
	} else if done, err := member.Cancel(ctx, o.Run.ID); err != nil || done.State != client.Cancelled {
		t.Errorf("%+v %v", done, err)
	}
	if tools, err := member.Tools(ctx); err != nil || len(tools) == 0 {
		t.Errorf("%v %v", tools, err)
	}
	if tk, err := member.Ticket(ctx); err != nil || tk == "" {
		t.Errorf("%q %v", tk, err)
	}

	ext, err := member.CreateRun(ctx, client.NewRun{Agent: "ext", Wait: 20 * time.Second})
	if err != nil || ext.State != client.AwaitingPlanner {
		t.Fatalf("%+v %v", ext, err)
	}
	if _, err := member.Propose(ctx, ext.ID, ext.Turn+1, []client.ProposedCall{{ToolCallID: "a", Tool: "echo", Arguments: map[string]any{}}}, map[string]int{"n": 1}); err != nil {
		t.Fatal(err)
	}
	r.Settled(ext.ID)
	if ext, err = member.Run(ctx, ext.ID); err != nil || string(ext.PlannerState) != `{"n":1}` {
		t.Errorf("%+v %v", ext, err)
	}
	if ext, err = member.Finish(ctx, ext.ID, ext.Turn+1, nil); err != nil || ext.State != client.Succeeded || string(ext.Output) != "null" {
		t.Errorf("%+v %v", ext, err)
	}
	if _, err := r.client("member2").Run(ctx, ext.ID); client.Code(err) != "not_found" {
		t.Errorf("another member's run: %v", err)
	}
	bad := client.New(r.web.URL, "nope")
	if _, err := bad.Dial(ctx); client.Code(err) != "unauthenticated" {
		t.Errorf("%v", err)
	}
	drained := make(chan struct{})
	go func() { r.api.Drain(ctx); close(drained) }()
	for {
		if _, err := ws.Read(); err != nil {
			if fmt.Sprint(err) != "pawl: socket closed: 1001 the host is draining: connect again with your cursor" {
				t.Errorf("%v", err)
			}
			break
		}
	}
	<-drained
}
