package host

import (
	"cmp"
	"context"
	"errors"

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
	e := errf(CodeForbidden, "you may not do this (%s); ask an owner or admin of the tenant", act)
	e.Reasons = v.Reasons
	if v.Code != "" {
		e.Reasons = append(e.Reasons, v.Code)
	}
	if e.Reasons == nil {
		e.Reasons = []string{}
	}
	return e
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
