// Package storetest is the conformance suite of store.Store. An engine joins with one call of Run and one of Fuzz; what it
// can do beyond memory it declares in Engine, so that the suite never asks for a name.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

// Engine is the candidate.
type Engine struct {
	// Open opens the store that lives in dir, an empty directory at first. The suite closes it.
	Open func(tb testing.TB, dir string) store.Store
	// Durable says that a store opened again in the same directory shows everything that was acknowledged.
	Durable bool
}

// Run runs the whole suite.
func Run(t *testing.T, e Engine) {
	for _, part := range []struct {
		name string
		run  func(*testing.T, Engine)
	}{
		{"Items", items},
		{"Changes", changes},
		{"Ranges", ranges},
		{"Logs", logs},
		{"Chains", chains},
		{"Views", views},
		{"Blobs", blobs},
		{"Retention", retention},
		{"Trim", trim},
		{"Feed", feed},
		{"Concurrency", concurrency},
		{"Model", model},
		{"Closed", closed},
		{"Reopen", reopen},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t, e)
		})
	}
}

// fresh opens an empty store and closes it with the test.
func (e Engine) fresh(tb testing.TB) store.Store {
	tb.Helper()
	s := e.Open(tb, tb.TempDir())
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return s
}

// must commits a change that has to succeed.
func must(tb testing.TB, s store.Store, c *store.Change) store.Receipt {
	tb.Helper()
	r, err := s.Commit(context.Background(), c)
	if err != nil {
		tb.Fatalf("commit: %v", err)
	}
	return r
}

// put commits one item and returns its version.
func put(tb testing.TB, s store.Store, k store.Key, value string) uint64 {
	tb.Helper()
	return must(tb, s, &store.Change{Puts: []store.Put{{Key: k, Value: []byte(value)}}}).Version
}

// view runs fn, which must return nil.
func view(tb testing.TB, s store.Store, fn func(store.Reader) error) {
	tb.Helper()
	if err := s.View(context.Background(), fn); err != nil {
		tb.Fatalf("view: %v", err)
	}
}

// want asserts the value at k; "" stands for none.
func want(tb testing.TB, s store.Store, k store.Key, value string) {
	tb.Helper()
	view(tb, s, func(r store.Reader) error {
		it, err := r.Get(k)
		switch {
		case value == "" && !errors.Is(err, store.ErrNotFound):
			tb.Errorf("get %q = %q, %v; want ErrNotFound", k, it.Value, err)
		case value != "" && err != nil:
			tb.Errorf("get %q: %v", k, err)
		case value != "" && (string(it.Value) != value || it.Key != k):
			tb.Errorf("get %q = %q at %q, want %q", k, it.Value, it.Key, value)
		}
		return nil
	})
}

// wantErr asserts an error by errors.Is.
func wantErr(tb testing.TB, what string, got, target error) {
	tb.Helper()
	if !errors.Is(got, target) {
		tb.Errorf("%s: got error %v, want %v", what, got, target)
	}
}

// scan returns the keys and values that a range visits.
func scan(tb testing.TB, s store.Store, rg store.Range) (keys []store.Key, values []string) {
	tb.Helper()
	view(tb, s, func(r store.Reader) error {
		return r.Scan(rg, func(it store.Item) bool {
			keys, values = append(keys, it.Key), append(values, string(it.Value))
			return true
		})
	})
	return keys, values
}

// wantLog asserts the whole contents of a log, its numbers and its head.
func wantLog(tb testing.TB, s store.Store, log store.Key, data ...string) {
	tb.Helper()
	view(tb, s, func(r store.Reader) error {
		head, err := r.LogHead(log)
		if err != nil || head != uint64(len(data)) {
			tb.Errorf("head of %q = %d, %v; want %d", log, head, err, len(data))
		}
		entries, err := r.Log(log, 0, len(data)+1)
		if err != nil {
			return err
		}
		wantEntries(tb, entries, 1, data...)
		return nil
	})
}

func wantEntries(tb testing.TB, got []store.Entry, first uint64, data ...string) {
	tb.Helper()
	if len(got) != len(data) {
		tb.Fatalf("got %d entries %s, want %d", len(got), show(got), len(data))
	}
	for i, e := range got {
		if e.Seq != first+uint64(i) || string(e.Data) != data[i] {
			tb.Errorf("entry %d = %d %q, want %d %q", i, e.Seq, e.Data, first+uint64(i), data[i])
		}
	}
}

func show(entries []store.Entry) string {
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "[%d %.20q", e.Seq, e.Data)
		if !e.Hash.IsZero() {
			fmt.Fprintf(&b, " %x after %x", e.Hash[:4], e.Prev[:4])
		}
		b.WriteByte(']')
	}
	return b.String()
}

// within returns a context that ends a test which would hang.
func within(tb testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	tb.Cleanup(cancel)
	return ctx
}
