// Package policy_test runs the example rules as a host would.
package policy_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/pawlhost/pawl/policy"
)

func TestRulesPassTheirOwnTests(t *testing.T) {
	t.Parallel()
	results, err := policy.Test(t.Context(), os.DirFS("rules"))
	if err != nil {
		t.Fatal(err)
	}
	if len(results) < 11 {
		t.Errorf("only %d tests ran", len(results))
	}
	for _, r := range results {
		if !r.Pass {
			t.Errorf("%s: %s failed\n%s", r.Location, r.Name, r.Output)
		}
	}
}

func TestRulesDecideInAHost(t *testing.T) {
	t.Parallel()
	e, err := policy.New(t.Context(), policy.Options{Rules: os.DirFS("rules")})
	if err != nil {
		t.Fatal(err)
	}
	on, err := e.Compile(json.RawMessage(`{"transfer":{"when":{"currency":{"not_in":["EUR"]}},"ttl":"1h"}}`))
	if err != nil {
		t.Fatal(err)
	}
	monday := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		tool, effects, arguments string
		at                       time.Time
		effect                   policy.Effect
		rules                    []string
		ttl                      time.Duration
	}{
		{"transfer", "write", `{"account":"a","amount":10,"currency":"EUR"}`, monday, policy.Allow, nil, 0},
		{"transfer", "write", `{"account":"a","amount":10,"currency":"USD"}`, monday, policy.Pause, []string{"interrupt_on/transfer"}, time.Hour},
		{"transfer", "write", `{"account":"a","amount":5000,"currency":"EUR"}`, monday, policy.Pause, []string{"payments/limit"}, 4 * time.Hour},
		{
			"transfer", "write", `{"account":"a","amount":5000,"currency":"USD"}`, monday.AddDate(0, 0, -1), policy.Pause,
			[]string{"hours/closed", "interrupt_on/transfer", "payments/limit"}, time.Hour,
		},
		{"transfer", "write", `{"account":7,"amount":5000,"currency":"USD"}`, monday, policy.Deny, []string{"payments/account"}, 0},
		{"read_file", "read", `{"path":"/notes/x"}`, monday.AddDate(0, 0, -1), policy.Allow, nil, 0},
	} {
		d := e.Gate(t.Context(), on, &policy.Input{
			Tenant: "demo", Principal: policy.Principal{ID: "ann", Kind: "user", Roles: []string{"member"}}, Subject: "ann", Time: tc.at,
			Call: &policy.Call{Tool: tc.tool, Effects: tc.effects, Arguments: json.RawMessage(tc.arguments)},
		})
		if d.Effect != tc.effect || !slices.Equal(d.Rules, tc.rules) || d.TTL != tc.ttl || d.Code != "" {
			t.Errorf("%s%s at %s: %+v; want %s by %v for %s", tc.tool, tc.arguments, tc.at, d, tc.effect, tc.rules, tc.ttl)
		}
	}
	// The limit is overridden by approving, or by an edit that is still above it; one within it is not what the approver was asked.
	for amount, within := range map[string]bool{"4000": true, "900": false} {
		in := &policy.Input{Time: monday, Call: &policy.Call{Tool: "transfer", Effects: "write", Arguments: json.RawMessage(`{"account":"a","amount":` + amount + `,"currency":"EUR"}`)}}
		all, missing, denied := e.Fires(t.Context(), on, in, []string{"payments/limit"})
		if all != within || len(missing) > 0 == within || denied != nil {
			t.Errorf("an edit to %s: %v, %v, %+v", amount, all, missing, denied)
		}
	}
	v := e.Authz(t.Context(), &policy.AuthzInput{
		Act:       "approval.decide",
		Principal: policy.Principal{Tenant: "demo", ID: "ext-carl", Kind: "user", Roles: []string{"owner"}},
		Resource:  policy.Resource{Tenant: "demo", CreatedBy: "ann", Subject: "ann", Tool: "transfer", Reason: "constraints_conflict", Origin: "gate"},
	})
	if v.Allow || !slices.Equal(v.Reasons, []string{"contractors_never_decide"}) {
		t.Errorf("a contractor: %+v", v)
	}
}
