package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

func (a *app) runsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "runs",
		Short: "See runs, drive and cancel one",
		Long:  `Lists runs, shows one with its calls, cancels one, and makes the moves of a planner that is somewhere else. To start a run and to follow it there is "pawl run".`,
		Example: `  pawl runs list --state awaiting_approval
  pawl runs show run_0199… --trajectory
  pawl runs cancel run_0199…`,
	}
	c.AddCommand(a.runsList(), a.runsShow(), a.runsCancel(), a.runsInput())
	c.AddCommand(a.runsMoves()...)
	for _, sub := range c.Commands() {
		a.clientFlags(sub.Flags())
	}
	return c
}

func (a *app) runsList() *cobra.Command {
	var state, agent string
	var limit int
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the runs that you may see, oldest first",
		Example: `  pawl runs list --limit 20                      # the newest twenty
  pawl runs list --state awaiting_planner --agent ops
  pawl runs list --state failed --json | jq -r .id`,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d: say how many, or 0 for all", limit)
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			q := url.Values{"limit": {"200"}}
			for name, v := range map[string]string{"state": state, "agent": agent} {
				if v != "" {
					q.Set(name, v)
				}
			}
			return listLast(a, c, r, "/v1/runs", q, limit, "runs", []string{"RUN", "AGENT", "STATE", "CREATED", "BY"}, func(v host.Run) []any {
				by := v.CreatedBy
				if v.Subject != "" && v.Subject != by {
					by += " for " + v.Subject
				}
				return []any{v.ID, v.Agent, v.State, v.CreatedAt, by}
			})
		},
	}
	f := c.Flags()
	f.StringVar(&state, "state", "", "only runs in this `STATE`: queued, running, awaiting_approval, awaiting_input, awaiting_event, awaiting_planner, succeeded, failed or cancelled")
	f.StringVar(&agent, "agent", "", "only runs of this `AGENT`")
	f.IntVar(&limit, "limit", 0, "only the newest `N` (0: all)")
	return c
}

func (a *app) runsShow() *cobra.Command {
	var trajectory, full bool
	c := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run: its state, its calls, and what it waits for",
		Long: `Shows where a run stands, with its calls. With --trajectory also the messages, as a model would see them. To look changes
nothing.`,
		Example: "  pawl runs show run_0199…\n  pawl runs show run_0199… --trajectory --full",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			var run, messages json.RawMessage
			if err := r.call(c.Context(), http.MethodGet, runPath(args[0]), nil, &run); err != nil {
				return err
			}
			if trajectory {
				if err := r.call(c.Context(), http.MethodGet, runPath(args[0])+"/trajectory", nil, &messages); err != nil {
					return err
				}
			}
			if a.json {
				err := a.printRun(run)
				if err == nil && trajectory {
					err = a.printRaw(messages)
				}
				return err
			}
			var v host.Run
			if err := json.Unmarshal(run, &v); err != nil {
				return err
			}
			a.showRun(v, full)
			if !trajectory {
				return nil
			}
			var all struct{ Messages []host.Message }
			if err := json.Unmarshal(messages, &all); err != nil {
				return err
			}
			fmt.Fprintln(a.stdout, "\ntrajectory")
			for _, m := range all.Messages {
				fmt.Fprintf(a.stdout, "  %3d  %s\n", m.Seq, message(m, limit(full)))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&trajectory, "trajectory", false, "also the messages of the run")
	c.Flags().BoolVar(&full, "full", false, "cut nothing, however long it is")
	return c
}

// showRun prints a run for people. Its token is a secret, and not shown.
func (a *app) showRun(v host.Run, full bool) {
	line := func(name, value string) { fmt.Fprintf(a.stdout, "  %-10s %s\n", name, value) }
	fmt.Fprintf(a.stdout, "run %s  %s\n", visible(v.ID), visible(string(v.State)))
	line("agent", fmt.Sprintf("%s, version %d", visible(v.Agent), v.AgentVersion))
	who := visible(v.CreatedBy)
	if v.Subject != "" && v.Subject != v.CreatedBy {
		who += ", for " + visible(v.Subject)
	}
	line("created", v.CreatedAt.String()+" by "+who)
	line("changed", fmt.Sprintf("%s, in turn %d", v.UpdatedAt, v.Turn))
	if v.SessionID != "" {
		line("session", cut(v.SessionID, 200))
	}
	if v.AwaitingSince != nil {
		line("waits", "since "+v.AwaitingSince.String())
	}
	if len(v.Output) > 0 {
		line("output", showJSON(v.Output, limit(full)))
	}
	if v.Error != nil {
		line("error", failure(v.Error))
	}
	for _, c := range v.Calls {
		fmt.Fprintf(a.stdout, "\ncall %d.%d %s %s  %s\n", c.Turn, c.Index, visible(c.ToolCallID), visible(c.Tool), visible(string(c.State)))
		if c.ParentCallID != "" {
			for _, task := range v.Calls {
				if task.ID == c.ParentCallID {
					line("inside", "the subagent of "+visible(task.ToolCallID))
				}
			}
		}
		line("arguments", showJSON(c.Arguments, limit(full)))
		if len(c.EditedArguments) > 0 {
			line("edited", showJSON(c.EditedArguments, limit(full)))
		}
		if len(c.ApprovalIDs) > 0 {
			line("approvals", visible(strings.Join(c.ApprovalIDs, ", ")))
		}
		if c.Error != nil {
			line("error", failure(c.Error))
		} else if len(c.Result) > 0 {
			line("result", showJSON(c.Result, limit(full)))
		}
	}
	id := visible(v.ID)
	switch {
	case v.Pause != nil:
		fmt.Fprintf(a.stdout, "\nwhat it waits for: pawl approvals show %s\n", id)
	case v.State == store.RunAwaitingPlanner:
		fmt.Fprintf(a.stdout, "\nit waits for turn %d of its planner: pawl runs propose, or finish; to end it: pawl runs cancel %s\n", v.Turn+1, id)
	case !v.State.Ended():
		fmt.Fprintf(a.stdout, "\nfollow it: pawl run --attach %s\n", id)
	}
}

func (a *app) runsInput() *cobra.Command {
	var input string
	var supersede bool
	c := &cobra.Command{
		Use:   "input RUN",
		Short: "Give a waiting run a further message",
		Long: `Adds a message of the user to a run that waits. While it waits for a decision the message is refused and the pause stays, unless
--supersede says that it takes the pause's place: then the calls that waited end with an error and the planner goes on from the message.`,
		Example: `  pawl runs input run_0199… --input '"only the first invoice, please"'
  pawl runs input run_0199… --input @message.json --supersede`,
		RunE: func(c *cobra.Command, args []string) error {
			if input == "" {
				return usagef("%s needs --input", c.Name())
			}
			v, err := a.jsonValue(input)
			if err != nil {
				return usagef("--input: %w", err)
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodPost, runPath(args[0])+"/input", map[string]any{"input": v, "supersede": supersede}, &raw); err != nil {
				return err
			}
			if a.json {
				return a.printRun(raw)
			}
			var run host.Run
			if err := json.Unmarshal(raw, &run); err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "run %s is %s\n", visible(run.ID), visible(string(run.State)))
			return nil
		},
	}
	c.Flags().StringVar(&input, "input", "", "the message, `JSON` or @FILE")
	c.Flags().BoolVar(&supersede, "supersede", false, "give up what waits for a decision")
	return c
}

func (a *app) runsCancel() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel RUN",
		Short: "Cancel a run: nothing of it starts any more",
		Long: `Ends a run, whatever it waits for. A call that is running is told to stop; should it end all the same, its result is kept. A run that
has ended stays as it is (exit code 5, unless it was cancelled before).`,
		Example: "  pawl runs cancel run_0199…",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodPost, runPath(args[0])+"/cancel", nil, &raw); err != nil {
				return err
			}
			var v host.Run
			if err := json.Unmarshal(raw, &v); err != nil {
				return err
			}
			if a.json {
				if err := a.printRun(raw); err != nil {
					return err
				}
			}
			if v.State != store.RunCancelled {
				return &exitError{exitConflict, fmt.Errorf("too late: run %s has %s", visible(v.ID), visible(string(v.State)))}
			}
			if !a.json {
				fmt.Fprintf(a.stdout, "run %s is cancelled\n", visible(v.ID))
			}
			return nil
		},
	}
}
