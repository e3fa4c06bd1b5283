package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/gorilla/websocket"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/ijson"
)

const (
	subprotocol    = "pawl.v1"
	ticketProtocol = "pawl.ticket."
)

// webSocket upgrades a request. The origin comes first, so that a foreign page learns nothing about its visitor's
// credentials; then the credential, if one was sent; then whether this is an upgrade at all.
func webSocket(s *Server, w http.ResponseWriter, r *request) error {
	if !s.originAllowed(r.Request) {
		return &host.Error{Code: host.CodeForbidden, Detail: "pages of this origin may not connect: the operator can allow it", Reasons: []string{"foreign origin"}}
	}
	upgrade := websocket.IsWebSocketUpgrade(r.Request)
	offered := protocols(r.Header)
	authed, current, err := s.wsCredential(r, offered)
	if err != nil {
		return err
	}
	if authed {
		if err := s.limit(w, r.actor); err != nil {
			return err
		}
		if err := s.host.May(r.Context(), r.actor, "ws.connect"); err != nil {
			return err
		}
	}
	if !upgrade {
		if !authed {
			return errNoKey()
		}
		return &host.Error{Code: codeUpgradeRequired, Detail: "this route speaks WebSocket: send an upgrade"}
	}
	if !acceptable(offered) {
		return invalid("", "none of the offered subprotocols is "+subprotocol)
	}
	if s.draining.Err() != nil {
		return errDraining()
	}
	c := newSocket(s, r.trace)
	c.actor, c.authed, c.current = r.actor, authed, current
	up := websocket.Upgrader{
		ReadBufferSize: 1024, WriteBufferSize: 4096, WriteBufferPool: &writeBuffers,
		Subprotocols: []string{subprotocol},
		CheckOrigin:  func(*http.Request) bool { return true }, // asked above
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			w.Header().Set("Sec-WebSocket-Version", "13")
			fail(w, invalid("", strings.TrimPrefix(reason.Error(), "websocket: ")), r.trace)
		},
	}
	c.ws, err = up.Upgrade(pacing{w, c}, r.Request, nil)
	if err != nil {
		return nil //nolint:nilerr // answered by Error above, or the connection is gone
	}
	if !s.sockets.add(c) {
		_ = c.conn.Close()
	}
	return nil
}

// originAllowed: a browser always tells the origin of a WebSocket's page, and no page can hide or change it. A client
// without one is not a browser. Scheme, host and port count; X-Forwarded headers do not, since anybody can send them.
func (s *Server) originAllowed(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	origin := strings.ToLower(origins[0])
	return origin == scheme+strings.ToLower(r.Host) || s.origins[origin]
}

func protocols(h http.Header) []string {
	var all []string
	for _, line := range h.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(line, ",") {
			if p = strings.TrimSpace(p); p != "" {
				all = append(all, p)
			}
		}
	}
	return all
}

// acceptable: a client that names protocols must name ours; a ticket is a credential and not a protocol, and is never
// echoed, so a client that sends one has to offer ours beside it. One that names none takes what comes.
func acceptable(offered []string) bool {
	if len(offered) == 0 {
		return true
	}
	for _, p := range offered {
		if p == subprotocol {
			return true
		}
	}
	return false
}

// wsCredential authenticates by the Authorization header or a ticket. A credential that is there and bad is an error; none
// is fine, the socket then has to say hello. current tells whether the credential still holds; it is asked once more when
// the socket is registered for its revocation, which may have come in between.
func (s *Server) wsCredential(r *request, offered []string) (authed bool, current func(context.Context) bool, err error) {
	found, tickets := "", 0
	for _, p := range offered {
		if t, ok := strings.CutPrefix(p, ticketProtocol); ok {
			found = t
			tickets++
		}
	}
	if tickets > 0 {
		k, ok := s.tickets.redeem(found)
		if tickets > 1 || !ok || !k.current(r.Context()) { // its key may have been revoked since
			return false, nil, errTicket()
		}
		r.actor, current = k.actor, k.current
	}
	if len(r.Header.Values("Authorization")) > 0 {
		key, _ := bearer(r.Header)
		return true, s.holds(key), s.authenticate(r)
	}
	return tickets > 0, current, nil
}

// holds makes a check of a key for later, when its request is over.
func (s *Server) holds(key string) func(context.Context) bool {
	return func(ctx context.Context) bool {
		_, err := s.host.Authenticate(ctx, key)
		return err == nil
	}
}

func errTicket() *host.Error {
	return &host.Error{Code: host.CodeUnauthenticated, Detail: "the ticket is unknown, used or expired: POST /v1/ws/ticket gives another"}
}

// pacing hands the upgrader a connection with our write deadlines.
type pacing struct {
	http.ResponseWriter
	c *socket
}

// Hijack implements http.Hijacker.
func (p pacing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	raw, rw, err := p.ResponseWriter.(http.Hijacker).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if t, ok := raw.(interface{ SetWriteBuffer(int) error }); ok {
		_ = t.SetWriteBuffer(sendBuffer)
	}
	o := p.c.s.opts
	p.c.conn = &pacedConn{Conn: raw, stall: o.WriteTimeout, linger: stuckLinger, onStall: func() {
		p.c.close(closeSlow, "events are not read", true)
	}}
	p.c.conn.heard.Store(time.Now().UnixNano())
	return p.c.conn, rw, nil
}

// The client's frames. ID is echoed as it came, so it may be a string or a number.
type (
	helloFrame struct {
		Type  string          `json:"type"`
		ID    json.RawMessage `json:"id"`
		Token *string         `json:"token"`
	}
	subscribeFrame struct {
		Type  string          `json:"type"`
		ID    json.RawMessage `json:"id"`
		Run   string          `json:"run"`
		Queue bool            `json:"queue"`
		After json.RawMessage `json:"after"`
	}
	idFrame struct {
		Type string          `json:"type"`
		ID   json.RawMessage `json:"id"`
	}
	decideFrame struct {
		Type string          `json:"type"`
		ID   json.RawMessage `json:"id"`
		Run  string          `json:"run"`
		decisionsBody
	}
	resumeFrame struct {
		Type string          `json:"type"`
		ID   json.RawMessage `json:"id"`
		resumeBody
	}
)

// handle answers one client frame. It returns true when the socket must end for want of authentication.
func (c *socket) handle(data []byte) (end bool) {
	typ, id, err := envelope(data)
	if !c.authed && (err != nil || typ != "hello") {
		c.fail(id, &host.Error{Code: host.CodeUnauthenticated, Detail: "say hello with a token first"})
		return true
	}
	if err == nil {
		if typ == "hello" {
			return c.hello(id, data)
		}
		err = c.c2s(typ, id, data)
	}
	if err != nil {
		c.fail(id, err)
	}
	return false
}

// envelope reads type and id. The id is returned if it is readable, also with an error.
func envelope(data []byte) (typ string, id json.RawMessage, err error) {
	var m map[string]json.RawMessage
	readable := json.Unmarshal(data, &m)
	if err := object(data); err != nil {
		// JSON that two readers may understand differently: its id is told back if that alone is plain.
		where, _ := errors.AsType[*ijson.Error](err)
		if raw := m["id"]; readable == nil && where != nil && where.Pointer != "/id" && len(raw) <= 256 && ijson.Check(raw) == nil && strings.ContainsRune("\"-0123456789", rune(raw[0])) {
			id = raw
		}
		return "", id, err
	}
	if raw, ok := m["id"]; ok {
		switch k := jsontext.Value(raw).Kind(); {
		case k != '"' && k != '0':
			return "", nil, invalid("/id", "wrong type: a string or a number is needed here")
		case len(raw) > 256:
			return "", nil, invalid("/id", "an id is at most 256 bytes")
		}
		id = raw
	}
	raw, ok := m["type"]
	if !ok {
		return "", id, missing("/type")
	}
	if err := json.Unmarshal(raw, &typ); err != nil || typ == "" {
		return "", id, invalid("/type", "wrong type: a string is needed here")
	}
	return typ, id, nil
}

func (c *socket) hello(id json.RawMessage, data []byte) (end bool) {
	var f helloFrame
	err := unmarshal(data, &f)
	switch {
	case err != nil && c.authed:
		c.fail(id, err)
		return false
	case err != nil || f.Token == nil && !c.authed:
		c.fail(id, &host.Error{Code: host.CodeUnauthenticated, Detail: "say hello with a token first"})
		return true
	case f.Token == nil:
		return false
	}
	a, err := c.s.host.Authenticate(c.ctx, *f.Token)
	if err == nil && !c.authed {
		err = c.s.host.May(c.ctx, a, "ws.connect")
	}
	if err != nil {
		c.fail(id, err)
		return true
	}
	if c.authed {
		if a.Tenant != c.actor.Tenant || a.ID != c.actor.ID {
			c.fail(id, invalid("/token", "this socket belongs to another principal: open one for each"))
		}
		return false
	}
	c.actor, c.authed = a, true
	c.mu.Lock()
	if !c.closing {
		_ = c.conn.SetReadDeadline(time.Time{})
	}
	c.mu.Unlock()
	c.current = c.s.holds(*f.Token)
	c.begin()
	return false
}

// c2s handles a frame of an authenticated client.
func (c *socket) c2s(typ string, id json.RawMessage, data []byte) error {
	if err := c.s.limit(nil, c.actor); err != nil {
		return err
	}
	a, err := c.s.host.Fresh(c.ctx, c.actor) // a socket lives long, and roles change
	if host.CodeOf(err) == host.CodeUnauthenticated {
		if until := c.actor.Until(); !until.IsZero() && !c.s.opts.Now().Before(until) {
			c.close(closeUnauthenticated, expiredReason, true)
			return nil
		}
		c.close(closeRevoked, revokedReason, true) // as the hub is about to do
		return nil
	}
	if err != nil {
		return err
	}
	if id == nil && (typ == "subscribe" || typ == "unsubscribe" || typ == "decide" || typ == "resume") {
		return missing("/id")
	}
	switch typ {
	case "subscribe":
		return c.subscribe(id, a, data)
	case "unsubscribe":
		if err := unmarshal(data, &idFrame{}); err != nil {
			return err
		}
		c.unsubscribe(string(id))
		c.ack(id, nil)
		return nil
	case "decide", "resume":
		ctx, done := c.traceFrame(typ)
		answer := c.decide
		if typ == "resume" {
			answer = c.resume
		}
		err := answer(c.s.host.OneRuleset(ctx), id, a, data)
		done(err)
		if err != nil {
			c.failIn(ctx, id, err)
		}
		return nil
	case "ping":
		if err := unmarshal(data, &idFrame{}); err != nil {
			return err
		}
		c.json(struct {
			Type string          `json:"type"`
			ID   json.RawMessage `json:"id,omitempty"`
		}{"pong", id})
		return nil
	}
	return invalid("/type", "unknown type: use hello, subscribe, unsubscribe, decide, resume or ping")
}

func (c *socket) ack(id json.RawMessage, run *host.Run) {
	c.json(struct {
		Type string          `json:"type"`
		ID   json.RawMessage `json:"id"`
		Run  *host.Run       `json:"run,omitempty"`
	}{"ack", id, run})
}

// decide and resume are the same verbs as over HTTP, without an Idempotency-Key: who lost an answer looks at the run.
func (c *socket) decide(ctx context.Context, id json.RawMessage, a host.Actor, data []byte) error {
	var head struct {
		Run json.RawMessage `json:"run"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return err
	}
	var name string
	if head.Run == nil {
		return missing("/run")
	}
	if err := json.Unmarshal(head.Run, &name); err != nil || name == "" {
		return invalid("/run", "wrong type: a run's id is needed here")
	}
	run, err := c.s.host.Decide(ctx, a, name, host.Idempotency{}, func() (host.Answer, error) {
		var f decideFrame
		if err := unmarshal(data, &f); err != nil {
			return host.Answer{}, err
		}
		return f.answer()
	})
	if err != nil {
		return err
	}
	c.ack(id, &run)
	return nil
}

func (c *socket) resume(ctx context.Context, id json.RawMessage, a host.Actor, data []byte) error {
	token, err := resumeToken(data)
	if err != nil {
		return err
	}
	run, err := c.s.host.Resume(ctx, a, token, host.Idempotency{}, func() (host.Answer, error) {
		var f resumeFrame
		if err := unmarshal(data, &f); err != nil {
			return host.Answer{}, err
		}
		return f.answer()
	})
	if err != nil {
		return err
	}
	c.ack(id, &run)
	return nil
}
