package store

import (
	"encoding/json"
	"time"
)

// The records are plain data: no clock, no rules. Field names are short on disk, since a paused run is budgeted at 4 KiB.
// Adding a field is fine; a field that changes its meaning needs a new encoding (see [Encode]).

// RunState is where a run stands; design section 2 has the diagram.
type RunState string

// The run states.
const (
	RunQueued           RunState = "queued"
	RunRunning          RunState = "running"
	RunAwaitingApproval RunState = "awaiting_approval"
	RunAwaitingInput    RunState = "awaiting_input"
	RunAwaitingEvent    RunState = "awaiting_event"
	RunAwaitingPlanner  RunState = "awaiting_planner"
	RunSucceeded        RunState = "succeeded"
	RunFailed           RunState = "failed"
	RunCancelled        RunState = "cancelled"
)

// Ended reports whether nothing can change the state any more.
func (s RunState) Ended() bool { return s == RunSucceeded || s == RunFailed || s == RunCancelled }

// Paused reports whether a pause is open.
func (s RunState) Paused() bool {
	return s == RunAwaitingApproval || s == RunAwaitingInput || s == RunAwaitingEvent
}

// CallState is where a call stands.
type CallState string

// The call states.
const (
	CallPlanned  CallState = "planned"
	CallAwaiting CallState = "awaiting"
	CallStarted  CallState = "started"
	CallFinished CallState = "finished"
)

// Failure is a coded error that a run or a call ended with.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Body is JSON text, inline or, when it is large, a blob of the same tenant.
type Body struct {
	Inline json.RawMessage `json:"i,omitempty"`
	Blob   Digest          `json:"b,omitempty"`
	Length int             `json:"l,omitempty"` // of the blob
}

// Size is the length of the text.
func (b Body) Size() int { return len(b.Inline) + b.Length }

// Run is the head of a run, at most 4 KiB: what lists, claims and decisions need. Its version guards every transition.
type Run struct {
	Tenant        string    `json:"-"`
	ID            string    `json:"-"`
	Version       uint64    `json:"-"`
	Agent         string    `json:"ag"`
	AgentVersion  uint64    `json:"av"`
	Planner       string    `json:"pk"`
	State         RunState  `json:"st"`
	CreatedBy     string    `json:"cb"`
	Subject       string    `json:"su,omitempty"` // empty: the creator
	SessionID     string    `json:"se,omitempty"`
	Turn          int       `json:"tu,omitempty"`
	Batch         int       `json:"ba,omitempty"` // calls of this turn
	CreatedAt     time.Time `json:"ca"`
	UpdatedAt     time.Time `json:"ua"`
	AwaitingSince time.Time `json:"as,omitzero"`
	PauseID       string    `json:"pi,omitempty"` // the open pause, or the last one
	// Boot is the claim: the process that drives the run. A claim of another boot is dead.
	Boot string `json:"bo,omitempty"`
	// Begun is set by the first turn; Resume from the last decision until the claim that applies it.
	Begun  bool `json:"bg,omitempty"`
	Resume bool `json:"rs,omitempty"`
	// ActiveMS is the time spent running, without human time.
	ActiveMS int64 `json:"am,omitempty"`
	// Bytes is the size of all arguments and results: a run is read as a whole.
	Bytes int64 `json:"by,omitempty"`
	// Messages counts the trajectory; message numbers live in the calls.
	Messages int `json:"ms,omitempty"`
	// Cursor is the in-process planner's own small state; a client's planner_state has its own record.
	Cursor json.RawMessage `json:"cu,omitempty"`
	// FinalMessage is the message number of the final answer, 0 while there is none.
	FinalMessage int      `json:"fm,omitempty"`
	Error        *Failure `json:"er,omitempty"`
	// History counts the run; Before is what it was when the current batch was gated.
	History   History `json:"hi,omitzero"`
	Before    History `json:"hb,omitzero"`
	HasGrants bool    `json:"hg,omitempty"` // a grants record exists
	HasState  bool    `json:"hs,omitempty"` // a planner_state record exists
	HasOutput bool    `json:"ho,omitempty"` // an output record exists
	// Frames counts the subagent frames that the run has opened; Live are those still open, each with a record of its own. The
	// root frame's turn, batch and cursor are the head's.
	Frames int   `json:"fn,omitempty"`
	Live   []int `json:"lv,omitempty"`
	// Rejects counts the first rejected calls, so that nobody is asked about the same one for ever.
	Rejects []Reject `json:"rj,omitempty"`
	// Unsettled counts calls that a cancel left running: their own result, or an honest error, is still to come.
	Unsettled int `json:"un,omitempty"`
	// Trace is there while the host exports spans.
	Trace *Trace `json:"tr,omitempty"`
}

// Trace names the span of a run's stretch: the time from its beginning, or from the answer to a stop, to the next stop or the end.
// The span itself is written when the stretch is over; what comes after a stop links to it. A new stretch has a new Trace.
type Trace struct {
	Span    []byte    `json:"s"`           // trace id, span id, flags
	Request []byte    `json:"r,omitempty"` // the span of the request that set the run going
	Began   time.Time `json:"b"`
	// After a pause: the span of the stretch before it, the pause, and how long it lasted.
	From   []byte `json:"f,omitempty"`
	Pause  string `json:"p,omitempty"`
	Waited int64  `json:"w,omitempty"` // milliseconds
}

// History counts what policy may look at.
type History struct {
	Calls    int `json:"c,omitempty"`
	Approved int `json:"a,omitempty"`
	Rejected int `json:"r,omitempty"`
}

// Reject is a call that people have rejected N times, named by its tool and arguments.
type Reject struct {
	Call string `json:"c"`
	N    int    `json:"n"`
}

// Frame is a live subagent call: where its own planner stands. Its calls name it.
type Frame struct {
	ID       int             `json:"id"`
	Parent   int             `json:"pa,omitempty"` // the frame of the call that opened it, 0 for the root
	Index    int             `json:"ix"`           // of that call in its batch
	Depth    int             `json:"de"`
	Subagent string          `json:"su"` // its name among the subagents of the parent's agent
	Turn     int             `json:"tu,omitempty"`
	Batch    int             `json:"ba,omitempty"`
	Cursor   json.RawMessage `json:"cu,omitempty"`
	Before   History         `json:"hb,omitzero"`
	ActiveMS int64           `json:"am,omitempty"` // as of a run, with the frames below it
}

// Opened is the frame that a task call opened, with the trajectory numbers of what was said to its subagent and by it: the texts are the
// agent's, the call's arguments and its result.
type Opened struct {
	Frame    int    `json:"f"`
	Subagent string `json:"s"`           // the path of names that leads to the frame
	System   int    `json:"y,omitempty"` // 0: the subagent has no system text
	Input    int    `json:"i"`
	Final    int    `json:"n,omitempty"` // 0: it has not answered
}

// Message is what a user added to a run that had begun. Its number is its key.
type Message struct {
	Content Body `json:"c"`
}

// Grant is a trusted approval flag for one later call of the same tool bytes and the same arguments.
type Grant struct {
	Key        string `json:"k"`
	Tool       string `json:"t"`
	Digest     string `json:"d"`
	ArgsDigest string `json:"a"`
	Frame      int    `json:"f,omitempty"` // whose tool asked
}

// Grants are the trusted flags of a run that no call has used yet.
type Grants struct {
	List []Grant `json:"l"`
}

// RunContext is what a run was started with, and the caller's context as merged since.
type RunContext struct {
	Input       Body              `json:"in,omitzero"`
	ToolContext Body              `json:"tc,omitzero"`
	Tools       map[string]string `json:"to"` // tool name → digest, pinned
	Kind        string            `json:"ki"` // of the principal that made the run, with its roles at that time
	Roles       []string          `json:"ro"`
}

// Call is one tool call. Its arguments live here and nowhere else; approvals and events hydrate them.
type Call struct {
	ID           string    `json:"id"`
	ToolCallID   string    `json:"ti"`
	Frame        int       `json:"fr,omitempty"`
	Turn         int       `json:"tu"`
	Index        int       `json:"ix"`
	ParentCallID string    `json:"pc,omitempty"`
	Tool         string    `json:"to"`
	Digest       string    `json:"dg,omitempty"` // of the tool, empty for an unknown one
	Effects      string    `json:"ef,omitempty"`
	State        CallState `json:"st"`
	Arguments    Body      `json:"ar"`
	ArgsDigest   string    `json:"ad,omitempty"`
	Edited       Body      `json:"ed,omitzero"`
	EditedDigest string    `json:"dd,omitempty"`
	Result       *Body     `json:"re,omitempty"`
	Error        *Failure  `json:"er,omitempty"`
	Approvals    []string  `json:"ap,omitempty"`
	// Passed are the rules that people have already let this call through.
	Passed []string `json:"pa,omitempty"`
	// Grants are the trusted flags this execution carries; a run after a crash carries the same.
	Grants []string `json:"gr,omitempty"`
	// StartedAt is when the call first started: where its guest's clock begins, in every attempt.
	StartedAt time.Time `json:"sa,omitzero"`
	// Task tells that the call opens a frame instead of running a guest; Opened is that frame, from its start on.
	Task   bool    `json:"ta,omitempty"`
	Opened *Opened `json:"op,omitempty"`
	// Stop is set from the moment the call must wait until its approval is there: a pause opens when every frame rests.
	Stop *Stop `json:"sp,omitempty"`
	// Observed tells that the result is the observation of a pause that the tool raised.
	Observed bool `json:"ob,omitempty"`
	// Decision is the last decision that shaped the result, for the trajectory.
	Decision *Decision `json:"de,omitempty"`
	// AskMessage and ResultMessage are the trajectory numbers of the proposal and of the result.
	AskMessage    int `json:"am,omitempty"`
	ResultMessage int `json:"rm,omitempty"`
}

// Stop is why a call must wait: what the tool said when it stopped itself, or what the gate said.
type Stop struct {
	Origin   string          `json:"o,omitempty"` // as of an approval; empty is the tool
	Reason   string          `json:"r"`
	Payload  json.RawMessage `json:"p,omitempty"`
	Schema   json.RawMessage `json:"s,omitempty"`
	Rules    []string        `json:"u,omitempty"`
	Title    string          `json:"t,omitempty"`
	Message  string          `json:"m,omitempty"`
	Allowed  []string        `json:"a,omitempty"`
	Revision string          `json:"v,omitempty"`
	TTL      time.Duration   `json:"l,omitempty"` // 0: the rules name none
}

// PauseState tells how a pause ended; it ends exactly once.
type PauseState string

// The pause states.
const (
	PauseOpen       PauseState = "open"
	PauseDecided    PauseState = "decided"
	PauseExpired    PauseState = "expired"
	PauseCancelled  PauseState = "cancelled"
	PauseSuperseded PauseState = "superseded"
)

// Pause is the suspension of a run.
type Pause struct {
	ID         string     `json:"id"`
	Generation int        `json:"ge,omitempty"` // rises when the token is rotated
	State      PauseState `json:"st"`
	CreatedAt  time.Time  `json:"ca"`
	ExpiresAt  time.Time  `json:"ea"`
	ClosedAt   time.Time  `json:"cl,omitzero"`
	Approvals  []string   `json:"ap"`
}

// ApprovalState is where an approval stands.
type ApprovalState string

// The approval states.
const (
	ApprovalPending    ApprovalState = "pending"
	ApprovalDecided    ApprovalState = "decided"
	ApprovalExpired    ApprovalState = "expired"
	ApprovalCancelled  ApprovalState = "cancelled"
	ApprovalSuperseded ApprovalState = "superseded"
)

// Approval is what one stop waits for.
type Approval struct {
	ID         string `json:"id"`
	PauseID    string `json:"pi"`
	CallID     string `json:"ci"`
	Tool       string `json:"to"`
	Frame      int    `json:"fr,omitempty"`
	Turn       int    `json:"tu"`
	Index      int    `json:"ix"`
	Subagent   string `json:"sg,omitempty"` // the path of names that leads to the call's frame, empty for the root
	ArgsDigest string `json:"ad"`
	// Arguments are kept here only when the call had been edited already: a second edit would replace them in the call.
	Arguments *Body           `json:"ar,omitempty"`
	Origin    string          `json:"or"` // gate or tool
	Reason    string          `json:"re"`
	Rules     []string        `json:"ru,omitempty"`
	Title     string          `json:"ti,omitempty"`
	Message   string          `json:"me,omitempty"`
	Payload   json.RawMessage `json:"pl,omitempty"`
	// Schema is what the value of a respond must match, empty for anything.
	Schema    json.RawMessage `json:"sc,omitempty"`
	Allowed   []string        `json:"al"`
	Revision  string          `json:"rv,omitempty"` // of the policy that stopped the call
	State     ApprovalState   `json:"st"`
	CreatedAt time.Time       `json:"ca"`
	ExpiresAt time.Time       `json:"ea"`
	Decision  *Decision       `json:"de,omitempty"`
}

// Decision is what was decided, by whom.
type Decision struct {
	Kind      string    `json:"k"`
	DecidedBy string    `json:"b"`
	DecidedAt time.Time `json:"t"`
	Message   string    `json:"m,omitempty"`
	Changed   bool      `json:"c,omitempty"` // edited arguments differ from the shown ones
	// Value is the answer of a respond, or the edited arguments of an edit, with their Digest.
	Value  *Body  `json:"v,omitempty"`
	Digest string `json:"g,omitempty"`
}

// Agent is the head of a named agent; its versions are immutable records of their own.
type Agent struct {
	Version   uint64    `json:"v"`
	Deleted   bool      `json:"x,omitempty"`
	CreatedAt time.Time `json:"c"`
	UpdatedAt time.Time `json:"u"`
	UpdatedBy string    `json:"b"`
}

// APIKey is a credential; the store holds only the SHA-256 of its secret.
type APIKey struct {
	ID        string    `json:"id"`
	Tenant    string    `json:"te"`
	Principal string    `json:"pr"`
	Kind      string    `json:"ki"`
	Roles     []string  `json:"ro"`
	Hash      []byte    `json:"ha"`
	CreatedAt time.Time `json:"ca"`
	CreatedBy string    `json:"cb,omitempty"`
	RevokedAt time.Time `json:"ra,omitzero"`
	RevokedBy string    `json:"rb,omitempty"`
}

// Principal is a person or a service of a tenant. A removed one leaves a tombstone: its keys must not come back to life with the name.
type Principal struct {
	Kind      string    `json:"ki"`
	Roles     []string  `json:"ro"`
	ActAs     bool      `json:"aa,omitempty"` // a service that may make runs for other users
	Disabled  bool      `json:"di,omitempty"`
	Removed   bool      `json:"x,omitempty"`
	CreatedAt time.Time `json:"ca"`
	CreatedBy string    `json:"cb,omitempty"`
	UpdatedAt time.Time `json:"ua"`
	UpdatedBy string    `json:"ub,omitempty"`
}

// Tenant is what was set for a tenant; a tenant without this record has the zero value.
type Tenant struct {
	SecondParty bool      `json:"sp,omitempty"` // nobody decides what they asked for themselves
	Disabled    bool      `json:"di,omitempty"`
	CreatedAt   time.Time `json:"ca,omitzero"`
	UpdatedAt   time.Time `json:"ua,omitzero"`
	UpdatedBy   string    `json:"ub,omitempty"`
}

// KV is one value of a plugin's key-value space. A deleted key leaves a tombstone, so that its version never repeats.
type KV struct {
	Value   []byte `json:"v,omitempty"`
	Version uint64 `json:"n"`
	Deleted bool   `json:"d,omitempty"`
}

// Idempotency is what is kept of an answered request that carried an Idempotency-Key: no body, only what renders it again.
type Idempotency struct {
	Request string    `json:"q"` // SHA-256 of the request body
	Status  int       `json:"s"`
	RunID   string    `json:"r,omitempty"`
	Target  string    `json:"t,omitempty"`
	At      time.Time `json:"a"`
}
