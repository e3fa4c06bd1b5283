package host

import "context"

// The steps of resumption, so that tests can build the wrong orders.
const (
	ApplyDecisions  = "apply decisions"
	Repair          = "repair"
	Tighten         = "tighten the pending batch"
	AskPlannerFirst = "ask the planner"
)

// SetResumeOrder replaces the order of resumption. Call it before the host runs.
func (h *Host) SetResumeOrder(names ...string) {
	steps := map[string]resumeStep{
		ApplyDecisions: applyDecisions, Repair: repair, Tighten: tightenPending,
		AskPlannerFirst: func(ctx context.Context, h *Host, s *step, _ bool) error {
			return h.turn(ctx, s, s.r.root())
		},
	}
	h.order = nil
	for _, n := range names {
		h.order = append(h.order, steps[n])
	}
}

// Boot is the id of this process's claim.
func (h *Host) Boot() string { return h.boot }
