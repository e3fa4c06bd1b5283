package host

import (
	"encoding/json"

	"github.com/pawlhost/pawl/store"
)

// The views are what the host answers: hydrated, for one principal, in the shapes of the wire. Transports encode them as
// they are, so that every protocol says the same.

// Run is a run as its readers see it.
type Run struct {
	ID            string          `json:"id"`
	Agent         string          `json:"agent"`
	AgentVersion  uint64          `json:"agent_version"`
	State         store.RunState  `json:"state"`
	CreatedBy     string          `json:"created_by"`
	Subject       string          `json:"subject"`
	SessionID     string          `json:"session_id,omitempty"`
	Turn          int             `json:"turn"`
	CreatedAt     Time            `json:"created_at"`
	UpdatedAt     Time            `json:"updated_at"`
	AwaitingSince *Time           `json:"awaiting_since,omitempty"`
	Pause         *Pause          `json:"pause,omitempty"`
	PlannerState  json.RawMessage `json:"planner_state,omitempty"`
	Output        json.RawMessage `json:"output,omitempty"`
	Error         *store.Failure  `json:"error,omitempty"`
	Calls         []Call          `json:"calls"`
}

// Call is one tool call of a run.
type Call struct {
	ID              string          `json:"id"`
	ToolCallID      string          `json:"tool_call_id"`
	Turn            int             `json:"turn"`
	Index           int             `json:"index"`
	ParentCallID    string          `json:"parent_call_id,omitempty"`
	Tool            string          `json:"tool"`
	State           store.CallState `json:"state"`
	Arguments       json.RawMessage `json:"arguments"`
	EditedArguments json.RawMessage `json:"edited_arguments,omitempty"`
	Result          json.RawMessage `json:"result,omitempty"`
	Error           *store.Failure  `json:"error,omitempty"`
	ApprovalIDs     []string        `json:"approval_ids,omitempty"`
}

// Pause is an open suspension. ResumeToken is a secret, and set only for those who may have it.
type Pause struct {
	ID          string          `json:"id"`
	RunID       string          `json:"run_id"`
	Reason      string          `json:"reason"`
	Payload     json.RawMessage `json:"payload"`
	CreatedAt   Time            `json:"created_at"`
	ExpiresAt   Time            `json:"expires_at"`
	Approvals   []Approval      `json:"approvals"`
	ResumeToken string          `json:"resume_token,omitempty"`
}

// Approval is what one stop waits for, with the arguments that will run.
type Approval struct {
	ID           string              `json:"id"`
	RunID        string              `json:"run_id"`
	PauseID      string              `json:"pause_id"`
	CallID       string              `json:"call_id"`
	ToolCallID   string              `json:"tool_call_id"`
	ParentCallID string              `json:"parent_call_id,omitempty"`
	Agent        string              `json:"agent"`
	Subagent     string              `json:"subagent,omitempty"` // the path of names that leads to the call, such as "research/fetch"
	CreatedBy    string              `json:"created_by"`
	Subject      string              `json:"subject"`
	Tool         string              `json:"tool"`
	ToolDigest   string              `json:"tool_digest"`
	Arguments    json.RawMessage     `json:"arguments"`
	ArgsDigest   string              `json:"args_digest"`
	Reason       string              `json:"reason"`
	Rules        []string            `json:"rules"`
	Title        string              `json:"title"`
	Message      string              `json:"message"`
	Payload      json.RawMessage     `json:"payload,omitempty"`
	Schema       json.RawMessage     `json:"schema,omitempty"`
	Allowed      []string            `json:"allowed_decisions"`
	State        store.ApprovalState `json:"state"`
	CreatedAt    Time                `json:"created_at"`
	ExpiresAt    Time                `json:"expires_at"`
	Decision     *Decided            `json:"decision,omitempty"`
}

// Decided is a stored decision.
type Decided struct {
	Kind      string `json:"kind"`
	DecidedBy string `json:"decided_by"`
	DecidedAt Time   `json:"decided_at"`
	Message   string `json:"message,omitempty"`
	Changed   bool   `json:"changed,omitempty"`
	// Arguments are what runs instead, of an edit that is shown with its approval; events do not carry them.
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// Message is one message of a trajectory.
type Message struct {
	Seq        int              `json:"seq"`
	Frame      int              `json:"frame"`
	Role       string           `json:"role"`
	Content    json.RawMessage  `json:"content,omitempty"`
	ToolCalls  []ProposedCall   `json:"tool_calls,omitempty"`
	ToolCallID string           `json:"tool_call_id,omitempty"`
	Result     json.RawMessage  `json:"result,omitempty"`
	Error      *store.Failure   `json:"error,omitempty"`
	Decision   *MessageDecision `json:"decision,omitempty"`
}

// MessageDecision tells the model what people did to a call.
type MessageDecision struct {
	Kind      string          `json:"kind"`
	DecidedBy string          `json:"decided_by"`
	Edited    json.RawMessage `json:"edited,omitempty"`
}

// ProposedCall is a tool call as a planner or a client proposes it.
type ProposedCall struct {
	ToolCallID string          `json:"tool_call_id,omitempty"`
	Tool       string          `json:"tool"`
	Arguments  json.RawMessage `json:"arguments"`
}

// Tool is a tool as its users see it.
type Tool struct {
	Name         string          `json:"name"`
	Plugin       string          `json:"plugin"`
	Digest       string          `json:"digest"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Effects      string          `json:"effects"`
}

// Agent is a saved agent: its document with the name and version that the host gave it.
type Agent struct {
	Name      string `json:"name"`
	Version   uint64 `json:"version"`
	UpdatedAt Time   `json:"updated_at"`
	UpdatedBy string `json:"updated_by"`
	AgentDoc
	// Warnings are told with a save: what was accepted and is probably a mistake.
	Warnings []string `json:"warnings,omitempty"`
}

// Key is an API key without its secret.
type Key struct {
	ID        string   `json:"id"`
	Principal string   `json:"principal"`
	Kind      string   `json:"kind"`
	Roles     []string `json:"roles"`
	CreatedAt Time     `json:"created_at"`
	CreatedBy string   `json:"created_by,omitempty"`
	RevokedAt *Time    `json:"revoked_at,omitempty"`
	// Key is the secret; it is shown once, when the key is created.
	Key string `json:"key,omitempty"`
}

// Principal is a person or a service of a tenant.
type Principal struct {
	ID    string   `json:"id"`
	Kind  string   `json:"kind"`
	Roles []string `json:"roles"`
	// ActAs lets a service make runs for other users.
	ActAs bool `json:"act_as"`
	// Disabled means that none of its credentials count.
	Disabled  bool   `json:"disabled"`
	CreatedAt Time   `json:"created_at"`
	CreatedBy string `json:"created_by,omitempty"`
	UpdatedAt Time   `json:"updated_at"`
	UpdatedBy string `json:"updated_by,omitempty"`
}

// Tenant is a tenant with what is set for it.
type Tenant struct {
	Name string `json:"name"`
	// SecondParty means that nobody decides what they asked for themselves.
	SecondParty bool `json:"second_party"`
	// Disabled means that no credential of the tenant counts.
	Disabled  bool   `json:"disabled"`
	CreatedAt *Time  `json:"created_at,omitempty"`
	UpdatedAt *Time  `json:"updated_at,omitempty"`
	UpdatedBy string `json:"updated_by,omitempty"`
	// Key is the first owner's key, where one was asked for; it is shown once.
	Key *Key `json:"key,omitempty"`
}

// Event is one event of a run or of a tenant's queue. Data is the whole object, seq, type, time and run_id included.
// Transient events (call.progress, message.delta) have Seq 0: they are not stored and not numbered.
type Event struct {
	Seq   uint64
	Type  string
	RunID string
	Data  json.RawMessage
}
