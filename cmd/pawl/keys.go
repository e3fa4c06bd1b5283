package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
)

func (a *app) keysCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "keys",
		Aliases: []string{"key"},
		Short:   "Create, list and revoke API keys",
		Long: `Works over the wire as an owner or admin. The first key of a tenant cannot come over the wire: with --data the command works
on the database itself, of a host that is stopped.`,
		Example: `  pawl keys create alice --role admin --data /var/lib/pawl --tenant acme
  pawl keys create ci --kind service --role member
  pawl keys list
  pawl keys revoke 0199…`,
	}
	var tenant, kind string
	var roles []string
	create := &cobra.Command{
		Use:   "create PRINCIPAL",
		Short: "Create a key and print it, once",
		Example: `  pawl keys create alice --role owner --data /var/lib/pawl --tenant acme
  pawl keys create ci --kind service --role member`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			n := host.NewKey{Principal: args[0], Roles: roles, Kind: kind}
			var raw json.RawMessage
			err := a.keeper(c.Context(), tenant,
				func(h *host.Host, _ host.Actor) (err error) {
					k, err := h.EnsureKey(c.Context(), tenant, n)
					if err == nil {
						raw, err = marshal(k)
					}
					return err
				},
				func(r *remote) error {
					body := map[string]any{"principal": n.Principal, "roles": n.Roles, "kind": n.Kind}
					return r.call(c.Context(), http.MethodPost, "/v1/keys", body, &raw)
				})
			if err != nil {
				return err
			}
			if a.json {
				return a.printRaw(raw)
			}
			var k host.Key
			if err := json.Unmarshal(raw, &k); err != nil {
				return err
			}
			fmt.Fprintf(a.stderr, "key %s for %s (%s; %s); it is shown this once:\n", visible(k.ID), visible(k.Principal), visible(k.Kind),
				visible(strings.Join(k.Roles, ", ")))
			_, err = fmt.Fprintln(a.stdout, visible(k.Key))
			return err
		},
	}
	create.Flags().StringSliceVar(&roles, "role", []string{host.RoleMember}, "`ROLE`: owner, admin or member (repeatable)")
	create.Flags().StringVar(&kind, "kind", host.KindUser, "`KIND`: user, or service (which never decides)")

	row := func(k host.Key) []string {
		revoked := ""
		if k.RevokedAt != nil {
			revoked = k.RevokedAt.String()
		}
		return []string{k.ID, k.Principal, k.Kind, strings.Join(k.Roles, ","), k.CreatedAt.String(), revoked}
	}
	heading := []string{"KEY", "PRINCIPAL", "KIND", "ROLES", "CREATED", "REVOKED"}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the keys, without their secrets", Example: "  pawl keys list", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.keeper(c.Context(), tenant,
				func(h *host.Host, who host.Actor) error {
					var rows [][]string
					for page := (host.Page{Limit: 200}); ; {
						keys, next, err := h.Keys(c.Context(), who, page)
						if err != nil {
							return err
						}
						for _, k := range keys {
							if !a.json {
								rows = append(rows, row(k))
							} else if err := a.printJSON(k); err != nil {
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
				},
				func(r *remote) error { return listAll(a, c, r, "/v1/keys", "keys", heading, row) })
		},
	}
	revoke := &cobra.Command{
		Use: "revoke KEY", Short: "Revoke a key: its sockets close, and it opens nothing any more", Example: "  pawl keys revoke 0199…",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.keeper(c.Context(), tenant,
				func(h *host.Host, who host.Actor) error { return h.RevokeKey(c.Context(), who, args[0]) },
				func(r *remote) error {
					return r.call(c.Context(), http.MethodDelete, "/v1/keys/"+url.PathEscape(args[0]), nil, nil)
				})
		},
	}
	for _, sub := range []*cobra.Command{create, list, revoke} {
		a.clientFlags(sub.Flags())
		sub.Flags().StringVar(&a.data, "data", "", "work on this data `FOLDER` of a stopped host instead of over the wire")
		sub.Flags().StringVar(&tenant, "tenant", "", "the `TENANT`, with --data")
		c.AddCommand(sub)
	}
	return c
}

// keeper does something with keys: on the data folder of a stopped host, or over the wire.
func (a *app) keeper(ctx context.Context, tenant string, local func(*host.Host, host.Actor) error, wire func(*remote) error) error {
	if a.data == "" {
		if tenant != "" {
			return usagef("--tenant goes with --data: over the wire your own key says which tenant")
		}
		r, err := a.remote()
		if err != nil {
			return err
		}
		return wire(r)
	}
	if tenant == "" {
		return usagef("say which tenant: --tenant NAME")
	}
	if a.hostKey == "" {
		a.hostKey = randomHostKey() // nothing is signed here
	}
	log := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	b, err := a.build(ctx, log, nil)
	if err != nil {
		return err
	}
	// Who can write the folder can do everything; the audit calls them the operator.
	who := host.Actor{Tenant: tenant, ID: "operator", Kind: host.KindUser, Roles: []string{host.RoleOwner}}
	err = local(b.host, who)
	if cerr := b.close(log); err == nil {
		err = cerr
	}
	return err
}
