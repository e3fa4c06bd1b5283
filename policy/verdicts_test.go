package policy

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// The remembered answers are those of the module: for random questions, asked with the memory and without it.
func TestVerdictsAreTheRulesOwn(t *testing.T) {
	t.Parallel()
	e, err := New(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[rnd.IntN(len(from))] }
	roles := func() []string {
		return [][]string{nil, {}, {"member"}, {"admin"}, {"owner"}, {"member", "admin"}, {"admin", "member"}, {"root"}, {"owner", "root"}}[rnd.IntN(9)]
	}
	rounds := 4000
	if testing.Short() {
		rounds = 800
	}
	allowed := 0
	for range rounds {
		in := &AuthzInput{
			Act: pick("run.create", "run.read", "run.drive", "run.cancel", "approval.decide", "token.rotate", "agent.save", "key.create", "key.revoke", "principal.save", "principal.remove",
				"run.act_as", "tenant.read", "tenant.change", "tenants.list", "tenants.change", "queue.read", "made.up", ""),
			Principal: Principal{
				Tenant: pick("a", "b", ""), ID: pick("x", "y", ""), Kind: pick("user", "service", "system", ""), Roles: roles(),
				ActAs: rnd.IntN(2) == 0, Operator: rnd.IntN(2) == 0,
			},
			Resource: Resource{
				Kind: pick("run", "approval"), Tenant: pick("a", "b", ""), ID: pick("1", "2"), CreatedBy: pick("x", "y", ""), Subject: pick("x", "y", ""),
				Agent: pick("p", "q"), Tool: pick("s", "t"), Reason: pick("await_input", "approval_required", ""), Origin: pick("gate", "tool", ""),
				Roles: roles(), KindOfKey: pick("user", "service", "system", ""),
				SecondParty: rnd.IntN(2) == 0, NewName: rnd.IntN(2) == 0,
			},
		}
		want, got := e.ask(t.Context(), in), e.Authz(t.Context(), in)
		if want.Allow != got.Allow || want.Code != got.Code || !slices.Equal(want.Reasons, got.Reasons) {
			t.Fatalf("%+v\n the rules say %+v\n the memory says %+v", in, want, got)
		}
		if got.Allow {
			allowed++
		}
	}
	if allowed < rounds/50 || allowed > rounds*9/10 {
		t.Errorf("%d of %d questions were allowed: too few or too many to tell", allowed, rounds)
	}
}
