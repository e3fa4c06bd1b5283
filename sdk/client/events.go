package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// Event is one event of a run. Seq is 0 for transient ones (call.progress, message.delta). Data is the whole object.
type Event struct {
	Seq   uint64
	Type  string
	RunID string
	Time  time.Time
	Data  json.RawMessage
}

func (e *Event) parse(data []byte) error {
	var v struct {
		Seq   uint64    `json:"seq"`
		Type  string    `json:"type"`
		RunID string    `json:"run_id"`
		Time  time.Time `json:"time"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("pawl: an event that is not JSON: %w", err)
	}
	*e = Event{v.Seq, v.Type, v.RunID, v.Time, data}
	return nil
}

// Events yields the events of a run after a sequence number (0: from the first), and ends after run.finished. A connection
// that breaks is opened again where it stopped, so that every stored event comes once; the loop gives up when Retries
// connections in a row brought nothing. The last pair carries the error, if there is one.
func (c *Client) Events(ctx context.Context, run string, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		barren := 0
		for {
			got, done, err := c.follow(ctx, run, &after, yield)
			switch {
			case done:
				return
			case ctx.Err() != nil:
				err = ctx.Err()
			case err == nil && got:
				barren = 0
				continue
			case err == nil && barren < c.Retries:
				barren++
				continue
			case err == nil:
				err = fmt.Errorf("pawl: the stream of events ends without the run's end")
			}
			yield(Event{}, err)
			return
		}
	}
}

// follow reads one connection. done: the run has ended or the consumer has left.
func (c *Client) follow(ctx context.Context, run string, after *uint64, yield func(Event, error) bool) (got, done bool, err error) {
	h := http.Header{"Accept": {"text/event-stream"}}
	if *after > 0 {
		h.Set("Last-Event-ID", strconv.FormatUint(*after, 10))
	}
	resp, err := c.send(ctx, call{method: http.MethodGet, path: runPath(run, "/events"), header: h})
	if err != nil {
		return false, false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return false, true, nil // the end has been seen
	}
	in := bufio.NewReaderSize(resp.Body, 32<<10)
	var data []byte
	kind := ""
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if err != io.EOF && ctx.Err() != nil {
				return got, false, ctx.Err()
			}
			return got, false, nil // broken off: an event without its empty line does not count
		}
		line = bytes.TrimRight(line, "\r\n")
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			kind = string(value)
		case "data":
			data = append(data, value...)
		}
		if len(line) > 0 || len(data) == 0 {
			continue
		}
		if kind == "error" {
			p := &Problem{}
			if err := json.Unmarshal(data, p); err != nil {
				return got, false, err
			}
			return got, false, p
		}
		var e Event
		if err := e.parse(data); err != nil {
			return got, false, err
		}
		data, kind, got = nil, "", true
		if e.Seq > 0 {
			*after = e.Seq
		}
		if !yield(e, nil) || e.Type == "run.finished" {
			return got, true, nil
		}
	}
}
