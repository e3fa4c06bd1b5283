package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

// trim: the beginning of a log goes, its numbers go on, and a cursor that pointed into what is gone is told so.
func trim(t *testing.T, e Engine) {
	s := e.fresh(t)
	ctx := within(t, time.Minute)
	log, other := store.K("l"), store.K("l", "x")
	grow := func(n int) {
		for i := range n {
			c := &store.Change{}
			c.Append(log, fmt.Append(nil, i))
			c.Append(other, []byte("other"))
			must(t, s, c)
		}
	}
	read := func(after uint64) (seqs []uint64, err error) {
		view(t, s, func(r store.Reader) error {
			var entries []store.Entry
			entries, err = r.Log(log, after, 0)
			for _, e := range entries {
				seqs = append(seqs, e.Seq)
			}
			return nil
		})
		return seqs, err
	}
	grow(10)
	for range 2 { // it is idempotent
		if err := s.TrimLog(ctx, log, 4); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.TrimLog(ctx, log, 2); err != nil { // and never brings anything back
		t.Fatal(err)
	}
	for after, want := range map[uint64]string{0: "trimmed", 3: "trimmed", 4: "[5 6 7 8 9 10]", 9: "[10]", 10: "[]", 11: "[]"} {
		seqs, err := read(after)
		got := fmt.Sprint(seqs)
		if errors.Is(err, store.ErrTrimmed) {
			got = "trimmed"
		} else if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("after %d: %s, want %s", after, got, want)
		}
	}
	if err := s.TrimLog(ctx, log, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := read(9); !errors.Is(err, store.ErrTrimmed) {
		t.Errorf("after 9 of an empty rest: %v, want ErrTrimmed", err)
	}
	if seqs, err := read(10); err != nil || len(seqs) != 0 {
		t.Errorf("at the head of an empty rest: %v, %v", seqs, err)
	}
	grow(2)
	if seqs, err := read(10); err != nil || fmt.Sprint(seqs) != "[11 12]" {
		t.Errorf("after the trim the log goes on as %v (%v)", seqs, err)
	}
	view(t, s, func(r store.Reader) error {
		entries, err := r.Log(other, 0, 0)
		if err != nil || len(entries) != 12 {
			t.Errorf("the log below it has %d entries (%v)", len(entries), err)
		}
		head, err := r.LogHead(log)
		if err != nil || head != 12 {
			t.Errorf("the head is %d (%v)", head, err)
		}
		return nil
	})
}
