package storetest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// changes: order within one change, sizes, the context.
func changes(t *testing.T, e Engine) {
	s := e.fresh(t)
	ctx := context.Background()
	k := func(elems ...any) store.Key { return store.K("changes").With(elems...) }

	// Deletes before puts, the last put wins, all of one change share its version.
	put(t, s, k("a"), "old")
	r := must(t, s, &store.Change{
		Deletes: []store.Key{k("a"), k("b")},
		Puts: []store.Put{{Key: k("a"), Value: []byte("first")}, {Key: k("a"), Value: []byte("last")},
			{Key: k("c"), Value: []byte("c")}},
		Appends: []store.Append{{Log: k("log"), Data: []byte("1")}, {Log: k("other"), Data: []byte("1")},
			{Log: k("log"), Data: []byte("2")}},
	})
	want(t, s, k("a"), "last")
	want(t, s, k("b"), "")
	wantLog(t, s, k("log"), "1", "2")
	wantLog(t, s, k("other"), "1")
	if len(r.Seqs) != 3 || r.Seqs[0] != 1 || r.Seqs[1] != 1 || r.Seqs[2] != 2 {
		t.Errorf("sequence numbers %v, want [1 1 2]", r.Seqs)
	}
	view(t, s, func(rd store.Reader) error {
		for _, key := range []store.Key{k("a"), k("c")} {
			if it, err := rd.Get(key); err != nil || it.Version != r.Version {
				t.Errorf("version of %q = %d, %v; want the receipt's %d", key, it.Version, err, r.Version)
			}
		}
		return nil
	})

	big := strings.Repeat("x", store.MaxValue)
	longest := store.Key(k(strings.Repeat("k", store.MaxKey-len(k(""))))) // exactly MaxKey bytes
	many := func(n int) *store.Change {
		var c store.Change
		for i := range n {
			c.Put(k("many", i), []byte("v"))
		}
		return &c
	}
	whole := func(extra int) *store.Change { // MaxChange bytes and extra
		var c store.Change
		for i := range 4 {
			c.Put(k("whole", i), []byte(big))
		}
		c.Put(k("rest"), nil)
		c.Puts[4].Value = make([]byte, store.MaxChange-c.Size()+extra)
		return &c
	}
	for _, c := range []struct {
		name   string
		change *store.Change
		ok     bool
	}{
		{"largest value", &store.Change{Puts: []store.Put{{Key: k("v"), Value: []byte(big)}}}, true},
		{"value too large", &store.Change{Puts: []store.Put{{Key: k("v"), Value: []byte(big + "x")}}}, false},
		{"largest entry", &store.Change{Appends: []store.Append{{Log: k("v"), Data: []byte(big)}}}, true},
		{"entry too large", &store.Change{Appends: []store.Append{{Log: k("v"), Data: []byte(big + "x")}}}, false},
		{"longest key", &store.Change{Puts: []store.Put{{Key: longest, Value: []byte("v")}}}, true},
		{"key too long", &store.Change{Puts: []store.Put{{Key: longest + "x", Value: []byte("v")}}}, false},
		{"longest log key", &store.Change{Appends: []store.Append{{Log: longest, Data: []byte("v")}}}, true},
		{"log key too long", &store.Change{Appends: []store.Append{{Log: longest + "x"}}}, false},
		{"condition key too long", &store.Change{If: []store.Precondition{{Key: longest + "x"}}}, false},
		{"deleted key too long", &store.Change{Deletes: []store.Key{longest + "x"}}, false},
		{"largest change", whole(0), true},
		{"change too large", whole(1), false},
		{"most writes", many(store.MaxWrites), true},
		{"too many writes", many(store.MaxWrites + 1), false},
	} {
		mark := k("mark", c.name)
		if !c.ok { // what stands beside a refused part must not be there
			c.change.Puts = append([]store.Put{{Key: mark, Value: []byte("x")}}, c.change.Puts...)
		}
		_, err := s.Commit(ctx, c.change)
		switch {
		case c.ok && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case !c.ok && !errors.Is(err, store.ErrTooLarge):
			t.Errorf("%s: got %v, want ErrTooLarge", c.name, err)
		}
		want(t, s, mark, "")
	}
	want(t, s, longest, "v")
	want(t, s, k("v"), big)
	want(t, s, k("whole", 3), big)
	if keys, _ := scan(t, s, store.Range{Prefix: k("many")}); len(keys) != store.MaxWrites {
		t.Errorf("%d keys of the change with the most writes, want %d", len(keys), store.MaxWrites)
	}

	// A context that has ended before the change is accepted: nothing happens.
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err := s.Commit(gone, &store.Change{Puts: []store.Put{{Key: k("gone"), Value: []byte("x")}}})
	wantErr(t, "ended context", err, context.Canceled)
	want(t, s, k("gone"), "")
	wantErr(t, "view with an ended context", s.View(gone, func(store.Reader) error { return nil }), context.Canceled)
}
