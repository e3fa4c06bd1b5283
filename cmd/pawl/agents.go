package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/sdk/client"
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
		Use: "list", Aliases: []string{"ls"}, Short: "List the agents", Example: "  pawl agents list",
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			return listAll(a, c, r, "/v1/agents", "agents", []string{"AGENT", "VERSION", "UPDATED", "BY"}, func(g host.Agent) []any {
				return []any{g.Name, g.Version, g.UpdatedAt, g.UpdatedBy}
			})
		},
	}
	get := &cobra.Command{
		Use: "get NAME", Aliases: []string{"show"}, Short: "Print an agent's document, so that it can be changed and saved again",
		Long: `Prints an agent's document to standard output, as "save" takes it, and its version to standard error. With --json both are one
object, as the host answers.`,
		Example: "  pawl agents get ops\n  pawl agents get ops >ops.json && vi ops.json && pawl agents save ops ops.json",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodGet, agentPath(args[0]), nil, &raw); err != nil {
				return err
			}
			if a.json {
				return a.printRaw(raw)
			}
			return a.showAgent(raw)
		},
	}
	save := &cobra.Command{
		Use:   "save NAME FILE",
		Short: "Save an agent from a JSON or YAML file (- for standard input)",
		Long: `Saves an agent as its next version. Names that mean nothing on this host, such as a rule for a tool that the agent does not have, are
warned of.`,
		Example: "  pawl agents save ops agent.yaml\n  pawl agents save ops - <agent.json",
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
			var saved client.SavedAgent
			if err := json.Unmarshal(raw, &saved); err != nil {
				return err
			}
			for _, w := range saved.Warnings {
				fmt.Fprintln(a.stderr, "warning: "+visible(w))
			}
			if a.json {
				return a.printRaw(raw)
			}
			_, err = fmt.Fprintf(a.stdout, "agent %s saved as version %d\n", visible(args[0]), saved.Version)
			return err
		},
	}
	del := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete an agent; its runs go on with the version they began with",
		Example: "  pawl agents delete ops",
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

// showAgent prints the document of an agent in lines that people can edit: JSON, since YAML's escapes are not those of visible.
func (a *app) showAgent(raw json.RawMessage) error {
	var head host.Agent
	var doc map[string]json.RawMessage // all that the host knows, which may be more than this program
	if err := errors.Join(json.Unmarshal(raw, &head), json.Unmarshal(raw, &doc)); err != nil {
		return err
	}
	for _, name := range []string{"name", "version", "updated_at", "updated_by"} {
		delete(doc, name)
	}
	text, err := marshal(doc)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "agent %s, version %d, saved by %s at %s\n", visible(head.Name), head.Version, visible(head.UpdatedBy), head.UpdatedAt)
	_, err = fmt.Fprintln(a.stdout, visibleLines(b.String()))
	return err
}

func agentPath(name string) string { return "/v1/agents/" + url.PathEscape(name) }

// listAll prints all pages of a list: one JSON document a line, or a table.
func listAll[T any](a *app, c *cobra.Command, r *remote, path, member string, heading []string, row func(T) []any) error {
	return listQuery(a, c, r, path, url.Values{"limit": {"200"}}, member, heading, row)
}

func listQuery[T any](a *app, c *cobra.Command, r *remote, path string, q url.Values, member string, heading []string, row func(T) []any) error {
	return listLast(a, c, r, path, q, 0, member, heading, row)
}

// listLast prints the newest n items, the newest last, or all pages if n is 0. The list must know order=newest.
func listLast[T any](a *app, c *cobra.Command, r *remote, path string, q url.Values, n int, member string, heading []string, row func(T) []any) error {
	if n > 0 {
		q.Set("order", "newest")
		q.Set("limit", strconv.Itoa(min(n, 200)))
	}
	var kept []json.RawMessage
	err := r.pages(c.Context(), path, q, func(raw json.RawMessage) error {
		var page map[string]json.RawMessage
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		if err := json.Unmarshal(page[member], &items); err != nil {
			return err
		}
		if a.json && n == 0 { // a long list goes out as it comes
			for _, one := range items {
				if err := a.printRaw(one); err != nil {
					return err
				}
			}
			return nil
		}
		if kept = append(kept, items...); n > 0 && len(kept) >= n {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if n > 0 {
		kept = kept[:min(n, len(kept))]
		slices.Reverse(kept)
	}
	var rows [][]any
	for _, one := range kept {
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
	if a.json {
		return nil
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintf(a.stdout, "no %s\n", member)
		return err
	}
	return a.table(heading, rows)
}

// errEnough ends a list early.
var errEnough = errors.New("enough")
