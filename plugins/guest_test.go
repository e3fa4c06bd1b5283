package plugins

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var smallLimits = Limits{MemoryPages: 64, WallTime: time.Second}

func TestInvariant11_HostileCoreGuestsEndWithinTheirLimitsAndTheNextCallWorks(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools, `"permissions":{"kv":"rw"}`), smallLimits)
	for _, c := range []struct{ tool, code, message string }{
		{"loop", CodeTimeout, "within 1s"},
		{"oploop", CodeTimeout, "within 1s"},
		{"trap", CodeCrashed, "unreachable"},
		{"div", CodeCrashed, "integer divide by zero"},
		{"grow", CodeLimit, "ran out of memory; its limit is 4096 KiB"},
		{"nothing", CodeToolError, "without a result"},
		{"status", CodeToolError, "pawl_call returned 42"},
		{"badutf8", CodeToolError, "not I-JSON"},
		{"nul", CodeToolError, "not I-JSON"},
		{"fail", CodeToolError, "no such order"},
	} {
		within(t, 10*time.Second, func() { wantFailure(t, call(t, s, c.tool, `{}`), c.code, c.message) })
		r := call(t, s, "echo", `{"after":"`+c.tool+`"}`)
		if r.Failure != nil || !strings.Contains(string(r.Output), c.tool) {
			t.Fatalf("after %s: %s %+v", c.tool, r.Output, r.Failure)
		}
	}
}

func TestEndlessRecursionEndsAtTheStacksLimit(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools), Limits{WallTime: time.Minute})
	wantFailure(t, call(t, s, "deep", `{}`), CodeCrashed, "stack overflow")
	wantOutput(t, call(t, s, "once", `{}`), `true`)
}

func TestGrowingMemoryIsRefusedAtTheLimitAndTheGuestMayGoOn(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools), smallLimits)
	wantOutput(t, call(t, s, "growquiet", `{}`), `true`)
	wantOutput(t, call(t, s, "grow4g", `{}`), `"refused"`)
}

func TestManifestLowersLimitsAndNeverRaisesThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limits string
		wall   time.Duration
		pages  uint32
	}{
		{`{}`, time.Second, 64},
		{`{"timeout_ms":500,"memory_bytes":3145728}`, 500 * time.Millisecond, 48},
		{`{"timeout_ms":999999,"memory_bytes":999999999999}`, time.Second, 64},
	} {
		s := openGuest(t, "core", manifestOf(2, coreTools, `"limits":`+c.limits), smallLimits)
		l := tool(t, s, "loop").Limits
		if l.WallTime != c.wall || l.MemoryPages != c.pages {
			t.Errorf("%s: %s and %d pages", c.limits, l.WallTime, l.MemoryPages)
		}
		wantFailure(t, call(t, s, "loop", `{}`), CodeTimeout, c.wall.String())
		wantFailure(t, call(t, s, "grow", `{}`), CodeLimit, fmt.Sprintf("%d KiB", c.pages*64))
	}
}

func TestFailEndsTheCallWhateverElseTheGuestSays(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools), Limits{})
	f := call(t, s, "fail", `{}`).Failure
	if f == nil || *f != (Failure{CodeToolError, "no such order", "not_found", true}) {
		t.Fatalf("%+v", f)
	}
}

func TestBadPointersAreAnswersAndNotTraps(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools), Limits{})
	wantOutput(t, call(t, s, "edges", `{}`), `"ok"`)
}

func TestPauseEndsTheGuestAtOnceAndKeepsTheWritesBeforeIt(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools, `"permissions":{"kv":"rw"}`), Limits{})
	r := call(t, s, "pause", `{}`)
	if r.Failure != nil || r.Output != nil || r.Pause == nil {
		t.Fatalf("%+v", r)
	}
	if r.Pause.Reason != "approval_required" || string(r.Pause.Payload) != `{"approval_key":"k"}` {
		t.Errorf("%+v %s", r.Pause, r.Pause.Payload)
	}
	if len(r.Writes) != 1 || r.Writes[0].Key != "before" {
		t.Errorf("writes %v", r.Writes)
	}
}

func TestInvariant10_NoByteOfOneCallIsVisibleToTheNext(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools), Limits{})
	for range 200 {
		wantOutput(t, call(t, s, "once", `{}`), `true`)
	}
}

func TestCancelledByTheHost(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools), Limits{})
	ctx, cancel := context.WithCancel(context.Background())
	started := make(chan struct{})
	go func() { <-started; cancel() }()
	r := s.Call(ctx, Call{Tool: tool(t, s, "loop"), Arguments: json.RawMessage(`{}`), KV: KV{
		Get: func(context.Context, string) (KVItem, error) { return KVItem{}, nil }},
		Progress: func(json.RawMessage) {}, RunID: func() string { close(started); return "r" }()})
	wantFailure(t, r, CodeCancelled, "cancelled")
	wantFailure(t, s.Call(ctx, Call{Tool: tool(t, s, "echo")}), CodeCancelled, "cancelled")
	deadline, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	wantFailure(t, s.Call(deadline, Call{Tool: tool(t, s, "loop")}), CodeTimeout, "")
}

func TestParallelCallsOfOneToolKeepApart(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools), Limits{})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			want := fmt.Sprintf(`"n":%d`, i)
			r := s.Call(context.Background(), Call{Tool: tool(t, s, "echo"), CallID: fmt.Sprint(i), Arguments: json.RawMessage("{" + want + "}")})
			if r.Failure != nil || !strings.Contains(string(r.Output), want+"}") || !strings.Contains(string(r.Output), fmt.Sprintf(`"call_id":"%d"`, i)) {
				t.Errorf("%s: %s %+v", want, r.Output, r.Failure)
			}
		})
	}
	wg.Wait()
}

func TestInvariant11_TenThousandCallsDoNotGrowTheHost(t *testing.T) {
	if testing.Short() {
		t.Skip("ten thousand calls; run without -short")
	}
	s := openGuest(t, "core", manifestOf(2, coreTools), smallLimits)
	run := func(n int) (heap, rss uint64) {
		for i := range n {
			name, code := "echo", ""
			switch i % 10 {
			case 3:
				name, code = "trap", CodeCrashed
			case 7:
				name, code = "pause", ""
			}
			if r := call(t, s, name, `{}`); (r.Failure != nil) != (code != "") {
				t.Fatalf("%s: %+v", name, r)
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if b, err := os.ReadFile("/proc/self/statm"); err == nil {
			fmt.Sscan(string(b), new(uint64), &rss)
		}
		return m.HeapAlloc, rss * uint64(os.Getpagesize())
	}
	before, rssBefore := run(1000)
	after, rssAfter := run(10_000)
	if after > before+before/10+4<<20 {
		t.Errorf("the heap went from %d to %d KiB", before>>10, after>>10)
	}
	if rssAfter > rssBefore+rssBefore/10+16<<20 {
		t.Errorf("resident memory went from %d to %d KiB", rssBefore>>10, rssAfter>>10)
	}
	if n := runtime.NumGoroutine(); n > 50 {
		t.Errorf("%d goroutines", n)
	}
}

func TestCloseWaitsForCallsAndRefusesNewOnes(t *testing.T) {
	t.Parallel()
	s, err := Open(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	in, out := make(chan struct{}), make(chan struct{})
	if err := s.AddFunc(Manifest{Name: "f", Tools: []ToolSpec{{Name: "wait", Description: "x", InputSchema: json.RawMessage(`{"type":"object"}`)}}},
		func(ctx context.Context, c *Session) error {
			close(in)
			<-out
			c.Dispatch(ctx, "output", []byte("1"))
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	res := make(chan *Result, 1)
	tl := tool(t, s, "wait")
	go func() { res <- s.Call(context.Background(), Call{Tool: tl}) }()
	<-in
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Close(ctx); err == nil {
		t.Error("Close with an ended context did not say that calls still run")
	}
	wantFailure(t, s.Call(context.Background(), Call{Tool: tl}), CodeCancelled, "shutting down")
	close(out)
	wantOutput(t, <-res, `1`)
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestDeadlineSelfCheck(t *testing.T) {
	t.Parallel()
	if err := deadlineWorks(); err != nil {
		t.Fatal(err)
	}
}
