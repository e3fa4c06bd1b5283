package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
)

func (a *app) agentsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "agents",
		Aliases: []string{"agent"},
		Short:   "See, save and delete agents",
		Long:    "An agent is a named, versioned configuration: its planner, its tools, and what of them must stop for a person.",
		Example: `  pawl agents save ops agent.yaml
  pawl agents get ops`,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the agents", Example: "  pawl agents list", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			return listAll(a, c, r, "/v1/agents", "agents", []string{"AGENT", "VERSION", "UPDATED", "BY"}, func(g host.Agent) []string {
				return []string{g.Name, strconv.FormatUint(g.Version, 10), g.UpdatedAt.String(), g.UpdatedBy}
			})
		},
	}
	get := &cobra.Command{
		Use: "get NAME", Aliases: []string{"show"}, Short: "Print an agent as JSON", Example: "  pawl agents get ops", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodGet, agentPath(args[0]), nil, &raw); err != nil {
				return err
			}
			return a.printRaw(raw)
		},
	}
	save := &cobra.Command{
		Use:     "save NAME FILE",
		Short:   "Save an agent from a JSON or YAML file (- for standard input)",
		Example: "  pawl agents save ops agent.yaml\n  pawl agents save ops - <agent.json",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			doc, err := a.jsonValue("@" + args[1])
			if err != nil {
				return &exitError{exitUsage, err}
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodPut, agentPath(args[0]), doc, &raw); err != nil {
				return err
			}
			if a.json {
				return a.printRaw(raw)
			}
			var saved struct{ Version uint64 }
			if err := json.Unmarshal(raw, &saved); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "agent %s saved as version %d\n", visible(args[0]), saved.Version)
			return err
		},
	}
	del := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete an agent; its runs go on with the version they began with",
		Example: "  pawl agents delete ops", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			return r.call(c.Context(), http.MethodDelete, agentPath(args[0]), nil, nil)
		},
	}
	for _, sub := range []*cobra.Command{list, get, save, del} {
		a.clientFlags(sub.Flags())
		c.AddCommand(sub)
	}
	return c
}

func agentPath(name string) string { return "/v1/agents/" + url.PathEscape(name) }

// listAll prints all pages of a list: one JSON document a line, or a table.
func listAll[T any](a *app, c *cobra.Command, r *remote, path, member string, heading []string, row func(T) []string) error {
	return listQuery(a, c, r, path, url.Values{"limit": {"200"}}, member, heading, row)
}

func listQuery[T any](a *app, c *cobra.Command, r *remote, path string, q url.Values, member string, heading []string, row func(T) []string) error {
	var rows [][]string
	err := r.pages(c.Context(), path, q, func(raw json.RawMessage) error {
		var page map[string]json.RawMessage
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		if err := json.Unmarshal(page[member], &items); err != nil {
			return err
		}
		for _, one := range items {
			if a.json {
				if err := a.printRaw(one); err != nil {
					return err
				}
				continue
			}
			var v T
			if err := json.Unmarshal(one, &v); err != nil {
				return err
			}
			rows = append(rows, row(v))
		}
		return nil
	})
	if err != nil || a.json {
		return err
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintf(a.stdout, "no %s\n", member)
		return err
	}
	return a.table(heading, rows)
}
