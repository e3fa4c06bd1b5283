package policy

import (
	"slices"
	"testing"
)

func preset(in *Input, presets ...string) *Input {
	in.Agent.Permissions = presets
	return in
}

func TestPresets(t *testing.T) {
	t.Parallel()
	plain := newEngine(t)
	ruled := newEngine(t, "r.rego", `package pawl.rules
pause contains {"rule": "team/limit", "title": "Too much", "reason": "constraints_conflict"} if input.call.arguments.amount > 10
deny contains "never" if input.call.tool == "wipe"`)
	call := func(tool, effects, arguments string) *Input {
		in := input(tool, arguments)
		in.Call.Effects = effects
		return in
	}
	for name, tc := range map[string]struct {
		engine  *Engine
		on      string
		in      *Input
		presets []string
		effect  Effect
		rules   []string
	}{
		"auto adds nothing":                    {plain, `null`, call("send", "write", `{}`), []string{"auto"}, Allow, nil},
		"interactive asks for a read":          {plain, `null`, call("ls", "read", `{}`), []string{"interactive"}, Pause, []string{"preset.interactive"}},
		"interactive wins over false":          {plain, `{"search":false}`, call("search", "read", `{}`), []string{"interactive"}, Pause, []string{"preset.interactive"}},
		"interactive beside a rule":            {plain, `{"send":true}`, call("send", "write", `{}`), []string{"interactive"}, Pause, []string{"interrupt_on/send", "preset.interactive"}},
		"interactive beside people's rule":     {ruled, `null`, call("send", "write", `{"amount":11}`), []string{"interactive"}, Pause, []string{"preset.interactive", "team/limit"}},
		"interactive and a deny":               {ruled, `null`, call("wipe", "write", `{}`), []string{"interactive"}, Deny, nil},
		"locked denies a write":                {plain, `null`, call("send", "write", `{}`), []string{"locked"}, Deny, []string{"preset.locked"}},
		"locked denies what declares nothing":  {plain, `null`, call("send", "", `{}`), []string{"locked"}, Deny, []string{"preset.locked"}},
		"locked wins over a stop":              {plain, `{"send":true}`, call("send", "write", `{}`), []string{"locked"}, Deny, []string{"preset.locked"}},
		"locked lets a read pass":              {plain, `null`, call("ls", "read", `{}`), []string{"locked"}, Allow, nil},
		"locked keeps the stop of a read":      {plain, `{"ls":true}`, call("ls", "read", `{}`), []string{"locked"}, Pause, []string{"interrupt_on/ls"}},
		"a child of a locked one is locked":    {plain, `null`, call("send", "write", `{}`), []string{"locked", "auto"}, Deny, []string{"preset.locked"}},
		"a locked child of an interactive one": {plain, `null`, call("ls", "read", `{}`), []string{"interactive", "locked"}, Pause, []string{"preset.interactive"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := tc.engine.Gate(t.Context(), compileOn(t, tc.engine, tc.on), preset(tc.in, tc.presets...))
			if d.Effect != tc.effect || d.Code != "" || !slices.Equal(d.Rules, tc.rules) && len(d.Rules)+len(tc.rules) > 0 {
				t.Errorf("%+v; want %s by %v", d, tc.effect, tc.rules)
			}
		})
	}
}

func TestAnUnknownPresetDenies(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, presets := range [][]string{{""}, {"unlocked"}, {"Auto"}, {"auto", "read_only"}} {
		in := preset(input("ls", `{}`), presets...)
		in.Call.Effects = "read"
		if d := e.Gate(t.Context(), nil, in); d.Effect != Deny || d.Code != CodeInput || d.Detail == "" {
			t.Errorf("%q: %+v", presets, d)
		}
	}
	for _, known := range Presets() {
		in := preset(input("ls", `{}`), known)
		in.Call.Effects = "read"
		if d := e.Gate(t.Context(), nil, in); d.Code != "" || d.Effect == Deny {
			t.Errorf("%s: %+v", known, d)
		}
	}
}

// An approval by the preset covers any edit of the call: the preset asks for every call. It does not cover another rule, and what is locked
// cannot be edited into running.
func TestEditsUnderAPreset(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	on := compileOn(t, e, `{"send":{"when":{"to":{"suffix":"@x"}}}}`)
	for name, tc := range map[string]struct {
		arguments string
		presets   []string
		rules     []string
		all       bool
		missing   []string
		denied    bool
	}{
		"the preset alone":           {`{"to":"b@y"}`, []string{"interactive"}, []string{"preset.interactive"}, true, nil, false},
		"both still fire":            {`{"to":"b@x"}`, []string{"interactive"}, []string{"interrupt_on/send", "preset.interactive"}, true, nil, false},
		"the agent's rule no longer": {`{"to":"b@y"}`, []string{"interactive"}, []string{"interrupt_on/send", "preset.interactive"}, false, []string{"interrupt_on/send"}, false},
		"doubt is outside":           {`{}`, []string{"interactive"}, []string{"interrupt_on/send", "preset.interactive"}, false, []string{"interrupt_on/send"}, false},
		"no preset":                  {`{"to":"b@x"}`, nil, []string{"preset.interactive"}, false, []string{"preset.interactive"}, false},
		"locked":                     {`{"to":"b@x"}`, []string{"locked"}, []string{"interrupt_on/send"}, false, []string{"interrupt_on/send"}, true},
	} {
		all, missing, denied := e.Fires(t.Context(), on, preset(input("send", tc.arguments), tc.presets...), tc.rules)
		if all != tc.all || !slices.Equal(missing, tc.missing) || (denied != nil) != tc.denied {
			t.Errorf("%s: %v, missing %v, denied %+v", name, all, missing, denied)
		}
	}
}
