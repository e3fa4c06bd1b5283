package host

import (
	"context"
	"slices"
	"time"

	"github.com/pawlhost/pawl/host/telemetry"
)

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
	// ActAs is a service's right to make runs for other users; it is the principal's and no key's.
	ActAs bool

	credential *credential // nil: the program that embeds the host vouches
	read       []reading   // what the rights were read from
}

// Has reports whether the actor has one of the roles.
func (a Actor) Has(roles ...string) bool {
	return slices.ContainsFunc(a.Roles, func(r string) bool { return slices.Contains(roles, r) })
}

const operatorName = "operator"

// Operator is who can write the data folder of a stopped host, and so can do everything: an owner of the tenant, and of all
// tenants. Its rights are narrowed by nothing that is stored.
func Operator(tenant string) Actor {
	return Actor{Tenant: tenant, ID: operatorName, Kind: KindUser, Roles: []string{RoleOwner}, credential: &credential{operator: true}}
}

func (a Actor) isOperator() bool { return a.credential != nil && a.credential.operator }

// did is the audit row of what the actor has done.
func (a Actor) did(ctx context.Context, at time.Time, action, targetKind, target string, detail map[string]any) auditRecord {
	return auditRecord{
		At: at, Trace: telemetry.TraceID(ctx), ActorKind: a.Kind, Actor: a.ID, Action: action, TargetKind: targetKind, Target: target,
		Outcome: outcomeOK, Detail: mustJSON(detail),
	}
}
