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
	"strings"

	"github.com/google/uuid"

	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// An API key on the wire is pawl_UUID_SECRET, the UUID of its id in plain hex. The store holds the SHA-256 of the secret, which is 256 random bits: no slow hash
// is needed against guessing.
const keyPrefix = "pawl_"

var principalName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$`)

const nameShape = "a principal's name has 1 to 128 letters, digits and . _ @ + -, and begins with a letter or digit"

// checkName holds the name of somebody new to what a name can be. The host's own are nobody's: what it does itself, and what is done to the
// folder of a stopped host, must not look like a person's act.
func checkName(name, pointer string) error {
	if !principalName.MatchString(name) {
		return invalid(pointer, nameShape)
	}
	if reserved(name) {
		return invalid(pointer, "%s is a name of the host's own; choose another", name)
	}
	return nil
}

func reserved(name string) bool { return name == KindSystem || name == operatorName }

// Authenticate finds the principal of a bearer credential, with the rights that it has at this moment. Every refusal looks the same.
func (h *Host) Authenticate(ctx context.Context, bearer string) (Actor, error) {
	if looksSigned(bearer) {
		return h.byToken(ctx, bearer)
	}
	k, at, err := h.keyOf(ctx, bearer)
	if errors.Is(err, errRevokedKey) {
		h.keyUses.used(ctx, k.Tenant, useOf(&k), useRevoked, h.now())
	}
	if err != nil {
		return Actor{}, err
	}
	a, err := h.narrow(ctx, Actor{
		Tenant: k.Tenant, ID: k.Principal, KeyID: k.ID, credential: &credential{key: true, kind: k.Kind, roles: k.Roles},
		read: []reading{at},
	})
	h.keyUses.told(ctx, k.Tenant, useOf(&k), CodeOf(err), h.now())
	return a, err
}

// HasKey reports whether the text is a key of the principal that was not revoked, also while the principal is disabled or has fewer
// roles than it had.
func (h *Host) HasKey(ctx context.Context, bearer, tenant, principal string) (bool, error) {
	k, _, err := h.keyOf(ctx, bearer)
	if CodeOf(err) == CodeUnauthenticated {
		return false, nil
	}
	return err == nil && k.Tenant == tenant && k.Principal == principal, err
}

// errRevokedKey looks like errBadCredential to everybody but this host.
var errRevokedKey = errf(errBadCredential.Code, "%s", errBadCredential.Detail)

// keyOf finds the live key that the text is. With errRevokedKey it returns the key that was revoked.
func (h *Host) keyOf(ctx context.Context, bearer string) (k store.APIKey, at reading, err error) {
	rest, ok := strings.CutPrefix(bearer, keyPrefix)
	if !ok {
		return k, at, errBadCredential
	}
	hexID, secret, ok := strings.Cut(rest, "_")
	if !ok || len(hexID) != 32 || len(bearer) > 256 {
		return k, at, errBadCredential
	}
	u, err := uuid.Parse(hexID)
	if err != nil {
		return k, at, errBadCredential
	}
	raw, err := tokenEncoding.DecodeString(secret)
	if err != nil || strings.ContainsAny(secret, "\r\n") {
		return k, at, errBadCredential
	}
	at.key = apiKeyKey("key_" + u.String())
	err = h.store.View(ctx, func(rd store.Reader) (err error) { at.version, err = getAt(rd, at.key, &k); return err })
	if errors.Is(err, store.ErrNotFound) {
		return k, at, errBadCredential
	}
	if err != nil {
		return k, at, err
	}
	sum := sha256.Sum256(raw)
	if subtle.ConstantTimeCompare(sum[:], k.Hash) != 1 {
		return k, at, errBadCredential
	}
	if !k.RevokedAt.IsZero() {
		return k, at, errRevokedKey
	}
	return k, at, nil
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
	for {
		if a, err = h.Fresh(ctx, a); err != nil {
			return Key{}, err
		}
		p, err := h.principalNow(ctx, a.Tenant, req.Principal)
		if err != nil {
			return Key{}, err
		}
		// A key of a principal is that principal's: an owner's is made by an owner.
		res := policy.Resource{Kind: "key", Tenant: a.Tenant, Roles: req.Roles, KindOfKey: req.Kind}
		h.standing(p, a.Tenant, &res)
		if err := h.allow(ctx, a, "key.create", res); err != nil {
			return Key{}, h.refused(ctx, a, "key.create", "tenant", a.Tenant, err)
		}
		rec, version, err := h.idempotent(ctx, a, idem)
		if err != nil {
			return Key{}, err
		}
		if rec != nil {
			var k store.APIKey
			err := h.store.View(ctx, func(rd store.Reader) error { return get(rd, apiKeyKey(rec.Target), &k) })
			return keyView(k), err
		}
		if err := p.checkKey(req); err != nil {
			return Key{}, err
		}
		c, k, secret, err := h.newKey(ctx, a, p, req)
		if err != nil {
			return Key{}, err
		}
		a.require(c)
		if idem.Key != "" {
			now := h.now()
			c.Require(idemKey(a, idem), version)
			c.Put(idemKey(a, idem), store.Encode(store.Idempotency{Request: idem.Body, Status: 201, Target: k.ID, At: now}))
			c.Put(dueKey(now.Add(idempotencyTTL), dueIdem, a.Tenant, a.ID, idem.Method, idem.Path, idem.Key), nil)
		}
		if _, err := h.writePeople(ctx, c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Key{}, err
		}
		v := keyView(k)
		v.Key = secret
		return v, nil
	}
}

// checkKey holds a new key to the principal that has the name already: it may be less than that, and never more.
func (p personRecord) checkKey(req NewKey) error {
	if !p.exists() {
		return nil
	}
	if p.Disabled {
		return errf(CodeWrongState, "the principal %s is disabled; enable it first: PUT /v1/principals/%s", req.Principal, req.Principal)
	}
	if p.Kind == KindService && req.Kind != KindService {
		return invalid("/kind", "%s is a service, and a service has no person's key", req.Principal)
	}
	for i, role := range req.Roles {
		if !covers(p.Roles, role) {
			return invalid(fmt.Sprintf("/roles/%d", i), "%s has the roles %q, which do not cover %s; give the principal that role first: PUT /v1/principals/%s", req.Principal, p.Roles, role, req.Principal)
		}
	}
	return nil
}

func checkKey(req NewKey) error {
	if !principalName.MatchString(req.Principal) {
		return invalid("/principal", nameShape)
	}
	if req.Kind != KindUser && req.Kind != KindService {
		return invalid("/kind", "say user or service")
	}
	return checkRoles(req.Roles)
}

// EnsureKey makes a key without an actor: the operator of a stopped host, or --dev at its first start. The principal becomes what
// the key says, at least: this is also the way back for an owner who was locked out.
func (h *Host) EnsureKey(ctx context.Context, tenant string, req NewKey) (Key, error) {
	if err := checkKey(req); err != nil {
		return Key{}, err
	}
	if err := checkTenantName(tenant, "/tenant"); err != nil {
		return Key{}, err
	}
	for {
		p, err := h.principalNow(ctx, tenant, req.Principal)
		if err != nil {
			return Key{}, err
		}
		if p.exists() {
			p.Disabled = false
			if req.Kind == KindUser {
				p.Kind = KindUser
			}
			for _, role := range req.Roles {
				if !covers(p.Roles, role) {
					p.Roles = union(p.Roles, []string{role})
				}
			}
		}
		c, k, secret, err := h.newKey(ctx, Actor{Tenant: tenant, Kind: KindSystem}, p, req)
		if err != nil {
			return Key{}, err
		}
		if _, err := h.writePeople(ctx, c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Key{}, err
		}
		v := keyView(k)
		v.Key = secret
		return v, nil
	}
}

// newKey makes a key of the principal, and the principal if there is none of the name. The principal is written in any case, so
// that of making a key and removing its principal one comes first.
func (h *Host) newKey(ctx context.Context, by Actor, p personRecord, req NewKey) (*store.Change, store.APIKey, string, error) {
	if !p.exists() {
		if err := checkName(req.Principal, "/principal"); err != nil {
			return nil, store.APIKey{}, "", err
		}
	}
	secret := make([]byte, 32)
	h.randMu.Lock()
	_, err := io.ReadFull(h.rand, secret)
	h.randMu.Unlock()
	if err != nil {
		return nil, store.APIKey{}, "", err
	}
	sum := sha256.Sum256(secret)
	tenant := by.Tenant
	k := store.APIKey{
		ID: h.id("key"), Tenant: tenant, Principal: req.Principal, Kind: req.Kind, Roles: req.Roles,
		Hash: sum[:], CreatedAt: h.now(), CreatedBy: by.ID,
	}
	c := &store.Change{}
	c.Require(apiKeyKey(k.ID), 0)
	c.Put(apiKeyKey(k.ID), store.Encode(k))
	c.Put(tenantKeysKey(tenant).With(k.ID), nil)
	c.Put(tenantsKey().With(tenant), nil)
	if !p.exists() {
		p.Principal = store.Principal{
			Kind: req.Kind, Roles: req.Roles, CreatedAt: k.CreatedAt, CreatedBy: by.ID, UpdatedAt: k.CreatedAt, UpdatedBy: by.ID,
		}
	}
	c.Require(principalKey(tenant, req.Principal), p.version)
	c.Put(principalKey(tenant, req.Principal), store.Encode(p.Principal))
	addRow(c, tenant, by.did(ctx, k.CreatedAt, "key.create", "key", k.ID, map[string]any{
		"principal": k.Principal, "roles": k.Roles, "kind": k.Kind,
	}))
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
	p, err := h.principalNow(ctx, k.Tenant, k.Principal)
	if err != nil {
		return err
	}
	res := policy.Resource{Kind: "key", Tenant: a.Tenant, ID: id, Roles: meet(k.Roles, p.Roles), KindOfKey: k.Kind}
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
		addRow(&c, tenant, auditRecord{
			At: k.RevokedAt, Trace: telemetry.TraceID(ctx), ActorKind: by.Kind, Actor: by.ID, Action: "key.revoke", TargetKind: "key", Target: id, Outcome: outcomeOK,
			Detail: mustJSON(map[string]any{"principal": k.Principal}),
		})
		if _, err := h.write(ctx, &c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return err
		}
		h.revoked.close(id)
		return nil
	}
}
