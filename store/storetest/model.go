package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// model: seeded random operations on the candidate and on memstore; every answer must agree.
func model(t *testing.T, e Engine) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			script := make([]byte, 3000)
			for i := range script {
				script[i] = byte(r.Uint32())
			}
			play(t, e.fresh(t), script)
		})
	}
}

// Fuzz plays what the fuzzer writes.
func Fuzz(f *testing.F, e Engine) {
	f.Add([]byte{})
	f.Add([]byte("put, append, scan, and sweep"))
	f.Add(bytes.Repeat([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 20))
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 2000 {
			script = script[:2000]
		}
		play(t, e.fresh(t), script)
	})
}

// player reads decisions from a script; an exhausted one decides 0.
type player struct {
	script []byte
	got    store.Store
	want   *memstore.Store
	// versions by their order: two stores need not count alike, but must rise alike.
	versions map[uint64]uint64
}

func (p *player) pick(n int) int {
	if len(p.script) == 0 {
		return 0
	}
	b := p.script[0]
	p.script = p.script[1:]
	return int(b) % n
}

// elements that sit at each other's borders.
var elements = []any{"a", "a\x00", "a\x00b", "b", "", "\xff", 0, 1, 256}

func (p *player) key() store.Key {
	k := store.K()
	for range p.pick(4) {
		k = k.With(elements[p.pick(len(elements))])
	}
	return k
}

func play(t *testing.T, s store.Store, script []byte) {
	p := &player{script: script, got: s, want: memstore.New(), versions: map[uint64]uint64{0: 0}}
	defer p.want.Close()
	ctx := context.Background()
	for step := 0; len(p.script) > 0; step++ {
		var g, w any
		switch p.pick(8) {
		case 0, 1, 2, 3:
			g, w = p.commit(ctx, step)
		case 4:
			k := p.key()
			if p.pick(4) == 0 {
				g, w = p.got.DeleteRange(ctx, k), p.want.DeleteRange(ctx, k)
			}
		case 5:
			g, w = p.blob(ctx)
		default:
			g, w = p.read()
		}
		if gs, ws := fmt.Sprint(g), fmt.Sprint(w); gs != ws {
			t.Fatalf("step %d:\n got %s\nwant %s", step, gs, ws)
		}
	}
	g, w := p.dump(p.got, true), p.dump(p.want, false)
	if g != w {
		t.Fatalf("at the end:\n got %s\nwant %s", g, w)
	}
}

// commit makes the same change on both; conditions are mostly right, each in its store's own versions.
func (p *player) commit(ctx context.Context, step int) (any, any) {
	var g, w store.Change
	for range p.pick(3) {
		k := p.key()
		var gv, wv uint64
		switch p.pick(4) {
		case 0: // absent
		case 1:
			gv, wv = 1<<40, 1<<40
		default:
			gv, wv = version(p.got, k), version(p.want, k)
		}
		g.Require(k, gv)
		w.Require(k, wv)
	}
	for range p.pick(4) {
		k, v := p.key(), fmt.Appendf(nil, "v%d", step)
		g.Put(k, v)
		w.Put(k, v)
	}
	for range p.pick(3) {
		k := p.key()
		g.Delete(k)
		w.Delete(k)
	}
	for range p.pick(4) {
		a := store.Append{Log: p.key(), Data: fmt.Appendf(nil, "e%d", step), Chained: p.pick(2) == 0}
		g.Appends = append(g.Appends, a)
		w.Appends = append(w.Appends, a)
	}
	gr, gerr := p.got.Commit(ctx, &g)
	wr, werr := p.want.Commit(ctx, &w)
	if gerr == nil && gr.Version != 0 {
		p.versions[gr.Version] = wr.Version
		gr.Version = wr.Version
	}
	return fmt.Sprint(gr, kind(gerr)), fmt.Sprint(wr, kind(werr))
}

func (p *player) read() (any, any) {
	k := p.key()
	rg := store.Range{Prefix: k, Reverse: p.pick(2) == 0, Children: p.pick(2) == 0, Limit: p.pick(5)}
	if p.pick(2) == 0 {
		rg.After = k.With(elements[p.pick(len(elements))])
	}
	after, limit := uint64(p.pick(4)), p.pick(4)
	read := func(s store.Store, translate bool) string {
		var b bytes.Buffer
		err := s.View(context.Background(), func(r store.Reader) error {
			it, err := r.Get(k)
			fmt.Fprintf(&b, "get %q %q %d %v\n", k, it.Value, p.version(it.Version, translate), kind(err))
			err = r.Scan(rg, func(it store.Item) bool {
				fmt.Fprintf(&b, "%q=%q@%d\n", it.Key, it.Value, p.version(it.Version, translate))
				return true
			})
			fmt.Fprintln(&b, kind(err))
			entries, err := r.Log(k, after, limit)
			head, herr := r.LogHead(k)
			hash, cerr := r.ChainHead(k)
			fmt.Fprintln(&b, show(entries), kind(err), head, kind(herr), hash, kind(cerr))
			return nil
		})
		return b.String() + fmt.Sprint(kind(err))
	}
	return read(p.got, true), read(p.want, false)
}

func (p *player) blob(ctx context.Context) (any, any) {
	tenant := []string{"a", "a\x00", ""}[p.pick(3)]
	data := bytes.Repeat([]byte{byte(p.pick(5))}, p.pick(4)*300_000)
	at := time.Unix(int64(p.pick(10)), 0)
	keep := store.DigestOf(bytes.Repeat([]byte{byte(p.pick(5))}, 300_000))
	op := p.pick(3)
	do := func(s store.Store) string {
		switch op {
		case 0:
			d, err := s.PutBlob(ctx, tenant, data, at)
			return fmt.Sprint(d, kind(err))
		case 1:
			n, err := s.SweepBlobs(ctx, tenant, at, func(d store.Digest) bool { return d == keep })
			return fmt.Sprint(n, kind(err))
		}
		got, err := s.Blob(ctx, tenant, store.DigestOf(data))
		return fmt.Sprint(store.DigestOf(got), kind(err))
	}
	return do(p.got), do(p.want)
}

// dump is everything, in order.
func (p *player) dump(s store.Store, translate bool) string {
	var b bytes.Buffer
	err := s.View(context.Background(), func(r store.Reader) error {
		return r.Scan(store.Range{}, func(it store.Item) bool {
			fmt.Fprintf(&b, "%q=%q@%d\n", it.Key, it.Value, p.version(it.Version, translate))
			return true
		})
	})
	return b.String() + fmt.Sprint(err)
}

func (p *player) version(v uint64, translate bool) uint64 {
	if !translate {
		return v
	}
	w, ok := p.versions[v]
	if !ok {
		return ^uint64(0) // a version that no receipt has named
	}
	return w
}

func version(s store.Store, k store.Key) (v uint64) {
	_ = s.View(context.Background(), func(r store.Reader) error {
		it, err := r.Get(k)
		v = it.Version
		return err
	})
	return v
}

// kind reduces an error to the sentinel that callers test for.
func kind(err error) error {
	for _, k := range []error{store.ErrNotFound, store.ErrConflict, store.ErrTooLarge, store.ErrClosed, store.ErrCorrupt} {
		if errors.Is(err, k) {
			return k
		}
	}
	if err != nil {
		return errors.New("another error")
	}
	return nil
}
