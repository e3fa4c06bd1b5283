package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/sdk/client"
)

// The lines that come over the wire are a chain up to the head, and carry the trace of the request that they are about.
func TestAuditExportIsAChainUpToItsHead(t *testing.T) {
	t.Parallel()
	r := dev(t)
	refused := r.refused("member", "PUT", "/v1/agents/x", `{"planner":{"kind":"external"},"tools":["echo"]}`, 403, "forbidden")
	a := r.ok("admin", "GET", "/v1/audit/export", nil)
	if ct := a.header.Get("Content-Type"); ct != "application/x-ndjson" {
		t.Errorf("content type %s", ct)
	}
	r.ok("admin", "PUT", "/v1/agents/later", `{"planner":{"kind":"external"},"tools":["echo"]}`)
	head := r.ok("admin", "GET", "/v1/audit/head", nil)
	c := host.AuditCheck{Tenant: "demo"}
	traced := false
	for line := range bytes.Lines(r.ok("admin", "GET", "/v1/audit/export", nil).raw) {
		if f := c.Row(line); f != nil {
			t.Error(f)
		}
		traced = traced || bytes.Contains(line, []byte(`"trace_id":"`+refused.str("trace_id")+`"`))
	}
	if x := c.Extent(); x.First != 1 || x.Head != fmt.Sprintf("%v:%s", head.json["seq"], head.str("hash")) {
		t.Errorf("the rows end at %+v, the head is %s", x, head.raw)
	}
	if refused.str("trace_id") == "" || !traced {
		t.Error("the row of a refusal has not the trace of its request")
	}
	if bytes.Contains(a.raw, []byte("other")) {
		t.Error("another tenant shows")
	}
	r.refused("admin", "GET", "/v1/audit/export?from=yesterday", nil, 400, "invalid")
	r.refused("admin", "GET", "/v1/audit/export?after=x", nil, 400, "invalid")
	r.refused("member", "GET", "/v1/audit/export?after=x", nil, 403, "forbidden")
	r.refused("admin", "HEAD", "/v1/audit/export", nil, 405, "")
}

func TestGoClientReadsTheAudit(t *testing.T) {
	t.Parallel()
	r := dev(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin, member := r.client("admin"), r.client("member")
	rows, next, err := admin.Audit(ctx, client.AuditFilter{Action: "agent.save", Actor: "owner", Limit: 2})
	if err != nil || len(rows) != 2 || next == "" || rows[0].Hash == "" {
		t.Fatalf("%+v %q %v", rows, next, err)
	}
	if rows, next, err = admin.Audit(ctx, client.AuditFilter{Action: "agent.save", Actor: "owner", From: rows[0].Time, After: next}); err != nil || len(rows) != 2 || next != "" {
		t.Errorf("%+v %q %v", rows, next, err)
	}
	head, err := admin.AuditHead(ctx)
	if err != nil || head.Seq == 0 || !strings.HasPrefix(head.Hash, "sha256:") || head.Time.IsZero() {
		t.Errorf("%+v %v", head, err)
	}
	var last client.AuditRow
	for line, err := range admin.AuditExport(ctx, client.AuditFilter{After: "2"}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &last); err != nil {
			t.Fatal(err)
		}
	}
	if last.Seq < head.Seq {
		t.Errorf("the export ends at %d, the head is %d", last.Seq, head.Seq)
	}
	for _, err := range member.AuditExport(ctx, client.AuditFilter{}) {
		if client.Code(err) != "forbidden" {
			t.Errorf("a member's export: %v", err)
		}
	}
}

// Who exports and does not read holds nothing: the store goes on, the host drains, and what is cut off does not look whole.
func TestAuditExportThatNobodyReads(t *testing.T) {
	t.Parallel()
	r := dev(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pad := strings.Repeat("x", 900)
	for range 4000 { // more than what the kernel holds for a connection
		if err := r.Note(ctx, host.Note{Action: "test.fill", Detail: map[string]any{"pad": pad}}); err != nil {
			t.Fatal(err)
		}
	}
	addr := strings.TrimPrefix(r.web.URL, "http://")
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET /v1/audit/export HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", addr, r.keys["admin"]); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReaderSize(conn, 16)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
		t.Fatalf("%q %v", line, err)
	}
	r.ok("admin", "PUT", "/v1/agents/meanwhile", `{"planner":{"kind":"external"},"tools":["echo"]}`)

	revoked := r.newKey(host.Actor{Tenant: "demo", ID: "auditor", Kind: host.KindUser, Roles: []string{host.RoleAdmin}})
	c := client.New(r.web.URL, revoked)
	n, broken := 0, error(nil)
	for _, err := range c.AuditExport(ctx, client.AuditFilter{}) {
		if err != nil {
			broken = err
			break
		}
		if n++; n == 1 {
			keys := r.ok("owner", "GET", "/v1/keys?limit=200", nil).json["keys"].([]any)
			for _, k := range keys {
				if k := k.(map[string]any); k["principal"] == "auditor" {
					if err := r.RevokeKey(ctx, hosttest.Owner, k["id"].(string)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	if broken == nil || n >= 4000 {
		t.Errorf("an export whose key was revoked after its first row gave %d rows and %v", n, broken)
	}
	if errors.Is(broken, context.DeadlineExceeded) {
		t.Error(broken)
	}
	var p *client.Problem
	for _, err := range c.AuditExport(ctx, client.AuditFilter{}) {
		if !errors.As(err, &p) || p.Status != http.StatusUnauthorized {
			t.Errorf("a revoked key: %v", err)
		}
	}
}
