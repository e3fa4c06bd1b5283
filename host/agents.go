package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/store"
)

// AgentDoc is an agent as it is saved.
type AgentDoc struct {
	Planner     json.RawMessage `json:"planner"`
	Tools       []string        `json:"tools"`
	InterruptOn json.RawMessage `json:"interrupt_on,omitempty"`
	// Permissions is the agent's preset: auto (the default: the rules decide alone), interactive (every call asks, whatever
	// interrupt_on lets pass), or locked (a tool that does not declare effects: read is denied).
	Permissions *Preset `json:"permissions,omitempty"`
	// ApprovalTTL bounds how long a pause of this agent's runs stays open; the host's bound still holds.
	ApprovalTTL string       `json:"approval_ttl,omitempty"`
	Limits      *AgentLimits `json:"limits,omitempty"`
	System      string       `json:"system,omitempty"`
	// Unattended says that nobody is there to ask: every stop is a refusal at once. Subagents are unattended with their agent.
	Unattended bool `json:"unattended,omitempty"`
	// Subagents are the agents that this one can give tasks to, by the tool task.
	Subagents []SubagentDoc `json:"subagents,omitempty"`
}

// SubagentDoc is an agent that lives inside another one's document. What it does not declare of interrupt_on it inherits.
type SubagentDoc struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	AgentDoc
}

// Preset is one of policy.Presets.
type Preset string

// AgentLimits bound one run.
type AgentLimits struct {
	// Turns is the number of turns (default 100, at most 10,000).
	Turns *int `json:"turns,omitempty"`
	// Active is the time that calls may run in all, such as "10m"; human time does not count. Default 1h.
	Active string `json:"active,omitempty"`
}

const (
	defaultTurns  = 100
	maxTurns      = 10_000
	defaultActive = time.Hour
	maxAgentTools = 256
	maxSubagents  = 32
)

var agentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// agentVersion is one immutable version of an agent, ready to run.
type agentVersion struct {
	name       string
	version    uint64
	doc        AgentDoc
	kind       string // of the planner
	interrupts *policy.Interrupts
	ttl        time.Duration // 0: the host's
	turns      int
	active     time.Duration
	unattended bool
	// presets are what policy sees as its permissions: its own and those of the agents it works for, none for auto.
	presets   []string
	subagents map[string]*agentVersion
}

// allTools are the names of the tools of the agent and of its subagents at every depth.
func (v *agentVersion) allTools() []string {
	names := slices.Clone(v.doc.Tools)
	for _, sub := range v.subagents {
		names = append(names, sub.allTools()...)
	}
	return names
}

func (v *agentVersion) plan(kind string, planners map[string]Planner) Planner {
	if kind == plannerDirect {
		return direct{}
	}
	return planners[kind]
}

// parseAgent checks a document's own shape. Arguments in it are not checked against tools: tools come and go.
func (h *Host) parseAgent(name string, raw json.RawMessage) (*agentVersion, error) {
	var d AgentDoc
	if err := ijson.Decode(raw, &d); err != nil {
		return nil, asInvalid("", err)
	}
	return h.makeAgent(name, d, nil, 0)
}

// makeAgent makes an agent of a checked document; parent is the agent that it is a subagent of, at that depth.
func (h *Host) makeAgent(name string, d AgentDoc, parent *agentVersion, depth int) (*agentVersion, error) {
	if string(d.InterruptOn) == "null" {
		d.InterruptOn = nil // as if it were not there: an empty configuration would be looser than what a subagent inherits
	}
	v := &agentVersion{name: name, doc: d, turns: defaultTurns, active: defaultActive, unattended: d.Unattended}
	if d.Planner == nil {
		return nil, invalid("/planner", `an agent needs a planner, such as {"kind":"external"}`)
	}
	var p struct {
		Kind *string `json:"kind"`
	}
	if err := json.Unmarshal(d.Planner, &p); err != nil || p.Kind == nil {
		return nil, invalid("/planner/kind", "name the kind of planner: script or external")
	}
	v.kind = *p.Kind
	planner, ok := h.planners[v.kind]
	if !ok {
		return nil, invalid("/planner/kind", "no planner of kind %q; choose script or external", v.kind)
	}
	if err := planner.Check(d.Planner); err != nil {
		return nil, asInvalid("/planner", err)
	}
	if d.Tools == nil {
		return nil, invalid("/tools", "list the tools of the agent, [] for none; GET /v1/tools shows what is installed")
	}
	if len(d.Tools) > maxAgentTools {
		return nil, invalid("/tools", "at most %d tools", maxAgentTools)
	}
	for i, t := range d.Tools {
		if t == "" || len(t) > 129 || slices.Contains(d.Tools[:i], t) {
			return nil, invalid(fmt.Sprintf("/tools/%d", i), "a tool's name, each once")
		}
	}
	var err error
	if parent != nil && d.InterruptOn == nil {
		v.interrupts = parent.interrupts
	} else if v.interrupts, err = h.policy.Compile(d.InterruptOn); err != nil {
		return nil, asInvalid("/interrupt_on", err)
	}
	if p := d.Permissions; p != nil && !slices.Contains(policy.Presets(), string(*p)) {
		return nil, invalid("/permissions", "%q is no preset; choose %s", clip(string(*p), 64), strings.Join(policy.Presets(), ", "))
	}
	if d.ApprovalTTL != "" {
		if v.ttl, err = positive(d.ApprovalTTL); err != nil {
			return nil, invalid("/approval_ttl", "%v", err)
		}
	}
	if l := d.Limits; l != nil {
		if l.Turns != nil {
			if v.turns = *l.Turns; v.turns < 1 || v.turns > maxTurns {
				return nil, invalid("/limits/turns", "between 1 and %d", maxTurns)
			}
		}
		if l.Active != "" {
			if v.active, err = positive(l.Active); err != nil {
				return nil, invalid("/limits/active", "%v", err)
			}
		}
	}
	if p := d.Permissions; p != nil && *p != policy.PresetAuto {
		v.presets = []string{string(*p)}
	}
	if parent != nil {
		v.presets = union(parent.presets, v.presets)
		if v.kind == "external" {
			return nil, invalid("/planner/kind", "a subagent plans in the host; its agent may be external, it may not")
		}
		v.unattended = v.unattended || parent.unattended
		if parent.ttl > 0 && (v.ttl == 0 || parent.ttl < v.ttl) {
			v.ttl = parent.ttl
		}
	}
	return v, h.addSubagents(v, depth)
}

func (h *Host) addSubagents(v *agentVersion, depth int) error {
	if len(v.doc.Subagents) > maxSubagents {
		return invalid("/subagents", "at most %d subagents", maxSubagents)
	}
	v.subagents = map[string]*agentVersion{}
	for i, d := range v.doc.Subagents {
		at := fmt.Sprintf("/subagents/%d", i)
		switch {
		case depth == maxDepth:
			return invalid(at, "subagents nest at most %d deep", maxDepth)
		case !agentName.MatchString(d.Name):
			return invalid(at+"/name", "a subagent's name has 1 to 128 letters, digits, dots, hyphens and underscores, and begins with a letter or digit")
		case v.subagents[d.Name] != nil:
			return invalid(at+"/name", "two subagents are called %q", d.Name)
		case len(d.Description) > maxErrorText:
			return invalid(at+"/description", "at most %d bytes", maxErrorText)
		}
		sub, err := h.makeAgent(d.Name, d.AgentDoc, v, depth+1)
		if err != nil {
			return asInvalid(at, err)
		}
		v.subagents[d.Name] = sub
	}
	return nil
}

func positive(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New(`a duration above zero, such as "90s" or "24h"`)
	}
	return d, nil
}

// asInvalid gives an error of a leaf the code and the place that the client knows.
func asInvalid(at string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Pointer = at + e.Pointer
		return e
	}
	if e, ok := errors.AsType[*ijson.Error](err); ok {
		return invalid(at+e.Pointer, "%s", e.Detail)
	}
	if e, ok := errors.AsType[*policy.InvalidError](err); ok {
		return invalid(at+e.Pointer, "%s", e.Detail)
	}
	return err
}

// agentCache keeps versions that are ready to run. They are immutable, so nothing is ever invalidated, only dropped, the oldest
// first, when they weigh too much.
type agentCache struct {
	mu     sync.Mutex
	m      map[store.Key]*agentVersion
	order  []store.Key
	weight int
}

// agentCacheWeight is about the bytes that the cache may take.
const agentCacheWeight = 64 << 20

// weigh estimates a version: its document, and its compiled rules, which take some three hundred times their text.
func (v *agentVersion) weigh() int {
	n := 4<<10 + len(v.doc.Planner) + len(v.doc.System) + 300*len(v.doc.InterruptOn)
	for _, sub := range v.subagents {
		n += sub.weigh()
	}
	return n
}

func (c *agentCache) get(k store.Key) *agentVersion {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m[k]
}

func (c *agentCache) put(k store.Key, v *agentVersion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[store.Key]*agentVersion{}
	}
	if c.m[k] != nil {
		return // two requests compiled it at the same time
	}
	c.m[k] = v
	c.order = append(c.order, k)
	for c.weight += v.weigh(); c.weight > agentCacheWeight && len(c.order) > 1; {
		old := c.order[0]
		c.order = c.order[1:]
		c.weight -= c.m[old].weigh()
		delete(c.m, old)
	}
}

// agentVersion returns a version that a run pinned.
func (h *Host) agentVersion(ctx context.Context, tenant, name string, version uint64) (*agentVersion, error) {
	k := agentVersionKey(tenant, name, version)
	if v := h.agents.get(k); v != nil {
		return v, nil
	}
	var b store.Body
	if err := h.store.View(ctx, func(rd store.Reader) error { return get(rd, k, &b) }); err != nil {
		return nil, fmt.Errorf("version %d of agent %s: %w", version, name, err)
	}
	raw, err := h.text(ctx, tenant, b)
	if err != nil {
		return nil, err
	}
	v, err := h.parseAgent(name, raw)
	if err != nil {
		// A version that no longer compiles cannot run, and must not look like a client's mistake.
		return nil, fmt.Errorf("version %d of agent %s: %s", version, name, err.Error())
	}
	v.version = version
	h.agents.put(k, v)
	return v, nil
}

// currentAgent returns the version that a new run pins.
func (h *Host) currentAgent(ctx context.Context, tenant, name string) (*agentVersion, error) {
	head, _, err := h.agentHead(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	if head == nil || head.Deleted {
		return nil, errf(CodeNotFound, "no agent %q; GET /v1/agents lists them, PUT /v1/agents/{name} saves one", clip(name, 128))
	}
	return h.agentVersion(ctx, tenant, name, head.Version)
}

// agentHead reads an agent's head, nil when it was never saved.
func (h *Host) agentHead(ctx context.Context, tenant, name string) (head *store.Agent, version uint64, err error) {
	err = h.store.View(ctx, func(rd store.Reader) error {
		it, err := rd.Get(agentsKey(tenant).With(name))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		head, version = new(store.Agent), it.Version
		return store.Decode(it.Value, head)
	})
	return head, version, err
}

func agentResource(tenant, name string) policy.Resource {
	return policy.Resource{Kind: "agent", Tenant: tenant, ID: name, Agent: name}
}

// Agents lists the tenant's agents by name.
func (h *Host) Agents(ctx context.Context, a Actor, p Page) ([]Agent, string, error) {
	if err := h.allow(ctx, a, "agent.list", agentResource(a.Tenant, "")); err != nil {
		return nil, "", h.refused(ctx, a, "agent.list", "tenant", a.Tenant, err)
	}
	names, next, err := h.page(ctx, p, agentsKey(a.Tenant), false, func(_ store.Reader, it store.Item) (string, error) {
		var head store.Agent
		if err := store.Decode(it.Value, &head); err != nil || head.Deleted {
			return "", err
		}
		return it.Key.Last(), nil
	})
	if err != nil {
		return nil, "", err
	}
	out := []Agent{}
	size := 0
	for i, n := range names {
		if v, err := h.agentView(ctx, a.Tenant, n); err == nil {
			out = append(out, v)
			if size += len(v.Planner) + len(v.InterruptOn) + len(v.System); size > maxPageBytes && i < len(names)-1 {
				return out, pageCursor(string(store.K(n))), nil
			}
		} else if !isCode(err, CodeNotFound) {
			return nil, "", err
		}
	}
	return out, next, nil
}

// GetAgent returns an agent's current version.
func (h *Host) GetAgent(ctx context.Context, a Actor, name string) (Agent, error) {
	v, err := h.agentView(ctx, a.Tenant, name)
	if err != nil {
		return Agent{}, err
	}
	if err := h.allow(ctx, a, "agent.read", agentResource(a.Tenant, name)); err != nil {
		return Agent{}, h.refused(ctx, a, "agent.read", "agent", name, err)
	}
	return v, nil
}

func (h *Host) agentView(ctx context.Context, tenant, name string) (Agent, error) {
	head, _, err := h.agentHead(ctx, tenant, name)
	if err != nil {
		return Agent{}, err
	}
	if head == nil || head.Deleted {
		return Agent{}, errNotFound("agent")
	}
	v, err := h.agentVersion(ctx, tenant, name, head.Version)
	if err != nil {
		return Agent{}, err
	}
	return Agent{Name: name, Version: head.Version, UpdatedAt: Time(head.UpdatedAt), UpdatedBy: head.UpdatedBy, AgentDoc: v.doc}, nil
}

// SaveAgent makes the next version of an agent. Runs keep the version they began with.
func (h *Host) SaveAgent(ctx context.Context, a Actor, name string, body Lazy[json.RawMessage]) (Agent, bool, error) {
	if err := h.allow(ctx, a, "agent.save", agentResource(a.Tenant, name)); err != nil {
		return Agent{}, false, h.refused(ctx, a, "agent.save", "agent", name, err)
	}
	raw, err := body()
	if err != nil {
		return Agent{}, false, err
	}
	if !agentName.MatchString(name) {
		return Agent{}, false, invalid("", "an agent's name has 1 to 128 letters, digits, dots, hyphens and underscores, and begins with a letter or digit")
	}
	if raw, err = ijson.Parse(raw); err != nil {
		return Agent{}, false, asInvalid("", err)
	}
	v, err := h.parseAgent(name, raw)
	if err != nil {
		return Agent{}, false, err
	}
	doc, err := h.body(ctx, a.Tenant, raw)
	if err != nil {
		return Agent{}, false, err
	}
	for {
		head, version, err := h.agentHead(ctx, a.Tenant, name)
		if err != nil {
			return Agent{}, false, err
		}
		now := h.now()
		created := head == nil || head.Deleted
		next := store.Agent{Version: 1, CreatedAt: now, UpdatedAt: now, UpdatedBy: a.ID}
		if head != nil {
			next.Version = head.Version + 1
			if !created {
				next.CreatedAt = head.CreatedAt
			}
		}
		var c store.Change
		c.Require(agentsKey(a.Tenant).With(name), version)
		c.Put(agentsKey(a.Tenant).With(name), store.Encode(next))
		c.Put(agentVersionKey(a.Tenant, name, next.Version), store.Encode(doc))
		row := auditRecord{At: now, Trace: telemetry.TraceID(ctx), ActorKind: a.Kind, Actor: a.ID, Action: "agent.save", TargetKind: "agent", Target: name, Outcome: outcomeOK}
		row.Detail = mustJSON(map[string]any{"version": next.Version})
		addRow(&c, a.Tenant, row)
		v.removals("", func(subagent, stop string) {
			detail := map[string]any{"version": next.Version, "stop": stop}
			if subagent != "" {
				detail["subagent"] = subagent
			}
			row.Action, row.Detail = "agent.default_removed", mustJSON(detail)
			addRow(&c, a.Tenant, row)
			h.log.Warn("an agent removes a default stop", "tenant", a.Tenant, "agent", name, "subagent", subagent, "version", next.Version, "stop", stop, "by", a.ID)
		})
		if _, err := h.write(ctx, &c); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			return Agent{}, false, err
		}
		saved := Agent{Name: name, Version: next.Version, UpdatedAt: Time(now), UpdatedBy: a.ID, AgentDoc: v.doc}
		saved.Warnings = h.doubts(v, "")
		return saved, created, nil
	}
}

// removals tells each default stop that the agent, or one of its subagents with an interrupt_on of its own, removes.
func (v *agentVersion) removals(path string, each func(subagent, stop string)) {
	if path == "" || v.doc.InterruptOn != nil {
		for _, stop := range v.interrupts.Removed() {
			each(path, stop)
		}
	}
	for _, d := range v.doc.Subagents {
		v.subagents[d.Name].removals(strings.TrimPrefix(path+"/"+d.Name, "/"), each)
	}
}

// doubts are what a save accepts and its author should look at: tools come and go, so a name that nothing has is no error, but a
// misspelt one in interrupt_on stops nothing, and whoever writes an entry for a tool may not know that it takes the place of the defaults. at is the agent's place in the document.
func (h *Host) doubts(v *agentVersion, at string) (out []string) {
	d := v.doc
	doubt := func(format string, args ...any) { out = append(out, at+fmt.Sprintf(format, args...)) }
	for _, name := range d.Tools {
		t, ok := h.plugins.Lookup(name)
		switch {
		case !ok:
			doubt("tools: no tool %q is installed; calls of it end with unknown_tool", name)
		case slices.Contains(v.presets, policy.PresetLocked) && t.Effects != abi.EffectsRead:
			doubt("permissions: the agent is locked and the tool %q does not only read; every call of it is denied", name)
		case isTask(t) && len(v.subagents) == 0:
			doubt("tools: the agent has the tool %q and no subagents to give tasks to", name)
		}
	}
	if len(v.subagents) > 0 && !slices.ContainsFunc(d.Tools, h.isTaskName) {
		doubt("subagents: the agent does not list the tool %s, with which it would give them work", taskTool)
	}
	var on map[string]json.RawMessage
	_ = json.Unmarshal(d.InterruptOn, &on) // it was compiled: an object, or absent
	known := map[string]bool{}
	h.stoppable(v, known)
	for _, name := range slices.Sorted(maps.Keys(on)) {
		if !known[name] {
			doubt("interrupt_on: no tool of this agent, or of a subagent that inherits from it, is called %q; the entry stops nothing", name)
		}
	}
	if at == "" || d.InterruptOn != nil { // else what is inherited is told above
		for _, stop := range v.interrupts.Removed() {
			doubt("interrupt_on: the default stop of %s is gone; such calls run without asking anybody", stop)
		}
	}
	for i, sub := range d.Subagents {
		out = append(out, h.doubts(v.subagents[sub.Name], fmt.Sprintf("%ssubagents/%d: ", at, i))...)
	}
	return out
}

func (h *Host) isTaskName(name string) bool {
	t, ok := h.plugins.Lookup(name)
	return ok && isTask(t)
}

// stoppable collects the names that an entry of the agent's interrupt_on may have: of its tools, and of those of the subagents that
// inherit it.
func (h *Host) stoppable(v *agentVersion, names map[string]bool) {
	for _, name := range v.doc.Tools {
		names[name] = true
		if t, ok := h.plugins.Lookup(name); ok {
			names[t.Bare], names[t.Plugin+"."+t.Bare] = true, true
		}
	}
	for _, sub := range v.subagents {
		if sub.doc.InterruptOn == nil {
			h.stoppable(sub, names)
		}
	}
}

// DeleteAgent ends an agent for new runs; runs that pinned it go on. A later save continues its version numbers.
func (h *Host) DeleteAgent(ctx context.Context, a Actor, name string) error {
	for {
		head, version, err := h.agentHead(ctx, a.Tenant, name)
		if err != nil {
			return err
		}
		if head == nil || head.Deleted {
			return errNotFound("agent")
		}
		if err := h.allow(ctx, a, "agent.delete", agentResource(a.Tenant, name)); err != nil {
			return h.refused(ctx, a, "agent.delete", "agent", name, err)
		}
		next := *head
		next.Deleted, next.UpdatedAt, next.UpdatedBy = true, h.now(), a.ID
		var c store.Change
		c.Require(agentsKey(a.Tenant).With(name), version)
		c.Put(agentsKey(a.Tenant).With(name), store.Encode(next))
		addRow(&c, a.Tenant, auditRecord{
			At: next.UpdatedAt, Trace: telemetry.TraceID(ctx), ActorKind: a.Kind, Actor: a.ID, Action: "agent.delete", TargetKind: "agent", Target: name, Outcome: outcomeOK,
			Detail: mustJSON(map[string]any{"version": head.Version}),
		})
		if _, err := h.write(ctx, &c); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// Tools lists the installed tools by name. The cursor is the last name, in the opaque form of all cursors.
func (h *Host) Tools(ctx context.Context, a Actor, p Page) (out []Tool, next string, err error) {
	if err := h.allow(ctx, a, "tool.list", policy.Resource{Kind: "tool", Tenant: a.Tenant}); err != nil {
		return nil, "", h.refused(ctx, a, "tool.list", "tenant", a.Tenant, err)
	}
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	out = []Tool{}
	for _, t := range h.plugins.Tools() {
		if t.Name <= after {
			continue
		}
		if len(out) == p.limit() {
			return out, pageCursor(out[len(out)-1].Name), nil
		}
		out = append(out, Tool{
			Name: t.Name, Plugin: t.Plugin, Digest: t.Digest, Description: t.Description,
			InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, Effects: t.Effects,
		})
	}
	return out, "", nil
}

// Evaluate asks policy about a call and runs nothing.
func (h *Host) Evaluate(ctx context.Context, a Actor, body Lazy[Evaluation]) (json.RawMessage, error) {
	if err := h.allow(ctx, a, "policy.evaluate", policy.Resource{Kind: "policy", Tenant: a.Tenant}); err != nil {
		return nil, h.refused(ctx, a, "policy.evaluate", "tenant", a.Tenant, err)
	}
	req, err := body()
	if err != nil {
		return nil, err
	}
	if req.Agent == "" {
		return nil, invalid("/agent", "name the agent whose rules apply")
	}
	if req.Call.Tool == "" && req.Call.Arguments == nil {
		return nil, invalid("/call", "give the proposed call: tool and arguments")
	}
	if req.Call.Tool == "" {
		return nil, invalid("/call/tool", "name the tool of the proposed call")
	}
	agent, err := h.currentAgent(ctx, a.Tenant, req.Agent)
	if err != nil {
		return nil, err
	}
	by := EvalPrincipal{ID: a.ID, Kind: a.Kind, Roles: a.Roles}
	if req.Principal != nil {
		by = *req.Principal
	}
	if err := checkContext(req.ToolContext, a.Tenant, by.ID, ""); err != nil {
		return nil, err
	}
	f := &frame{agent: agent}
	for name := range strings.SplitSeq(req.Subagent, "/") {
		if req.Subagent == "" {
			break
		}
		sub := f.agent.subagents[name]
		if sub == nil {
			return nil, invalid("/subagent", "there is no subagent %q; name the path from the agent, such as research/fetch", clip(req.Subagent, 256))
		}
		f = &frame{Frame: store.Frame{Depth: f.Depth + 1, Subagent: name}, parent: f, agent: sub}
	}
	r := &run{agent: agent, frames: []*frame{f}, ctx: store.RunContext{
		Tools: h.pinTools(agent.allTools()), Kind: by.Kind, Roles: by.Roles, ToolContext: store.Body{Inline: req.ToolContext},
	}}
	r.Run = store.Run{Tenant: a.Tenant, Agent: req.Agent, AgentVersion: agent.version, CreatedBy: by.ID}
	c, args, err := h.resolve(ctx, r, f, req.Call, 0, new(int))
	if err != nil {
		return nil, err
	}
	ctx = h.policy.bind(ctx)
	out := map[string]any{"revision": h.policy.engine(ctx).Revision(), "agent_version": agent.version}
	if c.State == store.CallFinished {
		out["effect"], out["error"] = "deny", c.Error
		return mustJSON(out), nil
	}
	docs := h.gateCalls([]*store.Call{c}, []json.RawMessage{args})
	d := h.policy.Gate(ctx, f.agent.interrupts, h.gateInput(r, f, docs, 0, 1, store.History{}, req.ToolContext))
	out["effect"] = d.Effect
	out["rules"] = list(d.Rules)
	out["allowed_decisions"] = list(d.AllowedDecisions)
	out["reason"], out["title"], out["message"] = d.Reason, d.Title, d.Message
	out["reasons"] = list(d.Reasons)
	if d.Code != "" {
		out["code"] = d.Code
	}
	if d.TTL > 0 {
		out["ttl"] = d.TTL.String()
	}
	return mustJSON(out), nil
}

func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
