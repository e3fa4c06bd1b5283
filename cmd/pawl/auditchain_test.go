package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/pawlhost/pawl/store"
)

// auditKey is where the audit's row of a number lies in the database of the embedded store, and auditHeadKey what it says of its end.
func auditKey(tenant string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte("l"+string(store.K("t", tenant, "audit"))+"\x01"), seq)
}

func auditHeadKey(tenant string) []byte { return []byte("h" + string(store.K("t", tenant, "audit"))) }

// Somebody who may write the folder changes the database itself, with the database's own library. "pawl audit verify --data" says what
// was done, by the number of the row; for an end that was cut off with all care it needs a head that was kept elsewhere.
func TestAuditVerifyOfATamperedFolder(t *testing.T) {
	t.Parallel()
	const rows = 9
	written := t.TempDir()
	for i := range rows {
		for _, tenant := range []string{"demo", "other"} {
			if code, _, errs := pawl(t, "keys", "create", fmt.Sprint("p", i), "--data", written, "--tenant", tenant); code != exitOK {
				t.Fatal(errs)
			}
		}
	}
	type raw struct {
		value []byte
		meta  byte
	}
	get := func(t *testing.T, txn *badger.Txn, key []byte) raw {
		it, err := txn.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		v, err := it.ValueCopy(nil)
		if err != nil {
			t.Fatal(err)
		}
		return raw{v, it.UserMeta()}
	}
	set := func(t *testing.T, txn *badger.Txn, key []byte, r raw) {
		if err := txn.SetEntry(badger.NewEntry(key, r.value).WithMeta(r.meta)); err != nil {
			t.Fatal(err)
		}
	}
	// cut removes the end so that nothing in the folder tells: the stored head is set back, too.
	cut := func(t *testing.T, txn *badger.Txn) {
		for seq := uint64(7); seq <= rows; seq++ {
			if err := txn.Delete(auditKey("demo", seq)); err != nil {
				t.Fatal(err)
			}
		}
		last := get(t, txn, auditKey("demo", 6))
		set(t, txn, auditHeadKey("demo"), raw{value: append(binary.AppendUvarint(nil, 6), last.value[32:64]...)})
	}
	chained := func(tenant string, seq uint64, prev store.Hash, data []byte) raw {
		hash := store.ChainHash(store.K("t", tenant, "audit"), seq, prev, data)
		return raw{append(append(append([]byte{}, prev[:]...), hash[:]...), data...), 1}
	}
	// anew writes the whole log with other data, and hashes that fit.
	anew := func(t *testing.T, txn *badger.Txn, data func(seq uint64, data []byte) []byte) {
		var prev store.Hash
		for seq := uint64(1); seq <= rows; seq++ {
			r := chained("demo", seq, prev, data(seq, get(t, txn, auditKey("demo", seq)).value[64:]))
			set(t, txn, auditKey("demo", seq), r)
			prev = store.Hash(r.value[32:64])
		}
		set(t, txn, auditHeadKey("demo"), raw{value: append(binary.AppendUvarint(nil, rows), prev[:]...)})
	}
	for name, c := range map[string]struct {
		do   func(*testing.T, *badger.Txn)
		kept bool // give the head that was kept elsewhere
		want []string
	}{
		"untouched": {do: func(*testing.T, *badger.Txn) {}, kept: true},
		"a row changed": {do: func(t *testing.T, txn *badger.Txn) {
			r := get(t, txn, auditKey("demo", 4))
			r.value = bytes.Replace(r.value, []byte(`"outcome":"ok"`), []byte(`"outcome":"no"`), 1)
			set(t, txn, auditKey("demo", 4), r)
		}, want: []string{"row 4 was changed"}},
		"a row that nobody can read": {do: func(t *testing.T, txn *badger.Txn) {
			r := get(t, txn, auditKey("demo", 4))
			r.value = append(r.value[:64:64], "\x01\xff"...)
			set(t, txn, auditKey("demo", 4), r)
		}, want: []string{"row 4 was changed"}},
		"a row removed": {do: func(t *testing.T, txn *badger.Txn) {
			if err := txn.Delete(auditKey("demo", 4)); err != nil {
				t.Fatal(err)
			}
		}, want: []string{"row 4 is missing"}},
		"the first row removed": {do: func(t *testing.T, txn *badger.Txn) {
			if err := txn.Delete(auditKey("demo", 1)); err != nil {
				t.Fatal(err)
			}
		}, want: []string{"row 1 is missing"}},
		"two rows exchanged": {do: func(t *testing.T, txn *badger.Txn) {
			a, b := get(t, txn, auditKey("demo", 4)), get(t, txn, auditKey("demo", 6))
			set(t, txn, auditKey("demo", 4), b)
			set(t, txn, auditKey("demo", 6), a)
		}, want: []string{"row 4 was changed", "row 6 was changed"}},
		"a row of another tenant": {do: func(t *testing.T, txn *badger.Txn) {
			set(t, txn, auditKey("demo", 4), get(t, txn, auditKey("other", 4)))
		}, want: []string{"row 4 was changed"}},
		"a row put behind the end": {do: func(t *testing.T, txn *badger.Txn) {
			r := get(t, txn, auditKey("demo", rows))
			set(t, txn, auditKey("demo", rows+1), r)
			set(t, txn, auditHeadKey("demo"), raw{value: append(binary.AppendUvarint(nil, rows+1), r.value[32:64]...)})
		}, want: []string{"row 10 was changed"}},
		"the end cut off, clumsily": {do: func(t *testing.T, txn *badger.Txn) {
			if err := txn.Delete(auditKey("demo", rows)); err != nil {
				t.Fatal(err)
			}
		}, want: []string{"row 9 is gone: the log ends at row 8"}},
		"a row put behind the head": {do: func(t *testing.T, txn *badger.Txn) {
			last := get(t, txn, auditKey("demo", rows)).value
			set(t, txn, auditKey("demo", rows+1), chained("demo", rows+1, store.Hash(last[32:64]), last[64:]))
		}, want: []string{"the log says that it ends at row 9, but its rows go on to row 10"}},
		"the head removed": {do: func(t *testing.T, txn *badger.Txn) {
			if err := txn.Delete(auditHeadKey("demo")); err != nil {
				t.Fatal(err)
			}
		}, kept: true, want: []string{"the log says that it ends at row 0, but its rows go on to row 9"}},
		"a row without room for its hashes": {do: func(t *testing.T, txn *badger.Txn) {
			r := get(t, txn, auditKey("demo", 4))
			r.value = []byte("x")
			set(t, txn, auditKey("demo", 4), r)
		}, want: []string{"row 4 has no hash"}},
		"the first row without room for its hashes": {do: func(t *testing.T, txn *badger.Txn) {
			r := get(t, txn, auditKey("demo", 1))
			r.value = []byte("x")
			set(t, txn, auditKey("demo", 1), r)
		}, want: []string{"row 1 cannot be read", "row 2 does not follow row 1"}},
		"a member that is not shown": {do: func(t *testing.T, txn *badger.Txn) {
			r := get(t, txn, auditKey("demo", 4))
			r.value = append(append(r.value[:64:64], `{"AA":"hidden",`...), r.value[65:]...)
			set(t, txn, auditKey("demo", 4), r)
		}, want: []string{"row 4 was changed"}},
		"a member that is not shown, and all after it hashed anew": {do: func(t *testing.T, txn *badger.Txn) {
			anew(t, txn, func(seq uint64, data []byte) []byte {
				if seq == 4 {
					data = append([]byte(`{"AA":"hidden",`), data[1:]...)
				}
				return data
			})
		}, want: []string{"row 4 says other things in the database than it shows"}},
		"all hashes taken out": {do: func(t *testing.T, txn *badger.Txn) {
			for seq := uint64(1); seq <= rows; seq++ {
				set(t, txn, auditKey("demo", seq), raw{value: get(t, txn, auditKey("demo", seq)).value[64:]})
			}
			set(t, txn, auditHeadKey("demo"), raw{value: binary.AppendUvarint(nil, rows)})
		}, want: []string{}},
		"the end cut off, with care":             {do: cut},
		"the end cut off, against the kept head": {do: cut, kept: true, want: []string{"row 9 is gone: the log ends at row 6"}},
		"a row changed and all after it hashed anew": {do: func(t *testing.T, txn *badger.Txn) {
			anew(t, txn, func(seq uint64, data []byte) []byte {
				if seq == 4 {
					data = bytes.Replace(data, []byte(`"outcome":"ok"`), []byte(`"outcome":"no"`), 1)
				}
				return data
			})
		}, kept: true, want: []string{"row 9 has another hash"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			if err := os.CopyFS(data, os.DirFS(written)); err != nil {
				t.Fatal(err)
			}
			code, head, errs := pawl(t, "audit", "head", "--data", data, "--tenant", "demo")
			if code != exitOK || !strings.HasPrefix(head, fmt.Sprintf("%d:sha256:", rows)) {
				t.Fatalf("%d %s %s", code, head, errs)
			}
			tamper(t, data, func(txn *badger.Txn) { c.do(t, txn) })
			args := []string{"audit", "verify", "--data", data, "--tenant", "demo", "--json"}
			if c.kept {
				args = append(args, "--head", head)
			}
			code, out, errs := pawl(t, args...)
			var v verdict
			if err := json.Unmarshal([]byte(out), &v); err != nil {
				t.Fatalf("%s %s: %v", out, errs, err)
			}
			want := exitOK
			if c.want != nil {
				want = exitTampered
			}
			if code != want || v.OK != (c.want == nil) {
				t.Errorf("exit %d, want %d: %s", code, want, out)
			}
			for i, w := range c.want {
				if i >= len(v.Faults) || !strings.HasPrefix(v.Faults[i].Detail, w) {
					t.Errorf("%+v, want %q", v.Faults, c.want)
				}
			}
			if len(c.want) == 0 && len(v.Faults) > 0 {
				t.Errorf("%+v, want none", v.Faults)
			}
			// Whatever was done to a row, those around it can be read.
			if code, _, errs := pawl(t, "audit", "export", "--data", data, "--tenant", "demo"); code != exitOK {
				t.Errorf("the export: %d %s", code, errs)
			}
			if code, _, errs := pawl(t, "audit", "verify", "--data", data, "--tenant", "other"); code != exitOK {
				t.Errorf("the other tenant's audit: %d %s", code, errs)
			}
		})
	}
}

// A log that has lost its end is not begun again: nobody can be told afterwards what the new rows went over.
func TestAuditGoesOverNoRow(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if code, _, errs := pawl(t, "keys", "create", name, "--data", data, "--tenant", "demo"); code != exitOK {
			t.Fatal(errs)
		}
	}
	_, before, _ := pawl(t, "audit", "export", "--data", data, "--tenant", "demo")
	tamper(t, data, func(txn *badger.Txn) {
		if err := txn.Delete(auditHeadKey("demo")); err != nil {
			t.Fatal(err)
		}
	})
	code, _, errs := pawl(t, "keys", "create", "d", "--data", data, "--tenant", "demo")
	if code == exitOK || !strings.Contains(errs, "behind entry 0") {
		t.Errorf("a key was made: %d %s", code, errs)
	}
	if code, _, errs := pawl(t, "keys", "create", "d", "--data", data, "--tenant", "other"); code != exitOK {
		t.Errorf("another tenant's key: %d %s", code, errs)
	}
	if _, after, _ := pawl(t, "audit", "export", "--data", data, "--tenant", "demo"); after != before || strings.Count(after, "\n") < 2 {
		t.Errorf("the rows are\n%s\nand were\n%s", after, before)
	}
	if code, _, errs := pawl(t, "audit", "verify", "--data", data, "--tenant", "demo"); code != exitTampered || !strings.Contains(errs, "it ends at row 0") {
		t.Errorf("%d %s", code, errs)
	}
}

// tamper changes the database of a stopped host from outside.
func tamper(t *testing.T, data string, do func(*badger.Txn)) {
	t.Helper()
	var db *badger.DB
	var err error
	if !eventually(t.Context(), time.Minute, func() bool {
		db, err = badger.Open(badger.DefaultOptions(filepath.Join(data, "db")).WithLogger(nil).WithValueThreshold(1 << 20))
		return err == nil
	}) {
		t.Fatal(err)
	}
	if err := db.Update(func(txn *badger.Txn) error { do(txn); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// pawl runs the program in this process, without any setting of the environment. A process that another test starts has this one's
// locks, too, from its fork to its exec: that folder is then in use for a moment.
func pawl(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	eventually(t.Context(), time.Minute, func() bool {
		out.Reset()
		errs.Reset()
		code = run(t.Context(), args, nil, strings.NewReader(""), &out, &errs)
		return !strings.Contains(errs.String(), "is in use by another pawl")
	})
	return code, strings.TrimSpace(out.String()), errs.String()
}
