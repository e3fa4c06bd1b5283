package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
)

func (a *app) principalsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "principals",
		Aliases: []string{"principal"},
		Short:   "List, change and remove the people and services of a tenant",
		Long: `A key belongs to a principal and is never more than that: whoever is demoted or disabled here is so at once, with every key and on every
open socket. Works over the wire as an owner or admin, or with --data on the database of a stopped host.`,
		Example: `  pawl principals list
  pawl principals set alice --role member
  pawl principals set chat --kind service --role member --act-as
  pawl principals set bob --disabled
  pawl principals remove carol`,
	}
	var tenant string
	row := func(p host.Principal) []any {
		var notes []string
		if p.ActAs {
			notes = append(notes, "acts for others")
		}
		if p.Disabled {
			notes = append(notes, "disabled")
		}
		return []any{p.ID, p.Kind, strings.Join(p.Roles, ","), p.UpdatedAt, strings.Join(notes, ", ")}
	}
	heading := []string{"PRINCIPAL", "KIND", "ROLES", "CHANGED", ""}
	show := func(raw json.RawMessage) error {
		if a.json {
			return a.printRaw(raw)
		}
		var p host.Principal
		if err := json.Unmarshal(raw, &p); err != nil {
			return err
		}
		return a.table(heading, [][]any{row(p)})
	}
	path := func(id string) string { return "/v1/principals/" + url.PathEscape(id) }

	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the principals", Example: "  pawl principals list --json",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.keeper(c, tenant,
				func(h *host.Host, who host.Actor) error {
					return printPages(a, heading, row, func(p host.Page) ([]host.Principal, string, error) { return h.Principals(c.Context(), who, p) })
				},
				func(r *remote) error { return listAll(a, c, r, "/v1/principals", "principals", heading, row) })
		},
	}
	look := &cobra.Command{
		Use: "show PRINCIPAL", Short: "Show one principal", Example: "  pawl principals show alice",
		RunE: func(c *cobra.Command, args []string) error {
			raw, err := a.ask(c, tenant, http.MethodGet, path(args[0]), nil, func(h *host.Host, who host.Actor) (any, error) {
				return h.GetPrincipal(c.Context(), who, args[0])
			})
			if err != nil {
				return err
			}
			return show(raw)
		},
	}
	var kind string
	var roles []string
	var actAs, disabled bool
	set := &cobra.Command{
		Use:   "set PRINCIPAL",
		Short: "Make a principal, or change what the flags say of one",
		Example: `  pawl principals set alice --role admin
  pawl principals set bob --disabled
  pawl principals set bob --disabled=false`,
		RunE: func(c *cobra.Command, args []string) error {
			change := func(was host.Principal, found bool) map[string]any {
				doc := map[string]any{"kind": was.Kind, "roles": was.Roles, "act_as": was.ActAs, "disabled": was.Disabled}
				if !found {
					doc = map[string]any{"kind": host.KindUser, "roles": []string{host.RoleMember}}
				}
				for name, v := range map[string]any{"kind": kind, "role": roles, "act-as": actAs, "disabled": disabled} {
					if c.Flags().Changed(name) {
						doc[map[string]string{"kind": "kind", "role": "roles", "act-as": "act_as", "disabled": "disabled"}[name]] = v
					}
				}
				return doc
			}
			var raw json.RawMessage
			err := a.keeper(c, tenant,
				func(h *host.Host, who host.Actor) error {
					was, err := h.GetPrincipal(c.Context(), who, args[0])
					if err != nil && host.CodeOf(err) != host.CodeNotFound {
						return err
					}
					text, err := json.Marshal(change(was, err == nil))
					if err != nil {
						return err
					}
					var doc host.PrincipalDoc
					if err := json.Unmarshal(text, &doc); err != nil {
						return err
					}
					p, _, err := h.SavePrincipal(c.Context(), who, args[0], func() (host.PrincipalDoc, error) { return doc, nil })
					if err == nil {
						raw, err = marshal(p)
					}
					return err
				},
				func(r *remote) error {
					var was host.Principal
					err := r.call(c.Context(), http.MethodGet, path(args[0]), nil, &was)
					if p, ok := errors.AsType[*problem](err); err != nil && (!ok || p.Status != http.StatusNotFound) {
						return err
					}
					return r.call(c.Context(), http.MethodPut, path(args[0]), change(was, err == nil), &raw)
				})
			if err != nil {
				return err
			}
			return show(raw)
		},
	}
	set.Flags().StringSliceVar(&roles, "role", nil, "`ROLE`: owner, admin or member (repeatable; a new principal is a member)")
	set.Flags().StringVar(&kind, "kind", host.KindUser, "`KIND`: user, or service (which never decides)")
	set.Flags().BoolVar(&actAs, "act-as", false, "a service that may make runs for other users")
	set.Flags().BoolVar(&disabled, "disabled", false, "no credential of it counts")
	remove := &cobra.Command{
		Use: "remove PRINCIPAL", Aliases: []string{"rm"}, Short: "Remove a principal and revoke its keys", Example: "  pawl principals remove carol",
		RunE: func(c *cobra.Command, args []string) error {
			return a.keeper(c, tenant,
				func(h *host.Host, who host.Actor) error { return h.RemovePrincipal(c.Context(), who, args[0]) },
				func(r *remote) error { return r.call(c.Context(), http.MethodDelete, path(args[0]), nil, nil) })
		},
	}
	for _, sub := range []*cobra.Command{list, look, set, remove} {
		a.onFolder(sub)
		sub.Flags().StringVar(&tenant, "tenant", "default", "the `TENANT`, with --data")
		c.AddCommand(sub)
	}
	return c
}

// onFolder gives a command its --url and --data; a folder without a database is an error and not a new one.
func (a *app) onFolder(c *cobra.Command) {
	a.clientFlags(c.Flags())
	c.Flags().StringVar(&a.data, "data", "", "work on this data `FOLDER` of a stopped host instead of over the wire")
	do := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if _, err := os.Stat(a.dbFolder()); a.data != "" && err != nil {
			return &exitError{exitNotFound, fmt.Errorf("%s has no database", visible(a.data))}
		}
		return do(c, args)
	}
}

// ask gets one thing: of the data folder of a stopped host, or over the wire.
func (a *app) ask(c *cobra.Command, tenant, method, path string, body any, local func(*host.Host, host.Actor) (any, error)) (raw json.RawMessage, err error) {
	err = a.keeper(c, tenant,
		func(h *host.Host, who host.Actor) error {
			v, err := local(h, who)
			if err == nil {
				raw, err = marshal(v)
			}
			return err
		},
		func(r *remote) error { return r.call(c.Context(), method, path, body, &raw) })
	return raw, err
}

// printPages prints all pages of a list of the folder.
func printPages[T any](a *app, heading []string, row func(T) []any, list func(host.Page) ([]T, string, error)) error {
	var rows [][]any
	for page := (host.Page{Limit: 200}); ; {
		items, next, err := list(page)
		if err != nil {
			return err
		}
		for _, it := range items {
			if !a.json {
				rows = append(rows, row(it))
			} else if err := a.printJSON(it); err != nil {
				return err
			}
		}
		if page.Cursor = next; next == "" {
			break
		}
	}
	if a.json {
		return nil
	}
	return a.table(heading, rows)
}
