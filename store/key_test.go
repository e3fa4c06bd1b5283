package store_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// Neighbours that joined strings or raw byte prefixes would mix up, in key order.
var neighbours = []store.Key{
	store.K(),
	store.K(""),
	store.K("", ""),
	store.K("\x00"),
	store.K("\x00\xff"),
	store.K("\x01"),
	store.K("a"),
	store.K("a", ""),
	store.K("a", "b"),
	store.K("a", 0),
	store.K("a", uint64(1)<<40, "x"),
	store.K("a\x00"),
	store.K("a\x00", "b"),
	store.K("a\x00\x00"),
	store.K("a\x00\x01"),
	store.K("a\x00\xff"),
	store.K("a/b"),
	store.K("ab"),
	store.K("\xff"),
	store.K("\xff\xff"),
	store.K(0),
	store.K(0, "a"),
	store.K(255),
	store.K(256),
	store.K(^uint64(0)),
	store.K(^uint64(0), ^uint64(0)),
}

// below reports whether k lies strictly below prefix, by their elements.
func below(t *testing.T, k, prefix store.Key) bool {
	t.Helper()
	ke, err := k.Elems()
	if err != nil {
		t.Fatalf("%q: %v", k, err)
	}
	pe, err := prefix.Elems()
	if err != nil {
		t.Fatalf("%q: %v", prefix, err)
	}
	return len(ke) > len(pe) && slices.Equal(ke[:len(pe)], pe)
}

func TestKeyOrder(t *testing.T) {
	t.Parallel()
	for i := 1; i < len(neighbours); i++ {
		if neighbours[i-1] >= neighbours[i] {
			t.Errorf("%q does not sort before %q", neighbours[i-1], neighbours[i])
		}
	}
}

func TestInvariant10_KeyEndHoldsTheSubtreeAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, p := range neighbours {
		for _, k := range neighbours {
			in := k >= p && k < p.End()
			if want := k == p || below(t, k, p); in != want {
				t.Errorf("%q in [%q, End) = %v, want %v", k, p, in, want)
			}
		}
	}
	a, b := store.K("a"), store.K("a\x00b")
	if !strings.HasPrefix(string(b), string(a)) {
		t.Fatal("the test has lost its point: the raw prefix of a no longer matches b")
	}
	if b < a.End() {
		t.Error("tenant a\\x00b lies within tenant a")
	}
}

func TestKeyChild(t *testing.T) {
	t.Parallel()
	for _, p := range neighbours {
		for _, k := range neighbours {
			want := store.Key("")
			if below(t, k, p) {
				ke, _ := k.Elems()
				pe, _ := p.Elems()
				want = p.With(ke[len(pe)])
			}
			if got := k.Child(p); got != want {
				t.Errorf("%q.Child(%q) = %q, want %q", k, p, got, want)
			}
		}
	}
}

func TestKeyLastAndMalformed(t *testing.T) {
	t.Parallel()
	for k, want := range map[store.Key]string{
		store.K("a", "b\x00c"): "b\x00c", store.K("a"): "a", store.K(): "", store.K("a", 1): "", "\x02no end": "",
	} {
		if got := k.Last(); got != want {
			t.Errorf("%q.Last() = %q, want %q", k, got, want)
		}
	}
	for _, k := range []store.Key{"\x02", "\x02a", "\x02a\x00\xff", "\x15", "\x15\x00\x00", "\x00", "x", store.K("a").End()} {
		if e, err := k.Elems(); err == nil {
			t.Errorf("%q decodes to %v", k, e)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add("a", uint64(1), "b", "\x02a\x00")
	f.Add("a\x00", uint64(0), "", "\x15")
	f.Add("\x00\xff", ^uint64(0), "\xff", "\x02\x00\xff\x00")
	f.Fuzz(func(t *testing.T, a string, n uint64, b, raw string) {
		k := store.K(a, n).With(b)
		e, err := k.Elems()
		if err != nil || !slices.Equal(e, []any{a, n, b}) {
			t.Fatalf("%q decodes to %v, %v", k, e, err)
		}
		other := store.K(b, n, a)
		if (a < b) != (k < other) && a != b {
			t.Errorf("%q and %q do not compare as %q and %q", k, other, a, b)
		}
		if k.Child(store.K(a)) != store.K(a, n) || k.Last() != b {
			t.Errorf("child %q, last %q", k.Child(store.K(a)), k.Last())
		}
		// What decodes at all has one encoding.
		if e, err := store.Key(raw).Elems(); err == nil && store.K(e...) != store.Key(raw) {
			t.Errorf("%q decodes, but encodes to %q", raw, store.K(e...))
		}
	})
}

func TestDigest(t *testing.T) {
	t.Parallel()
	d := store.DigestOf([]byte("abc")) // FIPS 180-2, B.1
	if d != "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" || !d.Valid() {
		t.Errorf("digest of abc: %s, valid %v", d, d.Valid())
	}
	for _, bad := range []store.Digest{"", "sha256:", d[1:], d + "0", d[:70], store.Digest(strings.ToUpper(string(d))),
		"sha512:" + d[7:], "sha256:" + store.Digest(strings.Repeat("x", 64)), "sha256:BA" + d[9:]} {
		if bad.Valid() {
			t.Errorf("%q is valid", bad)
		}
	}
}

func TestRangeBounds(t *testing.T) {
	t.Parallel()
	p := store.K("t")
	for _, c := range []struct {
		after   store.Key
		reverse bool
		in, out []store.Key
	}{
		{"", false, []store.Key{store.K("t", ""), store.K("t", 1, 2)}, []store.Key{p, store.K("t\x00"), store.K("u")}},
		{store.K("t", "b"), false, []store.Key{store.K("t", "b", "x"), store.K("t", "b\x00"), store.K("t", 0)},
			[]store.Key{store.K("t", "b"), store.K("t", "a"), store.K("t\x00")}},
		{store.K("t", "b"), true, []store.Key{store.K("t", "a"), store.K("t", "a", "x")},
			[]store.Key{store.K("t", "b"), store.K("t", "b", "x"), p}},
	} {
		lo, hi, err := store.Range{Prefix: p, After: c.after, Reverse: c.reverse}.Bounds()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range c.in {
			if k < lo || k >= hi {
				t.Errorf("after %q reverse %v: %q is outside", c.after, c.reverse, k)
			}
		}
		for _, k := range c.out {
			if k >= lo && k < hi {
				t.Errorf("after %q reverse %v: %q is inside", c.after, c.reverse, k)
			}
		}
	}
}
