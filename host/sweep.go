package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/store"
)

// sweepBatch is how many due entries one view reads.
const sweepBatch = 256

func (h *Host) sweepLoop(ctx context.Context) {
	t := time.NewTicker(h.sweepInterval)
	defer t.Stop()
	var cleaned time.Time
	for {
		err := h.Sweep(ctx)
		if now := h.now(); err == nil && now.Sub(cleaned) >= cleanInterval {
			cleaned = now
			err = h.Clean(ctx)
		}
		if err != nil && ctx.Err() == nil {
			h.log.Error("the sweep failed; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Sweep does what is due: it expires pauses that nobody answered, removes runs whose retention is over, forgets outlived
// Idempotency-Keys. It may be called at any time; a decision racing it has one outcome and one event. What fails is told at the end and
// tried again by the next sweep: it keeps nothing else from being done.
func (h *Host) Sweep(ctx context.Context) error {
	h.queue.unpark()
	var failed error
	var after store.Key
	for {
		var due []store.Key
		now := ms(h.now())
		err := h.store.View(ctx, func(rd store.Reader) error {
			return rd.Scan(store.Range{Prefix: store.K("due"), After: after, Limit: sweepBatch}, func(it store.Item) bool {
				elems, err := it.Key.Elems()
				if err != nil || len(elems) < 4 || elems[1].(uint64) > now {
					return false
				}
				due = append(due, it.Key)
				return true
			})
		})
		if err != nil || len(due) == 0 {
			return errors.Join(failed, err)
		}
		for _, k := range due {
			after = k
			if err := h.sweepOne(ctx, k); errors.Is(err, store.ErrClosed) {
				return err
			} else if err != nil && ctx.Err() == nil {
				failed = errors.Join(failed, fmt.Errorf("due entry %q: %w", k, err))
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
}

func (h *Host) sweepOne(ctx context.Context, k store.Key) error {
	elems, err := k.Elems()
	if err != nil {
		return err
	}
	rest := elems[3:]
	switch elems[2] {
	case duePause:
		return h.expirePause(ctx, k, rest[0].(string), rest[1].(string), rest[2].(string))
	case dueWarn:
		return h.warnPause(ctx, k, rest[0].(string), rest[1].(string), rest[2].(string))
	case dueRetain:
		return h.forgetRun(ctx, k, rest[0].(string), rest[1].(string))
	default: // an Idempotency-Key; the record itself says whether it still counts
		return h.done(ctx, k)
	}
}

// done deletes a due entry.
func (h *Host) done(ctx context.Context, k store.Key) error {
	var c store.Change
	c.Delete(k)
	_, err := h.write(ctx, &c)
	return err
}

// expirePause ends a run whose pause is over, in one commit that is conditional on the run's version: a decision at the same
// instant either was first, or finds the pause expired.
func (h *Host) expirePause(ctx context.Context, k store.Key, tenant, id, pauseID string) error {
	for {
		r, err := h.load(ctx, tenant, id)
		if errors.Is(err, store.ErrNotFound) {
			return h.done(ctx, k)
		}
		if err != nil {
			return err
		}
		if !r.State.Paused() || r.PauseID != pauseID || r.pause.State != store.PauseOpen {
			return h.done(ctx, k) // an entry that came back
		}
		began := h.clock()
		ctx := telemetry.With(ctx, h.telemetry.Begin(telemetry.SpanContext{}, "expire_approvals"))
		s := h.step(r)
		if err := applyDecisions(ctx, h, s, false); err != nil {
			return err
		}
		s.expire()
		if err := h.commit(ctx, s); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return err
		}
		h.traceExpiry(ctx, s, began)
		return nil
	}
}

// warnPause announces, once, that a pause will expire.
func (h *Host) warnPause(ctx context.Context, k store.Key, tenant, id, pauseID string) error {
	for {
		r, err := h.load(ctx, tenant, id)
		if errors.Is(err, store.ErrNotFound) {
			return h.done(ctx, k)
		}
		if err != nil {
			return err
		}
		if !r.State.Paused() || r.PauseID != pauseID {
			return h.done(ctx, k)
		}
		if !h.now().Before(r.pause.ExpiresAt) {
			return h.expirePause(ctx, k, tenant, id, pauseID) // too late for a warning; the end takes this entry with it
		}
		s := h.step(r)
		s.warn()
		s.change.Delete(k)
		if err := h.commit(ctx, s); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// forgetRun removes an ended run with everything below it, and its entries in the indexes.
func (h *Host) forgetRun(ctx context.Context, k store.Key, tenant, id string) error {
	var c store.Change
	err := h.store.View(ctx, func(rd store.Reader) error {
		head, err := readHead(rd, tenant, id)
		if err != nil {
			return err
		}
		if !head.State.Ended() {
			return fmt.Errorf("%w: run %s is due for removal and has not ended", store.ErrCorrupt, id)
		}
		c.Delete(ownKey(tenant, head.CreatedBy).With(id))
		if head.Subject != "" {
			c.Delete(ownKey(tenant, head.Subject).With(id))
		}
		if err := rd.Scan(store.Range{Prefix: runKey(tenant, id).With("apr")}, func(it store.Item) bool {
			c.Delete(approvalsKey(tenant).With(it.Key.Last()))
			return true
		}); err != nil {
			return err
		}
		return rd.Scan(store.Range{Prefix: runKey(tenant, id).With("pause")}, func(it store.Item) bool {
			c.Delete(pausesKey(tenant).With(it.Key.Last()))
			return true
		})
	})
	if errors.Is(err, store.ErrNotFound) {
		return h.done(ctx, k)
	}
	if err != nil {
		return err
	}
	if err := h.store.DeleteRange(ctx, runKey(tenant, id)); err != nil {
		return err
	}
	c.Delete(k) // last: a crash before it finds the range again
	_, err = h.write(ctx, &c)
	return err
}

// cleanInterval is the time between two looks for what nothing refers to any more.
const cleanInterval = 24 * time.Hour

// blobGrace keeps a blob that was put but is not named by a commit yet.
const blobGrace = time.Hour

// Clean removes blobs that no record names, and the old ends of the tenants' queues. It reads everything of a tenant, so it
// runs once a day.
func (h *Host) Clean(ctx context.Context) error {
	tenants, err := h.tenants(ctx)
	if err != nil {
		return err
	}
	for _, tenant := range tenants {
		before := h.now().Add(-blobGrace) // first: what is put from here on is younger
		used := map[store.Digest]bool{}
		err := h.store.View(ctx, func(rd store.Reader) error {
			return rd.Scan(store.Range{Prefix: tenantKey(tenant)}, func(it store.Item) bool {
				digests(it.Value, used)
				return ctx.Err() == nil
			})
		})
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		n, err := h.store.SweepBlobs(ctx, tenant, before, func(d store.Digest) bool { return used[d] })
		if err != nil {
			return err
		}
		if n > 0 {
			h.log.Info("blobs removed", "tenant", tenant, "count", n)
		}
		if err := h.trimQueue(ctx, tenant); err != nil {
			return err
		}
	}
	return nil
}

// trimQueue drops what the queue's log has held for longer than the retention. A cursor that old gets CodeCursorExpired.
func (h *Host) trimQueue(ctx context.Context, tenant string) error {
	log, old := queueLog(tenant), h.now().Add(-h.retention)
	var through uint64
	err := h.store.View(ctx, func(rd store.Reader) error {
		head, err := rd.LogHead(log)
		if err != nil {
			return err
		}
		// Entries are in the order of their commits, and so of their time: look for the first that is young enough.
		n := sort.Search(int(head), func(i int) bool {
			entries, lerr := rd.Log(log, uint64(i), 1)
			if errors.Is(lerr, store.ErrTrimmed) {
				return false
			}
			var rec eventRecord
			if lerr == nil && len(entries) == 1 {
				lerr = store.Decode(entries[0].Data, &rec)
			}
			err = errors.Join(err, lerr)
			return lerr != nil || len(entries) == 0 || !rec.At.Before(old)
		})
		through = uint64(n)
		return err
	})
	if err != nil || through == 0 {
		return err
	}
	return h.store.TrimLog(ctx, log, through)
}

// digests collects every text in a record that looks like a digest. Too many keep a blob for longer; too few would lose one, and
// there cannot be too few: a record names a blob by this text.
func digests(record []byte, into map[store.Digest]bool) {
	const prefix, size = "sha256:", 64
	for {
		i := bytes.Index(record, []byte(prefix))
		if i < 0 || len(record) < i+len(prefix)+size {
			return
		}
		into[store.Digest(record[i:i+len(prefix)+size])] = true
		record = record[i+len(prefix):]
	}
}
