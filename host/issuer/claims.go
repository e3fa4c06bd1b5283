package issuer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawlhost/pawl/host"
)

// read makes an identity of verified claims. What the configuration does not name counts for nothing.
func (i *Issuer) read(claims map[string]any, until time.Time) (host.Identity, error) {
	id := host.Identity{Tenant: i.c.Tenant, Kind: host.KindUser, Until: until}
	var ok bool
	if id.Principal, ok = lookup(claims, i.c.PrincipalClaim).(string); !ok || id.Principal == "" {
		return host.Identity{}, fmt.Errorf("it has no text in the claim %q for the principal", i.c.PrincipalClaim)
	}
	if verified, _ := lookup(claims, "email_verified").(bool); i.c.PrincipalClaim == "email" && !verified {
		return host.Identity{}, errors.New("its email is not verified, so that it could be anybody's")
	}
	if i.c.TenantClaim != "" {
		if id.Tenant, ok = lookup(claims, i.c.TenantClaim).(string); !ok || id.Tenant == "" {
			return host.Identity{}, fmt.Errorf("it has no text in the claim %q for the tenant", i.c.TenantClaim)
		}
	}
	if i.c.KindClaim != "" {
		if v := lookup(claims, i.c.KindClaim); v == host.KindService || v == true {
			id.Kind = host.KindService
		}
	}
	has := map[string]bool{}
	if role, ok := i.c.Roles["*"]; ok {
		has[role] = true
	}
	for _, value := range texts(lookup(claims, i.c.RolesClaim)) {
		if role, ok := i.c.Roles[value]; ok && value != "*" {
			has[role] = true
		}
	}
	for _, role := range []string{host.RoleOwner, host.RoleAdmin, host.RoleMember} {
		if has[role] {
			id.Roles = append(id.Roles, role)
		}
	}
	if id.Roles == nil {
		return host.Identity{}, fmt.Errorf("nothing in its claim %q gives a role", i.c.RolesClaim)
	}
	return id, nil
}

// lookup finds a claim by its name, or, where no claim has that name, by a path with dots ("realm_access.roles").
func lookup(claims map[string]any, name string) any {
	if v, ok := claims[name]; ok {
		return v
	}
	first, rest, ok := strings.Cut(name, ".")
	if inner, is := claims[first].(map[string]any); ok && is {
		return lookup(inner, rest)
	}
	return nil
}

// texts are the values of a list, or of one text with spaces between them (as OAuth's scope is written).
func texts(v any) (out []string) {
	switch v := v.(type) {
	case string:
		return strings.Fields(v)
	case []any:
		for _, e := range v {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
	}
	return out
}
