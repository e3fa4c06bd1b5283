package bundled_test

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAskUserShowsWhatTheModelWroteAndHoldsTheAnswerToItsSchema(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args   args
		schema string
	}{
		{args{"question": "Which?"}, `{}`},
		{args{"question": "\"é\\😀\u2028\x01", "title": "T"}, `{}`},
		{args{"question": `{"schema":{"type":"integer"}}`}, `{}`},
		{args{"question": "How many?", "schema": map[string]any{"type": "integer", "description": "\"}"}}, `{"description":"\"}","type":"integer"}`},
		{args{"question": strings.Repeat("\x01", 8000)}, `{}`},
	} {
		r := disk{}.call(t, "ask_user", tt.args)
		if r.Pause == nil || r.Output != nil || r.Failure != nil {
			t.Errorf("%.60v: %s, %+v; want a pause", tt.args, r.Output, r.Failure)
			continue
		}
		var shown args
		if err := json.Unmarshal(r.Pause.Payload, &shown); err != nil || shown["question"] != tt.args["question"] || shown["title"] != tt.args["title"] {
			t.Errorf("%.60v: shows %.200s, %v", tt.args, r.Pause.Payload, err)
		}
		if r.Pause.Reason != "await_input" || string(r.Pause.Schema) != tt.schema {
			t.Errorf("%.60v: %s with schema %s, want await_input with %s", tt.args, r.Pause.Reason, r.Pause.Schema, tt.schema)
		}
	}
}

func TestAskUserTellsTheModelWhatIsWrongWithItsSchema(t *testing.T) {
	t.Parallel()
	for schema, says := range map[string]string{
		`{"type":"text"}`:                            "schema: ",
		`{"$ref":"https://example.com/s.json"}`:      "may only refer to itself",
		`{"x":"` + strings.Repeat("x", 20000) + `"}`: "at most 16384 bytes",
	} {
		r := disk{}.call(t, "ask_user", args{"question": "?", "schema": json.RawMessage(schema)})
		if r.Failure == nil || r.Pause != nil || r.Failure.Code != "tool_error" || !strings.Contains(r.Failure.Message, says) {
			t.Errorf("%.60s: %+v; want a tool_error that says %q", schema, r.Failure, says)
		}
	}
}
