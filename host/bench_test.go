package host_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// BenchmarkCycle is pause → decide → finish without HTTP, in one process. The memstore line is what the host itself costs; the
// badgerstore lines add durability.
func BenchmarkCycle(b *testing.B) {
	for _, bc := range []struct {
		name    string
		durable bool
		clients int
	}{{"memstore/1", false, 1}, {"memstore/64", false, 64}, {"badgerstore/1", true, 1}, {"badgerstore/64", true, 64}} {
		b.Run(bc.name, func(b *testing.B) {
			o := hosttest.Options{}
			if bc.durable {
				st, err := badgerstore.Open(b.TempDir(), badgerstore.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer st.Close()
				o.Store = st
			}
			h := hosttest.New(b, o)
			defer h.Stop()
			h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"final":1}]`, `{"transfer":true}`)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range bc.clients {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						r, err := h.CreateRun(context.Background(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "pay"}))
						if err != nil {
							b.Error(err)
							return
						}
						if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
							b.Error(err)
							return
						}
						if v, err := h.WaitRun(context.Background(), hosttest.Admin, r.ID); err != nil || v.State != store.RunSucceeded {
							b.Errorf("%v %s", err, v.State)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
		})
	}
}
