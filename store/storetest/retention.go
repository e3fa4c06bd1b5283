package storetest

import (
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

// retention: a range goes as a whole, its neighbours stay.
func retention(t *testing.T, e Engine) {
	s := e.fresh(t)
	ctx := within(t, time.Minute)
	runs := []store.Key{
		store.K("t", "run", "a"), store.K("t", "run", "a\x00"), store.K("t", "run", "a\x00b"), store.K("t", "run", "aa"),
		store.K("t", "run"), store.K("t"), store.K("t\x00", "run", "a"),
	}
	fill := func() {
		for _, k := range runs {
			c := &store.Change{}
			c.Put(k, []byte("head"))
			c.Put(k.With("call", 1), []byte("call"))
			c.Append(k, []byte("1"))
			c.Append(k.With("events"), []byte("1"))
			c.Append(k.With("events"), []byte("2"))
			must(t, s, c)
		}
	}
	fill()
	if _, err := s.PutBlob(ctx, "t", []byte("kept"), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	del := func(k store.Key) {
		t.Helper()
		for range 2 { // it is idempotent
			if err := s.DeleteRange(ctx, k); err != nil {
				t.Fatalf("delete range: %v", err)
			}
		}
	}
	gone := func(k store.Key) {
		t.Helper()
		want(t, s, k, "")
		want(t, s, k.With("call", 1), "")
		wantLog(t, s, k)
		wantLog(t, s, k.With("events"))
		if keys, _ := scan(t, s, store.Range{Prefix: k}); len(keys) != 0 {
			t.Errorf("left below %q: %q", k, keys)
		}
	}
	del(runs[0])
	gone(runs[0])
	for _, k := range runs[1:] {
		want(t, s, k, "head")
		want(t, s, k.With("call", 1), "call")
		wantLog(t, s, k, "1")
		wantLog(t, s, k.With("events"), "1", "2")
	}

	// A log that was deleted begins again, though its head had been in use a moment ago.
	must(t, s, &store.Change{Appends: []store.Append{{Log: runs[0].With("events"), Data: []byte("new")}}})
	wantLog(t, s, runs[0].With("events"), "new")

	// More than one batch.
	for i := range 3 {
		c := &store.Change{}
		for j := range 2500 {
			c.Put(runs[0].With("bulk", i, j), []byte("x"))
			c.Append(runs[0].With("bulk"), []byte("x"))
		}
		must(t, s, c)
	}
	del(runs[0])
	gone(runs[0])
	wantLog(t, s, runs[0].With("bulk"))
	want(t, s, runs[1], "head")

	fill()
	del(store.K("t"))
	for _, k := range runs[:6] {
		gone(k)
	}
	want(t, s, runs[6], "head")
	wantLog(t, s, runs[6].With("events"), "1", "2", "1", "2")
	if data, err := s.Blob(ctx, "t", store.DigestOf([]byte("kept"))); err != nil || string(data) != "kept" {
		t.Errorf("a range deletion took the tenant's blob: %q, %v", data, err)
	}
	del(store.K())
	gone(runs[6])
}
