package host

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// auditPage bounds the rows read for one answer: a selective filter returns a short page, an empty one too, and a cursor.
const auditPage = 5000

// auditBatch is how many rows are read at once.
const auditBatch = 500

// mayReadAudit refuses whom policy does not let read the audit.
func (h *Host) mayReadAudit(ctx context.Context, a Actor) error {
	if err := h.allow(ctx, a, "audit.read", policy.Resource{Kind: "audit", Tenant: a.Tenant}); err != nil {
		return h.refused(ctx, a, "audit.read", "audit", "", err)
	}
	return nil
}

// Audit returns rows after a cursor, oldest first.
func (h *Host) Audit(ctx context.Context, a Actor, filter Lazy[AuditFilter]) (rows []AuditRow, next string, err error) {
	if err := h.mayReadAudit(ctx, a); err != nil {
		return nil, "", err
	}
	f, err := filter()
	if err != nil {
		return nil, "", err
	}
	after, err := f.after()
	if err != nil {
		return nil, "", err
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	rows = []AuditRow{}
	err = h.store.View(ctx, func(rd store.Reader) error {
		read := 0
		for {
			entries, err := auditEntries(rd, a.Tenant, after, auditBatch)
			if err != nil {
				return err
			}
			for _, e := range entries {
				after = e.Seq
				read++
				if row := auditRow(a.Tenant, e); f.matches(row.AuditAct) {
					if len(rows) == limit {
						next = strconv.FormatUint(e.Seq-1, 10)
						return nil
					}
					rows = append(rows, row)
				}
				if read == auditPage {
					next = strconv.FormatUint(e.Seq, 10)
					return nil
				}
			}
			if len(entries) < auditBatch {
				return nil
			}
		}
	})
	return rows, next, err
}

func (f AuditFilter) after() (uint64, error) {
	if f.After == "" {
		return 0, nil
	}
	after, err := strconv.ParseUint(f.After, 10, 64)
	if err != nil {
		return 0, invalid("/after", "not a cursor of this list; use the next of an earlier answer")
	}
	return after, nil
}

func (f AuditFilter) matches(r AuditAct) bool {
	actor := ""
	if r.ActorID != nil {
		actor = *r.ActorID
	}
	return (f.Action == "" || f.Action == r.Action) && (f.Actor == "" || f.Actor == actor) && (f.Target == "" || f.Target == r.TargetID) &&
		!f.early(r) && !f.late(r)
}

func (f AuditFilter) early(r AuditAct) bool { return time.Time(r.Time).Before(time.Time(f.From)) }

func (f AuditFilter) late(r AuditAct) bool {
	return !time.Time(f.To).IsZero() && !time.Time(r.Time).Before(time.Time(f.To))
}

// AuditHead is how far a tenant's audit log is. Who keeps it elsewhere can tell later that nothing before it was changed or cut.
type AuditHead struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"` // "" while no row is chained
	Time *Time  `json:"time"` // of the last row
}

// AuditHead returns the head of the actor's tenant.
func (h *Host) AuditHead(ctx context.Context, a Actor) (AuditHead, error) {
	if err := h.mayReadAudit(ctx, a); err != nil {
		return AuditHead{}, err
	}
	return ReadAuditHead(ctx, h.store, a.Tenant)
}

// ReadAuditHead is AuditHead for the operator of a stopped host: who has the store need not be asked.
func ReadAuditHead(ctx context.Context, s store.Store, tenant string) (head AuditHead, err error) {
	err = s.View(ctx, func(rd store.Reader) error {
		var err error
		if head.Seq, err = rd.LogHead(auditChain(tenant)); err != nil || head.Seq == 0 {
			return err
		}
		hash, err := rd.ChainHead(auditChain(tenant))
		if err != nil {
			return err
		}
		if !hash.IsZero() {
			head.Hash = hash.String()
		}
		last, err := auditEntries(rd, tenant, head.Seq-1, 1)
		if len(last) == 1 {
			row := auditRow(tenant, last[0])
			head.Time = &row.Time
		}
		return err
	})
	return head, err
}

// AuditExport reads a stretch of the audit log without a hole: its rows can be checked as they are. It holds no view of the store between
// two reads, so its reader may be slow. It is for one goroutine.
type AuditExport struct {
	store  store.Store
	tenant string
	after  uint64
	last   uint64 // rows that come later are not part of it
	f      AuditFilter
	found  bool // the first row
}

// ExportAudit begins an export: all rows after f.After, from the first that is not before f.From up to the last that is before f.To, of
// those that there are now. Rows of other times lie between them where clocks went back. Other members of the filter do not count.
func (h *Host) ExportAudit(ctx context.Context, a Actor, filter Lazy[AuditFilter]) (*AuditExport, error) {
	if err := h.mayReadAudit(ctx, a); err != nil {
		return nil, err
	}
	f, err := filter()
	if err != nil {
		return nil, err
	}
	return ReadAudit(ctx, h.store, a.Tenant, f)
}

// ReadAudit is ExportAudit for the operator of a stopped host.
func ReadAudit(ctx context.Context, s store.Store, tenant string, f AuditFilter) (*AuditExport, error) {
	e := &AuditExport{store: s, tenant: tenant, f: f}
	var err error
	if e.after, err = f.after(); err != nil {
		return nil, err
	}
	if err := s.View(ctx, func(rd store.Reader) (err error) { e.last, err = lastRow(rd, tenant); return err }); err != nil {
		return nil, err
	}
	if time.Time(f.To).IsZero() {
		return e, nil
	}
	// Backwards from the head to the last row that is early enough.
	for e.last > e.after {
		from := max(e.after, e.last-min(e.last, auditBatch))
		rows, err := e.read(ctx, from, int(e.last-from))
		if err != nil {
			return nil, err
		}
		for i := len(rows) - 1; i >= 0; i-- {
			if rows[i].Seq <= e.last && !f.late(rows[i].AuditAct) {
				e.last = rows[i].Seq
				return e, nil
			}
		}
		e.last = from
	}
	return e, nil
}

// lastRow is the number of the last row that there is. That is the head's, unless somebody changed the database: rows behind it are to be
// seen, too.
func lastRow(rd store.Reader, tenant string) (uint64, error) {
	last, err := rd.LogHead(auditChain(tenant))
	for err == nil {
		var behind []store.Entry
		if behind, err = auditEntries(rd, tenant, last, auditBatch); len(behind) == 0 {
			break
		}
		last = behind[len(behind)-1].Seq
	}
	return last, err
}

func (e *AuditExport) read(ctx context.Context, after uint64, limit int) (rows []AuditRow, err error) {
	err = e.store.View(ctx, func(rd store.Reader) error {
		entries, err := auditEntries(rd, e.tenant, after, limit)
		for _, entry := range entries {
			rows = append(rows, auditRow(e.tenant, entry))
		}
		return err
	})
	return rows, err
}

// Next returns the next rows, io.EOF after the last.
func (e *AuditExport) Next(ctx context.Context) ([]AuditRow, error) {
	for e.after < e.last {
		rows, err := e.read(ctx, e.after, auditBatch)
		if err != nil {
			return nil, err
		}
		if len(rows) == 0 {
			break // the end was cut
		}
		e.after = rows[len(rows)-1].Seq
		for len(rows) > 0 && rows[len(rows)-1].Seq > e.last {
			rows = rows[:len(rows)-1]
		}
		for len(rows) > 0 && !e.found && e.f.early(rows[0].AuditAct) {
			rows = rows[1:]
		}
		if len(rows) > 0 {
			e.found = true
			return rows, nil
		}
	}
	return nil, io.EOF
}
