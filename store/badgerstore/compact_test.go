package badgerstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// Badger has brought deleted keys back in several releases (its issues 2143 and 2286). A used token is a value and must stay
// used; index keys and ranges are deleted, and this pins that the version we build on keeps them so. A thousand tokens
// go through flushes, compactions, collection and reopening.
func TestInvariant9_UsedStaysUsedThroughCompaction(t *testing.T) {
	t.Parallel()
	const rounds, each = 20, 50
	dir := t.TempDir()
	ctx := context.Background()
	opts := badgerstore.Options{}.WithMemTable(1 << 20)
	token := func(i int) store.Key { return store.K("token", i) }
	index := func(i int) store.Key { return store.K("pending", i) }
	gone := func(i int) store.Key { return store.K("gone", i) }
	commit := func(s *badgerstore.Store, c *store.Change) {
		t.Helper()
		if _, err := s.Commit(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	for round := range rounds {
		s := open(t, dir, opts)
		for i := round * each; i < (round+1)*each; i++ {
			c := put(token(i), "issued")
			c.Put(index(i), nil)
			c.Put(gone(i).With("x"), make([]byte, 100))
			c.Append(gone(i), []byte("e"))
			commit(s, c)
		}
		bulk(t, s, round) // the keys go down the tree before they are deleted
		for i := round * each; i < (round+1)*each; i++ {
			c := put(token(i), "used")
			c.Delete(index(i))
			commit(s, c)
			if err := s.DeleteRange(ctx, gone(i)); err != nil {
				t.Fatal(err)
			}
		}
		bulk(t, s, round)
		if round%2 == 0 {
			if err := s.Badger().Flatten(2); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Badger().RunValueLogGC(0.1); err != nil && !errors.Is(err, badger.ErrNoRewrite) {
			t.Fatal(err)
		}
		if round%3 == 2 {
			usedAndGone(t, s, (round+1)*each)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir, opts)
	defer s.Close()
	usedAndGone(t, s, rounds*each)
	if levels := s.Badger().Levels(); levels[0].NumTables == 0 && levels[len(levels)-1].NumTables == 0 {
		t.Error("nothing was ever flushed: the test has lost its point")
	}
}

// bulk overwrites about two memtables.
func bulk(t *testing.T, s *badgerstore.Store, round int) {
	t.Helper()
	for i := range 50 {
		c := &store.Change{}
		for j := range 40 {
			c.Put(store.K("bulk", j), []byte(fmt.Sprintf("%d %d %01000d", round, i, j)))
		}
		if _, err := s.Commit(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}
}

func usedAndGone(t *testing.T, s store.Store, n int) {
	t.Helper()
	err := s.View(context.Background(), func(r store.Reader) error {
		for i := range n {
			it, err := r.Get(store.K("token", i))
			if err != nil || string(it.Value) != "used" {
				t.Errorf("token %d is %q, %v", i, it.Value, err)
			}
			if _, err := r.Get(store.K("pending", i)); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("index key %d came back: %v", i, err)
			}
			if head, err := r.LogHead(store.K("gone", i)); head != 0 || err != nil {
				t.Errorf("log %d came back with head %d, %v", i, head, err)
			}
		}
		for _, prefix := range []store.Key{store.K("pending"), store.K("gone")} {
			err := r.Scan(store.Range{Prefix: prefix}, func(it store.Item) bool {
				t.Errorf("%q came back", it.Key)
				return true
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
