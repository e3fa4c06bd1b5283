package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// ranges: order, borders, paging, children. The keys are chosen so that an engine that compares byte prefixes, joins
// elements or forgets NUL bytes mixes them up.
func ranges(t *testing.T, e Engine) {
	s := e.fresh(t)
	all := []store.Key{ // in key order
		store.K("a"),
		store.K("a", "\x00"),
		store.K("a", "b"),
		store.K("a", "b", "c"),
		store.K("a", "b", "c", "d"),
		store.K("a", "b", 7),
		store.K("a", "b\x00"),
		store.K("a", "b\x00", "deep"),
		store.K("a", "b\x00c"),
		store.K("a", "b\x01"),
		store.K("a", "bb"),
		store.K("a", "d", "only below"),
		store.K("a", "é"),
		store.K("a", "\xff"),
		store.K("a", "\xff\xff", "x"),
		store.K("a", 0),
		store.K("a", 0, "x"),
		store.K("a", 2),
		store.K("a", 255),
		store.K("a", 256),
		store.K("a", uint64(1)<<63),
		store.K("a\x00"),
		store.K("a\x00", "b"),
		store.K("a\x00b"),
		store.K("a\x01", "x"),
		store.K("a/b"),
		store.K("ab"),
	}
	if !slices.IsSorted(all) {
		t.Fatal("the table is not in order")
	}
	var c store.Change
	for i := range all { // written in another order than read, the last half a second time
		k := all[(i*7)%len(all)]
		c.Put(k, []byte("old "+k))
	}
	must(t, s, &c)
	c = store.Change{}
	for _, k := range all {
		c.Put(k, []byte(k))
	}
	c.Append(store.K("a"), []byte("an entry is not an item"))
	c.Append(store.K("a", "b"), []byte("an entry is not an item"))
	must(t, s, &c)

	prefixes := append([]store.Key{"", store.K("none"), store.K("a", "d"), store.K("a", "\xff\xff")}, all...)
	for _, p := range prefixes {
		for _, children := range []bool{false, true} {
			var below []store.Key
			pe, _ := p.Elems()
			for _, k := range all {
				ke, err := k.Elems()
				if err != nil {
					t.Fatal(err)
				}
				if len(ke) > len(pe) && slices.Equal(ke[:len(pe)], pe) && (!children || len(ke) == len(pe)+1) {
					below = append(below, k)
				}
			}
			for _, reverse := range []bool{false, true} {
				expect := slices.Clone(below)
				if reverse {
					slices.Reverse(expect)
				}
				rg := store.Range{Prefix: p, Children: children, Reverse: reverse}
				got, values := scan(t, s, rg)
				if !slices.Equal(got, expect) {
					t.Fatalf("%+v:\n got %q\nwant %q", rg, got, expect)
				}
				for i, v := range values {
					if v != string(got[i]) {
						t.Errorf("%+v: value %q at %q", rg, v, got[i])
					}
				}
				// Pages of every size join to the same list.
				for size := 1; size <= 3; size++ {
					var joined []store.Key
					page := rg
					page.Limit = size
					for {
						keys, _ := scan(t, s, page)
						if len(keys) > size {
							t.Fatalf("%+v: %d items", page, len(keys))
						}
						joined = append(joined, keys...)
						if len(keys) < size {
							break
						}
						page.After = keys[size-1]
					}
					if !slices.Equal(joined, expect) {
						t.Fatalf("pages of %+v:\n got %q\nwant %q", page, joined, expect)
					}
				}
			}
		}
	}

	// A cursor may name a place where nothing is any more; one outside the range is a mistake that is told.
	keys, _ := scan(t, s, store.Range{Prefix: store.K("a"), After: store.K("a", 3), Limit: 1})
	if len(keys) != 1 || keys[0] != store.K("a", 255) {
		t.Errorf("after an absent key: %q", keys)
	}
	keys, _ = scan(t, s, store.Range{Prefix: store.K("a"), After: store.K("a", 3), Limit: 1, Reverse: true})
	if len(keys) != 1 || keys[0] != store.K("a", 2) {
		t.Errorf("before an absent key: %q", keys)
	}
	for _, after := range []store.Key{store.K("a"), store.K("a\x00"), store.K("b", "x"), store.K("a").End()} {
		err := s.View(context.Background(), func(r store.Reader) error {
			return r.Scan(store.Range{Prefix: store.K("a"), After: after}, func(it store.Item) bool { return true })
		})
		if err == nil {
			t.Errorf("after %q, outside of the range: no error", after)
		}
	}

	// fn ends the scan; the context too.
	n := 0
	view(t, s, func(r store.Reader) error {
		return r.Scan(store.Range{Prefix: store.K("a")}, func(store.Item) bool { n++; return n < 3 })
	})
	if n != 3 {
		t.Errorf("fn was called %d times after it had ended the scan at 3", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err := s.View(ctx, func(r store.Reader) error {
		return r.Scan(store.Range{Prefix: store.K("a")}, func(store.Item) bool { cancel(); return true })
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("scan after its context has ended: %v", err)
	}

	// Children of many: the contents of a child are skipped, whatever their number.
	c = store.Change{}
	for i := range 30 {
		for j := range 50 {
			c.Put(store.K("runs", fmt.Sprintf("%02d", i), j), []byte("call"))
		}
		c.Put(store.K("runs", fmt.Sprintf("%02d", i)), []byte("run"))
	}
	must(t, s, &c)
	for _, reverse := range []bool{false, true} {
		keys, values := scan(t, s, store.Range{Prefix: store.K("runs"), Children: true, Reverse: reverse})
		if len(keys) != 30 || slices.Contains(values, "call") {
			t.Errorf("children (reverse %v): %d, want 30 runs and no call", reverse, len(keys))
		}
	}
}
