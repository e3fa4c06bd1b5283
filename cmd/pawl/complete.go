package main

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

// What the shell offers for an argument or for a flag's value follows from its name in the usage: RUN, STATE, FOLDER. What only a host
// knows is asked of the host that PAWL_URL and PAWL_KEY name. Nothing of that may be noticed where no host is: no offer is an answer.

// patience bounds what a key press waits for.
const patience = time.Second

// offer finds what may stand in one place. given are the arguments before it.
type offer func(a *app, c *cobra.Command, given []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective)

// offers are by the name that the usage has; what is not here, such as a text or a time, gets none.
var offers = map[string]offer{
	"AGENT":        fromHost("/v1/agents", "agents", func(v host.Agent) (string, string) { return v.Name, "" }),
	"TOOL":         fromHost("/v1/tools", "tools", func(v host.Tool) (string, string) { return v.Name, v.Plugin }),
	"PRINCIPAL":    fromHost("/v1/principals", "principals", func(v host.Principal) (string, string) { return v.ID, v.Kind + ", " + strings.Join(v.Roles, ", ") }),
	"KEY":          fromHost("/v1/keys", "keys", keyOffer),
	"TENANT":       fromHost("/v1/tenants", "tenants", func(v host.Tenant) (string, string) { return v.Name, "" }),
	"RUN":          fromHost("/v1/runs?order=newest", "runs", runOffer),
	"APPROVAL":     fromHost("/v1/approvals?state=pending", "approvals", approvalOffer),
	"APPROVAL|RUN": approvalsAndRuns,
	"ANSWER":       answersOf,
	"STATE": words(string(store.RunQueued), string(store.RunRunning), string(store.RunAwaitingApproval), string(store.RunAwaitingInput),
		string(store.RunAwaitingEvent), string(store.RunAwaitingPlanner), string(store.RunSucceeded), string(store.RunFailed), string(store.RunCancelled)),
	"ROLE":   words(host.RoleOwner, host.RoleAdmin, host.RoleMember),
	"KIND":   words(host.KindUser+"\ta person", host.KindService+"\ta program, which never decides"),
	"LEVEL":  words("debug", "info", "warn", "error"),
	"ACTION": words(actionWords()...),
	"FILE":   plain(cobra.ShellCompDirectiveDefault),
	"FOLDER": plain(cobra.ShellCompDirectiveFilterDirs),
	"FILE.wasm": func(*app, *cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []cobra.Completion{"wasm"}, cobra.ShellCompDirectiveFilterFileExt
	},
}

// offerAll gives every command and flag below c what its usage asks for.
func (a *app) offerAll(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" { // takes no value
			return
		}
		name, _ := pflag.UnquoteUsage(f)
		_ = c.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, given []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return a.offered(c, name, nil, typed)
		})
	})
	if names := placeholders(c.Use); !c.HasSubCommands() && c.ValidArgsFunction == nil {
		c.ValidArgsFunction = func(c *cobra.Command, given []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(names) == 0 || len(given) >= len(names) && !strings.HasSuffix(names[len(names)-1], "…") && !strings.Contains(names[len(names)-1], "…|") {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			name := names[min(len(given), len(names)-1)]
			switch {
			case name == "NAME": // of an agent; of one that is to be made nothing is known
				name = "AGENT"
			case strings.HasPrefix(name, "APPROVAL="):
				name = "ANSWER"
			case c.Parent().Name() == "plugin" && name == "TOOL": // of a file, not of a host
				name = ""
			}
			return a.offered(c, strings.ReplaceAll(name, "…", ""), given, typed)
		}
	}
	for _, sub := range c.Commands() {
		a.offerAll(sub)
	}
}

// placeholders are the names of a command's arguments, as its usage has them.
func placeholders(use string) (names []string) {
	for _, word := range strings.Fields(use)[1:] {
		if word == "|" {
			break
		}
		names = append(names, strings.Trim(word, "[]"))
	}
	return names
}

func (a *app) offered(c *cobra.Command, name string, given []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	find := offers[name]
	if find == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, directive := find(a, c, given, typed)
	if directive != cobra.ShellCompDirectiveFilterFileExt {
		list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !strings.HasPrefix(s, typed) })
	}
	if len(list) == 0 {
		directive &^= cobra.ShellCompDirectiveKeepOrder
	}
	return list, directive
}

func words(list ...string) offer {
	return func(*app, *cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

func plain(d cobra.ShellCompDirective) offer {
	return func(*app, *cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nil, d
	}
}

func actionWords() []string {
	list := make([]string, len(auditActions))
	for i, a := range auditActions {
		list[i] = a.name + "\t" + a.says
	}
	return list
}

func keyOffer(v host.Key) (string, string) {
	if v.RevokedAt != nil {
		return "", ""
	}
	return v.ID, "of " + v.Principal
}

func runOffer(v host.Run) (string, string) { return v.ID, v.Agent + ", " + string(v.State) }

func approvalOffer(v host.Approval) (string, string) { return v.ID, v.Tool + ", agent " + v.Agent }

// fromHost offers one page of a list: what is longer than that is not chosen from a menu.
func fromHost[T any](path, member string, show func(T) (id, note string)) offer {
	return func(a *app, c *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var list []cobra.Completion
		for _, v := range askHost[T](a, c, path, member) {
			if id, note := show(v); !slices.Contains(given, id) {
				list = add(list, id, note)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// add adds an offer, unless a shell would make something else of it. A note is what strangers wrote, and is made visible.
func add(list []cobra.Completion, id, note string) []cobra.Completion {
	if id == "" || visible(id) != id || strings.ContainsAny(id, " \t$`'\"") {
		return list
	}
	return append(list, cobra.CompletionWithDesc(id, visible(clip(note, 80))))
}

// askHost reads a list of the host, or nothing: without a key, without a host, after patience, on a folder.
func askHost[T any](a *app, c *cobra.Command, path, member string) (list []T) {
	if a.load(c) != nil || a.data != "" {
		return nil
	}
	r, err := a.remote()
	if err != nil {
		return nil
	}
	r.Retries = 0
	ctx, cancel := context.WithTimeout(cmp.Or(c.Context(), context.Background()), patience)
	defer cancel()
	path, query, _ := strings.Cut(path, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil
	}
	if strings.Count(path, "/") == 2 { // /v1/things
		q.Set("limit", "100")
	}
	var page map[string]json.RawMessage
	if r.Do(ctx, http.MethodGet, path, q, nil, &page) != nil || json.Unmarshal(page[member], &list) != nil {
		return nil
	}
	return list
}

// approvalsAndRuns offers what waits: approvals, and the runs that they hold up. A run is named alone, approvals may be several.
func approvalsAndRuns(a *app, c *cobra.Command, given []string, _ string) (list []cobra.Completion, d cobra.ShellCompDirective) {
	d = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	if len(given) > 0 && strings.HasPrefix(given[0], "run_") {
		return nil, d
	}
	var runs []string
	open := askHost[host.Approval](a, c, "/v1/approvals?state=pending", "approvals")
	run := "" // of those that are there already
	for _, p := range open {
		if slices.Contains(given, p.ID) {
			run = p.RunID
		}
	}
	for _, p := range open {
		if slices.Contains(given, p.ID) || run != "" && p.RunID != run {
			continue
		}
		id, note := approvalOffer(p)
		list = add(list, id, note)
		if len(given) == 0 && !slices.Contains(runs, p.RunID) {
			runs = append(runs, p.RunID)
		}
	}
	for _, id := range runs {
		list = add(list, id, "all that wait of this run")
	}
	return list, d
}

// answersOf offers the answers to the open approvals of the run that stands before them.
func answersOf(a *app, c *cobra.Command, given []string, typed string) (list []cobra.Completion, d cobra.ShellCompDirective) {
	d = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	if len(given) == 0 || strings.HasPrefix(typed, "@") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	for _, p := range pending(askHost[host.Approval](a, c, runPath(given[0])+"/approvals", "approvals")) {
		if slices.ContainsFunc(given, func(s string) bool { return strings.HasPrefix(s, p.ID+"=") }) {
			continue
		}
		for _, kind := range p.Allowed {
			switch kind {
			case "edit":
				kind += "="
			case "respond":
				kind += ":"
			}
			list = add(list, p.ID+"="+kind, p.Tool)
		}
	}
	return list, d
}
