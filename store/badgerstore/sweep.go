package badgerstore

import (
	"context"

	"github.com/dgraph-io/badger/v4"

	"github.com/pawlhost/pawl/store"
)

// sweepBatch is the most keys, and sweepBytes about the most bytes of keys, deleted by one change: small enough that the
// commits of others in the same fold do not feel it.
const (
	sweepBatch = 2000
	sweepBytes = 256 << 10
)

// DeleteRange implements store.Store. A log's entries go before its head, so that a log cut short by a crash never
// begins again among its old entries; items go last and backwards, the one at prefix at the very end.
func (s *Store) DeleteRange(ctx context.Context, prefix store.Key) error {
	for _, space := range []string{spaceLog, spaceHead, spaceItem} {
		if err := s.deleteSpace(ctx, space, prefix); err != nil {
			return err
		}
	}
	return nil
}

// deleteSpace deletes in one pass over one view: starting again after each batch would walk over its tombstones.
func (s *Store) deleteSpace(ctx context.Context, space string, prefix store.Key) error {
	return s.View(ctx, func(r store.Reader) error {
		it := iterate(r.(reader).txn, space+string(prefix), true)
		defer it.Close()
		it.Seek([]byte(space + string(prefix.End())))
		return s.deleteAll(ctx, it, nil)
	})
}

// TrimLog implements store.Store.
func (s *Store) TrimLog(ctx context.Context, log store.Key, through uint64) error {
	return s.View(ctx, func(r store.Reader) error {
		it := iterate(r.(reader).txn, entryPrefix(log), false)
		defer it.Close()
		it.Rewind()
		last := entryKey(log, through)
		return s.deleteAll(ctx, it, func(k string) bool { return k <= last })
	})
}

// deleteAll deletes what an iterator visits, until ok says no, in bounded changes.
func (s *Store) deleteAll(ctx context.Context, it *badger.Iterator, ok func(key string) bool) error {
	var batch change
	size := 0
	flush := func() error {
		if len(batch.deletes) == 0 {
			return nil
		}
		_, err := s.submit(ctx, batch)
		batch, size = change{}, 0
		s.mu.Lock()
		s.swept = true
		s.mu.Unlock()
		return err
	}
	for ; it.Valid(); it.Next() {
		k := string(it.Item().Key())
		if ok != nil && !ok(k) {
			break
		}
		batch.deletes = append(batch.deletes, k)
		if size += len(k); len(batch.deletes) == sweepBatch || size > sweepBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}
