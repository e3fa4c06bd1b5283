package hosttest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

// Answer decides a run as a wire client without an Idempotency-Key does.
func (h *Host) Answer(a host.Actor, run string, ds ...host.Decision) (host.Run, error) {
	return h.Decide(context.Background(), a, run, host.Idempotency{}, Body(host.Answer{Decisions: ds}))
}

// Batch creates a run of an agent with an external planner and a first batch: a JSON array of calls.
func (h *Host) Batch(a host.Actor, agent, calls string) host.Run {
	h.t.Helper()
	var cs []host.ProposedCall
	if err := json.Unmarshal([]byte(calls), &cs); err != nil {
		h.t.Fatal(err)
	}
	r, err := h.CreateRun(context.Background(), a, host.Idempotency{}, Body(host.NewRun{Agent: agent, Calls: cs}))
	if err != nil {
		h.t.Fatalf("create a run of %s with calls: %v", agent, err)
	}
	return r
}

// External saves an agent whose turns come from the client, with every tool there is.
func (h *Host) External(name, interruptOn string) {
	h.t.Helper()
	var tools []string
	for _, t := range h.Plugins.Tools() {
		tools = append(tools, t.Name)
	}
	b, err := json.Marshal(tools)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Agent(name, fmt.Sprintf(`{"planner":{"kind":"external"},"tools":%s,"interrupt_on":%s}`, b, interruptOn))
}

// Stored is everything that the store holds: items by key, and the logs of all runs, of the tenants' queues and audits, each
// with its text. It reads through the store's own iterator.
func (h *Host) Stored() map[string]string {
	h.t.Helper()
	all := map[string]string{}
	err := h.Store.View(context.Background(), func(rd store.Reader) error {
		logs := []store.Key{}
		err := rd.Scan(store.Range{}, func(it store.Item) bool {
			all[string(it.Key)] = fmt.Sprintf("%d %s", it.Version, it.Value)
			if e, err := it.Key.Elems(); err == nil && len(e) == 4 && e[0] == "t" && e[2] == "run" {
				logs = append(logs, it.Key.With("events"))
			}
			if e, err := it.Key.Elems(); err == nil && len(e) > 2 && e[0] == "t" {
				for _, name := range []string{"queue", "audit"} {
					if k := store.K("t", e[1], name); !slices.Contains(logs, k) {
						logs = append(logs, k)
					}
				}
			}
			return true
		})
		if err != nil {
			return err
		}
		for _, log := range logs {
			entries, err := rd.Log(log, 0, 0)
			if err != nil {
				return err
			}
			for _, e := range entries {
				all[fmt.Sprintf("%s#%06d", log, e.Seq)] = string(e.Data)
			}
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// Unchanged fails the test unless the store holds what it held, but for audit rows: a refusal is one.
func (h *Host) Unchanged(before map[string]string) {
	h.t.Helper()
	after := h.Stored()
	audit := func(k string, _ string) bool { return strings.Contains(k, "audit") }
	maps.DeleteFunc(after, audit)
	for _, k := range slices.Sorted(maps.Keys(before)) {
		if audit(k, "") {
			continue
		}
		if got, ok := after[k]; !ok || got != before[k] {
			h.t.Errorf("stored %q was\n %q\nand is\n %q", k, before[k], got)
		}
		delete(after, k)
	}
	for k, v := range after {
		h.t.Errorf("stored %q is new: %q", k, v)
	}
}

// Digest is the digest of canonical bytes, as approvals show it.
func Digest(canonical string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(canonical)))
}

// Context is the test's context.
func (h *Host) Context() context.Context { return h.t.Context() }
