package host

import "encoding/json"

// Lazy parses a request's body when the host asks for it: after the target was found and the principal allowed (404 and
// 403 come before 400). Its error is returned as it is.
type Lazy[T any] func() (T, error)

// Idempotency identifies a repeatable request. The zero value means that the client sent no Idempotency-Key.
type Idempotency struct {
	Key    string
	Method string
	Path   string
	// Body is the SHA-256 of the request's body.
	Body string
}

// NewRun starts a run.
type NewRun struct {
	Agent       string          `json:"agent"`
	Input       json.RawMessage `json:"input"`
	ToolContext json.RawMessage `json:"tool_context"`
	// User is the subject: the caller, or another user if the caller is a service that may act for others.
	User         string          `json:"user"`
	SessionID    string          `json:"session_id"`
	Calls        []ProposedCall  `json:"calls"`
	PlannerState json.RawMessage `json:"planner_state"`
}

// Batch is a turn proposed by an external planner.
type Batch struct {
	Turn         *int            `json:"turn"`
	Calls        []ProposedCall  `json:"calls"`
	PlannerState json.RawMessage `json:"planner_state"`
}

// Final is the final answer of an external planner.
type Final struct {
	Turn   *int            `json:"turn"`
	Output json.RawMessage `json:"output"`
}

// Answer is what somebody says to a pause: decisions, or (by token only) the user's input.
type Answer struct {
	Decisions   []Decision      `json:"decisions"`
	UserInput   json.RawMessage `json:"user_input"`
	ToolContext json.RawMessage `json:"tool_context"`
}

// Decision decides one approval.
type Decision struct {
	ApprovalID string          `json:"approval_id"`
	Kind       string          `json:"kind"`
	Arguments  json.RawMessage `json:"arguments"`
	Message    string          `json:"message"`
	Value      json.RawMessage `json:"value"`
	ArgsDigest string          `json:"args_digest"`

	at string // where the value stands in the request, if not here
}

// DirectCall calls one tool without an agent's planner.
type DirectCall struct {
	Agent       string          `json:"agent"`
	Arguments   json.RawMessage `json:"arguments"`
	ToolContext json.RawMessage `json:"tool_context"`
}

// NewKey creates an API key.
type NewKey struct {
	Principal string   `json:"principal"`
	Roles     []string `json:"roles"`
	Kind      string   `json:"kind"`
}

// PrincipalDoc is all that a principal is. Without a kind it stays what it is, or becomes a user.
type PrincipalDoc struct {
	Kind     string   `json:"kind"`
	Roles    []string `json:"roles"`
	ActAs    bool     `json:"act_as"`
	Disabled bool     `json:"disabled"`
}

// NewTenant makes a tenant. Owner is the name of its first owner, for whom a key is made; without one the tenant has nobody yet.
type NewTenant struct {
	Name        string `json:"name"`
	SecondParty bool   `json:"second_party"`
	Owner       string `json:"owner"`
}

// TenantChange changes a tenant's settings; what is nil stays.
type TenantChange struct {
	SecondParty *bool `json:"second_party"`
	Disabled    *bool `json:"disabled"`
}

// Evaluation asks policy about a call without running anything.
type Evaluation struct {
	Agent string `json:"agent"`
	// Subagent is the path of names that leads to the subagent that would call, such as "research/fetch"; empty is the agent itself.
	Subagent    string          `json:"subagent"`
	Call        ProposedCall    `json:"call"`
	Principal   *EvalPrincipal  `json:"principal"`
	ToolContext json.RawMessage `json:"tool_context"`
}

// EvalPrincipal is the principal that an evaluation supposes.
type EvalPrincipal struct {
	ID    string   `json:"id"`
	Kind  string   `json:"kind"`
	Roles []string `json:"roles"`
}

// RunFilter selects runs; zero members select all.
type RunFilter struct {
	State string
	Agent string
}

// Page selects a page of a list: at most Limit items (0 means 50, at most 200) after Cursor.
type Page struct {
	Limit  int
	Cursor string
	// Newest turns the order of a list of runs: the newest first.
	Newest bool
}

// AuditFilter selects audit rows; zero members select all.
type AuditFilter struct {
	After  string
	Action string
	Actor  string
	Target string
	From   Time
	To     Time
	Limit  int
}
