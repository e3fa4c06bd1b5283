package tool

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/sdk/abi"
)

// scripted is a host that answers input with a request and everything else from
// a list, and records what it was asked.
type scripted struct {
	request string
	answers map[string][]string // by op, used up in order
	asked   []string
	refuse  int // what an op without an answer returns, if not 0
}

func (s *scripted) host(op string, request []byte) ([]byte, int) {
	s.asked = append(s.asked, op+" "+string(request))
	answer := `{"ok":{}}`
	if op == abi.OpInput {
		answer = `{"ok":` + s.request + `}`
	}
	if list := s.answers[op]; len(list) > 0 {
		answer, s.answers[op] = list[0], list[1:]
	} else if s.refuse < 0 {
		return nil, s.refuse
	}
	return []byte(answer), len(answer)
}

func (s *scripted) last() string { return s.asked[len(s.asked)-1] }

func callOf(s *scripted) *Call { return &Call{host: s.host} }

type echo struct {
	Text string `json:"text"`
}

func TestServeGivesOneResultOrOneFailure(t *testing.T) {
	t.Parallel()
	cause := Fail(abi.CodeConflict, "changed")
	var p set
	p.add(entryOf("echo", Spec{}, func(c *Call, in echo) (string, error) { return in.Text, nil }))
	p.add(entryOf("null", Spec{}, func(*Call, struct{}) (any, error) { return nil, nil }))
	p.add(entryOf("plain", Spec{}, func(*Call, struct{}) (any, error) { return 1, errors.New("no luck") }))
	p.add(entryOf("coded", Spec{}, func(*Call, struct{}) (any, error) { return 1, &Error{"busy", "later", true} }))
	p.add(entryOf("wrapped", Spec{}, func(*Call, struct{}) (any, error) { return 1, fmt.Errorf("saving: %w", cause) }))
	p.add(entryOf("unencodable", Spec{}, func(*Call, struct{}) (any, error) { return func() {}, nil }))
	for _, tt := range []struct{ tool, arguments, want string }{
		{"echo", `{"text":"a\ud83d\ude00"}`, `output "a😀"`},
		{"null", `{}`, `output null`},
		{"plain", `{}`, `fail {"message":"no luck"}`},
		{"coded", `{}`, `fail {"code":"busy","message":"later","retryable":true}`},
		{"wrapped", `{}`, `fail {"code":"conflict","message":"saving: conflict: changed"}`},
		{"unencodable", `{}`, `fail {"message":"json: unsupported type: func()"}`},
		{"echo", `{"text":1}`, `fail {"code":"invalid","message":"arguments of echo: `},
		{"absent", `{}`, `fail {"code":"invalid","message":"this plugin has no tool \"absent\""}`},
	} {
		s := &scripted{request: `{"tool":"` + tt.tool + `","arguments":` + tt.arguments + `,"context":{}}`}
		status := p.serve(s.host)
		if !strings.HasPrefix(s.last(), tt.want) || len(s.asked) != 2 {
			t.Errorf("%s: asked %q; want input and %q", tt.tool, s.asked, tt.want)
		}
		if failed := strings.HasPrefix(tt.want, "fail"); (status != 0) != failed {
			t.Errorf("%s: status %d", tt.tool, status)
		}
	}
}

func TestServeOnARefusingHostReturnsNonZero(t *testing.T) {
	t.Parallel()
	s := &scripted{refuse: abi.ErrMalformed}
	if status := new(set).serve(s.host); status == 0 {
		t.Error("status 0 without an input")
	}
	s = &scripted{request: `{"tool":"big"}`, answers: map[string][]string{
		"output": {`{"error":{"code":"too_large","message":"2 MB","retryable":false}}`}}}
	var p set
	p.add(entryOf("big", Spec{}, func(*Call, struct{}) (string, error) { return "", nil }))
	s.request = `{"tool":"big","arguments":{}}`
	if status := p.serve(s.host); status == 0 || s.last() != `fail {"code":"too_large","message":"2 MB"}` {
		t.Errorf("status %d, last %q; want the refused output to fail the call", status, s.last())
	}
}

func TestAnswersMeanWhatTheVectorsSay(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../abi/vectors/answers.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Answers []struct {
			Name, Bytes string
			Error       *Error
			Hex         json.RawMessage `json:"value_hex"`
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	for _, v := range file.Answers {
		s := &scripted{answers: map[string][]string{abi.OpKVGet: {v.Bytes}}}
		got, err := callOf(s).KV().Get("a")
		var refusal *Error
		if v.Error != nil {
			if !errors.As(err, &refusal) || *refusal != *v.Error {
				t.Errorf("%s: %v; want %+v", v.Name, err, *v.Error)
			}
			continue
		}
		want, found := "", v.Hex != nil && string(v.Hex) != "null"
		if found {
			if err := json.Unmarshal(v.Hex, &want); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil || hex.EncodeToString(got.Value) != want || got.Found() != found {
			t.Errorf("%s: %x found %v, %v; want %s found %v", v.Name, got.Value, got.Found(), err, want, found)
		}
	}
}

func TestEachOperationSendsTheRequestOfTheABI(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		want string
		do   func(*Call) error
	}{
		{`log {"level":"info","message":"a"}`, func(c *Call) error { c.Log(abi.LogInfo, "a"); return nil }},
		{`progress {"done":1,"total":2,"message":"m"}`, func(c *Call) error { c.Progress(1, 2, "m"); return nil }},
		{`progress {"done":0}`, func(c *Call) error { c.Progress(0, 0, ""); return nil }},
		{`config {"key":"k"}`, func(c *Call) error { _, _, err := c.Config("k"); return err }},
		{`pause {"reason":"await_input","payload":{"q":1}}`, func(c *Call) error {
			return c.Pause(abi.ReasonAwaitInput, map[string]int{"q": 1})
		}},
		{`pause {"reason":"await_input","payload":{},"schema":{"type":"boolean"}}`, func(c *Call) error {
			return c.PauseFor(abi.ReasonAwaitInput, struct{}{}, json.RawMessage(`{"type":"boolean"}`))
		}},
		{`kv.get {"key":"k"}`, func(c *Call) error { _, err := c.KV().Get("k"); return err }},
		{`kv.put {"key":"k","value":""}`, func(c *Call) error { _, err := c.KV().Put("k", nil); return err }},
		{`kv.put {"key":"k","value_b64":"/w=="}`, func(c *Call) error { _, err := c.KV().Put("k", []byte{0xff}); return err }},
		{`kv.put {"key":"k","value":"v","if_version":0}`, func(c *Call) error { _, err := c.KV().PutIf("k", []byte("v"), 0); return err }},
		{`kv.delete {"key":"k"}`, func(c *Call) error { return c.KV().Delete("k") }},
		{`kv.delete {"key":"k","if_version":3}`, func(c *Call) error { return c.KV().DeleteIf("k", 3) }},
	} {
		s := &scripted{}
		if err := tt.do(callOf(s)); err != nil || s.last() != tt.want {
			t.Errorf("asked %q, %v; want %q", s.last(), err, tt.want)
		}
	}
}

func TestRequestsThatAreNotAcceptedAreErrors(t *testing.T) {
	t.Parallel()
	for n, code := range map[int]string{abi.ErrTooLarge: abi.CodeTooLarge, abi.ErrMalformed: abi.CodeInvalid, abi.ErrRange: abi.CodeInvalid} {
		var refusal *Error
		if _, err := callOf(&scripted{refuse: n}).KV().Get("k"); !errors.As(err, &refusal) || refusal.Code != code {
			t.Errorf("%d: %v; want code %s", n, err, code)
		}
	}
}

func TestListFollowsEveryPage(t *testing.T) {
	t.Parallel()
	s := &scripted{answers: map[string][]string{abi.OpKVList: {
		`{"ok":{"keys":["a","b"],"next":"b"}}`, `{"ok":{"keys":["c"]}}`}}}
	var keys []string
	for key, err := range callOf(s).KV().List("p") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	if !slices.Equal(keys, []string{"a", "b", "c"}) || s.last() != `kv.list {"after":"b","limit":1000,"prefix":"p"}` {
		t.Errorf("keys %q, last %q", keys, s.last())
	}
	s = &scripted{refuse: abi.ErrMalformed}
	for _, err := range callOf(s).KV().List("p") {
		if err == nil {
			t.Error("no error from a host that refuses")
		}
	}
}

func TestApprovedIsTrueOnlyForTrueOfThatKey(t *testing.T) {
	t.Parallel()
	c := &Call{}
	if err := json.Unmarshal([]byte(`{"tool":"t","context":{"approvals":{"t":true,"no":false,"text":"true","one":1}}}`), &c.request); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"": true, "t": true, "no": false, "text": false, "one": false, "absent": false} {
		if c.Approved(key) != want {
			t.Errorf("Approved(%q) is %v", key, !want)
		}
	}
}
