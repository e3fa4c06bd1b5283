//go:build !race

package plugins

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/fstest"
)

// TestGoCommand runs a plain Go program as a tool, many at once. Not under the race detector: compiling it takes 20 s there.
func TestGoCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles a Go guest; run without -short")
	}
	t.Parallel()
	s := openSet(t, Options{Bundled: fstest.MapFS{"gohello.wasm": {Data: goGuest(t)}, "gohello.json": {Data: []byte(manifestOf(0, "hello"))}}})
	if sk := s.Skipped(); len(sk) > 0 {
		t.Fatal(sk)
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			r := s.Call(context.Background(), Call{Tool: tool(t, s, "hello"), CallID: fmt.Sprint(i), Arguments: json.RawMessage(fmt.Sprintf(`{"name":"%d"}`, i))})
			if want := fmt.Sprintf(`"hello %d"`, i); string(r.Output) != want {
				t.Errorf("%s %+v, want %s", r.Output, r.Failure, want)
			}
		})
	}
	wg.Wait()
}
