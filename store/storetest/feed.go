package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
)

// feed: what a subscriber is told is durable, visible and in order.
func feed(t *testing.T, e Engine) {
	s := e.fresh(t)
	ctx := within(t, time.Minute)
	log, other := store.K("feed"), store.K("feed", "other")
	add := func(l store.Key, data string) {
		must(t, s, &store.Change{Appends: []store.Append{{Log: l, Data: []byte(data)}}})
	}
	add(log, "before")
	sub := s.Feed().Subscribe(log)
	defer sub.Close()
	add(other, "elsewhere")
	must(t, s, &store.Change{Appends: []store.Append{
		{Log: log, Data: []byte("2")}, {Log: other, Data: []byte("no")}, {Log: log, Data: []byte("3")}}})
	var got []store.Entry
	for after := uint64(1); after < 3; after = got[len(got)-1].Seq {
		entries, err := sub.Next(ctx, after)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entries...)
	}
	wantEntries(t, got, 2, "2", "3")

	// What was there before is in the log, not in the feed.
	_, err := sub.Next(ctx, 0)
	wantErr(t, "before the subscription", err, store.ErrTrimmed)

	// Whoever is woken finds the entry in a view.
	done := make(chan error, 1)
	go func() {
		_, err := sub.Next(ctx, 3)
		if err == nil {
			err = s.View(ctx, func(r store.Reader) error {
				head, err := r.LogHead(log)
				if err == nil && head != 4 {
					err = errors.New("announced before it was visible")
				}
				return err
			})
		}
		done <- err
	}()
	add(log, "4")
	if err := <-done; err != nil {
		t.Error(err)
	}

	// A refused change is not announced.
	_, err = s.Commit(ctx, &store.Change{If: []store.Precondition{{Key: log, Version: 99}},
		Appends: []store.Append{{Log: log, Data: []byte("never")}}})
	wantErr(t, "commit", err, store.ErrConflict)
	if entries, err := sub.Poll(4); len(entries) != 0 || err != nil {
		t.Errorf("announced by a refused change: %s, %v", show(entries), err)
	}

	// The end of the store wakes a reader.
	go func() {
		_, err := sub.Next(context.Background(), 4)
		done <- err
	}()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wantErr(t, "next at the store's end", <-done, store.ErrClosed)
}
