package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/sdk/client"
	"github.com/pawlhost/pawl/store"
)

func (a *app) approvalsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "approvals",
		Aliases: []string{"approval"},
		Short:   "See what waits, and decide",
		Long: `Lists what waits for a decision, shows it, and decides it.

A decision covers every open approval of its run that you may decide, or changes nothing: for a run with several of them name
the run (all get the same answer), name them all, or use "decide" to give each its own.`,
		Example: `  pawl approvals list
  pawl approvals show apr_0199…
  pawl approvals approve apr_0199…
  pawl approvals reject run_0199… --message 'not on a Friday'
  pawl approvals decide run_0199… apr_01…=approve apr_02…=reject`,
	}
	c.AddCommand(a.approvalsList(), a.approvalsShow(), a.approvalsDecide(),
		a.answerCommand("approve", "Let the call run as shown", "  pawl approvals approve apr_0199…"),
		a.answerCommand("edit", "Let the call run with other arguments",
			"  pawl approvals edit apr_0199… --arguments '{\"path\": \"/memories/a.md\", \"content\": \"shorter\"}'\n"+
				"  pawl approvals edit apr_0199… --arguments @args.json"),
		a.answerCommand("reject", "Do not let the call run; the agent is told why", "  pawl approvals reject apr_0199… --message 'use the staging list'"),
		a.answerCommand("respond", "Answer in the tool's place: the answer becomes the call's result",
			"  pawl approvals respond apr_0199… --value '{\"choice\": 2}'\n  pawl approvals respond apr_0199… --message 'ask me tomorrow'"),
	)
	return c
}

func (a *app) approvalsList() *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List what waits for a decision, oldest first",
		Long:    "Lists what waits for a decision, oldest first. What was decided is at its run: pawl approvals show RUN.",
		Example: "  pawl approvals list\n  pawl approvals list --json | jq -r .id",
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			return listQuery(a, c, r, "/v1/approvals", url.Values{"state": {"pending"}, "limit": {"200"}}, "approvals",
				[]string{"APPROVAL", "AGENT", "ASKED BY", "TOOL", "ARGUMENTS", "EXPIRES"}, func(p host.Approval) []any {
					return []any{p.ID, p.Agent, p.CreatedBy, p.Tool, p.Arguments, within(time.Until(time.Time(p.ExpiresAt)))}
				})
		},
	}
	a.clientFlags(c.Flags())
	return c
}

func (a *app) approvalsShow() *cobra.Command {
	var full bool
	c := &cobra.Command{
		Use:     "show APPROVAL|RUN",
		Short:   "Show an approval, or all of a run, with the arguments that will run",
		Example: "  pawl approvals show apr_0199…\n  pawl approvals show run_0199… --full",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			found, err := r.approvals(c.Context(), args)
			if err != nil {
				return err
			}
			for i, p := range found {
				if a.json {
					if err := a.printJSON(p); err != nil {
						return err
					}
					continue
				}
				if i > 0 {
					fmt.Fprintln(a.stdout)
				}
				showApproval(a.stdout, p, full)
				howToSee(a.stdout, p, full)
			}
			if a.json {
				return nil
			}
			return a.nextStep(c.Context(), r, found)
		},
	}
	a.clientFlags(c.Flags())
	c.Flags().BoolVar(&full, "full", false, "cut nothing, however long it is")
	return c
}

// nextStep tells how to decide what was shown, which is one approval or all of a run, together with what waits beside it.
func (a *app) nextStep(ctx context.Context, r *remote, shown []host.Approval) error {
	open := pending(shown)
	if len(open) == 0 {
		return nil
	}
	if len(shown) == 1 {
		var all struct{ Approvals []host.Approval }
		if err := r.call(ctx, http.MethodGet, runPath(open[0].RunID)+"/approvals", nil, &all); err != nil {
			return err
		}
		if open = pending(all.Approvals); len(open) > 1 {
			fmt.Fprintf(a.stdout, "\nthe run has %d more that wait: pawl approvals show %s\n", len(open)-1, visible(open[0].RunID))
		}
	} else if len(open) > 1 {
		fmt.Fprintln(a.stdout)
	}
	howToDecide(a.stdout, open)
	return nil
}

// answerCommand builds approve, edit, reject and respond.
func (a *app) answerCommand(kind, short, example string) *cobra.Command {
	var arguments, value, message, digest string
	c := &cobra.Command{
		Use:     kind + " APPROVAL…|RUN",
		Short:   short,
		Example: example,
		RunE: func(c *cobra.Command, args []string) error {
			d := host.Decision{Kind: kind, Message: message}
			var err error
			switch {
			case kind == "edit" && arguments == "":
				return usagef("edit needs --arguments: the whole new arguments, a JSON object")
			case kind == "respond" && value == "" && message == "":
				return usagef("respond needs --value (JSON) or --message (text)")
			case arguments != "":
				if d.Arguments, err = a.jsonValue(arguments); err != nil {
					return usagef("--arguments: %w", err)
				}
			case value != "":
				if d.Value, err = a.jsonValue(value); err != nil {
					return usagef("--value: %w", err)
				}
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			found, err := r.approvals(c.Context(), args)
			if err != nil {
				return err
			}
			// Of a run the open ones are meant; an approval that was named and is closed is a conflict, whoever closed it.
			var answers []host.Decision
			var closed []string
			over := &worded{code: string(host.CodeWrongState)}
			for _, p := range found {
				if p.State != store.ApprovalPending {
					closed = append(closed, "\n  "+closing(p))
					if d := p.Decision; d != nil {
						over.code = string(host.CodeAlreadyDecided)
						over.decisions = append(over.decisions, client.DecidedBy{ApprovalID: p.ID, Kind: d.Kind, DecidedBy: d.DecidedBy, DecidedAt: time.Time(d.DecidedAt)})
					} else if p.State == store.ApprovalExpired && len(over.decisions) == 0 {
						over.code = string(host.CodeApprovalExpired)
					}
					continue
				}
				d := d
				d.ApprovalID, d.ArgsDigest = p.ID, p.ArgsDigest
				if digest != "" {
					d.ArgsDigest = digest
				}
				answers = append(answers, d)
			}
			if kind == "edit" && len(answers) > 1 {
				each := make([]string, len(answers))
				for i, p := range pending(found) {
					if each[i] = answer(p.ID, p.Allowed); i == 0 {
						each[i] = answer(p.ID, []string{"edit"})
					}
				}
				return usagef("the run has %d open approvals, and new arguments fit one call; give each its own answer:\n    %s", len(answers),
					decideCommand(visible(found[0].RunID), each))
			}
			if byRun := strings.HasPrefix(args[0], "run_"); len(answers) == 0 || !byRun && len(closed) > 0 {
				text := "nothing was changed:"
				if byRun {
					text = "run " + visible(args[0]) + " waits for no decision:"
				}
				over.error = errors.New(text + strings.Join(closed, ""))
				return &exitError{exitConflict, over}
			}
			err = a.decide(c.Context(), r, found[0].RunID, answers)
			if p, ok := errors.AsType[*problem](err); ok && p.Code == string(host.CodeForbidden) && len(answers) > 1 && strings.HasPrefix(args[0], "run_") {
				return a.decideMine(c.Context(), r, found[0].RunID, answers, err)
			}
			return err
		},
	}
	f := c.Flags()
	a.clientFlags(f)
	f.StringVar(&message, "message", "", "a `TEXT` for the agent and the audit's readers")
	f.StringVar(&digest, "digest", "", "refuse unless the arguments still have this `DIGEST` (from show); by default those read just now")
	switch kind {
	case "edit":
		f.StringVar(&arguments, "arguments", "", "the new arguments, `JSON` or @FILE")
	case "respond":
		f.StringVar(&value, "value", "", "the result, `JSON` or @FILE")
	}
	return c
}

func (a *app) approvalsDecide() *cobra.Command {
	c := &cobra.Command{
		Use:   "decide RUN APPROVAL=KIND[:MESSAGE]… | RUN @FILE",
		Short: "Give each open approval of a run its own answer, in one request",
		Long: `Decides all open approvals of a run at once, each with its own answer:

  APPROVAL=approve, APPROVAL=approve:MESSAGE
  APPROVAL=reject, APPROVAL=reject:MESSAGE
  APPROVAL=edit=JSON           the whole new arguments; @FILE reads them from a file
  APPROVAL=respond:TEXT, APPROVAL=respond=JSON or @FILE

Or the request's "decisions" as JSON, in a file. --json prints the run as it stands afterwards.`,
		Example: `  pawl approvals decide run_0199… apr_01…=approve apr_02…=reject
  pawl approvals decide run_0199… apr_01…=approve apr_02…=reject:'not this one'
  pawl approvals decide run_0199… apr_01…=edit='{"amount": 250}' apr_02…=respond:'ask me tomorrow' --json
  pawl approvals decide run_0199… @decisions.json`,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			if strings.HasPrefix(args[1], "@") {
				raw, err := a.jsonValue(args[1])
				if err != nil {
					return &exitError{exitUsage, err}
				}
				var body struct{ Decisions json.RawMessage } // the whole body of a request, as the wire has it, is fine as well
				if json.Unmarshal(raw, &body) == nil && body.Decisions != nil {
					raw = body.Decisions
				}
				return a.decide(c.Context(), r, args[0], raw)
			}
			answers := make([]host.Decision, len(args)-1)
			for i, arg := range args[1:] {
				if answers[i], err = a.parseAnswer(arg); err != nil {
					return err
				}
			}
			var all struct{ Approvals []host.Approval }
			if err := r.call(c.Context(), http.MethodGet, runPath(args[0])+"/approvals", nil, &all); err != nil {
				return err
			}
			for _, p := range all.Approvals {
				for i := range answers {
					if answers[i].ApprovalID == p.ID {
						answers[i].ArgsDigest = p.ArgsDigest
					}
				}
			}
			return a.decide(c.Context(), r, args[0], answers)
		},
	}
	a.clientFlags(c.Flags())
	return c
}

// decide sends the answers (host.Decision, or JSON as given) and prints where the run stands then.
func (a *app) decide(ctx context.Context, r *remote, run string, answers any) error {
	list, ok := answers.([]host.Decision)
	if ok {
		wire := make([]map[string]any, len(list))
		for i, d := range list {
			wire[i] = map[string]any{"approval_id": d.ApprovalID, "kind": d.Kind}
			for name, v := range map[string]string{"message": d.Message, "args_digest": d.ArgsDigest} {
				if v != "" {
					wire[i][name] = v
				}
			}
			for name, v := range map[string]json.RawMessage{"arguments": d.Arguments, "value": d.Value} {
				if len(v) > 0 {
					wire[i][name] = v
				}
			}
		}
		answers = wire
	}
	var raw json.RawMessage
	if err := r.call(ctx, http.MethodPost, runPath(run)+"/approvals", map[string]any{"decisions": answers}, &raw); err != nil {
		if p, ok := errors.AsType[*problem](err); ok && !a.json {
			if raw, ok := answers.(json.RawMessage); ok {
				_ = json.Unmarshal(raw, &list) // the host has found it to be one
			}
			p.completed(ctx, r, run, list)
		}
		return err
	}
	if a.json {
		return a.printRun(raw)
	}
	var after host.Run
	if err := json.Unmarshal(raw, &after); err != nil {
		return err
	}
	for _, d := range list {
		fmt.Fprintf(a.stdout, "%s %s, arguments %s\n", visible(d.Kind), visible(d.ApprovalID), visible(d.ArgsDigest))
	}
	fmt.Fprintf(a.stdout, "decided; run %s is %s\n", visible(after.ID), visible(string(after.State)))
	if !after.State.Ended() {
		fmt.Fprintf(a.stdout, "what comes of it: pawl run --attach %s\n", visible(after.ID))
	}
	return nil
}

// decideMine decides those of a run's approvals that one may: of a run "all" means these. The host names them to who asks with no
// answer at all. Without any the refusal stays what it is.
func (a *app) decideMine(ctx context.Context, r *remote, run string, answers []host.Decision, refused error) error {
	err := r.call(ctx, http.MethodPost, runPath(run)+"/approvals", map[string]any{"decisions": []host.Decision{}}, nil)
	p, ok := errors.AsType[*problem](err)
	if !ok || p.Code != string(host.CodeIncomplete) {
		return refused
	}
	var mine []host.Decision
	for _, d := range answers {
		if slices.Contains(p.Outstanding, d.ApprovalID) {
			mine = append(mine, d)
		} else {
			fmt.Fprintf(a.stderr, "left out: %s is for somebody else to decide\n", visible(d.ApprovalID))
		}
	}
	if len(mine) == 0 || len(mine) == len(answers) {
		return refused
	}
	return a.decide(ctx, r, run, mine)
}

// approvals finds approvals by what people type: a run (all of it), or approvals of one run.
func (r *remote) approvals(ctx context.Context, args []string) ([]host.Approval, error) {
	if strings.HasPrefix(args[0], "run_") {
		if len(args) > 1 {
			return nil, usagef("name one run, or approvals")
		}
		var all struct{ Approvals []host.Approval }
		if err := r.call(ctx, http.MethodGet, runPath(args[0])+"/approvals", nil, &all); err != nil {
			return nil, err
		}
		if len(all.Approvals) == 0 {
			return nil, &exitError{exitNotFound, fmt.Errorf("run %s has no approvals", visible(args[0]))}
		}
		return all.Approvals, nil
	}
	list := make([]host.Approval, len(args))
	for i, id := range args {
		if err := r.call(ctx, http.MethodGet, "/v1/approvals/"+url.PathEscape(id), nil, &list[i]); err != nil {
			return nil, err
		}
		if list[i].RunID != list[0].RunID {
			return nil, usagef("%s and %s belong to different runs: decide one run at a time", visible(args[0]), visible(id))
		}
	}
	return list, nil
}

// closing tells on one line what became of an approval that is not pending.
func closing(p host.Approval) string {
	if p.Decision == nil {
		return visible(p.ID) + " is " + visible(string(p.State)) + ", nobody decided it"
	}
	return visible(p.ID) + " is already decided: " + decided(p.Decision)
}
