package badgerstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// rawEntry is where an entry of a log lies in Badger.
func rawEntry(log store.Key, seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte("l"+string(log)+"\x01"), seq)
}

// follow reads a log as it is and returns what its chain has to complain about, the stored head included.
func follow(t *testing.T, s store.Store, log store.Key) (faults []string) {
	t.Helper()
	c := store.Chain{Log: log}
	err := s.View(context.Background(), func(r store.Reader) error {
		var after uint64
		for {
			// Beyond a hole the log says nothing more; the head tells that there should be.
			entries, err := r.Log(log, after, 3)
			if err != nil {
				faults = append(faults, err.Error())
				after++
				if after > 20 {
					return nil
				}
				continue
			}
			if len(entries) == 0 {
				return nil
			}
			for _, e := range entries {
				if fault := c.Next(e); fault != nil {
					faults = append(faults, fault.Error())
				}
				after = e.Seq
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return faults
}

// Somebody who can write the folder changes, removes, moves or cuts entries below the store's feet.
func TestTamperedEntriesShow(t *testing.T) {
	t.Parallel()
	log := store.K("t", "demo", "audit")
	value := func(txn *badger.Txn, seq uint64) ([]byte, error) {
		it, err := txn.Get(rawEntry(log, seq))
		if err != nil {
			return nil, err
		}
		return it.ValueCopy(nil)
	}
	set := func(txn *badger.Txn, seq uint64, v []byte) error {
		return txn.SetEntry(badger.NewEntry(rawEntry(log, seq), v).WithMeta(badgerstore.MetaChained))
	}
	for name, c := range map[string]struct {
		do   func(*badger.Txn) error
		want []string
	}{
		"untouched": {func(*badger.Txn) error { return nil }, nil},
		"changed": {func(txn *badger.Txn) error {
			v, err := value(txn, 4)
			if err != nil {
				return err
			}
			v[len(v)-1] ^= 1
			return set(txn, 4, v)
		}, []string{"row 4 was changed"}},
		"removed": {func(txn *badger.Txn) error { return txn.Delete(rawEntry(log, 4)) }, []string{"log trimmed", "row 4 is missing"}},
		"exchanged": {func(txn *badger.Txn) error {
			a, err := value(txn, 4)
			if err != nil {
				return err
			}
			b, err := value(txn, 6)
			if err != nil {
				return err
			}
			if err := set(txn, 4, b); err != nil {
				return err
			}
			return set(txn, 6, a)
		}, []string{"row 4 was changed", "row 6 was changed"}},
		"stripped of its links": {func(txn *badger.Txn) error {
			v, err := value(txn, 4)
			if err != nil {
				return err
			}
			return txn.Set(rawEntry(log, 4), v[64:])
		}, []string{"row 4 has no hash"}},
		"too short for its links": {func(txn *badger.Txn) error { return set(txn, 4, []byte("x")) }, []string{"row 4 has no hash"}},
		"inserted": {func(txn *badger.Txn) error {
			v, err := value(txn, 6)
			if err != nil {
				return err
			}
			return set(txn, 7, v)
		}, []string{"row 7 was changed"}},
		"cut": {func(txn *badger.Txn) error { return txn.Delete(rawEntry(log, 6)) }, []string{"log trimmed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, badgerstore.Options{})
			for n := range 6 {
				if _, err := s.Commit(context.Background(), &store.Change{Appends: []store.Append{{Log: log, Data: fmt.Append(nil, "entry ", n), Chained: true}}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Badger().Update(c.do); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, badgerstore.Options{})
			defer s.Close()
			got := follow(t, s, log)
			for i, want := range c.want {
				if i >= len(got) || !strings.Contains(got[i], want) {
					t.Errorf("%q, want %q", got, c.want)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// Entries behind the head are not gone over, not even in part: the log takes no append any more, and others do.
func TestNoAppendGoesOverEntries(t *testing.T) {
	t.Parallel()
	log, other := store.K("t", "demo", "audit"), store.K("t", "demo", "audits")
	for name, do := range map[string]func(*badger.Txn) error{
		"the head is gone":     func(txn *badger.Txn) error { return txn.Delete([]byte("h" + string(log))) },
		"the head is set back": func(txn *badger.Txn) error { return txn.Set([]byte("h"+string(log)), binary.AppendUvarint(nil, 2)) },
		"an entry was put in":  func(txn *badger.Txn) error { return txn.Set(rawEntry(log, 4), []byte("put in")) },
		"one far behind":       func(txn *badger.Txn) error { return txn.Set(rawEntry(log, 1<<40), []byte("put in")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, badgerstore.Options{})
			add := func(log store.Key) error {
				_, err := s.Commit(context.Background(), &store.Change{Appends: []store.Append{{Log: log, Data: []byte("entry"), Chained: true}}})
				return err
			}
			for range 3 {
				if err := errors.Join(add(log), add(other)); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Badger().Update(do); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, badgerstore.Options{})
			defer s.Close()
			for range 2 {
				if err := add(log); !errors.Is(err, store.ErrCorrupt) {
					t.Errorf("%v, want ErrCorrupt", err)
				}
			}
			if err := add(other); err != nil {
				t.Errorf("another log: %v", err)
			}
			if err := s.DeleteRange(context.Background(), log); err != nil {
				t.Fatal(err)
			}
			if err := add(log); err != nil {
				t.Errorf("a log that begins again: %v", err)
			}
		})
	}
}

// A directory of format 1 is read and written as before until the first chained entry: the chain begins there.
func TestOldLogsBeginTheirChainLate(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), store.K("log")
	s := open(t, dir, badgerstore.Options{})
	formatOf := func() (n uint64) {
		err := s.Badger().View(func(txn *badger.Txn) error {
			it, err := txn.Get([]byte(badgerstore.KeyFormat))
			if err != nil {
				return err
			}
			return it.Value(func(v []byte) error { n, _ = binary.Uvarint(v); return nil })
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// As the release before chains wrote them: a head that is a number, entries that are bytes.
	err := s.Badger().Update(func(txn *badger.Txn) error {
		for seq := range uint64(3) {
			if err := txn.Set(rawEntry(log, seq+1), fmt.Append(nil, "old ", seq+1)); err != nil {
				return err
			}
		}
		return txn.Set([]byte("h"+string(log)), binary.AppendUvarint(nil, 3))
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := formatOf(); n != 1 {
		t.Errorf("a new directory has format %d: an older release could not go on with it, for nothing", n)
	}
	for _, chained := range []bool{false, true, true} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir, badgerstore.Options{})
		if _, err := s.Commit(context.Background(), &store.Change{Appends: []store.Append{{Log: log, Data: []byte("new"), Chained: chained}}}); err != nil {
			t.Fatal(err)
		}
		if n := formatOf(); n == 1 == chained {
			t.Errorf("format %d after a chained append: %v", n, chained)
		}
	}
	defer s.Close()
	if faults := follow(t, s, log); faults != nil {
		t.Errorf("%q", faults)
	}
	err = s.View(context.Background(), func(r store.Reader) error {
		entries, err := r.Log(log, 0, 0)
		if err != nil || len(entries) != 6 || string(entries[0].Data) != "old 1" || !entries[3].Hash.IsZero() || entries[4].Hash.IsZero() || !entries[4].Prev.IsZero() {
			t.Errorf("%v, %v", entries, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
