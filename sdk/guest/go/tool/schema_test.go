package tool

import (
	"encoding/json"
	"strings"
	"testing"
)

type nested struct {
	A []int             `json:"a"`
	M map[string]string `json:"m,omitempty"`
}

type everything struct {
	S      string          `json:"s" description:"A path." format:"path"`
	E      string          `json:"e,omitempty" enum:"x|y" default:"\"x\""`
	B      bool            `json:"b"`
	I      int             `json:"i" default:"3"`
	U      uint8           `json:"u"`
	F      float64         `json:"f"`
	Bytes  []byte          `json:"bytes"`
	P      *string         `json:"p"`
	Any    any             `json:"any"`
	Raw    json.RawMessage `json:"raw,omitzero"`
	N      nested          `json:"n"`
	Plain  int
	Gone   int `json:"-"`
	hidden int
}

func TestSchemaSaysWhatTheTypeAccepts(t *testing.T) {
	t.Parallel()
	_ = everything{}.hidden
	want := `{"additionalProperties":false,"properties":{"Plain":{"type":"integer"},"any":{},"b":{"type":"boolean"},` +
		`"bytes":{"contentEncoding":"base64","type":"string"},"e":{"default":"x","enum":["x","y"],"type":"string"},` +
		`"f":{"type":"number"},"i":{"default":3,"type":"integer"},` +
		`"n":{"additionalProperties":false,"properties":{"a":{"items":{"type":"integer"},"type":"array"},` +
		`"m":{"additionalProperties":{"type":"string"},"type":"object"}},"required":["a"],"type":"object"},` +
		`"p":{"type":"string"},"raw":{},"s":{"description":"A path.","format":"path","type":"string"},` +
		`"u":{"minimum":0,"type":"integer"}},` +
		`"required":["s","b","i","u","f","bytes","any","n","Plain"],"type":"object"}`
	if got := string(schemaOf[everything]("t")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

type recursive struct{ Next *recursive }

func TestTypesWithoutAnHonestSchemaPanicAndNameThePlace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		make func() json.RawMessage
		want string
	}{
		{schemaOfFunc[string], "must be a struct"},
		{schemaOfFunc[struct{ C chan int }], "t.C: no schema for chan int"},
		{schemaOfFunc[struct{ M map[int]int }], "t.M: no schema"},
		{schemaOfFunc[recursive], "t.Next: tool.recursive contains itself"},
		{schemaOfFunc[struct{ nested }], "embedded"}, // its exported fields would be promoted
		{schemaOfFunc[struct{ Nested }], "embedded"},
		{schemaOfFunc[struct {
			N int `json:"n,string"`
		}], "string option"},
		{schemaOfFunc[struct {
			S string `default:"x"`
		}], "is not JSON"},
	} {
		func() {
			defer func() {
				p := recover()
				if text, _ := p.(string); !strings.Contains(text, tt.want) {
					t.Errorf("panic %v; want %q", p, tt.want)
				}
			}()
			tt.make()
		}()
	}
}

// Nested is embedded by a test; an embedded exported struct would promote fields.
type Nested struct{ A int }

func schemaOfFunc[In any]() json.RawMessage { return schemaOf[In]("t") }

func TestManifestListsEveryTool(t *testing.T) {
	t.Parallel()
	p := set{info: Info{Name: "n", Version: "1", KV: "ro"}}
	p.add(entryOf("a", Spec{Description: "A.", Effects: Read}, func(*Call, struct{}) (int, error) { return 0, nil }))
	p.add(entryOf("b", Spec{Input: json.RawMessage(`{"type":"object"}`), Output: json.RawMessage(`{"type":"null"}`)},
		func(*Call, map[string]any) (any, error) { return nil, nil }))
	s := &scripted{}
	if status := p.describe(s.host); status != 0 {
		t.Fatalf("status %d", status)
	}
	want := `output {"abi":1,"level":2,"name":"n","version":"1","tools":[` +
		`{"name":"a","description":"A.","input_schema":{"additionalProperties":false,"properties":{},"type":"object"},"effects":"read"},` +
		`{"name":"b","input_schema":{"type":"object"},"output_schema":{"type":"null"},"effects":"write"}],"permissions":{"kv":"ro"}}`
	if s.last() != want {
		t.Errorf("got  %s\nwant %s", s.last(), want)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second tool of one name was accepted")
		}
	}()
	p.add(entryOf("a", Spec{}, func(*Call, struct{}) (int, error) { return 0, nil }))
}
