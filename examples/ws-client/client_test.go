// Package wsclient_test runs the Node client against a real host.
package wsclient_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const agent = `{"planner": {"kind": "script", "turns": [
  {"calls": [{"tool_call_id": "c1", "tool": "write_file", "arguments": {"path": "/memories/a.md", "content": "hi\u202e"}},
             {"tool_call_id": "c2", "tool": "write_file", "arguments": {"path": "/skills/b.md", "content": "ho"}}]},
  {"final": "done"}]}, "tools": ["write_file"]}`

// A pause appears on the socket, is decided there, as a batch, and the client goes on over a crash of the host.
func TestClientShowsAndDecides(t *testing.T) {
	t.Parallel()
	node := needs(t)
	h := start(t, build(t), t.TempDir(), "127.0.0.1:0")
	h.do(t, "owner", http.MethodPut, "/v1/agents/ops", agent, nil)

	t.Run("the queue, once", func(t *testing.T) {
		c := node(t, h, "--decide", "approve", "--once")
		run := h.run(t)
		c.exits(t, 0)
		c.prints(t, "waits: write_file in run "+run)
		c.prints(t, `content: "hi\u202e"`)
		if got := h.ends(t, run); got != "succeeded" || h.errors(t, run) != "" {
			t.Errorf("the run %s with %q", got, h.errors(t, run))
		}
	})
	t.Run("one run, by its token, rejected", func(t *testing.T) {
		run := h.run(t)
		c := node(t, h, "--run", run, "--decide", "reject")
		c.exits(t, 0)
		if got := h.errors(t, run); got != "rejected rejected" {
			t.Errorf("the calls ended with %q", got)
		}
	})
	outer := t // the new host outlives the part that starts it
	t.Run("over a crash of the host", func(t *testing.T) {
		c := node(t, h, "--decide", "approve")
		c.waitsFor(t, "connected as")
		h.kill()
		c.waitsFor(t, "connection closed")
		h = start(outer, h.bin, h.data, h.addr)
		run := h.run(t)
		if got := h.ends(t, run); got != "succeeded" {
			t.Errorf("the run %s", got)
		}
		c.stop()
	})
	t.Run("asked, with both shown before the first question; a word that is none is asked again", func(t *testing.T) {
		run := h.run(t)
		c := node(t, h, "--run", run, "<approve\nperhaps\nreject\n")
		c.exits(t, 0)
		c.prints(t, `"perhaps" is none of these`)
		if first, second := strings.Index(c.out.String(), `content: "ho"`), strings.Index(c.out.String(), "approve, edit, reject, respond?"); first < 0 || second < first {
			t.Errorf("the second call is not shown before the first question:\n%s", c.out.String())
		}
		if got := h.errors(t, run); strings.TrimSpace(got) != "rejected" {
			t.Errorf("the calls ended with %q", got)
		}
	})
	t.Run("nobody there: nothing is decided", func(t *testing.T) {
		run := h.run(t)
		c := node(t, h, "--run", run, "<approve\n")
		c.exits(t, 1)
		c.prints(t, "nothing was decided")
		if got := h.state(t, run); got != "awaiting_approval" {
			t.Errorf("the run is %s", got)
		}
	})
	t.Run("words that are none", func(t *testing.T) {
		none := &server{addr: h.addr, keys: map[string]string{"admin": h.keys["admin"]}}
		c := node(t, none, "--hlep")
		c.exits(t, 2)
		c.prints(t, "usage:")
		node(t, none, "--help").exits(t, 0)
		closed := httptest.NewServer(http.NotFoundHandler())
		closed.Close()
		c = node(t, &server{addr: strings.TrimPrefix(closed.URL, "http://"), keys: none.keys})
		c.waitsFor(t, "cannot reach "+closed.URL+": ECONNREFUSED, trying again in 0.2 s")
		c.stop()
	})
	t.Run("a key that is none", func(t *testing.T) {
		bad := *h
		bad.keys = map[string]string{"admin": "pawl_none"}
		c := node(t, &bad)
		c.exits(t, 1)
		c.prints(t, "no ticket: 401")
	})
}

// needs skips where there is no Node or no node_modules, and returns how to start the client.
func needs(t *testing.T) func(t *testing.T, h *server, args ...string) *client {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skip("skipped: Node 20 is not installed")
	}
	if _, err := os.Stat("node_modules/ws"); err != nil {
		t.Skip("skipped: run npm ci in examples/ws-client first")
	}
	return func(t *testing.T, h *server, args ...string) *client {
		t.Helper()
		typed := ""
		if n := len(args); n > 0 && strings.HasPrefix(args[n-1], "<") {
			args, typed = args[:n-1], args[n-1][1:]
		}
		c := &client{cmd: exec.Command(path, append([]string{"client.js"}, args...)...)}
		c.cmd.Stdin = strings.NewReader(typed)
		c.cmd.Env = append(os.Environ(), "PAWL_URL=http://"+h.addr, "PAWL_KEY="+h.keys["admin"])
		c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
		if err := c.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.stop)
		if len(h.keys) > 1 {
			c.waitsFor(t, "connected as")
		}
		return c
	}
}

type client struct {
	cmd *exec.Cmd
	out output
}

func (c *client) stop() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *client) exits(t *testing.T, want int) {
	t.Helper()
	late := time.AfterFunc(20*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	_ = c.cmd.Wait()
	if got := c.cmd.ProcessState.ExitCode(); got != want {
		t.Fatalf("the client ended with %d, want %d:\n%s", got, want, c.out.String())
	}
}

func (c *client) prints(t *testing.T, want string) {
	t.Helper()
	if !strings.Contains(c.out.String(), want) {
		t.Errorf("the client did not print %q:\n%s", want, c.out.String())
	}
}

func (c *client) waitsFor(t *testing.T, want string) {
	t.Helper()
	until(t, func() bool { return strings.Contains(c.out.String(), want) }, func() string { return "no " + want + ":\n" + c.out.String() })
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// until polls a condition of another process.
func until(t *testing.T, ok func() bool, why func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(why())
		}
	}
}

type server struct {
	bin, data, addr string
	keys            map[string]string
	cmd             *exec.Cmd
}

func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "pawl")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/pawlhost/pawl/cmd/pawl").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

func start(t *testing.T, bin, data, listen string) *server {
	t.Helper()
	h := &server{bin: bin, data: data, cmd: exec.Command(bin, "serve", "--dev", "--data", data, "--listen", listen)}
	var log output
	h.cmd.Stderr = &log
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	_, rest, ok := strings.Cut(line, "http://")
	if !ok {
		t.Fatalf("the host said %q (%v):\n%s", line, err, log.String())
	}
	h.addr, _, _ = strings.Cut(rest, ";")
	raw, err := os.ReadFile(filepath.Join(data, "dev-keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &h.keys); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *server) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

func (h *server) do(t *testing.T, who, method, path, body string, out any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+h.addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+h.keys[who])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode > 299 {
		t.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, raw, err)
	}
	if out != nil {
		if err := json.Unmarshal(raw, out); err != nil {
			t.Fatal(err)
		}
	}
}

type run struct {
	ID    string
	State string
	Calls []struct{ Error *struct{ Code string } }
}

func (h *server) run(t *testing.T) string {
	t.Helper()
	var r run
	h.do(t, "member", http.MethodPost, "/v1/runs", `{"agent": "ops"}`, &r)
	return r.ID
}

func (h *server) ends(t *testing.T, id string) string {
	t.Helper()
	var r run
	until(t, func() bool {
		h.do(t, "admin", http.MethodGet, "/v1/runs/"+id, "", &r)
		return r.State == "succeeded" || r.State == "failed" || r.State == "cancelled"
	}, func() string { return fmt.Sprintf("the run is still %s", r.State) })
	return r.State
}

// errors returns the codes of the calls that failed.
func (h *server) state(t *testing.T, id string) string {
	t.Helper()
	var r run
	h.do(t, "admin", http.MethodGet, "/v1/runs/"+id, "", &r)
	return r.State
}

func (h *server) errors(t *testing.T, id string) string {
	t.Helper()
	var r run
	var codes []string
	h.do(t, "admin", http.MethodGet, "/v1/runs/"+id, "", &r)
	for _, c := range r.Calls {
		if c.Error != nil {
			codes = append(codes, c.Error.Code)
		}
	}
	return strings.Join(codes, " ")
}
