package host

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/store"
)

// Input adds a message of the user to a run that waits. A run that waits for its planner takes it as it comes. An open pause is kept:
// the message is refused with what is outstanding, unless the caller says that it supersedes the pause; then what waited ends with an
// honest error, never with success, and the planner goes on from there.
func (h *Host) Input(ctx context.Context, a Actor, id string, idem Idempotency, body Lazy[NewInput]) (Run, error) {
	parse := sync.OnceValues(body)
	v, err := h.driveExternal(ctx, a, id, idem, func(r *run) (func(*step) error, error) {
		req, err := parse()
		if err != nil {
			return nil, err
		}
		message, err := ijson.Parse(req.Input)
		if err != nil {
			return nil, invalid("/input", "not I-JSON: %v", err)
		}
		if err := checkContext(req.ToolContext, r.Tenant, r.subject(), r.SessionID); err != nil {
			return nil, err
		}
		return func(s *step) error {
			superseded := false
			switch {
			case r.State == store.RunAwaitingPlanner:
			case !r.State.Paused():
				return errf(CodeWrongState, "the run is %s; it takes a message while it waits for a decision or for its planner", r.State)
			case r.overdue(s.now):
				return errf(CodeApprovalExpired, "the pause expired at %s; start a new run", Time(r.pause.ExpiresAt))
			case !req.Supersede:
				e := errf(CodeWrongState, "the run waits for a decision (%d open); decide it first, or send supersede: true to give up what waits", len(r.pending()))
				e.Outstanding = r.pending()
				return e
			default:
				superseded = true
				if err := applyDecisions(ctx, h, s, false); err != nil {
					return err
				}
				s.supersede(a)
			}
			if r.Bytes += int64(len(message)); r.Bytes > maxRunBytes {
				return errf(CodeTooLarge, "%s", tooManyBytes)
			}
			content, err := h.body(ctx, r.Tenant, message)
			if err != nil {
				return err
			}
			s.say(content)
			if err := h.mergeContext(ctx, s, req.ToolContext); err != nil {
				return err
			}
			if superseded {
				return h.settle(ctx, s)
			}
			return nil
		}, nil
	})
	return v, h.refused(ctx, a, "run.drive", "run", id, err)
}

// pending are the approvals of the open pause that nobody has decided.
func (r *run) pending() (ids []string) {
	for _, ap := range r.approvals {
		if ap.State == store.ApprovalPending {
			ids = append(ids, ap.ID)
		}
	}
	return ids
}

// NewInput is a further message of the user.
type NewInput struct {
	Input       json.RawMessage `json:"input"`
	ToolContext json.RawMessage `json:"tool_context"`
	// Supersede ends an open pause in favour of the message.
	Supersede bool `json:"supersede"`
}

// maxRejects is how often people are asked about the very same call in one run: a planner that proposes it again and again after
// that gets a denial.
const maxRejects = 3

// rejectKey names a call by what it would do.
func rejectKey(c *store.Call) string {
	digest := c.ArgsDigest
	if c.EditedDigest != "" {
		digest = c.EditedDigest
	}
	return ijson.Digest([]byte(c.Tool + "\x00" + digest))[len("sha256:"):][:24]
}

// tiresome reports whether people have rejected the very same call too often, and what the call is told.
func (r *run) tiresome(c *store.Call) (string, bool) {
	for _, x := range r.Rejects {
		if x.N >= maxRejects && x.Call == rejectKey(c) {
			return fmt.Sprintf("people have rejected this very call %d times in this run; nobody is asked again", x.N), true
		}
	}
	return "", false
}

// rejected counts a reject. The head has room for the first few calls.
func (r *run) rejected(c *store.Call) {
	key := rejectKey(c)
	for i := range r.Rejects {
		if r.Rejects[i].Call == key {
			r.Rejects[i].N++
			return
		}
	}
	if len(r.Rejects) < 16 {
		r.Rejects = append(r.Rejects, store.Reject{Call: key, N: 1})
	}
}
