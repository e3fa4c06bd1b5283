package host_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// errPower is what a store says that lost its power.
var errPower = fmt.Errorf("%w: power lost", store.ErrClosed)

// mortal is a store that dies after some number of commits: the next one has no effect, as for a process killed before it.
type mortal struct {
	store.Store
	mu   sync.Mutex
	left int
	dead chan struct{}
}

func newMortal(s store.Store, commits int) *mortal {
	return &mortal{Store: s, left: commits, dead: make(chan struct{})}
}

func (m *mortal) Commit(ctx context.Context, c *store.Change) (store.Receipt, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == 0 {
		select {
		case <-m.dead:
		default:
			close(m.dead)
		}
		return store.Receipt{}, errPower
	}
	m.left--
	return m.Store.Commit(ctx, c)
}

// TestInvariants2And3_AtEveryCommit kills the host after each commit of a run that stops, is decided, calls tools in two batches
// and ends; a new host takes over. However often and wherever it dies, each call has one result and its write happened once.
// Public failure DX12.
func TestInvariants2And3_AtEveryCommit(t *testing.T) {
	t.Parallel()
	const script = `[{"calls":[
		{"tool_call_id":"w1","tool":"write_file","arguments":{"path":"/memories/a","content":"1"}},
		{"tool_call_id":"no","tool":"write_file","arguments":{"path":"/memories/b","content":"2"}},
		{"tool_call_id":"w2","tool":"edit_file","arguments":{"path":"/memories/a","old":"1","new":"1+1"}}]},
		{"calls":[{"tool_call_id":"r1","tool":"read_file","arguments":{"path":"/memories/a"}},{"tool_call_id":"r2","tool":"read_echo","arguments":{"x":1}}]},
		{"calls":[{"tool_call_id":"p","tool":"gated_write","arguments":{}}]},
		{"final":"done"}]`
	ended := false
	// One commit a life is spent on the claim: two are the least that can make progress.
	for commits := 2; !ended; commits++ {
		if commits > 60 {
			t.Fatal("the run never ends")
		}
		func() {
			st := memstore.New()
			defer st.Close()
			h := hosttest.New(t, hosttest.Options{Store: st, Idle: true})
			h.Script("ops", script, "")
			var r host.Run
			// Each life of the host ends after `commits` commits; a life that lasts until the end of the run is the last.
			for life := 0; ; life++ {
				if life > 60 {
					t.Fatalf("after %d commits a life the run makes no progress: %s", commits, r.State)
				}
				m := newMortal(st, commits)
				h = hosttest.New(t, hosttest.Options{Store: m})
				alive := live(t, h, m, &r)
				h.Stop()
				if alive {
					ended = life == 0
					break
				}
			}
			checkCrashed(t, h, r, commits)
		}()
	}
}

// live takes the run to its end, deciding its pauses; false when the store died.
func live(t *testing.T, h *hosttest.Host, m *mortal, r *host.Run) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		select {
		case <-m.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	if r.ID == "" {
		v, err := h.CreateRun(ctx, hosttest.Member, host.Idempotency{Key: "once"}, hosttest.Body(host.NewRun{Agent: "ops"}))
		if err != nil {
			return false
		}
		*r = v
	}
	for {
		v, err := h.WaitRun(ctx, hosttest.Owner, r.ID)
		if err != nil || ctx.Err() != nil {
			return false
		}
		*r = v
		if v.State.Ended() {
			return true
		}
		var ds []host.Decision
		for _, a := range v.Pause.Approvals {
			kind := "approve"
			if a.ToolCallID == "no" {
				kind = "reject"
			}
			ds = append(ds, host.Decision{ApprovalID: a.ID, Kind: kind})
		}
		if _, err := h.Decide(ctx, hosttest.Admin, r.ID, host.Idempotency{}, hosttest.Body(host.Answer{Decisions: ds})); err != nil {
			return false
		}
	}
}

func checkCrashed(t *testing.T, h *hosttest.Host, r host.Run, commits int) {
	t.Helper()
	if r.State != store.RunSucceeded {
		t.Fatalf("%d commits a life: the run ended %s: %+v", commits, r.State, r.Error)
	}
	results := map[string]int{}
	for _, e := range h.Events(r.ID) {
		if e["type"] == "call.finished" {
			results[fmt.Sprint(e["call_id"])]++
		}
	}
	for _, c := range r.Calls {
		if c.State != store.CallFinished || results[c.ID] != 1 {
			t.Errorf("%d commits a life: call %s is %s with %d results", commits, c.ToolCallID, c.State, results[c.ID])
		}
		if (c.ToolCallID == "no") != (c.Error != nil) {
			t.Errorf("%d commits a life: call %s ended with %+v", commits, c.ToolCallID, c.Error)
		}
	}
	if len(r.Calls) != 7 { // the gated write is proposed again after its pause
		t.Errorf("%d commits a life: %d calls", commits, len(r.Calls))
	}
	if got := string(r.Calls[3].Result); got != `{"content":"1+1"}` {
		t.Errorf("%d commits a life: the file reads %s", commits, got)
	}
	var versions []uint64
	err := h.Store.View(context.Background(), func(rd store.Reader) error {
		for _, path := range []string{"/memories/a", "/memories/b"} {
			var v store.KV
			it, err := rd.Get(store.K("t", "demo", "kv", "test", path))
			if err == nil {
				err = store.Decode(it.Value, &v)
			}
			if err != nil && path == "/memories/a" {
				return err
			}
			versions = append(versions, v.Version)
		}
		return nil
	})
	if err != nil || versions[0] != 2 || versions[1] != 0 {
		t.Errorf("%d commits a life: file versions %v, want the write and the edit once each and nothing rejected (%v)", commits, versions, err)
	}
}

// A host that is told to stop ends guests that do not; their calls run again at the next start, from their start.
func TestStop_InterruptsAGuestAndTheNextBootRunsItAgain(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	started := make(chan struct{}, 1)
	block := true
	tools := map[string]hosttest.Func{"slow": func(ctx context.Context, s *plugins.Session) error {
		if block {
			started <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		_, err := hosttest.Op(ctx, s, "output", "done")
		return err
	}}
	h := hosttest.New(t, hosttest.Options{Store: st, Tools: tools, Config: func(c *host.Config) { c.Grace = 1 }})
	h.Script("slow", `[{"calls":[{"tool":"slow","arguments":{}}]},{"final":1}]`, "")
	r := h.Create(hosttest.Member, "slow")
	<-started
	h.Stop()
	if v, _ := h.GetRun(t.Context(), hosttest.Owner, r.ID); v.State != store.RunRunning || v.Calls[0].State != store.CallStarted {
		t.Fatalf("after the stop the run is %s, its call %s", v.State, v.Calls[0].State)
	}
	block = false
	h2 := hosttest.New(t, hosttest.Options{Store: st, Tools: tools})
	if v := h2.Settled(r.ID); v.State != store.RunSucceeded || string(v.Calls[0].Result) != `"done"` {
		t.Fatalf("the next boot left it %s: %+v", v.State, v.Calls)
	}
}
