package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/sdk/client"
)

// cache keeps the compiled plugin, which takes long under the race detector. So the tests run one after the other.
var cache string

func TestMain(m *testing.M) {
	var err error
	if cache, err = os.MkdirTemp("", "write-line"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(cache)
	m.Run()
}

// rig is a host that serves this folder's plugin over HTTP.
type rig struct {
	*hosttest.Host
	url                    string
	owner, member, member2 *client.Client
}

func serve(t *testing.T, o hosttest.Options) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("compiles a Go plugin, a minute under the race detector; run without -short")
	}
	o.Bundled, o.Cache = os.DirFS("."), cache
	r := &rig{Host: hosttest.New(t, o)}
	server := api.New(r.Host.Host, api.Options{Dev: true, Now: r.Clock.Now})
	web := httptest.NewServer(server)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		server.Drain(ctx)
		web.Close()
	})
	r.url = web.URL
	of := func(a host.Actor) *client.Client {
		k, err := r.EnsureKey(t.Context(), a.Tenant, host.NewKey{Principal: a.ID, Roles: a.Roles, Kind: a.Kind})
		if err != nil {
			t.Fatal(err)
		}
		return client.New(web.URL, k.Key)
	}
	r.owner, r.member, r.member2 = of(hosttest.Owner), of(hosttest.Member), of(hosttest.Member2)
	return r
}

func (r *rig) lines(t *testing.T) string {
	t.Helper()
	out, err := r.owner.CallTool(t.Context(), "writer", "read_lines", struct{}{})
	if err != nil || out.Error != nil {
		t.Fatal(err, out.Error)
	}
	return string(out.Result)
}

// The whole loop: two writes are asked for one by one, one is approved and one is not.
func TestTheLoopPausesShowsAndResumes(t *testing.T) {
	r := serve(t, hosttest.Options{})
	var out bytes.Buffer
	a := app{starter: r.member, approver: r.owner, in: bufio.NewScanner(strings.NewReader("approve\nreject\n")), out: &out}
	if err := a.write(t.Context(), []string{"first\u202e", "second"}); err != nil {
		t.Fatal(err)
	}
	want := "approval_required: Approve the write \"first\\u202e\"\napprove or reject? approval_required: Approve the write \"second\"\napprove or reject? succeeded: {\"lines\":[\"first\u202e\"]}\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
	a.in = bufio.NewScanner(strings.NewReader(""))
	if err := a.write(t.Context(), []string{"third"}); err == nil || !strings.Contains(err.Error(), "nobody answered; run run_") {
		t.Errorf("without an answer: %v", err)
	}
	if got := r.lines(t); got != `{"lines":["first`+"\u202e"+`"]}` {
		t.Errorf("written: %s", got)
	}
}

// One approval lets one call write, with the arguments that were shown, over a restart, and no caller can say it itself.
func TestTheFlagIsTheHostsAndServesOneCall(t *testing.T) {
	r := serve(t, hosttest.Options{})
	ctx := t.Context()
	if _, err := r.owner.SaveAgent(ctx, "writer", agent([]string{"a", "a", "b"})); err != nil {
		t.Fatal(err)
	}
	mine := map[string]any{"approvals": map[string]bool{"write_line": true}}
	if _, err := r.member.CreateRun(ctx, client.NewRun{Agent: "writer", ToolContext: mine}); client.Code(err) != "invalid" {
		t.Errorf("a caller's own approvals at the start: %v", err)
	}
	run, err := r.member.CreateRun(ctx, client.NewRun{Agent: "writer", Wait: 30 * time.Second})
	if err != nil || run.State != client.AwaitingApproval || string(run.Pause.Payload) != `{"approval_key":"write_line","preview":"a","title":"Approve the write"}` {
		t.Fatalf("%s, pause %+v, %v", run.State, run.Pause, err)
	}
	token := run.Pause.ResumeToken
	if _, err := r.member.ResumeInput(ctx, token, "approved"); client.Code(err) != "forbidden" {
		t.Errorf("who started it approves by the token: %v", err)
	}
	if _, err := r.member2.ResumeInput(ctx, token, "approved"); client.Code(err) != "forbidden" {
		t.Errorf("who was handed the token approves: %v", err)
	}
	if p := r.resume(t, r.owner, map[string]any{"resume_token": token, "decisions": client.Approve(run.Pause), "tool_context": mine}); p.Status != 400 || p.Pointer != "/tool_context/approvals" {
		t.Errorf("approvals in the context of a resume: %+v", p)
	}
	if got := r.lines(t); got != `{"lines":[]}` {
		t.Errorf("written before anybody approved: %s", got)
	}

	r.Stop()
	r = serve(t, hosttest.Options{Store: r.Store, Clock: r.Clock})
	for i, step := range []struct{ preview, written string }{
		{"a", `{"lines":["a"]}`},
		{"a", `{"lines":["a","a"]}`}, // the same text again is another call: it asks again
		{"b", `{"lines":["a","a","b"]}`},
	} {
		run = r.pausedAgain(t, run.ID)
		if !strings.Contains(string(run.Pause.Payload), `"preview":"`+step.preview+`"`) {
			t.Fatalf("pause %d shows %s", i, run.Pause.Payload)
		}
		if _, err := r.owner.Resume(ctx, run.Pause.ResumeToken, client.Approve(run.Pause)...); err != nil {
			t.Fatal(err)
		}
		if _, err := r.owner.Resume(ctx, run.Pause.ResumeToken, client.Approve(run.Pause)...); client.Code(err) != "token_used" {
			t.Errorf("the token a second time: %v", err)
		}
		r.Settled(run.ID)
		if got := r.lines(t); got != step.written {
			t.Fatalf("after approval %d: %s, want %s", i+1, got, step.written)
		}
	}
	if run, err = r.member.Run(ctx, run.ID); err != nil || run.State != client.Succeeded || len(run.Calls) != 7 {
		t.Errorf("the run is %s with %d calls, %v", run.State, len(run.Calls), err)
	}
}

func (r *rig) pausedAgain(t *testing.T, id string) client.Run {
	t.Helper()
	r.Settled(id)
	run, err := r.member.Run(t.Context(), id)
	if err != nil || run.Pause == nil {
		t.Fatalf("run %s is %s, %v", id, run.State, err)
	}
	return run
}

// resume posts a body that the Go client has no words for, and returns how it was refused.
func (r *rig) resume(t *testing.T, c *client.Client, body any) (p client.Problem) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/resume", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p
}
