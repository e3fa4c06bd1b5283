package storetest

import (
	"fmt"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// logs: numbers from 1 without gaps, each log its own.
func logs(t *testing.T, e Engine) {
	s := e.fresh(t)
	// Logs at, below and beside each other, in the order of the engine's keys.
	names := []store.Key{
		store.K(), store.K("l"), store.K("l", "x"), store.K("l", 1), store.K("l", 1, 1), store.K("l\x00"), store.K("l\x00x"),
	}
	for _, l := range names {
		wantLog(t, s, l)
	}
	var expect [7][]string
	for n := range 40 {
		var c store.Change
		for i, l := range names {
			if (n+i)%3 == 0 {
				continue
			}
			data := fmt.Sprintf("%d in %d", n, i)
			c.Append(l, []byte(data))
			expect[i] = append(expect[i], data)
		}
		r := must(t, s, &c)
		if len(r.Seqs) != len(c.Appends) {
			t.Fatalf("%d sequence numbers for %d appends", len(r.Seqs), len(c.Appends))
		}
	}
	for i, l := range names {
		wantLog(t, s, l, expect[i]...)
		want(t, s, l, "") // an entry is not an item
	}
	if keys, _ := scan(t, s, store.Range{}); len(keys) != 0 {
		t.Errorf("log entries are visible as items %q", keys)
	}

	log, all := names[1], expect[1]
	view(t, s, func(r store.Reader) error {
		for _, c := range []struct {
			after uint64
			limit int
			data  []string
		}{
			{0, 1, all[:1]},
			{0, 5, all[:5]},
			{3, 4, all[3:7]},
			{uint64(len(all)) - 2, 10, all[len(all)-2:]},
			{uint64(len(all)), 10, nil},
			{uint64(len(all)) + 5, 10, nil},
			{^uint64(0), 10, nil},
			{0, 0, all},
			{0, -1, all},
		} {
			got, err := r.Log(log, c.after, c.limit)
			if err != nil {
				return err
			}
			wantEntries(t, got, c.after+1, c.data...)
		}
		return nil
	})

	var c store.Change
	for range 1200 {
		c.Append(store.K("long"), []byte("e"))
	}
	must(t, s, &c)
	view(t, s, func(r store.Reader) error {
		got, err := r.Log(store.K("long"), 100, 0)
		if len(got) != 1000 || got[999].Seq != 1100 {
			t.Errorf("no limit gives %d entries, want 1000", len(got))
		}
		return err
	})
}
