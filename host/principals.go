package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// Principals lists the tenant's principals by name.
func (h *Host) Principals(ctx context.Context, a Actor, p Page) ([]Principal, string, error) {
	if err := h.allow(ctx, a, "principal.list", policy.Resource{Kind: "principal", Tenant: a.Tenant}); err != nil {
		return nil, "", h.refused(ctx, a, "principal.list", "tenant", a.Tenant, err)
	}
	out := []Principal{}
	_, next, err := h.page(ctx, p, principalsKey(a.Tenant), false, func(_ store.Reader, it store.Item) (string, error) {
		var rec store.Principal
		if err := store.Decode(it.Value, &rec); err != nil || rec.Removed {
			return "", err
		}
		out = append(out, principalView(it.Key.Last(), rec))
		return it.Key.Last(), nil
	})
	return out, next, err
}

// GetPrincipal returns one principal.
func (h *Host) GetPrincipal(ctx context.Context, a Actor, id string) (Principal, error) {
	if err := h.allow(ctx, a, "principal.read", policy.Resource{Kind: "principal", Tenant: a.Tenant, ID: id}); err != nil {
		return Principal{}, h.refused(ctx, a, "principal.read", "principal", id, err)
	}
	if !principalName.MatchString(id) {
		return Principal{}, errNotFound("principal")
	}
	p, err := h.principalNow(ctx, a.Tenant, id)
	if err == nil && !p.exists() {
		err = errNotFound("principal")
	}
	return principalView(id, p.Principal), err
}

// principalNow reads a principal from the store, past the cache: for who is about to change it.
func (h *Host) principalNow(ctx context.Context, tenant, id string) (p personRecord, err error) {
	err = h.store.View(ctx, func(rd store.Reader) (err error) { p, err = readPrincipal(rd, tenant, id); return err })
	return p, err
}

// SavePrincipal makes or changes a principal; the document says all of it. What its credentials opened follows at once: a disabled
// principal's sockets close, another role counts from the next frame on. created tells that there was none of this name.
func (h *Host) SavePrincipal(ctx context.Context, a Actor, id string, body Lazy[PrincipalDoc]) (v Principal, created bool, err error) {
	refused := func(err error) error { return h.refused(ctx, a, "principal.save", "principal", id, err) }
	// As for keys: may the actor do this at all, then the body, then may it do this one.
	least := policy.Resource{Kind: "principal", Tenant: a.Tenant, ID: id, Roles: []string{RoleMember}, KindOfKey: KindUser}
	if err := h.allow(ctx, a, "principal.save", least); err != nil {
		return v, false, refused(err)
	}
	doc, err := body()
	if err != nil {
		return v, false, err
	}
	if !principalName.MatchString(id) {
		return v, false, invalid("", nameShape)
	}
	for {
		if a, err = h.Fresh(ctx, a); err != nil {
			return v, false, err
		}
		was, err := h.principalNow(ctx, a.Tenant, id)
		if err != nil {
			return v, false, err
		}
		doc := doc
		if doc.Kind == "" {
			if doc.Kind = KindUser; was.exists() {
				doc.Kind = was.Kind
			}
		}
		err = doc.check()
		if err == nil && !was.exists() {
			err = checkName(id, "")
		}
		if err != nil {
			return v, false, err
		}
		res := least
		res.Roles, res.KindOfKey = doc.Roles, doc.Kind
		h.standing(was, a.Tenant, &res)
		if err := h.allow(ctx, a, "principal.save", res); err != nil {
			return v, false, refused(err)
		}
		now := h.now()
		rec := store.Principal{
			Kind: doc.Kind, Roles: doc.Roles, ActAs: doc.ActAs, Disabled: doc.Disabled,
			CreatedAt: now, CreatedBy: a.ID, UpdatedAt: now, UpdatedBy: a.ID,
		}
		action := "principal.create"
		if was.exists() {
			rec.CreatedAt, rec.CreatedBy, action = was.CreatedAt, was.CreatedBy, "principal.save"
		}
		var c store.Change
		a.require(&c)
		c.Require(principalKey(a.Tenant, id), was.version)
		if err := h.keepOwner(ctx, &c, a.Tenant, id, was, rec); err != nil {
			return v, false, refused(err)
		}
		c.Put(principalKey(a.Tenant, id), store.Encode(rec))
		addRow(&c, a.Tenant, a.did(ctx, now, action, "principal", id, map[string]any{
			"kind": rec.Kind, "roles": rec.Roles, "act_as": rec.ActAs, "disabled": rec.Disabled, "had_roles": list(was.Roles),
		}))
		if _, err := h.writePeople(ctx, &c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return v, false, err
		}
		if rec.Disabled {
			h.revoked.closePrincipal(a.Tenant, id)
		}
		return principalView(id, rec), !was.exists(), nil
	}
}

// RemovePrincipal takes a principal away, with all its keys. Its runs and what it decided keep its name, and tokens of the name are never
// more than it was.
func (h *Host) RemovePrincipal(ctx context.Context, a Actor, id string) error {
	refused := func(err error) error { return h.refused(ctx, a, "principal.remove", "principal", id, err) }
	if err := h.allow(ctx, a, "principal.remove", policy.Resource{Kind: "principal", Tenant: a.Tenant, ID: id}); err != nil {
		return refused(err)
	}
	if !principalName.MatchString(id) {
		return errNotFound("principal")
	}
	for {
		var err error
		if a, err = h.Fresh(ctx, a); err != nil {
			return err
		}
		var was personRecord
		keys := map[string]store.APIKey{}
		var c store.Change
		a.require(&c)
		err = h.store.View(ctx, func(rd store.Reader) (err error) {
			if was, err = readPrincipal(rd, a.Tenant, id); err != nil || !was.exists() {
				return err
			}
			// A key that is made meanwhile writes the principal too, and this change loses.
			return eachKey(rd, a.Tenant, func(k store.APIKey, version uint64) {
				if k.Principal == id && k.RevokedAt.IsZero() {
					keys[k.ID] = k
					c.Require(apiKeyKey(k.ID), version)
				}
			})
		})
		if err != nil {
			return err
		}
		if !was.exists() {
			return errNotFound("principal")
		}
		res := policy.Resource{Kind: "principal", Tenant: a.Tenant, ID: id, Roles: was.Roles, KindOfKey: was.Kind}
		if err := h.allow(ctx, a, "principal.remove", res); err != nil {
			return refused(err)
		}
		now := h.now()
		rec := was.Principal
		rec.Removed, rec.UpdatedAt, rec.UpdatedBy = true, now, a.ID
		c.Require(principalKey(a.Tenant, id), was.version)
		if err := h.keepOwner(ctx, &c, a.Tenant, id, was, rec); err != nil {
			return refused(err)
		}
		for _, k := range keys {
			k.RevokedAt, k.RevokedBy = now, a.ID
			c.Put(apiKeyKey(k.ID), store.Encode(k))
		}
		c.Put(principalKey(a.Tenant, id), store.Encode(rec))
		addRow(&c, a.Tenant, a.did(ctx, now, "principal.remove", "principal", id, map[string]any{"keys": slices.Sorted(maps.Keys(keys))}))
		if _, err := h.writePeople(ctx, &c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return err
		}
		h.revoked.closePrincipal(a.Tenant, id)
		return nil
	}
}

// writePeople commits a change of principals or tenants.
func (h *Host) writePeople(ctx context.Context, c *store.Change) (store.Receipt, error) {
	defer h.people.changed() // also after a lost race: somebody else has changed them
	return h.write(ctx, c)
}

func activeOwner(p store.Principal) bool {
	return p.Kind == KindUser && !p.Disabled && !p.Removed && slices.Contains(p.Roles, RoleOwner)
}

// keepOwner refuses a change that leaves the tenant without an active owner. Another owner that it counts on has to be unchanged
// at the commit: of two owners who take the role from each other at the same time, one stays.
func (h *Host) keepOwner(ctx context.Context, c *store.Change, tenant, id string, was personRecord, next store.Principal) error {
	if !was.exists() || !activeOwner(was.Principal) || activeOwner(next) {
		return nil
	}
	found := false
	err := h.store.View(ctx, func(rd store.Reader) error {
		var derr error
		err := rd.Scan(store.Range{Prefix: principalsKey(tenant)}, func(it store.Item) bool {
			var p store.Principal
			if derr = store.Decode(it.Value, &p); derr != nil {
				return false
			}
			if found = it.Key.Last() != id && activeOwner(p); found {
				c.Require(it.Key, it.Version)
			}
			return !found
		})
		return errors.Join(err, derr)
	})
	if err == nil && !found {
		return errf(CodeLastOwner, "%s is the last active owner of the tenant; make another principal an owner first", id)
	}
	return err
}

// eachKey visits the keys of a tenant.
func eachKey(rd store.Reader, tenant string, fn func(store.APIKey, uint64)) error {
	var kerr error
	err := rd.Scan(store.Range{Prefix: tenantKeysKey(tenant)}, func(it store.Item) bool {
		var k store.APIKey
		var version uint64
		if version, kerr = getAt(rd, apiKeyKey(it.Key.Last()), &k); kerr == nil {
			fn(k, version)
		}
		return kerr == nil
	})
	return errors.Join(err, kerr)
}

// adoptPrincipals makes a principal of every name that has live keys and no record: those of a database that an older version
// wrote. Each keeps the rights that its keys gave it.
func (h *Host) adoptPrincipals(ctx context.Context) error {
	type name struct{ tenant, id string }
	missing := map[name]store.Principal{}
	err := h.store.View(ctx, func(rd store.Reader) error {
		var kerr error
		err := rd.Scan(store.Range{Prefix: store.K("key")}, func(it store.Item) bool {
			var k store.APIKey
			if kerr = store.Decode(it.Value, &k); kerr != nil || !k.RevokedAt.IsZero() {
				return kerr == nil
			}
			n := name{k.Tenant, k.Principal}
			p, ok := missing[n]
			if !ok {
				var old personRecord
				if old, kerr = readPrincipal(rd, n.tenant, n.id); kerr != nil || old.version > 0 {
					return kerr == nil
				}
				p = store.Principal{Kind: k.Kind, CreatedAt: k.CreatedAt, CreatedBy: k.CreatedBy, UpdatedAt: k.CreatedAt, UpdatedBy: k.CreatedBy}
			}
			if k.Kind == KindUser {
				p.Kind = KindUser // its service keys stay a service's
			}
			p.Roles = union(p.Roles, k.Roles)
			missing[n] = p
			return true
		})
		return errors.Join(err, kerr)
	})
	if err != nil {
		return err
	}
	for n, p := range missing {
		var c store.Change
		c.Require(principalKey(n.tenant, n.id), 0)
		c.Put(principalKey(n.tenant, n.id), store.Encode(p))
		if _, err := h.write(ctx, &c); err != nil {
			return fmt.Errorf("adopt the principal %s of tenant %s: %w", n.id, n.tenant, err)
		}
	}
	if len(missing) > 0 {
		h.log.Info("principals were made of the names of older keys", "count", len(missing))
	}
	return nil
}

// check holds a document to what a principal can be.
func (d PrincipalDoc) check() error {
	if d.Kind != KindUser && d.Kind != KindService {
		return invalid("/kind", "say user or service")
	}
	if err := checkRoles(d.Roles); err != nil {
		return err
	}
	if d.ActAs && d.Kind != KindService {
		return invalid("/act_as", "only a service acts for others; a person acts as themselves")
	}
	return nil
}

func checkRoles(roles []string) error {
	if len(roles) == 0 {
		return invalid("/roles", "give at least one of owner, admin, member")
	}
	for i, role := range roles {
		if rank[role] == 0 {
			return invalid("/roles/"+strconv.Itoa(i), "no role %q; the roles are owner, admin, member", clip(role, 64))
		}
	}
	return nil
}

func principalView(id string, p store.Principal) Principal {
	return Principal{
		ID: id, Kind: p.Kind, Roles: list(p.Roles), ActAs: p.ActAs, Disabled: p.Disabled,
		CreatedAt: Time(p.CreatedAt), CreatedBy: p.CreatedBy, UpdatedAt: Time(p.UpdatedAt), UpdatedBy: p.UpdatedBy,
	}
}
