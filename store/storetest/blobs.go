package storetest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

// blobs: by digest, each tenant its own.
func blobs(t *testing.T, e Engine) {
	s := e.fresh(t)
	ctx := context.Background()
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	random := func(n int) []byte {
		b := make([]byte, n)
		for i, r := 0, rand.NewChaCha8([32]byte{byte(n)}); i < n; i++ {
			b[i] = byte(r.Uint64())
		}
		return b
	}
	putBlob := func(tenant string, data []byte, at time.Time) store.Digest {
		t.Helper()
		d, err := s.PutBlob(ctx, tenant, data, at)
		if err != nil || d != store.DigestOf(data) {
			t.Fatalf("put blob of %d bytes: %q, %v", len(data), d, err)
		}
		return d
	}
	none := func(tenant string, d store.Digest) {
		t.Helper()
		data, err := s.Blob(ctx, tenant, d)
		if data != nil {
			t.Errorf("blob %s of %q: %d bytes, want none", d, tenant, len(data))
		}
		wantErr(t, "blob", err, store.ErrNotFound)
	}
	there := func(tenant string, d store.Digest, data []byte) {
		t.Helper()
		got, err := s.Blob(ctx, tenant, d)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("blob %s of %q: %d bytes, %v; want %d", d, tenant, len(got), err, len(data))
		}
	}

	for _, n := range []int{0, 1, 64 << 10, 512<<10 - 1, 512 << 10, 512<<10 + 1, 1<<20 + 77, store.MaxChange} {
		data := random(n)
		there("t", putBlob("t", data, noon), data)
		there("t", putBlob("t", data, noon), data)
		none("t\x00", store.DigestOf(data))
		none("", store.DigestOf(data))
	}
	_, err := s.PutBlob(ctx, "t", random(store.MaxChange+1), noon)
	wantErr(t, "blob too large", err, store.ErrTooLarge)
	for _, d := range []store.Digest{"", "sha256:", store.DigestOf([]byte("x")), "sha256:" + "zz", "md5:00"} {
		none("t", d)
	}
	if keys, _ := scan(t, s, store.Range{}); len(keys) != 0 {
		t.Errorf("blobs are visible as items %q", keys)
	}

	// A sweep takes the old and unused of one tenant; the caller's bytes are its own.
	a, b, c := random(600<<10), []byte("b"), []byte("c")
	putBlob("sweep", a, noon)
	putBlob("sweep", b, noon)
	putBlob("sweep", c, noon.Add(time.Hour))
	putBlob("sweep\x00", a, noon)
	got, err := s.Blob(ctx, "sweep", store.DigestOf(b))
	if err != nil {
		t.Fatal(err)
	}
	got[0] = 'X'
	there("sweep", store.DigestOf(b), b)
	sweep := func(before time.Time, used store.Digest) int {
		t.Helper()
		n, err := s.SweepBlobs(ctx, "sweep", before, func(d store.Digest) bool { return d == used })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := sweep(noon, ""); n != 0 {
		t.Errorf("swept %d blobs that were put at the bound", n)
	}
	if n := sweep(noon.Add(time.Minute), store.DigestOf(b)); n != 1 {
		t.Errorf("swept %d blobs, want 1", n)
	}
	none("sweep", store.DigestOf(a))
	there("sweep", store.DigestOf(b), b)
	there("sweep", store.DigestOf(c), c)
	there("sweep\x00", store.DigestOf(a), a)

	// Put again: the blob is younger than before, and never older.
	putBlob("sweep", b, noon.Add(2*time.Hour))
	putBlob("sweep", b, noon)
	if n := sweep(noon.Add(90*time.Minute), ""); n != 1 {
		t.Errorf("swept %d blobs, want only the one not put again", n)
	}
	there("sweep", store.DigestOf(b), b)

	// Put again while the sweep asks whether it is used: it stays.
	n, err := s.SweepBlobs(ctx, "sweep", noon.Add(3*time.Hour), func(d store.Digest) bool {
		putBlob("sweep", b, noon.Add(4*time.Hour))
		return false
	})
	if err != nil || n != 0 {
		t.Errorf("a sweep took %d blobs, %v, that were put meanwhile", n, err)
	}
	there("sweep", store.DigestOf(b), b)
	putBlob("sweep", a, noon) // once swept, it can come back
	there("sweep", store.DigestOf(a), a)
}
