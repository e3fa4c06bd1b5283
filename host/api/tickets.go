package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/pawlhost/pawl/host"
)

const (
	ticketTTL  = 30 * time.Second
	maxTickets = 100_000
)

// tickets are the one-time credentials for browsers, which cannot set a header on a WebSocket. They live in memory: who
// loses one to a restart asks for another. Only digests are kept, so that a memory dump opens nothing.
type tickets struct {
	now func() time.Time

	mu    sync.Mutex
	live  map[[32]byte]ticket
	swept time.Time
}

type ticket struct {
	actor   host.Actor
	expires time.Time
	revoked <-chan struct{} // closed when the actor's key is revoked
	release func()
}

// current reports whether the key still holds that the ticket was issued for. It is called once, when somebody else watches
// the key.
func (k ticket) current(context.Context) bool {
	defer k.release()
	select {
	case <-k.revoked:
		return false
	default:
		return true
	}
}

// issue makes a ticket for the actor, whose key is being watched. It returns false when too many are open.
func (t *tickets) issue(a host.Actor, revoked <-chan struct{}, release func()) (string, time.Time, bool) {
	secret := rand.Text() // 128 bits and more
	now := t.now()
	k := ticket{actor: a, expires: now.Add(ticketTTL), revoked: revoked, release: release}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.swept) >= ticketTTL {
		t.swept = now
		for h, old := range t.live {
			if !now.Before(old.expires) {
				old.release()
				delete(t.live, h)
			}
		}
	}
	if len(t.live) >= maxTickets {
		release()
		return "", time.Time{}, false
	}
	if t.live == nil {
		t.live = map[[32]byte]ticket{}
	}
	t.live[sha256.Sum256([]byte(secret))] = k
	return secret, k.expires, true
}

// redeem returns a ticket, once: of racing calls one gets it. The caller calls its current.
func (t *tickets) redeem(text string) (ticket, bool) {
	h := sha256.Sum256([]byte(text))
	t.mu.Lock()
	k, ok := t.live[h]
	delete(t.live, h)
	t.mu.Unlock()
	if ok && !t.now().Before(k.expires) {
		k.release()
		return ticket{}, false
	}
	return k, ok
}
