package host

import (
	"sync"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// The oldest entry is dropped in the moment in which it is done: its reader gets its event, nobody reads it without the lock (the race
// detector tells), and the account is that of what is kept.
func TestEventCache_DropsWhatIsStillRendered(t *testing.T) {
	t.Parallel()
	log := store.K("log")
	for range 20 {
		var c eventCache
		get := func(seq int, before func()) {
			want := mustJSON(seq)
			ev, err := c.get(log, uint64(seq), func() (shown, error) {
				before()
				return shown{event: Event{Data: want}}, nil
			})
			if err != nil || string(ev.event.Data) != string(want) {
				t.Errorf("%d: %s %v", seq, ev.event.Data, err)
			}
		}
		began, finish := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { get(0, func() { close(began); <-finish }) })
		<-began
		for seq := 1; seq < eventCacheEntries; seq++ {
			get(seq, func() {})
		}
		close(finish)
		get(eventCacheEntries, func() {}) // one more than there may be: the oldest goes
		wg.Wait()
		sum := 0
		for _, e := range c.m {
			sum += e.size
		}
		if sum != c.bytes || len(c.m) != eventCacheEntries || len(c.order) != eventCacheEntries {
			t.Fatalf("%d entries, %d in order, %d bytes, accounted %d", len(c.m), len(c.order), sum, c.bytes)
		}
	}
}
