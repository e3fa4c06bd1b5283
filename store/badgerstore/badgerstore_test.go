package badgerstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"go.uber.org/goleak"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
	"github.com/pawlhost/pawl/store/storetest"
)

func TestMain(m *testing.M) {
	if child := os.Getenv("PAWL_STORE_CHILD"); child != "" {
		children[child](os.Getenv("PAWL_STORE_DIR")) // a process of its own, for the tests that kill or trace one
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var engine = storetest.Engine{
	Durable: true,
	Open: func(tb testing.TB, dir string) store.Store {
		tb.Helper()
		return open(tb, dir, badgerstore.Options{})
	},
}

func TestStore(t *testing.T) { storetest.Run(t, engine) }
func FuzzStore(f *testing.F) { storetest.Fuzz(f, engine) }

// open opens a store; the caller closes it.
func open(tb testing.TB, dir string, opts badgerstore.Options) *badgerstore.Store {
	tb.Helper()
	s, err := badgerstore.Open(dir, opts)
	// A process that another test starts has this one's lock, too, from its fork to its exec.
	for end := time.Now().Add(time.Minute); errors.Is(err, store.ErrLocked) && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
		s, err = badgerstore.Open(dir, opts)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// fresh opens a store in a new directory and closes it with the test.
func fresh(tb testing.TB, opts badgerstore.Options) *badgerstore.Store {
	tb.Helper()
	s := open(tb, tb.TempDir(), opts)
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return s
}

func put(k store.Key, value string) *store.Change {
	return &store.Change{Puts: []store.Put{{Key: k, Value: []byte(value)}}}
}

func get(tb testing.TB, s store.Store, k store.Key) (value string) {
	tb.Helper()
	err := s.View(context.Background(), func(r store.Reader) error {
		it, err := r.Get(k)
		value = string(it.Value)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return value
}

// eventually polls a condition that another goroutine brings about.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("never: %s", what)
		}
	}
}

func TestOpenLockedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, badgerstore.Options{})
	_, err := badgerstore.Open(dir, badgerstore.Options{})
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), dir) ||
		!strings.Contains(err.Error(), "stop the other pawl") {
		t.Errorf("second open: %v", err)
	}
	if _, err := s.Commit(context.Background(), put(store.K("k"), "v")); err != nil {
		t.Errorf("the first one suffered: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, badgerstore.Options{})
	if got := get(t, s, store.K("k")); got != "v" {
		t.Errorf("after the lock was given back: %q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenUnknownFormat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, says string
		write      func(*badger.Txn) error
	}{
		{"newer", fmt.Sprintf("format %d", badgerstore.Format+1), func(txn *badger.Txn) error {
			return txn.Set([]byte(badgerstore.KeyFormat), binary.AppendUvarint(nil, badgerstore.Format+1))
		}},
		{"another program's", "another directory", func(txn *badger.Txn) error {
			return txn.Set([]byte("theirs"), []byte("x"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for round := range 2 { // refused, and left as it is
				db, err := badger.Open(badger.DefaultOptions(dir).WithLogger(nil))
				if err != nil {
					t.Fatal(err)
				}
				if round == 0 {
					err = db.Update(c.write)
				} else {
					n := 0
					err = db.View(func(txn *badger.Txn) error {
						it := txn.NewIterator(badger.IteratorOptions{})
						defer it.Close()
						for it.Rewind(); it.Valid(); it.Next() {
							n++
						}
						return nil
					})
					if n != 1 {
						t.Errorf("open wrote into a directory that it refused: %d keys", n)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				_, err = badgerstore.Open(dir, badgerstore.Options{})
				if !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("open: %v, want one that says %q", err, c.says)
				}
			}
		})
	}
}

func TestBlobBytesAreVerified(t *testing.T) {
	t.Parallel()
	s := fresh(t, badgerstore.Options{})
	ctx := context.Background()
	d, err := s.PutBlob(ctx, "t", bytes.Repeat([]byte("blob "), 200_000), time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	piece := func() []byte { return []byte("b" + string(store.K("t", string(d), 1))) }
	for _, harm := range []func(*badger.Txn) error{
		func(txn *badger.Txn) error { // as long as before
			return txn.Set(piece(), append([]byte{1}, make([]byte, 1_000_000-512<<10)...))
		},
		func(txn *badger.Txn) error { return txn.Set(piece(), []byte("\x01other bytes")) },
		func(txn *badger.Txn) error { return txn.Set(piece(), nil) },
		func(txn *badger.Txn) error { return txn.Delete(piece()) },
	} {
		if err := s.Badger().Update(harm); err != nil {
			t.Fatal(err)
		}
		// The next fold shows it.
		if _, err := s.Commit(ctx, put(store.K("k"), "v")); err != nil {
			t.Fatal(err)
		}
		if data, err := s.Blob(ctx, "t", d); !errors.Is(err, store.ErrCorrupt) || data != nil {
			t.Errorf("harmed blob: %d bytes, %v; want ErrCorrupt", len(data), err)
		}
	}
}

func TestCorruptRecordFailsItsReaderOnly(t *testing.T) {
	t.Parallel()
	s := fresh(t, badgerstore.Options{})
	ctx := context.Background()
	k := store.K("harmed")
	err := s.Badger().Update(func(txn *badger.Txn) error { return txn.Set([]byte("i"+string(k)), nil) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, put(store.K("k"), "v")); err != nil {
		t.Fatal(err)
	}
	err = s.View(ctx, func(r store.Reader) error { _, err := r.Get(k); return err })
	if !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("get: %v", err)
	}
	c := put(store.K("k"), "never")
	c.Require(k, 1)
	if _, err = s.Commit(ctx, c); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("commit: %v", err)
	}
	if _, err = s.Commit(ctx, put(k, "healed")); err != nil {
		t.Errorf("the store ended: %v", err)
	}
	if got := get(t, s, store.K("k")) + " " + get(t, s, k); got != "v healed" {
		t.Errorf("got %q", got)
	}
}

func TestLoggerPassesWarningsOnly(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := open(t, t.TempDir(), badgerstore.Options{Logger: slog.New(slog.NewTextHandler(&out,
		&slog.HandlerOptions{Level: slog.LevelDebug}))})
	if _, err := s.Commit(context.Background(), put(store.K("k"), "v")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 0 {
		t.Errorf("a healthy store logs:\n%s", out.String())
	}
}
