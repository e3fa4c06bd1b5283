package main

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
)

func (a *app) auditCommand() *cobra.Command {
	c := a.auditList("audit")
	c.Short = "Read, export and check the audit log: who did, or tried, what"
	c.Long = `Lists the audit log, oldest row first. Its rows are a chain: each has the hash of the one before it, so that a row which is changed,
removed, moved or put in later shows ("pawl audit verify"), and a cut end does when its head was kept elsewhere ("pawl audit head").`
	c.Example = `  pawl audit --action approval.decide
  pawl audit head >> kept-elsewhere
  pawl audit verify --head 812:sha256:09af…
  pawl audit export --from 2026-11-01T00:00:00Z > november.jsonl`
	list := a.auditList("list")
	list.Aliases = []string{"ls"}
	c.AddCommand(list, a.auditHeadCommand(), a.auditVerifyCommand(), a.auditExportCommand())
	return c
}

func (a *app) auditList(use string) *cobra.Command {
	filter := map[string]*string{}
	c := &cobra.Command{
		Use:   use,
		Short: "List the audit log, oldest row first",
		Example: `  pawl audit list --action approval.decide
  pawl audit list --actor admin --from 2026-11-01T00:00:00Z --json`,
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
			if err := r.askedForNothing(c.Context(), q); err != nil {
				return err
			}
			return listQuery(a, c, r, "/v1/audit", q, "rows", []string{"SEQ", "TIME", "ACTOR", "ACTION", "TARGET", "OUTCOME", "DETAIL"}, auditCells)
		},
	}
	a.clientFlags(c.Flags())
	for name, help := range map[string]string{
		"action": "only this `ACTION`, such as approval.decide", "actor": "only this `PRINCIPAL`", "target": "only this target `ID`",
		"from": "from this `TIME` (RFC 3339)", "to": "up to this `TIME`", "after": "only rows after the one with this `SEQ`",
	} {
		filter[name] = c.Flags().String(name, "", help)
	}
	return c
}

func auditCells(row host.AuditRow) []any {
	actor := row.ActorKind
	if row.ActorID != nil {
		actor = *row.ActorID
	}
	var detail []string
	if row.Reason != "" {
		detail = append(detail, row.Reason)
	}
	for _, name := range slices.Sorted(maps.Keys(row.Detail)) {
		switch name {
		case "decided_by", "call_id", "run_id": // the actor once more, and ids, which are in --json
		default:
			detail = append(detail, fmt.Sprintf("%s=%v", name, row.Detail[name]))
		}
	}
	target := row.TargetID
	if prefix, _, ok := strings.Cut(target, "_"); !ok || !slices.Contains([]string{"run", "call", "apr", "pause", "key"}, prefix) {
		target = row.TargetKind + " " + target // an id says by itself what it is of
	}
	return []any{row.Seq, row.Time, actor, row.Action, target, row.Outcome, strings.Join(detail, " ")}
}
