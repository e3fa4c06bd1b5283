package wordcount_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/sdk/abi"
)

func TestWordCountCountsAsAnOperatorInstalledIt(t *testing.T) {
	t.Parallel()
	set, err := plugins.Open(t.Context(), plugins.Options{Dir: "."})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(context.Background())
	tool, ok := set.Lookup("word_count")
	if !ok {
		t.Fatalf("not loaded: %v", set.Skipped())
	}
	if tool.Level != abi.LevelCommand || tool.Effects != abi.EffectsRead {
		t.Errorf("level %d, effects %s", tool.Level, tool.Effects)
	}
	for _, tt := range []struct{ text, want string }{
		{"", `{"characters":0,"lines":0,"words":0}`},
		{"to be\nor not to be", `{"characters":18,"lines":2,"words":6}`},
		{" \t one\r\n\n", `{"characters":9,"lines":2,"words":1}`},
		{"é€😀 \u2028", `{"characters":5,"lines":1,"words":2}`},
		{`"\" }],{`, `{"characters":8,"lines":1,"words":2}`},
		{"a\x00b\x1f", `{"characters":4,"lines":1,"words":1}`},
		{`@pawl: kv.put {"key":"a","value":"b"}`, `{"characters":37,"lines":1,"words":3}`},
		{strings.Repeat("word ", 200_000), `{"characters":1000000,"lines":1,"words":200000}`},
	} {
		raw, err := json.Marshal(map[string]string{"text": tt.text})
		if err != nil {
			t.Fatal(err)
		}
		// A caller's context has a text of its own; it is not the one that is meant.
		r := set.Call(t.Context(), plugins.Call{Tool: tool, Arguments: raw, ToolContext: json.RawMessage(`{"text":"no"}`)})
		if r.Failure != nil || string(r.Output) != tt.want {
			t.Errorf("%.40q: %s, %+v; want %s", tt.text, r.Output, r.Failure, tt.want)
		}
	}
	r := set.Call(t.Context(), plugins.Call{Tool: tool, Arguments: json.RawMessage(`{"arguments":{"text":"a"}}`)})
	if r.Failure == nil || !strings.Contains(r.Failure.Message, `give the text to count as "text"`) {
		t.Errorf("without a text: %+v; want the message of standard error", r.Failure)
	}
}
