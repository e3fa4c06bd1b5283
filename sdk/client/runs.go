package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Run states.
const (
	Queued           = "queued"
	Running          = "running"
	AwaitingApproval = "awaiting_approval"
	AwaitingInput    = "awaiting_input"
	AwaitingEvent    = "awaiting_event"
	AwaitingPlanner  = "awaiting_planner"
	Succeeded        = "succeeded"
	Failed           = "failed"
	Cancelled        = "cancelled"
)

// Run is one execution of an agent.
type Run struct {
	ID            string          `json:"id"`
	Agent         string          `json:"agent"`
	AgentVersion  uint64          `json:"agent_version"`
	State         string          `json:"state"`
	CreatedBy     string          `json:"created_by"`
	Subject       string          `json:"subject"`
	SessionID     string          `json:"session_id,omitempty"`
	Turn          int             `json:"turn"`
	CreatedAt     time.Time       `json:"created_at"`
	UpdatedAt     time.Time       `json:"updated_at"`
	AwaitingSince *time.Time      `json:"awaiting_since,omitempty"`
	Pause         *Pause          `json:"pause,omitempty"`
	PlannerState  json.RawMessage `json:"planner_state,omitempty"`
	Output        json.RawMessage `json:"output,omitempty"`
	Error         *Failure        `json:"error,omitempty"`
	Calls         []Call          `json:"calls"`
}

// Ended reports whether the run has come to its end.
func (r Run) Ended() bool { return r.State == Succeeded || r.State == Failed || r.State == Cancelled }

// Failure is why a run or a call failed.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Call is one tool call of a run. A good one has a Result, also when that is null; a bad one has an Error.
type Call struct {
	ID              string          `json:"id"`
	ToolCallID      string          `json:"tool_call_id"`
	Turn            int             `json:"turn"`
	Index           int             `json:"index"`
	ParentCallID    string          `json:"parent_call_id,omitempty"`
	Tool            string          `json:"tool"`
	State           string          `json:"state"`
	Arguments       json.RawMessage `json:"arguments"`
	EditedArguments json.RawMessage `json:"edited_arguments,omitempty"`
	Result          json.RawMessage `json:"result,omitempty"`
	Error           *Failure        `json:"error,omitempty"`
	ApprovalIDs     []string        `json:"approval_ids,omitempty"`
}

// ProposedCall is a call as a client proposes it. Arguments is any JSON object.
type ProposedCall struct {
	ToolCallID string `json:"tool_call_id,omitempty"`
	Tool       string `json:"tool"`
	Arguments  any    `json:"arguments"`
}

// NewRun starts a run. Only Agent is required.
type NewRun struct {
	Agent       string `json:"agent"`
	Input       any    `json:"input,omitempty"`
	ToolContext any    `json:"tool_context,omitempty"`
	// User is whom the run is for, if not the key's own principal: for services whose principal has act_as.
	User         string         `json:"user,omitempty"`
	SessionID    string         `json:"session_id,omitempty"`
	Calls        []ProposedCall `json:"calls,omitempty"`
	PlannerState any            `json:"planner_state,omitempty"`
	// Wait is how long the answer waits for the run to stop or end, in whole seconds, at most 60.
	Wait time.Duration `json:"-"`
}

// CreateRun starts a run.
func (c *Client) CreateRun(ctx context.Context, n NewRun) (r Run, err error) {
	q := call{method: http.MethodPost, path: "/v1/runs", body: n, once: true}
	if s := int(n.Wait / time.Second); s > 0 {
		q.header = http.Header{"Prefer": {"wait=" + strconv.Itoa(min(s, 60))}}
	}
	_, err = c.do(ctx, q, &r)
	return r, err
}

// Run returns a run. To look changes nothing.
func (c *Client) Run(ctx context.Context, id string) (r Run, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: runPath(id, "")}, &r)
	return r, err
}

func runPath(id, rest string) string { return "/v1/runs/" + url.PathEscape(id) + rest }

// Page asks for part of a list. The zero Page is the first.
type Page struct {
	Limit  int    // at most 200; 0: the host's default
	Cursor string // the Next of the page before
}

func (p Page) query() url.Values {
	q := url.Values{}
	if p.Limit > 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Cursor != "" {
		q.Set("cursor", p.Cursor)
	}
	return q
}

// Runs lists runs, oldest first, of a state and an agent if those are given. next is "" on the last page.
func (c *Client) Runs(ctx context.Context, state, agent string, p Page) (runs []Run, next string, err error) {
	q := p.query()
	if state != "" {
		q.Set("state", state)
	}
	if agent != "" {
		q.Set("agent", agent)
	}
	var out struct {
		Runs []Run
		Next string
	}
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/v1/runs", query: q}, &out)
	return out.Runs, out.Next, err
}

// Message is one message of a trajectory.
type Message struct {
	Seq        int             `json:"seq"`
	Frame      int             `json:"frame"`
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content,omitempty"`
	ToolCalls  []ProposedCall  `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	Error      *Failure        `json:"error,omitempty"`
	Decision   *struct {
		Kind      string          `json:"kind"`
		DecidedBy string          `json:"decided_by"`
		Edited    json.RawMessage `json:"edited,omitempty"`
	} `json:"decision,omitempty"`
}

// Trajectory returns the messages of a run, as a model would see them.
func (c *Client) Trajectory(ctx context.Context, id string) ([]Message, error) {
	var out struct{ Messages []Message }
	_, err := c.do(ctx, call{method: http.MethodGet, path: runPath(id, "/trajectory")}, &out)
	return out.Messages, err
}

// Propose is the move of an external planner: the calls of a turn. Turns count from 1; the next is the run's Turn + 1. state
// (optional) comes back as the run's PlannerState.
func (c *Client) Propose(ctx context.Context, id string, turn int, calls []ProposedCall, state any) (r Run, err error) {
	body := struct {
		Turn         int            `json:"turn"`
		Calls        []ProposedCall `json:"calls"`
		PlannerState any            `json:"planner_state,omitempty"`
	}{turn, calls, state}
	_, err = c.do(ctx, call{method: http.MethodPost, path: runPath(id, "/calls"), body: body, once: true}, &r)
	return r, err
}

// Finish is the last move of an external planner: the run's output.
func (c *Client) Finish(ctx context.Context, id string, turn int, output any) (r Run, err error) {
	body := struct {
		Turn   int `json:"turn"`
		Output any `json:"output"`
	}{turn, output}
	_, err = c.do(ctx, call{method: http.MethodPost, path: runPath(id, "/finish"), body: body, once: true}, &r)
	return r, err
}

// Input gives a waiting run a further message of its user. While the run waits for a decision it is refused, unless supersede says that
// the message takes the place of what waits.
func (c *Client) Input(ctx context.Context, id string, input any, supersede bool) (r Run, err error) {
	body := struct {
		Input     any  `json:"input"`
		Supersede bool `json:"supersede,omitempty"`
	}{input, supersede}
	_, err = c.do(ctx, call{method: http.MethodPost, path: runPath(id, "/input"), body: body, once: true}, &r)
	return r, err
}

// Cancel ends a run. A run that has ended stays as it is.
func (c *Client) Cancel(ctx context.Context, id string) (r Run, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, path: runPath(id, "/cancel"), once: true}, &r)
	return r, err
}

// Outcome is how a tool call stands: Done with a Result or an Error; else it is paused or takes longer, and Run tells.
type Outcome struct {
	Run    Run             `json:"run"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Failure        `json:"error,omitempty"`
	Done   bool            `json:"-"`
}

// CallTool calls one tool under an agent ("": default), as a run of one call. It waits 30 s.
func (c *Client) CallTool(ctx context.Context, agent, tool string, arguments any) (o Outcome, err error) {
	body := struct {
		Agent     string `json:"agent,omitempty"`
		Arguments any    `json:"arguments"`
	}{agent, arguments}
	status, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/tools/" + url.PathEscape(tool) + "/call", body: body, once: true}, &o)
	o.Done = status == http.StatusOK
	return o, err
}

// Tool is a tool of the host.
type Tool struct {
	Name         string          `json:"name"`
	Plugin       string          `json:"plugin"`
	Digest       string          `json:"digest"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Effects      string          `json:"effects"`
}

// Tools lists the host's tools, all of them.
func (c *Client) Tools(ctx context.Context) (tools []Tool, err error) {
	for p := (Page{Limit: 200}); ; {
		var out struct {
			Tools []Tool
			Next  string
		}
		if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/tools", query: p.query()}, &out); err != nil {
			return nil, err
		}
		tools = append(tools, out.Tools...)
		if p.Cursor = out.Next; p.Cursor == "" {
			return tools, nil
		}
	}
}

// SavedAgent is what a save made. Warnings tell what was accepted and is probably a mistake, such as a rule for a tool that the agent
// does not have: show them to whoever wrote the document.
type SavedAgent struct {
	Version  uint64   `json:"version"`
	Warnings []string `json:"warnings,omitempty"`
}

// SaveAgent saves an agent's document (any value that encodes to it) as its next version.
func (c *Client) SaveAgent(ctx context.Context, name string, doc any) (saved SavedAgent, err error) {
	_, err = c.do(ctx, call{method: http.MethodPut, path: "/v1/agents/" + url.PathEscape(name), body: doc}, &saved)
	return saved, err
}

// Agent returns an agent's document with its name and version.
func (c *Client) Agent(ctx context.Context, name string) (doc json.RawMessage, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/v1/agents/" + url.PathEscape(name)}, &doc)
	return doc, err
}
