package api

import (
	"context"
	"sync"
	"time"
)

// hub owns the goroutines of all WebSockets: it closes them when the host drains or their key is revoked, and pings them. Its
// own goroutines are one that pings, while there are sockets, and one a key in use.
type hub struct {
	s *Server

	mu       sync.Mutex
	sockets  map[*socket]struct{}
	keys     map[string]*keyWatch
	draining bool
	stopPing chan struct{}
	running  sync.WaitGroup // Add under mu while not draining
}

// keyWatch closes a key's sockets when it is revoked.
type keyWatch struct {
	sockets map[*socket]struct{}
	stop    chan struct{}
}

func newHub(s *Server) *hub {
	return &hub{s: s, sockets: map[*socket]struct{}{}, keys: map[string]*keyWatch{}}
}

// add takes a socket in and runs its reader. It returns false when the host drains.
func (h *hub) add(c *socket) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return false
	}
	if len(h.sockets) == 0 {
		stop := make(chan struct{})
		h.stopPing = stop
		h.running.Go(func() { h.ping(stop) })
	}
	h.sockets[c] = struct{}{}
	h.running.Go(c.run)
	return true
}

func (h *hub) remove(c *socket) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sockets, c)
	if len(h.sockets) == 0 && h.stopPing != nil {
		close(h.stopPing)
		h.stopPing = nil
	}
	if k := h.keys[c.watched]; k != nil {
		delete(k.sockets, c)
		if len(k.sockets) == 0 {
			delete(h.keys, c.watched)
			close(k.stop)
		}
	}
}

// watch closes c with 4403 when the key is revoked, now or later. It is called once, by the socket's reader.
func (h *hub) watch(c *socket, keyID string) {
	if keyID == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c.watched = keyID
	if k := h.keys[keyID]; k != nil {
		k.sockets[c] = struct{}{}
		return
	}
	k := &keyWatch{sockets: map[*socket]struct{}{c: {}}, stop: make(chan struct{})}
	h.keys[keyID] = k
	revoked, release := h.s.host.Revoked(keyID)
	h.running.Go(func() {
		defer release()
		select {
		case <-k.stop:
			return
		case <-revoked:
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.keys[keyID] == k {
			delete(h.keys, keyID)
		}
		for c := range k.sockets {
			c.close(closeRevoked, revokedReason, true)
		}
	})
}

// ping keeps connections through proxies alive and finds the dead ones. One goroutine does it for all sockets: a timer each
// would cost more than they do.
func (h *hub) ping(stop <-chan struct{}) {
	pace := h.s.opts.KeepAlive
	t := time.NewTicker(pace)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		h.mu.Lock()
		for c := range h.sockets {
			switch silent := time.Since(time.Unix(0, c.conn.heard.Load())); {
			case silent > 3*pace:
				c.abort()
			case silent > pace/2:
				c.ping()
			}
		}
		h.mu.Unlock()
	}
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sockets)
}

// drain closes all sockets with 1001 and waits until they are gone; those that are not when ctx is done are cut off.
func (h *hub) drain(ctx context.Context) {
	h.mu.Lock()
	h.draining = true
	for c := range h.sockets {
		c.close(closeGoingAway, "the host is draining: connect again with your cursor", false)
	}
	h.mu.Unlock()
	gone := make(chan struct{})
	go func() { h.running.Wait(); close(gone) }()
	select {
	case <-gone:
		return
	case <-ctx.Done():
	}
	h.mu.Lock()
	for c := range h.sockets {
		c.abort()
	}
	h.mu.Unlock()
	<-gone
}
