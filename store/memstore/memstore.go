// Package memstore is the reference model of store.Store: plain, in memory, gone with the process. Tests and the model
// suite read it as the specification, so it does everything in the most obvious way.
package memstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawlhost/pawl/store"
)

// Store keeps its state as one immutable value: a Commit builds the next one and swaps it in, a View works on the one that
// it found.
type Store struct {
	state  atomic.Pointer[state]
	closed atomic.Bool
	feed   *store.Feed

	mu      sync.Mutex // one writer at a time; guards what follows
	version uint64
	blobs   map[blobKey]blob
}

type state struct {
	items tree[item]
	logs  tree[logTail]
}

type item struct {
	value   []byte
	version uint64
}

type blobKey struct {
	tenant string
	digest store.Digest
}

type blob struct {
	data []byte
	put  time.Time
}

var _ store.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	s := &Store{feed: store.NewFeed(), blobs: map[blobKey]blob{}}
	s.state.Store(&state{})
	return s
}

// usable returns the error of a call that cannot begin.
func (s *Store) usable(ctx context.Context) error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	return ctx.Err()
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Reader) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return fn(reader{s.state.Load(), ctx})
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, c *store.Change) (store.Receipt, error) {
	if err := c.Check(); err != nil {
		return store.Receipt{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Receipt{}, err
	}
	next := *s.state.Load()
	for _, p := range c.If {
		if it, _ := next.items.get(p.Key); it.version != p.Version {
			return store.Receipt{}, store.ErrConflict
		}
	}
	if c.Empty() {
		return store.Receipt{}, nil
	}
	s.version++
	r := store.Receipt{Version: s.version}
	var appended []store.Entry
	for _, k := range c.Deletes {
		next.items = next.items.delete(k)
	}
	for _, p := range c.Puts {
		next.items = next.items.put(p.Key, item{bytes.Clone(p.Value), s.version})
	}
	for _, a := range c.Appends {
		// Growing in place is safe: an older state's slice ends before the new entry.
		l, _ := next.logs.get(a.Log)
		e := store.Entry{Seq: l.head() + 1, Data: bytes.Clone(a.Data)}
		if a.Chained {
			e.Prev, e.Hash = l.hash, store.ChainHash(a.Log, e.Seq, l.hash, e.Data)
			l.hash = e.Hash
		}
		l.entries = append(l.entries, e)
		next.logs = next.logs.put(a.Log, l)
		r.Seqs = append(r.Seqs, e.Seq)
		appended = append(appended, e)
	}
	s.state.Store(&next)
	for i, a := range c.Appends {
		s.feed.Publish(a.Log, appended[i])
	}
	return r, nil
}

// PutBlob implements store.Store.
func (s *Store) PutBlob(ctx context.Context, tenant string, data []byte, now time.Time) (store.Digest, error) {
	if len(data) > store.MaxChange {
		return "", fmt.Errorf("%w: a blob of %d bytes, at most %d", store.ErrTooLarge, len(data), store.MaxChange)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return "", err
	}
	d := store.DigestOf(data)
	b, ok := s.blobs[blobKey{tenant, d}]
	if !ok {
		b = blob{data: bytes.Clone(data), put: now}
	}
	if now.After(b.put) {
		b.put = now
	}
	s.blobs[blobKey{tenant, d}] = b
	return d, nil
}

// Blob implements store.Store.
func (s *Store) Blob(ctx context.Context, tenant string, d store.Digest) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	b, ok := s.blobs[blobKey{tenant, d}]
	if !ok {
		return nil, store.ErrNotFound
	}
	return slices.Clone(b.data), nil
}

// SweepBlobs implements store.Store.
func (s *Store) SweepBlobs(
	ctx context.Context, tenant string, before time.Time, used func(store.Digest) bool,
) (int, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	old := map[blobKey]time.Time{}
	for k, b := range s.blobs {
		if k.tenant == tenant && b.put.Before(before) {
			old[k] = b.put
		}
	}
	s.mu.Unlock()
	n := 0
	for k, put := range old {
		if used(k.digest) { // outside the lock: it may read the store
			continue
		}
		s.mu.Lock()
		if b, ok := s.blobs[k]; ok && b.put.Equal(put) {
			delete(s.blobs, k)
			n++
		}
		s.mu.Unlock()
	}
	return n, nil
}

// DeleteRange implements store.Store.
func (s *Store) DeleteRange(ctx context.Context, prefix store.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	next := *s.state.Load()
	next.items = next.items.cut(prefix, prefix.End())
	next.logs = next.logs.cut(prefix, prefix.End())
	s.state.Store(&next)
	return nil
}

// TrimLog implements store.Store.
func (s *Store) TrimLog(ctx context.Context, log store.Key, through uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	next := *s.state.Load()
	l, ok := next.logs.get(log)
	if through = min(through, l.head()); !ok || through <= l.trimmed {
		return nil
	}
	next.logs = next.logs.put(log, logTail{trimmed: through, hash: l.hash, entries: slices.Clone(l.entries[through-l.trimmed:])})
	s.state.Store(&next)
	return nil
}

// logTail is what is left of a log.
type logTail struct {
	trimmed uint64     // entries that are gone
	hash    store.Hash // of the last chained entry
	entries []store.Entry
}

func (l logTail) head() uint64 { return l.trimmed + uint64(len(l.entries)) }

// Feed implements store.Store.
func (s *Store) Feed() *store.Feed { return s.feed }

// Space implements store.Store; there is no medium.
func (s *Store) Space() (uint64, bool) { return 0, false }

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed.Store(true)
	s.feed.Close()
	return nil
}

// reader reads one state.
type reader struct {
	*state
	ctx context.Context
}

func (r reader) Get(k store.Key) (store.Item, error) {
	it, ok := r.items.get(k)
	if !ok {
		return store.Item{}, store.ErrNotFound
	}
	return store.Item{Key: k, Value: slices.Clone(it.value), Version: it.version}, nil
}

func (r reader) Scan(rg store.Range, fn func(store.Item) bool) error {
	lo, hi, err := rg.Bounds()
	if err != nil {
		return err
	}
	walk := r.items.ascend
	if rg.Reverse {
		walk = r.items.descend
	}
	n := 0
	walk(lo, hi, func(k store.Key, it item) bool {
		if err = r.ctx.Err(); err != nil {
			return false
		}
		if rg.Children && k.Child(rg.Prefix) != k {
			return true
		}
		n++
		return fn(store.Item{Key: k, Value: slices.Clone(it.value), Version: it.version}) && n != rg.Limit
	})
	return err
}

func (r reader) Log(log store.Key, after uint64, limit int) ([]store.Entry, error) {
	if limit <= 0 {
		limit = 1000
	}
	l, _ := r.logs.get(log)
	if after >= l.head() {
		return nil, nil
	}
	var err error
	if after < l.trimmed {
		after, err = l.trimmed, store.ErrTrimmed
	}
	all := l.entries[after-l.trimmed:]
	out := make([]store.Entry, 0, min(limit, len(all)))
	for _, e := range all[:cap(out)] {
		e.Data = slices.Clone(e.Data)
		out = append(out, e)
	}
	return out, err
}

func (r reader) LogHead(log store.Key) (uint64, error) {
	l, _ := r.logs.get(log)
	return l.head(), nil
}

func (r reader) ChainHead(log store.Key) (store.Hash, error) {
	l, _ := r.logs.get(log)
	return l.hash, nil
}
