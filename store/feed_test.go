package store_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlhost/pawl/store"
)

var log = store.K("log")

func entries(from, to uint64) (es []store.Entry) {
	for n := from; n <= to; n++ {
		es = append(es, store.Entry{Seq: n, Data: fmt.Appendf(nil, "%d", n)})
	}
	return es
}

// wantPoll asserts what Poll gives after a cursor: the numbers from-to, or nothing when to is 0.
func wantPoll(t *testing.T, s *store.Subscription, after, to uint64) {
	t.Helper()
	got, err := s.Poll(after)
	if err != nil {
		t.Fatalf("poll after %d: %v", after, err)
	}
	if to == 0 {
		to = after
	}
	if uint64(len(got)) != to-after {
		t.Fatalf("poll after %d: %d entries, want %d", after, len(got), to-after)
	}
	for i, e := range got {
		if e.Seq != after+1+uint64(i) || string(e.Data) != fmt.Sprint(e.Seq) {
			t.Errorf("poll after %d: entry %d is %d %q", after, i, e.Seq, e.Data)
		}
	}
}

func TestFeedBeginsWithTheSubscription(t *testing.T) {
	t.Parallel()
	f := store.NewFeed()
	f.Publish(log, entries(1, 5)...) // nobody watches
	s := f.Subscribe(log)
	defer s.Close()
	wantPoll(t, s, 5, 0)
	wantPoll(t, s, 0, 0) // it cannot know that the reader has not caught up, until
	f.Publish(log, entries(6, 7)...)
	wantPoll(t, s, 5, 7)
	wantPoll(t, s, 6, 7)
	wantPoll(t, s, 7, 0)
	wantPoll(t, s, 99, 0)
	if _, err := s.Poll(4); !errors.Is(err, store.ErrTrimmed) {
		t.Errorf("poll for what came before: %v", err)
	}
	late := f.Subscribe(log) // the second one shares what the first has kept
	defer late.Close()
	wantPoll(t, late, 5, 7)
	f.Publish(store.K("log", "other"), entries(8, 8)...)
	f.Publish(log)
	wantPoll(t, s, 7, 0)
}

func TestFeedTrims(t *testing.T) {
	t.Parallel()
	f := store.NewFeed()
	s := f.Subscribe(log)
	defer s.Close()
	for n := uint64(1); n <= 5000; n++ {
		f.Publish(log, entries(n, n)...)
		wantPoll(t, s, n-1, n)
	}
	wantPoll(t, s, 5000-1024, 5000) // at least a thousand are there
	if _, err := s.Poll(5000 - 2049); !errors.Is(err, store.ErrTrimmed) {
		t.Errorf("more than twice the ring is kept: %v", err)
	}
	f.Publish(log, entries(5001, 9000)...) // one publication larger than the ring
	wantPoll(t, s, 8000, 9000)
	if _, err := s.Poll(5000); !errors.Is(err, store.ErrTrimmed) {
		t.Errorf("reader at 5000: %v", err)
	}

	// Large entries are bounded by their bytes; the newest is always there.
	for n := uint64(9001); n <= 9020; n++ {
		f.Publish(log, store.Entry{Seq: n, Data: make([]byte, 1<<20)})
	}
	if got, err := s.Poll(9019); err != nil || len(got) != 1 {
		t.Errorf("newest: %d entries, %v", len(got), err)
	}
	if _, err := s.Poll(9020 - 9); !errors.Is(err, store.ErrTrimmed) {
		t.Errorf("more than 8 MiB are kept: %v", err)
	}
	f.Publish(log, entries(1, 1)...) // the log was deleted and began anew
	wantPoll(t, s, 0, 1)
}

func TestFeedEntriesStayAsGiven(t *testing.T) {
	t.Parallel()
	f := store.NewFeed()
	s := f.Subscribe(log)
	defer s.Close()
	f.Publish(log, entries(1, 3)...)
	old, err := s.Poll(0)
	if err != nil {
		t.Fatal(err)
	}
	_ = append(old, store.Entry{Seq: 77}) // a reader that appends does not reach into the ring
	for n := uint64(4); n <= 4000; n++ {
		f.Publish(log, entries(n, n)...)
	}
	for i, e := range old {
		if e.Seq != uint64(i)+1 || string(e.Data) != fmt.Sprint(i+1) {
			t.Errorf("entry %d became %d %q", i+1, e.Seq, e.Data)
		}
	}
	wantPoll(t, s, 3999, 4000)
}

func TestFeedNextWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := store.NewFeed()
		s := f.Subscribe(log)
		var got []store.Entry
		var err error
		next := func(ctx context.Context, s *store.Subscription) (done chan struct{}) {
			done = make(chan struct{})
			go func() {
				defer close(done)
				got, err = s.Next(ctx, 1)
			}()
			synctest.Wait() // it sleeps
			select {
			case <-done:
				t.Fatalf("next returned early: %v, %v", got, err)
			default:
			}
			return done
		}
		done := next(t.Context(), s)
		f.Publish(store.K("other"), entries(2, 2)...)
		f.Publish(log, entries(1, 1)...) // nothing after 1 yet
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("woken for nothing new")
		default:
		}
		f.Publish(log, entries(2, 3)...)
		if <-done; err != nil || len(got) != 2 {
			t.Errorf("next = %d entries, %v", len(got), err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		quiet := f.Subscribe(store.K("quiet"))
		if <-next(ctx, quiet); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("next with a deadline: %v", err)
		}
		done = next(t.Context(), quiet)
		quiet.Close()
		if <-done; !errors.Is(err, store.ErrClosed) {
			t.Errorf("next of a closed subscription: %v", err)
		}
		quiet.Close()

		quiet = f.Subscribe(store.K("quiet"))
		defer quiet.Close()
		done = next(t.Context(), quiet)
		f.Close()
		f.Close()
		if <-done; !errors.Is(err, store.ErrClosed) {
			t.Errorf("next at the feed's end: %v", err)
		}
		// What was kept is still given, then the end.
		if got, err := s.Next(t.Context(), 1); err != nil || len(got) != 2 {
			t.Errorf("kept at the end: %d entries, %v", len(got), err)
		}
		if _, err := s.Next(t.Context(), 3); !errors.Is(err, store.ErrClosed) {
			t.Errorf("after the kept ones: %v", err)
		}
		f.Publish(log, entries(4, 4)...) // tolerated
		after := f.Subscribe(log)
		if _, err := after.Next(t.Context(), 0); !errors.Is(err, store.ErrClosed) {
			t.Errorf("subscription after the end: %v", err)
		}
		after.Close()
		s.Close()
	})
}

// Ten thousand readers of one log get every entry once and in order, while it is written, subscribed and left.
func TestInvariant13_FeedGivesEachReaderEachEntryOnce(t *testing.T) {
	t.Parallel()
	readers, last := 10_000, uint64(200)
	if testing.Short() {
		readers = 500
	}
	f := store.NewFeed()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wg, ready sync.WaitGroup
	ready.Add(readers)
	for range readers {
		wg.Go(func() {
			s := f.Subscribe(log)
			defer s.Close()
			ready.Done()
			for after := uint64(0); after < last; {
				got, err := s.Next(ctx, after)
				if err != nil {
					t.Errorf("reader at %d: %v", after, err)
					return
				}
				for _, e := range got {
					if e.Seq != after+1 {
						t.Errorf("reader at %d was given %d", after, e.Seq)
					}
					after = e.Seq
				}
			}
		})
	}
	ready.Wait()
	for n := uint64(1); n <= last; n++ {
		f.Publish(log, entries(n, n)...)
		if n%20 == 0 {
			f.Subscribe(log).Close()
			runtime.Gosched()
		}
	}
	wg.Wait()
}

// BenchmarkFeedWake is one publication seen by ten thousand sleeping readers.
func BenchmarkFeedWake(b *testing.B) {
	const readers = 10_000
	f := store.NewFeed()
	defer f.Close()
	var done sync.WaitGroup
	for range readers {
		s := f.Subscribe(log)
		go func() {
			defer s.Close()
			for after := uint64(0); ; {
				got, err := s.Next(context.Background(), after)
				if err != nil {
					return
				}
				after = got[len(got)-1].Seq
				done.Done()
			}
		}()
	}
	for n := uint64(1); b.Loop(); n++ {
		done.Add(readers)
		f.Publish(log, entries(n, n)...)
		done.Wait()
	}
}
