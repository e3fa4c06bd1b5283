package api_test

import (
	"bytes"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
)

// BenchmarkDecisionToQueue measures from the decision's request to its event at the last of the watchers; client and server
// share the machine. The watchers are of one principal, as an inbox's are of few.
func BenchmarkDecisionToQueue(b *testing.B) {
	for _, n := range []struct{ connected, watching int }{{100, 100}, {2000, 100}, {2000, 2000}} {
		b.Run(fmt.Sprintf("connected=%d/watching=%d", n.connected, n.watching), func(b *testing.B) {
			r := newRig(b, api.Options{Dev: true}, hosttest.Options{})
			got := make(chan time.Time, n.watching)
			var readers sync.WaitGroup
			var socks []*websocket.Conn
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range n.connected {
				ws, _, err := websocket.DefaultDialer.Dial("ws"+r.web.URL[4:]+"/v1/ws", http.Header{"Authorization": {"Bearer " + r.keys["admin"]}})
				if err != nil {
					b.Fatal(err)
				}
				socks = append(socks, ws)
				if i < n.watching {
					if err := ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"subscribe","id":"q","queue":true}`)); err != nil {
						b.Fatal(err)
					}
				}
				ready := make(chan struct{})
				readers.Go(func() {
					opened := sync.OnceFunc(func() { close(ready) })
					defer opened()
					for {
						_, m, err := ws.ReadMessage()
						if err != nil {
							return
						}
						switch {
						case i >= n.watching || bytes.Contains(m, []byte(`"type":"snapshot"`)):
							opened()
						case bytes.Contains(m, []byte(`"type":"approval.decided"`)):
							got <- time.Now()
						}
					}
				})
				<-ready
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			var took []time.Duration
			for b.Loop() {
				run := r.paused("member")
				time.Sleep(20 * time.Millisecond) // the events of the pause itself are through
				start := time.Now()
				r.ok("admin", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "reject"))
				for range n.watching {
					took = append(took, (<-got).Sub(start))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse)/float64(n.connected)/1024, "KiB/socket-both-ends")
			for _, ws := range socks {
				ws.Close()
			}
			readers.Wait()
		})
	}
}
