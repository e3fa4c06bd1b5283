package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

func (a *app) policyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Ask what the policies would decide, check rules, see which are in force",
		Example: `  pawl policy status
  pawl policy check ./rules
  pawl policy eval --agent ops --call '{"tool": "write_file", "arguments": {"path": "/memories/a", "content": "x"}}'
  pawl policy eval --rules ./rules --agent-file agent.yaml --call @call.json`,
	}
	var o struct {
		agent, subagent, agentFile, call, input, principal, toolContext, at string
		printInput                                                          bool
	}
	eval := &cobra.Command{
		Use:   "eval",
		Short: "Evaluate the gate for one call; nothing runs",
		Long: `With --agent the host is asked, with the rules it has. Without it the rules of --rules are evaluated here, with the interrupt_on
and the permissions of --agent-file (none: the built-in defaults); --input gives the whole input document where a rule looks at more than the call.

Exit codes: 0 the call would run, 6 it would stop for a decision, 4 it would be denied.`,
		Example: `  pawl policy eval --agent ops --call '{"tool": "write_file", "arguments": {"path": "/memories/a", "content": "x"}}'
  pawl policy eval --agent pay --subagent clerk --call '{"tool": "transfer", "arguments": {"amount": 5}}'
  pawl policy eval --rules ./rules --call @call.json
  pawl policy eval --rules ./rules --call @call.json --at 2026-12-24T22:00:00Z
  pawl policy eval --call @call.json --print-input >input.json    # what a rule sees; change it, and
  pawl policy eval --rules ./rules --input @input.json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if (o.call == "") == (o.input == "") {
				return usagef("give --call, or --input for the whole input document")
			}
			values := map[string]json.RawMessage{}
			for name, text := range map[string]string{"call": o.call, "input": o.input, "principal": o.principal, "tool_context": o.toolContext} {
				if text == "" {
					continue
				}
				var err error
				if values[name], err = a.jsonValue(text); err != nil {
					return usagef("--%s: %w", strings.ReplaceAll(name, "_", "-"), err)
				}
			}
			if o.subagent != "" && o.agent == "" {
				return usagef("--subagent goes with --agent")
			}
			if o.agent == "" {
				in, err := evalInput(values, o.at)
				if err != nil {
					return err
				}
				if o.printInput {
					return a.printInput(in)
				}
				return a.evalHere(c, in, o.agentFile)
			}
			if o.input != "" || o.agentFile != "" || a.rules != "" || o.at != "" || o.printInput {
				return usagef("--agent asks the host: --rules, --agent-file, --input, --at and --print-input are for evaluating here")
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			body := map[string]any{"agent": o.agent}
			if o.subagent != "" {
				body["subagent"] = o.subagent
			}
			for name, v := range values {
				body[name] = v
			}
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodPost, "/v1/policy/evaluate", body, &raw); err != nil {
				return err
			}
			var d decisionView
			if err := json.Unmarshal(raw, &d); err != nil {
				return err
			}
			d.raw = raw
			return a.showDecision(d)
		},
	}
	f := eval.Flags()
	a.clientFlags(f)
	f.StringVar(&o.agent, "agent", "", "ask the host about this `AGENT`")
	f.StringVar(&o.subagent, "subagent", "", "the `PATH` of names to one of its subagents, such as research/fetch")
	f.StringVar(&a.rules, "rules", "", "`FOLDER` of Rego rules to evaluate here")
	f.StringVar(&o.agentFile, "agent-file", "", "a `FILE` with an agent (JSON or YAML) whose interrupt_on and permissions count here")
	f.StringVar(&o.call, "call", "", "the call: {tool, arguments}, `JSON` or @FILE")
	f.StringVar(&o.input, "input", "", "the whole input document, `JSON` or @FILE")
	f.StringVar(&o.principal, "principal", "", "who would make the run: {id, kind, roles}, `JSON` or @FILE")
	f.StringVar(&o.toolContext, "tool-context", "", "the caller's context, a `JSON` object or @FILE")
	f.StringVar(&o.at, "at", "", "the `TIME` that rules see (RFC 3339; default: now)")
	f.BoolVar(&o.printInput, "print-input", false, "print the input document instead of evaluating")
	c.AddCommand(eval, a.policyStatusCommand(), a.policyCheckCommand())
	return c
}

// decisionView is a decision as it is printed.
type decisionView struct {
	Effect   string   `json:"effect"`
	Code     string   `json:"code,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Allowed  []string `json:"allowed_decisions,omitempty"`
	Title    string   `json:"title,omitempty"`
	Message  string   `json:"message,omitempty"`
	TTL      string   `json:"ttl,omitempty"`
	Rules    []string `json:"rules,omitempty"`
	Reasons  []string `json:"reasons,omitempty"`
	Detail   string   `json:"detail,omitempty"`
	Revision string   `json:"revision,omitempty"`

	Error *store.Failure `json:"error,omitempty"` // the call is denied before any rule is asked: no such tool, bad arguments
	raw   json.RawMessage
}

// evalHere evaluates without a host.
func (a *app) evalHere(c *cobra.Command, in *policy.Input, agentFile string) error {
	var rules fs.FS
	if a.rules != "" {
		if st, err := os.Stat(a.rules); err != nil || !st.IsDir() {
			return usagef("--rules %s is not a folder", a.rules)
		}
		rules = policy.Dir(a.rules)
	}
	live, err := policy.Open(c.Context(), policy.Options{Rules: rules}, time.Now())
	if err != nil {
		return err
	}
	engine := live.Current()
	if rules != nil && len(engine.Files) == 0 {
		fmt.Fprintf(a.stderr, "warning: %s has no rules: no file NAME.rego\n", visible(a.rules))
	}
	var on *policy.Interrupts // nil: the built-in defaults
	if agentFile != "" {
		raw, err := a.jsonValue("@" + agentFile)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		var doc struct {
			InterruptOn json.RawMessage `json:"interrupt_on"`
			Permissions string          `json:"permissions"`
		}
		if err := json.Unmarshal(raw, &doc); err != nil {
			return usagef("%s: %w", agentFile, err)
		}
		if on, err = engine.Compile(doc.InterruptOn); err != nil {
			return usagef("%s: %w", agentFile, err)
		}
		if doc.Permissions != "" {
			if !slices.Contains(policy.Presets(), doc.Permissions) {
				return usagef("%s: permissions: %q is no preset; choose %s", agentFile, doc.Permissions, strings.Join(policy.Presets(), ", "))
			}
			in.Agent.Permissions = append(in.Agent.Permissions, doc.Permissions)
		}
	}
	d := engine.Gate(c.Context(), on, in)
	view := decisionView{
		Effect: string(d.Effect), Code: d.Code, Reason: d.Reason, Allowed: d.AllowedDecisions, Title: d.Title, Message: d.Message,
		Rules: d.Rules, Reasons: d.Reasons, Detail: d.Detail, Revision: engine.Revision(),
	}
	if d.TTL > 0 {
		view.TTL = d.TTL.String()
	}
	return a.showDecision(view)
}

// printInput prints what rules see, as --input takes it. (What interrupt_on asks for is added when it is evaluated.)
func (a *app) printInput(in *policy.Input) error {
	raw, err := marshal(in)
	if err != nil || a.json {
		return errors.Join(err, a.printRaw(raw))
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, visibleLines(b.String()))
	return err
}

// evalInput builds the gate's input: as given, or around one call.
func evalInput(values map[string]json.RawMessage, at string) (*policy.Input, error) {
	in := &policy.Input{
		Tenant: "demo", Principal: policy.Principal{ID: "member", Kind: host.KindUser, Roles: []string{host.RoleMember}}, Subject: "member",
		Agent: policy.Agent{Name: "agent", Version: 1}, Run: policy.Run{ID: "run_offline", CreatedBy: "member"}, Turn: 1, Time: time.Now(),
	}
	if raw, ok := values["input"]; ok {
		if err := ijson.Decode(raw, in); err != nil {
			return nil, usagef("the input document: %w", err)
		}
	}
	if raw, ok := values["principal"]; ok {
		if err := ijson.Decode(raw, &in.Principal); err != nil {
			return nil, usagef("--principal: %w", err)
		}
		in.Subject, in.Run.CreatedBy = in.Principal.ID, in.Principal.ID
	}
	if raw, ok := values["tool_context"]; ok {
		in.Untrusted.ToolContext = raw
	}
	if raw, ok := values["call"]; ok {
		var call host.ProposedCall
		if err := ijson.Decode(raw, &call); err != nil {
			return nil, usagef("--call: %w", err)
		}
		_, bare, qualified := strings.Cut(call.Tool, ".")
		if !qualified {
			bare = call.Tool
		}
		in.Call = &policy.Call{Tool: bare, Name: call.Tool, Effects: "write", ToolCallID: call.ToolCallID, Arguments: call.Arguments}
		if qualified {
			in.Call.Plugin = strings.TrimSuffix(call.Tool, "."+bare)
		}
	}
	if in.Call == nil || in.Call.Tool == "" {
		return nil, usagef("the input has no call with a tool")
	}
	if len(in.Call.Arguments) > 0 {
		args, err := ijson.Parse(in.Call.Arguments)
		if err != nil {
			return nil, usagef("the call's arguments are not I-JSON: %w", err)
		}
		in.Call.Arguments = args
	} else {
		in.Call.Arguments = json.RawMessage("{}")
	}
	in.Call.Size = len(in.Call.Arguments)
	if in.Agent.Permissions == nil {
		in.Agent.Permissions = []string{}
	}
	if in.Untrusted.ToolContext == nil {
		in.Untrusted.ToolContext = json.RawMessage("{}")
	}
	if at != "" {
		t, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return nil, usagef("--at %s is not a time: write 2026-12-24T22:00:00Z", at)
		}
		in.Time = t
	}
	in.Time = in.Time.UTC().Truncate(time.Millisecond)
	return in, nil
}

// showDecision prints a decision; the exit code tells its effect.
func (a *app) showDecision(d decisionView) error {
	if a.json {
		if d.raw == nil {
			var err error
			if d.raw, err = marshal(d); err != nil {
				return err
			}
		}
		if err := a.printRaw(d.raw); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(a.stdout, visible(d.Effect))
		if d.Error != nil {
			d.Code, d.Detail = d.Error.Code, d.Error.Message
		}
		if d.TTL != "" {
			d.TTL += " (the host's own bound, --approval-ttl, holds too)"
		}
		for _, l := range [][2]string{
			{"reason", d.Reason}, {"rules", strings.Join(d.Rules, ", ")}, {"because", strings.Join(d.Reasons, "; ")}, {"title", d.Title},
			{"message", d.Message}, {"allowed", strings.Join(d.Allowed, ", ")}, {"ttl", d.TTL}, {"code", d.Code}, {"detail", d.Detail},
		} {
			if l[1] != "" {
				fmt.Fprintf(a.stdout, "  %-8s %s\n", l[0], cut(l[1], shownChars))
			}
		}
	}
	switch policy.Effect(d.Effect) {
	case policy.Allow:
		return nil
	case policy.Pause:
		return errWaiting
	}
	return &exitError{exitRefused, fmt.Errorf("")}
}
