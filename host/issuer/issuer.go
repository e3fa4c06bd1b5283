// Package issuer reads the bearer tokens of one OpenID provider: JSON Web Tokens (RFC 7519) that it signed for this host. It asks
// the provider for its keys (OpenID Connect Discovery 1.0) when the first token comes, and again when a token names a key that it
// does not know, at most once in a while. Only this package knows the library.
package issuer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/pawlhost/pawl/host"
)

// Config says whose tokens count, and what their claims mean. Issuer, Audience, Roles and one of Tenant and TenantClaim are required.
type Config struct {
	// Issuer is the provider's URL, exactly as its tokens have it in "iss": https, or http on loopback.
	Issuer string
	// Audience is what a token's "aud" must have: a token for another application is none for this host.
	Audience string
	// PrincipalClaim names the claim with the principal's id. Default "sub". "email" counts only if "email_verified" is true.
	PrincipalClaim string
	// Tenant is the tenant of all tokens; or TenantClaim names the claim with it.
	Tenant, TenantClaim string
	// RolesClaim names the claim with the roles: a list of texts, or one text with spaces. Default "roles".
	RolesClaim string
	// Roles maps a value of that claim to a role of the host; "*" is for every token. A token without any role is refused.
	Roles map[string]string
	// KindClaim names a claim that says "service" (or true) in the tokens of programs. Without it all tokens are users'.
	KindClaim string
	// Now is the clock that tokens end by. Nil: time.Now.
	Now func() time.Time
	// Pace is the least time between two questions for keys. Zero: 2 s.
	Pace time.Duration
	// Timeout is how long one question may take. Zero: 5 s.
	Timeout time.Duration
}

// Issuer reads tokens. Its methods are safe for concurrent use; Close it when nobody uses it any more.
type Issuer struct {
	c      Config
	client *http.Client // for discovery
	keys   *http.Client // for keys, at the pace
	pace   *paced

	mu     sync.Mutex
	set    *oidc.RemoteKeySet // nil until the provider was asked
	asking chan struct{}      // closed when the question is answered
	failed time.Time          // the last time that it was not
	why    error
	work   sync.WaitGroup
}

// maxToken bounds a token: real ones have one or two KiB.
const maxToken = 16 << 10

// algorithms are the signatures that count. None of them is symmetric: a public key must never serve as a shared one (RFC 8725, 3.1).
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}

// New checks the configuration. It asks nobody: a host starts while its provider is away.
func New(c Config) (*Issuer, error) {
	if c.PrincipalClaim == "" {
		c.PrincipalClaim = "sub"
	}
	if c.RolesClaim == "" {
		c.RolesClaim = "roles"
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Pace <= 0 {
		c.Pace = 2 * time.Second
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	if err := safeURL(c.Issuer); err != nil {
		return nil, fmt.Errorf("the issuer %q: %w", c.Issuer, err)
	}
	switch {
	case c.Audience == "":
		return nil, errors.New("the audience is missing: without it any application's token of this issuer would count")
	case (c.Tenant == "") == (c.TenantClaim == ""):
		return nil, errors.New("say which tenant all tokens are for, or which claim names it; one of both")
	case len(c.Roles) == 0:
		return nil, errors.New("no claim gives a role, so that every token would be refused: map VALUE=ROLE, with * for everybody")
	}
	for value, role := range c.Roles {
		if role != host.RoleOwner && role != host.RoleAdmin && role != host.RoleMember {
			return nil, fmt.Errorf("%s=%s: the roles are owner, admin, member", value, role)
		}
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 2, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true}
	whole := &wholeAnswers{next: transport}
	client := func(rt http.RoundTripper) *http.Client {
		return &http.Client{Transport: rt, Timeout: c.Timeout, CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("a redirect: the configured address is not where the provider is")
		}}
	}
	pace := &paced{next: whole, every: c.Pace}
	return &Issuer{c: c, client: client(whole), keys: client(pace), pace: pace}, nil
}

// Close waits for what is asked of the provider at this moment.
func (i *Issuer) Close() {
	i.work.Wait()
	i.client.CloseIdleConnections()
}

// safeURL: keys that come over plain HTTP are anybody's.
func safeURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("write https://HOST/PATH")
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip.IsLoopback()) {
		return nil
	}
	return errors.New("https is needed here: over plain HTTP anybody can give the keys")
}

// Identify checks a token and reads its claims. An error that wraps host.ErrIssuerAway says nothing about the token; every other means
// that it is worth nothing. No error has any of its text but claims of the provider's.
func (i *Issuer) Identify(ctx context.Context, token string) (host.Identity, error) {
	kid, err := i.plausible(token)
	if err != nil {
		return host.Identity{}, err
	}
	set, err := i.keySet(ctx)
	if err != nil {
		return host.Identity{}, err
	}
	// The verifier of the library forgets what kind of error its keys had: ours remembers.
	keys := &attempt{set: set}
	verified, err := oidc.NewVerifier(i.c.Issuer, keys, &oidc.Config{ClientID: i.c.Audience, SupportedSigningAlgs: algorithms, Now: i.c.Now}).Verify(ctx, token)
	switch {
	case errors.Is(keys.err, host.ErrIssuerPaced) && i.pace.gave(kid):
		return host.Identity{}, errForged
	case errors.Is(keys.err, host.ErrIssuerAway), errors.Is(keys.err, context.Canceled), errors.Is(keys.err, context.DeadlineExceeded):
		return host.Identity{}, fmt.Errorf("%w: %w", host.ErrIssuerAway, keys.err)
	case keys.err != nil:
		return host.Identity{}, errForged
	case err != nil:
		return host.Identity{}, err
	}
	claims := map[string]any{}
	if err := verified.Claims(&claims); err != nil {
		return host.Identity{}, errors.New("its claims are no JSON object")
	}
	if _, ok := claims["events"]; ok {
		return host.Identity{}, errors.New("it tells of an event (a logout token) and is no credential")
	}
	return i.read(claims, verified.Expiry)
}

var errForged = errors.New("its signature is of no key of the issuer")

// plausible looks at what the token claims before its signature is checked, so that garbage makes nobody ask for keys. It returns the id of
// the key that the token names, "" if it names none.
func (i *Issuer) plausible(token string) (kid string, err error) {
	if len(token) > maxToken {
		return "", fmt.Errorf("it is longer than %d bytes", maxToken)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 || strings.ContainsAny(token, "\r\n") { // which base64 passes over
		return "", errors.New("it has not three parts")
	}
	var header struct{ Alg, Typ, Kid string }
	var body struct {
		Iss string `json:"iss"`
	}
	for n, into := range []any{&header, &body} {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(parts[n])
		if err != nil || json.Unmarshal(raw, into) != nil {
			return "", errors.New("it is no JSON in base64url")
		}
	}
	switch typ := strings.TrimPrefix(strings.ToLower(header.Typ), "application/"); {
	case !slices.Contains(algorithms, header.Alg):
		return "", errors.New("its signature is of a kind that does not count")
	case typ != "" && typ != "jwt" && typ != "at+jwt":
		return "", errors.New("it is a token of another type")
	case body.Iss != i.c.Issuer:
		return "", errors.New("it is another issuer's")
	}
	return header.Kid, nil
}

// attempt is the keys for one token, with the error that they gave.
type attempt struct {
	set *oidc.RemoteKeySet
	err error
}

// VerifySignature implements oidc.KeySet.
func (a *attempt) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := a.set.VerifySignature(ctx, jwt)
	a.err = err
	return payload, err
}

// keySet returns the keys of the provider, which it asks once for where they are. While it is away, one question a Pace is asked, whoever
// waits for it, and everybody else is told at once.
func (i *Issuer) keySet(ctx context.Context) (*oidc.RemoteKeySet, error) {
	for {
		i.mu.Lock()
		if i.set != nil {
			defer i.mu.Unlock()
			return i.set, nil
		}
		if i.asking == nil {
			if !i.failed.IsZero() && time.Since(i.failed) < i.c.Pace {
				defer i.mu.Unlock()
				return nil, i.why
			}
			answered := make(chan struct{})
			i.asking = answered
			i.work.Go(func() { i.discover(answered) })
		}
		asking := i.asking
		i.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", host.ErrIssuerAway, ctx.Err())
		}
	}
}

func (i *Issuer) discover(answered chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), i.c.Timeout) // not of a request: others wait too
	defer cancel()
	var set *oidc.RemoteKeySet
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.c.Issuer)
	if err == nil {
		var doc struct {
			Keys string `json:"jwks_uri"`
		}
		if err = provider.Claims(&doc); err == nil {
			err = safeURL(doc.Keys)
		}
		set = oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), i.keys), doc.Keys)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		i.failed, i.why = time.Now(), fmt.Errorf("%w: %w", host.ErrIssuerAway, err)
	} else {
		i.set = set
	}
	i.asking = nil
	close(answered)
}
