package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Input is what the gate knows about one proposed call. The JSON names are public: people's rules read them, and a golden
// test holds them. Everything in it comes from the host, except what Untrusted and the arguments hold.
type Input struct {
	Tenant    string    `json:"tenant"`
	Principal Principal `json:"principal"` // who made the run
	Subject   string    `json:"subject"`   // the user it acts for
	Agent     Agent     `json:"agent"`
	Run       Run       `json:"run"`
	Frame     Frame     `json:"frame"`
	Turn      int       `json:"turn"`
	Time      time.Time `json:"time"` // RFC 3339, UTC, milliseconds; the only clock that a rule has
	Call      *Call     `json:"call"`
	Batch     []*Call   `json:"batch"` // the other calls of the batch
	Untrusted Untrusted `json:"untrusted"`
	History   History   `json:"history"`
}

// Principal is who asks. Kind is "user", "service" or "system".
type Principal struct {
	ID    string   `json:"id"`
	Kind  string   `json:"kind"`
	Roles []string `json:"roles"`

	// In an authz question only.
	Tenant   string `json:"tenant,omitempty"`
	ActAs    bool   `json:"act_as,omitempty"`   // a service that may make runs for other users
	Operator bool   `json:"operator,omitempty"` // of the tenant whose owners look after the host's tenants
}

// Agent names the configuration that the run pinned, and says how free it is.
type Agent struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	// Permissions are the presets of the agent and, in the frame of a subagent, of every agent above it, so that a child is
	// never freer than its parent. None, and "auto", add nothing; an unknown one denies every call.
	Permissions []string `json:"permissions"`
}

// The presets of an agent, for Agent.Permissions.
const (
	PresetAuto        = "auto"        // the rules decide alone
	PresetInteractive = "interactive" // every call asks, also one that interrupt_on lets pass
	PresetLocked      = "locked"      // a call whose effects are not "read" is denied
)

// Presets are the known presets, the default first.
func Presets() []string { return []string{PresetAuto, PresetInteractive, PresetLocked} }

// Run is the run of the call.
type Run struct {
	ID        string `json:"id"`
	CreatedBy string `json:"created_by"`
	SessionID string `json:"session_id"`
}

// Frame is the place of the call in the run: depth 0 is the root, a subagent's frame is deeper.
type Frame struct {
	Depth    int    `json:"depth"`
	Subagent string `json:"subagent"` // the names that lead to it, such as "research/fetch"; empty at the root
}

// Untrusted holds what the caller of the run says. No rule may take it for a fact.
type Untrusted struct {
	ToolContext json.RawMessage `json:"tool_context"` // a JSON object; empty means {}
}

// History counts what happened to earlier calls of this run.
type History struct {
	Calls    int `json:"calls"`
	Approved int `json:"approved"`
	Rejected int `json:"rejected"`
}

// Call is one proposed call. Handle it by pointer: it remembers its parsed arguments, so that a batch reads them once.
// Reading it from several evaluations at once is safe; changing it while one runs is not.
type Call struct {
	Tool       string          `json:"tool"`   // the bare name
	Plugin     string          `json:"plugin"` // the plugin that exports it
	Name       string          `json:"name"`   // the name that the agent uses: tool or plugin.tool
	Digest     string          `json:"digest"` // of the plugin's bytes
	Effects    string          `json:"effects"`
	ToolCallID string          `json:"tool_call_id"`
	Index      int             `json:"index"`
	Arguments  json.RawMessage `json:"arguments"` // canonical; empty means {}
	Size       int             `json:"size"`      // bytes of Arguments; computed, what a caller sets is ignored

	parsed atomic.Pointer[parsedArguments]
}

type parsedArguments struct {
	raw  []byte
	term *ast.Term
}

// arguments returns the parsed arguments. The memory is bound to the bytes, so that edited arguments are never judged by
// what was parsed before.
func (c *Call) arguments() (*ast.Term, error) {
	if p := c.parsed.Load(); p != nil && bytes.Equal(p.raw, c.Arguments) {
		return p.term, nil
	}
	if len(c.Arguments) == 0 {
		return ast.ObjectTerm(), nil
	}
	term, err := parseJSON(c.Arguments)
	if err != nil {
		return nil, err
	}
	c.parsed.Store(&parsedArguments{raw: bytes.Clone(c.Arguments), term: term})
	return term, nil
}

// maxInput bounds the JSON of one evaluation: a batch's arguments and the caller's context. OPA does not bound memory.
const maxInput = 8 << 20

var errInputTooLarge = fmt.Errorf("the arguments of the batch and the tool context are more than %d bytes", maxInput)

// The names of the documents, interned so that building an input does not make each of them again.
func init() {
	ast.InternStringTerm("tenant", "principal", "id", "kind", "roles", "subject", "agent", "name", "version", "permissions", "run", "created_by",
		"session_id", "frame", "depth", "subagent", "turn", "time", "call", "batch", "untrusted", "tool_context", "history", "calls", "approved",
		"rejected", "tool", "plugin", "digest", "effects", "tool_call_id", "index", "arguments", "size", "interrupts", "act",
		"resource", "reason", "origin", "kind_of_key", "effect", "title", "message", "ttl", "rules", "allowed_decisions", "reasons",
		"code", "allow", "act_as", "operator", "second_party", "new_name", "user", "service", "owner", "admin", "member", "read", "write")
}

// object builds an object. Every name is given once.
type object [][2]*ast.Term

func members(n int) *object {
	o := make(object, 0, n)
	return &o
}

func (o *object) set(name string, v *ast.Term) *object {
	*o = append(*o, [2]*ast.Term{ast.InternedTerm(name), v})
	return o
}
func (o *object) text(name, v string) *object           { return o.set(name, ast.InternedTerm(v)) }
func (o *object) number(name string, v int) *object     { return o.set(name, ast.InternedTerm(v)) }
func (o *object) truth(name string, v bool) *object     { return o.set(name, ast.InternedTerm(v)) }
func (o *object) texts(name string, v []string) *object { return o.set(name, textArray(v)) }
func (o *object) term() *ast.Term                       { return ast.ObjectTerm(*o...) }

func textArray(v []string) *ast.Term {
	terms := make([]*ast.Term, len(v))
	for i, s := range v {
		terms[i] = ast.InternedTerm(s)
	}
	return ast.ArrayTerm(terms...)
}

// document builds the gate's input without its `interrupts`.
func (in *Input) document() (ast.Object, error) {
	if in == nil || in.Call == nil {
		return nil, errors.New("there is no call")
	}
	size := len(in.Call.Arguments) + len(in.Untrusted.ToolContext)
	for _, c := range in.Batch {
		size += len(c.Arguments)
	}
	if size > maxInput {
		return nil, errInputTooLarge
	}
	call, err := in.Call.document()
	if err != nil {
		return nil, err
	}
	batch := make([]*ast.Term, len(in.Batch))
	for i, c := range in.Batch {
		if batch[i], err = c.document(); err != nil {
			return nil, err
		}
	}
	toolContext := ast.ObjectTerm()
	if len(in.Untrusted.ToolContext) > 0 {
		if toolContext, err = parseJSON(in.Untrusted.ToolContext); err != nil {
			return nil, err
		}
	}
	principal := members(3).text("id", in.Principal.ID).text("kind", in.Principal.Kind).texts("roles", in.Principal.Roles)
	agent := members(3).text("name", in.Agent.Name).number("version", in.Agent.Version).texts("permissions", in.Agent.Permissions)
	run := members(3).text("id", in.Run.ID).text("created_by", in.Run.CreatedBy).text("session_id", in.Run.SessionID)
	history := members(3).number("calls", in.History.Calls).number("approved", in.History.Approved).number("rejected", in.History.Rejected)
	return ast.NewObject(*members(13).
		text("tenant", in.Tenant).
		set("principal", principal.term()).
		text("subject", in.Subject).
		set("agent", agent.term()).
		set("run", run.term()).
		set("frame", members(2).number("depth", in.Frame.Depth).text("subagent", in.Frame.Subagent).term()).
		number("turn", in.Turn).
		text("time", in.Time.UTC().Format("2006-01-02T15:04:05.000Z07:00")).
		set("call", call).
		set("batch", ast.ArrayTerm(batch...)).
		set("untrusted", members(1).set("tool_context", toolContext).term()).
		set("history", history.term())...), nil
}

func (c *Call) document() (*ast.Term, error) {
	arguments, err := c.arguments()
	if err != nil {
		return nil, err
	}
	size := len(c.Arguments)
	if size == 0 {
		size = len("{}")
	}
	return members(9).
		text("tool", c.Tool).
		text("plugin", c.Plugin).
		text("name", c.Name).
		text("digest", c.Digest).
		text("effects", c.Effects).
		text("tool_call_id", c.ToolCallID).
		number("index", c.Index).
		set("arguments", arguments).
		number("size", size).
		term(), nil
}
