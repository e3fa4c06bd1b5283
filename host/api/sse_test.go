package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
)

// eventStream is an SSE client.
type eventStream struct {
	t      testing.TB
	resp   *http.Response
	br     *bufio.Reader
	cancel context.CancelFunc
}

type sse struct{ id, event, data, comment string }

func (r *rig) stream(who, run, lastID string) *eventStream {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	req, err := http.NewRequestWithContext(ctx, "GET", r.web.URL+"/v1/runs/"+run+"/events", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	key := r.keys[who]
	if key == "" {
		key = who
	}
	req.Header.Set("Authorization", "Bearer "+key)
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := r.web.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	s := &eventStream{r.t, resp, bufio.NewReader(io.TeeReader(resp.Body, seen{r})), cancel}
	r.t.Cleanup(s.close)
	return s
}

type seen struct{ r *rig }

func (s seen) Write(b []byte) (int, error) { s.r.see(b); return len(b), nil }

func (s *eventStream) close() { s.cancel(); s.resp.Body.Close() }

// read returns the next event or comment.
func (s *eventStream) read() (e sse, err error) {
	for {
		line, err := s.br.ReadString('\n')
		if err != nil {
			return e, err
		}
		line = strings.TrimSuffix(line, "\n")
		switch name, value, _ := strings.Cut(line, ": "); name {
		case "":
			if line == "" {
				return e, nil
			}
			e.comment += ":"
		case "id":
			e.id = value
		case "event":
			e.event = value
		case "data":
			e.data += value
		default:
			return e, fmt.Errorf("line %q", line)
		}
	}
}

// next returns the next event.
func (s *eventStream) next() sse {
	s.t.Helper()
	for {
		e, err := s.read()
		if err != nil {
			s.t.Fatalf("stream: %v", err)
		}
		if e.event != "" {
			return e
		}
	}
}

func (s *eventStream) ends() {
	s.t.Helper()
	for {
		if _, err := s.read(); err != nil {
			if err != io.EOF {
				s.t.Errorf("the stream ended with %v", err)
			}
			return
		}
	}
}

func TestEventStreamTellsTheWholeRunAndEnds(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	s := r.stream("member", run.ID, "")
	if s.resp.StatusCode != 200 || s.resp.Header.Get("Content-Type") != "text/event-stream" || s.resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("%d %v", s.resp.StatusCode, s.resp.Header)
	}
	var types []string
	for n := 1; ; n++ {
		e := s.next()
		var data struct {
			Seq  int    `json:"seq"`
			Type string `json:"type"`
			Run  string `json:"run_id"`
		}
		if err := json.Unmarshal([]byte(e.data), &data); err != nil {
			t.Fatal(err)
		}
		if e.id != fmt.Sprint(n) || data.Seq != n || data.Type != e.event || data.Run != run.ID {
			t.Errorf("event %d: %+v", n, e)
		}
		if strings.Contains(e.data, "resume_token") {
			t.Errorf("an event with a token: %s", e.data)
		}
		types = append(types, e.event)
		if e.event == "run.paused" {
			r.ok("admin", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"))
		}
		if e.event == "run.finished" {
			break
		}
	}
	s.ends()
	want := "run.created run.started approval.requested run.paused approval.decided run.resumed call.started call.finished message run.finished"
	if got := strings.Join(types, " "); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	// From every event on, the rest, once.
	for i := range types {
		s := r.stream("admin", run.ID, fmt.Sprint(i))
		for n := i; n < len(types); n++ {
			if e := s.next(); e.id != fmt.Sprint(n+1) || e.event != types[n] {
				t.Errorf("after %d: %+v, want %d %s", i, e, n+1, types[n])
			}
		}
		s.ends()
	}
	// Who has seen the end is told not to come back.
	if s := r.stream("admin", run.ID, fmt.Sprint(len(types))); s.resp.StatusCode != 204 {
		t.Errorf("after the last event: %d", s.resp.StatusCode)
	}
	if a := r.refused("admin", "GET", "/v1/runs/"+run.ID+"/events?after=x", nil, 400, "invalid"); a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%v", a.header)
	}
	r.refused("admin", "GET", "/v1/runs/"+run.ID+"/events?after=999", nil, 400, "invalid")
}

func TestEventStreamBeatsWhileNothingHappensAndLosesNothingByIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true, Heartbeat: 5 * time.Millisecond}, hosttest.Options{})
	run := r.paused("member")
	s := r.stream("member", run.ID, "4")
	for range 10 {
		if e, err := s.read(); err != nil || e.comment == "" {
			t.Fatalf("%+v %v", e, err)
		}
	}
	r.ok("admin", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"))
	for n := 5; ; n++ {
		e := s.next()
		if e.id != fmt.Sprint(n) {
			t.Errorf("event %+v, want %d", e, n)
		}
		if e.event == "run.finished" {
			break
		}
	}
}

// What a stream holds ends with its client.
func TestEventStreamIsReleasedWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true, Heartbeat: 20 * time.Millisecond, WriteTimeout: 200 * time.Millisecond}, hosttest.Options{})
	run := r.paused("member")
	for range 5 {
		s := r.stream("member", run.ID, "")
		s.next()
		s.close()
	}
	eventually(t, "the streams end", func() bool { return strings.HasSuffix(metric(r, "pawl_event_streams"), " 0") })
}

// A client that stops reading without closing holds its stream no longer than one write may take.
func TestEventStreamOfAStuckClientIsDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true, WriteTimeout: 200 * time.Millisecond}, hosttest.Options{})
	run := r.run("member", "ext")
	big := strings.Repeat("x", 900<<10)
	c, err := net.Dial("tcp", r.web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /v1/runs/%s/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", run.ID, r.keys["member"])
	eventually(t, "the stream is open", func() bool { return strings.HasSuffix(metric(r, "pawl_event_streams"), " 1") })
	for turn := 1; turn <= 8; turn++ {
		r.ok("member", "POST", "/v1/runs/"+run.ID+"/calls", fmt.Sprintf(`{"turn":%d,"calls":[{"tool_call_id":"c","tool":"echo","arguments":{"x":%q}}]}`, turn, big))
		r.Settled(run.ID)
	}
	eventually(t, "the stuck client is dropped", func() bool { return strings.HasSuffix(metric(r, "pawl_event_streams"), " 0") })
}

// One key has only so many streams and requests open at a time; another key has its own, and a closed one makes room.
func TestOpenRequestsOfOneKeyAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Rate: 10_000, Burst: 10_000}, hosttest.Options{})
	run := r.paused("member")
	var open []*eventStream
	for range 64 {
		s := r.stream("member", run.ID, "")
		if s.resp.StatusCode != 200 {
			t.Fatalf("stream %d: %d", len(open)+1, s.resp.StatusCode)
		}
		open = append(open, s)
	}
	if a := r.refused("member", "GET", "/v1/tools", nil, 429, "rate_limited"); a.header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After: %v", a.header)
	}
	r.ok("admin", "GET", "/v1/tools", nil)
	open[0].close()
	eventually(t, "there is room again", func() bool { return r.do("member", "GET", "/v1/tools", nil).status == 200 })
}
