package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

// views: what a View sees is what was there when it began, and it can be read from several goroutines.
func views(t *testing.T, e Engine) {
	s := e.fresh(t)
	k, log := store.K("views", "k"), store.K("views", "log")
	v1 := must(t, s, &store.Change{Puts: []store.Put{{Key: k, Value: []byte("1")}},
		Appends: []store.Append{{Log: log, Data: []byte("1")}}}).Version

	view(t, s, func(old store.Reader) error {
		// Commits, and newer views, do not wait for this one.
		must(t, s, &store.Change{
			Puts:    []store.Put{{Key: k, Value: []byte("2")}, {Key: store.K("views", "new"), Value: []byte("x")}},
			Appends: []store.Append{{Log: log, Data: []byte("2")}},
		})
		want(t, s, k, "2")
		wantLog(t, s, log, "1", "2")
		must(t, s, &store.Change{Deletes: []store.Key{k}})
		want(t, s, k, "")
		if err := s.DeleteRange(within(t, time.Minute), store.K("views")); err != nil {
			t.Errorf("delete range: %v", err)
		}
		wantLog(t, s, log)

		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					if it, err := old.Get(k); err != nil || string(it.Value) != "1" || it.Version != v1 {
						t.Errorf("the old view's item = %q at %d, %v", it.Value, it.Version, err)
					}
					if _, err := old.Get(store.K("views", "new")); !errors.Is(err, store.ErrNotFound) {
						t.Errorf("the old view sees a later item: %v", err)
					}
					n := 0
					if err := old.Scan(store.Range{Prefix: store.K("views")}, func(store.Item) bool { n++; return true }); err != nil ||
						n != 1 {
						t.Errorf("the old view has %d items, %v; want 1", n, err)
					}
					entries, err := old.Log(log, 0, 0)
					if err != nil || len(entries) != 1 {
						t.Errorf("the old view's log has %d entries, %v; want 1", len(entries), err)
					}
					if head, err := old.LogHead(log); err != nil || head != 1 {
						t.Errorf("the old view's head = %d, %v; want 1", head, err)
					}
				}
			})
		}
		wg.Wait()
		return nil
	})

	boom := errors.New("boom")
	if err := s.View(within(t, time.Minute), func(store.Reader) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("view returned %v, want fn's error", err)
	}
}
