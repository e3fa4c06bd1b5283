package policy

import (
	"context"
	"encoding/json"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newEngine makes an engine with people's modules, given as file name and text in turn.
func newEngine(t testing.TB, files ...string) *Engine {
	t.Helper()
	return newEngineWith(t, Options{Deadline: 5 * time.Second}, files...)
}

func newEngineWith(t testing.TB, o Options, files ...string) *Engine {
	t.Helper()
	if len(files) > 0 {
		o.Rules = folder(files...)
	}
	e, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func folder(files ...string) fstest.MapFS {
	rules := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		rules[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return rules
}

func compileOn(t testing.TB, e *Engine, interruptOn string) *Interrupts {
	t.Helper()
	on, err := e.Compile(json.RawMessage(interruptOn))
	if err != nil {
		t.Fatalf("Compile(%s): %v", interruptOn, err)
	}
	return on
}

// input is a whole input for one call.
func input(tool, arguments string) *Input {
	return &Input{
		Tenant:    "demo",
		Principal: Principal{ID: "member", Kind: "user", Roles: []string{"member"}},
		Subject:   "member",
		Agent:     Agent{Name: "scribe", Version: 3},
		Run:       Run{ID: "run_1", CreatedBy: "member", SessionID: "s1"},
		Turn:      2,
		Time:      time.Date(2026, 11, 29, 9, 30, 0, 123_000_000, time.UTC),
		Call: &Call{
			Tool: tool, Plugin: "files", Name: tool, Digest: "sha256:00", Effects: "write",
			ToolCallID: "c1", Arguments: json.RawMessage(arguments),
		},
		Untrusted: Untrusted{ToolContext: json.RawMessage(`{"budget":5}`)},
		History:   History{Calls: 4, Approved: 2, Rejected: 1},
	}
}
