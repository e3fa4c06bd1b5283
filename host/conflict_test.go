package host_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// Two edits of one file in one batch, and many runs that edit the same file at once: no update is lost.
func TestNoLostUpdate(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("seed", `[{"calls":[
		{"tool_call_id":"w","tool":"write_file","arguments":{"path":"/notes/n","content":"[]"}},
		{"tool_call_id":"e1","tool":"edit_file","arguments":{"path":"/notes/n","old":"]","new":"a]"}},
		{"tool_call_id":"e2","tool":"edit_file","arguments":{"path":"/notes/n","old":"]","new":"b]"}}]},{"final":1}]`, "")
	if r := h.Settled(h.Create(hosttest.Member, "seed").ID); r.State != store.RunSucceeded {
		t.Fatalf("%s: %+v", r.State, r.Error)
	}
	h.Script("add", `[{"calls":[{"tool":"edit_file","arguments":{"path":"/notes/n","old":"]","new":"x]"}}]},{"final":1}]`, "")
	const runs = 40
	var wg sync.WaitGroup
	for range runs {
		wg.Go(func() {
			r, err := h.CreateRun(context.Background(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "add"}))
			if err != nil {
				t.Error(err)
				return
			}
			v, err := h.WaitRun(context.Background(), hosttest.Owner, r.ID)
			if err != nil || v.Calls[0].Error != nil {
				t.Errorf("%v: %+v", err, v.Calls)
			}
		})
	}
	wg.Wait()
	h.Script("read", `[{"calls":[{"tool":"read_file","arguments":{"path":"/notes/n"}}]},{"final":1}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "read").ID)
	if want := fmt.Sprintf(`{"content":"[ab%s]"}`, strings.Repeat("x", runs)); string(r.Calls[0].Result) != want {
		t.Errorf("the file reads %s, want %s", r.Calls[0].Result, want)
	}
}

// descriptors counts the open files of the process, 0 where the system does not tell.
func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// 10,000 paused runs hold no goroutine, no worker, no guest and no descriptor; each can still be decided. They lie in the embedded
// store.
func TestPausedRunsHoldNothing(t *testing.T) {
	t.Parallel()
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	st, err := badgerstore.Open(t.TempDir(), badgerstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	h := hosttest.New(t, hosttest.Options{Store: st})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"final":1}]`, `{"transfer":true}`)
	h.Create(hosttest.Member, "pay")
	before, files := runtime.NumGoroutine(), descriptors()
	var next atomic.Int64
	var wg sync.WaitGroup
	var first, last host.Run
	for range 64 { // together: the store folds their commits
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				r, err := h.CreateRun(context.Background(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "pay"}))
				if err != nil {
					t.Error(err)
					return
				}
				switch i {
				case 1:
					first = r
				case int64(n):
					last = r
				}
			}
		})
	}
	wg.Wait()
	if s := h.Stats(); s.Waiting != 0 || s.Driven != 0 {
		t.Errorf("%d runs wait for a worker and %d have one", s.Waiting, s.Driven)
	}
	// Other tests of the package start goroutines meanwhile: the bound is far below one for each run.
	if after := runtime.NumGoroutine(); after > before+n/10 {
		t.Errorf("%d goroutines before, %d with %d paused runs", before, after, n)
	}
	if now := descriptors(); now > files+n/10 {
		t.Errorf("%d descriptors before, %d with %d paused runs", files, now, n)
	}
	for _, r := range []host.Run{first, last} {
		if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
			t.Fatal(err)
		}
		if v := h.Settled(r.ID); v.State != store.RunSucceeded {
			t.Errorf("run ended %s", v.State)
		}
	}
}

// Calls of a batch that all only read run at the same time; a batch with a writer runs in call order.
func TestReadsRunInParallelWritesInOrder(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("order", `[{"calls":[{"tool":"echo","arguments":{"i":1}},{"tool":"read_echo","arguments":{"i":2}},{"tool":"echo","arguments":{"i":3}}]},
		{"calls":[{"tool":"read_echo","arguments":{"i":4}},{"tool":"read_echo","arguments":{"i":5}},{"tool":"read_echo","arguments":{"i":6}}]},{"final":1}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "order").ID)
	if r.State != store.RunSucceeded {
		t.Fatalf("%s: %+v", r.State, r.Error)
	}
	ran := h.Ran.All()
	if got := strings.Join(ran[:3], " "); got != `echo {"i":1} read_echo {"i":2} echo {"i":3}` {
		t.Errorf("the batch with a writer ran as %s", got)
	}
	for i, c := range r.Calls {
		if want := fmt.Sprintf(`{"i":%d}`, i+1); string(c.Result) != want || c.Index != i%3 {
			t.Errorf("call %d: result %s index %d", i+1, c.Result, c.Index)
		}
	}
}
