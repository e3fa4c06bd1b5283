package main

import (
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
)

func (a *app) auditCommand() *cobra.Command {
	filter := map[string]*string{}
	c := &cobra.Command{
		Use:   "audit",
		Short: "Read the audit log: who did, or tried, what",
		Example: `  pawl audit --action approval.decide
  pawl audit --actor admin --from 2026-11-01T00:00:00Z --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			q := url.Values{"limit": {"200"}}
			for name, v := range filter {
				if *v != "" {
					q.Set(name, *v)
				}
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			return listQuery(a, c, r, "/v1/audit", q, "rows", []string{"SEQ", "TIME", "ACTOR", "ACTION", "TARGET", "OUTCOME", "REASON"}, auditCells)
		},
	}
	a.clientFlags(c.Flags())
	for name, help := range map[string]string{
		"action": "only this action, such as approval.decide", "actor": "only this principal", "target": "only this target id",
		"from": "from this time (RFC 3339)", "to": "up to this time", "after": "only rows after this one (as given by next)",
	} {
		filter[name] = c.Flags().String(name, "", help)
	}
	return c
}

func auditCells(row host.AuditRow) []string {
	actor := row.ActorKind
	if row.ActorID != nil {
		actor = *row.ActorID
	}
	return []string{strconv.FormatUint(row.Seq, 10), row.Time.String(), actor, row.Action, row.TargetKind + " " + row.TargetID, row.Outcome, row.Reason}
}
