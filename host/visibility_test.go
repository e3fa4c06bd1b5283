package host_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

func person(tenant, id string, roles ...string) host.Actor {
	return host.Actor{Tenant: tenant, ID: id, Kind: host.KindUser, Roles: roles}
}

// world is two tenants in which everything has the same names: agents, principals, labels, paths. Each run carries a marker in
// its arguments that only its readers may ever meet.
type world struct {
	*hosttest.Host
	runs    map[string]host.Run // by marker
	readers map[*host.Actor][]string
}

func newWorld(t *testing.T) *world {
	h := hosttest.New(t, hosttest.Options{})
	w := &world{Host: h, runs: map[string]host.Run{}, readers: map[*host.Actor][]string{}}
	for _, tenant := range []string{"demo", "other"} {
		boss, admin := person(tenant, "boss", host.RoleOwner), person(tenant, "chief", host.RoleAdmin)
		doc := raw(`{"planner":{"kind":"external"},"tools":["transfer","write_file","read_file"],"interrupt_on":{"transfer":true},"system":"of ` + tenant + `"}`)
		for _, name := range []string{"pay", "only-" + tenant} {
			if _, _, err := h.SaveAgent(t.Context(), boss, name, hosttest.Body(doc)); err != nil {
				t.Fatal(err)
			}
		}
		var all []string
		for _, id := range []string{"ann", "bob"} {
			a := person(tenant, id, host.RoleMember)
			var own []string
			for n := range 2 {
				marker := fmt.Sprintf("mark-%s-%s-%d", tenant, id, n)
				r, err := h.CreateRun(t.Context(), a, host.Idempotency{Key: "same", Method: "POST", Path: fmt.Sprint(n), Body: "same"}, hosttest.Body(host.NewRun{
					Agent: "pay", SessionID: "s", Input: raw(`"` + marker + `"`), Calls: call("transfer", `{"amount":1,"to":"`+marker+`"}`),
				}))
				if err != nil {
					t.Fatal(err)
				}
				w.runs[marker] = r
				own = append(own, marker)
			}
			w.readers[&a] = own
			all = append(all, own...)
		}
		w.readers[&boss], w.readers[&admin] = all, all
	}
	return w
}

// pages reads a list to its end, one item a page.
func pages[T any](t *testing.T, list func(host.Page) ([]T, string, error)) (out []T) {
	t.Helper()
	p := host.Page{Limit: 1}
	for {
		items, next, err := list(p)
		if err != nil || len(items) > 1 {
			t.Fatalf("a page of %d, %v", len(items), err)
		}
		out = append(out, items...)
		if p.Cursor = next; next == "" {
			return out
		}
	}
}

func TestInvariant10_NothingCrossesInWhatIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.Stored()
	defer func() { w.Unchanged(before) }() // invariant 13: reading never changes state
	for a, mine := range w.readers {
		who := a.Tenant + "/" + a.ID
		only := func(what, text string) {
			t.Helper()
			for marker, r := range w.runs {
				if has := strings.Contains(text, marker) || strings.Contains(text, r.ID); has != slices.Contains(mine, marker) {
					t.Errorf("%s: %s shows %s: %v", who, what, marker, has)
				}
			}
		}
		runs := pages(t, func(p host.Page) ([]host.Run, string, error) { return w.ListRuns(t.Context(), *a, host.RunFilter{}, p) })
		only("the list of runs", text(t, runs, nil))
		if len(runs) != len(mine) {
			t.Errorf("%s lists %d runs of %d", who, len(runs), len(mine))
		}
		aps := pages(t, func(p host.Page) ([]host.Approval, string, error) { return w.Approvals(t.Context(), *a, "pending", p) })
		only("the queue", text(t, aps, nil))
		if len(aps) != len(mine) {
			t.Errorf("%s lists %d approvals of %d", who, len(aps), len(mine))
		}
		filtered, _, err := w.ListRuns(t.Context(), *a, host.RunFilter{State: string(store.RunAwaitingApproval), Agent: "pay"}, host.Page{Limit: 200})
		only("a filtered list", text(t, filtered, err))
		pending, _, s, err := w.WatchQueue(t.Context(), *a, "0")
		only("the queue's snapshot", text(t, pending, err))
		var queue []string
		for range mine {
			for len(queue) < 3*len(mine) { // created, requested, paused
				evs, err := s.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range evs {
					queue = append(queue, string(e.Data))
				}
			}
		}
		s.Close()
		only("the queue's events", strings.Join(queue, "\n"))
		unknown := []error{}
		for _, read := range w.reads(t, *a) {
			_, err := read("run_01900000-0000-7000-8000-000000000000")
			refusal(t, err, host.CodeNotFound)
			unknown = append(unknown, err)
		}
		for marker, r := range w.runs {
			for i, read := range w.reads(t, *a) {
				got, err := read(r.ID)
				if !slices.Contains(mine, marker) {
					if !reflect.DeepEqual(err, unknown[i]) {
						t.Errorf("%s reads %s (%d): %#v, want what an unknown id gets: %#v", who, marker, i, err, unknown[i])
					}
				} else if err != nil || !strings.Contains(got, marker) {
					t.Errorf("%s reads its own %s (%d): %v, %.200s", who, marker, i, err, got)
				}
			}
		}
	}
}

// reads are the ways to read one run.
func (w *world) reads(t *testing.T, a host.Actor) []func(string) (string, error) {
	show := func(v any, err error) (string, error) {
		if err != nil {
			return "", err
		}
		return text(t, v, nil), nil
	}
	return []func(string) (string, error){
		func(id string) (string, error) { return show(w.GetRun(t.Context(), a, id)) },
		func(id string) (string, error) { return show(w.WaitRun(t.Context(), a, id)) },
		func(id string) (string, error) { return show(w.Trajectory(t.Context(), a, id)) },
		func(id string) (string, error) { return show(w.RunApprovals(t.Context(), a, id)) },
		func(id string) (string, error) { return show(w.OpenPause(t.Context(), a, id)) },
		func(id string) (string, error) {
			var zero uint64
			r, _, s, err := w.WatchRun(t.Context(), a, id, &zero)
			if err != nil {
				return "", err
			}
			defer s.Close()
			evs, err := s.Next(t.Context())
			if err != nil {
				return "", err
			}
			return text(t, r, nil) + text(t, evs, nil), nil
		},
	}
}

func TestInvariant10_NothingCrossesInWhatIsChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writes := []func(host.Actor, host.Run) error{
		func(a host.Actor, r host.Run) error { _, err := w.Cancel(t.Context(), a, r.ID); return err },
		func(a host.Actor, r host.Run) error { _, err := w.RotateToken(t.Context(), a, r.ID); return err },
		func(a host.Actor, r host.Run) error {
			_, err := propose(w.Host, a, r.ID, batch(1, echoOne))
			return err
		},
		func(a host.Actor, r host.Run) error { _, err := finish(w.Host, a, r.ID, 1, "1"); return err },
		func(a host.Actor, r host.Run) error {
			_, err := w.Decide(t.Context(), a, r.ID, host.Idempotency{}, unread(t))
			return err
		},
	}
	before := w.Stored()
	for a, mine := range w.readers {
		for i, write := range writes {
			unknown := write(*a, host.Run{ID: "run_01900000-0000-7000-8000-000000000000"})
			refusal(t, unknown, host.CodeNotFound)
			for marker, r := range w.runs {
				if slices.Contains(mine, marker) {
					continue
				}
				if err := write(*a, r); !reflect.DeepEqual(err, unknown) {
					t.Errorf("%s/%s does %d to %s: %#v, want %#v", a.Tenant, a.ID, i, marker, err, unknown)
				}
			}
		}
	}
	w.Unchanged(before)
	// A cursor of the other tenant's list opens nothing of it.
	boss := map[string]host.Actor{"demo": person("demo", "boss", host.RoleOwner), "other": person("other", "boss", host.RoleOwner)}
	_, next, err := w.ListRuns(t.Context(), boss["demo"], host.RunFilter{}, host.Page{Limit: 2})
	if err != nil || next == "" {
		t.Fatal(err)
	}
	runs, _, err := w.ListRuns(t.Context(), boss["other"], host.RunFilter{}, host.Page{Cursor: next, Limit: 200})
	if err == nil && strings.Contains(text(t, runs, nil), "demo") {
		t.Errorf("a foreign cursor shows %+v", runs)
	}
	ann := person("demo", "ann", host.RoleMember)
	runs, _, err = w.ListRuns(t.Context(), ann, host.RunFilter{}, host.Page{Cursor: next, Limit: 200})
	if err == nil && strings.Contains(text(t, runs, nil), "bob") {
		t.Errorf("another's cursor shows %+v", runs)
	}
}

func TestInvariant10_AgentsFilesAuditAndKeysAreTheTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	demo, other := person("demo", "boss", host.RoleOwner), person("other", "boss", host.RoleOwner)
	_, unknown := w.GetAgent(t.Context(), other, "nobody")
	refusal(t, unknown, host.CodeNotFound)
	if _, err := w.GetAgent(t.Context(), other, "only-demo"); !reflect.DeepEqual(err, unknown) {
		t.Errorf("a foreign agent: %v", err)
	}
	unknown = w.DeleteAgent(t.Context(), other, "nobody")
	if err := w.DeleteAgent(t.Context(), other, "only-demo"); !reflect.DeepEqual(err, unknown) {
		t.Errorf("deleting a foreign agent: %v", err)
	}
	_, err := createWithAs(w.Host, other, "only-demo")
	if e := refusal(t, err, host.CodeNotFound); strings.Contains(e.Detail, "of demo") {
		t.Error(e)
	}
	agents, _, err := w.Agents(t.Context(), other, host.Page{})
	if got := text(t, agents, err); strings.Contains(got, "demo") || len(agents) != 2 {
		t.Errorf("agents of other: %s", got)
	}
	if a, _, err := w.SaveAgent(t.Context(), other, "pay", hosttest.Body(raw(`{"planner":{"kind":"external"},"tools":[]}`))); err != nil || a.Version != 2 {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := w.GetAgent(t.Context(), demo, "pay"); err != nil || a.Version != 1 || a.System != "of demo" {
		t.Errorf("the twin's save changed it: %+v, %v", a, err)
	}

	// One key-value space a tenant: shared by its members, not with the other tenant.
	file := func(a host.Actor, calls string) string {
		t.Helper()
		var cs []host.ProposedCall
		if err := json.Unmarshal([]byte(calls), &cs); err != nil {
			t.Fatal(err)
		}
		r, err := w.CreateRun(t.Context(), a, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "only-" + a.Tenant, Calls: cs}))
		if err != nil {
			t.Fatal(err)
		}
		if r, err = w.WaitRun(t.Context(), a, r.ID); err != nil {
			t.Fatal(err)
		}
		return resultsOf(r)
	}
	file(person("demo", "ann", host.RoleMember), `[{"tool":"write_file","arguments":{"path":"/x","content":"of demo"}}]`)
	const readX = `[{"tool":"read_file","arguments":{"path":"/x"}}]`
	if got := file(person("demo", "bob", host.RoleMember), readX); got != `{"content":"of demo"}` {
		t.Errorf("a member of the tenant reads %s", got)
	}
	if got := file(other, readX); got != `{"content":""}` {
		t.Errorf("the other tenant reads %s", got)
	}

	// Keys and audit.
	key, err := w.CreateKey(t.Context(), demo, host.Idempotency{}, hosttest.Body(host.NewKey{Principal: "robot", Kind: "service", Roles: []string{"member"}}))
	if err != nil {
		t.Fatal(err)
	}
	keys, _, err := w.Keys(t.Context(), other, host.Page{})
	if got := text(t, keys, err); strings.Contains(got, "robot") {
		t.Errorf("keys of other: %s", got)
	}
	unknown = w.RevokeKey(t.Context(), other, "nokey")
	refusal(t, unknown, host.CodeNotFound)
	if err := w.RevokeKey(t.Context(), other, key.ID); !reflect.DeepEqual(err, unknown) {
		t.Errorf("revoking a foreign key: %v", err)
	}
	if _, err := w.Authenticate(t.Context(), key.Key); err != nil {
		t.Errorf("the key after a foreigner's try: %v", err)
	}
	var targets []string
	for _, row := range w.AuditRows("other") {
		targets = append(targets, row.TargetID)
	}
	audit := strings.Join(targets, " ") + text(t, w.AuditRows("other"), nil)
	for marker, r := range w.runs {
		if strings.HasPrefix(marker, "mark-demo") && (strings.Contains(audit, r.ID) || strings.Contains(audit, marker)) || strings.Contains(audit, key.ID) || strings.Contains(audit, "only-demo") && strings.Contains(audit, `"ok"`) && strings.Contains(audit, "robot") {
			t.Fatalf("the audit of other: %s", audit)
		}
	}
}

func createWithAs(h *hosttest.Host, a host.Actor, agent string) (host.Run, error) {
	return h.CreateRun(h.Context(), a, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: agent}))
}

// Public failure BY24.
func TestInvariant7_WhatAMemberOrAServiceMayNotDoIsRefusedAndAudited(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Service, "pay", twoCalls) // its own run
	key, err := h.EnsureKey(t.Context(), "demo", host.NewKey{Principal: "x", Kind: "user", Roles: []string{"member"}})
	if err != nil {
		t.Fatal(err)
	}
	doc := hosttest.Body(raw(`{"planner":{"kind":"external"},"tools":[]}`))
	newKey := func(kind string, roles ...string) host.Lazy[host.NewKey] {
		return hosttest.Body(host.NewKey{Principal: "new", Kind: kind, Roles: roles})
	}
	rightless := person("demo", "guest")
	nobody := host.Actor{Tenant: "demo"}
	for i, tc := range []struct {
		who    host.Actor
		action string
		do     func(host.Actor) error
	}{
		{hosttest.Member, "agent.save", func(a host.Actor) error { _, _, err := h.SaveAgent(t.Context(), a, "pay", doc); return err }},
		{hosttest.Member, "agent.save", func(a host.Actor) error { _, _, err := h.SaveAgent(t.Context(), a, "new", doc); return err }},
		{hosttest.Member, "agent.delete", func(a host.Actor) error { return h.DeleteAgent(t.Context(), a, "pay") }},
		{hosttest.Member, "key.create", func(a host.Actor) error {
			_, err := h.CreateKey(t.Context(), a, host.Idempotency{}, newKey("user", "member"))
			return err
		}},
		{hosttest.Admin, "key.create", func(a host.Actor) error { // an admin makes no owner
			_, err := h.CreateKey(t.Context(), a, host.Idempotency{}, newKey("user", "admin", "owner"))
			return err
		}},
		{hosttest.Service, "key.create", func(a host.Actor) error {
			_, err := h.CreateKey(t.Context(), a, host.Idempotency{}, newKey("user", "member"))
			return err
		}},
		{hosttest.Member, "key.revoke", func(a host.Actor) error { return h.RevokeKey(t.Context(), a, key.ID) }},
		{hosttest.Member, "key.list", func(a host.Actor) error { _, _, err := h.Keys(t.Context(), a, host.Page{}); return err }},
		{hosttest.Member, "audit.read", func(a host.Actor) error {
			_, _, err := h.Audit(t.Context(), a, hosttest.Body(host.AuditFilter{}))
			return err
		}},
		{hosttest.Member, "policy.read", func(a host.Actor) error { _, err := h.GetPolicy(t.Context(), a); return err }},
		{hosttest.Member, "policy.evaluate", func(a host.Actor) error {
			_, err := h.Evaluate(t.Context(), a, hosttest.Body(host.Evaluation{Agent: "pay", Call: host.ProposedCall{Tool: "echo"}}))
			return err
		}},
		{hosttest.Service, "approval.decide", func(a host.Actor) error { _, err := h.DecideAll(a, r, "approve"); return err }},
		{rightless, "agent.save", func(a host.Actor) error { _, _, err := h.SaveAgent(t.Context(), a, "pay", doc); return err }},
		{nobody, "", func(a host.Actor) error { _, err := createWithAs(h, a, "pay"); return err }},
		{host.Actor{}, "", func(a host.Actor) error { _, err := createWithAs(h, a, "pay"); return err }},
		{host.Actor{Tenant: "demo", ID: "system", Kind: host.KindSystem, Roles: []string{host.RoleOwner}}, "", func(a host.Actor) error { _, err := createWithAs(h, a, "pay"); return err }},
	} {
		h.Clock.Advance(time.Minute) // each is a first refusal
		before := h.Stored()
		err := tc.do(tc.who)
		if e := refusal(t, err, host.CodeForbidden); len(e.Reasons) == 0 {
			t.Errorf("%d %s: no reasons", i, tc.action)
		}
		h.Unchanged(before)
		if tc.action == "" {
			continue
		}
		rows := h.AuditRows("demo")
		last := rows[len(rows)-1]
		if last.Action != tc.action || last.Outcome != "denied" || last.ActorID == nil || *last.ActorID != tc.who.ID || last.ActorKind != tc.who.Kind || last.Reason != "forbidden" {
			t.Errorf("%d: the last audit row is %s, want %s denied to %s", i, text(t, last, nil), tc.action, tc.who.ID)
		}
	}
	if _, err := h.Authenticate(t.Context(), key.Key); err != nil {
		t.Errorf("the key that nobody could revoke: %v", err)
	}
	// Of a minute's repeats the first is a row.
	refusals := func() (n int) {
		for _, row := range h.AuditRows("demo") { // the row of a key's use may come at any moment
			if row.Action == "agent.save" && row.Outcome == "denied" {
				n++
			}
		}
		return n
	}
	rows := refusals()
	for range 50 {
		_, _, err := h.SaveAgent(t.Context(), hosttest.Member2, "pay", doc)
		refusal(t, err, host.CodeForbidden)
	}
	if n := refusals() - rows; n != 1 {
		t.Errorf("50 refusals made %d rows", n)
	}
}

func TestKeys_ShownOnceHashedAndEndedByRevoking(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	idem := host.Idempotency{Key: "k", Method: "POST", Path: "/v1/keys", Body: "b"}
	create := func() host.Key {
		t.Helper()
		k, err := h.CreateKey(t.Context(), hosttest.Owner, idem, hosttest.Body(host.NewKey{Principal: "carol", Kind: "user", Roles: []string{"admin"}}))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := create()
	a, err := h.Authenticate(t.Context(), k.Key)
	if err != nil || a.Tenant != "demo" || a.ID != "carol" || a.Kind != "user" || !slices.Equal(a.Roles, []string{"admin"}) || a.KeyID != k.ID {
		t.Fatalf("actor %+v, %v", a, err)
	}
	if again := create(); again.ID != k.ID || again.Key != "" {
		t.Errorf("a repeat shows %+v; the secret is shown once", again)
	}
	parts := strings.SplitN(k.Key, "_", 3)
	secret, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || len(secret) != 32 {
		t.Fatalf("secret of %d bytes, %v", len(secret), err)
	}
	keys, _, err := h.Keys(t.Context(), hosttest.Admin, host.Page{})
	everywhere := text(t, keys, err) + h.Log.String() + text(t, h.AuditRows("demo"), nil)
	for key, v := range h.Stored() {
		everywhere += key + v
	}
	for _, s := range []string{k.Key, parts[2], string(secret), hex.EncodeToString(secret), base64.StdEncoding.EncodeToString(secret)} {
		if strings.Contains(everywhere, s) {
			t.Errorf("the secret is in a list, a log, the audit or the store as %q", s)
		}
	}
	_, refused := h.Authenticate(t.Context(), "")
	refusal(t, refused, host.CodeUnauthenticated)
	for _, bad := range []string{
		"x", "pawl_", "pawl__", parts[2], "pawl_" + k.ID, "pawl_" + k.ID + "_", k.Key + "A", k.Key[:len(k.Key)-1], k.Key + "\n", " " + k.Key, strings.ToUpper(k.Key),
		"pawl_" + k.ID + "_" + base64.RawURLEncoding.EncodeToString(make([]byte, 32)), "pawl_ffff_" + parts[2], k.Key[:10] + "\n" + k.Key[10:], strings.Repeat(k.Key, 1000), "Bearer " + k.Key,
	} {
		if _, err := h.Authenticate(t.Context(), bad); !reflect.DeepEqual(err, refused) {
			t.Errorf("%.60q: %v, want the one refusal", bad, err)
		}
	}
	open, release := h.Revoked(k.ID)
	defer release()
	twice, release2 := h.Revoked(k.ID)
	release2()
	release2()
	select {
	case <-open:
		t.Fatal("closed before it was revoked")
	default:
	}
	if err := h.RevokeKey(t.Context(), hosttest.Admin, k.ID); err != nil {
		t.Fatal(err)
	}
	<-open
	<-twice // released, and told all the same
	if _, err := h.Authenticate(t.Context(), k.Key); !reflect.DeepEqual(err, refused) {
		t.Errorf("a revoked key: %v", err)
	}
	late, release3 := h.Revoked(k.ID)
	defer release3()
	<-late
	if err := h.RevokeKey(t.Context(), hosttest.Admin, k.ID); err != nil {
		t.Errorf("revoking again: %v", err)
	}
	revoked := 0
	for _, row := range h.AuditRows("demo") {
		if row.Action == "key.revoke" && row.Outcome == "ok" && row.TargetID == k.ID {
			revoked++
		}
	}
	if revoked != 1 {
		t.Errorf("%d key.revoke rows", revoked)
	}
	h = restart(t, h, hosttest.Options{})
	if _, err := h.Authenticate(t.Context(), k.Key); !reflect.DeepEqual(err, refused) {
		t.Errorf("a revoked key after a restart: %v", err)
	}
	for _, tc := range []struct {
		key     host.NewKey
		pointer string
	}{
		{host.NewKey{Kind: "user", Roles: []string{"member"}}, "/principal"},
		{host.NewKey{Principal: "a b", Kind: "user", Roles: []string{"member"}}, "/principal"},
		{host.NewKey{Principal: strings.Repeat("a", 129), Kind: "user", Roles: []string{"member"}}, "/principal"},
		{host.NewKey{Principal: "a", Kind: "user"}, "/roles"},
	} {
		_, err := h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(tc.key))
		if e := refusal(t, err, host.CodeInvalid); e.Pointer != tc.pointer {
			t.Errorf("%+v: pointer %q, want %q", tc.key, e.Pointer, tc.pointer)
		}
	}
	for _, key := range []host.NewKey{
		{Principal: "a", Kind: "system", Roles: []string{"member"}}, {Principal: "a", Kind: "", Roles: []string{"member"}}, {Principal: "a", Kind: "user", Roles: []string{"root"}},
	} {
		_, err := h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(key))
		if code := host.CodeOf(err); code != host.CodeInvalid && code != host.CodeForbidden {
			t.Errorf("%+v: %v", key, err)
		}
	}
}
