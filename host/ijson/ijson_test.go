package ijson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host/ijson"
)

func TestCheckRefusesWithAPointer(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	for name, tt := range map[string]struct{ in, pointer, detail string }{
		"empty":                        {"", "", "empty"},
		"only white space":             {" \n", "", "empty"},
		"byte order mark":              {"\xef\xbb\xbf{}", "", "byte order mark"},
		"cut off":                      {`{"a":[1,`, "/a", "ends too early"},
		"trailing value":               {`{} {}`, "", "exactly one"},
		"trailing garbage":             {`{}x`, "", "exactly one"},
		"duplicate name":               {`{"a":1,"a":2}`, "/a", "two members"},
		"duplicate by escape":          {`{"a":1,"\u0061":2}`, "/a", "two members"},
		"duplicate, nested":            {`{"x":[{"a":1},{"b":1,"b":1}]}`, "/x/1/b", "two members"},
		"invalid UTF-8":                {"{\"a\":\"\xff\"}", "/a", "UTF-8"},
		"overlong UTF-8":               {"[\"\xc0\xaf\"]", "/0", "UTF-8"},
		"surrogate in UTF-8":           {"[\"\xed\xa0\x80\"]", "/0", "UTF-8"},
		"lone high surrogate":          {`["\ud800"]`, "/0", "surrogate"},
		"lone low surrogate":           {`["\udc00x"]`, "/0", "surrogate"},
		"swapped surrogates":           {`{"s":"\ude00\ud83d"}`, "/s", "surrogate"},
		"lone surrogate in a name":     {`{"\ud800":1}`, "", "surrogate"},
		"noncharacter":                 {"[\"\uffff\"]", "/0", "noncharacter"},
		"noncharacter by escape":       {`["\ufdd0"]`, "/0", "noncharacter"},
		"noncharacter, plane 1":        {"[\"\U0001fffe\"]", "/0", "noncharacter"},
		"noncharacter in a name":       {"{\"\uffff\":1}", "/\uffff", "noncharacter"},
		"2^53":                         {`{"n":9007199254740992}`, "/n", "2^53-1"},
		"2^53+1":                       {`{"a":{"n":[0,9007199254740993]}}`, "/a/n/1", "2^53-1"},
		"-(2^53+1)":                    {`[-9007199254740993]`, "/0", "2^53-1"},
		"2^53 as a fraction":           {`[9007199254740992.0]`, "/0", "2^53-1"},
		"a fraction that rounds to it": {`[9007199254740991.5]`, "/0", "2^53-1"},
		"2^53 with an exponent":        {`[9.007199254740993e15]`, "/0", "2^53-1"},
		"1e300":                        {`[1e300]`, "/0", "2^53-1"},
		"1e400":                        {`{"n":1e400}`, "/n", "does not fit"},
		"-1e400":                       {`-1e400`, "", "does not fit"},
		"400 digits":                   {strings.Repeat("9", 400), "", "does not fit"},
		"NaN":                          {`NaN`, "", "well-formed"},
		"leading zero":                 {`[01]`, "/0", "well-formed"},
		"single quotes":                {`{'a':1}`, "", "well-formed"},
		"comment":                      {`{"a":1/**/}`, "", "well-formed"},
		"control character":            {"[\"\x01\"]", "/0", ""},
		"depth 129":                    {deep(129), strings.Repeat("/a", 128), "128"},
		"depth 10000 of objects":       {deep(10000), strings.Repeat("/a", 128), "128"},
		"depth 10000 of arrays, open":  {strings.Repeat("[", 10000), strings.Repeat("/0", 128), "128"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := ijson.Check([]byte(tt.in))
			e, ok := errors.AsType[*ijson.Error](err)
			if !ok {
				t.Fatalf("Check: %v, want an *ijson.Error", err)
			}
			// Which value a syntax error is within is jsontext's to say; that it lies on the way is ours.
			if tt.detail == "well-formed" || tt.detail == "ends too early" {
				if !strings.HasPrefix(tt.pointer, e.Pointer) && !strings.HasPrefix(e.Pointer, tt.pointer) {
					t.Errorf("pointer %q, want near %q", e.Pointer, tt.pointer)
				}
			} else if e.Pointer != tt.pointer {
				t.Errorf("pointer %q, want %q", e.Pointer, tt.pointer)
			}
			if !strings.Contains(e.Detail, tt.detail) {
				t.Errorf("detail %q does not mention %q", e.Detail, tt.detail)
			}
			if c, err := ijson.Parse([]byte(tt.in)); err == nil {
				t.Errorf("Parse accepts what Check refuses: %s", c)
			}
		})
	}
}

func TestParseHasOneFormForOneMeaning(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{` { "b" : 1 , "a" : [ true , null ] } `, `{"a":[true,null],"b":1}`},
		{`{"\u0061":"\u0041\/"}`, `{"a":"A/"}`},
		{`[1.0,1e0,10E-1,-0,0.1e1]`, `[1,1,1,0,1]`},
		{`[9007199254740991,-9007199254740991,9007199254740991.0]`, `[9007199254740991,-9007199254740991,9007199254740991]`},
		{`[1e-7,0.000001,333333333.33333329]`, `[1e-7,0.000001,333333333.3333333]`},
		{`"\ud83d\ude00"`, "\"\U0001f600\""},
		// RFC 8785, 3.2.3: names sort by UTF-16 code units, where U+1F600 (D83D …) is below U+FB33.
		{"{\"\ufb33\":1,\"\U0001f600\":2,\"\u20ac\":3,\"\\r\":4,\"1\":5}", "{\"\\r\":4,\"1\":5,\"\u20ac\":3,\"\U0001f600\":2,\"\ufb33\":1}"},
		{`false`, `false`}, {`0`, `0`}, {`""`, `""`}, {`null`, `null`},
		{`{"":{"":""}}`, `{"":{"":""}}`},
	} {
		in := []byte(tt.in)
		got, err := ijson.Parse(in)
		if err != nil || string(got) != tt.want {
			t.Errorf("Parse(%s) = %s, %v, want %s", tt.in, got, err, tt.want)
		}
		if string(in) != tt.in {
			t.Errorf("Parse changed its input %s to %s", tt.in, in)
		}
	}
	if c, err := ijson.Parse([]byte(strings.Repeat("[", 128) + strings.Repeat("]", 128))); err != nil || len(c) != 256 {
		t.Errorf("depth 128: %v", err)
	}
}

func TestDigestIsTheSHA256OfTheBytesAlone(t *testing.T) {
	t.Parallel()
	if got := ijson.Digest([]byte("{}")); got != "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" {
		t.Error(got)
	}
}

func TestHugeTextsAreAnsweredQuicklyAndShortly(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"nesting": strings.Repeat("[", 1<<20),
		"members": "{" + strings.TrimSuffix(func() string {
			var b strings.Builder
			for i := range 60000 {
				b.WriteString(`"k` + strings.Repeat("x", i%7) + time.Duration(i).String() + `":1,`)
			}
			return b.String()
		}(), ",") + `,"k0s":1}`,
		"a long pointer": `{"` + strings.Repeat("n", 1<<19) + `":{"b":1e999}}`,
	} {
		start := time.Now()
		err := ijson.Check([]byte(in))
		if e, ok := errors.AsType[*ijson.Error](err); !ok || len(e.Pointer) > 512 {
			t.Errorf("%s: %.200v", name, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s took %v", name, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x",null,true]}`, `[1e15,-0,1E-400]`, `"\ud83d\ude00"`, `{"a":1,"a":2}`, "\xff", `9007199254740993`, ` [ ] `, `{"\u0000":""}`} {
		f.Add([]byte(s), []byte(`{"a":1}`))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		ca, erra := ijson.Parse(a)
		if (erra == nil) != (ijson.Check(a) == nil) {
			t.Fatalf("Parse and Check disagree on %q: %v", a, erra)
		}
		if erra != nil {
			if e, ok := errors.AsType[*ijson.Error](erra); !ok || len(e.Pointer) > 512 {
				t.Fatalf("error %v", erra)
			}
			return
		}
		again, err := ijson.Parse(ca)
		if err != nil || !bytes.Equal(again, ca) {
			t.Fatalf("%q is not a fixed point: %q, %v", ca, again, err)
		}
		va := decode(t, a)
		if !reflect.DeepEqual(va, decode(t, ca)) {
			t.Fatalf("%q changed its meaning to %q", a, ca)
		}
		if cb, err := ijson.Parse(b); err == nil && bytes.Equal(ca, cb) != reflect.DeepEqual(va, decode(t, b)) {
			t.Fatalf("%q and %q: one form %v, one meaning %v", a, b, bytes.Equal(ca, cb), !bytes.Equal(ca, cb))
		}
	})
}

// decode is the reading of a parser that is not ours.
func decode(t *testing.T, b []byte) (v any) {
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", b, err)
	}
	return v
}
