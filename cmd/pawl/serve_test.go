package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

// newChild returns a host that is not started yet; program is pawl, or pawl-crash for the one with tools of the tests.
func newChild(t *testing.T, program string) *child {
	t.Helper()
	exe, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := &child{exe: exe, data: filepath.Join(dir, "data"), listen: "127.0.0.1:0", env: []string{"PAWL_CRASH_FILE=" + filepath.Join(dir, "counted")}}
	t.Cleanup(c.kill)
	return c
}

func (c *child) as(name string) *remote {
	r := newRemote(c.base, c.keys[name])
	r.Retries = 0
	return r
}

// mustStart and mustCall end the test when they fail.
func mustStart(t *testing.T, c *child) {
	t.Helper()
	if err := c.start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func mustCall(t *testing.T, r *remote, method, path string, body, out any) {
	t.Helper()
	if err := r.call(t.Context(), method, path, body, out); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
}

// getRun reads a run afresh.
func getRun(t *testing.T, r *remote, id string) host.Run {
	t.Helper()
	var run host.Run
	mustCall(t, r, http.MethodGet, runPath(id), nil, &run)
	return run
}

// SIGTERM while clients wait and listen: they are answered, the process ends well and soon, and the folder is free.
func TestSIGTERMSaysGoodbye(t *testing.T) {
	t.Parallel()
	c := newChild(t, "pawl")
	mustStart(t, c)
	owner := c.as("owner")
	mustCall(t, owner, http.MethodPut, agentPath("ops"), json.RawMessage(demoAgent), nil)
	var run host.Run
	mustCall(t, owner, http.MethodPost, "/v1/runs", map[string]any{"agent": "ops"}, &run)

	streamed := make(chan error, 1)
	paused := make(chan struct{})
	go func() {
		streamed <- owner.events(t.Context(), run.ID, func(e event) error {
			if e.Type == "run.paused" {
				close(paused)
			}
			return nil
		})
	}()
	<-paused

	began := time.Now()
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	if err := <-streamed; exitCode(err) != exitAway {
		t.Errorf("the stream ended with: %v", err)
	}
	keys := c.keys
	mustStart(t, c)
	for name, key := range keys {
		if c.keys[name] != key {
			t.Errorf("the key of %s did not survive", name)
		}
	}
	if now := getRun(t, c.as("owner"), run.ID); now.State != store.RunAwaitingApproval || now.Pause == nil || now.Pause.ResumeToken == "" {
		t.Errorf("the run is %s after the restart, pause %v", now.State, now.Pause)
	}
}

// A service manager's reload must not end a host that has no rules to reload.
func TestSIGHUPWithoutRulesIsForNothing(t *testing.T) {
	t.Parallel()
	c := newChild(t, "pawl")
	c.extra = []string{"--log-level", "info"}
	mustStart(t, c)
	if err := c.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if !eventually(t.Context(), time.Minute, func() bool { return strings.Contains(c.log.text(), "nothing to reload") }) {
		t.Errorf("the log has\n%s", c.log.text())
	}
	mustCall(t, c.as("owner"), http.MethodGet, "/v1/tenant", nil, nil)
	if err := c.stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// A tool that never returns does not keep the process: it ends by itself, and at once when it is told again.
func TestInvariant11_StuckToolDoesNotKeepTheProcess(t *testing.T) {
	t.Parallel()
	for name, impatient := range map[string]bool{"one signal": false, "many signals": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChild(t, "pawl-crash")
			mustStart(t, c)
			owner := c.as("owner")
			mustCall(t, owner, http.MethodPut, agentPath("stuck"), json.RawMessage(
				`{"planner":{"kind":"script","turns":[{"calls":[{"tool":"stall","arguments":{}}]},{"final":1}]},"tools":["stall"]}`), nil)
			var run host.Run
			mustCall(t, owner, http.MethodPost, "/v1/runs", map[string]any{"agent": "stuck"}, &run)
			ok := eventually(t.Context(), 10*time.Second, func() bool {
				now := getRun(t, owner, run.ID)
				return len(now.Calls) == 1 && now.Calls[0].State == store.CallStarted
			})
			if !ok {
				t.Fatal("the call did not start")
			}
			began := time.Now()
			if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			again := make(<-chan time.Time)
			if impatient {
				// A signal right after the first means the same stop (see main.go), so somebody impatient asks again and again.
				ticker := time.NewTicker(200 * time.Millisecond)
				defer ticker.Stop()
				again = ticker.C
			}
			for running := true; running; {
				select {
				case <-c.ended:
					c.ended, running = nil, false
				case <-again:
					_ = c.cmd.Process.Signal(syscall.SIGTERM) // fails once the process is gone
				case <-time.After(30 * time.Second):
					t.Fatal("it still runs")
				}
			}
			// A process that a signal ended did not get to its own end.
			status := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
			if status.Signaled() != impatient {
				t.Errorf("it ended with %v after %s", c.cmd.ProcessState, time.Since(began))
			}
			mustStart(t, c) // the lock is free
		})
	}
}

func reachable(c *child) bool {
	conn, err := net.DialTimeout("tcp", c.listen, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// A key of the file that no longer works is made anew; the others stay.
func TestDevKeysAreMended(t *testing.T) {
	t.Parallel()
	c := newChild(t, "pawl")
	mustStart(t, c)
	before := c.keys
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.data, devKeysFile)
	broken := map[string]string{}
	for name, key := range before {
		broken[name] = key
	}
	broken["member"] = before["other_member"] // a good key, of somebody else
	delete(broken, "admin")
	raw, err := json.Marshal(broken)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	mustStart(t, c)
	for name := range before {
		mended := name == "member" || name == "admin"
		if (c.keys[name] != before[name]) != mended {
			t.Errorf("%s: was %q, is %q", name, before[name], c.keys[name])
		}
		if err := c.as(name).call(t.Context(), http.MethodGet, "/v1/tools", nil, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %v: %v", file, st.Mode(), err)
	}
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.start(t.Context()); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("a damaged file: %v", err)
	}
}

// Ctrl-C in the middle of the demo leaves no folder and no process.
func TestDemoCleansUpAfterInterrupt(t *testing.T) {
	t.Parallel()
	exe, err := exec.LookPath("pawl")
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), exe, "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	stdin, err := cmd.StdinPipe() // stays open: the demo waits for an answer
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr := ""
	for in := bufio.NewReader(out); ; {
		part, err := in.ReadString(':')
		if _, rest, ok := strings.Cut(part, "listens on http://"); ok {
			port, _ := in.ReadString(' ')
			addr = rest + strings.TrimSpace(port)
		}
		if strings.Contains(part, "[e]dit the text:") {
			go func() { _, _ = io.Copy(io.Discard, in) }()
			break
		}
		if err != nil {
			t.Fatalf("no question: %v %s", err, stderr.String())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "cleaned up") {
		t.Errorf("it ended with %v: %s", err, stderr.String())
	}
	if reachable(&child{listen: addr}) {
		t.Errorf("the host on %s still runs", addr)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "pawl-demo-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// "localhost" is resolved, and what was checked is what is listened on.
func TestDevListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for listen, ok := range map[string]bool{
		"localhost:0": true, "127.0.0.1:0": true, "127.9.9.9:0": true, "[::1]:0": true,
		"0.0.0.0:0": false, "[::]:0": false, ":0": false, "192.0.2.1:0": false, "127.0.0.1": false,
	} {
		a := &app{config: config{dev: true, listen: listen}}
		ln, err := a.bind(context.Background())
		if err != nil {
			if ok && !errors.Is(err, syscall.EADDRNOTAVAIL) { // a machine without IPv6
				t.Errorf("%s: %v", listen, err)
			}
			continue
		}
		ln.Close()
		if !ok || !ln.Addr().(*net.TCPAddr).IP.IsLoopback() {
			t.Errorf("%s: listens on %s", listen, ln.Addr())
		}
	}
}

// Whatever the level, the log tells what happened and never with what: no key, no token, no argument.
func TestInvariant14_LogsHoldNoSecret(t *testing.T) {
	t.Parallel()
	c := newChild(t, "pawl")
	c.extra = []string{"--log-level", "debug"}
	mustStart(t, c)
	owner := c.as("owner")
	mustCall(t, owner, http.MethodPut, agentPath("ops"), json.RawMessage(demoAgent), nil)
	var run host.Run
	mustCall(t, owner, http.MethodPost, "/v1/runs", map[string]any{"agent": "ops", "tool_context": map[string]any{"password": "hunter2"}}, &run)
	run = getRun(t, owner, run.ID)
	token := run.Pause.ResumeToken
	_ = owner.call(t.Context(), http.MethodPost, "/v1/resume", map[string]any{"resume_token": token + "A", "decisions": []any{}}, nil)
	mustCall(t, owner, http.MethodPost, "/v1/resume", map[string]any{"resume_token": token, "decisions": []any{
		map[string]any{"approval_id": run.Pause.Approvals[0].ID, "kind": "approve", "message": "because of hunter3"}}}, nil)
	_ = newRemote(c.base, "pawl_not_a_key").call(t.Context(), http.MethodGet, "/v1/tools", nil, nil)
	if !eventually(t.Context(), 10*time.Second, func() bool { return getRun(t, owner, run.ID).State.Ended() }) {
		t.Fatal("the run does not end")
	}
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	hostKey, err := os.ReadFile(filepath.Join(c.data, "host.key"))
	if err != nil {
		t.Fatal(err)
	}
	log := c.log.text()
	if !strings.Contains(log, run.ID) || !strings.Contains(log, "level=DEBUG") && !strings.Contains(log, "level=INFO") {
		t.Fatalf("the log tells nothing:\n%s", log)
	}
	secrets := []string{token, strings.TrimSpace(string(hostKey)), "hunter2", "hunter3", "pawl_not_a_key", "deploy on a Friday"}
	for _, key := range c.keys {
		secrets = append(secrets, key, key[len(key)-20:])
	}
	for _, s := range secrets {
		if strings.Contains(log, s) {
			t.Errorf("the log holds %q:\n%s", s, log)
		}
	}
}
