package host

import (
	"sync/atomic"
	"time"

	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/store"
)

// counters are what the host counts since it started.
type counters struct {
	commits, created, paused, decided, refused, finished atomic.Int64
}

// Stats are the host's numbers, for metrics. Totals count since the start of the process.
type Stats struct {
	Waiting, Driven                                      int
	Commits, Created, Paused, Decided, Refused, Finished int64
	PolicyAbandoned                                      int64
	// SpaceFree is what the store's medium has left, in bytes; SpaceKnown tells whether it has a medium.
	SpaceFree  uint64
	SpaceKnown bool
	// Ready is whether new runs are accepted.
	Ready bool
	// Rules: how often the folder was reloaded and how often that was refused, when the set in force was loaded, and whether the folder
	// now has contents that are refused.
	RulesTaken, RulesRefused int64
	RulesLoaded              time.Time
	RulesBroken              bool
}

// Stats returns the numbers as they are now.
func (h *Host) Stats() Stats {
	w, d := h.queue.depth()
	c := &h.stats
	s := Stats{
		Waiting: w, Driven: d, Commits: c.commits.Load(), Created: c.created.Load(), Paused: c.paused.Load(), Decided: c.decided.Load(),
		Refused: c.refused.Load(), Finished: c.finished.Load(), PolicyAbandoned: h.policy.Abandoned(), Ready: h.Ready() == nil,
	}
	s.SpaceFree, s.SpaceKnown = h.store.Space()
	s.RulesTaken, s.RulesRefused = h.policy.taken.Load(), h.policy.refused.Load()
	s.RulesLoaded, s.RulesBroken = h.policy.live.Current().At, h.policy.live.Failed() != nil
	return s
}

// Telemetry is where the transports leave their spans, and where the metrics are read.
func (h *Host) Telemetry() *telemetry.Telemetry { return h.telemetry }

// instrument connects the metrics. A counter begins at zero for every tool that is there, so that its first step is seen.
func (h *Host) instrument() error {
	for _, t := range h.plugins.Tools() {
		h.telemetry.Expired(t.Name, 0)
		h.telemetry.Denied(t.Name, 0)
	}
	return h.telemetry.Gauges(h.gauges)
}

// observeStep counts a committed step, and logs it as the narrative that a reviewer reads: what was asked, who decided what, how
// the run stands. No arguments, no tokens, no text of models, tools or people.
func (h *Host) observeStep(s *step) {
	h.stats.commits.Add(1)
	r := s.r
	tell := func(msg string, args ...any) {
		args = append([]any{"tenant", r.Tenant, "run_id", r.ID}, args...)
		if s.trace != "" {
			args = append(args, "trace_id", s.trace)
		}
		h.log.Info(msg, args...)
	}
	if s.new {
		h.stats.created.Add(1)
		tell("run created", "agent", r.Agent, "by", r.CreatedBy)
	}
	for c := range s.dirt {
		if c.State == store.CallFinished && c.Error != nil && c.Error.Code == codeDenied {
			h.telemetry.Denied(h.toolLabel(c.Tool), 1)
			tell("call denied", "tool", c.Tool, "call_id", c.ID)
		}
	}
	for _, a := range s.settled {
		h.observeSettled(tell, a)
	}
	for _, a := range s.opened {
		tell("approval requested", "approval_id", a.ID, "tool", a.Tool, "call_id", a.CallID, "reason", a.Reason, "allowed_decisions", a.Allowed)
	}
	if s.was.State == r.State && !s.new && len(s.opened) == 0 {
		return
	}
	switch {
	case r.State.Paused():
		if len(s.opened) > 0 {
			h.stats.paused.Add(1)
			tell("run paused", "state", r.State, "pause_id", r.PauseID, "approvals", len(s.opened))
		}
	case r.State.Ended():
		h.stats.finished.Add(1)
		code := ""
		if r.Error != nil {
			code = r.Error.Code
		}
		tell("run ended", "state", r.State, "error", code)
	case s.was.State.Paused():
		h.stats.decided.Add(1)
		tell("run resumed", "pause_id", r.PauseID)
	}
}

// observeSettled counts and logs how an approval ended.
func (h *Host) observeSettled(tell func(string, ...any), a *store.Approval) {
	switch d := a.Decision; {
	case a.State == store.ApprovalDecided && d != nil:
		h.telemetry.Decided(h.toolLabel(a.Tool), d.Kind, d.DecidedAt.Sub(a.CreatedAt))
		tell("approval decided", "approval_id", a.ID, "tool", a.Tool, "call_id", a.CallID, "decision", d.Kind, "by", d.DecidedBy, "changed", d.Changed)
	case a.State == store.ApprovalExpired:
		h.telemetry.Expired(h.toolLabel(a.Tool), 1)
		tell("approval expired", "approval_id", a.ID, "tool", a.Tool, "call_id", a.CallID)
	default:
		tell("approval closed", "approval_id", a.ID, "tool", a.Tool, "call_id", a.CallID, "state", a.State)
	}
}
