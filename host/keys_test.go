package host_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
)

// A body that is wrong is told so to those who may make keys; to others it is the same 403 whatever they send.
func TestKeys_TheBodyIsReadBetweenTheTwoQuestions(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for _, tc := range []struct {
		key     host.NewKey
		pointer string
	}{
		{host.NewKey{Roles: []string{"member"}, Kind: "user"}, "/principal"},
		{host.NewKey{Principal: "a b", Roles: []string{"member"}, Kind: "user"}, "/principal"},
		{host.NewKey{Principal: "x", Kind: "user"}, "/roles"},
		{host.NewKey{Principal: "x", Roles: []string{"member", "root"}, Kind: "user"}, "/roles/1"},
		{host.NewKey{Principal: "x", Roles: []string{"member"}}, "/kind"},
		{host.NewKey{Principal: "x", Roles: []string{"member"}, Kind: "system"}, "/kind"},
	} {
		_, err := h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(tc.key))
		if e := refusal(t, err, host.CodeInvalid); e.Pointer != tc.pointer {
			t.Errorf("%+v: pointer %q, want %q", tc.key, e.Pointer, tc.pointer)
		}
		_, err = h.CreateKey(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(tc.key))
		refusal(t, err, host.CodeForbidden)
	}
	owner := host.NewKey{Principal: "x", Roles: []string{"owner"}, Kind: "user"}
	_, err := h.CreateKey(t.Context(), hosttest.Admin, host.Idempotency{}, hosttest.Body(owner))
	refusal(t, err, host.CodeForbidden)
	k, err := h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(owner))
	if err != nil || !strings.HasPrefix(k.ID, "key_") || !strings.HasPrefix(k.Key, "pawl_") {
		t.Errorf("%+v %v", k, err)
	}
	if a, err := h.Authenticate(t.Context(), k.Key); err != nil || a.ID != "x" || a.KeyID != k.ID {
		t.Errorf("%+v %v", a, err)
	}
}

// A name that has keys is a principal: an owner's name is given and taken by owners only.
func TestInvariant7_ANameIsNotTakenOver(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	key := func(a host.Actor, principal, role, kind string) (host.Key, error) {
		return h.CreateKey(t.Context(), a, host.Idempotency{}, hosttest.Body(host.NewKey{Principal: principal, Roles: []string{role}, Kind: kind}))
	}
	boss, err := key(hosttest.Owner, "boss", "owner", "user")
	if err != nil {
		t.Fatal(err)
	}
	_, err = key(hosttest.Admin, "boss", "member", "user")
	refusal(t, err, host.CodeForbidden)
	refusal(t, h.RevokeKey(t.Context(), hosttest.Admin, boss.ID), host.CodeForbidden)
	if err := h.RevokeKey(t.Context(), hosttest.Owner, boss.ID); err != nil {
		t.Fatal(err)
	}
	_, err = key(hosttest.Admin, "boss", "member", "user") // the principal is still there, and an owner
	refusal(t, err, host.CodeForbidden)
	if _, err := key(hosttest.Owner, "heir", "owner", "user"); err != nil {
		t.Fatal(err)
	}
	refusal(t, h.RemovePrincipal(t.Context(), hosttest.Admin, "boss"), host.CodeForbidden)
	if err := h.RemovePrincipal(t.Context(), hosttest.Owner, "boss"); err != nil {
		t.Fatal(err)
	}
	if _, err := key(hosttest.Admin, "boss", "member", "user"); err != nil { // the name is free again
		t.Error(err)
	}
}

// However much noise somebody makes with one act, their refusals of another are rows; and where rows are left out, a row says so.
func TestAudit_NoiseHidesNoRefusedDecision(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("ops", `[{"calls":[{"tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}]},{"final":"done"}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "ops").ID)
	noise := func(from, to int) {
		for i := from; i < to; i++ {
			_, _, err := h.SavePrincipal(t.Context(), hosttest.Member, "n"+strconv.Itoa(i), hosttest.Body(host.PrincipalDoc{Roles: []string{"member"}}))
			refusal(t, err, host.CodeForbidden)
		}
	}
	noise(0, 150)
	_, err := h.DecideAll(hosttest.Member, r, "approve")
	refusal(t, err, host.CodeForbidden)
	_, err = h.CreateKey(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewKey{Principal: "me", Kind: "user", Roles: []string{"owner"}}))
	refusal(t, err, host.CodeForbidden)
	count := func() map[string]int {
		n := map[string]int{}
		for _, row := range h.AuditRows("demo") {
			if row.Outcome == "denied" {
				n[row.Action+" "+row.Reason]++
			}
		}
		return n
	}
	want := map[string]int{"principal.save forbidden": 100, "principal.save more_refusals": 1, "approval.decide forbidden": 1, "key.create forbidden": 1}
	if got := count(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, row := range h.AuditRows("demo") {
		if row.Reason == "more_refusals" && (row.TargetKind != "principal" || row.TargetID != "member" || fmt.Sprint(row.Detail["rows"]) != "100") {
			t.Errorf("%+v", row)
		}
	}
	h.Clock.Advance(time.Minute)
	noise(200, 350)
	want["principal.save forbidden"], want["principal.save more_refusals"] = 200, 2
	if got := count(); !maps.Equal(got, want) {
		t.Errorf("a minute later: %v, want %v", got, want)
	}
}

// Somebody who is refused again and again, under ever new names, does not fill the audit log.
func TestAudit_RefusalsAreBounded(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for i := range 500 {
		name := strings.Repeat("a", 1000) + strconv.Itoa(i)
		_, _, err := h.SaveAgent(t.Context(), hosttest.Member, name[len(name)-1000:], hosttest.Body(json.RawMessage(`{}`)))
		refusal(t, err, host.CodeForbidden)
		_, err = h.GetRun(t.Context(), hosttest.Member, "x")
		refusal(t, err, host.CodeNotFound)
		_, _, _, err = h.WatchQueue(t.Context(), host.Actor{Tenant: "demo", ID: "nobody" + strconv.Itoa(i%2), Kind: "system"}, "")
		refusal(t, err, host.CodeForbidden)
	}
	rows := h.AuditRows("demo")
	if len(rows) > 110 {
		t.Errorf("%d rows of one minute's refusals", len(rows))
	}
	for _, r := range rows {
		if len(r.TargetID) > 200 {
			t.Fatalf("a target of %d bytes", len(r.TargetID))
		}
		if r.Outcome == "denied" && r.Detail["reasons"] == nil {
			t.Errorf("a refusal without policy's reasons: %+v", r)
		}
	}
}
