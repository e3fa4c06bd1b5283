package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestCompileRefusesWithAPointer(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, tc := range []struct{ interruptOn, pointer, detail string }{
		{`[]`, "", "must be an object"},
		{`"x"`, "", "must be an object"},
		{`7`, "", "must be an object"},
		{`{`, "", ""},
		{`{} {}`, "", "text after"},
		{`{"a":true,"a":false}`, "", "twice"},
		{"{\"a\":\"\xff\"}", "", "UTF-8"},
		{`{"a":{"title":"\ud800"}}`, "", "surrogate"},
		{`{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, "", "deeper"},
		{`{"a":"` + strings.Repeat("x", maxInterruptOn) + `"}`, "", "larger"},
		{`{"":true}`, "/", "name is missing"},
		{`{"a":null}`, "/a", "true, false or an object"},
		{`{"a":1}`, "/a", "true, false or an object"},
		{`{"a":"true"}`, "/a", "true, false or an object"},
		{`{"a":[true]}`, "/a", "true, false or an object"},
		{`{"a/b~c":1}`, "/a~1b~0c", "true, false"},
		{`{"a":{"allow":["approve"]}}`, "/a/allow", "unknown member"},
		{`{"a":{"allowed_decisions":[]}}`, "/a/allowed_decisions", "not empty"},
		{`{"a":{"allowed_decisions":"approve"}}`, "/a/allowed_decisions", "array"},
		{`{"a":{"allowed_decisions":null}}`, "/a/allowed_decisions", "array"},
		{`{"a":{"allowed_decisions":["approve","aprove"]}}`, "/a/allowed_decisions/1", "approve, edit"},
		{`{"a":{"allowed_decisions":[null]}}`, "/a/allowed_decisions/0", "approve, edit"},
		{`{"a":{"ttl":"1 h"}}`, "/a/ttl", "duration"},
		{`{"a":{"ttl":"0s"}}`, "/a/ttl", "duration"},
		{`{"a":{"ttl":"-1h"}}`, "/a/ttl", "duration"},
		{`{"a":{"ttl":"1d"}}`, "/a/ttl", "duration"},
		{`{"a":{"ttl":"+1h"}}`, "/a/ttl", "duration"},
		{`{"a":{"ttl":60}}`, "/a/ttl", "text"},
		{`{"a":{"title":1}}`, "/a/title", "text"},
		{`{"a":{"message":null}}`, "/a/message", "text"},
		{`{"a":{"when":null}}`, "/a/when", "object of fields"},
		{`{"a":{"when":true}}`, "/a/when", "object of fields"},
		{`{"a":{"when":{}}}`, "/a/when", "names no field"},
		{`{"a":{"when":[]}}`, "/a/when", "empty list"},
		{`{"a":{"when":[{}]}}`, "/a/when/0", "names no field"},
		{`{"a":{"when":[{"x":{"min":1}},7]}}`, "/a/when/1", "object of fields"},
		{`{"a":{"when":{"x":1}}}`, "/a/when/x", "object of matchers"},
		{`{"a":{"when":{"x":null}}}`, "/a/when/x", "object of matchers"},
		{`{"a":{"when":{"x":{}}}}`, "/a/when/x", "at least one matcher"},
		{`{"a":{"when":{"x":{"missing":"no_match"}}}}`, "/a/when/x", "at least one matcher"},
		{`{"a":{"when":{"x":{"missing":"match","min":1}}}}`, "/a/when/x/missing", "no_match"},
		{`{"a":{"when":{"x":{"missing":true,"min":1}}}}`, "/a/when/x/missing", "no_match"},
		{`{"a":{"when":{"x":{"mni":1}}}}`, "/a/when/x/mni", "unknown matcher"},
		{`{"a":{"when":{"x":{"Equals":1}}}}`, "/a/when/x/Equals", "unknown matcher"},
		{`{"a":{"when":{"/x~":{"min":1}}}}`, "/a/when/~1x~0", "JSON pointer"},
		{`{"a":{"when":{"/x~2y":{"min":1}}}}`, "/a/when/~1x~02y", "JSON pointer"},
		{`{"a":{"when":{"x":{"in":1}}}}`, "/a/when/x/in", "array"},
		{`{"a":{"when":{"x":{"in":[]}}}}`, "/a/when/x/in", "not empty"},
		{`{"a":{"when":{"x":{"not_in":[]}}}}`, "/a/when/x/not_in", "not empty"},
		{`{"a":{"when":{"x":{"not_in":{}}}}}`, "/a/when/x/not_in", "array"},
		{`{"a":{"when":{"x":{"min":"1"}}}}`, "/a/when/x/min", "number"},
		{`{"a":{"when":{"x":{"max":[1]}}}}`, "/a/when/x/max", "number"},
		{`{"a":{"when":{"x":{"min":1e999}}}}`, "", "overflows"},
		{`{"a":{"when":{"x":{"min_bytes":-1}}}}`, "/a/when/x/min_bytes", "whole number"},
		{`{"a":{"when":{"x":{"min_bytes":1.5}}}}`, "/a/when/x/min_bytes", "whole number"},
		{`{"a":{"when":{"x":{"min_bytes":"1"}}}}`, "/a/when/x/min_bytes", "whole number"},
		{`{"a":{"when":{"x":{"prefix":1}}}}`, "/a/when/x/prefix", "text"},
		{`{"a":{"when":{"x":{"prefix":[]}}}}`, "/a/when/x/prefix", "empty list"},
		{`{"a":{"when":{"x":{"suffix":["a",1]}}}}`, "/a/when/x/suffix/1", "text"},
		{`{"a":{"when":{"x":{"regex":"("}}}}`, "/a/when/x/regex", "missing closing )"},
		{`{"a":{"when":{"x":{"regex":["a","a(?!b)"]}}}}`, "/a/when/x/regex/1", "RE2"},
		{`{"a":{"when":{"x":{"regex":"(x{0,1000}){0,1}(x{0,1000}y)z"}}}}`, "/a/when/x/regex", "steps"},
		{`{"a":{"when":{"x":{"regex":["` + strings.Repeat(`[a-z]{90}","`, 30) + `z"]}}}}`, "", "patterns"},
		{`{"a":{"when":{"x":{"under":"memories"}}}}`, "/a/when/x/under", `"/memories"`},
		{`{"a":{"when":{"x":{"under":["/a","/a/../b"]}}}}`, "/a/when/x/under/1", `"/b"`},
		{`{"a":{"when":{"x":{"under":"/a//"}}}}`, "/a/when/x/under", `"/a"`},
		{`{"a":{"when":{"x":{"under":""}}}}`, "/a/when/x/under", "absolute"},
		{`{"a":{"when":{"x":{"under":[]}}}}`, "/a/when/x/under", "empty list"},
	} {
		on, err := e.Compile(json.RawMessage(tc.interruptOn))
		var invalid *InvalidError
		if !errors.As(err, &invalid) || on != nil {
			t.Errorf("%.60s is accepted: %v", tc.interruptOn, err)
			continue
		}
		if invalid.Pointer != tc.pointer || !strings.Contains(invalid.Detail, tc.detail) {
			t.Errorf("%.60s: %q at %q; want %q at %q", tc.interruptOn, invalid.Detail, invalid.Pointer, tc.detail, tc.pointer)
		}
	}
}

func TestRemovedNamesTheDefaultStopsThatAreGone(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	const wm, ws, em, es = "write_file under /memories/", "write_file under /skills/", "edit_file under /memories/", "edit_file under /skills/"
	for _, tc := range []struct {
		interruptOn string
		removed     []string
	}{
		{``, nil},
		{`{}`, nil},
		{`{"send":true}`, nil},
		{`{"files.write_file":false}`, nil},
		{`{"write_file":true}`, nil},
		{`{"write_file":{"allowed_decisions":["reject"]}}`, nil},
		{`{"write_file":false}`, []string{wm, ws}},
		{`{"write_file":false,"edit_file":false}`, []string{em, es, wm, ws}},
		{`{"write_file":{"when":{"path":{"under":["/memories/","/skills/"]}}}}`, nil},
		{`{"write_file":{"when":{"path":{"under":["/memories","/notes"]}}}}`, []string{ws}},
		{`{"write_file":{"when":{"/path":{"under":"/"}}}}`, nil},
		{`{"write_file":{"when":[{"path":{"under":"/skills"}},{"path":{"under":"/memories"}}]}}`, nil},
		{`{"write_file":{"when":{"path":{"under":"/memories/sub"}}}}`, []string{wm, ws}},
		{`{"write_file":{"when":{"path":{"under":"/mem"}}}}`, []string{wm, ws}},
		{`{"write_file":{"when":{"path":{"prefix":"/"}}}}`, []string{wm, ws}}, // "x/../memories" has another prefix
		{`{"write_file":{"when":{"path":{"under":"/"},"content":{"min_bytes":10}}}}`, []string{wm, ws}},
		{`{"write_file":{"when":{"path":{"under":"/","regex":"md$"}}}}`, []string{wm, ws}},
		{`{"edit_file":{"when":{"file":{"under":"/"}}}}`, []string{em, es}},
	} {
		if got := compileOn(t, e, tc.interruptOn).Removed(); !slices.Equal(got, tc.removed) {
			t.Errorf("%s: %q; want %q", tc.interruptOn, got, tc.removed)
		}
	}
}

func TestCompileRemembersWithinItsBound(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	first := compileOn(t, e, `{"a":true}`)
	if compileOn(t, e, `{"a":true}`) != first {
		t.Error("an equal configuration is compiled twice")
	}
	title := strings.Repeat("x", 30<<10)
	for i := range 20 {
		compileOn(t, e, fmt.Sprintf(`{"a":{"title":"%s%d"}}`, title, i))
	}
	if e.compiled.size > interruptsKept || e.compiled.size < interruptsKept/2 || len(e.compiled.byKey) != e.compiled.order.Len() {
		t.Errorf("%d bytes in %d configurations kept; want at most %d", e.compiled.size, len(e.compiled.byKey), interruptsKept)
	}
	if compileOn(t, e, `{"a":true}`) == first {
		t.Error("the oldest is still there")
	}
}

// The largest configurations that are accepted compile in bounded time, and their text does not multiply.
func TestCompileOfALargeConfigurationIsBounded(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	alternatives := strings.Repeat(`{"a":{"min":1}},`, maxParts/2-1)
	large := `{"x.y":{"message":"` + strings.Repeat("m", 40<<10) + `","when":[` + strings.TrimSuffix(alternatives, ",") + `]}}`
	on := compileOn(t, e, large)
	if len(on.Rego()) > 20*maxInterruptOn {
		t.Errorf("%d bytes of rules out of %d", len(on.Rego()), len(large))
	}
	if d := e.Gate(t.Context(), on, input("x.y", `{"a":0}`)); d.Effect != Allow {
		t.Errorf("%+v", d)
	}
	if d := e.Gate(t.Context(), on, input("x.y", `{"a":1}`)); d.Effect != Pause {
		t.Errorf("%+v", d)
	}
	if _, err := e.Compile(json.RawMessage(strings.Replace(large, `"when":[`, `"when":[`+alternatives, 1))); err == nil {
		t.Error("a configuration with too many parts is accepted")
	}
}

// Whatever the type of an argument, doubt stops. Each matcher meets values of each type; where the type does not fit the
// matcher, the call must stop, and the value must count as outside the scope of an edit.
func TestInvariant5_ValuesOfTheWrongTypeStop(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	r := rand.New(rand.NewPCG(1, 2))
	fits := map[string]func(any) bool{"text": isA[string], "number": isA[float64], "path": isA[string]}
	for matcher, want := range map[string]string{
		`"prefix":"/zz"`: "text", `"suffix":"zz"`: "text", `"regex":"^zz$"`: "text", `"under":"/zz"`: "path",
		`"min":1e9`: "number", `"max":-1e9`: "number",
	} {
		on := compileOn(t, e, `{"do":{"when":{"/a/b":{`+matcher+`,"missing":"no_match"}}}}`)
		for range 200 {
			v := randomJSON(r, 3)
			raw, err := json.Marshal(map[string]any{"a": map[string]any{"b": v}})
			if err != nil {
				t.Fatal(err)
			}
			d := e.Gate(t.Context(), on, input("do", string(raw)))
			sure, _, _ := e.Fires(t.Context(), on, input("do", string(raw)), []string{"interrupt_on/do"})
			if !fits[want](v) && (d.Effect != Pause || sure) {
				t.Fatalf("%s, %s: %+v, sure %v", matcher, raw, d, sure)
			}
			if d.Effect == Deny {
				t.Fatalf("%s, %s: %+v", matcher, raw, d)
			}
		}
	}
}

func isA[T any](v any) bool { _, ok := v.(T); return ok }

func randomJSON(r *rand.Rand, depth int) any {
	switch n := r.IntN(8); {
	case n == 0:
		return nil
	case n == 1:
		return r.IntN(2) == 0
	case n == 2:
		return float64(r.IntN(2000) - 1000)
	case n == 3:
		return []string{"", "x", "/x", "zz", "\u0000", "a\\b", "/zz/", "ä"}[r.IntN(8)]
	case depth == 0:
		return "leaf"
	case n < 6:
		list := make([]any, r.IntN(3))
		for i := range list {
			list[i] = randomJSON(r, depth-1)
		}
		return list
	default:
		m := map[string]any{}
		for range r.IntN(3) {
			m[[]string{"a", "b", ""}[r.IntN(3)]] = randomJSON(r, depth-1)
		}
		return m
	}
}

// Every configuration that the grammar allows compiles and gives a decision, whatever texts, names and values are in it; and what
// stops beyond doubt also stops at the gate.
func TestEveryAllowedConfigurationDecides(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	r := rand.New(rand.NewPCG(3, 4))
	texts := []string{"", "a", "b", "a.b", "/a", "/a/0", "/a/b", "/", "\"", "\\", "`", "}", "\n", "\x00", "%s", "{{x}}", "${x}", "$\"x\"", "\u2028", "é", "\U0001f600", "<&>", "#", "default"}
	pick := func() string { return texts[r.IntN(len(texts))] }
	some := func(f func() any) []any {
		list := []any{f()}
		for r.IntN(3) == 0 {
			list = append(list, f())
		}
		return list
	}
	quoted := func() any { return regexp.QuoteMeta(pick()) }
	path := func() any { return []any{"/", "/a", "/a/", "/a b/\"", "/é"}[r.IntN(5)] }
	word := func() any { return pick() }
	value := func() any { return randomJSON(r, 2) }
	matchers := map[string]func() any{
		"equals": value, "in": func() any { return some(value) }, "not_in": func() any { return some(value) },
		"prefix": word, "suffix": func() any { return some(word) }, "regex": func() any { return some(quoted) },
		"under": func() any { return some(path) }, "min": func() any { return r.NormFloat64() }, "max": func() any { return r.IntN(100) },
		"min_bytes": func() any { return r.IntN(20) },
	}
	names := sortedKeys(matchers)
	for range 150 {
		when := some(func() any {
			fields := map[string]any{}
			for range 1 + r.IntN(2) {
				field := map[string]any{}
				for range 1 + r.IntN(2) {
					name := names[r.IntN(len(names))]
					field[name] = matchers[name]()
				}
				if r.IntN(2) == 0 {
					field["missing"] = "no_match"
				}
				name := pick()
				if strings.Contains(name, "~") {
					continue
				}
				fields[name] = field
			}
			return fields
		})
		tool := pick() + "x"
		config, err := json.Marshal(map[string]any{tool: map[string]any{"when": when, "title": pick(), "message": pick(), "ttl": "1h"}})
		if err != nil {
			t.Fatal(err)
		}
		arguments, err := json.Marshal(map[string]any{"a": randomJSON(r, 3), "b": randomJSON(r, 2), pick(): randomJSON(r, 1)})
		if err != nil {
			t.Fatal(err)
		}
		on := compileOn(t, e, string(config))
		d := e.Gate(t.Context(), on, input(tool, string(arguments)))
		if d.Effect == Deny {
			t.Fatalf("%s, %s: %+v", config, arguments, d)
		}
		if sure, _, _ := e.Fires(t.Context(), on, input(tool, string(arguments)), []string{"interrupt_on/" + tool}); sure && d.Effect != Pause {
			t.Fatalf("%s, %s: beyond doubt, and yet %+v", config, arguments, d)
		}
	}
}

// Whatever the configuration, Compile answers with rules or with an InvalidError, and rules always give a decision: no text of
// the configuration can break out of its literal.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{
		``, `null`, `{}`, `{"a":true}`, `{"a":{"when":{"x":{"equals":"\"} stop"}}}}`, `{"a.b":{"ttl":"1h","title":"` + "`" + `"}}`,
		`{"a":{"when":[{"/a/0~1":{"regex":["\\Q","a|b"],"missing":"no_match"}},{"x":{"in":[{"a":[null,-0,1E5]}]}}]}}`,
		`{"a":{"when":{"x":{"under":"/a\u0000"}}}}`, `{"$x":{"message":"{{x}} %s \u2028 ${y}"}}`, `{"a":{"when":{"x":{"equals":[]}}}}`,
		`{"a":{"when":{"x":{"equals":{}}}}}`, `{"a":{"when":{"x":{"equals":"\/\ud83d\ude00"}}}}`,
	} {
		f.Add(s, `{"x":1}`)
	}
	e := newEngine(f)
	f.Fuzz(func(t *testing.T, interruptOn, arguments string) {
		on, err := e.Compile(json.RawMessage(interruptOn))
		var invalid *InvalidError
		if err != nil {
			if !errors.As(err, &invalid) || strings.HasPrefix(invalid.Detail, "cannot be compiled") {
				t.Fatalf("Compile(%q): %v", interruptOn, err)
			}
			return
		}
		d := e.Gate(t.Context(), on, input("a", arguments))
		if _, err := parseJSON([]byte(arguments)); err != nil {
			if len(arguments) > 0 && d.Code != CodeInput {
				t.Fatalf("bad arguments %q: %+v", arguments, d)
			}
			return
		}
		if d.Code != "" {
			t.Fatalf("Compile(%q), %q: %+v", interruptOn, arguments, d)
		}
	})
}
