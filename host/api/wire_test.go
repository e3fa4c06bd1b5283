package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
)

// Public failure LA12.
func TestBodiesAreRefusedWithAPointer(t *testing.T) {
	t.Parallel()
	decideBody := func(b []byte) error {
		v, err := decode[decisionsBody](b)
		if err == nil {
			_, err = v.answer()
		}
		return err
	}
	resumeIt := func(b []byte) error {
		if _, err := resumeToken(b); err != nil {
			return err
		}
		v, err := decode[resumeBody](b)
		if err == nil {
			_, err = v.answer()
		}
		return err
	}
	plain := func(b []byte) error { _, err := decode[host.NewRun](b); return err }
	direct := func(b []byte) error { _, err := decode[host.DirectCall](b); return err }
	evaluation := func(b []byte) error { _, err := decode[host.Evaluation](b); return err }
	principal := func(b []byte) error { _, err := decode[host.PrincipalDoc](b); return err }
	frame := func(b []byte) error {
		var f decideFrame
		if err := unmarshal(b, &f); err != nil {
			return err
		}
		_, err := f.answer()
		return err
	}
	for _, tt := range []struct {
		parse         func([]byte) error
		body, pointer string
	}{
		{plain, ``, ""},
		{plain, `[]`, ""},
		{plain, `"x"`, ""},
		{plain, `{"agent":"a"} {}`, ""},
		{plain, `{"Agent":"a"}`, "/Agent"},
		{plain, `{"agent":"a","foo":1}`, "/foo"},
		{plain, `{"agent":"a","a/b":1}`, "/a~1b"},
		{plain, `{"agent":7}`, "/agent"},
		{plain, `{"agent":"a","calls":{}}`, "/calls"},
		{plain, `{"agent":"a","calls":[{"tool":"x","arguments":{},"args":1}]}`, "/calls/0/args"},
		{plain, `{"agent":"a","agent":"b"}`, "/agent"},
		{plain, `{"agent":"a","input":{"n":9007199254740993}}`, "/input/n"},
		{plain, `{"agent":"a","input":["\ud800"]}`, "/input/0"},
		{plain, `{"agent":"a","user":""}`, "/user"},
		{plain, `{"agent":""}`, "/agent"},
		{direct, `{"agent":"","arguments":{}}`, "/agent"},
		{evaluation, `{"agent":"a","call":{"tool":"t","arguments":{}},"subagent":""}`, "/subagent"},
		{principal, `{"roles":["member"],"kind":""}`, "/kind"},
		{decideBody, `{"decisions":[{"approval_id":"a","kind":"approve"},{"approval_id":"b","kind":"approve","args_digest":""}]}`, "/decisions/1/args_digest"},
		{resumeIt, `{"resume_token":"t","decisions":[{"approval_id":"b","kind":"approve","args_digest":""}]}`, "/decisions/0/args_digest"},
		{frame, `{"type":"decide","id":"1","run":"r","decisions":[{"approval_id":"b","kind":"approve","args_digest":""}]}`, "/decisions/0/args_digest"},
		{decideBody, `{}`, "/decisions"},
		{decideBody, `{"decisions":null}`, "/decisions"},
		{decideBody, `{"decisions":[null]}`, "/decisions/0/approval_id"},
		{decideBody, `{"decisions":[{"approval_id":"a"}]}`, "/decisions/0/kind"},
		{decideBody, `{"decisions":[{"approval_id":"a","kind":null}]}`, "/decisions/0/kind"},
		{decideBody, `{"decisions":[{"approval_id":"a","kind":"approve"},{"approval_id":"a","kind":true}]}`, "/decisions/1/kind"},
		{decideBody, `{"decisions":[{"approval_id":"a","kind":"approve","foo":1}]}`, "/decisions/0/foo"},
		{decideBody, `{"decisions":[],"tool_context":[]}`, "/tool_context"},
		{decideBody, `{"decisions":[],"user_input":"x"}`, "/user_input"},
		{resumeIt, `{"decisions":[]}`, "/resume_token"},
		{resumeIt, `{"resume_token":1,"decisions":[]}`, "/resume_token"},
		{resumeIt, `{"resume_token":"t"}`, "/decisions"},
		{resumeIt, `{"resume_token":"t","decisions":[],"user_input":null}`, "/user_input"},
		{frame, `{"type":"decide","id":"1","run":"r"}`, "/decisions"},
		{frame, `{"type":"decide","id":"1","run":"r","decisions":[],"x":1}`, "/x"},
	} {
		p := problemOf(tt.parse([]byte(tt.body)), "")
		if p.Status != 400 || p.Code != host.CodeInvalid || p.Pointer == nil || *p.Pointer != tt.pointer {
			got := "none"
			if p.Pointer != nil {
				got = *p.Pointer
			}
			t.Errorf("%s: %d %s at %q (%s), want 400 at %q", tt.body, p.Status, p.Code, got, p.Detail, tt.pointer)
		}
	}
}

// An empty name is refused; an empty text is none where the caller's own JSON stands, and a message may be empty.
func TestEmptyTextsThatAreNoNames(t *testing.T) {
	t.Parallel()
	v, err := decode[host.NewRun]([]byte(`{"agent":"\u0061","user":null,"input":{"user":""},"tool_context":{"agent":""},"calls":[{"tool":"x","tool_call_id":"","arguments":{"user":""}}]}`))
	if err != nil || v.Agent != "a" || v.User != "" || string(v.Input) != `{"user":""}` || string(v.Calls[0].Arguments) != `{"user":""}` {
		t.Errorf("%+v, %v", v, err)
	}
	d, err := decode[decisionsBody]([]byte(`{"decisions":[{"approval_id":"a","kind":"respond","message":"","value":""}]}`))
	if err != nil || d.Decisions[0].Kind != "respond" || string(d.Decisions[0].Value) != `""` {
		t.Errorf("%+v, %v", d, err)
	}
}

// false, 0, "" and null are values where any JSON may stand.
func TestFalsyValuesStayValues(t *testing.T) {
	t.Parallel()
	for _, v := range []string{`false`, `0`, `""`, `null`, `[]`, `{}`} {
		b, err := decode[resumeBody]([]byte(`{"resume_token":"t","user_input":` + v + `}`))
		if err != nil || string(b.UserInput) != v {
			t.Errorf("user_input %s became %q, %v", v, b.UserInput, err)
		}
		if a, err := b.answer(); err != nil || string(a.UserInput) != v {
			t.Errorf("user_input %s was answered as %q, %v", v, a.UserInput, err)
		}
		d, err := decode[decisionsBody]([]byte(`{"decisions":[{"approval_id":"a","kind":"respond","value":` + v + `}]}`))
		if err != nil || string(d.Decisions[0].Value) != v {
			t.Errorf("value %s became %v, %v", v, d, err)
		}
		out, err := encode(toolAnswer{Result: json.RawMessage(v)})
		if err != nil || !strings.Contains(string(out), `"result":`+v) {
			t.Errorf("result %s is encoded as %s, %v", v, out, err)
		}
	}
	if d, err := decode[decisionsBody]([]byte(`{"decisions":[]}`)); err != nil || d.Decisions == nil {
		t.Errorf("an empty list of decisions became %v, %v", d.Decisions, err)
	}
}

func TestHeadersAndQueries(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]time.Duration{
		"wait=5": 5 * time.Second, "respond-async, wait=10": 10 * time.Second, `WAIT="3"; x=y`: 3 * time.Second, "wait=600": maxWait,
		"wait=99999999999999999999": 0, "wait=-1": 0, "wait": 0, "waits=5": 0, "": 0,
	} {
		if got := preferWait(http.Header{"Prefer": {v}}); got != want {
			t.Errorf("Prefer: %s is %v, want %v", v, got, want)
		}
	}
	for q, want := range map[string]int{"": 0, "limit=1": 1, "limit=200": 200, "limit=201": -1, "limit=0": -1, "limit=-1": -1, "limit=x": -1, "limit=": -1, "limit=1e2": -1} {
		r := &request{Request: &http.Request{URL: &url.URL{RawQuery: q}}, route: &route{}}
		p, err := r.page()
		if got := p.Limit; err != nil && want != -1 || err == nil && got != want {
			t.Errorf("%s: %d, %v, want %d", q, got, err, want)
		}
	}
	for v, ok := range map[string]bool{"a": true, strings.Repeat("k", 255): true, strings.Repeat("k", 256): false, "": false, "ä": false, "a\x7f": false, "with space": true} {
		r := &request{Request: &http.Request{Method: "POST", URL: &url.URL{Path: "/x"}, Header: http.Header{"Idempotency-Key": {v}}}, body: []byte("{}")}
		i, err := idempotency(r)
		if (err == nil) != ok || ok && (i.Key != v || i.Path != "/x" || len(i.Body) != 64) {
			t.Errorf("Idempotency-Key %q: %+v, %v", v, i, err)
		}
	}
	for v, want := range map[string]string{"Bearer k": "k", "bearer k": "k", "Bearer  k ": "k", "Basic k": "", "Bearer": "", "Bearer ": "", "k": ""} {
		if got, ok := bearer(http.Header{"Authorization": {v}}); ok != (want != "") || ok && got != want {
			t.Errorf("Authorization %q: %q, %v", v, got, ok)
		}
	}
	if _, ok := bearer(http.Header{"Authorization": {"Bearer a", "Bearer b"}}); ok {
		t.Error("two credentials are one too many")
	}
}

func TestInternalTextNeverLeaves(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("secret /var/lib path"), &host.Error{Code: "made_up", Detail: "secret"}, &host.Error{Code: host.CodeInternal, Detail: "secret"}} {
		p := problemOf(err, "trace")
		if p.Status != 500 || p.Code != host.CodeInternal || strings.Contains(p.Detail, "secret") || p.TraceID != "trace" {
			t.Errorf("%v became %+v", err, p)
		}
	}
	for code := range statuses {
		if p := problemOf(&host.Error{Code: code, Detail: "d"}, "t"); p.Title == "" || p.Status < 400 || p.Type != "urn:pawl:problem:"+string(code) {
			t.Errorf("%s: %+v", code, p)
		}
	}
}

// FuzzFrame: no client text makes the envelope or a body's parser panic, and what it refuses is the client's fault.
func FuzzFrame(f *testing.F) {
	for _, s := range []string{`{"type":"subscribe","id":"1","run":"r","after":0}`, `{"type":"resume","id":1,"resume_token":"x","user_input":null}`, `{"type":"decide","id":"1","run":"r","decisions":[{"approval_id":"a","kind":"edit","arguments":{}}]}`, `{"id":{}}`, `[`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(err error) {
			if err != nil && problemOf(err, "").Status != 400 {
				t.Fatalf("%q: %v", b, err)
			}
		}
		_, _, err := envelope(b)
		check(err)
		if err != nil {
			return
		}
		check(unmarshal(b, &helloFrame{}))
		check(unmarshal(b, &subscribeFrame{}))
		check(unmarshal(b, &decideFrame{}))
		check(unmarshal(b, &resumeFrame{}))
		_, err = resumeToken(b)
		check(err)
	})
}

// A list with a misspelt filter would be a wrong answer. The parameter has a member of its own; it is checked after who asks.
func TestQueriesAreRefusedByParameter(t *testing.T) {
	t.Parallel()
	r := &request{Request: httptest.NewRequest("GET", "/v1/runs?cursor=&limit=3&state=queued", nil), route: &route{query: []string{"state"}}}
	if p, err := r.page(); err != nil || p.Limit != 3 {
		t.Errorf("%+v, %v", p, err)
	}
	for query, want := range map[string]string{"stat=queued": "stat", "limit=0": "limit", "a~1/b=1": "a~1/b"} {
		r.Request = httptest.NewRequest("GET", "/v1/runs?"+query, nil)
		_, err := r.page()
		if p := problemOf(r.ofQuery(err), ""); p.Status != 400 || p.Parameter != want || p.Pointer == nil || *p.Pointer == "" {
			t.Errorf("%s: %+v; want %s", query, p, want)
		}
	}
	r.Request = httptest.NewRequest("POST", "/v1/runs", nil)
	if p := problemOf(r.ofQuery(missing("/agent")), ""); p.Parameter != "" || *p.Pointer != "/agent" {
		t.Errorf("%+v", p)
	}
}
