package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/pawlhost/pawl/host"
)

// doubts are what looks like a mistake in an agent that the host has accepted: names that mean nothing there today. A plugin may
// be installed later, so they are warnings; but a rule with a typing error stops nothing, and nobody would notice.
func (r *remote) doubts(ctx context.Context, doc json.RawMessage) ([]string, error) {
	var agent host.AgentDoc
	var stops map[string]json.RawMessage
	if err := json.Unmarshal(doc, &agent); err != nil {
		return nil, err
	}
	if len(agent.InterruptOn) > 0 {
		if err := json.Unmarshal(agent.InterruptOn, &stops); err != nil {
			return nil, err
		}
	}
	var installed struct{ Tools []host.Tool }
	if err := r.call(ctx, http.MethodGet, "/v1/tools", nil, &installed); err != nil {
		return nil, err
	}
	return doubts(agent.Tools, slices.Sorted(maps.Keys(stops)), installed.Tools), nil
}

func doubts(tools, stops []string, installed []host.Tool) (list []string) {
	var names []string
	covered := map[string]bool{} // what an entry of interrupt_on may be called to cover a tool of the agent
	byBare := map[string][]string{}
	for _, t := range installed {
		names = append(names, t.Name)
		bare := strings.TrimPrefix(t.Name, t.Plugin+".")
		byBare[bare] = append(byBare[bare], t.Name)
	}
	for _, name := range tools {
		i := slices.Index(names, name)
		switch {
		case i >= 0:
			bare := strings.TrimPrefix(name, installed[i].Plugin+".")
			covered[bare], covered[installed[i].Plugin+"."+bare] = true, true
		case len(byBare[name]) > 1:
			covered[name] = true
			list = append(list, fmt.Sprintf("several plugins have a tool %q, so that its calls fail: say which one, %s", name, strings.Join(byBare[name], " or ")))
		default:
			covered[name] = true
			list = append(list, fmt.Sprintf("this host has no tool %q, so that its calls fail%s", name, meant(name, names)))
		}
	}
	for _, name := range stops {
		if !covered[name] {
			list = append(list, fmt.Sprintf("interrupt_on names %q, which is no tool of this agent, so that it stops nothing%s", name, meant(name, tools)))
		}
	}
	return list
}

// meant is a question for the nearest of some names, if one is near.
func meant(name string, names []string) string {
	best, far := "", 3
	for _, n := range names {
		if d := distance(name, n); d < far {
			best, far = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", best)
}

// distance is how many letters one has to insert, drop or replace to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := left
			if a[i] != b[j] {
				d++
			}
			left = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
