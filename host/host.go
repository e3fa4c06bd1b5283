package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// Config is what a Host is made of. Store, Policy, Plugins, Planners and HostKeys are required; the rest has defaults.
type Config struct {
	Store    store.Store
	Policy   *policy.Live
	Plugins  *plugins.Set
	Planners map[string]Planner
	// HostKeys make the resume tokens: the first signs, all verify.
	HostKeys []TokenKey
	// Workers is the number of runs driven at the same time; 0 means twice GOMAXPROCS, at least 8.
	Workers int
	// ApprovalTTL bounds how long a pause stays open (default 24h); agents and rules may make it shorter.
	ApprovalTTL time.Duration
	// SweepInterval is the time between two looks for what is due (default 30s).
	SweepInterval time.Duration
	// RulesInterval is the time between two looks whether the rules folder has changed (default 2s).
	RulesInterval time.Duration
	// Retention is how long a run is kept after its end (default 30 days).
	Retention time.Duration
	// Reserve and ReserveLow are marks of free bytes: below the first, new runs are refused; below the second, decisions
	// too (defaults 512 MiB and 64 MiB). A full disk kills the embedded store, so both are kept well above zero.
	Reserve, ReserveLow uint64
	// OperatorTenant is the tenant whose owners make, list and disable tenants; "": nobody does over the wire.
	OperatorTenant string
	// TokenTenant is the only tenant that tokens are for; empty: they name theirs.
	TokenTenant string
	// Tokens reads the bearer tokens of an identity provider; nil: API keys are the only credentials. Its errors: see ErrIssuerAway.
	Tokens func(ctx context.Context, token string) (Identity, error)
	// Grace is how long Run waits for calls in flight when it is told to stop (default 5s).
	Grace time.Duration
	Now   func() time.Time
	Rand  io.Reader
	Log   *slog.Logger
	// Telemetry is told of runs and approvals; the caller shuts it down after the host. Nil: metrics to be scraped, no spans.
	Telemetry *telemetry.Telemetry
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Store == nil, c.Policy == nil, c.Plugins == nil, c.Planners == nil:
		return c, errors.New("host: Store, Policy, Plugins and Planners are required")
	case len(c.HostKeys) == 0:
		return c, errors.New("host: HostKeys is empty; see ParseTokenKeys")
	case c.ApprovalTTL < 0, c.SweepInterval < 0, c.Retention < 0, c.Grace < 0, c.RulesInterval < 0:
		return c, errors.New("host: durations must not be negative")
	}
	setDefault(&c.Workers, max(8, 2*runtime.GOMAXPROCS(0)))
	setDefault(&c.ApprovalTTL, 24*time.Hour)
	setDefault(&c.SweepInterval, 30*time.Second)
	setDefault(&c.RulesInterval, 2*time.Second)
	setDefault(&c.Retention, 30*24*time.Hour)
	setDefault(&c.Reserve, 512<<20)
	setDefault(&c.ReserveLow, 64<<20)
	setDefault(&c.Grace, 5*time.Second)
	if c.ReserveLow > c.Reserve {
		return c, fmt.Errorf("host: ReserveLow (%d) is above Reserve (%d): decisions must pass longer than new runs", c.ReserveLow, c.Reserve)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Telemetry == nil {
		var err error
		if c.Telemetry, err = telemetry.New(telemetry.Options{}); err != nil {
			return c, err
		}
	}
	return c, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Host is the tool host. Its methods are safe for concurrent use.
type Host struct {
	store    store.Store
	policy   *rules
	plugins  *plugins.Set
	planners map[string]Planner
	keys     []TokenKey
	log      *slog.Logger
	clock    func() time.Time
	rand     io.Reader

	boot          string
	workers       int
	approvalTTL   time.Duration
	sweepInterval time.Duration
	rulesInterval time.Duration
	retention     time.Duration
	grace         time.Duration
	reserve, low  uint64

	queue     *queue
	order     []resumeStep   // resumeOrder, but in the tests that build the wrong ones
	guests    sync.WaitGroup // guests of parallel calls
	agents    agentCache
	events    eventCache
	progress  progressHub
	revoked   revocations
	keyUses   *keyUses
	people    peopleCache
	tokens    func(context.Context, string) (Identity, error)
	tokenFor  string // the only tenant that they are for; "": any
	operators string // the tenant of the operators, "" if none is
	stats     counters
	tally     tally
	telemetry *telemetry.Telemetry
	draining  atomic.Bool

	randMu        sync.Mutex
	refusalMu     sync.Mutex
	refusals      map[refusal]time.Time
	refusalCounts map[refusal]refusalCount
}

// New makes a host on an open store and queues what an older process left: the embedded store's directory lock proves every
// older boot dead, so no lease is waited for. Call Run to start the work.
func New(ctx context.Context, c Config) (*Host, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &Host{
		store: c.Store, policy: &rules{live: c.Policy, log: c.Log}, plugins: c.Plugins, planners: c.Planners, keys: c.HostKeys, log: c.Log, clock: c.Now, rand: c.Rand,
		workers: c.Workers, approvalTTL: c.ApprovalTTL, sweepInterval: c.SweepInterval, retention: c.Retention, grace: c.Grace,
		reserve: c.Reserve, low: c.ReserveLow, queue: newQueue(c.Workers), keyUses: newKeyUses(), order: resumeOrder, refusals: map[refusal]time.Time{}, refusalCounts: map[refusal]refusalCount{},
		operators: c.OperatorTenant, tokens: c.Tokens, tokenFor: c.TokenTenant,
	}
	h.doubtRules()
	if err := addTask(h.plugins); err != nil {
		return nil, err
	}
	h.telemetry = c.Telemetry
	if err := h.instrument(); err != nil {
		return nil, err
	}
	h.rulesInterval = c.RulesInterval
	h.boot = h.id("boot")
	if err := h.adoptPrincipals(ctx); err != nil {
		return nil, err
	}
	if err := h.recover(ctx); err != nil {
		return nil, err
	}
	return h, nil
}

// recover queues the live runs. It writes nothing: the claim of the driver does.
func (h *Host) recover(ctx context.Context) error {
	return h.store.View(ctx, func(rd store.Reader) error {
		var kerr error
		err := rd.Scan(store.Range{Prefix: store.K("live")}, func(it store.Item) bool {
			elems, err := it.Key.Elems()
			if err != nil || len(elems) != 3 {
				kerr = fmt.Errorf("%w: live index key %q", store.ErrCorrupt, it.Key)
				return false
			}
			h.queue.push(ref{tenant: elems[1].(string), id: elems[2].(string)})
			return true
		})
		return errors.Join(err, kerr)
	})
}

// Run drives the runs and sweeps what is due, until ctx is cancelled. Then it stops in two phases: no new work is begun, and
// calls in flight get the grace period before their guests are ended. It returns when every goroutine it started has.
func (h *Host) Run(ctx context.Context) error {
	hard, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(errStopping)
	var wg sync.WaitGroup
	for range h.workers {
		wg.Go(func() { h.work(ctx, hard) })
	}
	wg.Go(func() { h.sweepLoop(ctx) })
	wg.Go(func() { h.rulesLoop(ctx) })
	wg.Go(func() {
		if err := h.count(ctx); err != nil && ctx.Err() == nil {
			h.log.Error("runs and approvals could not be counted; their gauges are missing until the next start", "error", err)
		}
	})
	wg.Go(func() { h.tellKeyUses(ctx) })
	<-ctx.Done()
	h.draining.Store(true)
	timer := time.AfterFunc(h.grace, func() { kill(errStopping) })
	defer timer.Stop()
	wg.Wait()
	h.guests.Wait()
	return nil
}

// work takes runs until soft is cancelled.
func (h *Host) work(soft, hard context.Context) {
	for {
		if soft.Err() != nil {
			return
		}
		r, ctx, ok := h.queue.pop(hard)
		if !ok {
			select {
			case <-soft.Done():
				return
			case <-h.queue.wake:
			}
			continue
		}
		h.driveSafely(ctx, r)
	}
}

func (h *Host) driveSafely(ctx context.Context, r ref) {
	defer h.queue.done(r)
	defer func() {
		if p := recover(); p != nil {
			// A bug of the host must not take the other runs with it.
			h.log.Error("a run's driver panicked", "run_id", r.id, "tenant", r.tenant, "panic", fmt.Sprint(p), "stack", stack())
			h.giveUp(ctx, r)
		}
	}()
	switch err := h.drive(ctx, r); {
	case err == nil, errors.Is(err, store.ErrClosed):
	case errors.Is(err, store.ErrFull):
		// Nothing of the last attempt is visible; it is made again when there is room.
		h.log.Warn("a run waits for disk space", "run_id", r.id, "tenant", r.tenant)
		h.queue.park(r)
	default:
		h.log.Error("a run could not be driven", "run_id", r.id, "tenant", r.tenant, "error", err)
		h.giveUp(ctx, r)
	}
}

// giveUp ends a run that the host cannot drive, so that nobody waits for it for ever. If that fails too (the store is closed),
// the run stays live and the next boot tries again.
func (h *Host) giveUp(ctx context.Context, at ref) {
	ctx = context.WithoutCancel(ctx)
	r := &run{}
	err := h.store.View(ctx, func(rd store.Reader) error { return r.read(rd, at.tenant, at.id) })
	if err != nil || r.State != store.RunQueued && r.State != store.RunRunning {
		return
	}
	s := h.step(r)
	for c := range r.calls() {
		if c.State != store.CallFinished {
			s.fail(c, codeCancelled, "the host could not go on with this run")
		}
	}
	s.audit(auditRecord{ActorKind: KindSystem, Action: "run.give_up", TargetKind: "run", Target: r.ID, Outcome: outcomeError, Reason: string(CodeInternal)})
	s.end(store.RunFailed, nil, &store.Failure{Code: string(CodeInternal), Message: "the host could not go on with this run; its log says why"})
	if err := h.commit(ctx, s); err != nil {
		h.log.Error("a run could not be ended either", "run_id", at.id, "tenant", at.tenant, "error", err)
	}
}

var errStopping = errors.New("the host is stopping")

// stopping reports whether the host itself is ending the guests, as opposed to a cancelled run.
func stopping(guest context.Context) bool { return errors.Is(context.Cause(guest), errStopping) }

// now is the moment of a step: UTC, in milliseconds, as it is stored and shown.
func (h *Host) now() time.Time { return h.clock().UTC().Truncate(time.Millisecond) }

// id makes an id: a type prefix and a UUIDv7 (RFC 9562).
func (h *Host) id(prefix string) string {
	h.randMu.Lock()
	defer h.randMu.Unlock()
	u, err := uuid.NewV7FromReader(h.rand)
	if err != nil {
		panic("host: no randomness: " + err.Error())
	}
	return prefix + "_" + u.String()
}

func (h *Host) step(r *run) *step {
	s := r.step(h.now(), h.id)
	s.keep = h.retention
	return s
}

// Ready reports whether the host accepts new runs: nil, or an error that says what is wrong.
func (h *Host) Ready() error {
	if h.draining.Load() {
		return errf(CodeUnavailable, "the host is shutting down")
	}
	return h.space(h.reserve)
}

// space refuses when the store's medium has less than mark bytes left.
func (h *Host) space(mark uint64) error {
	if free, ok := h.store.Space(); ok && free < mark {
		return errf(CodeNoSpace, "the host is short of disk space; ask the operator to free some")
	}
	return nil
}
