package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

// closed: every method of a closed store says so, and nothing hangs.
func closed(t *testing.T, e Engine) {
	s := e.fresh(t)
	ctx := within(t, time.Minute)
	put(t, s, store.K("k"), "v")
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	_, commit := s.Commit(ctx, &store.Change{Puts: []store.Put{{Key: store.K("k")}}})
	_, empty := s.Commit(ctx, &store.Change{})
	_, putBlob := s.PutBlob(ctx, "t", []byte("x"), time.Unix(0, 0))
	_, blob := s.Blob(ctx, "t", store.DigestOf([]byte("x")))
	_, sweep := s.SweepBlobs(ctx, "t", time.Unix(0, 0), func(store.Digest) bool { return false })
	sub := s.Feed().Subscribe(store.K("l"))
	defer sub.Close()
	_, next := sub.Next(ctx, 0)
	for name, err := range map[string]error{
		"commit": commit, "empty commit": empty, "put blob": putBlob, "blob": blob, "sweep": sweep, "next": next,
		"view":         s.View(ctx, func(store.Reader) error { return nil }),
		"delete range": s.DeleteRange(ctx, store.K("k")),
	} {
		wantErr(t, name, err, store.ErrClosed)
	}
}

// reopen: an engine that keeps a directory shows there what it had acknowledged, and goes on counting.
func reopen(t *testing.T, e Engine) {
	if !e.Durable {
		t.Skip("this engine forgets at Close, and says so")
	}
	dir := t.TempDir()
	ctx := context.Background()
	var last uint64
	var data []string
	for round := range 4 {
		s := e.Open(t, dir)
		for i := range round {
			want(t, s, store.K("round", i), fmt.Sprint(i))
		}
		wantLog(t, s, store.K("log"), data...)
		if _, err := s.PutBlob(ctx, "t", []byte("blob"), time.Unix(int64(round), 0)); err != nil {
			t.Fatal(err)
		}
		r := must(t, s, &store.Change{
			Puts:    []store.Put{{Key: store.K("round", round), Value: []byte(fmt.Sprint(round))}},
			Deletes: []store.Key{store.K("index", round)},
			Appends: []store.Append{
				{Log: store.K("log"), Data: []byte(fmt.Sprint(round))},
				{Log: store.K("chained"), Data: []byte(fmt.Sprint(round)), Chained: true},
			},
		})
		data = append(data, fmt.Sprint(round))
		wantChain(t, s, store.K("chained"), round+1)
		if r.Version <= last || r.Seqs[0] != uint64(round)+1 {
			t.Errorf("round %d: receipt %v after version %d", round, r, last)
		}
		last = r.Version
		if b, err := s.Blob(ctx, "t", store.DigestOf([]byte("blob"))); err != nil || string(b) != "blob" {
			t.Errorf("round %d: blob %q, %v", round, b, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
