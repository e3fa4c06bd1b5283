package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// auditActions are the actions that rows of the audit have, with what such a row says. A filter on another one is no error on the
// wire: a newer host may know more, and a filter that matches nothing has matched nothing.
var auditActions = []struct{ name, says string }{
	{"agent.default_removed", "a saved agent takes a built-in stop away"},
	{"agent.delete", "an agent was deleted"},
	{"agent.list", "listing agents was refused"},
	{"agent.read", "reading an agent was refused"},
	{"agent.save", "an agent was saved"},
	{"approval.decide", "an approval was decided, or deciding it was refused"},
	{"approval.expire", "an approval expired before anybody decided"},
	{"approval.list", "listing approvals was refused"},
	{"audit.read", "reading the audit was refused"},
	{"key.create", "a key was made"},
	{"key.list", "listing keys was refused"},
	{"key.revoke", "a key was revoked"},
	{"key.use", "a key was used (the first time on a day), or after it was revoked"},
	{"metrics.read", "reading the metrics was refused"},
	{"pause.supersede", "a further message took the place of a pause"},
	{"policy.evaluate", "asking policy was refused"},
	{"policy.read", "reading which rules are in force was refused"},
	{"policy.reload", "the rules were loaded anew, or the new ones were not usable"},
	{"principal.create", "a principal was made"},
	{"principal.list", "listing principals was refused"},
	{"principal.read", "reading a principal was refused"},
	{"principal.remove", "a principal was removed"},
	{"principal.save", "a principal was changed"},
	{"queue.read", "watching the queue of approvals was refused"},
	{"run.act_as", "a service made a run for somebody else"},
	{"run.cancel", "a run was cancelled"},
	{"run.create", "starting a run was refused"},
	{"run.drive", "a move of a run's planner, or a further message, was refused"},
	{"run.give_up", "the host gave a run up"},
	{"run.list", "listing runs was refused"},
	{"tenant.change", "the own tenant was changed"},
	{"tenant.read", "reading the own tenant was refused"},
	{"tenants.change", "an operator changed a tenant"},
	{"tenants.create", "an operator made a tenant"},
	{"tenants.list", "listing all tenants was refused"},
	{"token.rotate", "a pause got a new resume token"},
	{"tool.call", "calling a tool was refused"},
	{"tool.list", "listing tools was refused"},
	{"ws.connect", "a WebSocket was refused"},
}

// knownAction reports whether rows of this version can have the action.
func knownAction(name string) bool {
	return slices.ContainsFunc(auditActions, func(a struct{ name, says string }) bool { return a.name == name })
}

// askedForNothing is the complaint about an action that is unknown and that no row has: "nobody did" must not be the answer to a typing
// error. Rows that are there count, whatever their action is called.
func (r *remote) askedForNothing(ctx context.Context, q url.Values) error {
	action := q.Get("action")
	if action == "" || knownAction(action) {
		return nil
	}
	err := r.pages(ctx, "/v1/audit", maps.Clone(q), func(raw json.RawMessage) error {
		var page struct{ Rows []json.RawMessage }
		if err := json.Unmarshal(raw, &page); err != nil || len(page.Rows) == 0 {
			return err
		}
		return errEnough
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	if err != nil {
		return err
	}
	names := make([]string, len(auditActions))
	for i, a := range auditActions {
		names[i] = a.name
	}
	return usagef("no row has the action %q%s\nknown are %s", action, meant(action, names), strings.Join(names, ", "))
}
