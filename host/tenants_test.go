package host_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
)

func TestSecondParty_NobodyDecidesTheirOwn(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	h.Script("ask", `[{"calls":[{"tool":"ask","arguments":{"reason":"await_input","payload":{"q":1}}}]},{"final":"done"}]`, "")
	set := func(on bool) {
		t.Helper()
		if _, err := h.ChangeTenant(t.Context(), hosttest.Owner, hosttest.Body(host.TenantChange{SecondParty: &on})); err != nil {
			t.Fatal(err)
		}
	}
	r := h.Batch(hosttest.Admin, "pay", twoCalls) // before the switch: it is read fresh
	token := r.Pause.ResumeToken
	set(true)
	put(t, h, hosttest.Owner, "bot", host.PrincipalDoc{Kind: "service", Roles: []string{"member"}, ActAs: true})
	forAdmin, err := h.CreateRun(t.Context(), hosttest.Service, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "pay", User: "admin", Calls: call("transfer", `{"amount":1}`)}))
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"its creator":           func() error { _, err := h.DecideAll(hosttest.Admin, r, "approve"); return err },
		"its creator, by token": func() error { _, err := resume(h, hosttest.Admin, token, approveAll(r)); return err },
		"its subject":           func() error { _, err := h.DecideAll(hosttest.Admin, forAdmin, "approve"); return err },
	} {
		h.Clock.Advance(2 * time.Minute)
		e := refusal(t, do(), host.CodeForbidden)
		if !slices.Contains(e.Reasons, "second_party_required") {
			t.Errorf("%s: %q", name, e.Reasons)
		}
	}
	if _, err := resume(h, hosttest.Owner, token, approveAll(r)); err != nil {
		t.Errorf("another owner: %v", err)
	}
	if _, err := h.DecideAll(hosttest.Owner, forAdmin, "reject"); err != nil {
		t.Errorf("another owner: %v", err)
	}
	// What a tool asks its own user is theirs to answer, as ever.
	q := h.Settled(h.Create(hosttest.Member, "ask").ID)
	if _, err := h.DecideAll(hosttest.Member, q, "respond"); err != nil {
		t.Errorf("the subject's own question: %v", err)
	}
	q = h.Settled(h.Create(hosttest.Admin, "ask").ID)
	if _, err := h.DecideAll(hosttest.Admin, q, "respond"); err != nil {
		t.Errorf("an admin's own question: %v", err)
	}
	mine := h.Batch(hosttest.Owner, "pay", twoCalls)
	_, err = h.DecideAll(hosttest.Owner, mine, "approve")
	refusal(t, err, host.CodeForbidden)
	h = restart(t, h, hosttest.Options{})
	_, err = h.DecideAll(hosttest.Owner, mine, "approve")
	refusal(t, err, host.CodeForbidden)
	set(false)
	if _, err := h.DecideAll(hosttest.Owner, mine, "approve"); err != nil {
		t.Errorf("one party is enough again: %v", err)
	}
}

func TestActAs_AServiceMakesRunsForUsers(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"show": showContext}})
	h.External("say", "{}")
	h.External("pay", gatedTransfer)
	newRun := func(a host.Actor, n host.NewRun) (host.Run, error) {
		return h.CreateRun(t.Context(), a, host.Idempotency{}, hosttest.Body(n))
	}
	forMember := host.NewRun{Agent: "pay", User: "member", Calls: call("transfer", `{"amount":1}`)}
	h.Clock.Advance(time.Minute)
	for name, a := range map[string]host.Actor{"an owner": hosttest.Owner, "a member": hosttest.Member2, "a service that may not": hosttest.Service} {
		before := h.Stored()
		_, err := newRun(a, forMember)
		if e := refusal(t, err, host.CodeForbidden); !slices.Contains(e.Reasons, "act_as_required") {
			t.Errorf("%s: %q", name, e.Reasons)
		}
		h.Unchanged(before)
	}
	_, err := newRun(hosttest.Member2, host.NewRun{Agent: "none", User: "member"})
	refusal(t, err, host.CodeNotFound) // before 403
	if _, err := newRun(hosttest.Member, forMember); err != nil {
		t.Errorf("oneself by name: %v", err)
	}
	k := ensure(t, h, "demo", "chat", "service", "member")
	put(t, h, hosttest.Owner, "chat", host.PrincipalDoc{Kind: "service", Roles: []string{"member"}, ActAs: true})
	chat := login(t, h, k)
	for _, user := range []string{"a b", "-", strings.Repeat("u", 129)} {
		_, err := newRun(chat, host.NewRun{Agent: "pay", User: user})
		if e := refusal(t, err, host.CodeInvalid); e.Pointer != "/user" {
			t.Errorf("%s: %v", user, e)
		}
	}
	_, err = newRun(chat, host.NewRun{Agent: "pay", User: "member", ToolContext: raw(`{"user_id":"chat"}`)})
	if e := refusal(t, err, host.CodeInvalid); e.Pointer != "/tool_context/user_id" {
		t.Error(e)
	}
	r, err := newRun(chat, host.NewRun{Agent: "say", User: "member", ToolContext: raw(`{"user_id":"member"}`), Calls: call("show", `{}`)})
	if err != nil || r.CreatedBy != "chat" || r.Subject != "member" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := resultOf(h.Settled(r.ID).Calls[0]); !strings.Contains(got, `"user_id":"member"`) {
		t.Errorf("the tool sees %s", got)
	}
	// It is the user's own run, and nobody else's.
	for _, a := range []host.Actor{hosttest.Member, chat} {
		if _, err := h.GetRun(t.Context(), a, r.ID); err != nil {
			t.Errorf("%s: %v", a.ID, err)
		}
		list, _, err := h.ListRuns(t.Context(), a, host.RunFilter{}, host.Page{})
		if err != nil || !slices.ContainsFunc(list, func(x host.Run) bool { return x.ID == r.ID }) {
			t.Errorf("%s does not list it: %v", a.ID, err)
		}
	}
	_, err = h.GetRun(t.Context(), hosttest.Member2, r.ID)
	refusal(t, err, host.CodeNotFound)
	found := false
	for _, row := range h.AuditRows("demo") {
		found = found || row.Action == "run.act_as" && row.Outcome == "ok" && row.TargetID == r.ID && row.Detail["subject"] == "member" && *row.ActorID == "chat"
	}
	if !found {
		t.Error("no audit row names the subject")
	}
	// For somebody who is disabled nobody acts; a user whom the host does not know is the identity provider's business.
	put(t, h, hosttest.Owner, "member", host.PrincipalDoc{Roles: []string{"member"}, Disabled: true})
	h.Clock.Advance(time.Minute)
	_, err = newRun(chat, forMember)
	if e := refusal(t, err, host.CodeForbidden); !slices.Equal(e.Reasons, []string{"subject_disabled"}) || !strings.Contains(e.Detail, "member is disabled") {
		t.Errorf("%q, %q", e.Reasons, e.Detail)
	}
	if last := h.AuditRows("demo"); last[len(last)-1].Action != "run.act_as" || last[len(last)-1].Outcome != "denied" || last[len(last)-1].TargetID != "member" {
		t.Errorf("the refusal is not in the audit: %+v", last[len(last)-1])
	}
	put(t, h, hosttest.Owner, "member", host.PrincipalDoc{Roles: []string{"member"}})
	for _, user := range []string{"member", "nobody-here"} {
		if _, err := newRun(chat, host.NewRun{Agent: "pay", User: user}); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
	put(t, h, hosttest.Owner, "chat", host.PrincipalDoc{Kind: "service", Roles: []string{"member"}})
	_, err = newRun(fresh(t, h, chat), forMember)
	refusal(t, err, host.CodeForbidden)
}

func TestInvariant10_PrincipalsAndTenantsDoNotCross(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Config: func(c *host.Config) { c.OperatorTenant = "ops" }})
	root := person("ops", "root", "owner")
	demo, other := person("demo", "boss", "owner"), person("other", "boss", "owner")
	for _, boss := range []host.Actor{demo, other} {
		ensure(t, h, boss.Tenant, "boss", "user", "owner")
		ensure(t, h, boss.Tenant, "ann", "user", "admin")
	}
	ensure(t, h, "ops", "root", "user", "owner")
	annOfOther := ensure(t, h, "other", "ann", "user", "admin")
	put(t, h, demo, "ann", host.PrincipalDoc{Roles: []string{"member"}, Disabled: true})
	put(t, h, demo, "only-demo", host.PrincipalDoc{Roles: []string{"member"}})
	if a := login(t, h, annOfOther); !slices.Equal(a.Roles, []string{"admin"}) {
		t.Errorf("a namesake was demoted: %+v", a)
	}
	_, err := h.GetPrincipal(t.Context(), other, "only-demo")
	_, unknown := h.GetPrincipal(t.Context(), other, "nobody")
	if err == nil || err.Error() != unknown.Error() {
		t.Errorf("a foreign principal: %v, an unknown one: %v", err, unknown)
	}
	list, _, err := h.Principals(t.Context(), other, host.Page{})
	if got := text(t, list, err); strings.Contains(got, "only-demo") || len(list) != 2 {
		t.Errorf("%s", got)
	}
	on := true
	if _, err := h.ChangeTenant(t.Context(), demo, hosttest.Body(host.TenantChange{SecondParty: &on})); err != nil {
		t.Fatal(err)
	}
	if got, err := h.GetTenant(t.Context(), other); err != nil || got.SecondParty {
		t.Errorf("%+v, %v", got, err)
	}
	// The host's numbers are of all tenants, and so the operators'.
	refusal(t, h.May(t.Context(), other, "metrics.read"), host.CodeForbidden)
	if err := h.May(t.Context(), root, "metrics.read"); err != nil {
		t.Error(err)
	}
	// Tenants are the operators'.
	_, err = h.ChangeTenant(t.Context(), demo, hosttest.Body(host.TenantChange{Disabled: &on}))
	refusal(t, err, host.CodeInvalid)
	for _, a := range []host.Actor{demo, person("ops", "aide", "admin"), {Tenant: "ops", ID: "robot", Kind: "service", Roles: []string{"member"}}} {
		_, _, err := h.Tenants(t.Context(), a, host.Page{})
		refusal(t, err, host.CodeForbidden)
		_, err = h.CreateTenant(t.Context(), a, host.Idempotency{}, hosttest.Body(host.NewTenant{Name: "x"}))
		refusal(t, err, host.CodeForbidden)
		for _, name := range []string{"other", "nobody"} {
			_, err = h.ChangeTenantOf(t.Context(), a, name, hosttest.Body(host.TenantChange{Disabled: &on}))
			refusal(t, err, host.CodeForbidden)
		}
	}
	idem := host.Idempotency{Key: "k", Method: "POST", Path: "/v1/tenants", Body: "b"}
	made, err := h.CreateTenant(t.Context(), root, idem, hosttest.Body(host.NewTenant{Name: "new", Owner: "eve", SecondParty: true}))
	if err != nil || made.Key == nil || !made.SecondParty {
		t.Fatalf("%+v, %v", made, err)
	}
	again, err := h.CreateTenant(t.Context(), root, idem, hosttest.Body(host.NewTenant{Name: "new", Owner: "eve", SecondParty: true}))
	if err != nil || again.Name != "new" || again.Key != nil {
		t.Errorf("a repeat: %+v, %v", again, err)
	}
	for _, name := range []string{"new", "other", "ops"} {
		_, err = h.CreateTenant(t.Context(), root, host.Idempotency{}, hosttest.Body(host.NewTenant{Name: name, Owner: "thief"}))
		refusal(t, err, host.CodeWrongState)
	}
	_, err = h.ChangeTenantOf(t.Context(), root, "nobody", hosttest.Body(host.TenantChange{Disabled: &on}))
	refusal(t, err, host.CodeNotFound)
	_, err = h.ChangeTenantOf(t.Context(), root, "ops", hosttest.Body(host.TenantChange{Disabled: &on}))
	refusal(t, err, host.CodeWrongState)
	eve := login(t, h, *made.Key)
	if eve.Tenant != "new" || !slices.Equal(eve.Roles, []string{"owner"}) {
		t.Errorf("%+v", eve)
	}
	names := []string{}
	for _, x := range pages(t, func(p host.Page) ([]host.Tenant, string, error) { return h.Tenants(t.Context(), root, p) }) {
		names = append(names, x.Name)
	}
	if !slices.Equal(names, []string{"demo", "new", "ops", "other"}) {
		t.Errorf("%q", names)
	}
	// Disabled, no credential of it counts, and what they opened ends.
	watch, release := h.Revoked(made.Key.ID)
	defer release()
	if _, err := h.ChangeTenantOf(t.Context(), root, "new", hosttest.Body(host.TenantChange{Disabled: &on})); err != nil {
		t.Fatal(err)
	}
	<-watch
	_, err = h.Authenticate(t.Context(), made.Key.Key)
	refusal(t, err, host.CodeUnauthenticated)
	_, err = h.Fresh(t.Context(), eve)
	refusal(t, err, host.CodeUnauthenticated)
	for _, row := range h.AuditRows("new") { // what the operators do is in the tenant's log, without their names
		if strings.HasPrefix(row.Action, "tenants.") && row.ActorID != nil {
			t.Errorf("%+v", row)
		}
	}
	off := false
	if _, err := h.ChangeTenantOf(t.Context(), root, "new", hosttest.Body(host.TenantChange{Disabled: &off})); err != nil {
		t.Fatal(err)
	}
	login(t, h, *made.Key)
}
