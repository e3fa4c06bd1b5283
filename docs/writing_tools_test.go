package docs_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/plugins"
)

// blocks are the fenced pieces of a document, by language, in order.
func blocks(t *testing.T, file string) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for i, part := range strings.Split(string(raw), "```") {
		if i%2 == 1 {
			lang, text, _ := strings.Cut(part, "\n")
			found[lang] = append(found[lang], text)
		}
	}
	return found
}

// build compiles a Go program of the document as the document says.
func build(t *testing.T, source, out string, flags ...string) {
	t.Helper()
	// Inside the module, since one of the programs imports the SDK; "_" hides it from ./... .
	dir, err := os.MkdirTemp(".", "_build-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	write(t, filepath.Join(dir, "main.go"), source)
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-ldflags=-s -w", "-o", out}, append(flags, "./"+dir)...)...)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A reader who copies the document's programs gets what it promises.
func TestProgramsOfWritingToolsWork(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles three Go programs to WebAssembly, a minute under the race detector; run without -short")
	}
	found := blocks(t, "writing-tools.md")
	if len(found["go"]) != 3 || len(found["json"]) != 3 || len(found["c"]) != 1 {
		t.Fatalf("%d Go programs, %d manifests, %d C programs; this test knows 3, 3 and 1", len(found["go"]), len(found["json"]), len(found["c"]))
	}
	dir := t.TempDir()
	build(t, found["go"][0], filepath.Join(dir, "shout.wasm"))
	write(t, filepath.Join(dir, "shout.json"), found["json"][0])
	build(t, found["go"][1], filepath.Join(dir, "count.wasm"))
	write(t, filepath.Join(dir, "count.json"), found["json"][1])
	build(t, found["go"][2], filepath.Join(dir, "memory.wasm"), "-buildmode=c-shared")
	want := map[string]string{"shout": `"HELLO"`, "count": `42`, "forget": ""}
	if _, err := exec.LookPath("clang-14"); err == nil {
		source := filepath.Join(dir, "loud.c")
		write(t, source, found["c"][0])
		manifest := filepath.Join(t.TempDir(), "manifest.json")
		write(t, manifest, found["json"][2])
		if text, err := exec.CommandContext(t.Context(), "../sdk/guest/c/build.sh", "core", filepath.Join(dir, "loud.wasm"), source, manifest).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		want["loud"] = `"HELLO"`
	}
	set, err := plugins.Open(t.Context(), plugins.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(context.Background())
	arguments := map[string]string{"shout": `{"text":"hello"}`, "loud": `{"text":"hello"}`, "count": `{}`, "forget": `{"key":"n"}`}
	kv := plugins.KV{Get: func(context.Context, string) (plugins.KVItem, error) {
		return plugins.KVItem{Value: []byte("41"), Version: 1, Found: true, Token: 1}, nil
	}}
	for name, result := range want {
		tool, ok := set.Lookup(name)
		if !ok {
			t.Errorf("%s was not loaded: %v", name, set.Skipped())
			continue
		}
		r := set.Call(t.Context(), plugins.Call{Tool: tool, Arguments: json.RawMessage(arguments[name]), KV: kv})
		switch {
		case name == "forget":
			if r.Pause == nil || !strings.Contains(string(r.Pause.Payload), "Forget n?") {
				t.Errorf("forget: %+v, %+v; want a pause", r.Pause, r.Failure)
			}
			r = set.Call(t.Context(), plugins.Call{Tool: tool, Arguments: json.RawMessage(arguments[name]),
				Approvals: json.RawMessage(`{"forget n":true}`), KV: kv})
			if string(r.Output) != "true" || len(r.Writes) != 1 || !r.Writes[0].Deleted {
				t.Errorf("forget, approved: %s, %+v, writes %v", r.Output, r.Failure, r.Writes)
			}
		case r.Failure != nil || string(r.Output) != result:
			t.Errorf("%s: %s, %+v; want %s", name, r.Output, r.Failure, result)
		}
	}
}
