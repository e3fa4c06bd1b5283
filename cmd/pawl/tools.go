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

func (a *app) toolsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "tools",
		Aliases: []string{"tool"},
		Short:   "See the host's tools, and call one",
		Example: `  pawl tools list
  pawl tools call read_file --agent ops --arguments '{"path": "/notes/a.md"}'`,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the tools", Example: "  pawl tools list",
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			return listAll(a, c, r, "/v1/tools", "tools", []string{"TOOL", "PLUGIN", "EFFECTS", "DESCRIPTION"}, func(t host.Tool) []any {
				first, _, _ := strings.Cut(t.Description, ". ") // the whole of it is in --json
				return []any{t.Name, t.Plugin, t.Effects, strings.TrimSuffix(first, ".")}
			})
		},
	}
	var agent, arguments, toolContext string
	call := &cobra.Command{
		Use:   "call TOOL",
		Short: "Call one tool under an agent's rules",
		Long: `Calls one tool as a run of one call: the agent's rules hold, so the call may stop for a decision (exit code 6). Without --agent it is
the agent with the name default, once somebody has saved one.`,
		Example: `  pawl tools call read_file --agent ops --arguments '{"path": "/notes/a.md"}'
  pawl tools call write_file --agent ops --arguments @args.json`,
		RunE: func(c *cobra.Command, args []string) error {
			body := map[string]any{}
			var err error
			if body["arguments"], err = a.jsonValue(arguments); err != nil {
				return usagef("--arguments: %w", err)
			}
			if agent != "" {
				body["agent"] = agent
			}
			if toolContext != "" {
				if body["tool_context"], err = a.jsonValue(toolContext); err != nil {
					return usagef("--tool-context: %w", err)
				}
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodPost, "/v1/tools/"+url.PathEscape(args[0])+"/call", body, &raw); err != nil {
				return err
			}
			if a.json {
				if err := a.printRun(raw); err != nil {
					return err
				}
			}
			return a.outcome(raw)
		},
	}
	f := call.Flags()
	f.StringVar(&agent, "agent", "", "the `AGENT` to call it under (default: the one with the name default)")
	f.StringVar(&arguments, "arguments", "{}", "the arguments, `JSON` or @FILE")
	f.StringVar(&toolContext, "tool-context", "", "context for the tool, a `JSON` object or @FILE")
	for _, sub := range []*cobra.Command{list, call} {
		a.clientFlags(sub.Flags())
		c.AddCommand(sub)
	}
	return c
}

// outcome prints the answer to a direct call and turns it into an exit code.
func (a *app) outcome(raw json.RawMessage) error {
	var out struct {
		Run    host.Run
		Result json.RawMessage
		Error  *store.Failure
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return err
	}
	switch {
	case out.Error != nil:
		return fmt.Errorf("the call failed: %s", failure(out.Error))
	case out.Run.State == store.RunSucceeded && a.json:
		return nil
	case out.Run.State == store.RunSucceeded:
		return a.printRaw(out.Result)
	case out.Run.Pause != nil && !a.json:
		a.showPause(out.Run, true)
	case !a.json:
		fmt.Fprintf(a.stdout, "run %s is %s; follow it with pawl run --attach\n", visible(out.Run.ID), visible(string(out.Run.State)))
	}
	return errWaiting
}
