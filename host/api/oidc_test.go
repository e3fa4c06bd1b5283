package api_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/host/issuer"
)

// tokens is an identity provider without signatures: what is in the middle of a token is who it is.
type tokens struct {
	mu    sync.Mutex
	known map[string]host.Identity
	away  bool
}

func (k *tokens) identify(_ context.Context, token string) (host.Identity, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away {
		return host.Identity{}, fmt.Errorf("%w: out", host.ErrIssuerAway)
	}
	id, ok := k.known[token]
	if !ok {
		return host.Identity{}, errors.New("unknown")
	}
	return id, nil
}

func (k *tokens) give(id host.Identity) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := "eyJ." + base64.RawURLEncoding.EncodeToString(fmt.Append(nil, id.Tenant, id.Principal, len(k.known))) + ".secret-signature"
	k.known[t] = id
	return t
}

func TestTokensAreCredentialsOnEveryWire(t *testing.T) {
	t.Parallel()
	k := &tokens{known: map[string]host.Identity{}}
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Config: func(c *host.Config) { c.Tokens = k.identify }})
	later := r.Clock.Now().Add(time.Hour)
	user := func(name string, roles ...string) string {
		return k.give(host.Identity{Tenant: "demo", Principal: name, Kind: "user", Roles: roles, Until: later})
	}
	ann, mia := user("ann", "admin"), user("mia", "member")
	run := r.run(mia, "ops")
	if run.CreatedBy != "mia" {
		t.Errorf("%+v", run)
	}
	r.refused(mia, "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"), 403, "forbidden")
	r.ok(ann, "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"))
	w, x := r.handshake(""), r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+r.ok(ann, "POST", "/v1/ws/ticket", nil).str("ticket"))
	w.text(map[string]any{"type": "hello", "token": ann})
	if m := w.want("welcome"); m["principal"] != "ann" {
		t.Errorf("%v", m)
	}
	x.want("welcome")
	run = r.paused("member")
	stream := r.stream(ann, run.ID, "")
	stream.next()
	// A principal of the name narrows it, and never widens it.
	r.ok("owner", "PUT", "/v1/principals/ann", `{"roles":["member"]}`)
	r.refused(ann, "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"), 404, "not_found")
	w.text(with(decisions(run.Pause, "approve"), "type", "decide", "id", "1", "run", run.ID))
	w.problem(404, "1")
	r.ok("owner", "PUT", "/v1/principals/mia", `{"roles":["owner"]}`)
	r.refused(mia, "GET", "/v1/keys", nil, 403, "forbidden")
	r.ok("owner", "PUT", "/v1/principals/ann", `{"roles":["admin"],"kind":"service"}`)
	mine := r.run(ann, "ops")
	r.refused(ann, "POST", "/v1/runs/"+mine.ID+"/approvals", decisions(mine.Pause, "approve"), 403, "forbidden")
	// Disabled, it is refused everywhere and its sockets close.
	r.ok("owner", "PUT", "/v1/principals/ann", `{"roles":["admin"],"disabled":true}`)
	w.closes(4403)
	x.closes(4403)
	stream.ends()
	r.refused(ann, "GET", "/v1/runs", nil, 401, "unauthenticated")
	if w := r.handshake(ann); w.status != 401 {
		t.Errorf("%d", w.status)
	}
	// No token makes a tenant, or is anything that the host does not know.
	for name, id := range map[string]host.Identity{
		"an unknown tenant": {Tenant: "nowhere", Principal: "ann", Kind: "user", Roles: []string{"owner"}, Until: later},
		"no tenant":         {Principal: "ann", Kind: "user", Roles: []string{"owner"}, Until: later},
		"a bad name":        {Tenant: "demo", Principal: "a/b", Kind: "user", Roles: []string{"owner"}, Until: later},
		"the system":        {Tenant: "demo", Principal: "x", Kind: "system", Roles: []string{"owner"}, Until: later},
		"no roles":          {Tenant: "demo", Principal: "x", Kind: "user", Until: later},
		"another role":      {Tenant: "demo", Principal: "x", Kind: "user", Roles: []string{"root"}, Until: later},
		"an ended one":      {Tenant: "demo", Principal: "x", Kind: "user", Roles: []string{"owner"}, Until: r.Clock.Now()},
		"one without end":   {Tenant: "demo", Principal: "x", Kind: "user", Roles: []string{"owner"}},
	} {
		if a := r.do(k.give(id), "GET", "/v1/runs", nil); a.status != 401 {
			t.Errorf("%s: %d %s", name, a.status, a.raw)
		}
	}
	r.refused("eyJ.unknown.token", "GET", "/v1/runs", nil, 401, "unauthenticated")
	// A token ends, and what it opened ends with it.
	short := k.give(host.Identity{Tenant: "demo", Principal: "kim", Kind: "user", Roles: []string{"admin"}, Until: r.Clock.Now().Add(500 * time.Millisecond)})
	w = r.ws(short)
	stream = r.stream(short, run.ID, "")
	w.closes(4401)
	stream.ends()
	w = r.ws(k.give(host.Identity{Tenant: "demo", Principal: "lea", Kind: "user", Roles: []string{"admin"}, Until: r.Clock.Now().Add(time.Hour)}))
	r.Clock.Advance(2 * time.Hour)
	w.text(with(decisions(run.Pause, "approve"), "type", "decide", "id", "1", "run", run.ID))
	w.closes(4401)
	// While the provider is away, keys count as ever.
	k.mu.Lock()
	k.away = true
	k.mu.Unlock()
	r.refused(mia, "GET", "/v1/runs", nil, 503, "unavailable")
	r.ok("admin", "GET", "/v1/runs", nil)
	for _, text := range []string{r.log.String(), r.Log.String(), r.seen.String()} {
		if strings.Contains(text, "secret-signature") {
			t.Error("a token is in a log or an answer")
		}
	}
}

// A real provider (panva's oidc-provider): a person logs in with a browser's requests and decides; a program starts a run and decides
// nothing; a token for another application is worth nothing.
func TestARealProvidersTokens(t *testing.T) {
	t.Parallel()
	url := startProvider(t)
	is, err := issuer.New(issuer.Config{
		Issuer: url, Audience: "pawl", TenantClaim: "org", RolesClaim: "groups", KindClaim: "client_kind",
		Roles: map[string]string{"pawl-admins": "admin", "pawl-users": "member"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(is.Close)
	r := newRig(t, api.Options{Dev: true, Now: time.Now}, hosttest.Options{Config: func(c *host.Config) { c.Tokens, c.Now = is.Identify, time.Now }})
	program := serviceToken(t, url, "urn:pawl")
	ann, bob := loginAs(t, url, "pawl", "ann"), loginAs(t, url, "pawl", "bob")
	run := r.run(program, "ops")
	if run.CreatedBy != "ci" {
		t.Errorf("%+v", run)
	}
	r.refused(program, "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"), 403, "forbidden")
	r.refused(bob, "POST", "/v1/resume", with(decisions(run.Pause, "approve"), "resume_token", run.Pause.ResumeToken), 403, "forbidden")
	w := r.handshake("")
	w.text(map[string]any{"type": "hello", "token": ann})
	if m := w.want("welcome"); m["principal"] != "ann" || m["tenant"] != "demo" {
		t.Errorf("%v", m)
	}
	w.text(with(decisions(run.Pause, "approve"), "type", "decide", "id", "1", "run", run.ID))
	w.want("ack")
	r.refused(loginAs(t, url, "other", "ann"), "GET", "/v1/runs", nil, 401, "unauthenticated")
	r.refused(serviceToken(t, url, "urn:elsewhere"), "GET", "/v1/runs", nil, 401, "unauthenticated")
	r.refused(loginAs(t, url, "pawl", "stranger"), "GET", "/v1/runs", nil, 401, "unauthenticated") // no group of this host
	for _, token := range []string{program, ann, bob} {
		for _, part := range strings.Split(token, ".") {
			if strings.Contains(r.log.String()+r.Log.String(), part) {
				t.Error("a token is in a log")
			}
		}
	}
}

// startProvider runs the provider in Node and returns its address.
func startProvider(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("testdata", "oidc-provider")
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs Node.js 20 or newer")
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "oidc-provider")); err != nil {
		t.Skipf("needs the provider's packages: cd host/api/%s && npm ci", dir)
	}
	c := exec.Command(node, "provider.js")
	c.Dir = dir
	stdin, err := c.StdinPipe() // it ends with this
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = c.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the provider does not start: %v", err)
	}
	return strings.TrimSpace(line)
}

func serviceToken(t *testing.T, issuer, resource string) string {
	t.Helper()
	return exchange(t, issuer, "ci", "ci-secret", url.Values{"grant_type": {"client_credentials"}, "resource": {resource}, "scope": {"run"}}, "access_token")
}

// loginAs does what a browser does, and returns the ID token that the application gets.
func loginAs(t *testing.T, issuer, application, name string) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: time.Minute}
	defer browser.CloseIdleConnections()
	at := func(resp *http.Response, err error) *url.URL {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.Request.URL
	}
	done := issuer + "/done"
	page := at(browser.Get(issuer + "/auth?" + url.Values{"client_id": {application}, "response_type": {"code"}, "scope": {"openid"}, "redirect_uri": {done}}.Encode()))
	for _, form := range []url.Values{{"prompt": {"login"}, "login": {name}, "password": {"x"}}, {"prompt": {"consent"}}} {
		if !strings.HasPrefix(page.Path, "/interaction/") {
			t.Fatalf("the provider shows %s", page)
		}
		page = at(browser.PostForm(page.String(), form))
	}
	code := page.Query().Get("code")
	if code == "" {
		t.Fatalf("no code at %s", page)
	}
	return exchange(t, issuer, application, "web-secret", url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {done}}, "id_token")
}

func exchange(t *testing.T, issuer, client, secret string, form url.Values, member string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, issuer+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(client, secret)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	token, _ := answer[member].(string)
	if token == "" {
		t.Fatalf("%s: %v", resp.Status, answer["error_description"])
	}
	return token
}
