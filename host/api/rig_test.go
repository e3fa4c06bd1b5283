package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.uber.org/goleak"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	memoryWrite = `[{"calls":[{"tool_call_id":"c1","tool":"write_file","arguments":{"path":"/memories/AGENTS.md","content":"hi"}}]},{"final":"done"}]`
	freeEcho    = `[{"calls":[{"tool_call_id":"c1","tool":"echo","arguments":{"a":1}}]},{"final":"done"}]`
)

// rig is a host behind a real HTTP server on loopback, with a key for each actor of hosttest. Every JSON answer that passes
// through it is checked against the schemas of /openapi.json.
type rig struct {
	*hosttest.Host
	t    testing.TB
	api  *api.Server
	web  *httptest.Server
	log  *hosttest.Log
	keys map[string]string

	mu   sync.Mutex
	seen bytes.Buffer // every answer and frame
}

func newRig(t testing.TB, o api.Options, ho hosttest.Options) *rig {
	t.Helper()
	r := &rig{Host: hosttest.New(t, ho), t: t, log: &hosttest.Log{}, keys: map[string]string{}}
	for _, a := range []host.Actor{hosttest.Owner, hosttest.Admin, hosttest.Member, hosttest.Member2, hosttest.Service, hosttest.OtherAdmin, hosttest.OtherMember} {
		r.keys[a.ID] = r.newKey(a)
	}
	o.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if o.Now == nil {
		o.Now = r.Clock.Now
	}
	r.api = api.New(r.Host.Host, o)
	r.web = httptest.NewServer(r.api)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r.api.Drain(ctx)
		r.web.Close()
	})
	r.Script("ops", memoryWrite, "")
	r.Script("free", freeEcho, "")
	r.Script("default", `[{"final":1}]`, "")
	r.Agent("ext", `{"planner":{"kind":"external"},"tools":["echo","write_file"]}`)
	return r
}

func dev(t testing.TB) *rig { return newRig(t, api.Options{Dev: true}, hosttest.Options{}) }

func (r *rig) newKey(a host.Actor) string {
	r.t.Helper()
	k, err := r.EnsureKey(context.Background(), a.Tenant, host.NewKey{Principal: a.ID, Roles: a.Roles, Kind: a.Kind})
	if err != nil {
		r.t.Fatal(err)
	}
	return k.Key
}

// answered is an answer: raw, and parsed if it is JSON.
type answered struct {
	status int
	header http.Header
	raw    []byte
	json   map[string]any
}

func (a answered) str(path ...string) string {
	var v any = a.json
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	s, _ := v.(string)
	return s
}

// do sends a request. body may be a string (as it is), nil, or a value to encode; headers are name, value pairs.
func (r *rig) do(who, method, path string, body any, headers ...string) answered {
	r.t.Helper()
	var rd io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		rd = strings.NewReader(b)
	case io.Reader:
		rd = b
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			r.t.Fatal(err)
		}
		rd = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, r.web.URL+path, rd)
	if err != nil {
		r.t.Fatal(err)
	}
	if key, ok := r.keys[who]; ok {
		req.Header.Set("Authorization", "Bearer "+key)
	} else if who != "" {
		req.Header.Set("Authorization", "Bearer "+who)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.web.Client().Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	a := answered{status: resp.StatusCode, header: resp.Header}
	if a.raw, err = io.ReadAll(resp.Body); err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	r.see(a.raw)
	if ct := resp.Header.Get("Content-Type"); strings.Contains(ct, "json") && !strings.Contains(ct, "ndjson") && len(a.raw) > 0 {
		if err := json.Unmarshal(a.raw, &a.json); err != nil {
			r.t.Fatalf("%s %s: %v in %s", method, path, err, a.raw)
		}
	}
	if resp.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(resp.Header.Get("Cache-Control"), "no-store") {
		r.t.Errorf("%s %s: headers %v", method, path, resp.Header)
	}
	described(r.t, method, path, a)
	return a
}

func (r *rig) see(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Write(b)
	r.seen.WriteByte('\n')
}

// ok is do for a request that must succeed.
func (r *rig) ok(who, method, path string, body any, headers ...string) answered {
	r.t.Helper()
	a := r.do(who, method, path, body, headers...)
	if a.status/100 != 2 {
		r.t.Fatalf("%s %s by %s: %d %s", method, path, who, a.status, a.raw)
	}
	return a
}

// refused is do for a request that must end with a status and code.
func (r *rig) refused(who, method, path string, body any, status int, code string, headers ...string) answered {
	r.t.Helper()
	a := r.do(who, method, path, body, headers...)
	if a.status != status || a.str("code") != code || a.header.Get("Content-Type") != "application/problem+json" {
		r.t.Errorf("%s %s by %s: %d %s, want %d %s", method, path, who, a.status, a.raw, status, code)
	}
	return a
}

// paused starts a run of ops and returns it when it has stopped.
func (r *rig) paused(who string) host.Run {
	r.t.Helper()
	return r.run(who, "ops")
}

func (r *rig) run(who, agent string) host.Run {
	r.t.Helper()
	a := r.ok(who, "POST", "/v1/runs", map[string]any{"agent": agent}, "Prefer", "wait=20")
	var run host.Run
	if err := json.Unmarshal(a.raw, &run); err != nil {
		r.t.Fatal(err)
	}
	return run
}

// decisions is a body that decides all approvals of a pause.
func decisions(p *host.Pause, kind string) map[string]any {
	ds := []map[string]any{}
	for _, ap := range p.Approvals {
		ds = append(ds, map[string]any{"approval_id": ap.ID, "kind": kind})
	}
	return map[string]any{"decisions": ds}
}

func with(m map[string]any, more ...any) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i].(string)] = more[i+1]
	}
	return out
}

// The schemas of /openapi.json, compiled once for all tests.
var description = sync.OnceValue(func() *jsonschema.Compiler {
	s := httptest.NewRecorder()
	api.New(&host.Host{}, api.Options{Log: slog.New(slog.DiscardHandler)}).ServeHTTP(s, httptest.NewRequest("GET", "/openapi.json", nil))
	doc, err := jsonschema.UnmarshalJSON(s.Body)
	if err != nil {
		panic(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("mem:///openapi.json", doc); err != nil {
		panic(err)
	}
	openapi = doc.(map[string]any)
	return c
})

var (
	openapi  map[string]any
	schemaMu sync.Mutex
)

// described checks an answer against the description: its status is listed, and its body fits the schema.
func described(t testing.TB, method, path string, a answered) {
	t.Helper()
	schemaMu.Lock()
	defer schemaMu.Unlock()
	c := description()
	path, _, _ = strings.Cut(path, "?")
	if method == "HEAD" {
		return
	}
	for pattern, ops := range openapi["paths"].(map[string]any) {
		op, ok := ops.(map[string]any)[strings.ToLower(method)].(map[string]any)
		if !ok || !fits(pattern, path) {
			continue
		}
		resp, ok := op["responses"].(map[string]any)[strconv.Itoa(a.status)].(map[string]any)
		if !ok {
			t.Errorf("%s %s: status %d is not described: %s", method, pattern, a.status, a.raw)
			return
		}
		if a.json == nil {
			return
		}
		content, _ := resp["content"].(map[string]any)
		kind := a.header.Get("Content-Type")
		if content[kind] == nil {
			t.Errorf("%s %s %d: %s is not described", method, pattern, a.status, kind)
			return
		}
		esc := strings.NewReplacer("~", "~0", "/", "~1")
		at := "mem:///openapi.json#/paths/" + esc.Replace(pattern) + "/" + strings.ToLower(method) + "/responses/" + strconv.Itoa(a.status) + "/content/" + esc.Replace(kind) + "/schema"
		at = strings.NewReplacer("{", "%7B", "}", "%7D").Replace(at)
		sch, err := c.Compile(at)
		if err != nil {
			t.Errorf("schema %s: %v", at, err)
			return
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.raw))
		if err != nil {
			t.Error(err)
			return
		}
		if err := sch.Validate(v); err != nil {
			t.Errorf("%s %s %d is not as described: %v\n%s", method, pattern, a.status, err, a.raw)
		}
		return
	}
}

func fits(pattern, path string) bool {
	p, s := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(p) != len(s) {
		return false
	}
	for i := range p {
		if !strings.HasPrefix(p[i], "{") && p[i] != s[i] {
			return false
		}
	}
	return true
}

// eventually polls a condition of the real world that has no signal of its own.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// slow is a tool that returns when release is closed.
func slow(release <-chan struct{}) map[string]hosttest.Func {
	return map[string]hosttest.Func{"slow": func(ctx context.Context, s *plugins.Session) error {
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := hosttest.Op(ctx, s, "output", map[string]bool{"slow": true})
		return err
	}}
}
