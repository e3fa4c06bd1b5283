package api

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// chunk is how much is written under one deadline: a client on a slow line that takes this much in time is not stuck.
const chunk = 16 << 10

// sendBuffer bounds what the kernel keeps for a client that does not read: memory of this host, and the distance between
// the moment a client stops and the moment that shows. The kernel doubles it.
const sendBuffer = 64 << 10

// stuckLinger is how long a stuck client has to take the rest of the frame that it is in the middle of. It costs a descriptor
// and nothing else: its queue is gone.
const stuckLinger = time.Minute

// pacedConn is a connection whose writes fail only when the peer takes nothing. After stall without progress it tells onStall,
// once, and gives the peer another linger to take the rest of the frame: a frame that is cut in the middle could not be
// followed by the close frame that says why.
type pacedConn struct {
	net.Conn
	stall, linger time.Duration
	onStall       func()

	// corked says that another frame follows at once: small ones are then sent together, in one system call.
	corked atomic.Bool
	heard  atomic.Int64

	// of the one writer, which the WebSocket library's lock makes it
	stalled bool
	held    []byte
}

func (c *pacedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(time.Now().UnixNano())
	}
	return n, err
}

// SetWriteDeadline does nothing: Write has its own deadlines, and the WebSocket library would clear them.
func (c *pacedConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the read deadline.
func (c *pacedConn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

func (c *pacedConn) Write(b []byte) (int, error) {
	if len(c.held)+len(b) > chunk {
		if err := c.release(); err != nil {
			return 0, err
		}
	}
	if c.corked.Load() && len(c.held)+len(b) <= chunk {
		c.held = append(c.held, b...)
		return len(b), nil
	}
	if len(c.held) > 0 {
		c.held = append(c.held, b...)
		return len(b), c.release()
	}
	return c.send(b)
}

// release sends what was held back.
func (c *pacedConn) release() error {
	held := c.held
	c.held = nil // an idle connection keeps no buffer
	_, err := c.send(held)
	return err
}

func (c *pacedConn) send(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		patience := c.stall
		if c.stalled {
			patience = c.linger
		}
		if err := c.Conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(b[written:min(len(b), written+chunk)])
		written += n
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || c.stalled {
			return written, err
		}
		if n == 0 { // else there was progress: a new deadline
			c.stalled = true
			c.onStall()
		}
	}
	return written, nil
}

func (c *pacedConn) closeWrite() {
	if t, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = t.CloseWrite()
	}
}
