package storetest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// items: one key, its value, its version, and the conditions on it.
func items(t *testing.T, e Engine) {
	s := e.fresh(t)
	ctx := context.Background()
	a, b := store.K("items", "a"), store.K("items", "b")

	want(t, s, a, "")
	v1 := put(t, s, a, "one")
	v2 := put(t, s, b, "two")
	want(t, s, a, "one")
	if v1 == 0 || v2 <= v1 {
		t.Errorf("versions %d, %d: want them to rise from above 0", v1, v2)
	}
	view(t, s, func(r store.Reader) error {
		if it, err := r.Get(a); err != nil || it.Version != v1 {
			t.Errorf("version of a = %d, %v; want %d, untouched by the change to b", it.Version, err, v1)
		}
		return nil
	})

	for _, c := range []struct {
		name    string
		key     store.Key
		version uint64
		ok      bool
	}{
		{"right version", a, v1, true},
		{"wrong version", a, v1 + 1, false},
		{"another item's version", a, v2, false},
		{"absent, but it is there", a, 0, false},
		{"absent, and so it is", store.K("items", "none"), 0, true},
		{"a version, but it is absent", store.K("items", "none"), v1, false},
	} {
		for _, write := range []bool{false, true} {
			var ch store.Change
			ch.Require(c.key, c.version)
			mark := store.K("items", "mark", c.name)
			if write {
				ch.Put(mark, []byte("x"))
				ch.Append(mark, []byte("x"))
			}
			r, err := s.Commit(ctx, &ch)
			switch {
			case c.ok && err != nil:
				t.Errorf("%s: %v", c.name, err)
			case !c.ok && !errors.Is(err, store.ErrConflict):
				t.Errorf("%s: got %v, want ErrConflict", c.name, err)
			case !write && (r.Version != 0 || r.Seqs != nil):
				t.Errorf("%s: a change that only checks got receipt %v", c.name, r)
			}
			if write && c.ok {
				want(t, s, mark, "x")
				wantLog(t, s, mark, "x")
			} else if write {
				want(t, s, mark, "")
				wantLog(t, s, mark)
			}
		}
	}

	// One condition of several fails: nothing of the change is there.
	var ch store.Change
	ch.Require(a, v1)
	ch.Require(b, v1)
	ch.Put(a, []byte("three"))
	_, err := s.Commit(ctx, &ch)
	wantErr(t, "second condition", err, store.ErrConflict)
	want(t, s, a, "one")

	// Empty and binary values are values, and a deleted key is absent with version 0.
	put(t, s, a, "")
	view(t, s, func(r store.Reader) error {
		it, err := r.Get(a)
		if err != nil || len(it.Value) != 0 {
			t.Errorf("empty value = %q, %v", it.Value, err)
		}
		return nil
	})
	put(t, s, a, "\x00\xff\x00")
	want(t, s, a, "\x00\xff\x00")
	must(t, s, &store.Change{Deletes: []store.Key{a, store.K("items", "never")}})
	want(t, s, a, "")
	must(t, s, &store.Change{If: []store.Precondition{{Key: a}}, Puts: []store.Put{{Key: a, Value: []byte("again")}}})
	want(t, s, a, "again")

	// The caller owns what it was given.
	view(t, s, func(r store.Reader) error {
		it, err := r.Get(a)
		copy(it.Value, bytes.Repeat([]byte("X"), len(it.Value)))
		return err
	})
	want(t, s, a, "again")
}
