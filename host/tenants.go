package host

import (
	"context"
	"errors"
	"time"

	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// A tenant begins with its first key, or by an operator's word. Its settings are a record that may be missing: then all are off.

// GetTenant returns the actor's own tenant.
func (h *Host) GetTenant(ctx context.Context, a Actor) (Tenant, error) {
	if err := h.allow(ctx, a, "tenant.read", policy.Resource{Kind: "tenant", Tenant: a.Tenant, ID: a.Tenant}); err != nil {
		return Tenant{}, h.refused(ctx, a, "tenant.read", "tenant", a.Tenant, err)
	}
	t, err := h.people.tenant(ctx, h.store, a.Tenant)
	return tenantView(a.Tenant, t.Tenant), err
}

// TenantOf returns any tenant, for an operator of the host.
func (h *Host) TenantOf(ctx context.Context, a Actor, name string) (Tenant, error) {
	if err := h.allow(ctx, a, "tenants.list", policy.Resource{Kind: "tenant", Tenant: a.Tenant, ID: name}); err != nil {
		return Tenant{}, h.refused(ctx, a, "tenants.list", "tenant", name, err)
	}
	known, err := h.knowsTenant(ctx, name)
	if err == nil && !known {
		err = errNotFound("tenant")
	}
	if err != nil {
		return Tenant{}, err
	}
	t, err := h.people.tenant(ctx, h.store, name)
	return tenantView(name, t.Tenant), err
}

// ChangeTenant changes the settings of the actor's own tenant, from the next decision on. Only an operator disables one.
func (h *Host) ChangeTenant(ctx context.Context, a Actor, body Lazy[TenantChange]) (Tenant, error) {
	return h.changeTenant(ctx, a, "tenant.change", a.Tenant, func() (TenantChange, error) {
		c, err := body()
		if err == nil && c.Disabled != nil {
			err = invalid("/disabled", "a tenant does not disable itself; ask an operator of the host")
		}
		return c, err
	})
}

// ChangeTenantOf changes the settings of any tenant, for an operator of the host. A disabled tenant's credentials count no more, and
// what they opened ends at once.
func (h *Host) ChangeTenantOf(ctx context.Context, a Actor, name string, body Lazy[TenantChange]) (Tenant, error) {
	return h.changeTenant(ctx, a, "tenants.change", name, body)
}

func (h *Host) changeTenant(ctx context.Context, a Actor, act, name string, body Lazy[TenantChange]) (Tenant, error) {
	refused := func(err error) (Tenant, error) { return Tenant{}, h.refused(ctx, a, act, "tenant", name, err) }
	if err := h.allow(ctx, a, act, policy.Resource{Kind: "tenant", Tenant: a.Tenant, ID: name}); err != nil {
		return refused(err)
	}
	if known, err := h.knowsTenant(ctx, name); err != nil {
		return Tenant{}, err
	} else if !known && (name != a.Tenant || a.isOperator()) {
		return Tenant{}, errNotFound("tenant")
	}
	change, err := body()
	if err != nil {
		return Tenant{}, err
	}
	for {
		if a, err = h.Fresh(ctx, a); err != nil {
			return Tenant{}, err
		}
		if err := h.allow(ctx, a, act, policy.Resource{Kind: "tenant", Tenant: a.Tenant, ID: name}); err != nil {
			return refused(err)
		}
		if change.Disabled != nil && *change.Disabled && name == h.operators && !a.isOperator() {
			return refused(errf(CodeWrongState, "this is the tenant of the host's operators; disabled, nobody could enable it again"))
		}
		var t tenantRecord
		err := h.store.View(ctx, func(rd store.Reader) (err error) { t, err = readTenant(rd, name); return err })
		if err != nil {
			return Tenant{}, err
		}
		detail := map[string]any{}
		if v := change.SecondParty; v != nil {
			t.SecondParty, detail["second_party"] = *v, *v
		}
		if v := change.Disabled; v != nil {
			t.Disabled, detail["disabled"] = *v, *v
		}
		t.UpdatedAt, t.UpdatedBy = h.now(), a.ID
		if name != a.Tenant {
			t.UpdatedBy = "" // an operator, whose name is another tenant's
		}
		var c store.Change
		a.require(&c)
		c.Require(settingsKey(name), t.version)
		c.Put(tenantsKey().With(name), nil)
		c.Put(settingsKey(name), store.Encode(t.Tenant))
		auditTenant(ctx, &c, a, act, name, t.UpdatedAt, detail)
		if _, err := h.writePeople(ctx, &c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Tenant{}, err
		}
		if t.Disabled {
			h.revoked.closePrincipal(name, "")
		}
		return tenantView(name, t.Tenant), nil
	}
}

// auditTenant appends the row of a change to the actor's log, and to the tenant's own, where an operator has no name.
func auditTenant(ctx context.Context, c *store.Change, a Actor, action, name string, at time.Time, detail map[string]any) {
	row := a.did(ctx, at, action, "tenant", name, detail)
	addRow(c, a.Tenant, row)
	if name != a.Tenant {
		row.ActorKind, row.Actor = KindSystem, ""
		addRow(c, name, row)
	}
}

// Tenants lists the tenants of the host by name, for its operators.
func (h *Host) Tenants(ctx context.Context, a Actor, p Page) ([]Tenant, string, error) {
	if err := h.allow(ctx, a, "tenants.list", policy.Resource{Kind: "tenant", Tenant: a.Tenant}); err != nil {
		return nil, "", h.refused(ctx, a, "tenants.list", "tenant", "", err)
	}
	out := []Tenant{}
	_, next, err := h.page(ctx, p, tenantsKey(), false, func(rd store.Reader, it store.Item) (string, error) {
		name := it.Key.Last()
		t, err := readTenant(rd, name)
		out = append(out, tenantView(name, t.Tenant))
		return name, err
	})
	return out, next, err
}

// CreateTenant makes a tenant, for an operator of the host, and the key of its first owner if one is named. A repeat with the same
// Idempotency-Key is answered without the key.
func (h *Host) CreateTenant(ctx context.Context, a Actor, idem Idempotency, body Lazy[NewTenant]) (Tenant, error) {
	res := policy.Resource{Kind: "tenant", Tenant: a.Tenant}
	if err := h.allow(ctx, a, "tenants.create", res); err != nil {
		return Tenant{}, h.refused(ctx, a, "tenants.create", "tenant", "", err)
	}
	req, err := body()
	if err != nil {
		return Tenant{}, err
	}
	if err := checkTenantName(req.Name, "/name"); err != nil {
		return Tenant{}, err
	}
	if req.Owner != "" {
		if err := checkName(req.Owner, "/owner"); err != nil {
			return Tenant{}, err
		}
	}
	for {
		if a, err = h.Fresh(ctx, a); err != nil {
			return Tenant{}, err
		}
		if err := h.allow(ctx, a, "tenants.create", res); err != nil {
			return Tenant{}, h.refused(ctx, a, "tenants.create", "tenant", req.Name, err)
		}
		rec, version, err := h.idempotent(ctx, a, idem)
		if err != nil {
			return Tenant{}, err
		}
		if rec != nil {
			t, err := h.people.tenant(ctx, h.store, rec.Target)
			return tenantView(rec.Target, t.Tenant), err
		}
		if known, err := h.knowsTenant(ctx, req.Name); err != nil {
			return Tenant{}, err
		} else if known {
			return Tenant{}, h.refused(ctx, a, "tenants.create", "tenant", req.Name, errf(CodeWrongState, "there is a tenant %s already", req.Name))
		}
		now := h.now()
		c, t := &store.Change{}, store.Tenant{SecondParty: req.SecondParty, CreatedAt: now, UpdatedAt: now}
		v := tenantView(req.Name, t)
		if req.Owner != "" {
			owner := NewKey{Principal: req.Owner, Kind: KindUser, Roles: []string{RoleOwner}}
			made, k, secret, err := h.newKey(ctx, Actor{Tenant: req.Name, Kind: KindSystem}, personRecord{}, owner)
			if err != nil {
				return Tenant{}, err
			}
			key := keyView(k)
			key.Key = secret
			c, v.Key = made, &key
		}
		a.require(c)
		c.Require(tenantsKey().With(req.Name), 0)
		c.Require(settingsKey(req.Name), 0)
		c.Put(tenantsKey().With(req.Name), nil)
		c.Put(settingsKey(req.Name), store.Encode(t))
		if idem.Key != "" {
			c.Require(idemKey(a, idem), version)
			c.Put(idemKey(a, idem), store.Encode(store.Idempotency{Request: idem.Body, Status: 201, Target: req.Name, At: now}))
			c.Put(dueKey(now.Add(idempotencyTTL), dueIdem, a.Tenant, a.ID, idem.Method, idem.Path, idem.Key), nil)
		}
		auditTenant(ctx, c, a, "tenants.create", req.Name, now, map[string]any{"second_party": req.SecondParty, "owner": req.Owner})
		if _, err := h.writePeople(ctx, c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Tenant{}, err
		}
		return v, nil
	}
}

func (h *Host) knowsTenant(ctx context.Context, name string) (bool, error) {
	if !principalName.MatchString(name) {
		return false, nil
	}
	err := h.store.View(ctx, func(rd store.Reader) error { _, err := rd.Get(tenantsKey().With(name)); return err })
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func checkTenantName(name, pointer string) error {
	if !principalName.MatchString(name) {
		return invalid(pointer, "a tenant's name has 1 to 128 letters, digits and . _ @ + -, and begins with a letter or digit")
	}
	return nil
}

func tenantView(name string, t store.Tenant) Tenant {
	v := Tenant{Name: name, SecondParty: t.SecondParty, Disabled: t.Disabled, UpdatedBy: t.UpdatedBy}
	v.CreatedAt, v.UpdatedAt = moment(t.CreatedAt), moment(t.UpdatedAt)
	return v
}

// moment is a time that may be missing.
func moment(t time.Time) *Time {
	if t.IsZero() {
		return nil
	}
	v := Time(t)
	return &v
}
