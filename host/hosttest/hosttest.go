// Package hosttest gives tests a ready host: the reference store (or any other), the real policy, Go-function tools beside the
// bundled ones, real planners, and a clock that only the test moves. It is for test code only.
package hosttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/planner"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// Func is a tool written in Go.
type Func func(ctx context.Context, s *plugins.Session) error

// Options change what New makes. The zero value is fine.
type Options struct {
	// Store is used instead of a fresh memstore; the test closes it.
	Store store.Store
	// Tools are further Go functions by name; a name that begins with "read_" is declared effects: read.
	Tools map[string]Func
	// Schemas are input schemas by tool, instead of those that New gives.
	Schemas map[string]string
	// Describe is added to every tool's description: the same tools with other bytes, as after an update of their plugin.
	Describe string
	// Clock is used instead of a fresh one, for a host that is restarted.
	Clock *Clock
	// Rules is the people's policy folder.
	Rules fs.FS
	// Bundled are WebAssembly plugins to load; Cache is a folder that keeps them compiled.
	Bundled fs.FS
	Cache   string
	// Idle makes a host that drives nothing until the test calls Start.
	Idle bool
	// Config is changed before the host is made.
	Config func(*host.Config)
}

// Host is a host under test.
type Host struct {
	*host.Host
	t       testing.TB
	Store   store.Store
	Plugins *plugins.Set
	Policy  *policy.Live
	Clock   *Clock
	Log     *Log
	// Ran counts what the built-in tools did, by call id: see Calls.
	Ran *Calls

	stop context.CancelFunc
	done chan struct{}
}

// HostKey is the key that test hosts make their tokens with.
const HostKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

// New makes a host and, unless it is idle, starts it. It is stopped when the test ends. Beside the options' tools it has:
// echo (returns its arguments), read_echo (the same, effects: read), write_file, edit_file, read_file (over its key-value space), fail,
// ask (pauses with its arguments {reason, payload}), gated_write (pauses until the trusted flag is set).
func New(t testing.TB, o Options) *Host {
	t.Helper()
	ctx := context.Background()
	h := &Host{t: t, Store: o.Store, Clock: NewClock(), Log: &Log{}, Ran: &Calls{}}
	if h.Store == nil {
		h.Store = memstore.New()
		t.Cleanup(func() { h.Store.Close() })
	}
	if o.Clock != nil {
		h.Clock = o.Clock
	}
	var err error
	if h.Policy, err = policy.Open(ctx, policy.Options{Rules: o.Rules, Deadline: 5 * time.Second}, h.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	if h.Plugins, err = plugins.Open(ctx, plugins.Options{Bundled: o.Bundled, CacheDir: o.Cache}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Plugins.Close(ctx) })
	tools := builtins()
	for n, f := range o.Tools {
		tools[n] = f
	}
	if o.Bundled != nil { // the real files plugin is there
		delete(tools, "write_file")
		delete(tools, "edit_file")
		delete(tools, "read_file")
	}
	m := plugins.Manifest{ABI: abi.Version, Name: "test", Permissions: plugins.Permissions{KV: abi.KVReadWrite}}
	for _, n := range slices.Sorted(maps.Keys(tools)) { // in one order, so that a restarted host has the same digests
		effects := abi.EffectsWrite
		if strings.HasPrefix(n, "read_") {
			effects = abi.EffectsRead
		}
		schema := `{"type":"object"}`
		switch n {
		case "write_file":
			schema = `{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"}},"required":["path","content"],"additionalProperties":false}`
		case "transfer":
			schema = `{"type":"object","properties":{"amount":{"type":"number"},"currency":{"type":"string","default":"EUR"},"to":{"type":"string"}},"required":["amount"],"additionalProperties":false}`
		}
		if own, ok := o.Schemas[n]; ok {
			schema = own
		}
		m.Tools = append(m.Tools, plugins.ToolSpec{Name: n, Description: n + o.Describe, InputSchema: json.RawMessage(schema), Effects: effects})
	}
	if err := h.Plugins.AddFunc(m, func(ctx context.Context, s *plugins.Session) error {
		h.Ran.add(s.Tool().Bare, s.Arguments())
		return tools[s.Tool().Bare](ctx, s)
	}); err != nil {
		t.Fatal(err)
	}
	keys, err := host.ParseTokenKeys(HostKey)
	if err != nil {
		t.Fatal(err)
	}
	c := host.Config{
		Store: h.Store, Policy: h.Policy, Plugins: h.Plugins, Planners: planner.All(), HostKeys: keys, Workers: 8,
		Now: h.Clock.Now, Log: slog.New(slog.NewTextHandler(h.Log, &slog.HandlerOptions{Level: slog.LevelDebug})), Grace: time.Second,
		SweepInterval: time.Hour, RulesInterval: time.Hour,
	}
	if o.Config != nil {
		o.Config(&c)
	}
	if h.Host, err = host.New(ctx, c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.checkAudit) // of every test, when its host has ended
	t.Cleanup(h.Stop)
	if !o.Idle {
		h.Start()
	}
	return h
}

// Start runs the host.
func (h *Host) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	h.stop, h.done = cancel, make(chan struct{})
	go func() {
		defer close(h.done)
		if err := h.Run(ctx); err != nil {
			h.t.Errorf("host: %v", err)
		}
	}()
}

// Stop ends the host as SIGTERM does, and waits.
func (h *Host) Stop() {
	if h.stop == nil {
		return
	}
	h.stop()
	<-h.done
	h.stop = nil
}

// The actors that tests use.
var (
	Owner       = host.Actor{Tenant: "demo", ID: "owner", Kind: host.KindUser, Roles: []string{host.RoleOwner}}
	Admin       = host.Actor{Tenant: "demo", ID: "admin", Kind: host.KindUser, Roles: []string{host.RoleAdmin}}
	Member      = host.Actor{Tenant: "demo", ID: "member", Kind: host.KindUser, Roles: []string{host.RoleMember}}
	Member2     = host.Actor{Tenant: "demo", ID: "member2", Kind: host.KindUser, Roles: []string{host.RoleMember}}
	Service     = host.Actor{Tenant: "demo", ID: "bot", Kind: host.KindService, Roles: []string{host.RoleAdmin, host.RoleOwner}}
	OtherAdmin  = host.Actor{Tenant: "other", ID: "other_admin", Kind: host.KindUser, Roles: []string{host.RoleAdmin}}
	OtherMember = host.Actor{Tenant: "other", ID: "other_member", Kind: host.KindUser, Roles: []string{host.RoleMember}}
)

// Agent saves an agent in the demo tenant; doc is JSON.
func (h *Host) Agent(name, doc string) {
	h.t.Helper()
	if _, _, err := h.SaveAgent(context.Background(), Owner, name, Body(json.RawMessage(doc))); err != nil {
		h.t.Fatalf("save agent %s: %v", name, err)
	}
}

// Script saves an agent whose planner plays the turns (JSON), with every tool there is.
func (h *Host) Script(name, turns, interruptOn string) {
	h.t.Helper()
	var tools []string
	for _, t := range h.Plugins.Tools() {
		tools = append(tools, t.Name)
	}
	b, err := json.Marshal(tools)
	if err != nil {
		h.t.Fatal(err)
	}
	if interruptOn == "" {
		interruptOn = "{}"
	}
	h.Agent(name, fmt.Sprintf(`{"planner":{"kind":"script","turns":%s},"tools":%s,"interrupt_on":%s}`, turns, b, interruptOn))
}

// Create starts a run of an agent.
func (h *Host) Create(a host.Actor, agent string) host.Run {
	h.t.Helper()
	r, err := h.CreateRun(context.Background(), a, host.Idempotency{}, Body(host.NewRun{Agent: agent}))
	if err != nil {
		h.t.Fatalf("create a run of %s: %v", agent, err)
	}
	return r
}

// Settled waits until the run stops, ends or waits for its client.
func (h *Host) Settled(id string) host.Run {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := h.WaitRun(ctx, Owner, id)
	if err != nil {
		h.t.Fatalf("wait for run %s: %v", id, err)
	}
	if ctx.Err() != nil {
		h.t.Fatalf("run %s is still %s after a minute", id, r.State)
	}
	return r
}

// DecideAll gives every pending approval of the run the same decision.
func (h *Host) DecideAll(a host.Actor, r host.Run, kind string) (host.Run, error) {
	var ds []host.Decision
	for _, ap := range r.Pause.Approvals {
		d := host.Decision{ApprovalID: ap.ID, Kind: kind}
		if kind == "respond" {
			d.Value = json.RawMessage(`"the answer"`)
		}
		ds = append(ds, d)
	}
	return h.Decide(context.Background(), a, r.ID, host.Idempotency{}, Body(host.Answer{Decisions: ds}))
}

// Events reads the whole log of an ended run, as JSON objects.
func (h *Host) Events(id string) []map[string]any {
	h.t.Helper()
	var zero uint64
	_, head, s, err := h.WatchRun(context.Background(), Owner, id, &zero)
	if err != nil {
		h.t.Fatal(err)
	}
	defer s.Close()
	var out []map[string]any
	for uint64(len(out)) < head {
		evs, err := s.Next(context.Background())
		if err != nil {
			h.t.Fatal(err)
		}
		for _, e := range evs {
			var m map[string]any
			if err := json.Unmarshal(e.Data, &m); err != nil {
				h.t.Fatal(err)
			}
			out = append(out, m)
		}
	}
	return out
}

// AuditRows reads the whole audit log of a tenant.
func (h *Host) AuditRows(tenant string) []host.AuditRow {
	h.t.Helper()
	a := host.Actor{Tenant: tenant, ID: "auditor", Kind: host.KindUser, Roles: []string{host.RoleOwner}}
	var out []host.AuditRow
	f := host.AuditFilter{Limit: 200}
	for {
		rows, next, err := h.Audit(context.Background(), a, Body(f))
		if err != nil {
			h.t.Fatal(err)
		}
		out = append(out, rows...)
		if next == "" {
			return out
		}
		f.After = next
	}
}

// checkAudit holds the audit of each tenant against its hashes, whatever the test was about.
func (h *Host) checkAudit() {
	for _, tenant := range []string{"demo", "other"} {
		ctx := context.Background()
		head, err := host.ReadAuditHead(ctx, h.Store, tenant)
		if errors.Is(err, store.ErrClosed) {
			return // the test closed its store
		}
		check := host.AuditCheck{Tenant: tenant, Heads: []host.AuditHead{head}}
		e, eerr := host.ReadAudit(ctx, h.Store, tenant, host.AuditFilter{})
		if err = errors.Join(err, eerr); err != nil {
			h.t.Error(err)
			return
		}
		for {
			rows, err := e.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				h.t.Error(err)
				return
			}
			for _, row := range rows {
				if fault := check.Stored(row); fault != nil {
					h.t.Errorf("the audit of %s: %s", tenant, fault)
				}
			}
		}
		for _, fault := range check.Finish() {
			h.t.Errorf("the audit of %s: %s", tenant, fault)
		}
	}
}

// Body is a parsed request body.
func Body[T any](v T) host.Lazy[T] { return func() (T, error) { return v, nil } }

// Clock is a clock that only the test moves, in whole milliseconds.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock starts at a fixed moment.
func NewClock() *Clock { return &Clock{now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)} }

// Now is the moment.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Log keeps what a host logged, so that a test can search it for secrets.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is all that was logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Calls records the attempts of Go-function tools, in order: "tool arguments".
type Calls struct {
	mu   sync.Mutex
	list []string
}

func (c *Calls) add(tool string, args json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, tool+" "+string(args))
}

// All returns the attempts so far.
func (c *Calls) All() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.list...)
}

// Count returns how many attempts begin with prefix.
func (c *Calls) Count(prefix string) int {
	n := 0
	for _, s := range c.All() {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}
