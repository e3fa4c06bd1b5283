package badgerstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// BenchmarkCommit measures changes of about 20 KB (a step of a run: head, calls, events) by the number of callers that wait
// at the same time, folded as the store does it, and with one transaction for each.
//
//	go test -run '^$' -bench Commit -benchtime 3s ./store/badgerstore
func BenchmarkCommit(b *testing.B) {
	for _, waiters := range []int{1, 16, 64} {
		for _, mode := range []struct {
			name string
			opts badgerstore.Options
		}{
			{"folded", badgerstore.Options{}},
			{"single", badgerstore.Options{}.OneByOne()},
		} {
			b.Run(fmt.Sprintf("waiters=%d/%s", waiters, mode.name), func(b *testing.B) {
				s, err := badgerstore.Open(b.TempDir(), mode.opts)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				value := make([]byte, 4<<10)
				rng := rand.NewChaCha8([32]byte{1})
				_, _ = rng.Read(value[:2<<10]) // half of it compresses, as records do
				var n atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				for range waiters {
					wg.Go(func() {
						for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
							if _, err := s.Commit(context.Background(), step(int(i), value)); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
			})
		}
	}
}

// step is a change as a pausing run makes it: five records of 4 KB, an index key, two log entries, one condition.
func step(i int, value []byte) *store.Change {
	run := store.K("tenant", "run", fmt.Sprintf("run_%08d", i))
	c := &store.Change{}
	c.Require(run, 0)
	c.Put(run, value)
	for j := range 3 {
		c.Put(run.With("call", j), value)
	}
	c.Put(store.K("tenant", "pending", uint64(i)), nil)
	c.Append(run.With("events"), value)
	c.Append(store.K("tenant", "queue"), value[:200])
	return c
}

// BenchmarkCommitChained is what the chain costs: 64 callers append a row of an audit's size to one log, with the step of a run
// that it is about, folded as the store does it; plain, chained, plain, chained, so that a slow minute of the machine shows.
//
//	go test -run '^$' -bench CommitChained -benchtime 3s ./store/badgerstore
func BenchmarkCommitChained(b *testing.B) {
	value, row := make([]byte, 4<<10), make([]byte, 350)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(value[:2<<10])
	_, _ = rng.Read(row)
	for round := range 2 {
		for _, chained := range []bool{false, true} {
			b.Run(fmt.Sprintf("round=%d/chained=%v", round, chained), func(b *testing.B) {
				s, err := badgerstore.Open(b.TempDir(), badgerstore.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				var n atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				for range 64 {
					wg.Go(func() {
						for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
							c := step(int(i), value)
							c.Appends = append(c.Appends, store.Append{Log: store.K("tenant", "audit"), Data: row, Chained: chained})
							if _, err := s.Commit(context.Background(), c); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
			})
		}
	}
}
