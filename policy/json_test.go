package policy

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

func TestParseJSONRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		``, ` `, `{`, `[`, `"`, `"a`, `"\`, `"\u12`, `"\x"`, `tru`, `nul`, `+1`, `01`, `-`, `1.`, `.5`, `1e`, `1e+`, `NaN`, `[1,]`, `{"a":1,}`, `{"a"}`, `{"a":}`,
		`{a:1}`, `{"a":1 "b":2}`, `[1 2]`, `1 2`, `{"a":1,"\u0061":2}`, "\"\x01\"", "\"\xff\"", "\"\xed\xa0\x80\"", `"\ud800"`, `"\udc00"`, `"\ud800\u0041"`,
		`"\ud800x"`, `1e400`, `-1e400`, "\ufeff1", "\"\n\"",
	} {
		if v, err := parseJSON([]byte(s)); err == nil {
			t.Errorf("%q is read as %s", s, v)
		}
	}
}

// Measured against the standard library: whatever this reads, that reads as the same value.
func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{
		`null`, ` {"a":[1,-0,2.5e-3,true,false,null,"\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t"]} `, `{"":{"":{}}}`, `"é"`, `123456789012345678901234567890`, `[[[[]]]]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		term, err := parseJSON(raw)
		if err != nil {
			return
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		var want any
		if err := d.Decode(&want); err != nil {
			t.Fatalf("%q is read, but is not JSON: %v", raw, err)
		}
		got, err := ast.JSON(term.Value)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is read as %#v (%v); want %#v", raw, got, err, want)
		}
	})
}

// The sizes that min_bytes compares are those of the canonical text.
func FuzzCanonicalSize(f *testing.F) {
	for _, s := range []string{`{"a":[1,true,null,"x"]}`, `"\u0001\n\"\\/é\u2028<>&"`, `{}`, `[]`, `[[],{}]`, `"\u007f"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		term, err := parseJSON(raw)
		if err != nil {
			return
		}
		x, err := ast.JSON(term.Value)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(x); err != nil {
			t.Fatal(err)
		}
		// The encoder escapes two characters that RFC 8785 does not.
		canonical := bytes.ReplaceAll(bytes.ReplaceAll(bytes.TrimSuffix(b.Bytes(), []byte("\n")), []byte(`\u2028`), []byte("\u2028")), []byte(`\u2029`), []byte("\u2029"))
		if bytes.Contains(raw, []byte(`\\u202`)) {
			return // a backslash before the replaced text
		}
		if n, err := canonicalSize(term.Value); err != nil || n != len(canonical) {
			t.Fatalf("%q: %d (%v); want %d, %s", raw, n, err, len(canonical), canonical)
		}
	})
}
