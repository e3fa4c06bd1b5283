package host

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// The reasons of a stop.
const (
	reasonApproval = "approval_required"
	reasonInput    = "await_input"
	reasonEvent    = "external_event"
	reasonConflict = "constraints_conflict"
)

// The origins of a stop.
const (
	originGate = "gate"
	originTool = "tool"
)

// The codes that a call can end with, beside those of package plugins.
const (
	codeRejected         = "rejected"
	codeDenied           = "denied"
	codeInvalidArguments = "invalid_arguments"
	codeUnknownTool      = "unknown_tool"
	codeToolChanged      = "tool_changed"
	codeToolError        = "tool_error"
	codeCancelled        = "cancelled"
	codeLimit            = "limit"
)

const (
	maxBatch      = 128
	maxToolCallID = 128
)

// CheckBatch checks the shape of proposed calls: their number, their labels, their tools' names. The pointer of its error is
// relative to the object that holds calls.
func CheckBatch(calls []ProposedCall) *Error {
	if len(calls) > maxBatch {
		return invalid("/calls", "a batch has at most %d calls", maxBatch)
	}
	seen := map[string]bool{}
	for i, c := range calls {
		at := fmt.Sprintf("/calls/%d", i)
		if c.Tool == "" {
			return invalid(at+"/tool", "name the tool to call")
		}
		if len(c.ToolCallID) > maxToolCallID {
			return invalid(at+"/tool_call_id", "at most %d bytes", maxToolCallID)
		}
		if c.ToolCallID != "" && seen[c.ToolCallID] {
			return invalid(at+"/tool_call_id", "two calls of a batch have the label %q; labels are unique in a batch", c.ToolCallID)
		}
		seen[c.ToolCallID] = true
	}
	return nil
}

// resolve makes a call of a proposal: the tool known to the agent, the arguments canonical and valid, defaults filled. A call
// that fails here is finished with its error; the batch goes on without it.
func (h *Host) resolve(ctx context.Context, r *run, f *frame, p ProposedCall, index int, inline *int) (*store.Call, json.RawMessage, error) {
	c := &store.Call{ToolCallID: cmp.Or(p.ToolCallID, fmt.Sprintf("call_%d", index+1)), Index: index, Tool: p.Tool, State: store.CallPlanned}
	broken := func(code, message string, args json.RawMessage) (*store.Call, json.RawMessage, error) {
		c.State, c.Error = store.CallFinished, &store.Failure{Code: code, Message: clip(message, maxErrorText)}
		var err error
		c.Arguments, err = h.inlined(ctx, r.Tenant, args, inline)
		return c, nil, err
	}
	raw := p.Arguments
	if raw == nil {
		raw = json.RawMessage("{}")
	}
	args, err := ijson.Parse(raw)
	if err != nil {
		return broken(codeInvalidArguments, "the arguments are not I-JSON: "+err.Error(), json.RawMessage("null"))
	}
	c.ArgsDigest = ijson.Digest(args)
	tool, code := h.tool(r, f, p.Tool)
	if code != "" {
		return broken(code, toolProblem(code, p.Tool), args)
	}
	c.Digest, c.Effects, c.Task = tool.Digest, tool.Effects, isTask(tool)
	filled, err := tool.Check(args)
	if err != nil {
		return broken(codeInvalidArguments, err.Error(), args)
	}
	if args, err = ijson.Parse(filled); err != nil {
		return broken(codeInvalidArguments, "the arguments with their defaults are not I-JSON: "+err.Error(), json.RawMessage("null"))
	}
	if c.Task {
		if _, err := f.task(args); err != nil {
			return broken(codeInvalidArguments, err.Error(), args)
		}
	}
	c.ArgsDigest = ijson.Digest(args)
	c.Arguments, err = h.inlined(ctx, r.Tenant, args, inline)
	return c, args, err
}

// tool finds a tool of a frame: in its agent's list, and with the bytes that the run began with.
func (h *Host) tool(r *run, f *frame, name string) (*plugins.Tool, string) {
	digest, ok := r.ctx.Tools[name]
	if !ok || !slices.Contains(f.agent.doc.Tools, name) {
		return nil, codeUnknownTool
	}
	tool, ok := h.plugins.Lookup(name)
	if !ok || tool.Digest != digest {
		return nil, codeToolChanged
	}
	return tool, ""
}

func toolProblem(code, name string) string {
	if code == codeToolChanged {
		return fmt.Sprintf("the tool %q is not the one this run began with; start a new run", name)
	}
	return fmt.Sprintf("the agent has no tool %q", name)
}

// gate puts the calls of a new batch to policy, once. It returns the calls in order; those that must stop wait, with the reason.
func (h *Host) gate(ctx context.Context, r *run, f *frame, proposed []ProposedCall) (calls []*store.Call, err error) {
	args := make([]json.RawMessage, len(proposed))
	inline := r.inline()
	for i, p := range proposed {
		c, a, err := h.resolve(ctx, r, f, p, i, &inline)
		if err != nil {
			return nil, err
		}
		calls, args[i] = append(calls, c), a
	}
	ctx = h.policy.bind(ctx)
	docs := h.gateCalls(calls, args)
	tc, err := h.text(ctx, r.Tenant, r.ctx.ToolContext)
	if err != nil {
		return nil, err
	}
	asked := r.asked()
	for i, c := range calls {
		if c.State == store.CallFinished {
			continue
		}
		h.judge(r, f, c, h.policy.Gate(ctx, f.agent.interrupts, h.gateInput(r, f, docs, i, f.Turn+1, r.History, tc)))
		if asked += question(c); asked > maxQuestions {
			c.State, c.Stop, c.Error = store.CallFinished, nil, &store.Failure{Code: codeLimit, Message: tooManyQuestions}
		}
	}
	return calls, nil
}

// judge applies a decision of the gate to a call that has not run: it goes on, it is denied, or it must stop. Where nobody is there to
// ask, a stop is a refusal.
func (h *Host) judge(r *run, f *frame, c *store.Call, d policy.Decision) {
	deny := func(why string) {
		c.State, c.Error = store.CallFinished, &store.Failure{Code: codeDenied, Message: clip(why, maxErrorText)}
	}
	switch d.Effect {
	case policy.Allow:
	case policy.Pause:
		stop := &store.Stop{
			Origin: originGate, Reason: cmp.Or(d.Reason, reasonApproval), Rules: d.Rules, Title: clip(cmp.Or(d.Title, "Allow "+c.Tool+"?"), 256),
			Message: clip(d.Message, 4<<10), Allowed: d.AllowedDecisions, Revision: d.Revision, TTL: d.TTL,
		}
		if f.agent.unattended {
			deny(nobodyThere(stop))
			return
		}
		if why, ok := r.tiresome(c); ok {
			deny(why)
			return
		}
		c.State, c.Stop = store.CallAwaiting, stop
	default:
		deny(denial(d))
	}
}

// nobodyThere is the error of a call that would have to wait in an agent that runs unattended.
func nobodyThere(stop *store.Stop) string {
	text := "this agent runs unattended, and the call would have to wait: " + stop.Reason
	if len(stop.Rules) > 0 {
		text += " (" + strings.Join(stop.Rules, ", ") + ")"
	}
	if stop.Message != "" {
		text += ": " + stop.Message
	}
	return text
}

func denial(d policy.Decision) string {
	text := "policy denies this call"
	if d.Code != "" {
		text += " (" + d.Code + ")"
	}
	for i, why := range d.Reasons {
		if i == 0 {
			text += ": " + why
		} else {
			text += "; " + why
		}
	}
	return text
}

// gateCalls makes the policy documents of a batch, nil where a call is finished already.
func (h *Host) gateCalls(calls []*store.Call, args []json.RawMessage) []*policy.Call {
	docs := make([]*policy.Call, len(calls))
	for i, c := range calls {
		if c.Digest == "" || (c.State == store.CallFinished && args[i] == nil) {
			continue
		}
		tool, ok := h.plugins.Lookup(c.Tool)
		if !ok {
			continue
		}
		docs[i] = &policy.Call{
			Tool: tool.Bare, Plugin: tool.Plugin, Name: c.Tool, Digest: c.Digest, Effects: c.Effects, ToolCallID: c.ToolCallID, Index: c.Index, Arguments: args[i],
		}
	}
	return docs
}

// gated reports whether a call of a batch was put to policy: not when its tool or its arguments were refused before. Whenever the batch is
// asked about again, the same calls are in it.
func gated(c *store.Call) bool {
	return c.Digest != "" && !(c.Error != nil && c.Error.Code == codeInvalidArguments && c.StartedAt.IsZero() && len(c.Approvals) == 0)
}

// gateInput is what policy sees of a call. The history is what was before the batch, at the gate and whenever the batch is asked
// about again: the same question gets the same answer.
func (h *Host) gateInput(r *run, f *frame, docs []*policy.Call, i, turn int, before store.History, toolContext json.RawMessage) *policy.Input {
	in := &policy.Input{
		Tenant:    r.Tenant,
		Principal: policy.Principal{ID: r.CreatedBy, Kind: r.ctx.Kind, Roles: r.ctx.Roles},
		Subject:   r.subject(),
		Agent:     policy.Agent{Name: r.Agent, Version: int(r.AgentVersion), Permissions: f.agent.presets},
		Run:       policy.Run{ID: r.ID, CreatedBy: r.CreatedBy, SessionID: r.SessionID},
		Frame:     policy.Frame{Depth: f.Depth, Subagent: f.path()},
		Turn:      turn,
		Time:      h.now(),
		Call:      docs[i],
		Untrusted: policy.Untrusted{ToolContext: toolContext},
		History:   policy.History{Calls: before.Calls, Approved: before.Approved, Rejected: before.Rejected},
	}
	for j, d := range docs {
		if j != i && d != nil {
			in.Batch = append(in.Batch, d)
		}
	}
	return in
}

// tighten asks policy once more before a batch that waited goes on, only to tighten: a deny is an error result, a rule that
// nobody has approved stops the call again, and what was rejected stays so. It changes calls in place.
func (h *Host) tighten(ctx context.Context, s *step, f *frame) error {
	ctx, r := h.policy.bind(ctx), s.r
	args := make([]json.RawMessage, len(f.calls))
	for i, c := range f.calls {
		if !gated(c) {
			continue
		}
		var err error
		if args[i], err = h.callArguments(ctx, r.Tenant, c); err != nil {
			return err
		}
	}
	docs := h.gateCalls(f.calls, args)
	tc, err := h.text(ctx, r.Tenant, r.ctx.ToolContext)
	if err != nil {
		return err
	}
	for i, c := range f.calls {
		if c.State != store.CallPlanned && (c.State != store.CallStarted || c.Task) {
			continue // of a task that has begun, the calls in it are asked about
		}
		if _, code := h.tool(r, f, c.Tool); code != "" {
			s.fail(c, code, toolProblem(code, c.Tool))
			continue
		}
		d := h.policy.Gate(ctx, f.agent.interrupts, h.gateInput(r, f, docs, i, f.Turn, f.Before, tc))
		if d.Effect == policy.Pause && within(d.Rules, c.Passed) {
			continue
		}
		if d.Effect == policy.Pause && len(c.Passed) > 0 {
			d.Message = askedAgain(d, c.Passed)
		}
		h.judge(r, f, c, d)
		switch c.State {
		case store.CallFinished:
			s.finishedCall(c)
		case store.CallAwaiting:
			s.touch(c)
		}
	}
	return nil
}

// askedAgain tells whoever approved a call why it stands before them once more: the rules that are new, whatever the texts of the old ones say.
func askedAgain(d policy.Decision, passed []string) string {
	fresh := slices.DeleteFunc(slices.Clone(d.Rules), func(rule string) bool { return slices.Contains(passed, rule) })
	text := "It was approved before; what stops it again: " + strings.Join(fresh, ", ") + "."
	if d.Message != "" {
		text += "\n" + d.Message
	}
	return text
}

// within reports whether all rules are among those passed. No rules at all is not within: a stop without a rule is a failure
// of policy, which nobody has approved.
func within(rules, passed []string) bool {
	return len(rules) > 0 && !slices.ContainsFunc(rules, func(r string) bool { return !slices.Contains(passed, r) })
}

// callArguments are the arguments that the call runs with.
func (h *Host) callArguments(ctx context.Context, tenant string, c *store.Call) (json.RawMessage, error) {
	if c.EditedDigest != "" {
		return h.text(ctx, tenant, c.Edited)
	}
	return h.text(ctx, tenant, c.Arguments)
}

// pinTools takes the digests of the agent's tools as they are now. A tool that is not installed is unknown to the run.
func (h *Host) pinTools(names []string) map[string]string {
	pinned := make(map[string]string, len(names))
	for _, n := range names {
		if t, ok := h.plugins.Lookup(n); ok {
			pinned[n] = t.Digest
		}
	}
	return pinned
}
