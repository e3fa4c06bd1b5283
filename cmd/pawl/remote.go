package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/sdk/client"
)

// remote is the host at the other end of the wire, with errors that know their exit code.
type remote struct{ *client.Client }

// remote returns the host that the settings name.
func (a *app) remote() (*remote, error) {
	u, err := url.Parse(a.url)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, usagef("%q is not the address of a host: set PAWL_URL (or --url) to something like http://127.0.0.1:8080", a.url)
	}
	if strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/v1") {
		return nil, usagef("%q: the address of a host is without /v1", a.url)
	}
	if a.key == "" {
		return nil, &exitError{exitRefused, errors.New(
			"no key: set PAWL_KEY to an API key (of a --dev host they are in dev-keys.json of its data folder)")}
	}
	return newRemote(a.url, a.key), nil
}

func newRemote(base, key string) *remote { return &remote{client.New(base, key)} }

// problem is a refusal of the host, with all that a person needs to go on.
type problem struct {
	*client.Problem
	try string // a command that would do, if one is known
}

// Error says first what a person has to know, then the words that a search or a script finds.
func (p *problem) Error() string {
	var b strings.Builder
	b.WriteString(visible(asCommands(cmp.Or(p.Detail, p.Title, http.StatusText(p.Status)))))
	if p.Code == string(host.CodeNotFound) && strings.HasPrefix(p.Detail, "no such ") {
		b.WriteString(", or not one that you may see")
	}
	if p.Pointer != "" {
		b.WriteString(" (at " + visible(p.Pointer) + ")")
	}
	b.WriteString(" [" + visible(p.Code))
	if len(p.Reasons) > 0 {
		b.WriteString(": " + visible(strings.Join(p.Reasons, ", ")))
	}
	b.WriteString("]")
	for _, id := range p.Outstanding {
		b.WriteString("\n  also decide " + visible(id))
	}
	if p.try != "" {
		b.WriteString("\nso that it covers all:\n    " + p.try)
	}
	for _, d := range p.Decisions {
		fmt.Fprintf(&b, "\n  %s: %s by %s at %s", visible(d.ApprovalID), visible(d.Kind), visible(d.DecidedBy), host.Time(d.DecidedAt))
	}
	return b.String()
}

// routes are what the host tells clients to ask, and what a person here types for it.
var routes = []struct {
	route   *regexp.Regexp
	command string
}{
	{regexp.MustCompile(`GET /v1/agents/([\w.-]+)`), `"pawl agents get $1"`},
	{regexp.MustCompile(`GET /v1/agents\b`), `"pawl agents list"`},
	{regexp.MustCompile(`PUT /v1/agents/\{name\}`), `"pawl agents save NAME FILE"`},
	{regexp.MustCompile(`GET /v1/tools\b`), `"pawl tools list"`},
	{regexp.MustCompile(`send supersede: true`), `add --supersede`},
	{regexp.MustCompile(`GET /v1/runs/\{run\}/approvals`), `"pawl approvals show RUN"`},
}

func asCommands(detail string) string {
	for _, r := range routes {
		detail = r.route.ReplaceAllString(detail, r.command)
	}
	return detail
}

// asTyped names the offending member of the request as the flag of c that it came from, if it came from one.
func (p *problem) asTyped(c *cobra.Command) {
	member := strings.TrimPrefix(p.Pointer, "/")
	if rest, ok := strings.CutPrefix(member, "decisions/"); ok { // the flags of a decision hold for each one
		_, member, _ = strings.Cut(rest, "/")
	}
	name, rest, _ := strings.Cut(member, "/")
	flag := c.Flags().Lookup(strings.ReplaceAll(name, "_", "-"))
	if name == "" || flag == nil || !flag.Changed {
		return
	}
	p.Pointer = "--" + flag.Name
	if rest != "" {
		p.Pointer += ", /" + rest
	}
}

// exit gives the exit code of an answer.
func (p *problem) exit() int {
	switch p.Status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return exitUsage
	case http.StatusNotFound:
		return exitNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return exitRefused
	case http.StatusConflict, http.StatusGone:
		return exitConflict
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		return exitAway
	}
	return exitFailed
}

// explain turns an error of the client into one that says what to do, and with which code to end.
func (r *remote) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*client.Problem](err); ok {
		return &problem{Problem: p}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		if strings.Contains(e.Err.Error(), "server gave HTTP response to HTTPS client") {
			return usagef("the host at %s speaks plain HTTP: write http:// in PAWL_URL (or --url)", r.URL)
		}
		return &exitError{exitAway, fmt.Errorf("cannot reach the host at %s: %w: is it running? (PAWL_URL)", r.URL, e.Err)}
	}
	return &exitError{exitAway, err}
}

// call sends one request and decodes the answer into out: a pointer, a *json.RawMessage for the bytes, or nil.
func (r *remote) call(ctx context.Context, method, path string, body, out any) error {
	return r.explain(ctx, r.Do(ctx, method, path, nil, body, out))
}

// pages calls fn with each page of a list until there is no next one.
func (r *remote) pages(ctx context.Context, path string, query url.Values, fn func(json.RawMessage) error) error {
	cursor := "cursor"
	if path == "/v1/audit" {
		cursor = "after"
	}
	for {
		var raw json.RawMessage
		if err := r.Do(ctx, http.MethodGet, path, query, nil, &raw); err != nil {
			return r.explain(ctx, err)
		}
		if err := fn(raw); err != nil {
			return err
		}
		var next struct{ Next string }
		if err := json.Unmarshal(raw, &next); err != nil || next.Next == "" {
			return err
		}
		if query == nil {
			query = url.Values{}
		}
		query.Set(cursor, next.Next)
	}
}

// events calls fn with the events of a run from the first one, until the log has ended, fn fails, or ctx is done.
func (r *remote) events(ctx context.Context, run string, fn func(event) error) error {
	for got, err := range r.Events(ctx, run, 0) {
		if err != nil {
			return r.explain(ctx, err)
		}
		e := event{raw: got.Data}
		if err := json.Unmarshal(got.Data, &e); err != nil {
			return fmt.Errorf("an event is not what this version expects: %w", err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}
