package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Every way that somebody may spell a path, against the default stops. Only a path that is plainly elsewhere passes;
// the gate never has to know what a tool would make of a strange one.
// Public failure BY16.
func TestInvariant5_DefaultStopsHoldForEveryPathForm(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	str := func(s string) string { b, _ := json.Marshal(map[string]string{"path": s}); return string(b) }
	for _, tc := range []struct {
		arguments string
		stops     bool
	}{
		{str("/memories/AGENTS.md"), true},
		{str("/memories"), true},
		{str("/memories/"), true},
		{str("/skills/x/y.md"), true},
		{str("/skills"), true},
		{str("//memories/x"), true},
		{str("///memories/x"), true},
		{str("/memories//x"), true},
		{str("/./memories/x"), true},
		{str("/notes/../memories/x"), true},
		{str("/../memories/x"), true},
		{str("/memories/../notes/x"), true}, // not canonical, whatever it means
		{str("/notes/./x"), true},
		{str("/notes/x/"), true},
		{str("memories/x"), true},
		{str("./memories/x"), true},
		{str("../memories/x"), true},
		{str("notes/x"), true},
		{str("."), true},
		{str("./"), true},
		{str(".."), true},
		{str(""), true},
		{str("//"), true},
		{str(`\memories\x`), true},
		{str(`/notes\..\memories\x`), true},
		{str(`/memories\x`), true},
		{str("/memories/x\x00"), true},
		{str("/notes/\x00x"), true},
		{str("/mem\nories/x"), true},
		{str("/notes/\tx"), true},
		{str("/notes/\x7f"), true},
		{str("/notes/\u0085"), true},
		{str("/mem\u200bories/x"), true},
		{str("/\u202esemomem/x"), true},
		{str("/mem\u00adories/x"), true},
		{str("\ufeff/memories/x"), true},
		{str("/cafe\u0301/x"), true}, // NFD
		{str("/\u212b/x"), true},     // a sign that NFC writes as a letter
		{`{}`, true},
		{`{"path":null}`, true},
		{`{"path":["/notes/x"]}`, true},
		{`{"path":[]}`, true},
		{`{"path":{"path":"/notes/x"}}`, true},
		{`{"path":7}`, true},
		{`{"path":true}`, true},
		{`{"Path":"/notes/x"}`, true}, // another argument; path is missing
		{`{"file_path":"/notes/x"}`, true},

		{str("/notes/x"), false},
		{str("/notes"), false},
		{str("/"), false},
		{str("/memoriesx"), false},
		{str("/memories.md"), false},
		{str("/notes/memories/x"), false},
		{str("/Memories/x"), false},          // another place: names are compared by their bytes
		{str("/MEMORIES/x"), false},          //
		{str("/m\u0435mories/x"), false},     // Cyrillic е: a look-alike is another name
		{str("/notes\uff0fmemories"), false}, // fullwidth solidus is no separator
		{str("/\uff4demories/x"), false},     // fullwidth m
		{str("/caf\u00e9/x"), false},         // NFC
		{str("/%2fmemories/x"), false},       // nothing decodes %
		{str("/%2e%2e/memories/x"), false},   // a directory with a strange name, at the root
		{str("/memories%2fx"), false},
		{str("/notes/a b"), false},
		{str("/notes/..."), false},
		{str("/.memories/x"), false},
	} {
		for _, tool := range []string{"write_file", "edit_file"} {
			d := e.Gate(t.Context(), nil, input(tool, tc.arguments))
			if stops := d.Effect == Pause && slices.Equal(d.Rules, []string{"default/" + tool}); stops != tc.stops || d.Code != "" {
				t.Errorf("%s(%s): %+v; want a stop: %v", tool, tc.arguments, d, tc.stops)
			}
		}
	}
}

func TestMatchers(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	const stop, pass = true, false
	for _, tc := range []struct {
		when, arguments string
		stops, sure     bool // at the gate; in the scope of an edit
	}{
		{`{"a":{"equals":1}}`, `{"a":1}`, stop, true},
		{`{"a":{"equals":1}}`, `{"a":1.0}`, stop, true},
		{`{"a":{"equals":1}}`, `{"a":2}`, pass, false},
		{`{"a":{"equals":1}}`, `{"a":"1"}`, pass, false}, // equals is total: another type is another value
		{`{"a":{"equals":1}}`, `{"a":true}`, pass, false},
		{`{"a":{"equals":1}}`, `{}`, stop, false},
		{`{"a":{"equals":null}}`, `{"a":null}`, stop, true},
		{`{"a":{"equals":null}}`, `{"a":0}`, pass, false},
		{`{"a":{"equals":false}}`, `{"a":false}`, stop, true},
		{`{"a":{"equals":false}}`, `{"a":null}`, pass, false},
		{`{"a":{"equals":""}}`, `{"a":""}`, stop, true},
		{`{"a":{"equals":{"x":[1]}}}`, `{"a":{"x":[1]}}`, stop, true},
		{`{"a":{"equals":{"x":[1]}}}`, `{"a":{"x":[1,2]}}`, pass, false},
		{`{"a":{"equals":["x","y"]}}`, `{"a":["x","y"]}`, stop, true}, // the list itself
		{`{"a":{"equals":["x","y"]}}`, `{"a":"y"}`, stop, true},       // or any of it
		{`{"a":{"equals":["x","y"]}}`, `{"a":"z"}`, pass, false},
		{`{"a":{"in":["x",2,null]}}`, `{"a":null}`, stop, true},
		{`{"a":{"in":["x",2,null]}}`, `{"a":2.0}`, stop, true},
		{`{"a":{"in":["x",2,null]}}`, `{"a":[2]}`, pass, false},
		{`{"a":{"in":["x",2,null]}}`, `{"b":2}`, stop, false},
		{`{"a":{"not_in":["EUR"]}}`, `{"a":"USD"}`, stop, true},
		{`{"a":{"not_in":["EUR"]}}`, `{"a":"EUR"}`, pass, false},
		{`{"a":{"not_in":["EUR"]}}`, `{"a":["EUR"]}`, stop, true},
		{`{"a":{"not_in":["EUR"]}}`, `{}`, stop, false},
		{`{"a":{"prefix":"ab"}}`, `{"a":"abc"}`, stop, true},
		{`{"a":{"prefix":"ab"}}`, `{"a":"a"}`, pass, false},
		{`{"a":{"prefix":"ab"}}`, `{"a":["abc"]}`, stop, false},
		{`{"a":{"prefix":"ab"}}`, `{"a":7}`, stop, false},
		{`{"a":{"prefix":"ab"}}`, `{"a":null}`, stop, false},
		{`{"a":{"prefix":["x","ab"]}}`, `{"a":"abc"}`, stop, true},
		{`{"a":{"prefix":["x","ab"]}}`, `{"a":"yab"}`, pass, false},
		{`{"a":{"suffix":"@example.org"}}`, `{"a":"x@example.org"}`, stop, true},
		{`{"a":{"suffix":["@example.org","@b"]}}`, `{"a":"x@c"}`, pass, false},
		{`{"a":{"suffix":"x"}}`, `{"a":{}}`, stop, false},
		{`{"a":{"regex":"^rm "}}`, `{"a":"rm -rf /"}`, stop, true},
		{`{"a":{"regex":"rm"}}`, `{"a":"charm"}`, stop, true}, // unanchored
		{`{"a":{"regex":["^x$","^y$"]}}`, `{"a":"y"}`, stop, true},
		{`{"a":{"regex":["^x$","^y$"]}}`, `{"a":"xy"}`, pass, false},
		{`{"a":{"regex":"(?i)DROP\\s+table"}}`, `{"a":"drop  TABLE t"}`, stop, true},
		{`{"a":{"regex":"\"}\\nmalformed"}}`, `{"a":"x"}`, pass, false}, // text of the configuration is never code
		{`{"a":{"regex":"x"}}`, `{"a":false}`, stop, false},
		{`{"a":{"under":"/m"}}`, `{"a":"/m/x"}`, stop, true},
		{`{"a":{"under":"/m/"}}`, `{"a":"/m"}`, stop, true},
		{`{"a":{"under":["/n","/m"]}}`, `{"a":"/mm"}`, pass, false},
		{`{"a":{"under":"/"}}`, `{"a":"/x"}`, stop, true},
		{`{"a":{"under":"/m"}}`, `{"a":"m/x"}`, stop, false},
		{`{"a":{"under":"/m"}}`, `{"a":1}`, stop, false},
		{`{"a":{"min":1000}}`, `{"a":1000}`, stop, true},
		{`{"a":{"min":1000}}`, `{"a":999.99}`, pass, false},
		{`{"a":{"min":1000}}`, `{"a":"999"}`, stop, false},
		{`{"a":{"min":1000}}`, `{"a":null}`, stop, false},
		{`{"a":{"min":1000}}`, `{"a":false}`, stop, false},
		{`{"a":{"max":-1}}`, `{"a":-1}`, stop, true},
		{`{"a":{"max":-1}}`, `{"a":0}`, pass, false},
		{`{"a":{"max":1e2}}`, `{"a":[]}`, stop, false},
		{`{"a":{"min":10,"max":20}}`, `{"a":15}`, stop, true}, // several matchers on a field: all
		{`{"a":{"min":10,"max":20}}`, `{"a":25}`, pass, false},
		{`{"a":{"min":10,"max":20}}`, `{"a":5}`, pass, false},
		{`{"a":{"min_bytes":4}}`, `{"a":"äö"}`, stop, true},
		{`{"a":{"min_bytes":5}}`, `{"a":"äö"}`, pass, false},
		{`{"a":{"min_bytes":7}}`, `{"a":{"a":1}}`, stop, true},
		{`{"a":{"min_bytes":8}}`, `{"a":{"a":1}}`, pass, false},
		{`{"a":{"min_bytes":4}}`, `{"a":null}`, stop, true},
		{`{"a":{"min_bytes":0}}`, `{"a":""}`, stop, true},
		{`{"a":{"min_bytes":1}}`, `{}`, stop, false},
		{`{"a":{"min":1},"b":{"equals":"x"}}`, `{"a":1,"b":"x"}`, stop, true}, // several fields: all
		{`{"a":{"min":1},"b":{"equals":"x"}}`, `{"a":1,"b":"y"}`, pass, false},
		{`{"a":{"min":1},"b":{"equals":"x"}}`, `{"b":"x"}`, stop, false},
		{`[{"a":{"min":1000}},{"c":{"not_in":["EUR"]}}]`, `{"a":1,"c":"USD"}`, stop, true}, // a list: any
		{`[{"a":{"min":1000}},{"c":{"not_in":["EUR"]}}]`, `{"a":1000,"c":"EUR"}`, stop, true},
		{`[{"a":{"min":1000}},{"c":{"not_in":["EUR"]}}]`, `{"a":1,"c":"EUR"}`, pass, false},
		{`{"a":{"equals":1,"missing":"no_match"}}`, `{}`, pass, false},
		{`{"a":{"equals":1,"missing":"no_match"}}`, `{"a":null}`, pass, false}, // null is a value, and not 1
		{`{"a":{"min":1,"missing":"no_match"}}`, `{"a":null}`, stop, false},    // null is a value, and not a number
		{`{"a":{"min":1,"missing":"no_match"}}`, `{"a":"x"}`, stop, false},
		{`{"a":{"min":1,"missing":"no_match"}}`, `{"a":1}`, stop, true},
		{`{"/a/b":{"equals":1}}`, `{"a":{"b":1}}`, stop, true},
		{`{"/a/b":{"equals":1}}`, `{"a":{"b":2}}`, pass, false},
		{`{"/a/b":{"equals":1}}`, `{"a":{}}`, stop, false},
		{`{"/a/b":{"equals":1,"missing":"no_match"}}`, `{"a":{}}`, pass, false},
		{`{"/a/b":{"equals":1,"missing":"no_match"}}`, `{}`, pass, false},
		{`{"/a/b":{"equals":1,"missing":"no_match"}}`, `{"a":"text"}`, stop, false}, // nobody can tell
		{`{"/a/b":{"equals":1,"missing":"no_match"}}`, `{"a":null}`, stop, false},
		{`{"/a/1":{"equals":1}}`, `{"a":[0,1]}`, stop, true},
		{`{"/a/1":{"equals":1}}`, `{"a":{"1":1}}`, stop, true},
		{`{"/a/1":{"equals":1}}`, `{"a":[0,2]}`, pass, false},
		{`{"/a/1":{"equals":1,"missing":"no_match"}}`, `{"a":[0]}`, pass, false},
		{`{"/a/01":{"equals":1,"missing":"no_match"}}`, `{"a":[0,1]}`, stop, false},
		{`{"/a/-":{"equals":1,"missing":"no_match"}}`, `{"a":[0,1]}`, stop, false},
		{`{"/a~1b":{"equals":1}}`, `{"a/b":1}`, stop, true},
		{`{"/a~0b":{"equals":1}}`, `{"a~b":2}`, pass, false},
		{`{"/":{"equals":1}}`, `{"":1}`, stop, true},
		{`{"":{"equals":1}}`, `{"":2}`, pass, false},
		{`{"a.b":{"equals":1}}`, `{"a.b":2}`, pass, false},
		{`{"a":{"equals":1}}`, `[]`, stop, false}, // arguments that are no object
		{`{"a":{"equals":1,"missing":"no_match"}}`, `"x"`, stop, false},
	} {
		on := compileOn(t, e, `{"do":{"when":`+tc.when+`}}`)
		d := e.Gate(t.Context(), on, input("do", tc.arguments))
		if (d.Effect == Pause) != tc.stops || d.Code != "" || d.Effect == Deny {
			t.Errorf("when %s, %s: %+v; want a stop: %v", tc.when, tc.arguments, d, tc.stops)
		}
		sure, missing, denied := e.Fires(t.Context(), on, input("do", tc.arguments), []string{"interrupt_on/do"})
		if sure != tc.sure || sure == (len(missing) == 1) || denied != nil {
			t.Errorf("when %s, %s: Fires = %v, %v, %v; want %v", tc.when, tc.arguments, sure, missing, denied, tc.sure)
		}
	}
}

func TestInterruptOnCoversTheRightTools(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, tc := range []struct {
		interruptOn, plugin, tool string
		rules                     []string
	}{
		{`{"send":true}`, "mail", "send", []string{"interrupt_on/send"}},
		{`{"send":true}`, "chat", "send", []string{"interrupt_on/send"}},
		{`{"mail.send":true}`, "mail", "send", []string{"interrupt_on/mail.send"}},
		{`{"mail.send":true}`, "chat", "send", nil},
		{`{"mail.send":true}`, "x", "mail.send", []string{"interrupt_on/mail.send"}}, // a tool whose own name has a dot
		{`{"a.b.send":true}`, "a.b", "send", []string{"interrupt_on/a.b.send"}},
		{`{"send":true,"mail.send":true}`, "mail", "send", []string{"interrupt_on/mail.send", "interrupt_on/send"}},
		{`{"send":true,"mail.send":false}`, "mail", "send", []string{"interrupt_on/send"}}, // the strictest wins
		{`{"send":false}`, "mail", "send", nil},
		{`{"Send":true}`, "mail", "send", nil},
		{`{}`, "files", "write_file", []string{"default/write_file"}},
		{`null`, "files", "write_file", []string{"default/write_file"}},
		{``, "other", "write_file", []string{"default/write_file"}},
		{`{"write_file":true}`, "files", "write_file", []string{"interrupt_on/write_file"}},
		{`{"write_file":false}`, "files", "write_file", nil},
		{`{"write_file":false}`, "files", "edit_file", []string{"default/edit_file"}},
		{`{"files.write_file":false}`, "files", "write_file", []string{"default/write_file"}}, // not the same name, so nothing is replaced
	} {
		in := input(tc.tool, `{"path":"/memories/x"}`)
		in.Call.Plugin, in.Call.Name = tc.plugin, tc.plugin+"."+tc.tool
		d := e.Gate(t.Context(), compileOn(t, e, tc.interruptOn), in)
		want := Pause
		if tc.rules == nil {
			want = Allow
		}
		if d.Effect != want || !slices.Equal(d.Rules, tc.rules) {
			t.Errorf("%s on %s.%s: %+v; want %v", tc.interruptOn, tc.plugin, tc.tool, d, tc.rules)
		}
	}
}

func TestDecisionCarriesWhatTheEntrySays(t *testing.T) {
	t.Parallel()
	e := newEngine(t, "r.rego", `package pawl.rules
pause contains {"rule": "budget", "reason": "constraints_conflict", "ttl": "30m", "allowed_decisions": ["reject", "approve", "edit"]} if input.call.arguments.amount > input.untrusted.tool_context.budget
`)
	on := compileOn(t, e, `{"transfer":{"allowed_decisions":["reject","approve","approve"],"ttl":"1h","title":"Money","message":"leaves"}}`)
	d := e.Gate(t.Context(), on, input("transfer", `{"amount":3}`))
	if got := fmt.Sprintf("%+v", d); got != "{Effect:pause Code: Reason:approval_required AllowedDecisions:[approve reject] Title:Money Message:leaves TTL:1h0m0s Rules:[interrupt_on/transfer] Reasons:[] Detail: Revision:"+e.Revision()+"}" {
		t.Error(got)
	}
	d = e.Gate(t.Context(), on, input("transfer", `{"amount":8}`))
	if got := fmt.Sprintf("%+v", d); got != "{Effect:pause Code: Reason:constraints_conflict AllowedDecisions:[approve reject] Title:Money Message:leaves TTL:30m0s Rules:[budget interrupt_on/transfer] Reasons:[] Detail: Revision:"+e.Revision()+"}" {
		t.Error(got)
	}
	all, missing, denied := e.Fires(t.Context(), on, input("transfer", `{"amount":3}`), []string{"interrupt_on/transfer", "budget", "budget"})
	if all || !slices.Equal(missing, []string{"budget"}) || denied != nil {
		t.Errorf("an edit under the budget: %v %v %v", all, missing, denied)
	}
	if all, missing, _ := e.Fires(t.Context(), on, input("transfer", `{"amount":9}`), []string{"budget", "interrupt_on/transfer"}); !all || missing != nil {
		t.Errorf("an edit above the budget: %v %v", all, missing)
	}
}

func TestFiresReportsADeny(t *testing.T) {
	t.Parallel()
	e := newEngine(t, "r.rego", "package pawl.rules\ndeny contains {\"rule\": \"cap\", \"message\": \"too much\"} if input.call.arguments.amount > 100\n")
	on := compileOn(t, e, `{"transfer":true}`)
	all, missing, denied := e.Fires(t.Context(), on, input("transfer", `{"amount":101}`), []string{"interrupt_on/transfer"})
	if all || len(missing) != 1 || denied == nil || denied.Effect != Deny || !slices.Equal(denied.Rules, []string{"cap"}) || !slices.Equal(denied.Reasons, []string{"too much"}) {
		t.Errorf("%v %v %+v", all, missing, denied)
	}
}

// The names of the input are an interface: people's rules read them. A change of this file is a change of that interface.
func TestInputDocumentIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	in := input("write_file", `{"content":"hi","path":"/memories/x"}`)
	in.Frame.Depth, in.Call.Index = 1, 0
	in.Agent.Permissions = []string{PresetInteractive}
	in.Batch = []*Call{{
		Tool: "ls", Plugin: "files", Name: "files.ls", Digest: "sha256:00", Effects: "read", ToolCallID: "c2", Index: 1,
		Arguments: json.RawMessage(`{"path":"/"}`),
	}}
	doc, err := in.document()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t)
	if d := e.decide(t.Context(), nil, in, false); d.Effect != Pause {
		t.Fatalf("%+v", d)
	}
	v, fail := e.gateValue(t.Context(), &e.defaults.stop, doc, nil)
	if fail != nil || v == nil {
		t.Fatal(fail)
	}
	got := indented(t, doc)
	want, err := os.ReadFile("testdata/input.json")
	if err != nil || !bytes.Equal(want, got) {
		t.Errorf("testdata/input.json (%v) differs from\n%s", err, got)
	}
	// The struct's own JSON has the same names, for who builds an input by hand.
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	own, err := parseJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := names("", own), names("", ast.NewTerm(doc)); !slices.Equal(a, slices.DeleteFunc(b, func(s string) bool { return strings.HasPrefix(s, "/interrupts") })) {
		t.Errorf("json.Marshal has\n%v\nthe document\n%v", a, b)
	}
}

func names(at string, t *ast.Term) []string {
	var all []string
	switch v := t.Value.(type) {
	case ast.Object:
		v.Foreach(func(k, x *ast.Term) { all = append(all, names(at+"/"+string(k.Value.(ast.String)), x)...) })
	case *ast.Array:
		v.Foreach(func(x *ast.Term) { all = append(all, names(at+"/-", x)...) })
	default:
		return []string{at}
	}
	slices.Sort(all)
	if len(all) == 0 {
		all = []string{at}
	}
	return all
}

func indented(t *testing.T, v ast.Value) []byte {
	t.Helper()
	x, err := ast.JSON(v)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(x, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// A rule sees the arguments that run, also when a Call is used again with others.
func TestInvariant6_EditedArgumentsAreReadAnew(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	in := input("write_file", `{"path":"/notes/x"}`)
	if d := e.Gate(t.Context(), nil, in); d.Effect != Allow {
		t.Fatalf("%+v", d)
	}
	copy(in.Call.Arguments, `{"path":"/skill/x"}`)
	in.Call.Arguments = json.RawMessage(`{"path":"/skills/x"}`)
	if d := e.Gate(t.Context(), nil, in); d.Effect != Pause {
		t.Errorf("after an edit: %+v", d)
	}
	copy(in.Call.Arguments, `{"path":"/memory/x"}`) // in place
	if d := e.Gate(t.Context(), nil, in); d.Effect != Allow {
		t.Errorf("after an edit in place: %+v", d)
	}
}

func TestInvariant5_AnInputThatCannotBeReadIsDenied(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	for _, raw := range []string{
		`{`, `{"a":1,"a":2}`, `{"a":1}x`, "{\"a\":\"\xff\"}", `{"a":"\ud800"}`, `{"a":1e400}`, `{"a":` + deep + `}`, `nul`, `{"a":01}`,
		`{"a":"` + strings.Repeat("x", maxInput) + `"}`,
	} {
		in := input("read_file", raw)
		if d := e.Gate(t.Context(), nil, in); d.Effect != Deny || d.Code != CodeInput {
			t.Errorf("arguments %.40q: %+v", raw, d)
		}
		in = input("read_file", `{}`)
		in.Batch = []*Call{{Tool: "a", Arguments: json.RawMessage(raw)}}
		if d := e.Gate(t.Context(), nil, in); d.Effect != Deny || d.Code != CodeInput {
			t.Errorf("arguments of another call %.40q: %+v", raw, d)
		}
		in = input("read_file", `{}`)
		in.Untrusted.ToolContext = json.RawMessage(raw)
		if d := e.Gate(t.Context(), nil, in); d.Effect != Deny || d.Code != CodeInput {
			t.Errorf("tool context %.40q: %+v", raw, d)
		}
	}
	for _, in := range []*Input{nil, {}} {
		if d := e.Gate(t.Context(), nil, in); d.Effect != Deny || d.Code != CodeInput {
			t.Errorf("%+v: %+v", in, d)
		}
	}
	var zero Decision
	if zero.Effect == Allow || zero.Effect == Pause {
		t.Error("the zero value must deny")
	}
	if zero := (Verdict{}); zero.Allow {
		t.Error("the zero value must refuse")
	}
}

func TestGateIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	e := newEngine(t, "r.rego", "package pawl.rules\npause contains {\"rule\": \"many\"} if count(input.batch) > 2\n")
	on := compileOn(t, e, `{"write_file":{"when":{"path":{"regex":"^/x"}}}}`)
	calls := make([]*Call, 8) // shared between the evaluations, as the host does for a batch
	for i := range calls {
		calls[i] = &Call{Tool: "write_file", Arguments: json.RawMessage(fmt.Sprintf(`{"path":"/x/%d","z":{"b":1,"a":2}}`, i))}
	}
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			for range 20 {
				in := input("", "{}")
				in.Call, in.Batch = calls[i], slices.Concat(calls[:i], calls[i+1:])
				if d := e.Gate(t.Context(), on, in); d.Effect != Pause || !slices.Equal(d.Rules, []string{"interrupt_on/write_file", "many"}) {
					t.Errorf("%+v", d)
				}
				if _, err := e.Compile(json.RawMessage(fmt.Sprintf(`{"t%d":true}`, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestInputTimeIsInUTCWithMilliseconds(t *testing.T) {
	t.Parallel()
	e := newEngine(t, "r.rego", `package pawl.rules
deny contains input.time
deny contains sprintf("%v", [time.clock([time.parse_rfc3339_ns(input.time), "Europe/Berlin"])])
`)
	in := input("x", "{}")
	in.Time = time.Date(2026, 7, 1, 1, 2, 3, 4_567_000, time.FixedZone("x", 3600))
	if d := e.Gate(t.Context(), nil, in); !slices.Equal(d.Reasons, []string{"2026-07-01T00:02:03.004Z", "[2, 2, 3]"}) {
		t.Errorf("%+v", d)
	}
}

// The worst pattern that can be saved, on texts around the bound: a decision in time below it, a stop above it.
func TestInvariant5_ATextTooLongForAPatternStops(t *testing.T) {
	t.Parallel()
	e, err := New(t.Context(), Options{Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	on, err := e.Compile(json.RawMessage(`{"echo":{"when":{"q":{"regex":"(x?){0,75}y"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int]Effect{10: Allow, maxPatternText: Allow, maxPatternText + 1: Pause, 1 << 20: Pause} {
		d := e.Gate(t.Context(), on, input("echo", `{"q":"`+strings.Repeat("x", size)+`"}`))
		if d.Effect != want || d.Code != "" {
			t.Errorf("%d bytes: %+v, want %s", size, d, want)
		}
		if all, _, _ := e.Fires(t.Context(), on, input("echo", `{"q":"`+strings.Repeat("x", size)+`"}`), []string{"interrupt_on/echo"}); all {
			t.Errorf("%d bytes: an edit would be in scope", size)
		}
	}
}
