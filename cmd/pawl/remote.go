package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/pawlhost/pawl/host"
)

// remote is the host at the other end of the wire.
type remote struct {
	base string
	key  string
	http *http.Client
}

// remote returns the host that the settings name.
func (a *app) remote() (*remote, error) {
	u, err := url.Parse(a.url)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, usagef("%q is not the address of a host: set PAWL_URL (or --url) to something like http://127.0.0.1:8080", a.url)
	}
	if a.key == "" {
		return nil, &exitError{exitRefused, errors.New(
			"no key: set PAWL_KEY to an API key (of a --dev host they are in dev-keys.json of its data folder)")}
	}
	return &remote{base: strings.TrimRight(a.url, "/"), key: a.key, http: &http.Client{}}, nil
}

// problem is an error answer of the host (RFC 9457).
type problem struct {
	Title       string           `json:"title"`
	Status      int              `json:"status"`
	Detail      string           `json:"detail"`
	Code        host.Code        `json:"code"`
	Pointer     string           `json:"pointer"`
	Reasons     []string         `json:"reasons"`
	Outstanding []string         `json:"outstanding"`
	Decisions   []host.DecidedBy `json:"decisions"`
}

func (p *problem) Error() string {
	var b strings.Builder
	b.WriteString(visible(string(p.Code)))
	if p.Detail != "" {
		b.WriteString(": " + visible(p.Detail))
	} else if p.Title != "" {
		b.WriteString(": " + visible(p.Title))
	}
	if p.Pointer != "" {
		b.WriteString(" (at " + visible(p.Pointer) + ")")
	}
	for _, r := range p.Reasons {
		b.WriteString("\n  because " + visible(r))
	}
	for _, id := range p.Outstanding {
		b.WriteString("\n  also decide " + visible(id))
	}
	for _, d := range p.Decisions {
		fmt.Fprintf(&b, "\n  %s: %s by %s at %s", visible(d.ApprovalID), visible(d.Kind), visible(d.DecidedBy), d.DecidedAt)
	}
	return b.String()
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

// call sends one request and decodes the answer into out: a pointer, a *json.RawMessage for the bytes, or nil.
func (r *remote) call(ctx context.Context, method, path string, body, out any) error {
	resp, err := r.send(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return &exitError{exitAway, fmt.Errorf("the host's answer broke off: %w", err)}
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *json.RawMessage:
		*out = raw
		return nil
	default:
		if err := json.Unmarshal(raw, out); err != nil {
			return fmt.Errorf("the host's answer to %s %s is not what this version expects: %w", method, path, err)
		}
		return nil
	}
}

// send sends one request and returns a good answer with its body open. Everything that creates or decides carries an
// Idempotency-Key, so that a repeat after a broken connection cannot do it twice.
func (r *remote) send(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	var rd io.Reader
	if body != nil {
		raw, err := marshal(body)
		if err != nil {
			return nil, err
		}
		rd = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, rd)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("Authorization", "Bearer "+r.key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPost {
		req.Header.Set("Idempotency-Key", uuid.NewString())
	}
	resp, err := r.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, &exitError{exitFailed, errors.New("interrupted")}
		}
		return nil, &exitError{exitAway, fmt.Errorf("cannot reach the host at %s: %w: is it running? (PAWL_URL)", r.base, unwrapURL(err))}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	p := &problem{Status: resp.StatusCode, Code: host.Code(strconv.Itoa(resp.StatusCode)), Title: http.StatusText(resp.StatusCode)}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	_ = json.Unmarshal(raw, p) // an answer of a proxy on the way is not ours; the status says enough
	p.Status = resp.StatusCode
	return nil, p
}

// unwrapURL drops the method and address that http.Client puts before its error: the message has them already.
func unwrapURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// pages calls fn with each page of a list until there is no next one.
func (r *remote) pages(ctx context.Context, path string, query url.Values, fn func(json.RawMessage) error) error {
	cursor := "cursor"
	if path == "/v1/audit" {
		cursor = "after"
	}
	for {
		var raw json.RawMessage
		p := path
		if len(query) > 0 {
			p += "?" + query.Encode()
		}
		if err := r.call(ctx, http.MethodGet, p, nil, &raw); err != nil {
			return err
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

// events calls fn with the events of a run after the given sequence number (0: from its first one), until the log has ended, fn
// fails, or ctx is done. A connection that breaks is opened again where it stopped.
func (r *remote) events(ctx context.Context, run string, after uint64, fn func(event) error) error {
	for {
		header := http.Header{"Accept": {"text/event-stream"}}
		if after > 0 {
			header.Set("Last-Event-ID", strconv.FormatUint(after, 10))
		}
		resp, err := r.send(ctx, http.MethodGet, "/v1/runs/"+url.PathEscape(run)+"/events", nil, header)
		if err != nil {
			return err
		}
		before := after
		done, err := readEvents(resp.Body, func(e event) error {
			if e.Seq > 0 {
				after = e.Seq
			}
			return fn(e)
		})
		resp.Body.Close()
		switch {
		case err != nil || done:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case after == before:
			return &exitError{exitAway, errors.New("the host closed the stream of events")}
		}
	}
}

// readEvents reads server-sent events. done tells that the last event of a log was among them.
func readEvents(body io.Reader, fn func(event) error) (done bool, err error) {
	var data []byte
	in := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return done, nil // a broken stream goes on elsewhere; the caller knows where it stopped
		}
		line = bytes.TrimRight(line, "\r\n")
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimPrefix(rest, []byte(" "))...)
			continue
		}
		if len(line) > 0 || len(data) == 0 {
			continue
		}
		e := event{raw: data}
		if err := json.Unmarshal(data, &e); err != nil {
			return false, fmt.Errorf("an event is not JSON: %w", err)
		}
		data = nil
		done = e.Type == "run.finished"
		if err := fn(e); err != nil {
			return done, err
		}
	}
}
