package badgerstore_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// TestManyPausedRuns loads as many paused runs as PAWL_PAUSED_RUNS says (a million takes minutes), and reports the anonymous
// memory while loading, the disk per run, and the time to open after a kill and to read one run.
func TestManyPausedRuns(t *testing.T) {
	runs, err := strconv.Atoi(os.Getenv("PAWL_PAUSED_RUNS"))
	if err != nil {
		t.Skip("set PAWL_PAUSED_RUNS to the number of runs to load")
	}
	// Badger keeps the largest buffers of its table builders, and the collector would let the heap grow to twice what
	// lives: without a limit on the process 2 GiB were seen. The command sets one, and so does this test.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(640 << 20))
	dir := t.TempDir()
	s := open(t, dir, badgerstore.Options{})
	var next atomic.Int64
	var peak int64
	began := time.Now()
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(runs); i = next.Add(1) {
				if _, err := s.Commit(context.Background(), pausedRun(int(i))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-tick.C:
			peak = max(peak, anonymous(t))
			continue
		case <-done:
			tick.Stop()
		}
		break
	}
	took := time.Since(began)
	t.Logf("%d runs in %v (%.0f a second), peak anonymous memory %d MiB", runs, took.Round(time.Second),
		float64(runs)/took.Seconds(), peak>>20)
	if peak > 1<<30 {
		t.Errorf("peak anonymous memory %d MiB, budget 1024", peak>>20)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var disk int64
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".sst") {
			disk += info.Size()
		}
	}
	t.Logf("%d bytes of tables a run", disk/int64(runs))
	began = time.Now()
	s = open(t, dir, badgerstore.Options{})
	defer s.Close()
	t.Logf("open after close: %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	for i := range 1000 {
		if get(t, s, store.K("tenant", "run", fmt.Sprintf("run_%08d", 1+i*(runs/1000)))) == "" {
			t.Fatal("a run is missing")
		}
	}
	t.Logf("one cold read: %v", (time.Since(began) / 1000).Round(time.Microsecond))
	runtime.GC()
	t.Logf("anonymous memory at rest: %d MiB", anonymous(t)>>20)
}

// pausedRun is what a run at rest keeps: head, messages, call, pause, approval, indexes, and three events.
func pausedRun(i int) *store.Change {
	id := fmt.Sprintf("run_%08d", i)
	run := store.K("tenant", "run", id)
	text := func(n int) []byte {
		var b strings.Builder
		for j := 0; b.Len() < n; j++ {
			fmt.Fprintf(&b, `{"id":"%s","field_%d":%d,"value":"%x"},`, id, j, i*j, uint64(i*31+j)*0x9E3779B97F4A7C15)
		}
		return []byte(b.String()[:n])
	}
	c := &store.Change{}
	c.Require(run, 0)
	c.Put(run, text(800))
	c.Put(run.With("frame", 0), text(300))
	c.Put(run.With("message", 0), text(500))
	c.Put(run.With("call", 0), text(600))
	c.Put(run.With("pause", 0), text(300))
	c.Put(run.With("approval", 0), text(400))
	c.Put(store.K("tenant", "pending", uint64(i), id), nil)
	c.Put(store.K("due", uint64(i), "tenant", id), nil)
	for range 3 {
		c.Append(run.With("events"), text(200))
	}
	c.Append(store.K("tenant", "queue"), text(150))
	return c
}

func anonymous(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("needs /proc to see the anonymous memory")
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}
