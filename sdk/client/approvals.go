package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// Pause is an open suspension of a run. ResumeToken is a one-time secret, there only for those who may have it.
type Pause struct {
	ID          string          `json:"id"`
	RunID       string          `json:"run_id"`
	Reason      string          `json:"reason"`
	Payload     json.RawMessage `json:"payload"`
	CreatedAt   time.Time       `json:"created_at"`
	ExpiresAt   time.Time       `json:"expires_at"`
	Approvals   []Approval      `json:"approvals"`
	ResumeToken string          `json:"resume_token,omitempty"`
}

// Approval is what one stop waits for. Arguments are what runs when it is approved, byte for byte. They, like Title and
// Message, were written by a model or a tool: show them as data, with control characters made visible.
type Approval struct {
	ID               string          `json:"id"`
	RunID            string          `json:"run_id"`
	PauseID          string          `json:"pause_id"`
	CallID           string          `json:"call_id"`
	ToolCallID       string          `json:"tool_call_id"`
	ParentCallID     string          `json:"parent_call_id,omitempty"`
	Agent            string          `json:"agent"`
	CreatedBy        string          `json:"created_by"`
	Subject          string          `json:"subject"`
	Tool             string          `json:"tool"`
	ToolDigest       string          `json:"tool_digest"`
	Arguments        json.RawMessage `json:"arguments"`
	ArgsDigest       string          `json:"args_digest"`
	Reason           string          `json:"reason"`
	Rules            []string        `json:"rules"`
	Title            string          `json:"title"`
	Message          string          `json:"message"`
	Payload          json.RawMessage `json:"payload,omitempty"`
	Schema           json.RawMessage `json:"schema,omitempty"`
	AllowedDecisions []string        `json:"allowed_decisions"`
	State            string          `json:"state"`
	CreatedAt        time.Time       `json:"created_at"`
	ExpiresAt        time.Time       `json:"expires_at"`
	Decision         *struct {
		Kind      string    `json:"kind"`
		DecidedBy string    `json:"decided_by"`
		DecidedAt time.Time `json:"decided_at"`
		Message   string    `json:"message,omitempty"`
		Changed   bool      `json:"changed,omitempty"`
	} `json:"decision,omitempty"`
}

// Decision decides one approval. Kind is approve, edit (with Arguments), reject or respond (with Value or Message).
type Decision struct {
	ApprovalID string          `json:"approval_id"`
	Kind       string          `json:"kind"`
	Arguments  json.RawMessage `json:"arguments,omitempty"`
	Message    string          `json:"message,omitempty"`
	Value      json.RawMessage `json:"value,omitempty"`
	// ArgsDigest is the digest of the arguments that were shown: if others wait by now, the host says "changed".
	ArgsDigest string `json:"args_digest,omitempty"`
}

// Approve approves everything that a pause waits for, as it was shown.
func Approve(p *Pause) []Decision { return decideAll(p, "approve", "") }

// Reject rejects everything that a pause waits for.
func Reject(p *Pause, message string) []Decision { return decideAll(p, "reject", message) }

func decideAll(p *Pause, kind, message string) []Decision {
	var ds []Decision
	for _, a := range p.Approvals {
		if a.State == "pending" {
			ds = append(ds, Decision{ApprovalID: a.ID, Kind: kind, Message: message, ArgsDigest: a.ArgsDigest})
		}
	}
	return ds
}

// RunApprovals lists the approvals of a run, decided ones included.
func (c *Client) RunApprovals(ctx context.Context, run string) ([]Approval, error) {
	var out struct{ Approvals []Approval }
	_, err := c.do(ctx, call{method: http.MethodGet, path: runPath(run, "/approvals")}, &out)
	return out.Approvals, err
}

// Approval returns one approval, whatever became of it.
func (c *Client) Approval(ctx context.Context, id string) (Approval, error) {
	var a Approval
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/approvals/" + url.PathEscape(id)}, &a)
	return a, err
}

// Pending lists the queue: the pending approvals that the key may see, oldest first. next is "" on the last page.
func (c *Client) Pending(ctx context.Context, p Page) (as []Approval, next string, err error) {
	q := p.query()
	q.Set("state", "pending")
	var out struct {
		Approvals []Approval
		Next      string
	}
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/v1/approvals", query: q}, &out)
	return out.Approvals, out.Next, err
}

// Decide decides every pending approval of a run that the key may decide. Fewer are code incomplete; one that somebody else
// was faster with is already_decided. Either way nothing has changed.
func (c *Client) Decide(ctx context.Context, run string, ds ...Decision) (r Run, err error) {
	body := struct {
		Decisions []Decision `json:"decisions"`
	}{append([]Decision{}, ds...)}
	_, err = c.do(ctx, call{method: http.MethodPost, path: runPath(run, "/approvals"), body: body, once: true}, &r)
	return r, err
}

// Resume answers a pause by its token, with decisions.
func (c *Client) Resume(ctx context.Context, token string, ds ...Decision) (r Run, err error) {
	body := struct {
		ResumeToken string     `json:"resume_token"`
		Decisions   []Decision `json:"decisions"`
	}{token, append([]Decision{}, ds...)}
	_, err = c.do(ctx, call{method: http.MethodPost, path: "/v1/resume", body: body, once: true}, &r)
	return r, err
}

// ResumeInput answers the one question of a tool by its token. input may be any value, null, false and "" included.
func (c *Client) ResumeInput(ctx context.Context, token string, input any) (r Run, err error) {
	body := struct {
		ResumeToken string `json:"resume_token"`
		UserInput   any    `json:"user_input"`
	}{token, input}
	_, err = c.do(ctx, call{method: http.MethodPost, path: "/v1/resume", body: body, once: true}, &r)
	return r, err
}

// Ticket returns a one-time ticket with which a browser opens a WebSocket within 30 seconds.
func (c *Client) Ticket(ctx context.Context) (string, error) {
	var out struct{ Ticket string }
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/ws/ticket"}, &out)
	return out.Ticket, err
}
