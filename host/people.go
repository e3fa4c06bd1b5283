package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// credential is what an actor showed: the most that it may ever be. What it may be now is that, narrowed by its principal.
type credential struct {
	key      bool // an API key, which has a record; else a token, or the word of the program that embeds the host
	operator bool // the data folder itself
	kind     string
	roles    []string
	until    time.Time // zero: no end of its own
}

// reading is a record that an actor's rights were read from, at a version; 0 if there is none.
type reading struct {
	key     store.Key
	version uint64
}

// require adds to a change that the rights it is made by are still those: somebody who is demoted or disabled between the
// question and the commit loses the race.
func (a Actor) require(c *store.Change) {
	for _, r := range a.read {
		c.Require(r.key, r.version)
	}
}

var errBadCredential = errf(CodeUnauthenticated, "give a valid API key: Authorization: Bearer KEY")

// Fresh returns the actor with the rights that it has now, whenever it was authenticated; CodeUnauthenticated when it has none
// any more. An actor without a credential has the word of the program that embeds the host; a principal of that name narrows it too.
func (h *Host) Fresh(ctx context.Context, a Actor) (Actor, error) {
	a.read = nil
	if a.credential == nil {
		a.credential = &credential{kind: a.Kind, roles: a.Roles}
	}
	if a.credential.key {
		var k store.APIKey
		var version uint64
		err := h.store.View(ctx, func(rd store.Reader) (err error) { version, err = getAt(rd, apiKeyKey(a.KeyID), &k); return err })
		if errors.Is(err, store.ErrNotFound) || err == nil && !k.RevokedAt.IsZero() {
			return Actor{}, errBadCredential
		}
		if err != nil {
			return Actor{}, err
		}
		a.read = []reading{{apiKeyKey(a.KeyID), version}}
	}
	return h.narrow(ctx, a)
}

// narrow gives the actor what its credential and its principal both have.
func (h *Host) narrow(ctx context.Context, a Actor) (Actor, error) {
	cred := a.credential
	if cred.operator {
		return a, nil
	}
	if !cred.until.IsZero() && !h.now().Before(cred.until) {
		return Actor{}, errBadCredential
	}
	t, err := h.people.tenant(ctx, h.store, a.Tenant)
	if err != nil {
		return Actor{}, err
	}
	p, err := h.people.principal(ctx, h.store, a.Tenant, a.ID)
	if err != nil {
		return Actor{}, err
	}
	a.Kind, a.Roles, a.ActAs = cred.kind, cred.roles, false
	switch {
	case t.Disabled || p.Disabled || cred.key && !p.exists():
		return Actor{}, errBadCredential
	case p.version > 0: // a removed one too: else whoever it narrows would remove it
		a.Roles = meet(cred.roles, p.Roles)
		if a.Kind == KindUser {
			a.Kind = p.Kind // a service's principal makes no person of anybody
		}
		a.ActAs = p.exists() && p.ActAs && p.Kind == KindService && a.Kind == KindService
	}
	a.read = append(slices.Clip(a.read), p.reading, t.reading)
	return a, nil
}

// The roles form a ladder: who has one has those below it. Other roles do not exist.
var rank = map[string]int{RoleMember: 1, RoleAdmin: 2, RoleOwner: 3}

func covers(have []string, role string) bool {
	return slices.ContainsFunc(have, func(h string) bool { return h == role || rank[role] > 0 && rank[h] >= rank[role] })
}

// meet returns the roles that both sides cover: an owner's key whose principal is a member now is a member's.
func meet(a, b []string) []string {
	if slices.Equal(a, b) {
		return a
	}
	var out []string
	for _, role := range a {
		if covers(b, role) && !slices.Contains(out, role) {
			out = append(out, role)
		}
	}
	both := out
	for _, role := range b {
		if covers(a, role) && !covers(both, role) {
			out = append(out, role)
		}
	}
	return out
}

// personRecord is a stored principal and where it was read. A removed one has a version too.
type personRecord struct {
	store.Principal
	reading
}

func (p personRecord) exists() bool { return p.version > 0 && !p.Removed }

// standing adds to a question about a principal, or about a key of one, who has the name already. Where tokens count, a removed record
// still bounds those of its name, and a name without a record may be anybody's, an owner's too.
func (h *Host) standing(p personRecord, tenant string, res *policy.Resource) {
	tokens := h.tokens != nil && (h.tokenFor == "" || h.tokenFor == tenant)
	if p.exists() || tokens {
		res.Roles = union(res.Roles, p.Roles)
	}
	res.NewName = tokens && p.version == 0
}

type tenantRecord struct {
	store.Tenant
	reading
}

func readPrincipal(rd store.Reader, tenant, id string) (p personRecord, err error) {
	p.key = principalKey(tenant, id)
	p.version, err = getAt(rd, p.key, &p.Principal)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return p, err
}

func readTenant(rd store.Reader, tenant string) (t tenantRecord, err error) {
	t.key = settingsKey(tenant)
	t.version, err = getAt(rd, t.key, &t.Tenant)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return t, err
}

// getAt is get with the version of the record.
func getAt(rd store.Reader, k store.Key, record any) (uint64, error) {
	it, err := rd.Get(k)
	if err != nil {
		return 0, err
	}
	return it.Version, store.Decode(it.Value, record)
}

// peopleCache keeps the principals and tenants in use, so that asking for them on every request costs no read. Whoever changes one
// calls changed after its commit. A reader may see the old one until then; what it commits requires the version that it saw.
type peopleCache struct {
	mu         sync.RWMutex
	epoch      uint64 // rises whenever something is forgotten, so that a reading from before is not kept
	changes    uint64
	principals map[[2]string]personRecord
	tenants    map[string]tenantRecord
}

const maxPeople = 20_000

func (c *peopleCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.principals, c.tenants = nil, nil
}

// changed is forget for who has changed somebody: open streams look again who they are for.
func (c *peopleCache) changed() {
	c.mu.Lock()
	c.changes++
	c.mu.Unlock()
	c.forget()
}

// generation changes whenever a principal or a tenant does.
func (c *peopleCache) generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.changes
}

func (c *peopleCache) principal(ctx context.Context, s store.Store, tenant, id string) (personRecord, error) {
	k := [2]string{tenant, id}
	return remembered(ctx, c, s, &c.principals, k, func(rd store.Reader) (personRecord, error) { return readPrincipal(rd, tenant, id) })
}

func (c *peopleCache) tenant(ctx context.Context, s store.Store, name string) (tenantRecord, error) {
	return remembered(ctx, c, s, &c.tenants, name, func(rd store.Reader) (tenantRecord, error) { return readTenant(rd, name) })
}

func remembered[K comparable, V any](ctx context.Context, c *peopleCache, s store.Store, m *map[K]V, k K, read func(store.Reader) (V, error)) (V, error) {
	c.mu.RLock()
	v, ok := (*m)[k]
	epoch := c.epoch
	c.mu.RUnlock()
	if ok {
		return v, nil
	}
	err := s.View(ctx, func(rd store.Reader) (err error) { v, err = read(rd); return err })
	if err != nil {
		return v, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch == epoch { // else what was read may be old
		if *m == nil || len(*m) >= maxPeople {
			*m = map[K]V{}
		}
		(*m)[k] = v
	}
	return v, nil
}
