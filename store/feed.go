package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

const (
	// ringEntries and ringBytes bound what one watched log keeps in memory; up to twice as much is held between two
	// trims. A reader that falls behind catches up from the engine.
	ringEntries = 1024
	ringBytes   = 4 << 20
)

// Feed is the live tail of logs. Engines publish what has become durable, in commit order; any number of readers follow
// without touching the engine. A log that nobody watches costs nothing. It is safe for concurrent use.
//
// A log's ring begins with its first subscription, so a reader does it in this order and misses nothing:
//
//	sub := s.Feed().Subscribe(log)             // from here on everything is kept
//	defer sub.Close()
//	…Reader.Log(log, after, n) until its head  // what was there before
//	for { entries, err := sub.Next(ctx, after) // what comes; ErrTrimmed: read the log again, then go on here
type Feed struct {
	mu     sync.Mutex
	rings  map[Key]*ring
	closed bool
}

// ring is the shared tail of one log. Its state is replaced as a whole, so that ten thousand readers take no lock.
type ring struct {
	state atomic.Pointer[tail]
	subs  int   // guarded by Feed.mu, as are the writes of state
	bytes int64 // of the entries in state
}

// tail is immutable. Entries only ever grow behind its length, so a reader's slice stays good.
type tail struct {
	entries []Entry
	wake    chan struct{} // closed when a newer tail has taken over
	closed  bool
}

// NewFeed returns an empty feed.
func NewFeed() *Feed { return &Feed{rings: map[Key]*ring{}} }

// Publish hands durable entries of one log to its readers. It never blocks and keeps the entries' data. Only engines call
// it, in commit order.
func (f *Feed) Publish(log Key, entries ...Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rings[log]
	if r == nil || f.closed || len(entries) == 0 {
		return
	}
	old := r.state.Load()
	kept := old.entries
	if n := len(kept); n > 0 && kept[n-1].Seq+1 != entries[0].Seq {
		kept, r.bytes = nil, 0 // retention deleted the log and it began anew
	}
	kept = append(kept, entries...)
	for _, e := range entries {
		r.bytes += int64(len(e.Data))
	}
	if len(kept) > 2*ringEntries || r.bytes > 2*ringBytes {
		kept = r.trim(kept)
	}
	r.state.Store(&tail{entries: kept, wake: make(chan struct{})})
	close(old.wake)
}

// trim copies the newest entries that fit, at least one, so that the old array and its data can go.
func (r *ring) trim(entries []Entry) []Entry {
	i := len(entries) - 1
	r.bytes = int64(len(entries[i].Data))
	for i > 0 && len(entries)-i < ringEntries && r.bytes+int64(len(entries[i-1].Data)) <= ringBytes {
		i--
		r.bytes += int64(len(entries[i].Data))
	}
	return append(make([]Entry, 0, 2*ringEntries), entries[i:]...)
}

// Subscribe starts keeping the tail of a log. The caller must Close the subscription. After the feed has closed,
// the subscription is valid and answers ErrClosed.
func (f *Feed) Subscribe(log Key) *Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rings[log]
	if r == nil {
		r = &ring{}
		t := &tail{wake: make(chan struct{}), closed: f.closed}
		if f.closed {
			close(t.wake)
		} else {
			f.rings[log] = r
		}
		r.state.Store(t)
	}
	r.subs++
	return &Subscription{feed: f, log: log, ring: r, done: make(chan struct{})}
}

// Close ends every subscription: readers get what is still kept for them, then ErrClosed. It is idempotent.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	for log, r := range f.rings {
		old := r.state.Load()
		t := &tail{entries: old.entries, wake: make(chan struct{}), closed: true}
		close(t.wake)
		r.state.Store(t)
		close(old.wake)
		delete(f.rings, log)
	}
}

// Subscription follows one log. Its methods may be called from several goroutines.
type Subscription struct {
	feed *Feed
	log  Key
	ring *ring
	done chan struct{}
	once sync.Once
}

// Next blocks until there are entries with Seq > after, and returns them, contiguous from after+1. They are shared: read
// only. Errors: ErrTrimmed when after+1 is no longer (or was never) kept here and the reader must catch up with
// Reader.Log; ErrClosed when the subscription or the store has closed; the context's.
func (s *Subscription) Next(ctx context.Context, after uint64) ([]Entry, error) {
	for {
		wake := s.Wait()
		entries, err := s.Poll(after)
		if len(entries) > 0 || err != nil {
			return entries, err
		}
		select {
		case <-wake:
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Poll is Next without waiting: no entries and no error mean that nothing is there yet.
func (s *Subscription) Poll(after uint64) ([]Entry, error) {
	select {
	case <-s.done:
		return nil, fmt.Errorf("subscription: %w", ErrClosed)
	default:
	}
	t := s.ring.state.Load()
	n := uint64(len(t.entries))
	switch {
	case n == 0 || after >= t.entries[n-1].Seq:
		if t.closed {
			return nil, ErrClosed
		}
		return nil, nil
	case after+1 < t.entries[0].Seq:
		return nil, ErrTrimmed
	}
	return t.entries[after+1-t.entries[0].Seq : n : n], nil
}

// Wait returns a channel that is closed at the next publication or at the store's end, for a select over several
// subscriptions. Take it before Poll; after it, a publication in between would be slept through.
func (s *Subscription) Wait() <-chan struct{} { return s.ring.state.Load().wake }

// Close ends the subscription and wakes its Next. It is idempotent.
func (s *Subscription) Close() {
	s.once.Do(func() {
		close(s.done)
		s.feed.mu.Lock()
		defer s.feed.mu.Unlock()
		s.ring.subs--
		if s.ring.subs == 0 && s.feed.rings[s.log] == s.ring {
			delete(s.feed.rings, s.log)
		}
	})
}
