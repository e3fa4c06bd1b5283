package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/pawlhost/pawl/sdk/client"
)

// server answers with each of the handlers in turn, and keeps the Idempotency-Keys that came.
func server(t *testing.T, handlers ...http.HandlerFunc) (*client.Client, func() []string) {
	t.Helper()
	var mu sync.Mutex
	var keys []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n := len(keys)
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		mu.Unlock()
		if n >= len(handlers) {
			t.Errorf("request %d was not expected: %s %s", n+1, r.Method, r.URL)
			return
		}
		handlers[n](w, r)
	}))
	t.Cleanup(s.Close)
	return client.New(s.URL, "key"), func() []string { mu.Lock(); defer mu.Unlock(); return keys }
}

func drop(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func refuse(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"status":%d,"code":%q,"detail":"d","pointer":"/p"}`, status, code)
	}
}

func run(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, `{"id":"run_1","state":"queued","calls":[]}`)
}

// A connection that breaks leaves it open whether the run was made: the repeat carries the same key, so that it is made once.
func TestARepeatCarriesTheSameIdempotencyKey(t *testing.T) {
	t.Parallel()
	c, keys := server(t, drop, refuse(503, "unavailable"), run)
	r, err := c.CreateRun(context.Background(), client.NewRun{Agent: "a"})
	if err != nil || r.ID != "run_1" {
		t.Fatalf("%+v %v", r, err)
	}
	if k := keys(); len(k) != 3 || k[0] == "" || k[0] != k[1] || k[1] != k[2] {
		t.Errorf("keys %q", k)
	}
}

// An id is one piece of a path, whatever is in it: a client that is given "../keys" asks for nothing else.
func TestIdsStayOnePieceOfThePath(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for want, ask := range map[string]func(*client.Client) error{
		"GET /v1/approvals/..%2Fkeys":    func(c *client.Client) error { _, err := c.Approval(ctx, "../keys"); return err },
		"GET /v1/runs/a%2Fb":             func(c *client.Client) error { _, err := c.Run(ctx, "a/b"); return err },
		"GET /v1/runs/a%3Fb/approvals":   func(c *client.Client) error { _, err := c.RunApprovals(ctx, "a?b"); return err },
		"POST /v1/runs/a%23b/cancel":     func(c *client.Client) error { _, err := c.Cancel(ctx, "a#b"); return err },
		"GET /v1/runs/%252F/trajectory":  func(c *client.Client) error { _, err := c.Trajectory(ctx, "%2F"); return err },
		"GET /v1/agents/a%20b":           func(c *client.Client) error { _, err := c.Agent(ctx, "a b"); return err },
		"POST /v1/tools/files%2Fls/call": func(c *client.Client) error { _, err := c.CallTool(ctx, "", "files/ls", nil); return err },
	} {
		c, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
			if got := r.Method + " " + r.RequestURI; got != want {
				t.Errorf("asked %s, want %s", got, want)
			}
			fmt.Fprint(w, "{}")
		})
		if err := ask(c); err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// A host with many tools answers in pages; a client that read one of them would take the rest for missing.
func TestToolsAreAllOfThem(t *testing.T) {
	t.Parallel()
	page := func(cursor, answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if got := r.URL.Query().Get("cursor"); got != cursor {
				t.Errorf("asked for the page %q, want %q", got, cursor)
			}
			fmt.Fprint(w, answer)
		}
	}
	c, _ := server(t, page("", `{"tools":[{"name":"a"}],"next":"p2"}`), page("p2", `{"tools":[{"name":"b"}]}`))
	tools, err := c.Tools(context.Background())
	if err != nil || len(tools) != 2 || tools[0].Name != "a" || tools[1].Name != "b" {
		t.Errorf("%v %v", tools, err)
	}
}

func TestASaveTellsWhatIsProbablyAMistake(t *testing.T) {
	t.Parallel()
	c, _ := server(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"version":3,"warnings":["w"],"tools":[]}`)
	})
	saved, err := c.SaveAgent(context.Background(), "ops", map[string]any{})
	if err != nil || saved.Version != 3 || len(saved.Warnings) != 1 {
		t.Errorf("%+v %v", saved, err)
	}
}

func TestRefusalsAreNotRepeated(t *testing.T) {
	t.Parallel()
	c, keys := server(t, refuse(409, "already_decided"))
	_, err := c.Decide(context.Background(), "r")
	p, ok := errors.AsType[*client.Problem](err)
	if !ok || p.Code != "already_decided" || p.Pointer != "/p" || len(keys()) != 1 {
		t.Errorf("%v after %d requests", err, len(keys()))
	}
	// A POST without a key could happen twice: it is not repeated either.
	c, keys = server(t, drop)
	if _, err := c.Ticket(context.Background()); err == nil || len(keys()) != 1 {
		t.Errorf("%v after %d requests", err, len(keys()))
	}
	c, _ = server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502); fmt.Fprint(w, "<html>") })
	if _, err := c.Run(context.Background(), "r"); client.Code(err) != "http_502" {
		t.Errorf("a proxy's page: %v", err)
	}
}

// Wherever a stream breaks, within an event too, it goes on after the last whole event.
func TestEventsGoOnWhereTheStreamBroke(t *testing.T) {
	t.Parallel()
	event := func(n int, typ string) string {
		return fmt.Sprintf("id: %d\nevent: %s\ndata: {\"seq\":%d,\"type\":%q,\"run_id\":\"r\"}\n\n", n, typ, n, typ)
	}
	whole := ": \n\n" + event(1, "a") + event(2, "b") + ": \n\n" + event(3, "run.finished")
	for cut := range len(whole) {
		first := func(w http.ResponseWriter, r *http.Request) {
			if id := r.Header.Get("Last-Event-ID"); id != "" {
				t.Errorf("the first request is after %q", id)
			}
			fmt.Fprint(w, whole[:cut])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		second := func(w http.ResponseWriter, r *http.Request) {
			rest := whole
			switch r.Header.Get("Last-Event-ID") {
			case "1":
				rest = event(2, "b") + event(3, "run.finished")
			case "2":
				rest = event(3, "run.finished")
			}
			fmt.Fprint(w, rest)
		}
		c, _ := server(t, first, second)
		var got []string
		for e, err := range c.Events(context.Background(), "r", 0) {
			if err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			got = append(got, fmt.Sprint(e.Seq))
		}
		if s := strings.Join(got, " "); s != "1 2 3" {
			t.Errorf("cut at %d: %s", cut, s)
		}
	}
}

func TestEventsTellWhyTheyEnd(t *testing.T) {
	t.Parallel()
	c, _ := server(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "event: error\ndata: {\"status\":410,\"code\":\"cursor_expired\"}\n\n")
	})
	n := 0
	for _, err := range c.Events(context.Background(), "r", 7) {
		n++
		if client.Code(err) != "cursor_expired" {
			t.Errorf("%v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d errors", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, _ = server(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		cancel()
		<-r.Context().Done()
	})
	for _, err := range c.Events(ctx, "r", 0) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
}

func TestPolicyTellsWhatIsInForceAndWhatWasRefused(t *testing.T) {
	t.Parallel()
	c, _ := server(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"revision":"sha256:1","loaded_at":"2026-11-29T12:00:00.000Z","files":[{"name":"a.rego","digest":"sha256:2","bytes":7}],"refused":{"at":"2026-11-29T13:00:00.000Z","problems":["a.rego:3: x"]}}`)
	})
	p, err := c.Policy(context.Background())
	if err != nil || p.Revision != "sha256:1" || p.Files[0].Name != "a.rego" || p.Refused == nil || p.Refused.Problems[0] != "a.rego:3: x" || !p.Refused.At.After(p.LoadedAt) {
		t.Errorf("%+v, %v", p, err)
	}
}
