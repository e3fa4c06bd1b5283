package host

import "slices"

// The kinds of principals.
const (
	KindUser    = "user"
	KindService = "service"
	KindSystem  = "system"
)

// The roles that the default policy knows.
const (
	RoleOwner  = "owner"
	RoleAdmin  = "admin"
	RoleMember = "member"
)

// Actor is who is asking: an authenticated principal of one tenant. It is a parameter and never a context value, because
// it decides outcomes. The zero Actor may do nothing.
type Actor struct {
	Tenant string
	ID     string
	Kind   string
	Roles  []string
	// KeyID is the credential, so that revoking it can end what it opened.
	KeyID string
}

// Has reports whether the actor has one of the roles.
func (a Actor) Has(roles ...string) bool {
	return slices.ContainsFunc(a.Roles, func(r string) bool { return slices.Contains(roles, r) })
}
