package host

import (
	"context"
	"strings"
	"sync"

	"github.com/pawlhost/pawl/store"
)

// revocations tells long connections that their credential is gone: a key that was revoked, a principal or a tenant that was
// disabled or removed.
type revocations struct {
	mu sync.Mutex
	m  map[string]*revocation
}

type revocation struct {
	ch                chan struct{}
	users             int
	tenant, principal string
}

// A bearer token has no record of its own: what can be taken from it is its principal.
const tokenKeyPrefix = "token/"

func tokenKeyID(tenant, principal string) string { return tokenKeyPrefix + tenant + "/" + principal }

// Revoked returns a channel that is closed when the credential (the KeyID of an Actor) stops counting. Call release when it is no
// longer watched.
func (h *Host) Revoked(keyID string) (revoked <-chan struct{}, release func()) {
	r := &h.revoked
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[string]*revocation{}
	}
	v := r.m[keyID]
	if v == nil {
		v = &revocation{ch: make(chan struct{})}
		r.m[keyID] = v
	}
	v.users++
	// Revoked between its authentication and now: the records are read after the channel is in place.
	if h.gone(keyID, v) {
		close(v.ch)
		delete(r.m, keyID)
	}
	return v.ch, sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if v.users--; v.users == 0 && r.m[keyID] == v {
			delete(r.m, keyID)
		}
	})
}

// gone reports whether the credential stopped counting, and notes whose it is. Of what cannot be read nothing is said: who uses
// the credential is asked for it again.
func (h *Host) gone(keyID string, v *revocation) bool {
	gone := false
	err := h.store.View(context.Background(), func(rd store.Reader) error {
		if rest, ok := strings.CutPrefix(keyID, tokenKeyPrefix); ok {
			v.tenant, v.principal, _ = strings.Cut(rest, "/")
		} else {
			var k store.APIKey
			if err := get(rd, apiKeyKey(keyID), &k); err != nil {
				return err
			}
			v.tenant, v.principal = k.Tenant, k.Principal
			gone = !k.RevokedAt.IsZero()
		}
		p, err := readPrincipal(rd, v.tenant, v.principal)
		if err != nil {
			return err
		}
		t, err := readTenant(rd, v.tenant)
		gone = gone || p.Disabled || t.Disabled
		return err
	})
	return err == nil && gone
}

func (r *revocations) close(keyID string) {
	r.closeAll(func(id string, _ *revocation) bool { return id == keyID })
}

// closePrincipal ends what the credentials of a principal opened; principal "" means all of the tenant.
func (r *revocations) closePrincipal(tenant, principal string) {
	r.closeAll(func(_ string, v *revocation) bool {
		return v.tenant == tenant && (principal == "" || v.principal == principal)
	})
}

func (r *revocations) closeAll(those func(string, *revocation) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, v := range r.m {
		if those(id, v) {
			close(v.ch)
			delete(r.m, id)
		}
	}
}
