package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/telemetry"
)

// Close codes of the wire.
const (
	closeNormal          = websocket.CloseNormalClosure
	closeGoingAway       = websocket.CloseGoingAway
	closeUnsupported     = websocket.CloseUnsupportedData
	closeInvalidPayload  = websocket.CloseInvalidFramePayloadData
	closeTooBig          = websocket.CloseMessageTooBig
	closeUnauthenticated = 4401
	closeRevoked         = 4403
	closeSlow            = 4408
)

// What the close codes of an ended credential say.
const (
	revokedReason = "the key was revoked, or its principal disabled"
	expiredReason = "the token has ended: connect again with a new one"
)

const (
	maxMessage = 64 << 10
	// maxQueue bounds the bytes that wait for one client. Events wait for room below half of it, so that the rest is
	// for answers to what the client itself sends; one frame always fits, however large.
	maxQueue = 256 << 10
	maxSubs  = 64
	// lagAfter is how long events wait for room before the client is told that it lags.
	lagAfter = time.Second
)

// socket is one WebSocket. One goroutine reads and handles client frames; it never waits for the client to read. One
// goroutine a subscription pumps events. Whoever queues a frame starts the writer if none runs, so an idle socket costs
// its reader and its pumps.
type socket struct {
	s    *Server
	ws   *websocket.Conn
	conn *pacedConn
	ctx  context.Context // ends with the socket
	stop context.CancelFunc

	// of the reader
	actor   host.Actor
	authed  bool
	current func(context.Context) bool // whether the credential still holds
	watched string                     // the key, of the hub
	expiry  *time.Timer                // of a token that ends by itself
	trace   string

	pumps sync.WaitGroup
	turn  chan struct{} // of the subscription that makes a snapshot

	mu      sync.Mutex
	queue   []frame
	queued  int // bytes in queue and in the writer's hands
	writing bool
	room    chan struct{} // closed when queued falls; nil: nobody waits
	closing bool          // nothing more is queued; the close frame follows what is
	code    int
	reason  string
	subs    map[string]*subscription
	flushed chan struct{} // closed when the close frame was written, or nothing can be
}

// frame is one outgoing message.
type frame struct {
	kind int
	data []byte
}

var writeBuffers sync.Pool // shared by all sockets: an idle one holds none

func newSocket(s *Server, trace string) *socket {
	c := &socket{s: s, trace: trace, subs: map[string]*subscription{}, turn: make(chan struct{}, 1), flushed: make(chan struct{})}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// run reads until the socket ends, and ends everything that belongs to it.
func (c *socket) run() {
	defer func() {
		c.stop()
		if c.expiry != nil {
			c.expiry.Stop()
		}
		_ = c.conn.Close()
		c.pumps.Wait()
		<-c.flushed // the writer has ended
		c.s.sockets.remove(c)
	}()
	c.ws.SetPingHandler(func(data string) error {
		c.send(frame{websocket.PongMessage, []byte(data)})
		return nil
	})
	c.ws.SetCloseHandler(func(int, string) error { return nil }) // answered below: writing is not the reader's
	if c.authed {
		c.begin()
	} else {
		_ = c.conn.SetReadDeadline(time.Now().Add(c.s.opts.HelloTimeout))
	}
	code, reason, err := c.read()
	c.close(code, reason, false)
	c.mu.Lock()
	select {
	case <-c.flushed: // it set a deadline already
	default:
		_ = c.conn.SetReadDeadline(time.Now().Add(c.s.opts.WriteTimeout + stuckLinger))
	}
	c.mu.Unlock()
	c.discard(err)
}

// discard throws away what the client still sends, until its close frame or the end: a client that writes before it reads would
// wait for ever, and unread data would make the kernel reset the connection, and our close frame with it. err is the
// reader's error, if it has one.
func (c *socket) discard(err error) {
	for err == nil {
		var r io.Reader
		if _, r, err = c.ws.NextReader(); err == nil {
			_, err = io.Copy(io.Discard, r)
		}
	}
	if said, _ := peerClosed(err); said {
		select { // it has nothing more to say, and waits for our close frame
		case <-c.flushed:
		case <-time.After(c.s.opts.WriteTimeout + c.s.opts.Linger):
		}
		return
	}
	_, _ = io.Copy(io.Discard, c.conn)
}

// peerClosed reports whether err is the client's close frame, and its code.
func peerClosed(err error) (bool, int) {
	ce, ok := errors.AsType[*websocket.CloseError](err)
	if !ok || ce.Code == websocket.CloseAbnormalClosure { // which stands for a connection that broke
		return false, closeNormal
	}
	if ce.Code == websocket.CloseNoStatusReceived {
		return true, closeNormal
	}
	return true, ce.Code
}

// read handles frames until one ends the socket, and returns the close code that says why. An error is one of the
// connection, or the client's own close frame.
func (c *socket) read() (code int, reason string, err error) {
	for {
		kind, r, err := c.ws.NextReader()
		var data []byte
		if err == nil {
			data, err = io.ReadAll(io.LimitReader(r, maxMessage+1))
		}
		if err != nil {
			if said, code := peerClosed(err); said {
				return code, "", err
			}
			// The library hides the error's identity and keeps only this.
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() && !c.authed {
				c.fail(nil, &host.Error{Code: host.CodeUnauthenticated, Detail: "no hello with a token came in time"})
				return closeUnauthenticated, "no hello came in time", err
			}
			return websocket.CloseProtocolError, "", err
		}
		switch {
		case c.ended():
			return closeNormal, "", nil
		case kind == websocket.BinaryMessage:
			return closeUnsupported, "send JSON in text messages", nil
		case len(data) > maxMessage:
			return closeTooBig, "a message is at most 64 KiB", nil
		case !utf8.Valid(data):
			return closeInvalidPayload, "text must be UTF-8", nil
		}
		switch end, panicked := c.handleSafely(data); {
		case panicked:
			return websocket.CloseInternalServerErr, "something failed inside the host", nil
		case end:
			return closeUnauthenticated, "authenticate first", nil
		}
	}
}

// handleSafely is handle for a process that must outlive its bugs: net/http recovers what a request does, and nobody what a
// goroutine of a socket does.
func (c *socket) handleSafely(data []byte) (end, panicked bool) {
	defer func() {
		if p := recover(); p != nil {
			c.s.logPanic(p, c.trace, "/v1/ws")
			panicked = true
		}
	}()
	return c.handle(data), false
}

// send queues a frame that answers the client. A client that asks on and on without reading is closed as slow.
func (c *socket) send(f frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return
	}
	if c.queued > 0 && c.queued+len(f.data) > maxQueue {
		c.closeLocked(closeSlow, "answers are not read", true)
		return
	}
	c.put(f)
}

// push queues an event of a subscription and waits for room first, so that a backlog stays in the log and not in memory.
// It reports whether it had to wait so long that the client lags. It fails when ctx or the socket ends.
func (c *socket) push(ctx context.Context, f frame) (lagging bool, err error) {
	var since time.Time
	for {
		c.mu.Lock()
		if err := ctx.Err(); err != nil || c.closing {
			c.mu.Unlock()
			return false, errors.Join(err, errClosing)
		}
		if c.queued == 0 || c.queued+len(f.data) <= maxQueue/2 {
			c.put(f)
			c.mu.Unlock()
			return !since.IsZero() && time.Since(since) > lagAfter, nil
		}
		if c.room == nil {
			c.room = make(chan struct{})
		}
		room := c.room
		c.mu.Unlock()
		if since.IsZero() {
			since = time.Now()
		}
		select {
		case <-room:
		case <-ctx.Done():
		}
	}
}

var errClosing = errors.New("the socket is closing")

// put appends with c.mu held.
func (c *socket) put(f frame) {
	c.queue = append(c.queue, f)
	c.queued += len(f.data)
	c.startWriter()
}

func (c *socket) startWriter() {
	if !c.writing {
		c.writing = true
		go c.write() // ends before flushed is closed, or when the queue is empty
	}
}

// write empties the queue, and ends the socket when it is closing.
func (c *socket) write() {
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			if !c.closing {
				c.writing = false
				c.queue = nil
				c.mu.Unlock()
				return
			}
			code, reason := c.code, c.reason
			c.conn.corked.Store(false)
			c.mu.Unlock()
			_ = c.ws.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason))
			c.finish(c.s.opts.Linger)
			return
		}
		f := c.queue[0]
		c.queue = c.queue[1:]
		c.conn.corked.Store(len(c.queue) > 0)
		c.mu.Unlock()
		err := c.ws.WriteMessage(f.kind, f.data)
		c.mu.Lock()
		c.queued -= len(f.data)
		if c.room != nil {
			close(c.room)
			c.room = nil
		}
		if err != nil {
			c.closing = true
			c.queue = nil
			c.mu.Unlock()
			c.finish(0)
			return
		}
		c.mu.Unlock()
	}
}

// finish says that nothing more will be written. The reader has until linger to get the client's close frame.
func (c *socket) finish(linger time.Duration) {
	c.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.closeWrite()
	_ = c.conn.SetReadDeadline(time.Now().Add(linger))
	close(c.flushed)
}

// close ends the socket with a close frame after what is queued, or, with drop, instead of it. The first call counts.
func (c *socket) close(code int, reason string, drop bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeLocked(code, reason, drop)
}

func (c *socket) closeLocked(code int, reason string, drop bool) {
	if c.closing {
		return
	}
	c.closing, c.code, c.reason = true, code, reason
	if code == closeSlow {
		c.s.metrics.slow.Inc()
	}
	if drop {
		for _, f := range c.queue {
			c.queued -= len(f.data)
		}
		c.queue = nil
	}
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
	c.startWriter()
}

func (c *socket) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// abort cuts the connection.
func (c *socket) abort() { _ = c.conn.Close() }

func (c *socket) ping() { c.send(frame{kind: websocket.PingMessage}) }

// json queues a server frame. Its members are in the order of the wire's description.
func (c *socket) json(v any) {
	b, err := encode(v)
	if err != nil {
		c.s.log.Error("encode a frame", "error", err, "trace_id", c.trace)
		return
	}
	c.send(frame{websocket.TextMessage, bytes.TrimSuffix(b, []byte("\n"))})
}

type errorFrame struct {
	Type    string          `json:"type"`
	ID      json.RawMessage `json:"id,omitempty"`
	Problem Problem         `json:"problem"`
}

// fail queues an error frame.
func (c *socket) fail(id json.RawMessage, err error) {
	c.failIn(telemetry.With(c.ctx, c.s.host.Telemetry().Begin(telemetry.SpanContext{}, "frame")), id, err)
}

// failIn is fail in the trace of ctx.
func (c *socket) failIn(ctx context.Context, id json.RawMessage, err error) {
	trace := telemetry.TraceID(ctx)
	if host.CodeOf(err) == host.CodeInternal && !isIJSON(err) && !errors.Is(err, context.Canceled) {
		c.s.log.Error("frame failed", "trace_id", trace, "error", err)
	}
	c.json(errorFrame{"error", id, problemOf(err, trace)})
}

// begin tells the client who it is; once a socket, as soon as that is known.
func (c *socket) begin() {
	c.s.sockets.watch(c, c.actor.KeyID)
	a, err := c.s.host.Fresh(c.ctx, c.actor) // a ticket remembers who asked for it
	if err != nil || !c.current(c.ctx) {
		c.close(closeRevoked, revokedReason, true)
		return
	}
	c.actor = a
	if until := c.actor.Until(); !until.IsZero() {
		c.expiry = time.AfterFunc(until.Sub(c.s.opts.Now()), func() { c.close(closeUnauthenticated, expiredReason, true) })
	}
	c.json(struct {
		Type      string    `json:"type"`
		Principal string    `json:"principal"`
		Time      host.Time `json:"time"`
		Tenant    string    `json:"tenant"`
		Kind      string    `json:"kind"`
		Roles     []string  `json:"roles"`
	}{"welcome", c.actor.ID, host.Time(c.s.opts.Now()), c.actor.Tenant, c.actor.Kind, listOf(c.actor.Roles)})
}

// eventFrame puts a stored event into a frame by hand: its data is JSON already, and encoding it again for each of 10,000
// readers would be most of the work.
func eventFrame(id json.RawMessage, cursor string, e host.Event) frame {
	b := make([]byte, 0, len(e.Data)+len(id)+len(cursor)+64)
	b = append(b, `{"type":"event","id":`...)
	b = append(b, id...)
	switch {
	case cursor != "":
		b = append(b, `,"cursor":`...)
		b = strconv.AppendQuote(b, cursor) // cursors are ASCII without control characters
	case e.Seq != 0:
		b = append(b, `,"seq":`...)
		b = strconv.AppendUint(b, e.Seq, 10)
	}
	b = append(b, `,"event":`...)
	b = append(b, e.Data...)
	return frame{websocket.TextMessage, append(b, '}')}
}
