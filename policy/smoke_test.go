package policy

import (
	"context"
	"encoding/json"
	"testing"
	"testing/fstest"
	"time"
)

func call(tool, args string) *Input {
	return &Input{Tenant: "demo", Principal: Principal{ID: "member", Kind: "user", Roles: []string{"member"}}, Subject: "member",
		Agent: Agent{"a", 1}, Run: Run{ID: "run_1", CreatedBy: "member"}, Turn: 1, Time: time.Unix(0, 0),
		Call: &Call{Tool: tool, Plugin: "files", Name: tool, Effects: "write", ToolCallID: "c1", Arguments: json.RawMessage(args)}}
}

func TestSmoke(t *testing.T) {
	e, err := New(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", e.Gate(t.Context(), nil, call("write_file", `{"path":"/memories/x"}`)))
	t.Logf("%+v", e.Gate(t.Context(), nil, call("write_file", `{"path":"/notes/x"}`)))
	t.Logf("%+v", e.Gate(t.Context(), nil, call("write_file", `{"path":["/notes/x"]}`)))
	start := time.Now()
	on, err := e.Compile(json.RawMessage(`{"transfer":{"when":[{"amount":{"min":1000},"a":{"regex":["a","b"],"missing":"no_match"}},{"/a/b/0":{"not_in":["EUR"]}}],"ttl":"1h"}, "p.x":true}`))
	t.Log(time.Since(start))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(on.Rego())
	t.Logf("%+v", e.Gate(t.Context(), on, call("transfer", `{"amount":1,"a":"c","a":{"b":[]}}`)))
	t.Logf("%+v", e.Gate(t.Context(), on, call("transfer", `{"amount":1,"a":{"b":["EUR"]}}`)))
	t.Log(e.Fires(t.Context(), on, call("transfer", `{"amount":1000,"a":"a"}`), []string{"interrupt_on/transfer"}))
	t.Log(e.Authz(t.Context(), &AuthzInput{Act: "approval.decide", Principal: Principal{Tenant: "a", ID: "b", Kind: "user", Roles: []string{"admin"}}, Resource: Resource{Tenant: "a"}}))
	t.Log(e.Authz(t.Context(), &AuthzInput{Act: "approval.decide", Principal: Principal{Tenant: "a", ID: "b", Kind: "service", Roles: []string{"admin"}}, Resource: Resource{Tenant: "a"}}))
	_, err = New(context.Background(), Options{Rules: fstest.MapFS{"a.rego": {Data: []byte("package pawl.rules\n\ndeny contains http.send({})")}}})
	t.Log(err)
}

func BenchmarkGateDefaults(b *testing.B) {
	e, _ := New(context.Background(), Options{})
	in := call("write_file", `{"path":"/memories/x","content":"hi"}`)
	for b.Loop() {
		e.Gate(b.Context(), nil, in)
	}
}
func BenchmarkGateAllow(b *testing.B) {
	e, _ := New(context.Background(), Options{})
	in := call("read_file", `{"path":"/memories/x","content":"hi"}`)
	for b.Loop() {
		e.Gate(b.Context(), nil, in)
	}
}
