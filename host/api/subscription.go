package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/gorilla/websocket"

	"github.com/pawlhost/pawl/host"
)

// subscription is a pump of events into a socket.
type subscription struct {
	c      *socket
	actor  host.Actor
	id     json.RawMessage
	cancel context.CancelFunc
	done   chan struct{}

	run   string  // "" for the queue
	after *uint64 // of a run
	from  string  // of the queue

	paused string // the pause that was sent last
}

func (c *socket) subscribe(id json.RawMessage, a host.Actor, data []byte) error {
	var f subscribeFrame
	if err := unmarshal(data, &f); err != nil {
		return err
	}
	s := &subscription{c: c, actor: a, id: id, run: f.Run, done: make(chan struct{})}
	switch {
	case f.Run != "" && f.Queue:
		return invalid("/queue", "subscribe to a run or to the queue, not both")
	case f.Run == "" && !f.Queue:
		return missing("/run")
	}
	if err := s.position(f.After); err != nil {
		return err
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(c.ctx)
	c.mu.Lock()
	_, taken := c.subs[string(id)]
	full := len(c.subs) >= maxSubs
	if !taken && !full {
		c.subs[string(id)] = s
	}
	c.mu.Unlock()
	switch {
	case taken:
		s.cancel()
		return invalid("/id", "a subscription with this id is open: unsubscribe it or take another id")
	case full:
		s.cancel()
		return invalid("/id", "too many subscriptions on one socket: at most "+strconv.Itoa(maxSubs))
	}
	c.pumps.Go(func() {
		defer close(s.done)
		defer s.cancel()
		defer func() {
			if p := recover(); p != nil {
				c.s.logPanic(p, c.trace, "/v1/ws")
				c.close(websocket.CloseInternalServerErr, "something failed inside the host", true)
			}
		}()
		err := s.pump(ctx)
		c.mu.Lock()
		delete(c.subs, string(id))
		c.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			c.fail(id, err)
		}
	})
	return nil
}

// unsubscribe returns when nothing of the subscription is queued any more. An id that is not open is fine: it may have
// ended with its run a moment ago.
func (c *socket) unsubscribe(id string) {
	c.mu.Lock()
	s := c.subs[id]
	c.mu.Unlock()
	if s != nil {
		s.cancel()
		<-s.done
	}
}

// position reads after: absent, from now; 0, from the start; else the sequence number of a run or the cursor of the queue.
func (s *subscription) position(after json.RawMessage) error {
	kind := jsontext.Value(after).Kind()
	switch {
	case after == nil:
	case s.run == "" && kind == '"':
		_ = json.Unmarshal(after, &s.from)
		if s.from == "" {
			return invalid("/after", "an empty cursor: leave after out to begin now, or send 0")
		}
	case s.run == "" && string(after) == "0":
		s.from = "0"
	case s.run == "":
		return invalid("/after", "wrong type: the queue's cursor is a string")
	default:
		n, err := strconv.ParseUint(string(after), 10, 64)
		if err != nil {
			return invalid("/after", "wrong type: the number of an event is needed here")
		}
		s.after = &n
	}
	return nil
}

// pump sends the snapshot, then events until they end. A cursor that the log no longer has is told, and followed by a new
// snapshot and the events from now on.
func (s *subscription) pump(ctx context.Context) error {
	for {
		err := s.follow(ctx)
		if host.CodeOf(err) != host.CodeCursorExpired || s.after == nil && s.from == "" {
			return err
		}
		s.c.fail(s.id, err)
		s.after, s.from = nil, ""
	}
}

func (s *subscription) follow(ctx context.Context) error {
	stream, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		events, err := stream.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			if err := s.event(ctx, stream, e); err != nil {
				return err
			}
		}
	}
}

// begin opens the stream and sends the snapshot. A snapshot may be large and waits for room in the queue, so that a socket makes
// one at a time: a client that subscribes on and on and does not read costs one.
func (s *subscription) begin(ctx context.Context) (*host.Stream, error) {
	select {
	case s.c.turn <- struct{}{}:
		defer func() { <-s.c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.run == "" {
		pending, next, stream, err := s.c.s.host.WatchQueue(ctx, s.actor, s.from)
		if err != nil {
			return nil, err
		}
		return s.opened(stream, s.push(ctx, struct {
			Type      string          `json:"type"`
			ID        json.RawMessage `json:"id"`
			Cursor    string          `json:"cursor"`
			Approvals []host.Approval `json:"approvals"`
		}{"snapshot", s.id, next, listOf(pending)}))
	}
	run, seq, stream, err := s.c.s.host.WatchRun(ctx, s.actor, s.run, s.after)
	if err != nil {
		return nil, err
	}
	err = s.push(ctx, struct {
		Type string          `json:"type"`
		ID   json.RawMessage `json:"id"`
		Seq  uint64          `json:"seq"`
		Run  host.Run        `json:"run"`
	}{"snapshot", s.id, seq, run})
	if err == nil && run.Pause != nil {
		err = s.pause(ctx, run.Pause.ID)
	}
	return s.opened(stream, err)
}

// opened closes a stream whose snapshot could not be sent.
func (s *subscription) opened(stream *host.Stream, err error) (*host.Stream, error) {
	if err != nil {
		stream.Close()
		return nil, err
	}
	return stream, nil
}

func (s *subscription) event(ctx context.Context, stream *host.Stream, e host.Event) error {
	cursor := ""
	if s.run == "" {
		cursor = stream.Cursor(e)
		s.from = cursor
	} else if e.Seq != 0 {
		s.after = &e.Seq
	}
	lagging, err := s.c.push(ctx, eventFrame(s.id, cursor, e))
	if err != nil {
		return err
	}
	if lagging {
		if err := s.push(ctx, struct {
			Type string          `json:"type"`
			ID   json.RawMessage `json:"id"`
		}{"lagging", s.id}); err != nil {
			return err
		}
	}
	// Whoever watches the queue decides by approval id; the token is for who follows the run.
	if s.run != "" && e.Type == "run.paused" {
		var p struct {
			PauseID string `json:"pause_id"`
		}
		if err := json.Unmarshal(e.Data, &p); err != nil {
			return err
		}
		return s.pause(ctx, p.PauseID)
	}
	return nil
}

// pause sends the open pause, if it is still the one that was seen: a later one has an event of its own, which follows.
func (s *subscription) pause(ctx context.Context, id string) error {
	if s.paused == id {
		return nil
	}
	a, err := s.c.s.host.Fresh(ctx, s.actor) // the token is for who may have it now
	if err != nil {
		return err
	}
	p, err := s.c.s.host.OpenPause(ctx, a, s.run)
	if err != nil || p == nil || p.ID != id {
		return err
	}
	s.paused = id
	return s.push(ctx, struct {
		Type  string          `json:"type"`
		ID    json.RawMessage `json:"id"`
		Pause *host.Pause     `json:"pause"`
	}{"pause", s.id, p})
}

func (s *subscription) push(ctx context.Context, v any) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	_, err = s.c.push(ctx, frame{websocket.TextMessage, b[:len(b)-1]})
	return err
}
