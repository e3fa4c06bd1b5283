package host

import (
	"context"
	"sync"
	"time"

	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/store"
)

// keyUses tells the audit of the first use of each key, and of a provider's tokens by each principal, on each day (UTC), as this process sees it. A request only looks into a
// map; the rows are written behind its back. What does not fit the queue is told by the key's next use.
type keyUses struct {
	mu    sync.Mutex
	day   time.Time
	seen  map[string]bool // by key, and by key and refusal
	queue chan keyUse
}

type keyUse struct {
	tenant string
	row    auditRecord
}

const (
	// keyUseQueue is how many rows wait for their commit at most.
	keyUseQueue = 1024
	// keyUseKeys bounds the memory of a day. Beyond it keys are told again, which is better than forgotten.
	keyUseKeys = 100_000
)

func newKeyUses() *keyUses {
	return &keyUses{seen: map[string]bool{}, queue: make(chan keyUse, keyUseQueue)}
}

// How a key's use ended: let in, or refused and why.
const (
	useGood     = ""
	useRevoked  = "revoked"
	useDisabled = "disabled" // the principal, or the tenant
)

// useOf begins the row of a key's use.
func useOf(k *store.APIKey) auditRecord {
	return auditRecord{ActorKind: k.Kind, Actor: k.Principal, TargetKind: "key", Target: k.ID}
}

// told notes the use of a good credential that was let in or, for its principal or tenant, was not. Other errors are nobody's doing.
func (u *keyUses) told(ctx context.Context, tenant string, row auditRecord, code Code, now time.Time) {
	switch code {
	case "":
		u.used(ctx, tenant, row, useGood, now)
	case CodeUnauthenticated:
		u.used(ctx, tenant, row, useDisabled, now)
	}
}

// used notes the use of a credential by who has it. It never waits.
func (u *keyUses) used(ctx context.Context, tenant string, row auditRecord, refused string, now time.Time) {
	id := tenant + "/" + row.TargetKind + "/" + row.Target + "/" + refused
	day := now.Truncate(24 * time.Hour)
	u.mu.Lock()
	defer u.mu.Unlock()
	if !day.Equal(u.day) || len(u.seen) >= keyUseKeys {
		u.day = day
		clear(u.seen)
	}
	if u.seen[id] {
		return
	}
	row.At, row.Action, row.Outcome, row.Trace = now, "key.use", outcomeOK, telemetry.TraceID(ctx)
	row.Detail = mustJSON(map[string]any{"day": day.Format(time.DateOnly)})
	if refused != "" {
		row.Outcome, row.Reason = outcomeDenied, refused
	}
	select {
	case u.queue <- keyUse{tenant, row}:
		u.seen[id] = true
	default:
	}
}

// tellKeyUses writes the rows until ctx is done, and then those that wait.
func (h *Host) tellKeyUses(ctx context.Context) {
	for {
		select {
		case first := <-h.keyUses.queue:
			h.writeKeyUses(ctx, &first)
		case <-ctx.Done():
			h.writeKeyUses(ctx, nil)
			return
		}
	}
}

// writeKeyUses commits what waits, some hundred rows at once. A row that could not be written is lost, and the log says so: the
// request that it is about was answered long ago.
func (h *Host) writeKeyUses(ctx context.Context, first *keyUse) {
	ctx = context.WithoutCancel(ctx)
	for {
		var c store.Change
		if first != nil {
			addRow(&c, first.tenant, first.row)
			first = nil
		}
		for more := true; more && len(c.Appends) < notesAtOnce; {
			select {
			case u := <-h.keyUses.queue:
				addRow(&c, u.tenant, u.row)
			default:
				more = false
			}
		}
		if c.Empty() {
			return
		}
		if lost, err := h.writeRows(ctx, &c); err != nil {
			h.log.Warn("the audit has no row of a key's use", "keys", lost, "error", err)
			return
		}
	}
}
