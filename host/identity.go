package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/pawlhost/pawl/store"
)

// Identity is what an identity provider's token says of its bearer, as the host's configuration reads it.
type Identity struct {
	Tenant    string
	Principal string
	Kind      string // KindUser or KindService
	Roles     []string
	Until     time.Time // the token's end
}

// ErrIssuerAway is wrapped by the error of Config.Tokens when the token could not be judged, because the identity provider cannot be
// asked. Every other error means that the token is worth nothing.
var ErrIssuerAway = errors.New("the identity provider cannot be asked")

// ErrIssuerPaced is an ErrIssuerAway: it was asked a moment ago, for another token. Anybody can make it so.
var ErrIssuerPaced = fmt.Errorf("%w again so soon", ErrIssuerAway)

// looksSigned reports whether a credential has the shape of a signed token (RFC 7515, compact): an API key never has.
func looksSigned(bearer string) bool {
	return strings.HasPrefix(bearer, "eyJ") && strings.Count(bearer, ".") == 2
}

// byToken finds the principal of an identity provider's token. What it says is the most that the actor can be; a principal of the name,
// if there is one, narrows it or disables it. The tenant has to be there already: no token makes one.
func (h *Host) byToken(ctx context.Context, token string) (Actor, error) {
	if h.tokens == nil {
		return Actor{}, errBadCredential
	}
	id, err := h.tokens(ctx, token)
	if errors.Is(err, ErrIssuerAway) {
		level := slog.LevelWarn
		if errors.Is(err, ErrIssuerPaced) {
			level = slog.LevelDebug
		}
		h.log.Log(ctx, level, "a bearer token could not be judged", "error", err)
		return Actor{}, errf(CodeUnavailable, "the identity provider cannot be asked for its keys; try again in a moment, or use an API key")
	}
	if err != nil {
		h.log.Debug("a bearer token was refused", "reason", clip(err.Error(), 300))
		return Actor{}, errBadCredential
	}
	known := false
	if principalName.MatchString(id.Tenant) && principalName.MatchString(id.Principal) && !reserved(id.Principal) {
		if known, err = h.knowsTenant(ctx, id.Tenant); err != nil {
			return Actor{}, err
		}
	}
	if !known || len(id.Roles) == 0 || checkRoles(id.Roles) != nil || id.Kind != KindUser && id.Kind != KindService || id.Until.IsZero() {
		h.log.Debug("a bearer token was refused", "reason", "its tenant, principal, kind or roles are none of this host")
		return Actor{}, errBadCredential
	}
	a, err := h.narrow(ctx, Actor{
		Tenant: id.Tenant, ID: id.Principal, KeyID: tokenKeyID(id.Tenant, id.Principal),
		credential: &credential{kind: id.Kind, roles: id.Roles, until: id.Until},
	})
	if now := h.now(); now.Before(id.Until) {
		h.keyUses.told(ctx, id.Tenant, auditRecord{ActorKind: id.Kind, Actor: id.Principal, TargetKind: "token", Target: id.Principal}, CodeOf(err), now)
	}
	return a, err
}

// Until is when the actor's credential ends by itself; zero means never.
func (a Actor) Until() time.Time {
	if a.credential == nil {
		return time.Time{}
	}
	return a.credential.until
}

// EnsureTenant makes sure that there is a tenant of the name, without anybody in it: the one that all tokens are for.
func (h *Host) EnsureTenant(ctx context.Context, name string) error {
	if err := checkTenantName(name, ""); err != nil {
		return err
	}
	if known, err := h.knowsTenant(ctx, name); err != nil || known {
		return err
	}
	var c store.Change
	c.Put(tenantsKey().With(name), nil)
	_, err := h.write(ctx, &c)
	return err
}
