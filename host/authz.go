package host

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// permitted asks policy whether the actor may do act on a resource.
func (h *Host) permitted(ctx context.Context, a Actor, act string, res policy.Resource) policy.Verdict {
	if act == "approval.decide" {
		t, err := h.people.tenant(ctx, h.store, a.Tenant)
		res.SecondParty = t.SecondParty || err != nil
	}
	return h.policy.Authz(ctx, &policy.AuthzInput{
		Act: act,
		Principal: policy.Principal{
			Tenant: a.Tenant, ID: a.ID, Kind: a.Kind, Roles: a.Roles, ActAs: a.ActAs, Operator: a.isOperator() || a.Tenant != "" && a.Tenant == h.operators,
		},
		Resource: res,
	})
}

// allow is permitted as an error: nil, or CodeForbidden with the reasons.
func (h *Host) allow(ctx context.Context, a Actor, act string, res policy.Resource) error {
	v := h.permitted(ctx, a, act, res)
	if v.Allow {
		return nil
	}
	e := errf(CodeForbidden, "you may not do this (%s): %s", act, h.whyNot(v))
	e.Reasons = v.Reasons
	if e.Reasons == nil {
		e.Reasons = []string{}
	}
	return e
}

// refusals say what each of the base's reasons means, and who can do something about it.
var refusals = map[string]string{
	"not_authenticated":     "give a valid key",
	"tenant_mismatch":       "it is for the tenant of the host's operators; ask them",
	"unlisted_act":          "no rule knows the act; ask the operator",
	"not_own_run":           "the run is not yours; ask its creator, its user, or an owner or admin of the tenant",
	"approver_required":     "you do not decide this; ask an owner or admin of the tenant",
	"role_required":         "ask an owner or admin of the tenant",
	"owner_required":        "only an owner of the tenant may; ask one",
	"operator_required":     "only an owner of the operators' tenant may; ask one",
	"act_as_required":       "only a service whose principal has act_as may name another user; leave the user out, or ask an owner or admin to set act_as",
	"second_party_required": "the tenant wants a second party, so nobody decides what they asked for or what is done for them; ask another owner or admin",
	"service_never_decides": "a service never decides, whatever its roles; use the key of a person",
	"service_never_grants":  "a service never gives rights, whatever its roles; use the key of a person",
	"owner_grants_owner":    "only an owner makes or changes an owner; ask one",
	"owner_names_new":       "tokens of an identity provider count here, so the name may be an owner's: only an owner makes its first record or key; ask one",
	"owner_revokes_owner":   "only an owner takes an owner or their keys away; ask one",
	"policy_undefined":      "policy gave no answer, and then nothing is allowed; ask the operator",
	"unknown_role":          "the roles are owner, admin and member",
	"unknown_kind":          "the kinds are user and service",
}

// whyNot tells a refusal in words.
func (h *Host) whyNot(v policy.Verdict) string {
	if v.Code != "" {
		return "policy gave no answer (" + v.Code + "), and then nothing is allowed; ask the operator, whose log tells more"
	}
	var why []string
	for _, reason := range v.Reasons {
		text := refusals[reason]
		switch {
		case reason == "operator_required" && h.operators == "":
			text = "the host has no operators' tenant; ask whoever runs it to name one (--operator-tenant), or to do it with --data while it is stopped"
		case text == "":
			text = "a rule of this host refuses it (" + reason + "); ask the operator"
		}
		why = append(why, text)
	}
	if len(why) == 0 {
		return refusals["unlisted_act"]
	}
	return strings.Join(why, "; ")
}

// May asks for an act that has no resource of its own. A refusal is in the audit.
func (h *Host) May(ctx context.Context, a Actor, act string) error {
	tenant := a.Tenant
	if act == actMetrics && h.operators != "" {
		tenant = h.operators // the numbers are the host's: where tenants have operators they are theirs
	}
	err := h.allow(ctx, a, act, policy.Resource{Kind: "tenant", Tenant: tenant})
	return h.refused(ctx, a, act, "tenant", a.Tenant, err)
}

const actMetrics = "metrics.read"

func runResource(r store.Run) policy.Resource {
	return policy.Resource{
		Kind: "run", Tenant: r.Tenant, ID: r.ID, CreatedBy: r.CreatedBy, Subject: cmp.Or(r.Subject, r.CreatedBy), Agent: r.Agent,
	}
}

func approvalResource(r store.Run, ap *store.Approval) policy.Resource {
	res := runResource(r)
	res.Kind, res.ID, res.Tool, res.Reason, res.Origin = "approval", ap.ID, ap.Tool, ap.Reason, ap.Origin
	return res
}

// sees reports whether the actor may know of the run at all. What it may not see looks unknown.
func (h *Host) sees(ctx context.Context, a Actor, r store.Run) bool {
	return h.permitted(ctx, a, "run.read", runResource(r)).Allow
}

// open loads a run that the actor may see.
func (h *Host) open(ctx context.Context, a Actor, id string) (*run, error) {
	r, err := h.load(ctx, a.Tenant, id)
	if err != nil {
		return nil, runError(err)
	}
	if !h.sees(ctx, a, r.Run) {
		return nil, errNotFound("run")
	}
	return r, nil
}

// decider returns the approvals that the actor may decide. A pause with approvals of which it may decide none is refused.
func (h *Host) decider(ctx context.Context, a Actor, r *run) (mine map[string]bool, err error) {
	mine = map[string]bool{}
	var refusal error
	for _, ap := range r.approvals {
		err := h.allow(ctx, a, "approval.decide", approvalResource(r.Run, ap))
		if err == nil {
			mine[ap.ID] = true
		} else {
			refusal = err
		}
	}
	if len(mine) > 0 {
		return mine, nil
	}
	if refusal == nil { // a run that has never paused: is this somebody who decides at all?
		res := runResource(r.Run)
		res.Kind, res.Reason, res.Origin = "approval", reasonApproval, originGate
		refusal = h.allow(ctx, a, "approval.decide", res)
	}
	return mine, refusal
}

// mayHold reports whether the actor is given the resume token of a run's open pause: its creator, its subject, and whoever
// may decide.
func (h *Host) mayHold(ctx context.Context, a Actor, r *run) bool {
	if a.ID == r.CreatedBy || a.ID == r.subject() {
		return true
	}
	mine, err := h.decider(ctx, a, r)
	return err == nil && len(mine) > 0
}

func isCode(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}
