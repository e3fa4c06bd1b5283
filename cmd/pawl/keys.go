package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
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
		Use:   "create [PRINCIPAL]",
		Short: "Create a key and print it, once",
		Long:  `Creates a key and prints it, once. With --data alone it is that of a first owner: principal owner, role owner, tenant default.`,
		Example: `  pawl keys create --data /var/lib/pawl
  pawl keys create alice --role owner --data /var/lib/pawl --tenant acme
  pawl keys create ci --kind service --role member`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 && a.data == "" {
				return usagef("name the principal that the key is for")
			}
			if len(args) == 0 {
				args = []string{"owner"}
				if !c.Flags().Changed("role") {
					roles = []string{host.RoleOwner}
				}
			}
			if kind != host.KindUser && kind != host.KindService {
				return usagef("--kind %q: say user or service", kind)
			}
			for _, r := range roles {
				if r != host.RoleOwner && r != host.RoleAdmin && r != host.RoleMember {
					return usagef("--role %q: say owner, admin or member", r)
				}
			}
			n := host.NewKey{Principal: args[0], Roles: roles, Kind: kind}
			var raw json.RawMessage
			_, missing := os.Stat(a.dbFolder())
			err := a.keeper(c, tenant,
				func(h *host.Host, who host.Actor) (err error) {
					// A typing error in a name must not look like success.
					if missing != nil {
						fmt.Fprintf(a.stderr, "%s had no database: a new one was made\n", visible(a.data))
					} else if keys, _, err := h.Keys(c.Context(), who, host.Page{Limit: 1}); err == nil && len(keys) == 0 {
						fmt.Fprintf(a.stderr, "tenant %s has no keys yet: this is its first\n", visible(tenant))
					}
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

	row := func(k host.Key) []any {
		revoked := ""
		if k.RevokedAt != nil {
			revoked = k.RevokedAt.String()
		}
		return []any{k.ID, k.Principal, k.Kind, strings.Join(k.Roles, ","), k.CreatedAt, revoked}
	}
	heading := []string{"KEY", "PRINCIPAL", "KIND", "ROLES", "CREATED", "REVOKED"}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the keys, without their secrets", Example: "  pawl keys list",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.keeper(c, tenant,
				func(h *host.Host, who host.Actor) error {
					if first, _, err := h.Keys(c.Context(), who, host.Page{Limit: 1}); err == nil && len(first) == 0 && !a.json {
						_, err := fmt.Fprintf(a.stdout, "tenant %s has no keys\n", visible(tenant))
						return err
					}
					return printPages(a, heading, row, func(p host.Page) ([]host.Key, string, error) { return h.Keys(c.Context(), who, p) })
				},
				func(r *remote) error { return listAll(a, c, r, "/v1/keys", "keys", heading, row) })
		},
	}
	revoke := &cobra.Command{
		Use: "revoke KEY", Short: "Revoke a key: its sockets close, and it opens nothing any more", Example: "  pawl keys revoke 0199…",
		RunE: func(c *cobra.Command, args []string) error {
			return a.keeper(c, tenant,
				func(h *host.Host, who host.Actor) error { return h.RevokeKey(c.Context(), who, args[0]) },
				func(r *remote) error {
					return r.call(c.Context(), http.MethodDelete, "/v1/keys/"+url.PathEscape(args[0]), nil, nil)
				})
		},
	}
	for _, sub := range []*cobra.Command{create, list, revoke} {
		if sub == create { // which makes the first database
			a.clientFlags(sub.Flags())
			sub.Flags().StringVar(&a.data, "data", "", "work on this data `FOLDER` of a stopped host instead of over the wire")
		} else {
			a.onFolder(sub)
		}
		sub.Flags().StringVar(&tenant, "tenant", "default", "the `TENANT`, with --data")
		c.AddCommand(sub)
	}
	return c
}

// keeper does something with keys: on the data folder of a stopped host, or over the wire.
func (a *app) keeper(c *cobra.Command, tenant string, local func(*host.Host, host.Actor) error, wire func(*remote) error) error {
	if a.data == "" {
		if c.Flags().Changed("tenant") {
			return usagef("--tenant goes with --data: over the wire your own key says which tenant")
		}
		r, err := a.remote()
		if err != nil {
			return err
		}
		return wire(r)
	}
	if a.hostKey == "" {
		a.hostKey = randomHostKey() // nothing is signed here
	}
	log := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	b, err := a.build(c.Context(), log, nil, nil)
	if err != nil {
		return err
	}
	// Who can write the folder can do everything; the audit calls them the operator.
	err = coded(local(b.host, host.Operator(tenant)))
	if cerr := b.close(log); err == nil {
		err = cerr
	}
	return err
}

// coded gives a refusal of a host in this process the exit code that the same has over the wire.
func coded(err error) error {
	e, ok := errors.AsType[*host.Error](err)
	if !ok {
		return err
	}
	code := exitFailed
	switch e.Code {
	case host.CodeInvalid:
		code = exitUsage
	case host.CodeNotFound:
		code = exitNotFound
	case host.CodeForbidden, host.CodeUnauthenticated:
		code = exitRefused
	case host.CodeWrongState, host.CodeLastOwner:
		code = exitConflict
	case host.CodeNoSpace, host.CodeUnavailable:
		code = exitAway
	}
	return &exitError{code, &worded{error: fmt.Errorf("%s [%s]", visible(e.Detail), e.Code), code: string(e.Code)}}
}
