package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
)

func (a *app) tenantsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "tenants",
		Aliases: []string{"tenant"},
		Short:   "List, make and change tenants",
		Long: `Over the wire, everybody may look at their own tenant and its owners may change it; the owners of the tenant that the host's
--operator-tenant names look after all of them. With --data the command works on the database of a stopped host.`,
		Example: `  pawl tenants show
  pawl tenants set --second-party
  pawl tenants create acme --owner alice
  pawl tenants set acme --disabled`,
	}
	row := func(t host.Tenant) []any {
		since := ""
		if t.CreatedAt != nil {
			since = t.CreatedAt.String()
		}
		return []any{t.Name, onOff(t.SecondParty), onOff(!t.Disabled), since}
	}
	heading := []string{"TENANT", "TWO PARTIES", "ENABLED", "CREATED"}
	show := func(raw json.RawMessage) error {
		if a.json {
			return a.printRaw(raw)
		}
		var t host.Tenant
		if err := json.Unmarshal(raw, &t); err != nil {
			return err
		}
		if t.Key != nil {
			fmt.Fprintf(a.stderr, "tenant %s; the key of its owner %s is shown this once:\n", visible(t.Name), visible(t.Key.Principal))
			_, err := fmt.Fprintln(a.stdout, visible(t.Key.Key))
			return err
		}
		return a.table(heading, [][]any{row(t)})
	}
	// named returns the tenant that a command is about, and its path; without a name it is the caller's own.
	named := func(args []string) (name, path string, err error) {
		switch {
		case len(args) > 0:
			return args[0], "/v1/tenants/" + url.PathEscape(args[0]), nil
		case a.data != "":
			return "", "", usagef("name the tenant: on a folder there is no own one")
		}
		return "", "/v1/tenant", nil
	}

	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the tenants of the host", Example: "  pawl tenants list --data /var/lib/pawl",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.keeper(c, "default",
				func(h *host.Host, who host.Actor) error {
					return printPages(a, heading, row, func(p host.Page) ([]host.Tenant, string, error) { return h.Tenants(c.Context(), who, p) })
				},
				func(r *remote) error { return listAll(a, c, r, "/v1/tenants", "tenants", heading, row) })
		},
	}
	look := &cobra.Command{
		Use: "show [TENANT]", Short: "Show a tenant, without a name your own", Example: "  pawl tenants show",
		RunE: func(c *cobra.Command, args []string) error {
			name, path, err := named(args)
			if err != nil {
				return err
			}
			raw, err := a.ask(c, name, http.MethodGet, path, nil, func(h *host.Host, who host.Actor) (any, error) {
				return h.TenantOf(c.Context(), who, name)
			})
			if err != nil {
				return err
			}
			return show(raw)
		},
	}
	var n host.NewTenant
	create := &cobra.Command{
		Use: "create TENANT", Short: "Make a tenant, and print the key of its first owner if one is named", Example: "  pawl tenants create acme --owner alice",
		RunE: func(c *cobra.Command, args []string) error {
			n.Name = args[0]
			body := map[string]any{"name": n.Name, "second_party": n.SecondParty, "owner": n.Owner}
			raw, err := a.ask(c, n.Name, http.MethodPost, "/v1/tenants", body, func(h *host.Host, who host.Actor) (any, error) {
				return h.CreateTenant(c.Context(), who, host.Idempotency{}, func() (host.NewTenant, error) { return n, nil })
			})
			if err != nil {
				return err
			}
			return show(raw)
		},
	}
	create.Flags().StringVar(&n.Owner, "owner", "", "`PRINCIPAL` that becomes its first owner, with a key")
	create.Flags().BoolVar(&n.SecondParty, "second-party", false, "nobody decides their own runs")
	var secondParty, disabled bool
	set := &cobra.Command{
		Use:   "set [TENANT]",
		Short: "Change what the flags say of a tenant, without a name of your own",
		Example: `  pawl tenants set --second-party
  pawl tenants set acme --disabled=false`,
		RunE: func(c *cobra.Command, args []string) error {
			name, path, err := named(args)
			if err != nil {
				return err
			}
			var change host.TenantChange
			body := map[string]any{}
			if c.Flags().Changed("second-party") {
				change.SecondParty, body["second_party"] = &secondParty, secondParty
			}
			if c.Flags().Changed("disabled") {
				change.Disabled, body["disabled"] = &disabled, disabled
			}
			if len(body) == 0 {
				return usagef("say what to change: --second-party or --disabled, each also with =false")
			}
			raw, err := a.ask(c, name, http.MethodPatch, path, body, func(h *host.Host, who host.Actor) (any, error) {
				return h.ChangeTenantOf(c.Context(), who, name, func() (host.TenantChange, error) { return change, nil })
			})
			if err != nil {
				return err
			}
			return show(raw)
		},
	}
	set.Flags().BoolVar(&secondParty, "second-party", false, "nobody decides their own runs")
	set.Flags().BoolVar(&disabled, "disabled", false, "no credential of the tenant counts (operators)")
	for _, sub := range []*cobra.Command{list, look, create, set} {
		a.onFolder(sub)
		c.AddCommand(sub)
	}
	return c
}

func onOff(on bool) string {
	if on {
		return "yes"
	}
	return "no"
}
