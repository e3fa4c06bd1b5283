package host_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
)

// byToken is a provider whose tokens are eyJ.TENANT/PRINCIPAL/KIND.ROLE.
func byToken(_ context.Context, token string) (host.Identity, error) {
	parts := strings.Split(token, ".")
	who := strings.Split(parts[1], "/")
	if len(who) != 3 {
		return host.Identity{}, errors.New("unknown")
	}
	return host.Identity{Tenant: who[0], Principal: who[1], Kind: who[2], Roles: []string{parts[2]}, Until: time.Now().AddDate(100, 0, 0)}, nil
}

func withTokens(tenant string) hosttest.Options {
	return hosttest.Options{Config: func(c *host.Config) { c.Tokens, c.TokenTenant = byToken, tenant }}
}

func token(t testing.TB, h *hosttest.Host, who, role string) host.Actor {
	t.Helper()
	a, err := h.Authenticate(context.Background(), "eyJ."+who+"."+role)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A record narrows who comes by token, also after somebody has removed it, and most of all after they have.
func TestInvariant7_ARemovedRecordGoesOnNarrowingATokenOfItsName(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		doc    host.PrincipalDoc
		remove bool // by itself
	}{
		"an owner who is an admin":       {host.PrincipalDoc{Roles: []string{"admin"}}, true},
		"an owner who is a member":       {host.PrincipalDoc{Roles: []string{"member"}}, false},
		"a person who is a service":      {host.PrincipalDoc{Roles: []string{"admin"}, Kind: "service"}, true},
		"a service that acts for others": {host.PrincipalDoc{Roles: []string{"member"}, Kind: "service", ActAs: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, withTokens(""))
			ensure(t, h, "demo", "owner", "user", "owner")
			if a := token(t, h, "demo/olga/user", "owner"); !slices.Equal(a.Roles, []string{"owner"}) || a.Kind != "user" {
				t.Fatalf("without a record: %+v", a)
			}
			put(t, h, hosttest.Owner, "olga", tc.doc)
			by := hosttest.Owner
			if tc.remove {
				by = token(t, h, "demo/olga/user", "owner")
			}
			if err := h.RemovePrincipal(t.Context(), by, "olga"); err != nil {
				t.Fatal(err)
			}
			kind := tc.doc.Kind
			if kind == "" {
				kind = "user"
			}
			check := func(a host.Actor) {
				t.Helper()
				if !slices.Equal(a.Roles, tc.doc.Roles) || a.Kind != kind || a.ActAs {
					t.Errorf("%+v", a)
				}
			}
			check(token(t, h, "demo/olga/user", "owner"))
			refusal(t, save(h, token(t, h, "demo/olga/user", "owner"), "olga", host.PrincipalDoc{Roles: []string{"owner"}, Kind: "user"}), host.CodeForbidden)
			h = restart(t, h, withTokens(""))
			check(token(t, h, "demo/olga/user", "owner"))
			// An owner gives it back.
			put(t, h, hosttest.Owner, "olga", host.PrincipalDoc{Roles: []string{"owner"}})
			if a := token(t, h, "demo/olga/user", "owner"); !slices.Equal(a.Roles, []string{"owner"}) || a.Kind != "user" {
				t.Errorf("given back: %+v", a)
			}
		})
	}
}

// Where tokens count, nobody knows who has a name without a record: it may be an owner, and only an owner locks one out or takes the name.
func TestInvariant7_AnAdminNeitherNarrowsNorBecomesAnOwnerWhoComesByToken(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, withTokens("demo"))
	ensure(t, h, "demo", "owner", "user", "owner")
	key := func(by host.Actor, doc host.NewKey) error {
		_, err := h.CreateKey(context.Background(), by, host.Idempotency{}, hosttest.Body(doc))
		return err
	}
	attempts := func(by host.Actor, name string) map[string]error {
		return map[string]error{
			"a member":       save(h, by, name, host.PrincipalDoc{Roles: []string{"member"}}),
			"disabled":       save(h, by, name, host.PrincipalDoc{Roles: []string{"admin"}, Disabled: true}),
			"a service":      save(h, by, name, host.PrincipalDoc{Roles: []string{"admin"}, Kind: "service"}),
			"a key":          key(by, host.NewKey{Principal: name, Kind: "user", Roles: []string{"admin"}}),
			"a member's key": key(by, host.NewKey{Principal: name, Kind: "service", Roles: []string{"member"}}),
		}
	}
	check := func(name string) {
		t.Helper()
		for what, err := range attempts(hosttest.Admin, name) {
			if e, ok := errors.AsType[*host.Error](err); !ok || e.Code != host.CodeForbidden || len(e.Reasons) != 1 || !strings.HasPrefix(e.Reasons[0], "owner_") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if a := token(t, h, "demo/"+name+"/user", "owner"); !slices.Equal(a.Roles, []string{"owner"}) {
			t.Errorf("%+v", a)
		}
	}
	check("boss")
	check("boss") // also after the token was seen
	// An owner who was removed comes by token as before.
	put(t, h, hosttest.Owner, "boss2", host.PrincipalDoc{Roles: []string{"owner"}})
	if err := h.RemovePrincipal(t.Context(), hosttest.Owner, "boss2"); err != nil {
		t.Fatal(err)
	}
	check("boss2")
	// An owner names somebody, and admins manage them from then on.
	put(t, h, hosttest.Owner, "ann", host.PrincipalDoc{Roles: []string{"member"}})
	if err := key(hosttest.Admin, host.NewKey{Principal: "ann", Kind: "user", Roles: []string{"member"}}); err != nil {
		t.Error(err)
	}
	put(t, h, hosttest.Admin, "ann", host.PrincipalDoc{Roles: []string{"admin"}})
	// Where no token can come, admins name whom they like.
	other := person("other", "other_admin", "admin")
	put(t, h, other, "new", host.PrincipalDoc{Roles: []string{"member"}})
}

// A provider's tokens are told as keys are: the first use a day, and the first refusal of somebody who was stopped.
func TestAudit_TokenUse(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Idle: true, Config: func(c *host.Config) { c.Tokens = byToken }})
	ensure(t, h, "demo", "owner", "user", "owner")
	for range 3 {
		token(t, h, "demo/tina/user", "admin")
	}
	put(t, h, hosttest.Owner, "tina", host.PrincipalDoc{Roles: []string{"admin"}, Disabled: true})
	for range 3 {
		_, err := h.Authenticate(t.Context(), "eyJ.demo/tina/user.admin")
		refusal(t, err, host.CodeUnauthenticated)
	}
	h.Start() // what waits is written when the host ends
	h.Stop()
	var got []string
	for _, r := range h.AuditRows("demo") {
		if r.Action == "key.use" {
			got = append(got, strings.Join([]string{*r.ActorID, r.ActorKind, r.TargetKind, r.TargetID, r.Outcome, r.Reason}, " "))
		}
	}
	if want := []string{"tina user token tina ok ", "tina user token tina denied disabled"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What the host itself does must not look like a person's act.
func TestNobodyHasANameOfTheHostsOwn(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, withTokens(""))
	put(t, h, hosttest.Owner, "bot", host.PrincipalDoc{Roles: []string{"member"}, Kind: "service", ActAs: true})
	bot := login(t, h, ensure(t, h, "demo", "bot", "service", "member"))
	h.Agent("pay", `{"planner":{"kind":"external"},"tools":[]}`)
	for _, name := range []string{"system", "operator"} {
		refusal(t, save(h, hosttest.Owner, name, host.PrincipalDoc{Roles: []string{"member"}}), host.CodeInvalid)
		_, err := h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(host.NewKey{Principal: name, Kind: "user", Roles: []string{"admin"}}))
		refusal(t, err, host.CodeInvalid)
		_, err = h.EnsureKey(t.Context(), "demo", host.NewKey{Principal: name, Kind: "user", Roles: []string{"owner"}})
		refusal(t, err, host.CodeInvalid)
		_, err = h.CreateTenant(t.Context(), host.Operator("demo"), host.Idempotency{}, hosttest.Body(host.NewTenant{Name: "new", Owner: name}))
		refusal(t, err, host.CodeInvalid)
		_, err = h.Authenticate(t.Context(), "eyJ.demo/"+name+"/user.owner")
		refusal(t, err, host.CodeUnauthenticated)
		_, err = h.CreateRun(t.Context(), bot, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "pay", User: name}))
		refusal(t, err, host.CodeInvalid)
	}
}
