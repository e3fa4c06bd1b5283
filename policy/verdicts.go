package policy

import (
	"slices"
	"strings"
	"sync"
)

// question is all that the base module looks at in an authorization question: who is whose is reduced to whether it is the
// asker, so that a host with many runs asks few different questions. TestVerdictsAreTheRulesOwn holds this against the module.
type question struct {
	act                                        string
	tenant, anybody, sameTenant, mine, subject bool
	kind, roles                                string
	approval                                   [2]string // reason, origin
	keyRoles, kindOfKey                        string
	secondParty, actAs, operator, newName      bool
}

func (in *AuthzInput) question() question {
	p, r := in.Principal, in.Resource
	q := question{
		act: in.Act, tenant: p.Tenant != "", sameTenant: r.Tenant == p.Tenant, anybody: p.ID != "",
		mine: r.CreatedBy == p.ID, subject: r.Subject == p.ID, kind: p.Kind, roles: joined(p.Roles),
	}
	switch in.Act {
	case "approval.decide", "token.rotate":
		q.approval, q.secondParty = [2]string{r.Reason, r.Origin}, r.SecondParty
	case "run.act_as":
		q.actAs = p.ActAs
	case "tenants.list", "tenants.create", "tenants.change":
		q.operator = p.Operator
	case "key.create", "key.revoke", "principal.save", "principal.remove":
		q.keyRoles, q.kindOfKey, q.newName = joined(r.Roles), r.KindOfKey, r.NewName
	}
	return q
}

func joined(s []string) string {
	if len(s) == 1 {
		return s[0]
	}
	return strings.Join(slices.Sorted(slices.Values(s)), "\x00")
}

// verdicts remembers the base module's answers. It is used only where no module of people has a say in authorization: theirs may
// look at every member of the input. An evaluation that failed is not remembered.
type verdicts struct {
	mu sync.RWMutex
	m  map[question]Verdict
}

const maxVerdicts = 4096

func (v *verdicts) get(q question) (Verdict, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out, ok := v.m[q]
	return out, ok
}

func (v *verdicts) put(q question, out Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.m == nil || len(v.m) >= maxVerdicts {
		v.m = map[question]Verdict{}
	}
	v.m[q] = out
}
