package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/store"
)

// AuditRow is one row of a tenant's audit log, as lists and exports show it. It holds no arguments and no secret. Rows that were
// written before the log was chained have no hashes.
type AuditRow struct {
	Tenant   string `json:"tenant"`
	Seq      uint64 `json:"seq"`
	PrevHash string `json:"prev_hash,omitempty"`
	Hash     string `json:"hash,omitempty"`
	AuditAct

	stored store.Entry // that it was read from
}

// AuditAct is what a row says: who did, or tried, what. Its canonical JSON (RFC 8785) is what is stored, and what the row's hash covers.
type AuditAct struct {
	Time       Time           `json:"time"`
	ActorKind  string         `json:"actor_kind"`
	ActorID    *string        `json:"actor_id"`
	Action     string         `json:"action"`
	TargetKind string         `json:"target_kind"`
	TargetID   string         `json:"target_id"`
	Outcome    string         `json:"outcome"`
	Reason     string         `json:"reason,omitempty"`
	TraceID    string         `json:"trace_id,omitempty"`
	Detail     map[string]any `json:"detail"`
}

// auditRecord is an audit row in the making, and the form in which rows were stored before they were chained. It holds no arguments
// and no secret.
type auditRecord struct {
	At         time.Time       `json:"t"`
	ActorKind  string          `json:"k"`
	Actor      string          `json:"a,omitempty"`
	Action     string          `json:"c"`
	TargetKind string          `json:"y"`
	Target     string          `json:"i"`
	Outcome    string          `json:"o"`
	Reason     string          `json:"r,omitempty"`
	Trace      string          `json:"x,omitempty"`
	Detail     json.RawMessage `json:"d,omitempty"`
}

const (
	outcomeOK     = "ok"
	outcomeDenied = "denied"
	outcomeError  = "error"
)

func (r auditRecord) act() AuditAct {
	act := AuditAct{
		Time: Time(r.At), ActorKind: r.ActorKind, Action: r.Action, TargetKind: r.TargetKind, TargetID: r.Target,
		Outcome: r.Outcome, Reason: r.Reason, TraceID: r.Trace, Detail: map[string]any{},
	}
	if r.Actor != "" {
		act.ActorID = &r.Actor
	}
	if r.Detail != nil {
		_ = json.Unmarshal(r.Detail, &act.Detail) // written by mustJSON: an object
	}
	return act
}

// encode is the stored form of a row. A text of a caller that I-JSON forbids is mended: the row must be written.
func (r auditRecord) encode() []byte {
	raw := mustJSON(r.act())
	b, err := ijson.Parse(raw)
	if err != nil {
		b, err = ijson.Parse(bytes.Map(mended, raw))
	}
	if err != nil {
		panic(fmt.Sprintf("host: an audit row of %s: %v", r.Action, err))
	}
	return b
}

// mended replaces the noncharacters (Unicode 16, section 23.7), which I-JSON (RFC 7493) forbids.
func mended(r rune) rune {
	if r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
		return 0xfffd
	}
	return r
}

// addRow adds a row to a change. Every row of the audit is written here, and so in the chain of its tenant.
func addRow(c *store.Change, tenant string, r auditRecord) {
	c.Chain(auditChain(tenant), r.encode())
}

// writeRows commits a change that is nothing but rows, of several tenants. A log that takes no row any more, because somebody tampered with
// it, costs the other tenants none of theirs; lost is how many could not be written.
func (h *Host) writeRows(ctx context.Context, c *store.Change) (lost int, err error) {
	if _, err = h.write(ctx, c); err == nil {
		return 0, nil
	}
	if !errors.Is(err, store.ErrCorrupt) {
		return len(c.Appends), err
	}
	for _, a := range c.Appends {
		if _, werr := h.write(ctx, &store.Change{Appends: []store.Append{a}}); werr != nil {
			lost, err = lost+1, werr
		}
	}
	return lost, err
}

// auditRow is the row of an entry. One that cannot be read says so instead of hiding the rows around it: a check of the chain tells
// what happened to it.
func auditRow(tenant string, e store.Entry) AuditRow {
	row := AuditRow{Tenant: tenant, Seq: e.Seq, stored: e}
	if !e.Hash.IsZero() {
		row.PrevHash, row.Hash = e.Prev.String(), e.Hash.String()
	}
	var err error
	if row.AuditAct, err = decodeAct(e.Data); err != nil {
		row.AuditAct = AuditAct{Action: "unreadable", Outcome: outcomeError, Detail: map[string]any{}}
	}
	return row
}

func decodeAct(data []byte) (act AuditAct, err error) {
	if bytes.HasPrefix(data, []byte("{")) {
		err = json.Unmarshal(data, &act)
		return act, err
	}
	var rec auditRecord
	err = store.Decode(data, &rec)
	return rec.act(), err
}

// auditEntries reads the log after a number. Over a hole, which only somebody else can have made, it goes on with what is there.
func auditEntries(rd store.Reader, tenant string, after uint64, limit int) ([]store.Entry, error) {
	entries, err := rd.Log(auditChain(tenant), after, limit)
	if errors.Is(err, store.ErrTrimmed) {
		err = nil
	}
	return entries, err
}

// Note is something that the host itself did and that the reviewers of its tenants should know: a change of the rules, say.
// Detail is small and holds no argument and no secret.
type Note struct {
	Action     string
	TargetKind string
	Target     string
	Failed     bool
	Reason     string
	Detail     map[string]any
}

// notesAtOnce is how many tenants' rows are one commit.
const notesAtOnce = 500

// Note writes a row into the audit of every tenant that there is. It is durable when Note returns; after an error some tenants may
// have it.
func (h *Host) Note(ctx context.Context, n Note) error {
	detail, err := marshal(n.Detail)
	if err == nil && n.Detail != nil {
		err = ijson.Check(detail)
	}
	if err != nil {
		return fmt.Errorf("host: the detail of %s: %w", n.Action, err)
	}
	rec := auditRecord{
		At: h.now(), Trace: telemetry.TraceID(ctx), ActorKind: KindSystem, Action: n.Action, TargetKind: n.TargetKind, Target: clip(n.Target, maxTarget),
		Outcome: outcomeOK, Reason: n.Reason, Detail: detail,
	}
	if n.Failed {
		rec.Outcome = outcomeError
	}
	tenants, err := h.tenants(ctx)
	if err != nil {
		return err
	}
	for len(tenants) > 0 {
		part := tenants[:min(len(tenants), notesAtOnce)]
		tenants = tenants[len(part):]
		var c store.Change
		for _, t := range part {
			addRow(&c, t, rec)
		}
		if _, werr := h.writeRows(ctx, &c); werr != nil {
			err = werr
		}
	}
	return err
}

// tenants are those that a key was ever made in.
func (h *Host) tenants(ctx context.Context) (out []string, err error) {
	err = h.store.View(ctx, func(rd store.Reader) error {
		return rd.Scan(store.Range{Prefix: tenantsKey()}, func(it store.Item) bool {
			out = append(out, it.Key.Last())
			return true
		})
	})
	return out, err
}
