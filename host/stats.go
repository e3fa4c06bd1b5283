package host

import "sync/atomic"

// counters are what the host counts since it started.
type counters struct {
	commits, created, paused, decided, expired, refused, finished atomic.Int64
}

// Stats are the host's numbers, for metrics. Totals count since the start of the process.
type Stats struct {
	Waiting, Driven                                               int
	Commits, Created, Paused, Decided, Expired, Refused, Finished int64
	PolicyAbandoned                                               int64
}

// Stats returns the numbers as they are now.
func (h *Host) Stats() Stats {
	w, d := h.queue.depth()
	c := &h.stats
	return Stats{
		Waiting: w, Driven: d, Commits: c.commits.Load(), Created: c.created.Load(), Paused: c.paused.Load(), Decided: c.decided.Load(),
		Expired: c.expired.Load(), Refused: c.refused.Load(), Finished: c.finished.Load(), PolicyAbandoned: h.policy.Abandoned(),
	}
}

// observeStep counts a committed step, and logs it as the narrative that an operator reads. No arguments, no tokens.
func (h *Host) observeStep(s *step) {
	h.stats.commits.Add(1)
	r := s.r
	if s.new {
		h.stats.created.Add(1)
		h.log.Info("run created", "tenant", r.Tenant, "run_id", r.ID, "agent", r.Agent, "by", r.CreatedBy)
	}
	if s.was.State == r.State && !s.new {
		return
	}
	switch {
	case r.State.Paused():
		h.stats.paused.Add(1)
		h.log.Info("run paused", "tenant", r.Tenant, "run_id", r.ID, "state", r.State, "pause_id", r.PauseID, "approvals", len(r.approvals))
	case r.State.Ended():
		h.stats.finished.Add(1)
		h.log.Info("run finished", "tenant", r.Tenant, "run_id", r.ID, "state", r.State)
	case s.was.State.Paused():
		h.stats.decided.Add(1)
		for _, a := range r.approvals {
			if d := a.Decision; d != nil {
				h.log.Info("approval decided", "tenant", r.Tenant, "run_id", r.ID, "approval_id", a.ID, "tool", a.Tool, "call_id", a.CallID, "decision", d.Kind, "by", d.DecidedBy)
			}
		}
	}
}
