package host

import (
	"context"
	"slices"

	"github.com/pawlhost/pawl/store"
)

// The steps of resumption, so that tests can build the wrong orders.
const (
	ApplyDecisions  = "apply decisions"
	Repair          = "repair"
	Tighten         = "tighten the pending batch"
	AskPlannerFirst = "ask the planner"

	AskInnermostFirst = "ask the innermost planner"
	ApplyInOneBranch  = "apply the decisions of one branch"
	RestartSubagents  = "begin the subagents again"
)

// SetResumeOrder replaces the order of resumption. Call it before the host runs.
func (h *Host) SetResumeOrder(names ...string) {
	steps := map[string]resumeStep{
		ApplyDecisions: applyDecisions, Repair: repair, Tighten: tightenPending,
		AskPlannerFirst: func(ctx context.Context, h *Host, s *step, _ bool) error {
			return h.turn(ctx, s, s.r.root())
		},
		AskInnermostFirst: func(ctx context.Context, h *Host, s *step, _ bool) error {
			return h.turn(ctx, s, s.r.frames[len(s.r.frames)-1])
		},
		ApplyInOneBranch: func(ctx context.Context, h *Host, s *step, gated bool) error {
			all := s.r.approvals
			defer func() { s.r.approvals = all }()
			s.r.approvals = slices.DeleteFunc(slices.Clone(all), func(a *store.Approval) bool { return a.Frame != all[0].Frame })
			return applyDecisions(ctx, h, s, gated)
		},
		RestartSubagents: func(_ context.Context, _ *Host, s *step, _ bool) error {
			for _, f := range slices.Backward(s.r.frames[1:]) {
				c := f.call()
				c.State = store.CallPlanned
				s.touch(c)
			}
			s.r.frames = s.r.frames[:1]
			return nil
		},
	}
	h.order = nil
	for _, n := range names {
		h.order = append(h.order, steps[n])
	}
}

// Boot is the id of this process's claim.
func (h *Host) Boot() string { return h.boot }

// Refusals are the sentences of the reasons for which policy refuses.
func Refusals() map[string]string { return refusals }
