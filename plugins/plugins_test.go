package plugins

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("PAWL_TEST_FILL_CACHE"); dir != "" {
		os.Exit(fillCache(dir))
	}
	goleak.VerifyTestMain(m)
}

// module reads a built guest.
func guestBytes(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/wasm/" + name + ".wasm")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// manifest declares tools of any arguments. extra is more members, like `"limits":{…}`.
func manifestOf(level int, tools string, extra ...string) string {
	var list []string
	for _, name := range strings.Fields(tools) {
		list = append(list, fmt.Sprintf(`{"name":%q,"description":"a test","input_schema":{"type":"object"}}`, name))
	}
	return fmt.Sprintf(`{"abi":1,"level":%d,"tools":[%s]%s}`, level, strings.Join(list, ","),
		strings.Join(append([]string{""}, extra...), ","))
}

const coreTools = "echo op loop oploop trap div deep grow growquiet grow4g nothing status badutf8 nul fail pause once edges"

// openSet opens a set and closes it with the test.
func openSet(t testing.TB, o Options) *Set {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// openGuest opens one guest under a manifest.
func openGuest(t testing.TB, name, manifest string, lim Limits) *Set {
	t.Helper()
	s := openSet(t, Options{Limits: lim, Bundled: fstest.MapFS{
		name + ".wasm": {Data: guestBytes(t, name)}, name + ".json": {Data: []byte(manifest)}}})
	if sk := s.Skipped(); len(sk) > 0 {
		t.Fatalf("skipped: %v", sk)
	}
	return s
}

func tool(t testing.TB, s *Set, name string) *Tool {
	t.Helper()
	tl, ok := s.Lookup(name)
	if !ok {
		t.Fatalf("no tool %q", name)
	}
	return tl
}

// call runs one call against an empty store.
func call(t testing.TB, s *Set, name, args string) *Result {
	t.Helper()
	return s.Call(context.Background(), Call{Tool: tool(t, s, name), RunID: "run_1", CallID: "call_1",
		Arguments: json.RawMessage(args), KV: (&memKV{}).view()})
}

// op does one operation in the core guest and gives its answer.
func op(t testing.TB, s *Set, name, req string) string {
	t.Helper()
	r := call(t, s, "op", fmt.Sprintf(`{"op":%q,"req":%q}`, name, strings.ReplaceAll(req, `"`, `'`)))
	if r.Failure != nil {
		t.Fatalf("%s %s: %+v", name, req, r.Failure)
	}
	return string(r.Output)
}

func wantFailure(t testing.TB, r *Result, code, message string) {
	t.Helper()
	switch {
	case r.Failure == nil:
		t.Fatalf("want %s, got output %s, pause %v", code, r.Output, r.Pause)
	case r.Failure.Code != code || !strings.Contains(r.Failure.Message, message):
		t.Fatalf("want %s with %q, got %s: %s", code, message, r.Failure.Code, r.Failure.Message)
	case r.Output != nil || r.Pause != nil || r.Writes != nil:
		t.Fatalf("a failure with output %s, pause %v, writes %v", r.Output, r.Pause, r.Writes)
	}
}

func wantOutput(t testing.TB, r *Result, want string) {
	t.Helper()
	if r.Failure != nil {
		t.Fatalf("want %s, got %s: %s", want, r.Failure.Code, r.Failure.Message)
	}
	if string(r.Output) != want {
		t.Fatalf("want %s, got %s", want, r.Output)
	}
}

// memKV is committed state: a store's part in these tests.
type memKV struct {
	mu    sync.Mutex
	items map[string]KVItem
	token uint64
	pages int // List calls
}

func (m *memKV) view() KV {
	return KV{
		Get: func(_ context.Context, key string) (KVItem, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.items[key], nil
		},
		List: func(_ context.Context, prefix, after string, limit int) ([]string, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.pages++
			var keys []string
			for k, it := range m.items {
				if it.Found && strings.HasPrefix(k, prefix) && k > after {
					keys = append(keys, k)
				}
			}
			slices.Sort(keys)
			return keys[:min(limit, len(keys))], nil
		},
	}
}

// commit checks a result's preconditions and applies its writes, as the host does.
func (m *memKV) commit(r *Result) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, token := range r.Reads {
		if m.items[k].Token != token {
			return fmt.Errorf("%s is at token %d, not %d", k, m.items[k].Token, token)
		}
	}
	if m.items == nil {
		m.items = map[string]KVItem{}
	}
	for _, w := range r.Writes {
		m.token++
		m.items[w.Key] = KVItem{Value: w.Value, Version: w.Version, Found: !w.Deleted, Token: m.token}
	}
	return nil
}

// within fails the test when f takes longer than d: a guest that was not stopped.
func within(t testing.TB, d time.Duration, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if took := time.Since(start); took > d {
		t.Fatalf("it took %s, more than %s", took, d)
	}
}
