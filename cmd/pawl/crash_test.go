package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/sdk/client"
	"github.com/pawlhost/pawl/store"
)

// The crash test kills a whole host at random instants, under a load of runs that pause, and lets a new process go on with
// the same folder. The host has one more tool than the real one: "count" appends its call's id to a file, which no crash can
// take back, and puts a key of that name into its store, which commits with its result.

// crashHost is the main of the host that is killed.
func crashHost() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // as main does
	a := &app{config: config{env: os.Environ()}, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	c := a.serveCommand()
	c.SetArgs(os.Args[2:]) // after "serve"
	c.SilenceUsage = true
	c.RunE = func(*cobra.Command, []string) error {
		if err := a.load(c); err != nil {
			return err
		}
		return a.serve(ctx, addCounter(a.getenv("PAWL_CRASH_FILE")))
	}
	if err := c.ExecuteContext(ctx); err != nil {
		os.Exit(exitFailed)
	}
}

func addCounter(file string) func(*plugins.Set) error {
	return func(set *plugins.Set) error {
		return set.AddFunc(plugins.Manifest{
			Name: "counter",
			Tools: []plugins.ToolSpec{
				{Name: "count", Description: "counts its calls", InputSchema: json.RawMessage(`{"type":"object"}`)},
				{Name: "stall", Description: "never returns", InputSchema: json.RawMessage(`{"type":"object"}`)},
			},
			Permissions: plugins.Permissions{KV: "rw"},
		}, func(ctx context.Context, s *plugins.Session) error {
			if s.Tool().Bare == "stall" {
				select {} // against the rule that a function ends with its context
			}
			var req struct {
				Context struct {
					CallID string `json:"call_id"`
				}
			}
			if err := json.Unmarshal(s.Request(), &req); err != nil {
				return err
			}
			f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = f.WriteString(req.Context.CallID + "\n")
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
			put, err := json.Marshal(map[string]string{"key": req.Context.CallID, "value": "ran"})
			if err != nil {
				return err
			}
			var answer struct{ Ok struct{ Version int } }
			if err := json.Unmarshal(s.Dispatch(ctx, "kv.put", put), &answer); err != nil {
				return err
			}
			s.Dispatch(ctx, "output", fmt.Appendf(nil, `{"version":%d}`, answer.Ok.Version))
			return nil
		})
	}
}

const crashAgent = `{"planner": {"kind": "script", "turns": [
  {"calls": [{"tool_call_id": "a", "tool": "count", "arguments": {}}, {"tool_call_id": "b", "tool": "count", "arguments": {}}]},
  {"calls": [{"tool_call_id": "t1", "tool": "task", "arguments": {"subagent": "clerk", "input": "c"}}, {"tool_call_id": "t2", "tool": "task", "arguments": {"subagent": "clerk", "input": "d"}}]},
  {"final": "done"}]}, "tools": ["count", "task"], "interrupt_on": {"count": true},
  "subagents": [{"name": "clerk", "planner": {"kind": "script", "turns": [
    {"calls": [{"tool_call_id": "c", "tool": "count", "arguments": {}}]}, {"final": "counted"}]}, "tools": ["count"]}]}`

// TestInvariant2_3_4_8_12_SIGKILL: whatever instant the host dies at, every pause that was announced can be decided, every
// approved call has exactly one committed result, no rejected call ever ran, what was acknowledged is there, and every run ends.
func TestInvariant2_3_4_8_12_SIGKILL(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	if n, err := strconv.Atoi(os.Getenv("PAWL_CRASH_ROUNDS")); err == nil {
		rounds = n
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("%d rounds, seed %d", rounds, seed)
	c := &crash{
		T: t, rnd: rand.New(rand.NewPCG(seed, 0)), file: filepath.Join(t.TempDir(), "counted"),
		audit: host.AuditCheck{Tenant: "demo"}, created: map[string]bool{}, acked: map[string]string{}, checked: map[string]bool{}, rejected: map[string]bool{}, counted: map[string]int{},
	}
	c.child = &child{exe: plainProgram(t, "pawl-crash"), data: filepath.Join(t.TempDir(), "data"), listen: "127.0.0.1:0", env: []string{"PAWL_CRASH_FILE=" + c.file}}
	c.start()
	c.save()
	for round := range rounds {
		c.loadAndKill()
		if round%3 == 2 { // and once more while it recovers
			c.killWhileStarting()
		}
		c.start()
		c.settle()
		c.check()
		c.checkChain()
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	c.checkAudit()
	if err := c.child.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.checkStore()
	t.Logf("%d runs, %d decisions acknowledged, %d calls approved, %d rejected, %d runs of a call beyond the first",
		len(c.checked), len(c.acked), len(c.counted), len(c.rejected), c.reruns())
	if len(c.checked) < rounds || len(c.counted) == 0 || len(c.rejected) == 0 {
		t.Error("that was no load")
	}
}

// crash is the state of the test.
type crash struct {
	audit host.AuditCheck // follows the audit over every kill
	*testing.T
	rnd           *rand.Rand
	file          string
	child         *child
	member, admin *remote

	mu      sync.Mutex
	created map[string]bool   // runs whose creation was acknowledged
	acked   map[string]string // approval → the kind that was acknowledged

	checked  map[string]bool // runs that have ended and were found right
	rejected map[string]bool // calls
	counted  map[string]int  // approved call → lines in the file when its result was first seen
}

// plainProgram is this test binary under a name that it knows; built again without the race detector, where that would only slow it
// down.
func plainProgram(t *testing.T, name string) string {
	if !raceEnabled {
		exe, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		return exe
	}
	exe := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "test", "-c", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return exe
}

func (c *crash) start() {
	if err := c.child.start(c.Context()); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(c.child.kill)
	wire := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	c.member, c.admin = newRemote(c.child.base, c.child.keys["member"]), newRemote(c.child.base, c.child.keys["admin"])
	for _, r := range []*remote{c.member, c.admin} {
		// No repeats: an answer that was lost in the crash is what the test is about.
		r.HTTP, r.Retries = wire, 0
	}
}

func (c *crash) save() {
	if err := c.admin.call(c.Context(), http.MethodPut, agentPath("load"), json.RawMessage(crashAgent), nil); err != nil {
		c.Fatal(err)
	}
}

// loadAndKill starts and decides runs from several sides until the host is killed in the middle of it.
func (c *crash) loadAndKill() {
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				var run host.Run
				if c.member.call(ctx, http.MethodPost, "/v1/runs", map[string]any{"agent": "load"}, &run) != nil {
					return // the host is gone
				}
				c.mu.Lock()
				c.created[run.ID] = true
				leave := c.rnd.IntN(3) == 0 // for after the restart
				c.mu.Unlock()
				for id := run.ID; !leave && ctx.Err() == nil && !run.State.Ended(); {
					run = host.Run{}
					if c.admin.call(ctx, http.MethodGet, runPath(id), nil, &run) != nil || run.Pause != nil && c.answer(ctx, run) != nil {
						return
					}
				}
			}
		})
	}
	c.mu.Lock()
	after := time.Duration(c.rnd.IntN(200_000)) * time.Microsecond
	c.mu.Unlock()
	<-time.After(after) // the random instant
	c.child.kill()
	cancel()
	clients.Wait()
}

func (c *crash) killWhileStarting() {
	cmd := exec.Command(c.child.exe, "serve", "--dev", "--data", c.child.data, "--listen", c.child.listen)
	cmd.Env = append(os.Environ(), c.child.env...)
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	<-time.After(time.Duration(c.rnd.IntN(60_000)) * time.Microsecond)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// answer decides all that waits in a run, one way or the other, and remembers what was acknowledged.
func (c *crash) answer(ctx context.Context, run host.Run) error {
	var decisions []map[string]any
	for _, p := range run.Pause.Approvals {
		if p.State != store.ApprovalPending {
			continue
		}
		kind := "approve"
		if p.ID[len(p.ID)-1]%3 == 0 {
			kind = "reject"
		}
		decisions = append(decisions, map[string]any{"approval_id": p.ID, "kind": kind, "args_digest": p.ArgsDigest})
	}
	if err := c.admin.call(ctx, http.MethodPost, runPath(run.ID)+"/approvals", map[string]any{"decisions": decisions}, nil); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range decisions {
		c.acked[d["approval_id"].(string)] = d["kind"].(string)
	}
	return nil
}

// open returns the runs that have not been checked yet.
func (c *crash) open() []host.Run {
	var open []host.Run
	err := c.admin.pages(c.Context(), "/v1/runs", url.Values{"limit": {"200"}}, func(raw json.RawMessage) error {
		var page struct{ Runs []host.Run }
		err := json.Unmarshal(raw, &page)
		for _, r := range page.Runs {
			if !c.checked[r.ID] {
				open = append(open, r)
			}
		}
		return err
	})
	if err != nil {
		c.Fatal(err)
	}
	return open
}

// settle decides everything until every run has ended.
func (c *crash) settle() {
	list := c.open()
	there := map[string]bool{}
	for _, r := range list {
		there[r.ID] = true
	}
	for id := range c.created {
		if !there[id] && !c.checked[id] {
			c.Errorf("run %s was acknowledged and is gone", id)
		}
	}
	for _, r := range list {
		var run host.Run
		ok := eventually(c.Context(), 20*time.Second, func() bool {
			run = host.Run{}
			if err := c.admin.call(c.Context(), http.MethodGet, runPath(r.ID), nil, &run); err != nil {
				c.Fatal(err)
			}
			if run.Pause != nil {
				if err := c.answer(c.Context(), run); err != nil {
					c.Fatalf("a pause that is listed cannot be decided: %v", err)
				}
			}
			return run.State.Ended()
		})
		if !ok {
			c.Fatalf("run %s is %s and does not end", r.ID, run.State)
		}
	}
}

// check looks at every run that has ended since the last check.
func (c *crash) check() {
	lines := c.lines()
	for _, r := range c.open() {
		var run host.Run
		var list struct{ Approvals []host.Approval }
		if err := errors.Join(
			c.admin.call(c.Context(), http.MethodGet, runPath(r.ID), nil, &run),
			c.admin.call(c.Context(), http.MethodGet, runPath(r.ID)+"/approvals", nil, &list),
		); err != nil {
			c.Fatal(err)
		}
		c.checked[r.ID] = true
		if run.State != store.RunSucceeded || len(run.Calls) != 6 {
			c.Errorf("run %s ended %s with %d calls: %v", run.ID, run.State, len(run.Calls), run.Error)
			continue
		}
		kinds := map[string]string{}
		for _, p := range list.Approvals {
			if p.State != store.ApprovalDecided || p.Decision == nil {
				c.Errorf("approval %s of an ended run is %s", p.ID, p.State)
				continue
			}
			if want := c.acked[p.ID]; want != "" && want != p.Decision.Kind {
				c.Errorf("approval %s: %s was acknowledged, %s is stored", p.ID, want, p.Decision.Kind)
			}
			kinds[p.CallID] = p.Decision.Kind
		}
		results := c.events(run.ID)
		for _, call := range run.Calls {
			if results[call.ID] != 1 {
				c.Errorf("call %s has %d results in the log", call.ID, results[call.ID])
			}
			if call.Tool == "task" {
				if string(call.Result) != `"counted"` || kinds[call.ID] != "" {
					c.Errorf("task %s: result %s, error %v, decided %q", call.ID, call.Result, call.Error, kinds[call.ID])
				}
				continue
			}
			switch kinds[call.ID] {
			case "approve":
				if string(call.Result) != `{"version":1}` || call.Error != nil || lines[call.ID] < 1 {
					c.Errorf("approved call %s: result %s, error %v, counted %d times", call.ID, call.Result, call.Error, lines[call.ID])
				}
				c.counted[call.ID] = lines[call.ID]
			case "reject":
				if call.Result != nil || call.Error == nil || call.Error.Code != "rejected" {
					c.Errorf("rejected call %s: result %s, error %v", call.ID, call.Result, call.Error)
				}
				c.rejected[call.ID] = true
			default:
				c.Errorf("call %s was decided %q", call.ID, kinds[call.ID])
			}
		}
	}
	for id := range c.rejected {
		if lines[id] > 0 {
			c.Errorf("rejected call %s ran %d times", id, lines[id])
		}
	}
	for id, n := range c.counted {
		if lines[id] != n {
			c.Errorf("call %s ran again after its result was committed: %d times, then %d", id, n, lines[id])
		}
	}
}

// lines counts the ids in the tool's file.
func (c *crash) lines() map[string]int {
	raw, err := os.ReadFile(c.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.Fatal(err)
	}
	n := map[string]int{}
	for id := range strings.FieldsSeq(string(raw)) {
		n[id]++
	}
	return n
}

// events counts the results of each call in a run's log, and checks that the log is whole.
func (c *crash) events(run string) map[string]int {
	results := map[string]int{}
	next, last := uint64(1), ""
	err := c.admin.events(c.Context(), run, func(e event) error {
		if e.Seq != next || last == "run.finished" {
			return fmt.Errorf("event %d (%s) after %d (%s)", e.Seq, e.Type, next-1, last)
		}
		next, last = next+1, e.Type
		if e.Type == "call.finished" {
			results[e.CallID]++
		}
		return nil
	})
	if err != nil {
		c.Errorf("the events of %s: %v", run, err)
	}
	return results
}

// checkChain: what the audit has now follows what it had before the last kill, so nothing that was shown is gone or another.
func (c *crash) checkChain() {
	head, err := c.admin.AuditHead(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	before := c.audit.Extent().Last
	for line, err := range c.admin.AuditExport(c.Context(), client.AuditFilter{After: strconv.FormatUint(before, 10)}) {
		if err != nil {
			c.Fatal(err)
		}
		if fault := c.audit.Row(line); fault != nil {
			c.Error(fault)
		}
	}
	if last := c.audit.Extent().Last; last < head.Seq { // a host killed before anything was decided has added no row
		c.Errorf("the audit went from row %d to %d, its head is %d", before, last, head.Seq)
	}
}

// checkAudit: each decision has exactly one row.
func (c *crash) checkAudit() {
	rows := map[string]int{}
	err := c.admin.pages(c.Context(), "/v1/audit", url.Values{"action": {"approval.decide"}, "limit": {"200"}}, func(raw json.RawMessage) error {
		var page struct{ Rows []host.AuditRow }
		err := json.Unmarshal(raw, &page)
		for _, r := range page.Rows {
			if r.Outcome == "ok" {
				rows[r.TargetID]++
			}
		}
		return err
	})
	if err != nil {
		c.Fatal(err)
	}
	for id := range c.acked {
		if rows[id] != 1 {
			c.Errorf("the decision of %s has %d audit rows", id, rows[id])
		}
	}
}

// checkStore: the tool's own keys say the same as the results.
func (c *crash) checkStore() {
	db, err := openStore(c.child.data, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		c.Fatal(err)
	}
	defer db.Close()
	for id := range c.counted {
		if kv, err := readKV(c.Context(), db, "demo", "counter", id); err != nil || kv.Version != 1 {
			c.Errorf("approved call %s left version %d: %v", id, kv.Version, err)
		}
	}
	for id := range c.rejected {
		if _, err := readKV(c.Context(), db, "demo", "counter", id); !errors.Is(err, store.ErrNotFound) {
			c.Errorf("rejected call %s left something: %v", id, err)
		}
	}
}

func (c *crash) reruns() int {
	n := 0
	for _, k := range c.counted {
		n += k - 1
	}
	return n
}
