package plugins

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestSmoke(t *testing.T) {
	wasm, _ := os.ReadFile("testdata/wasm/core.wasm")
	var tools []string
	for _, n := range strings.Fields("echo op loop trap deep grow once edges") {
		tools = append(tools, fmt.Sprintf(`{"name":%q,"description":"x","input_schema":{"type":"object"}}`, n))
	}
	mf := `{"abi":1,"level":2,"tools":[` + strings.Join(tools, ",") + `],"permissions":{"kv":"rw"}}`
	s, err := Open(context.Background(), Options{Bundled: fstest.MapFS{"core.wasm": {Data: wasm}, "core.json": {Data: []byte(mf)}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	t.Log(s.Skipped())
	for _, tl := range s.Tools() {
		if tl.Name == "loop" {
			continue
		}
		r := s.Call(context.Background(), Call{Tool: tl, RunID: "r", CallID: "c", Arguments: json.RawMessage(`{"a":1}`)})
		t.Logf("%s %s %+v %s", tl.Name, r.Output, r.Failure, r.Active)
	}
}

func BenchmarkSmoke(b *testing.B) {
	wasm, _ := os.ReadFile("testdata/wasm/core.wasm")
	mf := `{"abi":1,"level":2,"tools":[{"name":"echo","description":"x","input_schema":{"type":"object"}}],"permissions":{"kv":"rw"}}`
	s, err := Open(context.Background(), Options{Bundled: fstest.MapFS{"core.wasm": {Data: wasm}, "core.json": {Data: []byte(mf)}}})
	if err != nil {
		b.Fatal(err)
	}
	tl, _ := s.Lookup("echo")
	b.ReportAllocs()
	for b.Loop() {
		r := s.Call(context.Background(), Call{Tool: tl, RunID: "r", CallID: "c", Arguments: json.RawMessage(`{"a":1}`)})
		if r.Failure != nil {
			b.Fatal(r.Failure)
		}
	}
}
