package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// fanout measures from the moment a decision is sent until its event is read from a socket, with many connected.
func (b *bench) fanout(ctx context.Context) error {
	connected, rounds := 10_000, 40
	if b.quick {
		connected, rounds = 500, 5
	}
	s, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.saveAgents(ctx, 1); err != nil {
		return err
	}
	const some = 100
	f := &fan{seen: map[string]chan time.Time{}}
	defer f.close()
	if err := f.connect(ctx, s, connected-some, false); err != nil {
		return err
	}
	if err := f.connect(ctx, s, some, true); err != nil {
		return err
	}
	each, _, err := f.measure(ctx, s, some, rounds)
	if err != nil {
		return err
	}
	r := result{Name: fmt.Sprintf("decision → event, %d connected, %d watching, p99", connected, some), Value: ms(percentile(each, 99)), Unit: "ms",
		Note: fmt.Sprintf("p50 %s", percentile(each, 50))}
	b.report(r.most(10))

	if err := f.watch(s); err != nil {
		return err
	}
	_, last, err := f.measure(ctx, s, connected, max(rounds/8, 2))
	if err != nil {
		return err
	}
	r = result{Name: fmt.Sprintf("decision → event, %d connected, all watching, the last", connected), Value: ms(percentile(last, 50)), Unit: "ms",
		Note: fmt.Sprintf("worst %s", percentile(last, 100))}
	b.report(r.most(300))
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// fan is the many sockets.
type fan struct {
	idle []*websocket.Conn // connected, not watching
	all  []*websocket.Conn
	wg   sync.WaitGroup

	mu   sync.Mutex
	seen map[string]chan time.Time // approval → when each watcher read its event
}

// connect opens sockets, some at a time.
func (f *fan) connect(ctx context.Context, s *server, n int, queue bool) error {
	var mu sync.Mutex
	var first error
	slots := make(chan struct{}, 64)
	var wg sync.WaitGroup
	for range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			conn, err := s.dial(ctx, "admin", queue)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				first = errors.Join(first, err)
				return
			}
			f.all = append(f.all, conn)
			if queue {
				f.wg.Go(func() { f.read(conn) })
			} else {
				f.idle = append(f.idle, conn)
			}
		})
		if first != nil {
			break
		}
	}
	wg.Wait()
	return first
}

// watch makes the idle sockets watch the queue.
func (f *fan) watch(s *server) error {
	for _, conn := range f.idle {
		if err := conn.WriteJSON(map[string]any{"type": "subscribe", "id": "1", "queue": true}); err != nil {
			return err
		}
	}
	for _, conn := range f.idle {
		for {
			var frame struct{ Type string }
			if err := conn.ReadJSON(&frame); err != nil {
				return err
			}
			if frame.Type == "snapshot" {
				break
			}
		}
		f.wg.Go(func() { f.read(conn) })
	}
	f.idle = nil
	return nil
}

func (f *fan) read(conn *websocket.Conn) {
	for {
		_, raw, err := conn.ReadMessage()
		if err != nil {
			return
		}
		now := time.Now()
		var frame struct {
			Event struct {
				Type       string
				ApprovalID string `json:"approval_id"`
			}
		}
		if json.Unmarshal(raw, &frame) != nil || frame.Event.Type != "approval.decided" {
			continue
		}
		f.mu.Lock()
		to := f.seen[frame.Event.ApprovalID]
		f.mu.Unlock()
		if to != nil {
			to <- now
		}
	}
}

// measure decides rounds times. each has the time of every watcher, last that of the last watcher of each round.
func (f *fan) measure(ctx context.Context, s *server, watchers, rounds int) (each, last []time.Duration, err error) {
	for range rounds {
		var r run
		if err := s.call(ctx, "member", http.MethodPost, "/v1/runs", map[string]any{"agent": "a0"}, &r); err != nil {
			return nil, nil, err
		}
		if r.Pause == nil {
			return nil, nil, errors.New("the run did not stop")
		}
		id := r.Pause.Approvals[0].ID
		got := make(chan time.Time, watchers)
		f.mu.Lock()
		f.seen[id] = got
		f.mu.Unlock()
		// The pause's own events go out to everybody first.
		select {
		case <-time.After(time.Duration(watchers/20+20) * time.Millisecond):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		began := time.Now()
		decisions := []any{map[string]any{"approval_id": id, "kind": "reject"}}
		if err := s.call(ctx, "admin", http.MethodPost, "/v1/runs/"+r.ID+"/approvals", map[string]any{"decisions": decisions}, nil); err != nil {
			return nil, nil, err
		}
		var worst time.Duration
		for i := range watchers {
			select {
			case at := <-got:
				took := at.Sub(began)
				each, worst = append(each, took), max(worst, took)
			case <-time.After(20 * time.Second):
				return nil, nil, fmt.Errorf("%d of %d watchers saw the decision", i, watchers)
			}
		}
		last = append(last, worst)
	}
	return each, last, nil
}

func (f *fan) close() {
	for _, c := range f.all {
		c.Close()
	}
	f.wg.Wait()
}
