package host

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// An API key on the wire is pawl_UUID_SECRET, the UUID of its id in plain hex. The store holds the SHA-256 of the secret, which is 256 random bits: no slow hash
// is needed against guessing.
const keyPrefix = "pawl_"

var principalName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$`)

// Authenticate finds the principal of a bearer credential. Every refusal looks the same.
func (h *Host) Authenticate(ctx context.Context, bearer string) (Actor, error) {
	refusal := errf(CodeUnauthenticated, "give a valid API key: Authorization: Bearer KEY")
	rest, ok := strings.CutPrefix(bearer, keyPrefix)
	if !ok {
		return Actor{}, refusal
	}
	hexID, secret, ok := strings.Cut(rest, "_")
	if !ok || len(hexID) != 32 || len(bearer) > 256 {
		return Actor{}, refusal
	}
	u, err := uuid.Parse(hexID)
	if err != nil {
		return Actor{}, refusal
	}
	raw, err := tokenEncoding.DecodeString(secret)
	if err != nil || strings.ContainsAny(secret, "\r\n") {
		return Actor{}, refusal
	}
	var k store.APIKey
	err = h.store.View(ctx, func(rd store.Reader) error { return get(rd, apiKeyKey("key_"+u.String()), &k) })
	if errors.Is(err, store.ErrNotFound) {
		return Actor{}, refusal
	}
	if err != nil {
		return Actor{}, err
	}
	sum := sha256.Sum256(raw)
	if subtle.ConstantTimeCompare(sum[:], k.Hash) != 1 || !k.RevokedAt.IsZero() {
		return Actor{}, refusal
	}
	return Actor{Tenant: k.Tenant, ID: k.Principal, Kind: k.Kind, Roles: k.Roles, KeyID: k.ID}, nil
}

// CreateKey makes an API key; the answer is the only time its secret is shown. A repeat with the same Idempotency-Key is
// answered without it.
func (h *Host) CreateKey(ctx context.Context, a Actor, idem Idempotency, body Lazy[NewKey]) (Key, error) {
	// Whether the actor makes keys at all is asked first, then the body is read, then whether it may make this one.
	least := policy.Resource{Kind: "key", Tenant: a.Tenant, Roles: []string{RoleMember}, KindOfKey: KindUser}
	if err := h.allow(ctx, a, "key.create", least); err != nil {
		return Key{}, h.refused(ctx, a, "key.create", "tenant", a.Tenant, err)
	}
	req, err := body()
	if err != nil {
		return Key{}, err
	}
	if err := checkKey(req); err != nil {
		return Key{}, err
	}
	// A key for a name that has keys is that principal's: an owner's is made by an owner.
	roles, err := h.heldRoles(ctx, a.Tenant, req)
	if err != nil {
		return Key{}, err
	}
	res := policy.Resource{Kind: "key", Tenant: a.Tenant, Roles: union(req.Roles, roles), KindOfKey: req.Kind}
	if err := h.allow(ctx, a, "key.create", res); err != nil {
		return Key{}, h.refused(ctx, a, "key.create", "tenant", a.Tenant, err)
	}
	for {
		rec, version, err := h.idempotent(ctx, a, idem)
		if err != nil {
			return Key{}, err
		}
		if rec != nil {
			var k store.APIKey
			err := h.store.View(ctx, func(rd store.Reader) error { return get(rd, apiKeyKey(rec.Target), &k) })
			return keyView(k), err
		}
		c, k, secret, err := h.newKey(a.Tenant, a.ID, req)
		if err != nil {
			return Key{}, err
		}
		if idem.Key != "" {
			now := h.now()
			c.Require(idemKey(a, idem), version)
			c.Put(idemKey(a, idem), store.Encode(store.Idempotency{Request: idem.Body, Status: 201, Target: k.ID, At: now}))
			c.Put(dueKey(now.Add(idempotencyTTL), dueIdem, a.Tenant, a.ID, idem.Method, idem.Path, idem.Key), nil)
		}
		c.Append(auditLog(a.Tenant), store.Encode(auditRecord{
			At: k.CreatedAt, Trace: telemetry.TraceID(ctx), ActorKind: a.Kind, Actor: a.ID, Action: "key.create", TargetKind: "key", Target: k.ID, Outcome: outcomeOK,
			Detail: mustJSON(map[string]any{"principal": k.Principal, "roles": k.Roles, "kind": k.Kind}),
		}))
		if _, err := h.write(ctx, c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Key{}, err
		}
		v := keyView(k)
		v.Key = secret
		return v, nil
	}
}

// heldRoles returns the roles of the live keys that the principal has.
func (h *Host) heldRoles(ctx context.Context, tenant string, req NewKey) (roles []string, err error) {
	err = h.store.View(ctx, func(rd store.Reader) error {
		var kerr error
		err := rd.Scan(store.Range{Prefix: tenantKeysKey(tenant)}, func(it store.Item) bool {
			var k store.APIKey
			if kerr = get(rd, apiKeyKey(it.Key.Last()), &k); kerr != nil {
				return false
			}
			if k.Principal != req.Principal || !k.RevokedAt.IsZero() {
				return true
			}
			roles = union(roles, k.Roles)
			return true
		})
		return errors.Join(err, kerr)
	})
	return roles, err
}

func checkKey(req NewKey) error {
	if !principalName.MatchString(req.Principal) {
		return invalid("/principal", "a principal's name has 1 to 128 letters, digits and . _ @ + -, and begins with a letter or digit")
	}
	if req.Kind != KindUser && req.Kind != KindService {
		return invalid("/kind", "say user or service")
	}
	if len(req.Roles) == 0 {
		return invalid("/roles", "give at least one of owner, admin, member")
	}
	for i, role := range req.Roles {
		if !slices.Contains([]string{RoleOwner, RoleAdmin, RoleMember}, role) {
			return invalid(fmt.Sprintf("/roles/%d", i), "no role %q; the roles are owner, admin, member", clip(role, 64))
		}
	}
	return nil
}

// EnsureKey makes a key without an actor: the operator of a stopped host, or --dev at its first start.
func (h *Host) EnsureKey(ctx context.Context, tenant string, req NewKey) (Key, error) {
	if err := checkKey(req); err != nil {
		return Key{}, err
	}
	if !principalName.MatchString(tenant) {
		return Key{}, invalid("/tenant", "a tenant's name has 1 to 128 letters, digits and . _ @ + -, and begins with a letter or digit")
	}
	c, k, secret, err := h.newKey(tenant, "", req)
	if err != nil {
		return Key{}, err
	}
	c.Append(auditLog(tenant), store.Encode(auditRecord{
		At: k.CreatedAt, Trace: telemetry.TraceID(ctx), ActorKind: KindSystem, Action: "key.create", TargetKind: "key", Target: k.ID, Outcome: outcomeOK,
		Detail: mustJSON(map[string]any{"principal": k.Principal, "roles": k.Roles, "kind": k.Kind}),
	}))
	if _, err := h.write(ctx, c); err != nil {
		return Key{}, err
	}
	v := keyView(k)
	v.Key = secret
	return v, nil
}

func (h *Host) newKey(tenant, by string, req NewKey) (*store.Change, store.APIKey, string, error) {
	secret := make([]byte, 32)
	h.randMu.Lock()
	_, err := io.ReadFull(h.rand, secret)
	h.randMu.Unlock()
	if err != nil {
		return nil, store.APIKey{}, "", err
	}
	sum := sha256.Sum256(secret)
	k := store.APIKey{
		ID: h.id("key"), Tenant: tenant, Principal: req.Principal, Kind: req.Kind, Roles: req.Roles,
		Hash: sum[:], CreatedAt: h.now(), CreatedBy: by,
	}
	c := &store.Change{}
	c.Require(apiKeyKey(k.ID), 0)
	c.Put(apiKeyKey(k.ID), store.Encode(k))
	c.Put(tenantKeysKey(tenant).With(k.ID), nil)
	c.Put(store.K("tenant", tenant), nil)
	plain := strings.ReplaceAll(strings.TrimPrefix(k.ID, "key_"), "-", "")
	return c, k, keyPrefix + plain + "_" + base64.RawURLEncoding.EncodeToString(secret), nil
}

func keyView(k store.APIKey) Key {
	v := Key{ID: k.ID, Principal: k.Principal, Kind: k.Kind, Roles: list(k.Roles), CreatedAt: Time(k.CreatedAt), CreatedBy: k.CreatedBy}
	if !k.RevokedAt.IsZero() {
		at := Time(k.RevokedAt)
		v.RevokedAt = &at
	}
	return v
}

// Keys lists the tenant's keys, oldest first, revoked ones included.
func (h *Host) Keys(ctx context.Context, a Actor, p Page) ([]Key, string, error) {
	if err := h.allow(ctx, a, "key.list", policy.Resource{Kind: "key", Tenant: a.Tenant}); err != nil {
		return nil, "", h.refused(ctx, a, "key.list", "tenant", a.Tenant, err)
	}
	return h.TenantKeys(ctx, a.Tenant, p)
}

// TenantKeys is Keys for the operator of a stopped host.
func (h *Host) TenantKeys(ctx context.Context, tenant string, p Page) ([]Key, string, error) {
	out := []Key{}
	_, next, err := h.page(ctx, p, tenantKeysKey(tenant), false, func(rd store.Reader, it store.Item) (string, error) {
		var k store.APIKey
		if err := get(rd, apiKeyKey(it.Key.Last()), &k); err != nil {
			return "", err
		}
		out = append(out, keyView(k))
		return k.ID, nil
	})
	return out, next, err
}

// RevokeKey ends a key at once, and what it opened.
func (h *Host) RevokeKey(ctx context.Context, a Actor, id string) error {
	var k store.APIKey
	err := h.store.View(ctx, func(rd store.Reader) error { return get(rd, apiKeyKey(id), &k) })
	if errors.Is(err, store.ErrNotFound) || err == nil && k.Tenant != a.Tenant {
		return errNotFound("key")
	}
	if err != nil {
		return err
	}
	res := policy.Resource{Kind: "key", Tenant: a.Tenant, ID: id, Roles: k.Roles, KindOfKey: k.Kind}
	if err := h.allow(ctx, a, "key.revoke", res); err != nil {
		return h.refused(ctx, a, "key.revoke", "key", id, err)
	}
	return h.revoke(ctx, a.Tenant, id, a)
}

// RevokeTenantKey is RevokeKey for the operator of a stopped host.
func (h *Host) RevokeTenantKey(ctx context.Context, tenant, id string) error {
	return h.revoke(ctx, tenant, id, Actor{Tenant: tenant, Kind: KindSystem})
}

func (h *Host) revoke(ctx context.Context, tenant, id string, by Actor) error {
	for {
		var k store.APIKey
		var version uint64
		err := h.store.View(ctx, func(rd store.Reader) error {
			it, err := rd.Get(apiKeyKey(id))
			if err != nil {
				return err
			}
			version = it.Version
			return store.Decode(it.Value, &k)
		})
		if errors.Is(err, store.ErrNotFound) || err == nil && k.Tenant != tenant {
			return errNotFound("key")
		}
		if err != nil || !k.RevokedAt.IsZero() {
			return err
		}
		k.RevokedAt, k.RevokedBy = h.now(), by.ID
		var c store.Change
		c.Require(apiKeyKey(id), version)
		c.Put(apiKeyKey(id), store.Encode(k))
		c.Append(auditLog(tenant), store.Encode(auditRecord{
			At: k.RevokedAt, Trace: telemetry.TraceID(ctx), ActorKind: by.Kind, Actor: by.ID, Action: "key.revoke", TargetKind: "key", Target: id, Outcome: outcomeOK,
			Detail: mustJSON(map[string]any{"principal": k.Principal}),
		}))
		if _, err := h.write(ctx, &c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return err
		}
		h.revoked.close(id)
		return nil
	}
}

// revocations tells long connections that their key is gone.
type revocations struct {
	mu sync.Mutex
	m  map[string]*revocation
}

type revocation struct {
	ch    chan struct{}
	users int
}

// Revoked returns a channel that is closed when the key is revoked. Call release when it is no longer watched.
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
	// Revoked between its authentication and now: the key's record is read after the channel is in place.
	var k store.APIKey
	err := h.store.View(context.Background(), func(rd store.Reader) error { return get(rd, apiKeyKey(keyID), &k) })
	if err == nil && !k.RevokedAt.IsZero() {
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

func (r *revocations) close(keyID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.m[keyID]; v != nil {
		close(v.ch)
		delete(r.m, keyID)
	}
}
