package policy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The whole matrix: every act, for every role and kind, on an own and another's resource, in the own and a foreign tenant.
func TestInvariant7And10_AuthzMatrix(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	// Who is allowed: O owner, A admin, M member, N a user without a role; o, a, m, n the same as a service. Upper and lower case
	// of one letter are listed alone if only one of them is.
	type row struct{ own, others string }
	everybody := row{"OAMNoamn", "OAMNoamn"}
	managers := row{"OAoa", "OAoa"}
	matrix := map[string]row{
		"run.create": everybody, "tool.call": everybody, "tool.list": everybody, "agent.list": everybody, "agent.read": everybody,
		"ws.connect": everybody, "run.list": everybody, "approval.list": everybody, "queue.read": everybody,
		"run.read":        {"OAMNoamn", "OAoa"},
		"run.drive":       {"OAMNoamn", "OAoa"},
		"run.cancel":      {"OAMNoamn", "OAoa"},
		"approval.decide": {"OA", "OA"},
		"token.rotate":    {"OAMNoamn", "OA"},
		"agent.save":      managers, "agent.delete": managers, "audit.read": managers, "key.list": managers, "key.revoke": managers,
		"policy.evaluate": managers, "policy.read": managers, "metrics.read": managers,
		"key.create": {"OA", "OA"}, "principal.save": {"OA", "OA"},
		"principal.list": managers, "principal.read": managers, "principal.remove": managers,
		"run.act_as":  {"oamn", "oamn"}, // of principals that may
		"tenant.read": everybody, "tenant.change": {"O", "O"},
		"tenants.list": {"Oo", "Oo"}, "tenants.create": {"O", "O"}, "tenants.change": {"O", "O"}, // of the operators' tenant
		"no.such": {"", ""}, "": {"", ""}, "RUN.READ": {"", ""}, "approval.decide ": {"", ""},
	}
	roles := map[rune][]string{'O': {"owner"}, 'A': {"admin"}, 'M': {"member"}, 'N': nil}
	for act, want := range matrix {
		for letter, roles := range roles {
			for _, kind := range []string{"user", "service", "system", ""} {
				for _, relation := range []string{"creator", "subject", "others"} {
					for _, tenant := range []string{"t", "u", ""} {
						who := string(letter)
						if kind != "user" {
							who = strings.ToLower(who)
						}
						in := &AuthzInput{
							Act:       act,
							Principal: Principal{Tenant: "t", ID: "me", Kind: kind, Roles: roles, ActAs: true, Operator: true},
							Resource: Resource{
								Tenant: tenant, CreatedBy: "you", Subject: "you", Reason: "approval_required", Origin: "gate",
								Roles: []string{"member"}, KindOfKey: "user",
							},
						}
						allowed := want.others
						switch relation {
						case "creator":
							in.Resource.CreatedBy, allowed = "me", want.own
						case "subject":
							in.Resource.Subject, allowed = "me", want.own
						}
						ok := strings.Contains(allowed, who) && tenant == "t" && (kind == "user" || kind == "service")
						v := e.Authz(t.Context(), in)
						if v.Allow != ok || v.Code != "" || v.Allow == (len(v.Reasons) > 0) {
							t.Errorf("%s by %s %q %s in %q: %+v; want %v", act, kind, roles, relation, tenant, v, ok)
						}
						if tenant != "t" && !slices.Contains(v.Reasons, "tenant_mismatch") {
							t.Errorf("%s in %q: %v does not say tenant_mismatch", act, tenant, v.Reasons)
						}
					}
				}
			}
		}
	}
	listed := missingGrants(t)
	for _, act := range listed {
		if _, ok := matrix[act]; !ok {
			t.Errorf("%s is in authz.rego and not in the matrix", act)
		}
	}
	if len(listed) != len(matrix)-4 {
		t.Errorf("%d acts in authz.rego, %d in the matrix", len(listed), len(matrix)-4)
	}
}

// missingGrants reads the acts out of authz.rego.
func missingGrants(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("rego/authz.rego")
	if err != nil {
		t.Fatal(err)
	}
	var acts []string
	for _, m := range regexp.MustCompile(`(?m)^\t"([a-z]+\.[a-z_]+)": "`).FindAllStringSubmatch(string(text), -1) {
		acts = append(acts, m[1])
	}
	return acts
}

func TestInvariant7_WhoMayDecide(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	ask := func(change func(*AuthzInput)) Verdict {
		in := &AuthzInput{
			Act:       "approval.decide",
			Principal: Principal{Tenant: "t", ID: "me", Kind: "user", Roles: []string{"member"}},
			Resource:  Resource{Tenant: "t", CreatedBy: "you", Subject: "me", Reason: "await_input", Origin: "tool"},
		}
		change(in)
		return e.Authz(t.Context(), in)
	}
	for name, tc := range map[string]struct {
		change func(*AuthzInput)
		want   string
	}{
		"the subject's own question":  {func(*AuthzInput) {}, ""},
		"a stop of the gate":          {func(in *AuthzInput) { in.Resource.Origin = "gate" }, "approver_required"},
		"an approval asked by a tool": {func(in *AuthzInput) { in.Resource.Reason = "approval_required" }, "approver_required"},
		"an external event":           {func(in *AuthzInput) { in.Resource.Reason = "external_event" }, "approver_required"},
		"a conflict of constraints":   {func(in *AuthzInput) { in.Resource.Reason = "constraints_conflict" }, "approver_required"},
		"another's question":          {func(in *AuthzInput) { in.Resource.Subject = "you" }, "approver_required"},
		"only the creator":            {func(in *AuthzInput) { in.Resource.Subject, in.Resource.CreatedBy = "you", "me" }, "approver_required"},
		"a service as the subject":    {func(in *AuthzInput) { in.Principal.Kind = "service" }, "approver_required service_never_decides"},
		"a service with every role": {func(in *AuthzInput) {
			in.Principal.Kind, in.Principal.Roles = "service", []string{"owner", "admin", "member"}
		}, "approver_required service_never_decides"},
		"the system":                 {func(in *AuthzInput) { in.Principal.Kind, in.Principal.Roles = "system", []string{"owner"} }, "approver_required not_authenticated service_never_decides"},
		"an admin":                   {func(in *AuthzInput) { in.Principal.ID, in.Principal.Roles = "boss", []string{"member", "admin"} }, ""},
		"an admin of another tenant": {func(in *AuthzInput) { in.Principal.Tenant, in.Principal.Roles = "u", []string{"owner"} }, "tenant_mismatch"},
		"a role in another spelling": {func(in *AuthzInput) {
			in.Principal.ID, in.Principal.Roles = "x", []string{"Owner", "administrator", ""}
		}, "approver_required"},
		"nobody":                      {func(in *AuthzInput) { in.Principal, in.Resource.Subject = Principal{}, "" }, "approver_required not_authenticated service_never_decides tenant_mismatch"},
		"an empty id":                 {func(in *AuthzInput) { in.Principal.ID, in.Resource.Subject = "", "" }, "not_authenticated"},
		"empty tenants on both sides": {func(in *AuthzInput) { in.Principal.Tenant, in.Resource.Tenant = "", "" }, "tenant_mismatch"},
		"an admin decides an own stop": {func(in *AuthzInput) {
			in.Resource.Origin, in.Resource.CreatedBy, in.Principal.Roles = "gate", "me", []string{"admin"}
		}, ""},
		"a user whose kind is a person": {func(in *AuthzInput) { in.Principal.Kind, in.Principal.Roles = "person", []string{"owner"} }, "approver_required not_authenticated service_never_decides"},
	} {
		v := ask(tc.change)
		if v.Allow != (tc.want == "") || strings.Join(v.Reasons, " ") != tc.want || v.Code != "" {
			t.Errorf("%s: %+v; want %q", name, v, tc.want)
		}
	}
}

func TestKeysAreNoLadder(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, tc := range []struct {
		kind, role string
		grants     []string
		kindOfKey  string
		want       string
	}{
		{"user", "owner", []string{"owner", "admin"}, "user", ""},
		{"user", "owner", []string{"member"}, "service", ""},
		{"user", "admin", []string{"admin"}, "user", ""},
		{"user", "admin", []string{}, "service", ""},
		{"user", "admin", []string{"owner"}, "user", "owner_grants_owner"},
		{"user", "admin", []string{"member", "owner"}, "service", "owner_grants_owner"},
		{"user", "member", []string{"member"}, "user", "role_required"},
		{"service", "owner", []string{"member"}, "service", "service_never_grants"},
		{"service", "admin", []string{"owner"}, "user", "owner_grants_owner service_never_grants"},
		{"user", "owner", []string{"root"}, "user", "unknown_role"},
		{"user", "owner", []string{"Owner"}, "user", "unknown_role"},
		{"user", "owner", []string{"member"}, "system", "unknown_kind"},
		{"user", "owner", []string{"member"}, "", "unknown_kind"},
	} {
		v := e.Authz(t.Context(), &AuthzInput{
			Act:       "key.create",
			Principal: Principal{Tenant: "t", ID: "me", Kind: tc.kind, Roles: []string{tc.role}},
			Resource:  Resource{Tenant: "t", Roles: tc.grants, KindOfKey: tc.kindOfKey},
		})
		if v.Allow != (tc.want == "") || strings.Join(v.Reasons, " ") != tc.want {
			t.Errorf("%+v: %+v", tc, v)
		}
	}
	if v := e.Authz(t.Context(), nil); v.Allow || v.Code != CodeInput {
		t.Errorf("no question: %+v", v)
	}
}
