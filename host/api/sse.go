package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/pawlhost/pawl/host"
)

// runEvents streams a run's log as server-sent events. A client that comes back with the id it saw last misses nothing
// and sees nothing twice, since the id is the log's sequence number.
func runEvents(s *Server, w http.ResponseWriter, r *request) error {
	from, problem := lastSeen(r)
	if problem != nil {
		_, err := s.host.GetRun(r.Context(), r.actor, r.params["run"])
		return first(err, problem)
	}
	ctx, release, err := s.hold(r.Context())
	if err != nil {
		return err
	}
	defer release()
	ctx, stop := s.untilRevoked(ctx, r.actor)
	defer stop()
	if err := s.authenticate(r); err != nil { // again: the key may have been revoked before it was watched
		return err
	}
	run, head, stream, err := s.host.WatchRun(ctx, r.actor, r.params["run"], &from)
	if err != nil {
		return err
	}
	defer stream.Close()
	if run.State.Ended() && from >= head {
		// 204 tells an EventSource to stop coming back; any other end makes it connect again for ever.
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back until its buffer is full
	h.Set("Connection", "close")     // its write deadline must not outlive it
	w.WriteHeader(http.StatusOK)
	out := eventWriter{w: w, rc: http.NewResponseController(w), timeout: s.opts.WriteTimeout}
	defer s.metrics.stream()()
	if out.comment() != nil {
		return nil
	}
	// The stream's own context ends it; a heartbeat must not, since an event that is being read would be lost with it.
	next := make(chan batch)
	reader := make(chan struct{})
	go func() {
		defer close(reader)
		defer func() {
			if p := recover(); p != nil {
				s.logPanic(p, r.trace, r.name())
				stop()
			}
		}()
		for {
			events, err := stream.Next(ctx)
			select {
			case next <- batch{events, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	defer func() { stop(); <-reader }() // before the stream is closed
	beat := time.NewTicker(s.opts.Heartbeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil // the client left, its key was revoked, or the host drains: it comes back with its cursor
		case <-beat.C:
			err = out.comment()
		case b := <-next:
			switch {
			case b.err == nil:
				beat.Reset(s.opts.Heartbeat)
				err = out.events(b.events)
			case errors.Is(b.err, io.EOF) || ctx.Err() != nil:
				return nil
			default:
				p, _ := json.Marshal(problemOf(b.err, r.trace))
				_ = out.write("event: error\ndata: " + string(p) + "\n\n")
				return b.err // the status is sent; the log may want it
			}
		}
		if err != nil {
			return nil // the client is gone or stuck
		}
	}
}

// batch is what one read of a stream gave.
type batch struct {
	events []host.Event
	err    error
}

// lastSeen reads where to go on: EventSource's own header, which is newer than the URL, or ?after=; else the first event.
func lastSeen(r *request) (uint64, error) {
	v := r.Header.Get("Last-Event-ID")
	if v == "" {
		v = r.query().Get("after")
	}
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		return 0, invalid("/after", "Last-Event-ID and after must be the id of an event, a number")
	}
	return n, nil
}

// untilRevoked ends ctx when the actor's key is revoked, or its token ends.
func (s *Server) untilRevoked(ctx context.Context, a host.Actor) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	if until := a.Until(); !until.IsZero() {
		end := time.AfterFunc(until.Sub(s.opts.Now()), cancel)
		context.AfterFunc(ctx, func() { end.Stop() })
	}
	revoked, release := s.host.Revoked(a.KeyID)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-revoked:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, sync.OnceFunc(func() { cancel(); <-done; release() })
}

// eventWriter writes events with a deadline each, so that a client which stopped reading holds its stream no longer.
type eventWriter struct {
	w       io.Writer
	rc      *http.ResponseController
	timeout time.Duration
	buf     bytes.Buffer
}

func (e *eventWriter) comment() error { return e.write(": \n\n") }

func (e *eventWriter) events(events []host.Event) error {
	e.buf.Reset()
	for _, ev := range events {
		if ev.Seq != 0 {
			e.buf.WriteString("id: " + strconv.FormatUint(ev.Seq, 10) + "\n")
		}
		e.buf.WriteString("event: " + ev.Type + "\ndata: ")
		// A line break would end the field; in JSON text it is white space and nothing else.
		e.buf.Write(bytes.ReplaceAll(bytes.ReplaceAll(ev.Data, []byte("\n"), nil), []byte("\r"), nil))
		e.buf.WriteString("\n\n")
	}
	return e.write(e.buf.String())
}

func (e *eventWriter) write(text string) error {
	_ = e.rc.SetWriteDeadline(time.Now().Add(e.timeout)) // unsupported only where there is no connection
	if _, err := io.WriteString(e.w, text); err != nil {
		return err
	}
	return e.rc.Flush()
}
