package host_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
)

// A refusal says what would help, and that follows from its reason: who is an owner already is not sent to an owner.
func TestRefusalsSayWhatHelps(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	on := true
	if _, err := h.ChangeTenant(t.Context(), hosttest.Owner, hosttest.Body(host.TenantChange{SecondParty: &on})); err != nil {
		t.Fatal(err)
	}
	decide := func(a host.Actor, creator host.Actor) error {
		_, err := h.DecideAll(a, h.Batch(creator, "pay", twoCalls), "approve")
		return err
	}
	operators := hosttest.New(t, hosttest.Options{Config: func(c *host.Config) { c.OperatorTenant = "ops" }})
	for name, tc := range map[string]struct {
		do           func() error
		reason, want string
	}{
		"a member decides":           {func() error { return decide(hosttest.Member, hosttest.Admin) }, "", ""},
		"an owner decides their own": {func() error { return decide(hosttest.Owner, hosttest.Owner) }, "second_party_required", "ask another owner or admin"},
		"a service decides":          {func() error { return decide(hosttest.Service, hosttest.Service) }, "service_never_decides", "use the key of a person"},
		"an admin sets the tenant": {func() error {
			_, err := h.ChangeTenant(t.Context(), hosttest.Admin, hosttest.Body(host.TenantChange{SecondParty: &on}))
			return err
		}, "owner_required", "only an owner of the tenant may"},
		"an admin makes an owner": {func() error {
			_, _, err := h.SavePrincipal(t.Context(), hosttest.Admin, "x", hosttest.Body(host.PrincipalDoc{Roles: []string{"owner"}}))
			return err
		}, "owner_grants_owner", "only an owner makes or changes an owner"},
		"a member saves": {func() error {
			_, _, err := h.SaveAgent(t.Context(), hosttest.Member, "x", nil)
			return err
		}, "role_required", "ask an owner or admin of the tenant"},
		"an owner lists tenants without operators": {func() error {
			_, _, err := h.Tenants(t.Context(), hosttest.Owner, host.Page{})
			return err
		}, "operator_required", "the host has no operators' tenant"},
		"an owner lists tenants": {func() error {
			_, _, err := operators.Tenants(t.Context(), hosttest.Owner, host.Page{})
			return err
		}, "operator_required", "only an owner of the operators' tenant may"},
		"an owner reads the host's numbers": {func() error { return operators.May(t.Context(), hosttest.Owner, "metrics.read") }, "tenant_mismatch", "the tenant of the host's operators"},
	} {
		err := tc.do()
		if tc.reason == "" {
			if host.CodeOf(err) != host.CodeNotFound {
				t.Errorf("%s: %v, want unknown", name, err)
			}
			continue
		}
		if e := refusal(t, err, host.CodeForbidden); !slices.Contains(e.Reasons, tc.reason) || !strings.Contains(e.Detail, tc.want) {
			t.Errorf("%s: %q, %q; want %s and %q", name, e.Detail, e.Reasons, tc.reason, tc.want)
		}
	}
}

// Every reason of the base has its sentence.
func TestEveryReasonHasASentence(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../policy/rego/authz.rego")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range regexp.MustCompile(`refusals contains "(\w+)"|(?m:^\t"[\w.]+": "(\w+)",$)`).FindAllStringSubmatch(string(text), -1) {
		reason := m[1] + m[2]
		if n++; host.Refusals()[reason] == "" {
			t.Errorf("no sentence for %s", reason)
		}
	}
	if n < 40 {
		t.Errorf("found only %d reasons", n)
	}
}
