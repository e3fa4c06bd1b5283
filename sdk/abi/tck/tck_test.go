package tck_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/sdk/abi/tck"
)

// open loads the guests as an operator would install them.
func open(t *testing.T, guests ...tck.Guest) *plugins.Set {
	t.Helper()
	dir := t.TempDir()
	config := map[string]map[string]string{}
	for _, g := range guests {
		write(t, filepath.Join(dir, g.Name+".wasm"), g.Module)
		if g.Manifest != nil {
			write(t, filepath.Join(dir, g.Name+".json"), g.Manifest)
		}
		config[g.Name] = tck.Config
	}
	set, err := plugins.Open(t.Context(), plugins.Options{Dir: dir, Config: config, Limits: plugins.Limits{MemoryPages: 160}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, s := range set.Skipped() {
		t.Errorf("%s was not loaded: %s", s.Plugin, s.Reason)
	}
	return set
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func tool(t *testing.T, set *plugins.Set, plugin, name string) *plugins.Tool {
	t.Helper()
	for _, tl := range set.Tools() {
		if tl.Plugin == plugin && tl.Bare == name {
			return tl
		}
	}
	t.Fatalf("%s has no tool %s", plugin, name)
	return nil
}

// store is a committed KV.
func store(values map[string]string) plugins.KV {
	return plugins.KV{
		Get: func(_ context.Context, key string) (plugins.KVItem, error) {
			v, ok := values[key]
			if !ok {
				return plugins.KVItem{}, nil
			}
			return plugins.KVItem{Value: []byte(v), Version: 1, Found: true, Token: 1}, nil
		},
		List: func(_ context.Context, prefix, after string, limit int) ([]string, error) {
			keys := []string{}
			for _, key := range slices.Sorted(maps.Keys(values)) {
				if strings.HasPrefix(key, prefix) && key > after && len(keys) < limit {
					keys = append(keys, key)
				}
			}
			return keys, nil
		},
	}
}

func TestEachGuestBehavesAlikeOnItsLevel(t *testing.T) {
	t.Parallel()
	set := open(t, tck.Guests()...)
	ran := 0
	for _, c := range tck.Cases() {
		for _, g := range tck.Guests() {
			if !slices.Contains(c.Levels, g.Level) {
				continue
			}
			ran++
			t.Run(fmt.Sprintf("%s/%s", g.Name, c.Name), func(t *testing.T) {
				t.Parallel()
				r := set.Call(t.Context(), plugins.Call{
					Tool: tool(t, set, g.Name, c.Tool), RunID: "run_1", CallID: "call_1",
					Arguments: json.RawMessage(c.Arguments), Approvals: json.RawMessage(c.Approvals), KV: store(c.Before),
				})
				compare(t, c, r)
			})
		}
	}
	if ran < 80 {
		t.Errorf("only %d cases ran", ran)
	}
}

func compare(t *testing.T, c tck.Case, r *plugins.Result) {
	t.Helper()
	switch {
	case c.Failure != "":
		if r.Failure == nil || r.Failure.Code != c.Failure || r.Failure.ToolCode != c.Word || !strings.Contains(r.Failure.Message, c.Message) {
			t.Errorf("failure %+v, output %s; want %s %q %q", r.Failure, r.Output, c.Failure, c.Word, c.Message)
		}
	case c.Pause != "":
		var want plugins.Pause
		if err := json.Unmarshal([]byte(c.Pause), &want); err != nil {
			t.Fatal(err)
		}
		if r.Pause == nil || r.Pause.Reason != want.Reason || string(r.Pause.Payload) != string(want.Payload) || string(r.Pause.Schema) != string(want.Schema) || r.Output != nil {
			t.Errorf("pause %+v, failure %+v; want %s", r.Pause, r.Failure, c.Pause)
		}
	case r.Failure != nil:
		t.Errorf("failed: %+v; want %s", *r.Failure, c.Output)
	default:
		if got, want := meaning(t, r.Output), meaning(t, []byte(c.Output)); !reflect.DeepEqual(got, want) {
			t.Errorf("output %s\nwant   %s", r.Output, c.Output)
		}
	}
	var logs []tck.Log
	for _, l := range r.Logs {
		logs = append(logs, tck.Log{Level: l.Level, Message: l.Message})
	}
	if !slices.Equal(logs, c.Logs) {
		t.Errorf("logs %q; want %q", logs, c.Logs)
	}
	after := maps.Clone(c.Before)
	if after == nil {
		after = map[string]string{}
	}
	for _, w := range r.Writes {
		if w.Deleted {
			delete(after, w.Key)
		} else {
			after[w.Key] = string(w.Value)
		}
	}
	want := c.After
	if want == nil {
		want = c.Before
	}
	if !maps.Equal(after, want) {
		t.Errorf("KV %q; want %q", after, want)
	}
}

// meaning decodes JSON, without the messages of refusals: they are the host's own words.
func meaning(t *testing.T, raw []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	list, ok := v.([]any)
	if !ok {
		return v
	}
	for _, each := range list {
		answer, _ := each.(map[string]any)
		if refusal, ok := answer["error"].(map[string]any); ok {
			if refusal["message"] == nil {
				t.Errorf("a refusal without a message: %v", refusal)
			}
			refusal["message"] = ""
		}
	}
	return v
}

// The lines of the vectors, printed by a real guest.
func TestLinesAreReadAsTheVectorsSay(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../vectors/lines.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Nonce   string
		Streams []struct {
			Name, Stdout, Output string
			Calls                []struct {
				Op      string
				Request json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	set := open(t, tck.Guests()[1])
	printer := tool(t, set, "command1", "print")
	for _, v := range file.Streams {
		text := strings.ReplaceAll(v.Stdout, file.Nonce, "~")
		arguments, err := json.Marshal(map[string]string{"text": text})
		if err != nil {
			t.Fatal(err)
		}
		r := set.Call(t.Context(), plugins.Call{Tool: printer, Arguments: arguments, KV: store(nil)})
		// What is left over is the result, if it is JSON; otherwise the call fails,
		// and whether anything was left shows in why.
		left := strings.TrimSpace(v.Output)
		if n := len(v.Calls); n > 0 && v.Calls[n-1].Op == abi.OpOutput {
			left = string(v.Calls[n-1].Request)
		}
		none := r.Failure != nil && strings.Contains(r.Failure.Message, "without a result")
		switch {
		case json.Valid([]byte(left)):
			if r.Failure != nil || !reflect.DeepEqual(meaning(t, r.Output), meaning(t, []byte(left))) {
				t.Errorf("%s: output %s, failure %+v; want %s", v.Name, r.Output, r.Failure, left)
			}
		case none != (left == "") || r.Failure == nil || r.Failure.Code != plugins.CodeToolError:
			t.Errorf("%s: output %s, failure %+v; want a tool_error about %q", v.Name, r.Output, r.Failure, left)
		}
	}
}

func TestAGuestThatNeverEndsIsStoppedOnEveryLevel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, g := range tck.Guests()[:3] {
		write(t, filepath.Join(dir, g.Name+".wasm"), g.Module)
		write(t, filepath.Join(dir, g.Name+".json"), g.Manifest)
	}
	set, err := plugins.Open(t.Context(), plugins.Options{Dir: dir, Limits: plugins.Limits{WallTime: 100 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(context.Background())
	for _, g := range tck.Guests()[:3] {
		r := set.Call(t.Context(), plugins.Call{Tool: tool(t, set, g.Name, "loop"), Arguments: json.RawMessage("{}")})
		if r.Failure == nil || r.Failure.Code != plugins.CodeTimeout {
			t.Errorf("%s: %+v; want a timeout", g.Name, r.Failure)
		}
	}
}

func TestManifestsNameTheirLevel(t *testing.T) {
	t.Parallel()
	for _, g := range tck.Guests() {
		if g.Manifest == nil {
			continue
		}
		m, err := plugins.ParseManifest(g.Manifest)
		if err != nil || m.Level != g.Level || m.ABI != abi.Version {
			t.Errorf("%s: level %d, abi %d, %v", g.Name, m.Level, m.ABI, err)
		}
	}
}

// What sdk/guest/go/hello's own test says natively holds for the compiled module, too.
func TestTheGoSDKSpeaksTheABI(t *testing.T) {
	t.Parallel()
	if race {
		t.Skip("a Go guest takes 20 s to compile under the race detector; run this test without -race")
	}
	set := open(t, tck.Guest{Name: "hello", Module: tck.Hello()})
	kv := map[string]string{"visits": "41"}
	call := func(name, arguments, approvals string) *plugins.Result {
		r := set.Call(t.Context(), plugins.Call{Tool: tool(t, set, "hello", name), RunID: "run_1", CallID: "call_1",
			Arguments: json.RawMessage(arguments), Approvals: json.RawMessage(approvals), KV: store(kv)})
		for _, w := range r.Writes {
			if kv[w.Key] = string(w.Value); w.Deleted {
				delete(kv, w.Key)
			}
		}
		return r
	}
	if got := tool(t, set, "hello", "greet"); got.Effects != abi.EffectsRead || got.Description != "Greet somebody." {
		t.Errorf("described as %+v", got)
	}
	r := call("greet", `{"lang":"pl","name":"\"Ada\" 😀"}`, "")
	if r.Failure != nil || string(r.Output) != `{"text":"Cześć, \"Ada\" 😀!"}` || len(r.Logs) != 1 || r.Logs[0].Level != abi.LogDebug {
		t.Errorf("greet: %s, %+v, logs %v", r.Output, r.Failure, r.Logs)
	}
	if r := call("greet", `{"lang":"xx","name":""}`, ""); r.Failure == nil || r.Failure.ToolCode != "unknown_language" {
		t.Errorf("greet in an unknown language: %s, %+v", r.Output, r.Failure)
	}
	if r := call("count", `{"key":"visits"}`, ""); string(r.Output) != `{"total":42}` || kv["visits"] != "42" {
		t.Errorf("count: %s, %+v, KV %q", r.Output, r.Failure, kv)
	}
	r = call("reset", `{"key":"visits"}`, "")
	if r.Pause == nil || r.Pause.Reason != abi.ReasonApprovalRequired || kv["visits"] != "42" {
		t.Errorf("reset: %+v, %+v, KV %q; want a pause", r.Pause, r.Failure, kv)
	}
	if r := call("reset", `{"key":"visits"}`, `{"reset visits":true}`); string(r.Output) != `{"total":0}` || len(kv) != 0 {
		t.Errorf("reset, approved: %s, %+v, KV %q", r.Output, r.Failure, kv)
	}
}

func BenchmarkCallOfAGoGuest(b *testing.B) {
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello.wasm"), tck.Hello(), 0o644); err != nil {
		b.Fatal(err)
	}
	set, err := plugins.Open(b.Context(), plugins.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer set.Close(context.Background())
	greet, ok := set.Lookup("greet")
	if !ok {
		b.Fatal(set.Skipped())
	}
	for b.Loop() {
		if r := set.Call(b.Context(), plugins.Call{Tool: greet, Arguments: json.RawMessage(`{"name":"Ada"}`)}); r.Failure != nil {
			b.Fatal(r.Failure)
		}
	}
}
