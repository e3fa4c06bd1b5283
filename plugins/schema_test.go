package plugins

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
)

func TestSchemaFillsDefaultsOfMissingProperties(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ why, schema, args, want string }{
		{"nothing missing: the bytes themselves", `{"properties":{"a":{"default":1}}}`, `{ "a":2}`, `{ "a":2}`},
		{"no defaults: the bytes themselves", `{"properties":{"a":{}}}`, `{ }`, `{ }`},
		{"missing", `{"properties":{"a":{"default":1}}}`, `{}`, `{"a":1}`},
		{"a default of null, false, zero, empty is one", `{"properties":{"a":{"default":null},"b":{"default":false},"c":{"default":0},"d":{"default":""}}}`, `{}`, `{"a":null,"b":false,"c":0,"d":""}`},
		{"null is there", `{"properties":{"a":{"default":1}}}`, `{"a":null}`, `{"a":null}`},
		{"nested", `{"properties":{"a":{"properties":{"b":{"default":[1]}}}}}`, `{"a":{}}`, `{"a":{"b":[1]}}`},
		{"of items", `{"properties":{"l":{"items":{"properties":{"b":{"default":2}}}}}}`, `{"l":[{},{"b":1}]}`, `{"l":[{"b":2},{"b":1}]}`},
		{"of prefixItems", `{"properties":{"l":{"prefixItems":[{"properties":{"b":{"default":2}}}]}}}`, `{"l":[{},{}]}`, `{"l":[{"b":2},{}]}`},
		{"through $ref and allOf", `{"$defs":{"d":{"default":3}},"allOf":[{"properties":{"a":{"$ref":"#/$defs/d"}}}]}`, `{}`, `{"a":3}`},
		{"a default is taken as it is", `{"properties":{"a":{"default":{},"properties":{"b":{"default":1}}}}}`, `{}`, `{"a":{}}`},
		{"required counts after filling", `{"required":["a"],"properties":{"a":{"default":1}}}`, `{}`, `{"a":1}`},
		{"not where it only may apply", `{"anyOf":[{"properties":{"a":{"default":1}}},{}]}`, `{}`, `{}`},
		{"html and big numbers stay", `{"properties":{"a":{"default":"<&>"}}}`, `{"n":9007199254740991,"f":1.50}`, `{"a":"<&>","f":1.50,"n":9007199254740991}`},
		{"a schema that is its own child ends", `{"properties":{"a":{"$ref":"#"},"b":{"default":1}}}`, `{"a":{"a":{}}}`, `{"a":{"a":{"b":1},"b":1},"b":1}`},
	} {
		s, err := CompileSchema(json.RawMessage(c.schema))
		if err != nil {
			t.Errorf("%s: %v", c.why, err)
			continue
		}
		for range 2 { // a filled-in default is never shared
			got, err := s.Check([]byte(c.args))
			if err != nil || string(got) != c.want {
				t.Errorf("%s: got %s, %v; want %s", c.why, got, err, c.want)
			}
		}
	}
}

func TestSchemaErrorsPointAtTheValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ why, schema, args, pointer, message string }{
		{"wrong type", `{"type":"object"}`, `[]`, "", "object"},
		{"missing", `{"required":["path"]}`, `{}`, "", "path"},
		{"deep", `{"properties":{"a":{"items":{"type":"string"}}}}`, `{"a":["x",1]}`, "/a/1", "string"},
		{"escaped", `{"properties":{"a/b~c":{"type":"string"}}}`, `{"a/b~c":1}`, "/a~1b~0c", "string"},
		{"unknown member", `{"properties":{},"additionalProperties":false}`, `{"x":1}`, "", "x"},
		{"behind a $ref", `{"$defs":{"d":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/d"}}}`, `{"a":1}`, "/a", "string"},
		{"a bad default is found", `{"properties":{"a":{"type":"string","default":1}}}`, `{}`, "/a", "string"},
		{"a standard format", `{"properties":{"a":{"format":"date"}}}`, `{"a":"yesterday"}`, "/a", "date"},
		{"a path with a hint", `{"properties":{"p":{"format":"path"}}}`, `{"p":"/notes/../memories/x"}`, "/p", `"/memories/x"`},
		{"a relative path", `{"properties":{"p":{"format":"path"}}}`, `{"p":"memories/x"}`, "/p", `"/memories/x"`},
		{"a path without a hint", `{"properties":{"p":{"format":"path"}}}`, `{"p":""}`, "/p", "not canonical"},
	} {
		s, err := CompileSchema(json.RawMessage(c.schema))
		if err != nil {
			t.Errorf("%s: %v", c.why, err)
			continue
		}
		_, err = s.Check([]byte(c.args))
		var se *SchemaError
		if !errors.As(err, &se) || se.Pointer != c.pointer || !strings.Contains(se.Message, c.message) {
			t.Errorf("%s: %v (%T)", c.why, err, err)
		}
	}
}

func TestNumbersThatBreakExactArithmeticAreErrors(t *testing.T) {
	t.Parallel()
	s, err := CompileSchema(json.RawMessage(`{"minimum":0}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Check([]byte(`1e-9999999`)); err == nil {
		t.Error("it was taken")
	}
	for schema, args := range map[string]string{`{"type":"object","$ref":"#"}`: `{}`, `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`: `1`} {
		if s, err = CompileSchema(json.RawMessage(schema)); err == nil {
			_, err = s.Check([]byte(args))
		}
		if err == nil {
			t.Errorf("%s is a circle and was taken", schema)
		}
	}
}

func TestSchemasThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ why, schema, want string }{
		{"not JSON", `{`, ""},
		{"duplicate names", `{"type":"object","type":"string"}`, "duplicate"},
		{"a keyword of the wrong type", `{"type":7}`, "/type: value must be one of 'array', "},
		{"a word that is no type", `{"properties":{"a":{"type":"text"}}}`, "/properties/a/type: value must be one of 'array', "},
		{"a reference to the web", `{"$ref":"https://example.com/s.json"}`, "may only refer to itself"},
		{"to a file", `{"$ref":"file:///etc/passwd"}`, "may only refer to itself"},
		{"to a neighbour", `{"$ref":"other.json"}`, "may only refer to itself"},
		{"an $id that moves the base", `{"$id":"https://example.com/","$ref":"x"}`, "may only refer to itself"},
		{"a metaschema of somebody's own", `{"$schema":"https://example.com/meta"}`, "may only refer to itself"},
		{"to nowhere", `{"$ref":"#/$defs/x"}`, ""},
		{"a bad pattern", `{"pattern":"("}`, ""},
	} {
		if _, err := CompileSchema(json.RawMessage(c.schema)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.why, err)
		}
	}
}

// To refuse a pattern costs no more than to take one: a schema may be a model's.
func TestPatternsThatAreTooLargeAreNotWrittenOut(t *testing.T) {
	for _, pattern := range []string{strings.Repeat("a{1000}", 500), strings.Repeat("[ab]{1000}", 400), "((a{30}){30}){1,}(b{1000}){0}", strings.Repeat("a{1000}", 2300), strings.Repeat(`\\pL`, 4000)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := CompileSchema(json.RawMessage(`{"pattern":"` + pattern + `"}`))
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%.30s… was taken", pattern)
		}
		if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 30 {
			t.Errorf("%.30s… took %d MiB to be refused", pattern, grown)
		}
	}
	s, err := CompileSchema(json.RawMessage(`{"format":"regex"}`)) // here the pattern is the value
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate([]byte(`"` + strings.Repeat("a{1000}", 100_000) + `"`)); err == nil {
		t.Error("a pattern of 700 KB was taken as a value")
	}
	for _, pattern := range []string{"^(a|b){0,99}$", "(x{0}y){99}", "[^ ]*", "(?i)straße", "(a{2,}){3}"} {
		if _, err := CompileSchema(json.RawMessage(`{"pattern":"` + pattern + `"}`)); err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

func TestIJSON(t *testing.T) {
	t.Parallel()
	good := []string{`null`, ` 1 `, `"😀"`, `"\ud83d\ude00"`, `9007199254740991`, `-9007199254740991`, `1e-300`, `1E5`, `0e-999`, `-0.0`, `0.1`, `[[]]`, `{"a":{"a":1}}`,
		strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth)}
	for _, s := range good {
		if err := checkIJSON([]byte(s)); err != nil {
			t.Errorf("%.40s: %v", s, err)
		}
	}
	bad := map[string]string{``: "empty", ` `: "empty", `1 2`: "more follows", `{"a":1,"a":2}`: "/a", `{"a":{"b":[9007199254740992]}}`: "/a/b/0",
		`-9007199254740992`: "2^53", `1e400`: "overflows", `1e17`: "2^53", `[0.1e-99999]`: "nearer", `1e-400`: "nearer", `[9007199254740992.0]`: "/0", `"\ud800"`: "", "\"\xff\"": "", `{"a"}`: "", `nul`: "", `[1,]`: "", "\"a\x00b\"": "",
		`{} x`: "more follows", strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1): "deeper", strings.Repeat("[", 10_001): "deeper"}
	for s, want := range bad {
		if err := checkIJSON([]byte(s)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v", s, err)
		}
	}
}

// FuzzIJSON: what passes is JSON to the standard library too, and says the same when it is read and written once.
func FuzzIJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,"\u00e9"]}`, `"\ud800"`, `9007199254740993`, `{"a":1,"a":2}`, "[\xff]", `1e999`, `{"":{}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if slow, quick := slowIJSON(b), quickIJSON(b); (slow == nil) != quick {
			t.Fatalf("%q: quick says %v, slow says %v", b, quick, slow)
		}
		if checkIJSON(b) != nil {
			return
		}
		var v any
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatalf("%q passes and is not JSON: %v", b, err)
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkIJSON(again); err != nil {
			t.Fatalf("%q passes and %q does not: %v", b, again, err)
		}
	})
}
