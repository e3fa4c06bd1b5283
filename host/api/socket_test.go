package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
)

func TestRevokingAKeyClosesItsSocketsAndStreams(t *testing.T) {
	t.Parallel()
	r := dev(t)
	key := r.ok("owner", "POST", "/v1/keys", `{"principal":"guest","roles":["admin"],"kind":"user"}`)
	other := r.ok("owner", "POST", "/v1/keys", `{"principal":"guest","roles":["admin"],"kind":"user"}`)
	run := r.paused("member")
	a, b, keep := r.ws(key.str("key")), r.handshake(""), r.ws(other.str("key"))
	b.text(map[string]any{"type": "hello", "token": key.str("key")})
	b.want("welcome")
	a.text(sub("1", run.ID))
	a.want("pause")
	stream := r.stream(key.str("key"), run.ID, "")
	stream.next()
	r.ok("owner", "DELETE", "/v1/keys/"+key.str("id"), nil)
	a.closes(4403)
	b.closes(4403)
	stream.ends()
	keep.text(`{"type":"ping"}`)
	keep.want("pong")
	if w := r.handshake(key.str("key")); w.status != 401 {
		t.Errorf("a revoked key: %d", w.status)
	}
}

// A client that stops reading is closed with 4408, and nobody else notices.
func TestASlowReaderIsClosedWith4408AndNobodyElseNotices(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true, WriteTimeout: 500 * time.Millisecond}, hosttest.Options{})
	big := strings.Repeat("x", 48<<10)
	r.Script("big", fmt.Sprintf(`[{"calls":[{"tool_call_id":"c","tool":"write_file","arguments":{"path":"/memories/x","content":%q}}]},{"final":1}]`, big), "")
	slowOne, other := r.ws("admin"), r.ws("admin")
	if err := slowOne.conn.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*rawWS{slowOne, other} {
		w.text(`{"type":"subscribe","id":"q","queue":true}`)
		w.want("snapshot")
	}
	// slowOne reads nothing more from here on.
	seen := make(chan int)
	go func() {
		n := 0
		for n < 30 {
			m, err := other.read()
			if err != nil {
				break
			}
			if e, _ := m["event"].(map[string]any); e["type"] == "approval.requested" {
				n++
			}
		}
		seen <- n
	}()
	for range 30 {
		r.Create(hosttest.Member, "big")
	}
	if n := <-seen; n != 30 {
		t.Errorf("the other client saw %d of 30", n)
	}
	closing := func() bool { return strings.Contains(metric(r, "pawl_slow_sockets_total"), " 1") }
	eventually(t, "the slow reader is found", closing)
	slowOne.closes(4408)
	// One that asks on and on without reading the answers is no better.
	asker := r.ws("member")
	for i := 0; i < 200_000; i++ {
		if asker.tryFrame(true, 1, []byte(`{"type":"ping","id":"`+big[:200]+`"}`)) != nil {
			break
		}
		if i%1000 == 0 && strings.Contains(metric(r, "pawl_slow_sockets_total"), " 2") {
			break
		}
	}
	asker.closes(4408)
	other.text(`{"type":"ping"}`)
	other.want("pong")
}

func metric(r *rig, name string) string {
	for line := range strings.SplitSeq(string(r.ok("admin", "GET", "/metrics", nil).raw), "\n") {
		if strings.HasPrefix(line, name+" ") {
			return line
		}
	}
	return ""
}

// A client that reads slowly but steadily is not slow: what it has not read waits in the log.
func TestABacklogWaitsInTheLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true, WriteTimeout: 5 * time.Second}, hosttest.Options{})
	big := strings.Repeat("x", 48<<10)
	r.Script("big", fmt.Sprintf(`[{"calls":[{"tool_call_id":"c","tool":"write_file","arguments":{"path":"/memories/x","content":%q}}]},{"final":1}]`, big), "")
	for range 30 {
		r.Create(hosttest.Member, "big")
	}
	w := r.ws("admin")
	w.text(`{"type":"subscribe","id":"q","queue":true,"after":0}`)
	w.want("snapshot")
	cursors := map[any]bool{}
	for n := 0; n < 30; {
		m := w.want("event")
		if cursors[m["cursor"]] {
			t.Fatalf("cursor %v twice", m["cursor"])
		}
		cursors[m["cursor"]] = true
		if m["event"].(map[string]any)["type"] == "approval.requested" {
			n++
		}
	}
}

func TestDrainEndsSocketsStreamsAndWaits(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Tools: slow(release)})
	r.Script("slow", `[{"calls":[{"tool_call_id":"c","tool":"slow","arguments":{}}]},{"final":1}]`, "")
	run := r.paused("member")
	w, silent := r.ws("admin"), r.ws("member")
	w.text(sub("1", run.ID))
	w.want("pause")
	stream := r.stream("admin", run.ID, "")
	stream.next()
	waited := make(chan answered)
	go func() { waited <- r.do("member", "POST", "/v1/runs", `{"agent":"slow"}`, "Prefer", "wait=60") }()
	eventually(t, "the run waits", func() bool { return r.Ran.Count("slow") == 1 })
	start := time.Now()
	done := make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r.api.Drain(ctx)
		close(done)
	}()
	w.closes(1001)
	silent.closes(1001)
	w.conn.Close()
	silent.conn.Close()
	stream.ends()
	if a := <-waited; a.status != 201 {
		t.Errorf("a wait that the drain cut: %d %s", a.status, a.raw)
	}
	<-done
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("the drain took %v", took)
	}
	r.refused("", "GET", "/readyz", nil, 503, "unavailable")
	if w := r.handshake("admin"); w.status != 503 {
		t.Errorf("a new socket while draining: %d", w.status)
	}
	r.refused("admin", "GET", "/v1/runs/"+run.ID+"/events", nil, 503, "unavailable")
	if a := r.do("admin", "GET", "/v1/runs/"+run.ID, nil); a.status != 200 {
		t.Errorf("short requests still pass: %d", a.status)
	}
}

// A client that neither reads nor closes does not hold the drain beyond its time.
func TestDrainCutsOffWhoDoesNotClose(t *testing.T) {
	t.Parallel()
	r := dev(t)
	for range 5 {
		r.ws("admin")
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	r.api.Drain(ctx)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("the drain took %v", took)
	}
}

func TestSilentPeersArePingedAndDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true, KeepAlive: 500 * time.Millisecond}, hosttest.Options{})
	alive, dead := r.ws("member"), r.ws("member")
	stop := make(chan struct{})
	go func() { // answers pings
		defer close(stop)
		for {
			if _, err := alive.read(); err != nil {
				return
			}
		}
	}()
	eventually(t, "the dead one is dropped", func() bool { return strings.HasSuffix(metric(r, "pawl_websockets"), " 1") })
	dead.conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	alive.text(`{"type":"ping"}`)
	eventually(t, "the live one stays for a while", func() bool { return strings.HasSuffix(metric(r, "pawl_websockets"), " 1") })
	alive.conn.Close()
	<-stop
}

// An idle socket is a reader, a pump, and a few kilobytes.
func TestIdleSocketsAreCheap(t *testing.T) {
	r := dev(t)
	const n = 500
	runtime.GC()
	before := runtime.NumGoroutine()
	socks := make([]*rawWS, n)
	for i := range socks {
		socks[i] = r.ws("admin")
		socks[i].text(`{"type":"subscribe","id":"q","queue":true}`)
		socks[i].want("snapshot")
	}
	eventually(t, "no more than two goroutines a socket", func() bool { return runtime.NumGoroutine()-before <= 2*n+20 })
	run := r.paused("member")
	for _, w := range socks {
		for w.want("event")["event"].(map[string]any)["run_id"] != run.ID {
		}
	}
	for _, w := range socks {
		w.conn.Close()
	}
	eventually(t, "all goroutines end", func() bool { return runtime.NumGoroutine()-before <= 20 })
}

func TestFramesCountAgainstTheRateLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Rate: 0.001, Burst: 4}, hosttest.Options{})
	w := r.ws("member")
	for range 3 {
		w.text(`{"type":"ping"}`)
		w.want("pong")
	}
	w.text(`{"type":"ping","id":"x"}`)
	if p := w.problem(429, "x"); p["code"] != "rate_limited" {
		t.Errorf("%v", p)
	}
	if w := r.handshake("member"); w.status != 429 || w.header.Get("Retry-After") == "" {
		t.Errorf("%d %v", w.status, w.header)
	}
}

func TestSubscriptionsAreBoundedAndEndOneByOne(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	w := r.ws("admin")
	for i := range 64 {
		w.text(sub(fmt.Sprint(i), run.ID))
		w.want("pause")
	}
	w.text(sub("more", run.ID))
	w.problem(400, "more")
	for i := range 63 {
		w.text(map[string]any{"type": "unsubscribe", "id": fmt.Sprint(i)})
		w.want("ack")
	}
	r.ok("admin", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "reject"))
	for {
		m := w.want("event")
		if m["id"] != "63" {
			t.Errorf("an event of an ended subscription: %v", m)
		}
		if m["event"].(map[string]any)["type"] == "run.finished" {
			break
		}
	}
}

// A bug behind a socket ends that socket and not the process.
func TestAPanicBehindASocketEndsOnlyIt(t *testing.T) {
	t.Parallel()
	r := dev(t)
	h := new(host.Host) // panics where it is asked
	log := &hosttest.Log{}
	broken := api.New(h, api.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	web := httptest.NewServer(broken)
	defer web.Close()
	twin := &rig{Host: r.Host, t: t, web: web, keys: map[string]string{}}
	w := twin.handshake("")
	w.text(`{"type":"hello","token":"pawl_00000000000000000000000000000000_AAAA"}`)
	w.closes(1011)
	if !strings.Contains(log.String(), "nil pointer") || strings.Contains(log.String(), "pawl_0000") {
		t.Errorf("the log: %s", log)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	broken.Drain(ctx)
}
