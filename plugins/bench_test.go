package plugins

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"testing/fstest"
)

// Budgets are in section 11 of the design. Run: go test -run xxx -bench . ./plugins

func benchCall(b *testing.B, s *Set, name, args string) {
	b.Helper()
	c := Call{Tool: tool(b, s, name), RunID: "run_0198", CallID: "call_0198", Arguments: json.RawMessage(args)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// A host's heap holds caches of the store; with the four megabytes of an empty process the collector runs every
	// 250 calls and costs as much as they do.
	ballast := make([]byte, 64<<20)
	b.ReportAllocs()
	for b.Loop() {
		if r := s.Call(ctx, c); r.Failure != nil {
			b.Fatal(r.Failure)
		}
	}
	runtime.KeepAlive(ballast)
}

// BenchmarkPristineCallOfC is one call of a small C tool, instance included. Budget: 15 µs.
func BenchmarkPristineCallOfC(b *testing.B) {
	s := openGuest(b, "core_small", manifestOf(2, "echo"), Limits{})
	benchCall(b, s, "echo", `{"path":"/memories/AGENTS.md","content":"hi"}`)
}

// BenchmarkPristineCallOfCommand is the same as a WASI command in C.
func BenchmarkPristineCallOfCommand(b *testing.B) {
	s := openGuest(b, "cmd", manifestOf(0, "echo"), Limits{})
	benchCall(b, s, "echo", `{"path":"/memories/AGENTS.md","content":"hi"}`)
}

// goGuest builds the Go command once.
func goGuest(b testing.TB) []byte {
	b.Helper()
	out := filepath.Join(b.TempDir(), "gohello.wasm")
	c := exec.Command("go", "build", "-trimpath", "-o", out, "./testdata/src/gohello")
	c.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if msg, err := c.CombinedOutput(); err != nil {
		b.Skipf("needs the go command: %v: %s", err, msg)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		b.Fatal(err)
	}
	return wasm
}

// BenchmarkPristineCallOfGo is one call of a 3 MB Go command.
func BenchmarkPristineCallOfGo(b *testing.B) {
	s := openSet(b, Options{Bundled: fstest.MapFS{"gohello.wasm": {Data: goGuest(b)}, "gohello.json": {Data: []byte(manifestOf(0, "hello"))}}})
	if sk := s.Skipped(); len(sk) > 0 {
		b.Fatal(sk)
	}
	benchCall(b, s, "hello", `{"name":"pawl"}`)
}

// BenchmarkOpenGo is the start of a host with a Go guest: compiled, and from the cache.
func BenchmarkOpenGo(b *testing.B) {
	wasm := goGuest(b)
	dir := filepath.Join(b.TempDir(), "cache")
	once := func(b *testing.B, cache string) {
		s, err := Open(context.Background(), Options{CacheDir: cache, Bundled: fstest.MapFS{
			"gohello.wasm": {Data: wasm}, "gohello.json": {Data: []byte(manifestOf(0, "hello"))}}})
		if err != nil || len(s.Skipped()) > 0 {
			b.Fatal(err, s.Skipped())
		}
		_ = s.Close(context.Background())
	}
	b.Run("compiled", func(b *testing.B) {
		for b.Loop() {
			once(b, "")
		}
	})
	b.Run("cached", func(b *testing.B) {
		once(b, dir)
		for b.Loop() {
			once(b, dir)
		}
	})
}

// BenchmarkGoFunction is the dispatcher alone.
func BenchmarkGoFunction(b *testing.B) {
	s, _ := funcSet(b, "none", "", Limits{}, func(ctx context.Context, c *Session) error {
		c.Dispatch(ctx, "output", c.Dispatch(ctx, "input", nil))
		return nil
	})
	benchCall(b, s, "f", `{"path":"/memories/AGENTS.md","content":"hi"}`)
}
