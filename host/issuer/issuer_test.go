package issuer

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pawlhost/pawl/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is a small OpenID provider: discovery, keys, and tokens of any shape.
type provider struct {
	*httptest.Server
	mu    sync.Mutex
	keys  map[string]crypto.Signer
	down  atomic.Bool
	asked atomic.Int64 // for keys
	found atomic.Int64 // discoveries
	hold  chan struct{}
}

// Keys are slow to make under the race detector: two serve all tests.
var rsaKeys = sync.OnceValue(func() (ks [2]*rsa.PrivateKey) {
	for i := range ks {
		var err error
		if ks[i], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			panic(err)
		}
	}
	return ks
})

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{keys: map[string]crypto.Signer{"k1": rsaKeys()[0]}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.hold != nil {
			<-p.hold
		}
		if p.down.Load() {
			http.Error(w, "out", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			p.found.Add(1)
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256", "ES256", "HS256", "none"}})
		case "/keys":
			p.asked.Add(1)
			p.mu.Lock()
			defer p.mu.Unlock()
			var list []any
			for id, k := range p.keys {
				list = append(list, jwk(id, k.Public()))
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": list})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) setKeys(keys map[string]crypto.Signer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = keys
}

func jwk(id string, public crypto.PublicKey) map[string]any {
	b64 := base64.RawURLEncoding.EncodeToString
	switch k := public.(type) {
	case *rsa.PublicKey:
		return map[string]any{"kty": "RSA", "kid": id, "use": "sig", "n": b64(k.N.Bytes()), "e": b64(big.NewInt(int64(k.E)).Bytes())}
	case *ecdsa.PublicKey:
		return map[string]any{"kty": "EC", "kid": id, "use": "sig", "crv": "P-256", "x": b64(k.X.FillBytes(make([]byte, 32))), "y": b64(k.Y.FillBytes(make([]byte, 32)))}
	}
	panic("no such key")
}

// sign makes a token by hand, so that it can be as wrong as it likes.
func sign(header, claims map[string]any, key any) string {
	b64 := base64.RawURLEncoding.EncodeToString
	h, _ := json.Marshal(header)
	c, _ := json.Marshal(claims)
	text := b64(h) + "." + b64(c)
	sum := sha256.Sum256([]byte(text))
	var sig []byte
	switch k := key.(type) {
	case *rsa.PrivateKey:
		sig, _ = rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, sum[:])
	case *ecdsa.PrivateKey:
		r, s, _ := ecdsa.Sign(rand.Reader, k, sum[:])
		sig = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	case []byte:
		m := hmac.New(sha256.New, k)
		m.Write([]byte(text))
		sig = m.Sum(nil)
	}
	return text + "." + b64(sig)
}

func with(m map[string]any, changes ...any) map[string]any {
	m = maps.Clone(m)
	for i := 0; i < len(changes); i += 2 {
		if m[changes[i].(string)] = changes[i+1]; changes[i+1] == nil {
			delete(m, changes[i].(string))
		}
	}
	return m
}

func (p *provider) config() Config {
	return Config{
		Issuer: p.URL, Audience: "pawl", TenantClaim: "org", RolesClaim: "realm_access.roles", KindClaim: "client_kind",
		Roles: map[string]string{"bosses": "owner", "ops": "admin", "staff": "member"}, Pace: time.Hour,
	}
}

func (p *provider) claims() map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": p.URL, "aud": []string{"other", "pawl"}, "sub": "ann", "org": "acme", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"realm_access": map[string]any{"roles": []string{"ops", "unknown", "owner"}},
	}
}

func open(t *testing.T, c Config) *Issuer {
	t.Helper()
	i, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i
}

var rs256 = map[string]any{"alg": "RS256", "kid": "k1", "typ": "JWT"}

func TestAGoodTokenIsWhatTheConfigurationReadsInIt(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.setKeys(map[string]crypto.Signer{"k1": rsaKeys()[0], "k2": ec})
	i := open(t, p.config())
	for name, tc := range map[string]struct {
		token string
		kind  string
		roles []string
	}{
		"a user":       {sign(rs256, p.claims(), rsaKeys()[0]), "user", []string{"admin"}},
		"a service":    {sign(rs256, with(p.claims(), "client_kind", "service"), rsaKeys()[0]), "service", []string{"admin"}},
		"an EC key":    {sign(map[string]any{"alg": "ES256", "kid": "k2"}, p.claims(), ec), "user", []string{"admin"}},
		"an RFC 9068":  {sign(with(rs256, "typ", "at+jwt"), p.claims(), rsaKeys()[0]), "user", []string{"admin"}},
		"several":      {sign(rs256, with(p.claims(), "realm_access", map[string]any{"roles": "staff bosses"}), rsaKeys()[0]), "user", []string{"owner", "member"}},
		"one audience": {sign(rs256, with(p.claims(), "aud", "pawl"), rsaKeys()[0]), "user", []string{"admin"}},
		"another kind": {sign(rs256, with(p.claims(), "client_kind", "robot"), rsaKeys()[0]), "user", []string{"admin"}},
	} {
		id, err := i.Identify(t.Context(), tc.token)
		if err != nil || id.Tenant != "acme" || id.Principal != "ann" || id.Kind != tc.kind || !slices.Equal(id.Roles, tc.roles) || time.Until(id.Until) < 50*time.Minute {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the keys were asked for %d times", n)
	}
}

func TestHostileTokensAreWorthNothing(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key, stranger := rsaKeys()[0], rsaKeys()[1]
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	good := sign(rs256, p.claims(), key)
	parts := strings.Split(good, ".")
	flipped := func(part, at int) string {
		q := slices.Clone(parts)
		raw, _ := base64.RawURLEncoding.DecodeString(q[part])
		raw[at%len(raw)] ^= 1
		q[part] = base64.RawURLEncoding.EncodeToString(raw)
		return strings.Join(q, ".")
	}
	claims := p.claims
	now := time.Now()
	i := open(t, p.config())
	if _, err := i.Identify(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"expired":                      sign(rs256, with(claims(), "exp", now.Add(-time.Second).Unix()), key),
		"without an end":               sign(rs256, with(claims(), "exp", nil), key),
		"not yet valid":                sign(rs256, with(claims(), "nbf", now.Add(time.Hour).Unix()), key),
		"another audience":             sign(rs256, with(claims(), "aud", "other"), key),
		"no audience":                  sign(rs256, with(claims(), "aud", nil), key),
		"an audience that begins so":   sign(rs256, with(claims(), "aud", "pawl2"), key),
		"another issuer":               sign(rs256, with(claims(), "iss", "https://evil.example"), key),
		"an issuer with a slash":       sign(rs256, with(claims(), "iss", p.URL+"/"), key),
		"no issuer":                    sign(rs256, with(claims(), "iss", nil), key),
		"alg none":                     sign(map[string]any{"alg": "none"}, claims(), nil),
		"alg None":                     sign(map[string]any{"alg": "None", "kid": "k1"}, claims(), nil),
		"no alg":                       sign(map[string]any{"kid": "k1"}, claims(), key),
		"HS256 with the public key":    sign(map[string]any{"alg": "HS256", "kid": "k1"}, claims(), public),
		"HS256 with its DER":           sign(map[string]any{"alg": "HS256", "kid": "k1"}, claims(), der),
		"RS256 that HMAC signed":       sign(rs256, claims(), public),
		"an unknown kid":               sign(with(rs256, "kid", "k9"), claims(), stranger),
		"an unknown kid, a good key":   sign(with(rs256, "kid", "k9"), claims(), key),
		"a stranger's key":             sign(rs256, claims(), stranger),
		"a stranger's key, no kid":     sign(with(rs256, "kid", nil), claims(), stranger),
		"a key of its own":             sign(with(rs256, "jwk", jwk("k1", stranger.Public())), claims(), stranger),
		"keys from elsewhere":          sign(with(rs256, "jku", "https://evil.example/keys"), claims(), stranger),
		"a critical extension":         sign(with(rs256, "crit", []string{"x"}, "x", 1), claims(), key),
		"an encrypted one":             sign(with(rs256, "typ", "JWE"), claims(), key),
		"a logout token":               sign(with(rs256, "typ", "logout+jwt"), claims(), key),
		"an event":                     sign(rs256, with(claims(), "events", map[string]any{}), key),
		"no signature":                 parts[0] + "." + parts[1] + ".",
		"cut":                          good[:len(good)-10],
		"cut claims":                   parts[0] + "." + parts[1][:20] + "." + parts[2],
		"two parts":                    parts[0] + "." + parts[1],
		"four parts":                   good + ".x",
		"a bit of the header":          flipped(0, 9),
		"a bit of the claims":          flipped(1, 40),
		"a bit of the signature":       flipped(2, 100),
		"the last bit":                 flipped(2, 255),
		"another's claims":             parts[0] + "." + strings.Split(sign(rs256, with(claims(), "sub", "boss"), stranger), ".")[1] + "." + parts[2],
		"the JSON serialization":       `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`,
		"no principal":                 sign(rs256, with(claims(), "sub", nil), key),
		"an empty principal":           sign(rs256, with(claims(), "sub", ""), key),
		"a principal that is a number": sign(rs256, with(claims(), "sub", 7), key),
		"no tenant":                    sign(rs256, with(claims(), "org", nil), key),
		"two tenants":                  sign(rs256, with(claims(), "org", []string{"acme", "other"}), key),
		"no roles":                     sign(rs256, with(claims(), "realm_access", nil), key),
		"roles that mean nothing":      sign(rs256, with(claims(), "realm_access", map[string]any{"roles": []any{"owner", "admin", "*", 7, nil}}), key),
		"roles elsewhere":              sign(rs256, with(claims(), "realm_access", nil, "roles", []string{"bosses"}), key),
		"a megabyte":                   sign(rs256, with(claims(), "x", strings.Repeat("x", 1<<20)), key),
		"a megabyte of nothing":        strings.Repeat("e", 1<<20),
		"dots":                         "..",
		"nothing":                      "",
		"line breaks":                  parts[0] + "\n." + parts[1] + "." + parts[2],
		"padding":                      parts[0] + "=." + parts[1] + "." + parts[2],
	} {
		id, err := i.Identify(t.Context(), token)
		unknown := strings.Contains(name, "kid") // it may be of a key that is new since the last question
		if err == nil || errors.Is(err, host.ErrIssuerAway) && (!unknown || !errors.Is(err, host.ErrIssuerPaced)) {
			t.Errorf("%s: %+v, %v", name, id, err)
			continue
		}
		for _, part := range strings.Split(token, ".") {
			if len(part) > 20 && strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error has the token in it: %v", name, err)
			}
		}
	}
	if n := p.asked.Load(); n > 1 {
		t.Errorf("hostile tokens made %d questions for keys", n-1)
	}
	// Configured otherwise.
	c := p.config()
	c.PrincipalClaim, c.Roles = "email", map[string]string{"*": "member"}
	i = open(t, c)
	for _, verified := range []any{nil, false, "true", 1} {
		if id, err := i.Identify(t.Context(), sign(rs256, with(claims(), "email", "ann@acme.example", "email_verified", verified), key)); err == nil {
			t.Errorf("an email that is not verified (%v): %+v", verified, id)
		}
	}
	id, err := i.Identify(t.Context(), sign(rs256, with(claims(), "email", "ann@acme.example", "email_verified", true, "realm_access", nil), key))
	if err != nil || id.Principal != "ann@acme.example" || !slices.Equal(id.Roles, []string{"member"}) {
		t.Errorf("%+v, %v", id, err)
	}
}

func TestKeysRotate(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	c := p.config()
	c.Pace = time.Millisecond
	i := open(t, c)
	old, next := sign(rs256, p.claims(), rsaKeys()[0]), sign(with(rs256, "kid", "k2"), p.claims(), rsaKeys()[1])
	if _, err := i.Identify(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	p.setKeys(map[string]crypto.Signer{"k2": rsaKeys()[1]})
	eventually(t, "the new key counts", func() bool { _, err := i.Identify(t.Context(), next); return err == nil })
	eventually(t, "the old one does not", func() bool { _, err := i.Identify(t.Context(), old); return err != nil })
	asked := p.asked.Load()
	for range 100 {
		if _, err := i.Identify(t.Context(), next); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.asked.Load(); n != asked {
		t.Errorf("good tokens made %d questions", n-asked)
	}
}

// Somebody else's garbage must not make a good token look dead, for however short a while.
func TestATokenOfANewKeyIsNotJudgedByOldKeys(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	c := p.config()
	c.Pace = time.Hour
	i := open(t, c)
	old, next := sign(rs256, p.claims(), rsaKeys()[0]), sign(with(rs256, "kid", "k2"), p.claims(), rsaKeys()[1])
	if _, err := i.Identify(t.Context(), old); err != nil { // the pace begins
		t.Fatal(err)
	}
	p.setKeys(map[string]crypto.Signer{"k1": rsaKeys()[0], "k2": rsaKeys()[1]})
	if _, err := i.Identify(t.Context(), next); !errors.Is(err, host.ErrIssuerAway) || !errors.Is(err, host.ErrIssuerPaced) {
		t.Errorf("%v", err)
	}
	if _, err := i.Identify(t.Context(), old); err != nil {
		t.Errorf("a known key: %v", err)
	}
	// Of a key that is known, a signature is right or wrong, whenever it was asked for.
	if _, err := i.Identify(t.Context(), sign(rs256, p.claims(), rsaKeys()[1])); err == nil || errors.Is(err, host.ErrIssuerAway) {
		t.Errorf("a wrong signature: %v", err)
	}
}

func TestAProviderThatIsAwayHoldsUpNobody(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	p.down.Store(true)
	c := p.config()
	c.Pace = time.Millisecond
	i := open(t, c)
	token := sign(rs256, p.claims(), rsaKeys()[0])
	if _, err := i.Identify(t.Context(), token); !errors.Is(err, host.ErrIssuerAway) {
		t.Errorf("%v", err)
	}
	p.down.Store(false)
	eventually(t, "it is asked again", func() bool { _, err := i.Identify(t.Context(), token); return err == nil })
	// Its keys are known: its absence is nobody's trouble but of those with a key that is not.
	p.down.Store(true)
	if _, err := i.Identify(t.Context(), token); err != nil {
		t.Errorf("a known key: %v", err)
	}
	eventually(t, "an unknown key cannot be judged", func() bool {
		_, err := i.Identify(t.Context(), sign(with(rs256, "kid", "k2"), p.claims(), rsaKeys()[1]))
		return errors.Is(err, host.ErrIssuerAway)
	})
	// It takes the question and does not answer: those who wait for it leave when they have to, and one question is asked for all.
	hanging := newProvider(t)
	hanging.hold = make(chan struct{})
	i = open(t, hanging.config())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := i.Identify(ctx, sign(rs256, hanging.claims(), rsaKeys()[0])); !errors.Is(err, host.ErrIssuerAway) {
				t.Errorf("%v", err)
			}
		})
	}
	cancel()
	wg.Wait()
	close(hanging.hold)
	if _, err := i.Identify(t.Context(), sign(rs256, hanging.claims(), rsaKeys()[0])); err != nil {
		t.Errorf("%v", err)
	}
	if n := hanging.found.Load(); n != 1 {
		t.Errorf("%d discoveries", n)
	}
}

func TestAConfigurationThatCannotBeMeantIsRefused(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	for name, change := range map[string]func(*Config){
		"no issuer":       func(c *Config) { c.Issuer = "" },
		"plain HTTP":      func(c *Config) { c.Issuer = "http://login.example" },
		"with a password": func(c *Config) { c.Issuer = "https://a:b@login.example" },
		"no audience":     func(c *Config) { c.Audience = "" },
		"no tenant":       func(c *Config) { c.TenantClaim = "" },
		"two tenants":     func(c *Config) { c.Tenant = "acme" },
		"no roles":        func(c *Config) { c.Roles = nil },
		"another role":    func(c *Config) { c.Roles = map[string]string{"x": "root"} },
	} {
		c := p.config()
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}
