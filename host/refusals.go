package host

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/store"
)

// refusals remembers which refusals have a row already: of repeated ones the first of a minute is a row, the rest count in
// a metric, so that a client in a loop cannot fill the log.
type refusal struct{ tenant, principal, target, code string }

const refusalWindow = time.Minute

// refusalCount counts the rows of one principal in the current minute.
type refusalCount struct {
	since time.Time
	rows  int
}

// refused records a refusal (403 or 409) of an act on a target, and returns err as it is. The row is durable before the
// refusal is told.
func (h *Host) refused(ctx context.Context, a Actor, action, targetKind, target string, err error) error {
	return h.refuse(ctx, a, []auditRecord{{Action: action, TargetKind: targetKind, Target: target}}, err)
}

// refusedDecision is refused for a decision: a row for each approval of the pause.
func (h *Host) refusedDecision(ctx context.Context, a Actor, r *run, err error) error {
	if r == nil {
		return err
	}
	if len(r.approvals) == 0 {
		return h.refused(ctx, a, "approval.decide", "run", r.ID, err)
	}
	var rows []auditRecord
	for _, ap := range r.approvals {
		rows = append(rows, auditRecord{
			Action: "approval.decide", TargetKind: "pending_approval", Target: ap.ID,
			Detail: mustJSON(map[string]any{"tool": ap.Tool, "call_id": ap.CallID, "run_id": r.ID}),
		})
	}
	return h.refuse(ctx, a, rows, err)
}

func (h *Host) refuse(ctx context.Context, a Actor, rows []auditRecord, err error) error {
	code := CodeOf(err)
	outcome := outcomeError
	switch code {
	case CodeForbidden:
		outcome = outcomeDenied
	case CodeAlreadyDecided, CodeIncomplete, CodeChanged, CodeTokenUsed, CodeWrongTurn, CodeWrongState, CodeLastOwner, CodeApprovalExpired, CodeTokenExpired:
	default:
		return err
	}
	h.stats.refused.Add(1)
	var c store.Change
	for _, row := range rows {
		row.Target = clip(row.Target, maxTarget) // it may be a caller's free text
		if !h.firstRefusal(refusal{a.Tenant, a.ID, row.Action + " " + row.TargetKind + " " + row.Target, string(code)}) {
			continue
		}
		row.At, row.ActorKind, row.Actor, row.Outcome, row.Reason, row.Trace = h.now(), a.Kind, a.ID, outcome, string(code), telemetry.TraceID(ctx)
		if e, ok := errors.AsType[*Error](err); ok && len(e.Reasons) > 0 {
			row.Detail = withReasons(row.Detail, e.Reasons)
		}
		addRow(&c, a.Tenant, row)
	}
	if c.Empty() {
		return err
	}
	if _, cerr := h.write(ctx, &c); cerr != nil {
		return cerr
	}
	return err
}

// withReasons adds policy's reasons to a row's detail: which rule refused.
func withReasons(detail json.RawMessage, reasons []string) json.RawMessage {
	m := map[string]any{}
	if detail != nil {
		_ = json.Unmarshal(detail, &m) // written by mustJSON: an object
	}
	m["reasons"] = reasons
	return mustJSON(m)
}

const (
	maxTarget = 160
	// maxRefusals bounds the rows that one principal's refusals make in a minute, whatever it aims at.
	maxRefusals = 100
)

func (h *Host) firstRefusal(r refusal) bool {
	now := h.now()
	h.refusalMu.Lock()
	defer h.refusalMu.Unlock()
	if at, ok := h.refusals[r]; ok && now.Sub(at) < refusalWindow {
		return false
	}
	all := refusal{tenant: r.tenant, principal: r.principal}
	n := h.refusalCounts[all]
	if now.Sub(n.since) >= refusalWindow {
		n = refusalCount{since: now}
	}
	if n.rows++; n.rows > maxRefusals {
		return false
	}
	if len(h.refusalCounts) >= 10_000 {
		clear(h.refusalCounts)
	}
	h.refusalCounts[all] = n
	if len(h.refusals) >= 10_000 {
		for k, at := range h.refusals {
			if now.Sub(at) >= refusalWindow {
				delete(h.refusals, k)
			}
		}
		if len(h.refusals) >= 10_000 {
			clear(h.refusals) // more rows are better than more memory
		}
	}
	h.refusals[r] = now
	return true
}
