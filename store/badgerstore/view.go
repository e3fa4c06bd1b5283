package badgerstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/dgraph-io/badger/v4"

	"github.com/pawlhost/pawl/store"
)

// view is a read-only transaction that all readers share. Badger's NewTransaction waits for every commit in flight, that
// is for an fsync; the committer opens the next view when nothing is in flight, so that nobody else ever waits.
type view struct {
	txn  *badger.Txn
	refs int // under Store.mu; the store's own is one
}

// install makes what has been committed visible. Only the committer calls it, between two commits.
func (s *Store) install() {
	next := &view{txn: s.db.NewTransaction(false), refs: 1}
	s.mu.Lock()
	old := s.view
	s.view = next
	s.unref(old)
	s.mu.Unlock()
}

func (s *Store) unref(v *view) {
	v.refs--
	if v.refs == 0 {
		v.txn.Discard()
	}
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Reader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.ended != nil {
		defer s.mu.Unlock()
		return s.ended
	}
	v := s.view
	v.refs++
	s.active++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unref(v)
		s.active--
		if s.active == 0 && s.ended != nil {
			s.cond.Broadcast()
		}
	}()
	return fn(reader{v.txn, ctx})
}

// reader is safe for concurrent use: a read-only transaction of Badger keeps no record of its reads.
type reader struct {
	txn *badger.Txn
	ctx context.Context
}

func (r reader) Get(k store.Key) (store.Item, error) {
	value, version, err := get(r.txn, spaceItem+string(k))
	if err != nil {
		return store.Item{}, err
	}
	return store.Item{Key: k, Value: value, Version: version}, nil
}

func (r reader) Scan(rg store.Range, fn func(store.Item) bool) error {
	lo, hi, err := rg.Bounds()
	if err != nil {
		return err
	}
	it := iterate(r.txn, spaceItem+string(rg.Prefix), rg.Reverse)
	defer it.Close()
	from := lo
	if rg.Reverse {
		from = hi
	}
	it.Seek([]byte(spaceItem + string(from)))
	if rg.Reverse && it.Valid() && string(it.Item().Key()[len(spaceItem):]) == string(hi) {
		it.Next() // hi itself is outside
	}
	for n := 0; it.Valid(); {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		k := store.Key(it.Item().Key()[len(spaceItem):])
		if k < lo || k >= hi {
			return nil
		}
		if child := k.Child(rg.Prefix); rg.Children && child != k {
			// Inside a child: go behind it, or, backwards, down to the child itself, which sorts before its contents.
			target := child
			if !rg.Reverse {
				target = child.End()
			}
			it.Seek([]byte(spaceItem + string(target)))
			continue
		}
		value, version, err := decode(it.Item())
		if err != nil {
			return err
		}
		n++
		if !fn(store.Item{Key: k, Value: value, Version: version}) || n == rg.Limit {
			return nil
		}
		it.Next()
	}
	return nil
}

func (r reader) Log(log store.Key, after uint64, limit int) ([]store.Entry, error) {
	if limit <= 0 {
		limit = 1000
	}
	if after == ^uint64(0) {
		return nil, nil
	}
	prefix := entryPrefix(log)
	it := iterate(r.txn, prefix, false)
	defer it.Close()
	var out []store.Entry
	for it.Seek([]byte(entryKey(log, after+1))); it.Valid() && len(out) < limit; it.Next() {
		if err := r.ctx.Err(); err != nil {
			return nil, err
		}
		seq, ok := strings.CutPrefix(string(it.Item().Key()), prefix)
		if !ok || len(seq) != 8 {
			return nil, fmt.Errorf("%w: log entry key", store.ErrCorrupt)
		}
		e, err := decodeEntry(it.Item())
		if err != nil {
			return nil, err
		}
		e.Seq = binary.BigEndian.Uint64([]byte(seq))
		out = append(out, e)
	}
	if len(out) > 0 {
		if out[0].Seq != after+1 {
			return out, store.ErrTrimmed
		}
		return out, nil
	}
	if head, err := r.LogHead(log); err != nil || head > after {
		return nil, cmp.Or(err, store.ErrTrimmed)
	}
	return nil, nil
}

func (r reader) LogHead(log store.Key) (uint64, error) {
	h, err := readHead(r.txn, log)
	return h.seq, err
}

func (r reader) ChainHead(log store.Key) (store.Hash, error) {
	h, err := readHead(r.txn, log)
	return h.hash, err
}

// iterate opens an iterator over keys that begin with prefix. Nothing is prefetched: every value lies in the tree beside
// its key, and Badger's prefetch would start a goroutine for each.
func iterate(txn *badger.Txn, prefix string, reverse bool) *badger.Iterator {
	return txn.NewIterator(badger.IteratorOptions{Prefix: []byte(prefix), Reverse: reverse})
}

// entryPrefix begins the keys of a log's entries. 0x01 sorts before the tag of any key element, so that no log below this
// one, and no prefix of DeleteRange, can lie among them.
func entryPrefix(log store.Key) string { return spaceLog + string(log) + "\x01" }

func entryKey(log store.Key, seq uint64) string {
	return string(binary.BigEndian.AppendUint64([]byte(entryPrefix(log)), seq))
}

// get reads a versioned value, or returns ErrNotFound.
func get(txn *badger.Txn, key string) ([]byte, uint64, error) {
	it, err := txn.Get([]byte(key))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, 0, store.ErrNotFound
	}
	if err != nil {
		return nil, 0, err
	}
	return decode(it)
}

func decode(it *badger.Item) (value []byte, version uint64, err error) {
	raw, err := it.ValueCopy(nil)
	if err != nil {
		return nil, 0, err
	}
	version, n := binary.Uvarint(raw)
	if n <= 0 {
		return nil, 0, fmt.Errorf("%w: version of %q", store.ErrCorrupt, it.Key())
	}
	return raw[n:], version, nil
}

func number(n uint64) []byte { return binary.AppendUvarint(nil, n) }

// readNumber reads one of the store's own numbers; 0 when it is not there.
func readNumber(txn *badger.Txn, key string) (uint64, error) {
	_, n, err := get(txn, key)
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	return n, err
}
