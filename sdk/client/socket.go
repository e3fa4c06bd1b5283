package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Frame is a message of the host on a socket. Which members are set depends on Type: welcome (Principal), snapshot (Seq, Run, or
// Cursor, Approvals), event (Event, with Seq or Cursor), pause (Pause), ack (Run), error (Problem), lagging, pong.
type Frame struct {
	Type      string
	ID        string
	Principal string
	Seq       uint64
	Cursor    string
	Run       *Run
	Approvals []Approval
	Event     *Event
	Pause     *Pause
	Problem   *Problem
}

// Socket is a WebSocket to the host. Read from one goroutine; the other methods are safe for concurrent use.
type Socket struct {
	ws *websocket.Conn
	mu sync.Mutex // of writes
}

// Closed says why the host closed a socket: 1001 it drains (connect again with your cursor), 4401 unauthenticated, 4403 the key
// was revoked, 4408 this client read too slowly.
type Closed struct {
	Code   int
	Reason string
}

func (c *Closed) Error() string { return fmt.Sprintf("pawl: socket closed: %d %s", c.Code, c.Reason) }

// Dial opens a socket with the client's key. ctx bounds the handshake.
func (c *Client) Dial(ctx context.Context) (*Socket, error) {
	d := websocket.Dialer{Subprotocols: []string{"pawl.v1"}, HandshakeTimeout: 30 * time.Second, Proxy: http.ProxyFromEnvironment}
	u := "ws" + strings.TrimPrefix(c.URL, "http") + "/v1/ws"
	ws, resp, err := d.DialContext(ctx, u, http.Header{"Authorization": {"Bearer " + c.Key}})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, problem(resp)
		}
		return nil, fmt.Errorf("pawl: %w", err)
	}
	return &Socket{ws: ws}, nil
}

// Read returns the host's next message. When the host has closed the socket, the error is a *Closed.
func (s *Socket) Read() (Frame, error) {
	_, b, err := s.ws.ReadMessage()
	if ce, ok := errors.AsType[*websocket.CloseError](err); ok {
		return Frame{}, &Closed{ce.Code, ce.Text}
	}
	if err != nil {
		return Frame{}, fmt.Errorf("pawl: %w", err)
	}
	var v struct {
		Type      string          `json:"type"`
		ID        json.RawMessage `json:"id"`
		Principal string          `json:"principal"`
		Seq       uint64          `json:"seq"`
		Cursor    string          `json:"cursor"`
		Run       *Run            `json:"run"`
		Approvals []Approval      `json:"approvals"`
		Event     json.RawMessage `json:"event"`
		Pause     *Pause          `json:"pause"`
		Problem   *Problem        `json:"problem"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return Frame{}, fmt.Errorf("pawl: a message that is not JSON: %w", err)
	}
	f := Frame{Type: v.Type, ID: string(v.ID), Principal: v.Principal, Seq: v.Seq, Cursor: v.Cursor, Run: v.Run, Approvals: v.Approvals, Pause: v.Pause, Problem: v.Problem}
	if json.Unmarshal(v.ID, &f.ID) != nil {
		f.ID = string(v.ID)
	}
	if v.Event != nil {
		f.Event = &Event{}
		if err := f.Event.parse(v.Event); err != nil {
			return Frame{}, err
		}
	}
	return f, nil
}

// FollowRun subscribes to a run under an id of the caller's choice: a snapshot comes, the open pause with its token, then
// events. after nil: from now on; a number: after that event.
func (s *Socket) FollowRun(id, run string, after *uint64) error {
	return s.send(map[string]any{"type": "subscribe", "id": id, "run": run}, "after", after != nil, after)
}

// FollowQueue subscribes to the approvals that the key may see. cursor "": from now on; else the cursor of a snapshot or event.
func (s *Socket) FollowQueue(id, cursor string) error {
	return s.send(map[string]any{"type": "subscribe", "id": id, "queue": true}, "after", cursor != "", cursor)
}

// Unfollow ends a subscription. After its ack nothing more of it comes.
func (s *Socket) Unfollow(id string) error {
	return s.send(map[string]any{"type": "unsubscribe", "id": id}, "", false, nil)
}

// Decide decides a run's approvals; an ack or an error with the id answers.
func (s *Socket) Decide(id, run string, ds ...Decision) error {
	return s.send(map[string]any{"type": "decide", "id": id, "run": run, "decisions": append([]Decision{}, ds...)}, "", false, nil)
}

// Resume answers a pause by its token; an ack or an error with the id answers.
func (s *Socket) Resume(id, token string, ds ...Decision) error {
	return s.send(map[string]any{"type": "resume", "id": id, "resume_token": token, "decisions": append([]Decision{}, ds...)}, "", false, nil)
}

// Ping asks for a pong.
func (s *Socket) Ping(id string) error {
	return s.send(map[string]any{"type": "ping", "id": id}, "", false, nil)
}

func (s *Socket) send(m map[string]any, name string, set bool, value any) error {
	if set {
		m[name] = value
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.ws.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if err := s.ws.WriteMessage(websocket.TextMessage, b); err != nil {
		return fmt.Errorf("pawl: %w", err)
	}
	return nil
}

// Close says goodbye and closes the connection.
func (s *Socket) Close() error {
	_ = s.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	return s.ws.Close()
}
