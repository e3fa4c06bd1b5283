package host

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// Entries are dropped while others, and they themselves, are still being rendered: each reader gets its own event, and the account
// is that of what is kept.
func TestEventCache_DropsWhatIsStillRendered(t *testing.T) {
	t.Parallel()
	var c eventCache
	log := store.K("log")
	slow, began := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ev, err := c.get(log, 0, func() (shown, error) {
			close(began)
			<-slow
			return shown{event: Event{Data: json.RawMessage("0")}}, nil
		})
		if err != nil || string(ev.event.Data) != "0" {
			t.Errorf("the slow one: %s %v", ev.event.Data, err)
		}
	})
	<-began
	for w := range 4 {
		wg.Go(func() {
			for seq := w + 1; seq <= 2*eventCacheEntries; seq += 4 {
				want := mustJSON(seq)
				ev, err := c.get(log, uint64(seq), func() (shown, error) { return shown{event: Event{Data: want}}, nil })
				if err != nil || string(ev.event.Data) != string(want) {
					t.Errorf("%d: %s %v", seq, ev.event.Data, err)
				}
				if seq == eventCacheEntries+1000 {
					close(slow) // it has been dropped by now
				}
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, e := range c.m {
		sum += e.size
	}
	if sum != c.bytes || len(c.m) > eventCacheEntries || len(c.order) > eventCacheEntries {
		t.Errorf("%d entries, %d in order, %d bytes, accounted %d", len(c.m), len(c.order), sum, c.bytes)
	}
}
