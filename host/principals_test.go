package host_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// intercepted is a store that lets a test act right before a commit that it picks, once.
type intercepted struct {
	store.Store
	mu     sync.Mutex
	before func(*store.Change) func() // nil, or what to do before this commit
}

func (s *intercepted) Commit(ctx context.Context, c *store.Change) (store.Receipt, error) {
	s.mu.Lock()
	var act func()
	if s.before != nil {
		if act = s.before(c); act != nil {
			s.before = nil
		}
	}
	s.mu.Unlock()
	if act != nil {
		act()
	}
	return s.Store.Commit(ctx, c)
}

// onDecision acts right before the commit of the next decision.
func (s *intercepted) onDecision(act func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = func(c *store.Change) func() {
		for _, a := range c.Appends {
			if strings.Contains(string(a.Data), "approval.decided") {
				return act
			}
		}
		return nil
	}
}

func put(t testing.TB, h *hosttest.Host, by host.Actor, id string, doc host.PrincipalDoc) host.Principal {
	t.Helper()
	p, _, err := h.SavePrincipal(context.Background(), by, id, hosttest.Body(doc))
	if err != nil {
		t.Fatalf("save principal %s: %v", id, err)
	}
	return p
}

func ensure(t testing.TB, h *hosttest.Host, tenant, id, kind string, roles ...string) host.Key {
	t.Helper()
	k, err := h.EnsureKey(context.Background(), tenant, host.NewKey{Principal: id, Kind: kind, Roles: roles})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func login(t testing.TB, h *hosttest.Host, k host.Key) host.Actor {
	t.Helper()
	a, err := h.Authenticate(context.Background(), k.Key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPrincipals_RolesAreReadFreshAndAKeyIsNeverMoreThanItsPrincipal(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	put(t, h, hosttest.Owner, "owner", host.PrincipalDoc{Roles: []string{"owner"}})
	full, less := ensure(t, h, "demo", "ann", "user", "owner"), ensure(t, h, "demo", "ann", "user", "member")
	for _, tc := range []struct {
		doc  host.PrincipalDoc
		full []string
		kind string
	}{
		{host.PrincipalDoc{Roles: []string{"owner"}}, []string{"owner"}, "user"},
		{host.PrincipalDoc{Roles: []string{"admin"}}, []string{"admin"}, "user"},
		{host.PrincipalDoc{Roles: []string{"member"}}, []string{"member"}, "user"},
		{host.PrincipalDoc{Roles: []string{"admin", "member"}}, []string{"admin", "member"}, "user"},
		{host.PrincipalDoc{Roles: []string{"owner"}, Kind: "service"}, []string{"owner"}, "service"},
		{host.PrincipalDoc{Roles: []string{"owner"}, Kind: "user"}, []string{"owner"}, "user"},
	} {
		long := login(t, h, full)
		put(t, h, hosttest.Owner, "ann", tc.doc)
		for _, a := range []host.Actor{login(t, h, full), fresh(t, h, long)} {
			if !slices.Equal(a.Roles, tc.full) || a.Kind != tc.kind {
				t.Errorf("%+v: a key of an owner has %q, a %s", tc.doc, a.Roles, a.Kind)
			}
		}
		if a := login(t, h, less); !slices.Equal(a.Roles, []string{"member"}) || a.Kind != tc.kind {
			t.Errorf("%+v: a key of a member has %q, a %s", tc.doc, a.Roles, a.Kind)
		}
	}
	// Disabled, nothing of it counts; enabled, the same keys do again.
	long := login(t, h, full)
	put(t, h, hosttest.Owner, "ann", host.PrincipalDoc{Roles: []string{"owner"}, Disabled: true})
	for _, k := range []host.Key{full, less} {
		_, err := h.Authenticate(t.Context(), k.Key)
		refusal(t, err, host.CodeUnauthenticated)
	}
	_, err := h.Fresh(t.Context(), long)
	refusal(t, err, host.CodeUnauthenticated)
	_, err = h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(host.NewKey{Principal: "ann", Kind: "user", Roles: []string{"member"}}))
	refusal(t, err, host.CodeWrongState)
	put(t, h, hosttest.Owner, "ann", host.PrincipalDoc{Roles: []string{"owner"}})
	login(t, h, full)
	// A new key is at most what its principal is.
	put(t, h, hosttest.Owner, "ann", host.PrincipalDoc{Roles: []string{"member"}})
	put(t, h, hosttest.Owner, "ci", host.PrincipalDoc{Roles: []string{"admin"}, Kind: "service"})
	for _, tc := range []struct {
		key     host.NewKey
		pointer string
	}{
		{host.NewKey{Principal: "ann", Kind: "user", Roles: []string{"member", "admin"}}, "/roles/1"},
		{host.NewKey{Principal: "ci", Kind: "user", Roles: []string{"member"}}, "/kind"},
		{host.NewKey{Principal: "ci", Kind: "service", Roles: []string{"admin"}}, ""},
		{host.NewKey{Principal: "ann", Kind: "service", Roles: []string{"member"}}, ""},
	} {
		k, err := h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(tc.key))
		if tc.pointer != "" {
			if e := refusal(t, err, host.CodeInvalid); e.Pointer != tc.pointer {
				t.Errorf("%+v: %v at %s", tc.key, e, e.Pointer)
			}
		} else if a := login(t, h, k); a.Kind != "service" {
			t.Errorf("%+v: a %s", tc.key, a.Kind)
		}
	}
	// An unknown name is a principal from its first key on.
	if _, err := h.CreateKey(t.Context(), hosttest.Admin, host.Idempotency{}, hosttest.Body(host.NewKey{Principal: "new", Kind: "user", Roles: []string{"admin"}})); err != nil {
		t.Fatal(err)
	}
	if p, err := h.GetPrincipal(t.Context(), hosttest.Admin, "new"); err != nil || p.Kind != "user" || !slices.Equal(p.Roles, []string{"admin"}) || p.CreatedBy != "admin" {
		t.Errorf("%+v, %v", p, err)
	}
}

func fresh(t testing.TB, h *hosttest.Host, a host.Actor) host.Actor {
	t.Helper()
	a, err := h.Fresh(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPrincipals_WhatTheDocumentMayBe(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for _, tc := range []struct {
		id      string
		doc     host.PrincipalDoc
		pointer string
	}{
		{"a b", host.PrincipalDoc{Roles: []string{"member"}}, ""},
		{strings.Repeat("a", 129), host.PrincipalDoc{Roles: []string{"member"}}, ""},
		{"a", host.PrincipalDoc{}, "/roles"},
		{"a", host.PrincipalDoc{Roles: []string{"member", "root"}}, "/roles/1"},
		{"a", host.PrincipalDoc{Roles: []string{"member"}, Kind: "system"}, "/kind"},
		{"a", host.PrincipalDoc{Roles: []string{"member"}, ActAs: true}, "/act_as"},
	} {
		_, _, err := h.SavePrincipal(t.Context(), hosttest.Owner, tc.id, hosttest.Body(tc.doc))
		if e := refusal(t, err, host.CodeInvalid); e.Pointer != tc.pointer {
			t.Errorf("%s %+v: at %q", tc.id, tc.doc, e.Pointer)
		}
		_, _, err = h.SavePrincipal(t.Context(), hosttest.Member, tc.id, hosttest.Body(tc.doc))
		refusal(t, err, host.CodeForbidden)
	}
	for _, id := range []string{"nobody", "", "a b", strings.Repeat("a", 100_000)} {
		_, err := h.GetPrincipal(t.Context(), hosttest.Owner, id)
		refusal(t, err, host.CodeNotFound)
		refusal(t, h.RemovePrincipal(t.Context(), hosttest.Owner, id), host.CodeNotFound)
	}
	// Only an owner gives and takes the role of an owner, and a service grants nothing.
	put(t, h, hosttest.Owner, "boss", host.PrincipalDoc{Roles: []string{"owner"}})
	put(t, h, hosttest.Owner, "heir", host.PrincipalDoc{Roles: []string{"owner"}})
	for name, do := range map[string]func() error{
		"an admin makes an owner":   func() error { return save(h, hosttest.Admin, "x", host.PrincipalDoc{Roles: []string{"owner"}}) },
		"an admin demotes an owner": func() error { return save(h, hosttest.Admin, "boss", host.PrincipalDoc{Roles: []string{"member"}}) },
		"an admin disables an owner": func() error {
			return save(h, hosttest.Admin, "boss", host.PrincipalDoc{Roles: []string{"owner"}, Disabled: true})
		},
		"an admin removes an owner": func() error { return h.RemovePrincipal(t.Context(), hosttest.Admin, "boss") },
		"a service makes a member":  func() error { return save(h, hosttest.Service, "x", host.PrincipalDoc{Roles: []string{"member"}}) },
	} {
		if err := do(); host.CodeOf(err) != host.CodeForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func save(h *hosttest.Host, by host.Actor, id string, doc host.PrincipalDoc) error {
	_, _, err := h.SavePrincipal(context.Background(), by, id, hosttest.Body(doc))
	return err
}

func TestPrincipals_ARemovedOneTakesItsKeysAlong(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	k := ensure(t, h, "demo", "carol", "user", "admin")
	watch, release := h.Revoked(k.ID)
	defer release()
	if err := h.RemovePrincipal(t.Context(), hosttest.Owner, "carol"); err != nil {
		t.Fatal(err)
	}
	<-watch
	// The name again is another principal: the old key stays dead, whoever makes it.
	put(t, h, hosttest.Owner, "carol", host.PrincipalDoc{Roles: []string{"admin"}})
	ensure(t, h, "demo", "carol", "user", "admin")
	_, err := h.Authenticate(t.Context(), k.Key)
	refusal(t, err, host.CodeUnauthenticated)
	h = restart(t, h, hosttest.Options{})
	_, err = h.Authenticate(t.Context(), k.Key)
	refusal(t, err, host.CodeUnauthenticated)
	list := pages(t, func(p host.Page) ([]host.Principal, string, error) {
		return h.Principals(t.Context(), hosttest.Owner, p)
	})
	if len(list) != 1 || list[0].ID != "carol" {
		t.Errorf("%+v", list)
	}
}

func TestPrincipals_ATenantKeepsAnOwner(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	put(t, h, hosttest.Owner, "one", host.PrincipalDoc{Roles: []string{"owner"}})
	put(t, h, hosttest.Owner, "robot", host.PrincipalDoc{Roles: []string{"owner"}, Kind: "service"})
	put(t, h, hosttest.Owner, "asleep", host.PrincipalDoc{Roles: []string{"owner"}, Disabled: true})
	one := person("demo", "one", "owner")
	for name, do := range map[string]func() error{
		"demoted":   func() error { return save(h, one, "one", host.PrincipalDoc{Roles: []string{"admin"}}) },
		"disabled":  func() error { return save(h, one, "one", host.PrincipalDoc{Roles: []string{"owner"}, Disabled: true}) },
		"a service": func() error { return save(h, one, "one", host.PrincipalDoc{Roles: []string{"owner"}, Kind: "service"}) },
		"removed":   func() error { return h.RemovePrincipal(t.Context(), one, "one") },
	} {
		before := h.Stored()
		if err := do(); host.CodeOf(err) != host.CodeLastOwner {
			t.Errorf("the last owner %s: %v", name, err)
		}
		h.Unchanged(before)
	}
	// Two owners who demote each other at the same moment: one of them stays, every time.
	for range 50 {
		put(t, h, person("demo", "root", "owner"), "one", host.PrincipalDoc{Roles: []string{"owner"}})
		put(t, h, person("demo", "root", "owner"), "two", host.PrincipalDoc{Roles: []string{"owner"}})
		var wg sync.WaitGroup
		for _, pair := range [][2]string{{"one", "two"}, {"two", "one"}} {
			wg.Go(func() {
				err := save(h, person("demo", pair[0], "owner"), pair[1], host.PrincipalDoc{Roles: []string{"member"}})
				if code := host.CodeOf(err); err != nil && code != host.CodeLastOwner && code != host.CodeForbidden {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		owners := 0
		for _, id := range []string{"one", "two"} {
			if p, err := h.GetPrincipal(t.Context(), person("demo", "root", "owner"), id); err != nil {
				t.Fatal(err)
			} else if slices.Contains(p.Roles, "owner") {
				owners++
			}
		}
		if owners != 1 {
			t.Fatalf("%d owners are left", owners)
		}
	}
}

// Somebody who is demoted, disabled or removed, or whose key is revoked, after the host has found them entitled and before the
// decision is durable, has decided nothing.
func TestInvariant7_ADemotionBetweenTheQuestionAndTheCommitWins(t *testing.T) {
	t.Parallel()
	s := &intercepted{Store: memstore.New()}
	t.Cleanup(func() { s.Close() })
	h := hosttest.New(t, hosttest.Options{Store: s})
	h.External("pay", gatedTransfer)
	put(t, h, hosttest.Owner, "owner", host.PrincipalDoc{Roles: []string{"owner"}})
	for name, tc := range map[string]struct {
		act  func(k host.Key) error
		want host.Code
	}{
		"demoted": {func(host.Key) error {
			return save(h, hosttest.Owner, "ann", host.PrincipalDoc{Roles: []string{"member"}})
		}, host.CodeForbidden},
		"disabled": {func(host.Key) error {
			return save(h, hosttest.Owner, "ann", host.PrincipalDoc{Roles: []string{"admin"}, Disabled: true})
		}, host.CodeUnauthenticated},
		"removed": {func(host.Key) error { return h.RemovePrincipal(context.Background(), hosttest.Owner, "ann") }, host.CodeUnauthenticated},
		"revoked": {func(k host.Key) error { return h.RevokeKey(context.Background(), hosttest.Owner, k.ID) }, host.CodeUnauthenticated},
		"two parties": {func(host.Key) error {
			on := true
			_, err := h.ChangeTenant(context.Background(), hosttest.Owner, hosttest.Body(host.TenantChange{SecondParty: &on}))
			return err
		}, host.CodeForbidden},
	} {
		k := ensure(t, h, "demo", "ann", "user", "admin")
		ann := login(t, h, k)
		by := hosttest.Member
		if name == "two parties" {
			by = ann
		}
		r := h.Batch(by, "pay", twoCalls)
		done := make(chan error, 1)
		s.onDecision(func() { done <- tc.act(k) })
		_, err := h.DecideAll(ann, r, "approve")
		if herr := <-done; herr != nil {
			t.Fatal(herr)
		}
		if host.CodeOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
		if r, err = h.GetRun(t.Context(), hosttest.Owner, r.ID); err != nil || r.State != store.RunAwaitingApproval {
			t.Errorf("%s: the run is %s, %v", name, r.State, err)
		}
		off := false
		if _, err := h.ChangeTenant(t.Context(), hosttest.Owner, hosttest.Body(host.TenantChange{SecondParty: &off})); err != nil {
			t.Fatal(err)
		}
	}
	if n := h.Ran.Count("transfer"); n != 0 {
		t.Errorf("%d transfers ran", n)
	}
}

// Demoted between the page and the decision: the page was theirs, the decision is not.
func TestInvariant7_ADemotionBetweenThePageAndTheDecision(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	ann := login(t, h, ensure(t, h, "demo", "ann", "user", "admin"))
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	page, err := h.GetRun(t.Context(), ann, r.ID)
	if err != nil || page.Pause.ResumeToken == "" {
		t.Fatal(err)
	}
	put(t, h, hosttest.Owner, "ann", host.PrincipalDoc{Roles: []string{"member"}})
	_, err = resume(h, ann, page.Pause.ResumeToken, approveAll(page))
	refusal(t, err, host.CodeForbidden)
	_, err = h.DecideAll(ann, page, "approve")
	refusal(t, err, host.CodeForbidden)
	put(t, h, hosttest.Owner, "ann", host.PrincipalDoc{Roles: []string{"admin"}})
	if _, err = h.DecideAll(ann, page, "approve"); err != nil {
		t.Errorf("promoted again: %v", err)
	}
}

// A database of a version that knew keys only: everybody keeps what their keys gave them.
func TestPrincipals_AreMadeOfTheKeysOfAnOldDatabase(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	t.Cleanup(func() { s.Close() })
	h := hosttest.New(t, hosttest.Options{Store: s, Idle: true})
	keys := map[string]host.Key{
		"owner": ensure(t, h, "demo", "ann", "user", "owner"), "member": ensure(t, h, "demo", "ann", "user", "member"),
		"twin": ensure(t, h, "other", "ann", "user", "member"), "bot": ensure(t, h, "demo", "bot", "service", "admin"),
		"gone": ensure(t, h, "demo", "gone", "user", "owner"),
	}
	if err := h.RevokeTenantKey(t.Context(), "demo", keys["gone"].ID); err != nil {
		t.Fatal(err)
	}
	old := memstore.New()
	t.Cleanup(func() { old.Close() })
	copyWithout(t, s, old, "principal")
	h = hosttest.New(t, hosttest.Options{Store: old, Idle: true})
	for name, want := range map[string]string{"owner": "demo ann user owner", "member": "demo ann user member", "twin": "other ann user member", "bot": "demo bot service admin"} {
		a := login(t, h, keys[name])
		if got := strings.Join(append([]string{a.Tenant, a.ID, a.Kind}, a.Roles...), " "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	_, err := h.GetPrincipal(t.Context(), hosttest.Owner, "gone")
	refusal(t, err, host.CodeNotFound)
	p, err := h.GetPrincipal(t.Context(), hosttest.Owner, "ann")
	if err != nil || !slices.Contains(p.Roles, "owner") || p.Kind != "user" {
		t.Errorf("%+v, %v", p, err)
	}
	before := h.Stored()
	hosttest.New(t, hosttest.Options{Store: old, Idle: true})
	h.Unchanged(before) // a second start has nothing to do
}

// copyWithout copies what was stored, but for the items with an element of that name.
func copyWithout(t *testing.T, from, to store.Store, element string) {
	t.Helper()
	var c store.Change
	err := from.View(t.Context(), func(rd store.Reader) error {
		for _, root := range []string{"t", "key", "tenant"} {
			err := rd.Scan(store.Range{Prefix: store.K(root)}, func(it store.Item) bool {
				elems, err := it.Key.Elems()
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Contains(elems, any(element)) {
					c.Put(it.Key, slices.Clone(it.Value))
				}
				return true
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if _, cerr := to.Commit(t.Context(), &c); errors.Join(err, cerr) != nil {
		t.Fatal(err, cerr)
	}
}

// What an authentication costs, with its principal and its tenant.
func BenchmarkAuthenticate(b *testing.B) {
	h := hosttest.New(b, hosttest.Options{Idle: true})
	k := ensure(b, h, "demo", "ann", "user", "admin")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h.Authenticate(context.Background(), k.Key); err != nil {
			b.Fatal(err)
		}
	}
}
