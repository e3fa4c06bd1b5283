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
type refusal struct{ tenant, principal, action, target, code string }

const refusalWindow = time.Minute

// refusalCount counts the rows of one principal's refusals of one action in the current minute.
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
		row.At, row.ActorKind, row.Actor, row.Outcome, row.Reason, row.Trace = h.now(), a.Kind, a.ID, outcome, string(code), telemetry.TraceID(ctx)
		switch first, rows := h.firstRefusal(refusal{a.Tenant, a.ID, row.Action, row.TargetKind + " " + row.Target, string(code)}); {
		case !first || rows > maxRefusals+1:
			continue
		case rows > maxRefusals:
			row.TargetKind, row.Target, row.Reason = "principal", a.ID, reasonMore
			row.Detail = mustJSON(map[string]any{"rows": maxRefusals, "code": code})
			addRow(&c, a.Tenant, row)
			continue
		}
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
	// maxRefusals bounds the rows that one principal's refusals of one action make in a minute, whatever it aims at: noise on one hides
	// nothing of another. A row with reasonMore tells that the bound was reached.
	maxRefusals = 100
	reasonMore  = "more_refusals"
)

// firstRefusal reports whether a refusal is the first of its kind in a minute, and if so the how manieth row of its principal and action
// in that minute it would be.
func (h *Host) firstRefusal(r refusal) (first bool, rows int) {
	now := h.now()
	h.refusalMu.Lock()
	defer h.refusalMu.Unlock()
	if at, ok := h.refusals[r]; ok && now.Sub(at) < refusalWindow {
		return false, 0
	}
	all := refusal{tenant: r.tenant, principal: r.principal, action: r.action}
	n := h.refusalCounts[all]
	if now.Sub(n.since) >= refusalWindow {
		n = refusalCount{since: now}
	}
	n.rows++
	if len(h.refusalCounts) >= 10_000 {
		clear(h.refusalCounts)
	}
	h.refusalCounts[all] = n
	if n.rows > maxRefusals {
		return true, n.rows // not remembered: names without end would take memory without end
	}
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
	return true, n.rows
}
