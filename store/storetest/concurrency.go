package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

func concurrency(t *testing.T, e Engine) {
	t.Run("OneOfHundredWins", func(t *testing.T) { t.Parallel(); oneWins(t, e.fresh(t)) })
	t.Run("Invariant13_DenseLogsAndTailingReaders", func(t *testing.T) { t.Parallel(); tailing(t, e.fresh(t)) })
	t.Run("OneChainOf64Writers", func(t *testing.T) { t.Parallel(); manyChain(t, e.fresh(t)) })
	t.Run("NoLostUpdate", func(t *testing.T) { t.Parallel(); counters(t, e.fresh(t)) })
	t.Run("ViewsAreConsistent", func(t *testing.T) { t.Parallel(); transfers(t, e.fresh(t)) })
	t.Run("CloseDuringCommits", func(t *testing.T) { t.Parallel(); closing(t, e.fresh(t)) })
}

// oneWins: a hundred goroutines want the same step, for a present and for an absent item.
func oneWins(t *testing.T, s store.Store) {
	for round := range 10 {
		k := store.K("pause", round)
		var version uint64
		if round%2 == 0 {
			version = put(t, s, k, "pending")
		}
		var won atomic.Int64
		var winner atomic.Value
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				<-start
				name := fmt.Sprint(i)
				var c store.Change
				c.Require(k, version)
				c.Put(k, []byte(name))
				c.Put(k.With("by", name), []byte(name))
				c.Append(k, []byte(name))
				_, err := s.Commit(context.Background(), &c)
				switch {
				case err == nil:
					won.Add(1)
					winner.Store(name)
				case !errors.Is(err, store.ErrConflict):
					t.Errorf("loser: %v", err)
				default:
					// The loser, told so, finds the winner.
					view(t, s, func(r store.Reader) error {
						if it, err := r.Get(k); err != nil || it.Version == version {
							t.Errorf("after a conflict the item is still %q at %d, %v", it.Value, it.Version, err)
						}
						return nil
					})
				}
			})
		}
		close(start)
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d winners", round, won.Load())
		}
		name := winner.Load().(string)
		want(t, s, k, name)
		wantLog(t, s, k, name)
		if keys, _ := scan(t, s, store.Range{Prefix: k}); len(keys) != 1 {
			t.Errorf("round %d: losers left %q", round, keys)
		}
	}
}

// tailing: writers append to a shared log and to their own, while readers follow the feed as its documentation says. Every
// reader gets every entry once, in order, and the numbers have no gap.
func tailing(t *testing.T, s store.Store) {
	const writers, readers, each = 16, 8, 60
	ctx := within(t, time.Minute)
	shared := store.K("shared")
	seqs := make([][]uint64, writers)
	var wg sync.WaitGroup
	follow := func(from uint64) {
		sub := s.Feed().Subscribe(shared)
		defer sub.Close()
		after := from
		seen := map[string]bool{}
		take := func(entries []store.Entry) {
			for _, e := range entries {
				if e.Seq != after+1 || seen[string(e.Data)] {
					t.Errorf("reader at %d was given %d %q", after, e.Seq, e.Data)
				}
				after, seen[string(e.Data)] = e.Seq, true
			}
		}
		catchUp := func() {
			for more := true; more; {
				view(t, s, func(r store.Reader) error {
					entries, err := r.Log(shared, after, 50)
					take(entries)
					more = len(entries) > 0
					return err
				})
			}
		}
		catchUp()
		for after < writers*each && !t.Failed() {
			entries, err := sub.Next(ctx, after)
			switch {
			case errors.Is(err, store.ErrTrimmed):
				catchUp()
			case err != nil:
				t.Errorf("reader at %d: %v", after, err)
				return
			}
			take(entries)
		}
	}
	for w := range writers {
		wg.Go(func() {
			own := store.K("own", w)
			for i := range each {
				var c store.Change
				c.Append(shared, fmt.Appendf(nil, "%d/%d", w, i))
				c.Append(own, fmt.Appendf(nil, "%d", i))
				r, err := s.Commit(ctx, &c)
				if err != nil {
					t.Errorf("writer: %v", err)
					return
				}
				if r.Seqs[1] != uint64(i)+1 {
					t.Errorf("writer %d: own log at %d, want %d", w, r.Seqs[1], i+1)
				}
				seqs[w] = append(seqs[w], r.Seqs[0])
			}
		})
	}
	for range readers {
		wg.Go(func() { follow(0) })
	}
	wg.Wait()
	var all []uint64
	for _, ss := range seqs {
		if !slices.IsSorted(ss) {
			t.Error("one writer's entries are not in the order of its commits")
		}
		all = append(all, ss...)
	}
	slices.Sort(all)
	for i, n := range all {
		if n != uint64(i)+1 {
			t.Fatalf("sequence number %d at place %d", n, i+1)
		}
	}
	follow(0) // a late reader gets the same
}

// counters: read, change, compare and set, under contention; no increment is lost, versions rise.
func counters(t *testing.T, s store.Store) {
	const workers, each = 8, 25
	k := store.K("counter")
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				for {
					var it store.Item
					view(t, s, func(r store.Reader) (err error) {
						if it, err = r.Get(k); errors.Is(err, store.ErrNotFound) {
							return nil
						}
						return err
					})
					n, _ := binary.Uvarint(it.Value)
					var c store.Change
					c.Require(k, it.Version)
					c.Put(k, binary.AppendUvarint(nil, n+1))
					r, err := s.Commit(context.Background(), &c)
					if err == nil {
						if r.Version <= it.Version {
							t.Errorf("version fell from %d to %d", it.Version, r.Version)
						}
						break
					}
					if !errors.Is(err, store.ErrConflict) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	want(t, s, k, string(binary.AppendUvarint(nil, workers*each)))
}

// transfers: every change moves one unit between accounts and tells a log; every View finds the same sum, and as many log
// entries as the counter beside them says.
func transfers(t *testing.T, s store.Store) {
	const accounts, total = 10, 1000
	log, count := store.K("moves"), store.K("count")
	account := func(i int) store.Key { return store.K("account", i) }
	c := &store.Change{}
	for i := range accounts {
		c.Put(account(i), []byte{total / accounts})
	}
	c.Put(count, []byte{0, 0})
	must(t, s, c)
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		writers.Go(func() {
			for i := range 60 {
				from, to := account((w+i)%accounts), account((w+3*i+1)%accounts)
				if from == to {
					continue
				}
				for {
					var a, b, n store.Item
					view(t, s, func(r store.Reader) (err error) {
						if a, err = r.Get(from); err == nil {
							b, err = r.Get(to)
						}
						if err == nil {
							n, err = r.Get(count)
						}
						return err
					})
					var c store.Change
					c.Require(from, a.Version)
					c.Require(to, b.Version)
					c.Require(count, n.Version)
					c.Put(from, []byte{a.Value[0] - 1})
					c.Put(to, []byte{b.Value[0] + 1})
					c.Put(count, binary.BigEndian.AppendUint16(nil, binary.BigEndian.Uint16(n.Value)+1))
					c.Append(log, []byte("move"))
					if _, err := s.Commit(context.Background(), &c); err == nil {
						break
					} else if !errors.Is(err, store.ErrConflict) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 3 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				view(t, s, func(r store.Reader) error {
					sum := 0
					if err := r.Scan(store.Range{Prefix: store.K("account")}, func(it store.Item) bool {
						sum += int(it.Value[0])
						return true
					}); err != nil {
						return err
					}
					n, err := r.Get(count)
					if err != nil {
						return err
					}
					head, err := r.LogHead(log)
					if sum != total || head != uint64(binary.BigEndian.Uint16(n.Value)) {
						t.Errorf("a view sums to %d and counts %x moves in a log of %d", sum, n.Value, head)
					}
					return err
				})
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

// closing: a store that closes under load answers everybody, and what it acknowledged it had done.
func closing(t *testing.T, s store.Store) {
	var wg sync.WaitGroup
	started := make(chan struct{}, 64)
	for i := range 16 {
		wg.Go(func() {
			for n := 0; ; n++ {
				_, err := s.Commit(context.Background(), &store.Change{
					Puts: []store.Put{{Key: store.K("closing", i), Value: []byte(fmt.Sprint(n))}}})
				if err != nil {
					wantErr(t, "commit", err, store.ErrClosed)
					return
				}
				select {
				case started <- struct{}{}:
				default:
				}
				if err := s.View(context.Background(), func(r store.Reader) error {
					it, err := r.Get(store.K("closing", i))
					if err == nil && string(it.Value) != fmt.Sprint(n) {
						t.Errorf("writer %d reads %q after writing %d", i, it.Value, n)
					}
					return err
				}); err != nil {
					wantErr(t, "view", err, store.ErrClosed)
					return
				}
			}
		})
	}
	for range 32 {
		<-started
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
