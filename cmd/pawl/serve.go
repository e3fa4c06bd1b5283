package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/issuer"
	"github.com/pawlhost/pawl/host/planner"
	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/plugins/bundled"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// Ending takes two phases, each with its share of the ten seconds that a service manager gives: nothing new and goodbye to
// the clients, then the work in hand and the store. endBy is when the process ends whatever is left.
const (
	goodbye = 3 * time.Second
	grace   = 3 * time.Second // for calls in flight
	endBy   = 9500 * time.Millisecond
)

func (a *app) serveCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the host",
		Long: `Runs the host until SIGTERM or an interrupt. What a run waits for survives any end of the process.

The rules folder is looked at every --rules-interval, and at once on SIGHUP: what has changed and settled there takes effect as a
whole, what cannot be used leaves the old rules in force ("pawl policy status" says so).

Settings come from flags, then the environment (PAWL_DATA, PAWL_LISTEN, PAWL_APPROVAL_TTL, PAWL_STORE_RESERVE, … one for each
flag), then the file of --config (YAML or JSON, names with underscores; "plugin_config" has a map per plugin).

Resume tokens are signed with the key in PAWL_HOST_KEY: one or more of 64 hex digits, separated by commas; the first signs, all
verify. With --dev a key is made and kept in DATA/host.key.`,
		Example: `  pawl serve --dev --data ./data
  PAWL_HOST_KEY=$(openssl rand -hex 32) pawl serve --data /var/lib/pawl --rules /etc/pawl/rules --plugins /etc/pawl/plugins`,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.json {
				return usagef("serve has no use for --json: its log is text")
			}
			return a.serve(c.Context(), nil)
		},
	}
	a.hostFlags(c.Flags())
	return c
}

// serve runs the host until ctx is cancelled. add, for tests, adds Go-function tools.
func (a *app) serve(ctx context.Context, add func(*plugins.Set) error) error {
	log, err := a.logger()
	if err != nil {
		return err
	}
	if a.data == "" {
		return usagef("say where the database lives: --data DIR")
	}
	foreign := a.dev && a.foreign() // asked before anything is made
	if a.withStdin {
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(ctx)
		defer stop()
		go func() { // ends with the process
			_, _ = io.Copy(io.Discard, a.stdin)
			stop()
		}()
	}
	if a.getenv("GOMEMLIMIT") == "" && a.memory > 0 {
		debug.SetMemoryLimit(int64(a.memory))
	}
	if a.getenv("GOGC") == "" {
		debug.SetGCPercent(400) // the live heap is small and the limit above is what counts: collect less often
	}
	if a.cpuProfile != "" {
		f, err := os.Create(a.cpuProfile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	ln, err := a.bind(ctx)
	if err != nil {
		return err
	}
	defer ln.Close()
	told, err := a.openTelemetry(ctx, log)
	if err != nil {
		return err
	}
	b, err := a.build(ctx, log, told, add)
	if err != nil {
		return err
	}
	where := ""
	if a.dev {
		file := filepath.Join(a.data, devKeysFile)
		if err := devKeys(ctx, b.host, file); err != nil {
			return errors.Join(err, b.close(log))
		}
		where = "; keys in " + file
	}
	// Only from here on does anybody get an answer, so /readyz is 200 after the keys are there.
	fmt.Fprintf(a.stdout, "pawl listens on http://%s%s\n", ln.Addr(), where)
	v, _ := buildVersion()
	b.announce(log, "started", "version", v, "listen", ln.Addr().String(), "data", a.data, "rules", b.rules, "dev", a.dev)
	if foreign {
		log.Warn("--dev adds tenants with keys for trying to a database that it did not make, and takes the rate limits from all", "data", a.data)
	}
	a.warn(b, ln.Addr(), log)
	defer b.reloadOnHangup(ctx, a.rules, log)()
	err = b.serve(ctx, ln, log, api.Options{Dev: a.dev, Origins: a.origins, MetricsOpen: a.metrics || a.dev, Log: log, Version: v})
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// warn logs what is allowed and yet hardly meant.
func (a *app) warn(b *built, addr net.Addr, log *slog.Logger) {
	for _, name := range a.strangers() {
		log.Warn("a variable of the environment is no setting", "name", name)
	}
	if a.rules != "" && b.rules == 0 {
		log.Warn("the rules folder has no rules: no file NAME.rego", "rules", a.rules)
	}
	if tcp, ok := addr.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		log.Warn("plain HTTP, reachable from elsewhere: put a proxy with TLS before it", "listen", addr.String())
	}
	for _, name := range slices.Sorted(maps.Keys(a.pluginConfig)) {
		if !slices.ContainsFunc(b.plugins.Tools(), func(t *plugins.Tool) bool { return t.Plugin == name }) {
			log.Warn("plugin_config is for a plugin that is not there", "plugin", name)
		}
	}
	if err := b.host.Ready(); err != nil {
		log.Warn("new runs are refused for now", "reason", err)
	}
}

// reloadOnHangup reloads the rules at each SIGHUP, until the returned function is called. The host says in its log what came of it.
// Without a folder the signal is for nothing, and must not end the process: who sends it means to reload.
func (b *built) reloadOnHangup(ctx context.Context, rules string, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	hangups, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				if rules == "" {
					log.Info("SIGHUP: there is nothing to reload: the host was started without --rules")
					continue
				}
				b.host.ReloadRules(ctx)
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		cancel()
		<-done
	}
}

// announce logs what the host begins with, and the names that plugins take from each other: a tool that was "shout" is none any
// more once a second plugin has one, and the agents that name it must be told from which.
func (b *built) announce(log *slog.Logger, msg string, args ...any) {
	seen := map[string]bool{}
	shared := map[string][]string{}
	tools := b.plugins.Tools()
	for _, t := range tools {
		seen[t.Plugin] = true
		if t.Name != t.Bare {
			shared[t.Bare] = append(shared[t.Bare], t.Name)
		}
	}
	for _, bare := range slices.Sorted(maps.Keys(shared)) {
		log.Warn("several plugins have a tool of this name; agents must say which one", "tool", bare, "names", shared[bare])
	}
	log.Info(msg, append(args, "plugins", len(seen), "tools", len(tools))...)
}

// dbFolder is where the database of the data folder is.
func (a *app) dbFolder() string { return filepath.Join(a.data, "db") }

// foreign reports whether the data folder has a database that a host without --dev made.
func (a *app) foreign() bool {
	if _, err := os.Stat(a.dbFolder()); err != nil {
		return false
	}
	for _, name := range []string{devHostKeyFile, devKeysFile} {
		if _, err := os.Stat(filepath.Join(a.data, name)); err == nil {
			return false
		}
	}
	return true
}

// bind listens. For --dev it makes sure that nobody but this machine can connect, whatever the name resolves to.
func (a *app) bind(ctx context.Context) (net.Listener, error) {
	addr := a.listen
	if a.dev {
		name, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, usagef("--listen %s: %w: write ADDRESS:PORT", addr, err)
		}
		var ips []net.IPAddr
		if name != "" {
			if ips, err = net.DefaultResolver.LookupIPAddr(ctx, name); err != nil {
				return nil, fmt.Errorf("--listen %s: %w", addr, err)
			}
		}
		loopback := len(ips) > 0
		for _, ip := range ips {
			loopback = loopback && ip.IP.IsLoopback()
		}
		if !loopback {
			return nil, usagef("--dev listens on loopback only, and %s is reachable from elsewhere: use 127.0.0.1:8080, or leave --dev out", addr)
		}
		addr = net.JoinHostPort(ips[0].String(), port) // the address that was checked, not the name again
	}
	network := "tcp"
	if name, _, err := net.SplitHostPort(addr); err == nil && net.ParseIP(name).To4() != nil {
		network = "tcp4" // 0.0.0.0 asks for IPv4, and "tcp" would take IPv6 as well
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, network, addr)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("%w: is another pawl running? choose another address with --listen", err)
		}
		return nil, usagef("--listen %s: %w: write ADDRESS:PORT, such as 127.0.0.1:8080", a.listen, err)
	}
	return ln, nil
}

// built is a host with what it stands on.
type built struct {
	store     store.Store
	plugins   *plugins.Set
	telemetry *telemetry.Telemetry
	host      *host.Host
	rules     int            // files of the operator
	issuer    *issuer.Issuer // nil without one
}

// build opens the store and puts a host on it. The telemetry is the host's from here on, and ends with it; nil for none.
func (a *app) build(ctx context.Context, log *slog.Logger, told *telemetry.Telemetry, add func(*plugins.Set) error) (b *built, err error) {
	b = &built{telemetry: told}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close(log))
		}
	}()
	var rules fs.FS
	if a.rules != "" {
		rules = policy.Dir(a.rules)
	}
	live, err := policy.Open(ctx, policy.Options{Rules: rules}, time.Now())
	if err != nil {
		return b, err
	}
	b.rules = len(live.Current().Files)
	// What could refuse the start without a folder has had its chance: a refused start leaves nothing.
	keys, err := a.hostKeys()
	if err != nil {
		return b, err
	}
	if err := a.makeData(); err != nil {
		return b, err
	}
	s, err := openStore(a.data, uint64(a.reserveLow), log)
	if err != nil {
		return b, err
	}
	b.store = s
	b.plugins, err = plugins.Open(ctx, plugins.Options{
		Dir: a.plugins, Bundled: bundled.FS, CacheDir: filepath.Join(a.data, "cache"), Config: a.pluginConfig, Log: log,
	})
	if err != nil {
		return b, err
	}
	if add != nil {
		if err := add(b.plugins); err != nil {
			return b, err
		}
	}
	var tokens func(context.Context, string) (host.Identity, error)
	if a.oidc.Issuer != "" {
		if b.issuer, err = issuer.New(a.oidc); err != nil {
			return b, err
		}
		tokens = b.issuer.Identify
	}
	b.host, err = host.New(ctx, host.Config{
		Store: s, Policy: live, Plugins: b.plugins, Planners: planner.All(), HostKeys: keys,
		Workers: a.workers, ApprovalTTL: a.ttl, SweepInterval: a.sweep, RulesInterval: a.rulesEvery, Retention: a.retention,
		Reserve: uint64(a.reserve), ReserveLow: uint64(a.reserveLow), OperatorTenant: a.operators, Tokens: tokens, TokenTenant: a.oidc.Tenant, Grace: grace, Log: log, Telemetry: told,
	})
	if err == nil && a.oidc.Tenant != "" {
		err = b.host.EnsureTenant(ctx, a.oidc.Tenant) // whose people may all come by token
	}
	return b, err
}

func (a *app) makeData() error {
	if err := os.MkdirAll(a.data, 0o700); err != nil {
		return usagef("--data %s: %w", a.data, err)
	}
	return nil
}

// openStore opens the database of a data folder. This is the one place that names a store's implementation.
func openStore(data string, minFree uint64, log *slog.Logger) (store.Store, error) {
	db := filepath.Join(data, "db")
	s, err := badgerstore.Open(db, badgerstore.Options{
		Logger:  log,
		MinFree: minFree,
		OnFatal: func(err error) {
			// What was not acknowledged may or may not be there: only a new process may say which.
			log.Error("the store has failed, the process ends; start it again", "error", err)
			os.Exit(exitFailed)
		},
	})
	if errors.Is(err, store.ErrLocked) {
		return nil, fmt.Errorf("%s is in use by another pawl process: stop that one first, or choose another --data folder", db)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// serve answers requests until ctx is cancelled, then ends in two phases.
func (b *built) serve(ctx context.Context, ln net.Listener, log *slog.Logger, o api.Options) error {
	server := api.New(b.host, o)
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	web := &http.Server{
		Handler:           server,
		Protocols:         &protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		// No ReadTimeout and no WriteTimeout: event streams and sockets live as long as their clients; the transports bound
		// the body of each request and each write.
	}
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	worked, served := make(chan error, 1), make(chan error, 1)
	go func() { worked <- b.host.Run(work) }()
	go func() { served <- web.Serve(netutil.LimitListener(ln, maxConnections())) }()

	var failed error
	select {
	case <-ctx.Done():
		log.Info("stopping", "within", endBy)
	case failed = <-served:
	case failed = <-worked:
		worked <- nil
	}
	last := time.AfterFunc(endBy, func() {
		log.Error("not everything ended in time; what was acknowledged is durable, the rest is recovered at the next start")
		os.Exit(exitFailed)
	})
	defer last.Stop()

	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	server.Drain(bye) // sockets are told to reconnect, waits and streams end
	if err := web.Shutdown(bye); err != nil {
		cancelRequests()
		_ = web.Close()
	}
	stopWork()
	if err := <-worked; err != nil && !errors.Is(err, context.Canceled) {
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, b.close(log))
}

// close frees the plugins and closes the store, in this order: a call that ends still writes. What is queued for a collector is sent
// meanwhile, in the time that the plugins have.
func (b *built) close(log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var sent sync.WaitGroup
	if b.telemetry != nil {
		sent.Go(func() {
			if err := b.telemetry.Shutdown(ctx); err != nil {
				log.Warn("the last traces and metrics were not sent", "error", err)
			}
		})
	}
	if b.plugins != nil {
		if err := b.plugins.Close(ctx); err != nil {
			log.Warn("a tool did not end", "error", err)
		}
	}
	sent.Wait()
	if b.issuer != nil {
		b.issuer.Close()
	}
	if b.store != nil {
		return b.store.Close()
	}
	return nil
}

var errNoHostKey = usagef("PAWL_HOST_KEY is not set: resume tokens are signed with it. Make one with \"openssl rand -hex 32\", keep it secret, and give the same one at every start (or use --dev)")

// hostKeys returns the keys that sign resume tokens.
func (a *app) hostKeys() ([]host.TokenKey, error) {
	text := a.hostKey
	if text == "" && !a.dev {
		return nil, errNoHostKey
	}
	if text == "" {
		err := a.makeData()
		if err != nil {
			return nil, err
		}
		if text, err = devHostKey(filepath.Join(a.data, devHostKeyFile)); err != nil {
			return nil, err
		}
	}
	keys, err := host.ParseTokenKeys(text)
	if err != nil {
		return nil, usagef("PAWL_HOST_KEY: %w", err)
	}
	return keys, nil
}

func (a *app) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return nil, usagef("--log-level %q: say debug, info, warn or error", a.logLevel)
	}
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: level})), nil
}
