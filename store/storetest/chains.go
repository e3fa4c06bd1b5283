package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

// chains: the store links the chained entries of a log in the order of their numbers, whatever they were committed with.
func chains(t *testing.T, e Engine) {
	s := e.fresh(t)
	ctx := within(t, time.Minute)
	log, other, mixed := store.K("a", "audit"), store.K("b", "audit"), store.K("mixed")
	if head := chainHead(t, s, log); !head.IsZero() {
		t.Errorf("an empty log has the hash %s", head)
	}

	// Several in one change, to several logs.
	for n := range 20 {
		c := &store.Change{}
		for i := range n % 4 {
			c.Chain(log, fmt.Appendf(nil, "%d.%d", n, i))
			c.Append(log.With("below"), []byte("no chain"))
			c.Chain(other, fmt.Appendf(nil, "%d.%d", n, i))
		}
		c.Put(store.K("k"), []byte("v"))
		must(t, s, c)
	}
	wantChain(t, s, log, 30)
	wantChain(t, s, other, 30)
	if chainHead(t, s, log) == chainHead(t, s, other) {
		t.Error("two logs of the same contents have one head: an entry could be moved between them")
	}
	if head := chainHead(t, s, log.With("below")); !head.IsZero() {
		t.Errorf("a log that nobody chains has the hash %s", head)
	}

	// What is refused leaves no link behind.
	refused := &store.Change{}
	refused.Require(store.K("k"), 1<<40)
	refused.Chain(log, []byte("never"))
	before := chainHead(t, s, log)
	_, err := s.Commit(ctx, refused)
	wantErr(t, "a change with a false condition", err, store.ErrConflict)
	if chainHead(t, s, log) != before {
		t.Error("a refused change moved the head")
	}

	// A chain begins where the first chained entry is, and goes on over entries that are not.
	for _, chained := range []bool{false, false, true, true, false, true} {
		must(t, s, &store.Change{Appends: []store.Append{{Log: mixed, Data: []byte("x"), Chained: chained}}})
	}
	view(t, s, func(r store.Reader) error {
		entries, err := r.Log(mixed, 0, 0)
		if err != nil {
			return err
		}
		if len(entries) != 6 || !entries[1].Hash.IsZero() || !entries[2].Prev.IsZero() || entries[3].Prev != entries[2].Hash ||
			!entries[4].Hash.IsZero() || entries[5].Prev != entries[3].Hash {
			t.Errorf("a chain over entries without: %s", show(entries))
		}
		return nil
	})

	// The live tail has the same links.
	sub := s.Feed().Subscribe(log)
	defer sub.Close()
	must(t, s, &store.Change{Appends: []store.Append{{Log: log, Data: []byte("live"), Chained: true}}})
	live, err := sub.Next(ctx, 30)
	if err != nil || len(live) != 1 || live[0].Prev != before || live[0].Hash != chainHead(t, s, log) {
		t.Errorf("the feed gives %s, %v after %s", show(live), err, before)
	}

	// A trimmed log goes on from its head; a deleted one begins anew.
	if err := s.TrimLog(ctx, log, 31); err != nil {
		t.Fatal(err)
	}
	must(t, s, &store.Change{Appends: []store.Append{{Log: log, Data: []byte("after"), Chained: true}}})
	view(t, s, func(r store.Reader) error {
		rest, err := r.Log(log, 31, 0)
		if err != nil || len(rest) != 1 || rest[0].Prev != live[0].Hash {
			t.Errorf("after a trim: %s, %v", show(rest), err)
		}
		rest, err = r.Log(log, 0, 0)
		if !errors.Is(err, store.ErrTrimmed) || len(rest) != 1 || rest[0].Seq != 32 {
			t.Errorf("what is left after a trim comes with the error: %s, %v", show(rest), err)
		}
		return nil
	})
	if err := s.DeleteRange(ctx, log); err != nil {
		t.Fatal(err)
	}
	must(t, s, &store.Change{Appends: []store.Append{{Log: log, Data: []byte("new"), Chained: true}}})
	wantChain(t, s, log, 1)
	wantChain(t, s, other, 30)
}

// manyChain: 64 writers, changes of one and of several entries, one chain.
func manyChain(t *testing.T, s store.Store) {
	const writers, each = 64, 40
	log := store.K("t", "audit")
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := 0; n < each; {
				c := &store.Change{}
				c.Put(store.K("writer", w), nil)
				for i := 0; i <= (w+n)%3 && n < each; i++ {
					c.Chain(log, fmt.Appendf(nil, "%d/%d", w, n))
					n++
				}
				if _, err := s.Commit(context.Background(), c); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	wantChain(t, s, log, writers*each)
}

func chainHead(tb testing.TB, s store.Store, log store.Key) (h store.Hash) {
	tb.Helper()
	view(tb, s, func(r store.Reader) (err error) { h, err = r.ChainHead(log); return err })
	return h
}

// wantChain asserts that a log is one chain of n entries from its beginning to its head.
func wantChain(tb testing.TB, s store.Store, log store.Key, n int) {
	tb.Helper()
	view(tb, s, func(r store.Reader) error {
		entries, err := r.Log(log, 0, n+1)
		if err != nil {
			return err
		}
		c := store.Chain{Log: log}
		for _, e := range entries {
			if fault := c.Next(e); fault != nil {
				tb.Errorf("log %q: %v", log, fault)
			}
		}
		head, err := r.ChainHead(log)
		if c.Last() != uint64(n) || c.Begun() != 1 || c.Hash() != head {
			tb.Errorf("log %q is a chain of %d from %d that ends with %s, head %s", log, c.Last(), c.Begun(), c.Hash(), head)
		}
		return err
	})
}
