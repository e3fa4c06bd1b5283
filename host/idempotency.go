package host

import (
	"context"
	"errors"
	"time"

	"github.com/pawlhost/pawl/store"
)

// idempotencyTTL is how long an Idempotency-Key is remembered.
const idempotencyTTL = 24 * time.Hour

func idemKey(a Actor, i Idempotency) store.Key {
	return store.K("t", a.Tenant, "idem", a.ID, i.Method, i.Path, i.Key)
}

// replayed is what a repeated request is answered with.
type replayed struct {
	run Run
	// version is what a new record builds on.
	version uint64
}

// replay looks for an earlier request with the same Idempotency-Key: its run, rendered afresh. Another body under the same key
// is CodeIdempotency.
func (h *Host) replay(ctx context.Context, a Actor, i Idempotency) (replayed, bool, error) {
	rec, version, err := h.idempotent(ctx, a, i)
	if err != nil || rec == nil {
		return replayed{version: version}, false, err
	}
	run, err := h.load(ctx, a.Tenant, rec.RunID)
	if err != nil {
		return replayed{}, false, runError(err)
	}
	v, err := h.view(ctx, a, run)
	return replayed{run: v, version: version}, true, err
}

// idempotent reads the record of a key, nil when there is none that still counts, and the version to build on.
func (h *Host) idempotent(ctx context.Context, a Actor, i Idempotency) (rec *store.Idempotency, version uint64, err error) {
	if i.Key == "" {
		return nil, 0, nil
	}
	err = h.store.View(ctx, func(rd store.Reader) error {
		it, err := rd.Get(idemKey(a, i))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		version = it.Version
		rec = new(store.Idempotency)
		return store.Decode(it.Value, rec)
	})
	if err != nil || rec == nil {
		return nil, version, err
	}
	if !h.now().Before(rec.At.Add(idempotencyTTL)) {
		return nil, version, nil
	}
	if rec.Request != i.Body {
		return nil, version, errf(CodeIdempotency, "this Idempotency-Key was used with another body; use a new key for a new request")
	}
	return rec, version, nil
}

// remember adds what is kept of an answered request to the change that answers it, on the version that replay found: of two
// requests under one key one is answered, and the other finds it when it looks again.
func (h *Host) remember(c *store.Change, a Actor, i Idempotency, version uint64, status int, runID string) {
	if i.Key == "" {
		return
	}
	now := h.now()
	c.Require(idemKey(a, i), version)
	c.Put(idemKey(a, i), store.Encode(store.Idempotency{Request: i.Body, Status: status, RunID: runID, At: now}))
	c.Put(dueKey(now.Add(idempotencyTTL), dueIdem, a.Tenant, a.ID, i.Method, i.Path, i.Key), nil)
}
