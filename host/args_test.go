package host_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

// call is a batch of one call whose arguments no JSON encoder has seen.
func call(tool, args string) []host.ProposedCall {
	return []host.ProposedCall{{ToolCallID: "c", Tool: tool, Arguments: json.RawMessage(args)}}
}

func createWith(h *hosttest.Host, agent string, calls []host.ProposedCall) (host.Run, error) {
	return h.CreateRun(h.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: agent, Calls: calls}))
}

// A transport refuses such a body already; arguments also come from planners, and the host does not rely on either.
func TestInvariant5_ArgumentsThatReadersUnderstandDifferentlyNeverRun(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("say", `{}`)
	h.External("ask", `{"echo":true}`)
	for name, args := range map[string]string{
		"duplicate names":              `{"to":"me","to":"you"}`,
		"duplicate names, one escaped": `{"to":"me","t\u006f":"you"}`,
		"duplicate names deep inside":  `{"a":[{"b":{"c":1,"c":1}}]}`,
		"2^53":                         `{"n":9007199254740992}`,
		"2^53+1":                       `{"n":9007199254740993}`,
		"-(2^53+1)":                    `{"n":-9007199254740993}`,
		"2^53+1 as a decimal":          `{"n":9007199254740993.0}`,
		"1e400":                        `{"n":1e400}`,
		"-1e400":                       `{"n":[-1e400]}`,
		"a lone high surrogate":        `{"s":"\ud800"}`,
		"a lone low surrogate":         `{"s":"\udc00 "}`,
		"surrogates in wrong order":    `{"s":"\udc00\ud800"}`,
		"a lone surrogate in a name":   `{"\ud800":1}`,
		"invalid UTF-8":                "{\"s\":\"\xff\"}",
		"invalid UTF-8 in a name":      "{\"\xc3\x28\":1}",
		"overlong UTF-8":               "{\"s\":\"\xc0\xaf\"}",
		"a surrogate as UTF-8":         "{\"s\":\"\xed\xa0\x80\"}",
		"depth 129":                    `{"a":` + strings.Repeat("[", 128) + strings.Repeat("]", 128) + `}`,
		"depth 10,000":                 `{"a":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`,
		"depth 10,000, never closed":   strings.Repeat(`{"a":`, 10_000),
		"two values":                   `{} {}`,
		"nothing":                      ``,
		"half a value":                 `{"a":`,
		"a comment":                    `{"a":1/**/}`,
		"NaN":                          `{"a":NaN}`,
		"a control character":          "{\"s\":\"\x01\"}",
		"a byte order mark":            "\ufeff{}",
	} {
		for _, agent := range []string{"say", "ask"} {
			r, err := createWith(h, agent, call("echo", args))
			if err != nil {
				if e := refusal(t, err, host.CodeInvalid); e.Pointer == "" {
					t.Errorf("%s: refused without a pointer", name)
				}
				continue
			}
			c := r.Calls[0]
			if r.State != store.RunAwaitingPlanner || c.State != store.CallFinished || resultOf(c) != "invalid_arguments" || c.Error.Message == "" {
				t.Errorf("%s: run %s, call %s with %s", name, r.State, c.State, resultOf(c))
			}
			if len(c.Error.Message) > 2<<10 || !json.Valid([]byte(text(t, r, nil))) {
				t.Errorf("%s: the run shows it as %.100s", name, c.Error.Message)
			}
		}
	}
	if ran := h.Ran.All(); len(ran) != 0 {
		t.Errorf("ran %v", ran)
	}
	r, err := createWith(h, "say", call("echo", `{"n":9007199254740991,"m":-9007199254740991,"s":"😀\ud83d\ude00","a":`+strings.Repeat("[", 126)+strings.Repeat("]", 126)+`}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := resultOf(h.Settled(r.ID).Calls[0]); !strings.HasPrefix(got, `{"a":`) || !strings.HasSuffix(got, `,"m":-9007199254740991,"n":9007199254740991,"s":"😀😀"}`) {
		t.Errorf("what I-JSON allows: %s", got)
	}
}

func TestInvariant8_ARunWithTextsThatAreNotIJSONIsRefused(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("say", `{}`)
	before := h.Stored()
	for _, bad := range []string{`{"a":1,"a":2}`, `9007199254740993`, `1e400`, `"\ud800"`, "\"\xff\"", strings.Repeat("[", 10_000)} {
		for at, req := range map[string]host.NewRun{
			"/input":        {Agent: "say", Input: raw(bad)},
			"/tool_context": {Agent: "say", ToolContext: raw(`{"x":` + bad + `}`)},
		} {
			_, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(req))
			if e := refusal(t, err, host.CodeInvalid); !strings.HasPrefix(e.Pointer, at) {
				t.Errorf("%.20q in %s: pointer %q", bad, at, e.Pointer)
			}
		}
		_, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "bad", hosttest.Body(raw(`{"planner":{"kind":"script","turns":[{"calls":[{"tool":"echo","arguments":{"x":`+bad+`}}]}]},"tools":["echo"]}`)))
		refusal(t, err, host.CodeInvalid)
	}
	for _, req := range []host.NewRun{
		{}, {Agent: "say", Calls: []host.ProposedCall{}}, {Agent: "say", SessionID: strings.Repeat("s", 257)},
		{Agent: "say", Calls: []host.ProposedCall{{}}}, {Agent: "say", Calls: call("", `{}`)},
	} {
		_, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(req))
		if e := refusal(t, err, host.CodeInvalid); e.Pointer == "" {
			t.Errorf("%+v: refused without a pointer", req)
		}
	}
	h.Unchanged(before)
}

func TestInvariant6_OneMeaningHasOneCanonicalFormAndDigest(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", `{"transfer":true,"echo":true}`)
	digests := map[string]string{}
	shown := func(tool, args string) (string, string) {
		t.Helper()
		r, err := createWith(h, "pay", call(tool, args))
		if err != nil || r.Pause == nil {
			t.Fatalf("%s: %v, state %s, %s", args, err, r.State, resultsOf(r))
		}
		ap := r.Pause.Approvals[0]
		if string(ap.Arguments) != string(r.Calls[0].Arguments) || ap.ArgsDigest != hosttest.Digest(string(ap.Arguments)) {
			t.Errorf("%s: shown %s with %s, the call has %s", args, ap.Arguments, ap.ArgsDigest, r.Calls[0].Arguments)
		}
		return string(ap.Arguments), ap.ArgsDigest
	}
	for _, spelling := range []string{`{"amount":100}`, `{"amount":1e2}`, `{"amount":100.0}`, `{"amount":1.00E+2}`, ` { "amount" : 100 , "currency" : "EUR" } `, `{"currency":"\u0045UR","amount":1000e-1}`} {
		if args, digest := shown("transfer", spelling); args != `{"amount":100,"currency":"EUR"}` || digest != hosttest.Digest(args) {
			t.Errorf("%s became %s", spelling, args)
		}
	}
	// Two meanings never share a digest.
	for _, args := range []string{
		`{}`, `{"a":null}`, `{"a":0}`, `{"a":"0"}`, `{"a":false}`, `{"a":""}`, `{"a":[]}`, `{"a":{}}`, `{"a":[0]}`, `{"a":[[0]]}`, `{"a":[0,0]}`, `{"A":0}`, `{"a":0,"b":0}`,
		`{"a ":0}`, `{"a":"\u00e9"}`, `{"a":"e\u0301"}`, `{"a":"<"}`, `{"a":"\u2028"}`, `{"a":"\\u2028"}`, `{"a":1}`, `{"a":-1}`, `{"a":0.1}`, `{"a":0.10000000000000002}`, `{"a":"\u0000"}`, `{"a":"\ufeff"}`,
	} {
		_, digest := shown("echo", args)
		if other, ok := digests[digest]; ok {
			t.Errorf("%s and %s share the digest %s", args, other, digest)
		}
		digests[digest] = args
	}
}

// Public failure BY6.
func TestInvariant6_TheToolGetsTheBytesWhoseDigestWasShown(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{"echo":true,"write_file":true}`)
	for _, tc := range []struct{ tool, args, want string }{
		{"echo", `{"b":1,"a":{"d":[3,2],"c":"x"}}`, `{"a":{"c":"x","d":[3,2]},"b":1}`},
		{"echo", `{"s":"<script>&amp;</script>"}`, `{"s":"<script>&amp;</script>"}`},
		{"echo", "{\"s\":\"a\u2028b\u2029c\"}", "{\"s\":\"a\u2028b\u2029c\"}"},
		{"echo", `{"s":"\u003c\u2028\u002f\"\\\n\u001f"}`, "{\"s\":\"<\u2028/\\\"\\\\\\n\\u001f\"}"},
		{"echo", `{"s":"\ufb01 \u212b \ud835\udd38 \u202e"}`, "{\"s\":\"\ufb01 \u212b \U0001d538 \u202e\"}"}, // no normalisation: what was shown is what runs
		{"echo", `{"n":1E1,"m":-0.0,"k":1e-7,"l":123456789012345e1}`, `{"k":1e-7,"l":1234567890123450,"m":0,"n":10}`},
		{"echo", `{"big":"` + strings.Repeat("é<", 50_000) + `"}`, `{"big":"` + strings.Repeat("é<", 50_000) + `"}`},
		{"write_file", `{"path":"/a&b","content":"<\u2029>"}`, "{\"content\":\"<\u2029>\",\"path\":\"/a&b\"}"},
	} {
		before := len(h.Ran.All())
		r, err := createWith(h, "ask", call(tc.tool, tc.args))
		if err != nil {
			t.Fatal(err)
		}
		ap := r.Pause.Approvals[0]
		if string(ap.Arguments) != tc.want || ap.ArgsDigest != hosttest.Digest(tc.want) {
			t.Errorf("shown %.200s, want %.200s", ap.Arguments, tc.want)
		}
		if !strings.Contains(string(r.Pause.Payload), tc.want) {
			t.Errorf("the pause's payload shows %.200s", r.Pause.Payload)
		}
		if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
		ran := h.Ran.All()[before:]
		if len(ran) != 1 {
			t.Fatalf("ran %d times", len(ran))
		}
		got := strings.TrimPrefix(ran[0], tc.tool+" ")
		if got != tc.want || hosttest.Digest(got) != ap.ArgsDigest {
			t.Errorf("the tool got %.200s, the digest shown is of %.200s", got, tc.want)
		}
		if tc.tool == "echo" && resultOf(r.Calls[0]) != tc.want {
			t.Errorf("the result is %.200s", resultOf(r.Calls[0]))
		}
	}
}

func TestArguments_ThatMissTheSchemaEndTheCallAndNotTheRun(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Schemas: map[string]string{
		"echo": `{"type":"object","properties":{"n":{"type":"integer","minimum":1},"mode":{"enum":["a","b"],"default":"a"},"o":{"type":"object","properties":{"x":{"type":"string","default":"in"}}}},"required":["n"],"additionalProperties":false}`,
	}})
	h.External("say", `{"echo":true}`)
	for _, args := range []string{`{}`, `{"n":0}`, `{"n":1.5}`, `{"n":"1"}`, `{"n":1,"mode":"c"}`, `{"n":1,"z":1}`, `[]`, `null`, `"x"`, `{"n":1,"o":[]}`} {
		r, err := createWith(h, "say", call("echo", args))
		if err != nil {
			t.Fatalf("%s: %v; what is I-JSON and misses its schema is no bad request", args, err)
		}
		if resultsOf(r) != "invalid_arguments" || r.State != store.RunAwaitingPlanner || r.Pause != nil {
			t.Errorf("%s: state %s, %s", args, r.State, resultsOf(r))
		}
	}
	for args, want := range map[string]string{`{"n":1}`: `{"mode":"a","n":1}`, `{"n":1.0,"o":{}}`: `{"mode":"a","n":1,"o":{"x":"in"}}`, `{"o":{"x":"y"},"mode":"b","n":2}`: `{"mode":"b","n":2,"o":{"x":"y"}}`} {
		r, err := createWith(h, "say", call("echo", args))
		if err != nil || r.Pause == nil || string(r.Pause.Approvals[0].Arguments) != want || r.Pause.Approvals[0].ArgsDigest != hosttest.Digest(want) {
			t.Errorf("%s: %v, state %s, shown %s, want %s with its defaults", args, err, r.State, r.Calls[0].Arguments, want)
		}
	}
	if len(h.Ran.All()) != 0 {
		t.Errorf("ran %v", h.Ran.All())
	}
	// Without arguments at all: an empty object.
	r, err := createWith(h, "say", []host.ProposedCall{{Tool: "read_echo"}})
	if err != nil || resultOf(h.Settled(r.ID).Calls[0]) != "{}" {
		t.Errorf("no arguments: %v", err)
	}
}

func TestArguments_OfADirectCall(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("default", gatedTransfer)
	direct := func(tool, args string) (host.ToolOutcome, error) {
		return h.CallTool(t.Context(), hosttest.Member, tool, host.Idempotency{}, hosttest.Body(host.DirectCall{Arguments: raw(args)}))
	}
	for _, tc := range []struct {
		tool, args string
		state      store.RunState
		want       string
	}{
		{"echo", `{"a":1}`, store.RunSucceeded, `{"a":1}`},
		{"fail", `{}`, store.RunFailed, "tool_error"},
		{"transfer", `{"amount":"x"}`, store.RunFailed, "invalid_arguments"},
		{"transfer", `{"amount":5}`, store.RunAwaitingApproval, ""},
		{"echo", `{"a":1,"a":2}`, store.RunFailed, "invalid_arguments"},
	} {
		out, err := direct(tc.tool, tc.args)
		if err != nil {
			if tc.args == `{"a":1,"a":2}` && host.CodeOf(err) == host.CodeInvalid {
				continue
			}
			t.Errorf("%s %s: %v", tc.tool, tc.args, err)
			continue
		}
		got := string(out.Result)
		if out.Error != nil {
			got = out.Error.Code
		}
		if out.Run.State != tc.state || got != tc.want || out.Done != tc.state.Ended() {
			t.Errorf("%s %s: state %s, done %v, %s; want %s, %s", tc.tool, tc.args, out.Run.State, out.Done, got, tc.state, tc.want)
		}
		if out.Run.Pause != nil {
			if out.Run.Pause.ResumeToken == "" {
				t.Error("the answer of a paused direct call has no token")
			}
			if _, err := h.DecideAll(hosttest.Admin, out.Run, "approve"); err != nil {
				t.Fatal(err)
			}
			if r := h.Settled(out.Run.ID); r.State != store.RunSucceeded || string(r.Output) != `{"amount":5,"currency":"EUR"}` {
				t.Errorf("after the approval: %s %s", r.State, r.Output)
			}
		}
	}
	runs, _, err := h.ListRuns(t.Context(), hosttest.Member, host.RunFilter{}, host.Page{})
	before := fmt.Sprint(len(runs))
	for _, tool := range []string{"nothing", "", "test.echo ", "../echo"} {
		_, err := direct(tool, `{}`)
		refusal(t, err, host.CodeNotFound)
	}
	runs, _, err2 := h.ListRuns(t.Context(), hosttest.Member, host.RunFilter{}, host.Page{})
	if err != nil || err2 != nil || fmt.Sprint(len(runs)) != before {
		t.Errorf("%s runs became %d", before, len(runs))
	}
}
