package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

type run struct {
	ID    string
	State string
	Pause *struct {
		Approvals []struct {
			ID string
		}
	}
}

// watcher is one socket on the tenant's queue; it tells who waits for a run that it has ended.
type watcher struct {
	conn *websocket.Conn
	mu   sync.Mutex
	ends map[string]chan string
}

// dial opens a socket; with queue it watches the queue, and its snapshot has been read.
func (s *server) dial(ctx context.Context, who string, queue bool) (*websocket.Conn, error) {
	d := websocket.Dialer{Subprotocols: []string{"pawl.v1"}, HandshakeTimeout: 30 * time.Second, ReadBufferSize: 1024, WriteBufferSize: 512}
	conn, resp, err := d.DialContext(ctx, "ws://"+s.addr+"/v1/ws", http.Header{"Authorization": {"Bearer " + s.keys[who]}})
	if err != nil {
		if resp != nil {
			err = fmt.Errorf("%w: %s", err, resp.Status)
		}
		return nil, err
	}
	want := "welcome"
	if queue {
		want = "snapshot"
		if err := conn.WriteJSON(map[string]any{"type": "subscribe", "id": "1", "queue": true}); err != nil {
			return nil, err
		}
	}
	for {
		var frame struct{ Type string }
		if err := conn.ReadJSON(&frame); err != nil {
			return nil, err
		}
		if frame.Type == want {
			return conn, nil
		}
	}
}

func (w *watcher) read() {
	for {
		var frame struct {
			Event struct {
				Type, State string
				RunID       string `json:"run_id"`
			}
		}
		if w.conn.ReadJSON(&frame) != nil {
			return
		}
		if frame.Event.Type == "run.finished" {
			w.of(frame.Event.RunID) <- frame.Event.State
		}
	}
}

// of returns the channel of a run, whoever asks first.
func (w *watcher) of(id string) chan string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ends[id] == nil {
		w.ends[id] = make(chan string, 1)
	}
	return w.ends[id]
}

func (w *watcher) forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ends, id)
}

// cycle is one pause → decide → finish.
func (s *server) cycle(ctx context.Context, w *watcher, agent string) error {
	var r run
	if err := s.call(ctx, "member", http.MethodPost, "/v1/runs", map[string]any{"agent": agent}, &r); err != nil {
		return err
	}
	if r.Pause == nil && !until(ctx, 10*time.Second, func() bool {
		id := r.ID
		r = run{}
		return s.call(ctx, "member", http.MethodGet, "/v1/runs/"+id, nil, &r) == nil && r.Pause != nil
	}) {
		return errors.New("the run does not stop")
	}
	decisions := []any{map[string]any{"approval_id": r.Pause.Approvals[0].ID, "kind": "approve"}}
	if err := s.call(ctx, "admin", http.MethodPost, "/v1/runs/"+r.ID+"/approvals", map[string]any{"decisions": decisions}, nil); err != nil {
		return err
	}
	defer w.forget(r.ID)
	select {
	case state := <-w.of(r.ID):
		if state != "succeeded" {
			return fmt.Errorf("run %s %s", r.ID, state)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(20 * time.Second):
		return fmt.Errorf("run %s does not end", r.ID)
	}
}

// saveAgents saves n agents that write a file each, below /memories/, so that the call stops by the default rule.
func (s *server) saveAgents(ctx context.Context, n int) error {
	for i := range n {
		doc := map[string]any{
			"planner": map[string]any{"kind": "script", "turns": []any{
				map[string]any{"calls": []any{map[string]any{"tool": "write_file", "arguments": map[string]any{"path": fmt.Sprintf("/memories/%d", i), "content": "hi"}}}},
				map[string]any{"final": "done"},
			}},
			"tools": []string{"write_file"},
		}
		if err := s.call(ctx, "owner", http.MethodPut, fmt.Sprintf("/v1/agents/a%d", i), doc, nil); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) cycles(ctx context.Context) error {
	s, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.saveAgents(ctx, 64); err != nil {
		return err
	}
	conn, err := s.dial(ctx, "admin", true)
	if err != nil {
		return err
	}
	defer conn.Close()
	w := &watcher{conn: conn, ends: map[string]chan string{}}
	go w.read()

	for _, clients := range []int{1, 16, 64} {
		if _, _, err := s.load(ctx, w, clients, b.seconds/4); err != nil { // warm
			return err
		}
		before, err := s.commits(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		n, times, err := s.load(ctx, w, clients, b.seconds)
		if err != nil {
			return err
		}
		rate := float64(n) / time.Since(began).Seconds()
		after, err := s.commits(ctx)
		if err != nil {
			return err
		}
		r := result{
			Name: fmt.Sprintf("pause → decide → finish over HTTP, %d clients", clients), Value: rate, Unit: "/s",
			Note: fmt.Sprintf("%.1f commits a cycle, p50 %s, p99 %s", (after-before)/float64(n), percentile(times, 50), percentile(times, 99)),
		}
		if clients == 64 {
			r = r.least(1000)
		}
		b.report(r)
	}
	const alone = 200
	before, err := s.commits(ctx)
	if err != nil {
		return err
	}
	n, ok, err := s.syncs(ctx, func() error {
		for range alone {
			if err := s.cycle(ctx, w, "a0"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	after, err := s.commits(ctx)
	if err != nil {
		return err
	}
	b.report(result{Name: "durable commits a cycle, alone", Value: (after - before) / alone, Note: "each is one sync of the store's log"}.most(4))
	r := result{Name: "sync calls a cycle, alone (strace)", Value: n / alone, Note: "two a commit: Badger also syncs its value log, which has nothing new"}
	if !ok || n == 0 {
		r.Note = "not measured: needs strace, and the right to use it"
	}
	b.report(r)
	return nil
}

// load runs cycles from so many clients for so long; it returns how many there were and how long each took.
func (s *server) load(ctx context.Context, w *watcher, clients int, howLong time.Duration) (int, []time.Duration, error) {
	end := time.Now().Add(howLong)
	var mu sync.Mutex
	var times []time.Duration
	var first error
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for time.Now().Before(end) {
				began := time.Now()
				err := s.cycle(ctx, w, fmt.Sprintf("a%d", i))
				mu.Lock()
				times = append(times, time.Since(began))
				if err != nil && first == nil {
					first = err
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return len(times), times, first
}

func percentile(times []time.Duration, p int) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(len(times)-1, len(times)*p/100)].Round(10 * time.Microsecond)
}
