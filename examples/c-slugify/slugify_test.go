package slugify_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/sdk/abi"
)

func TestSlugifyAsAnOperatorInstalledIt(t *testing.T) {
	t.Parallel()
	set, err := plugins.Open(t.Context(), plugins.Options{Dir: "."})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(context.Background())
	tool, ok := set.Lookup("slugify")
	if !ok {
		t.Fatalf("not loaded: %v", set.Skipped())
	}
	if tool.Level != abi.LevelCore {
		t.Errorf("level %d", tool.Level)
	}
	for _, tt := range []struct{ arguments, want string }{
		{`{"text":"Hello, World!"}`, "hello-world"},
		{`{"text":"  Don't panic -- it's 42 "}`, "dont-panic-its-42"},
		{`{"text":"Crème brûlée à Zürich: 3×2÷1 ß"}`, "creme-brulee-a-zurich-3-2-1-s"},
		{`{"text":"日本 go 語"}`, "go"},
		{`{"text":"one two three","max_length":8}`, "one-two"},
		{`{"text":"one two three","max_length":7}`, "one-two"},
		{`{"text":"one two three","max_length":6}`, "one"},
		{`{"text":"one two three","max_length":4}`, "one"},
		{`{"text":"incomprehensibilities","max_length":5}`, "incom"},
		{`{"text":"` + strings.Repeat("ab ", 100) + `"}`, strings.TrimSuffix(strings.Repeat("ab-", 27), "-")},
		{`{"text":"\u0041\ud83d\ude00\"b"}`, "a-b"},
	} {
		checked, err := tool.Check([]byte(tt.arguments))
		if err != nil {
			t.Fatal(err)
		}
		r := set.Call(t.Context(), plugins.Call{Tool: tool, Arguments: checked})
		var out struct{ Slug string }
		if r.Failure != nil || json.Unmarshal(r.Output, &out) != nil || out.Slug != tt.want {
			t.Errorf("%.60s: %s, %+v; want %s", tt.arguments, r.Output, r.Failure, tt.want)
		}
	}
	for _, text := range []string{"", "!?", "日本語"} {
		raw, err := json.Marshal(map[string]string{"text": text})
		if err != nil {
			t.Fatal(err)
		}
		r := set.Call(t.Context(), plugins.Call{Tool: tool, Arguments: raw})
		if r.Failure == nil || r.Failure.ToolCode != "empty" {
			t.Errorf("%q: %s, %+v; want the error empty", text, r.Output, r.Failure)
		}
	}
}
