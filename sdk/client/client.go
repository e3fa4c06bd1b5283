// Package client talks to a pawl host: runs, approvals, events, over HTTP and WebSocket. It needs the standard library and a
// WebSocket library and nothing of the host, so that it can be copied or vendored.
//
//	c := client.New("http://127.0.0.1:8080", os.Getenv("PAWL_KEY"))
//	run, err := c.CreateRun(ctx, client.NewRun{Agent: "ops", Wait: 30 * time.Second})
//	if run.Pause != nil {
//		run, err = c.Decide(ctx, run.ID, client.Approve(run.Pause)...)
//	}
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client is a host and a key. Its fields may be changed before the first call; its methods are safe for concurrent use.
type Client struct {
	// URL is where the host is, without /v1.
	URL string
	// Key is the API key.
	Key string
	// HTTP makes the requests; it must have no timeout of its own if events or waits are used. Nil: http.DefaultClient.
	HTTP *http.Client
	// Retries is how often a request is sent again after the connection broke or the host said 429 or 503. A request that
	// creates or decides carries an Idempotency-Key, the same each time, so that it happens once. New sets 2.
	Retries int
}

// New makes a client.
func New(url, key string) *Client {
	return &Client{URL: strings.TrimSuffix(url, "/"), Key: key, Retries: 2}
}

// Problem is a refusal of the host, as RFC 9457 has it.
type Problem struct {
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Title   string `json:"title"`
	Detail  string `json:"detail"`
	TraceID string `json:"trace_id,omitempty"`
	// Pointer is the offending member of the request.
	Pointer string `json:"pointer,omitempty"`
	// Parameter is the offending query parameter of a list.
	Parameter string `json:"parameter,omitempty"`
	// Reasons say why policy refused.
	Reasons []string `json:"reasons,omitempty"`
	// Outstanding are the approvals that a request left out (code incomplete).
	Outstanding []string `json:"outstanding,omitempty"`
	// Decisions tell who was first (code already_decided).
	Decisions []DecidedBy `json:"decisions,omitempty"`
}

// DecidedBy is somebody else's decision.
type DecidedBy struct {
	ApprovalID string    `json:"approval_id"`
	Kind       string    `json:"kind"`
	DecidedBy  string    `json:"decided_by"`
	DecidedAt  time.Time `json:"decided_at"`
}

func (p *Problem) Error() string {
	s := fmt.Sprintf("pawl: %d %s: %s", p.Status, p.Code, p.Detail)
	if p.Pointer != "" {
		s += " (at " + p.Pointer + ")"
	}
	return s
}

// Code returns the code of a *Problem in err's chain, "" without one.
func Code(err error) string {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Code
	}
	return ""
}

// call is one request.
type call struct {
	method, path string
	query        url.Values
	body         any
	header       http.Header
	once         bool // creates or decides: takes an Idempotency-Key
}

// do sends a request and decodes a 2xx answer into out, if that is not nil. It returns the status. A refusal is a *Problem.
func (c *Client) do(ctx context.Context, q call, out any) (int, error) {
	resp, err := c.send(ctx, q)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if out == nil {
		return resp.StatusCode, nil
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, fmt.Errorf("pawl: the answer broke off: %w", err)
	}
	if raw, ok := out.(*json.RawMessage); ok {
		*raw = b
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return resp.StatusCode, fmt.Errorf("pawl: %s %s answered something else: %w", q.method, q.path, err)
	}
	return resp.StatusCode, nil
}

// send returns a 2xx answer with its body open. It tries again where that is safe.
func (c *Client) send(ctx context.Context, q call) (*http.Response, error) {
	var body []byte
	if q.body != nil {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(q.body); err != nil {
			return nil, err
		}
		body = b.Bytes()
	}
	header := q.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Authorization", "Bearer "+c.Key)
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	if q.once {
		header.Set("Idempotency-Key", rand.Text())
	}
	u := c.URL + q.path
	if len(q.query) > 0 {
		u += "?" + q.query.Encode()
	}
	safe := q.once || q.method != http.MethodPost
	for try := 0; ; try++ {
		req, err := http.NewRequestWithContext(ctx, q.method, u, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header = header
		resp, err := c.http().Do(req)
		wait := time.Duration(0)
		switch {
		case err != nil:
			if ctx.Err() != nil || !safe || try >= c.Retries {
				return nil, fmt.Errorf("pawl: %w", err)
			}
			wait = time.Duration(try+1) * 200 * time.Millisecond
		case resp.StatusCode/100 == 2:
			return resp, nil
		default:
			p := problem(resp)
			again := p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable
			if !again || !safe || try >= c.Retries {
				return nil, p
			}
			wait = time.Second
			if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 {
				wait = min(time.Duration(n)*time.Second, 30*time.Second)
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
	}
}

func (c *Client) http() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return http.DefaultClient
}

// problem reads and closes a refusal. One that is not ours (a proxy's page) becomes a Problem with its status.
func problem(resp *http.Response) *Problem {
	defer resp.Body.Close()
	p := &Problem{}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if json.Unmarshal(b, p) != nil || p.Code == "" {
		*p = Problem{Code: "http_" + strconv.Itoa(resp.StatusCode), Title: http.StatusText(resp.StatusCode), Detail: "not an answer of a pawl host: check the URL"}
	}
	p.Status = resp.StatusCode
	return p
}
