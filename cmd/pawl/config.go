package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/pawlhost/pawl/host/issuer"
)

// This file alone reads flags, the configuration file and the environment. The order is: flag, environment, file, default.
// A setting's name is its flag's; in the file dashes are underscores, in the environment it is upper-case behind PAWL_.
// Secrets (PAWL_HOST_KEY, PAWL_KEY) come from the environment only: a command line is visible to every process.

// config is everything that the program is told from outside.
type config struct {
	env []string

	// for commands that talk to a host
	url string
	key string

	// for the host
	dev        bool
	data       string
	listen     string
	rules      string
	plugins    string
	hostKey    string
	origins    []string
	metrics    bool
	workers    int
	ttl        time.Duration
	sweep      time.Duration
	rulesEvery time.Duration
	retention  time.Duration
	reserve    size
	reserveLow size
	memory     size
	operators  string
	oidc       issuer.Config
	oidcRoles  []string // VALUE=ROLE
	logLevel   string
	otlp       string
	cpuProfile string
	withStdin  bool
	file       string
	// pluginConfig is what each plugin reads with the operation "config", by the plugin's name; from the file only.
	pluginConfig map[string]map[string]string
}

// hostSettings are the flags that a configuration file and the environment may also set.
var hostSettings = []string{
	"data", "listen", "rules", "rules-interval", "plugins", "allow-origin", "metrics-open", "workers", "approval-ttl", "approval-sweep-interval", "retention",
	"store-reserve", "store-reserve-low", "memory-limit", "operator-tenant",
	"oidc-issuer", "oidc-audience", "oidc-principal-claim", "oidc-tenant", "oidc-tenant-claim", "oidc-roles-claim", "oidc-roles", "oidc-kind-claim",
	"log-level", "otlp-endpoint",
}

const defaultReserveLow = 64 << 20

// hostFlags adds the host's settings to a command.
func (c *config) hostFlags(f *pflag.FlagSet) {
	f.BoolVar(&c.dev, "dev", false, "development: loopback only, two tenants with ready keys, no rate limits")
	f.StringVar(&c.data, "data", "", "`FOLDER` of the database (made if missing)")
	f.StringVar(&c.listen, "listen", "127.0.0.1:8080", "`ADDRESS` to listen on")
	f.StringVar(&c.rules, "rules", "", "`FOLDER` of Rego rules (package pawl.rules…)")
	f.DurationVar(&c.rulesEvery, "rules-interval", 2*time.Second, "how often the rules folder is looked at for changes (`TIME`)")
	f.StringVar(&c.plugins, "plugins", "", "`FOLDER` of plugins (*.wasm)")
	f.StringVar(&c.file, "config", "", "configuration `FILE` (YAML or JSON)")
	f.StringSliceVar(&c.origins, "allow-origin", nil, "further browser `ORIGIN` that may open WebSockets (repeatable)")
	f.BoolVar(&c.metrics, "metrics-open", false, "serve /metrics without a key")
	f.IntVar(&c.workers, "workers", 0, "how many (`N`) runs are driven at the same time (0: twice the CPUs, at least 8)")
	f.DurationVar(&c.ttl, "approval-ttl", 24*time.Hour, "how long an approval waits, as a `TIME` such as 8h")
	f.DurationVar(&c.sweep, "approval-sweep-interval", 30*time.Second, "how often expired approvals are looked for (`TIME`)")
	f.DurationVar(&c.retention, "retention", 30*24*time.Hour, "how long an ended run is kept (`TIME`)")
	for name, short := range map[string]string{"approval-ttl": "24h", "retention": "720h"} {
		f.Lookup(name).DefValue = short // not 24h0m0s
	}
	c.reserve, c.reserveLow = 512<<20, defaultReserveLow
	f.Var(&c.reserve, "store-reserve", "free `BYTES` below which new runs are refused")
	c.memory = 640 << 20 // what badgerstore measured for a million paused runs
	f.Var(&c.memory, "memory-limit", "`BYTES` of memory that the garbage collector tries to stay below (GOMEMLIMIT wins)")
	f.Var(&c.reserveLow, "store-reserve-low", "free `BYTES` below which decisions are refused too")
	f.StringVar(&c.operators, "operator-tenant", "", "the `TENANT` whose owners make, list and disable tenants over the wire (none: nobody does)")
	f.StringVar(&c.oidc.Issuer, "oidc-issuer", "", "`URL` of an OpenID provider whose tokens are credentials too")
	f.StringVar(&c.oidc.Audience, "oidc-audience", "", "the `AUDIENCE` that its tokens for this host have")
	f.StringVar(&c.oidc.PrincipalClaim, "oidc-principal-claim", "sub", "the `CLAIM` with the principal's id")
	f.StringVar(&c.oidc.Tenant, "oidc-tenant", "", "the `TENANT` that all tokens are for")
	f.StringVar(&c.oidc.TenantClaim, "oidc-tenant-claim", "", "or the `CLAIM` that names the tenant")
	f.StringVar(&c.oidc.RolesClaim, "oidc-roles-claim", "roles", "the `CLAIM` with the roles (dots lead into objects)")
	f.StringSliceVar(&c.oidcRoles, "oidc-roles", nil, "`VALUE=ROLE`: what a value of that claim is here; * is everybody (repeatable)")
	f.StringVar(&c.oidc.KindClaim, "oidc-kind-claim", "", "the `CLAIM` that says service in the tokens of programs")
	f.StringVar(&c.cpuProfile, "cpu-profile", "", "write a CPU profile of the whole run to this file")
	f.BoolVar(&c.withStdin, "end-with-stdin", false, "end when standard input does, as it does with the process that holds its other end")
	_ = f.MarkHidden("end-with-stdin") // for the demo: whatever becomes of that, no host stays behind
	_ = f.MarkHidden("cpu-profile")    // it is there; for those who measure
	f.StringVar(&c.otlp, "otlp-endpoint", "", "`URL` of a collector that takes traces and metrics by OTLP/HTTP (the OTEL_… variables count too)")
	f.StringVar(&c.logLevel, "log-level", "info", "`LEVEL`: debug, info, warn or error")
}

// clientFlags adds where the host is.
func (c *config) clientFlags(f *pflag.FlagSet) {
	f.StringVar(&c.url, "url", "http://127.0.0.1:8080", "the `URL` of the host (also PAWL_URL)")
}

// load fills the settings of a command that the command line did not give. It runs before every command.
func (c *config) load(cmd *cobra.Command) error {
	f := cmd.Flags()
	c.hostKey, c.key = c.getenv("PAWL_HOST_KEY"), c.getenv("PAWL_KEY")
	if f.Lookup("url") != nil {
		if err := c.overlay(f, "url", c.getenv("PAWL_URL"), "PAWL_URL"); err != nil {
			return err
		}
	}
	if f.Lookup("sweep") == nil && f.Lookup("approval-ttl") == nil {
		return nil
	}
	file, err := c.readFile()
	if err != nil {
		return err
	}
	for _, name := range hostSettings {
		env := environment(name)
		value, from := c.getenv(env), env
		if value == "" {
			key := strings.ReplaceAll(name, "-", "_")
			value, from = file[key], c.file+": "+key
		}
		if err := c.overlay(f, name, value, from); err != nil {
			return err
		}
	}
	return c.check()
}

// check refuses settings that cannot be meant, before anything is opened.
func (c *config) check() error {
	for _, d := range []struct {
		name string
		is   time.Duration
	}{{"approval-ttl", c.ttl}, {"approval-sweep-interval", c.sweep}, {"rules-interval", c.rulesEvery}, {"retention", c.retention}} {
		if d.is <= 0 { // not "never", and not "at once" either: who writes it means one of them
			return usagef("--%s (or %s, or in the file) is %s: write a time above zero, such as 8h", d.name, environment(d.name), d.is)
		}
	}
	if c.workers < 0 {
		return usagef("--workers is %d: write how many, or 0 for twice the CPUs", c.workers)
	}
	if c.reserveLow == defaultReserveLow { // who lowers the one mark need not know of the other
		c.reserveLow = min(c.reserveLow, c.reserve)
	}
	if c.reserveLow > c.reserve {
		return usagef("--store-reserve-low (%s) is above --store-reserve (%s): new runs stop first, decisions later", c.reserveLow.String(), c.reserve.String())
	}
	for _, o := range c.origins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Scheme+"://"+u.Host != strings.TrimSuffix(o, "/") {
			return usagef("--allow-origin %q can never be a page's: write https://HOST or https://HOST:PORT, each by its name", o)
		}
	}
	c.oidc.Roles = map[string]string{}
	for _, pair := range c.oidcRoles {
		i := strings.LastIndex(pair, "=") // a value may have one
		if i < 1 {
			return usagef("--oidc-roles %q: write VALUE=ROLE, such as pawl-admins=admin", pair)
		}
		c.oidc.Roles[pair[:i]] = pair[i+1:]
	}
	if c.oidc.Issuer == "" {
		for name, v := range map[string]string{"audience": c.oidc.Audience, "tenant": c.oidc.Tenant, "tenant-claim": c.oidc.TenantClaim, "roles": strings.Join(c.oidcRoles, ",")} {
			if v != "" {
				return usagef("--oidc-%s is there and no --oidc-issuer: nobody's tokens would count", name)
			}
		}
	} else if _, err := issuer.New(c.oidc); err != nil {
		return usagef("--oidc-…: %w", err)
	}
	// No reserve at all is one byte: to the packages below, nothing means their own default.
	c.reserve, c.reserveLow = max(c.reserve, 1), max(c.reserveLow, 1)
	for name, folder := range map[string]string{"rules": c.rules, "plugins": c.plugins} {
		if st, err := os.Stat(folder); folder != "" && (err != nil || !st.IsDir()) {
			return usagef("--%s %s is not a folder", name, folder)
		}
	}
	return nil
}

// cacheDir is where modules stay compiled between two calls of a developer, "" where there is no such place.
func (c *config) cacheDir() string {
	dir := c.getenv("XDG_CACHE_HOME")
	if home := c.getenv("HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, ".cache")
	}
	dir = filepath.Join(dir, "pawl")
	if !filepath.IsAbs(dir) || os.MkdirAll(dir, 0o700) != nil {
		return ""
	}
	return dir
}

func environment(setting string) string {
	return "PAWL_" + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// strangers are variables of the environment that look like settings and are none.
func (c *config) strangers() (list []string) {
	known := []string{"PAWL_HOST_KEY", "PAWL_URL", "PAWL_KEY"}
	for _, name := range hostSettings {
		known = append(known, environment(name))
	}
	for _, kv := range c.env {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PAWL_") && !slices.Contains(known, name) {
			list = append(list, name+meant(name, known))
		}
	}
	return list
}

// overlay sets a flag that the command line did not set.
func (c *config) overlay(f *pflag.FlagSet, name, value, from string) error {
	flag := f.Lookup(name)
	if flag == nil || flag.Changed || value == "" {
		return nil
	}
	if err := flag.Value.Set(value); err != nil {
		return usagef("%s: %w", from, err)
	}
	return nil
}

// readFile returns the plain settings of the configuration file and keeps its plugin_config.
func (c *config) readFile() (map[string]string, error) {
	if c.file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(c.file)
	if err != nil {
		return nil, usagef("--config: %w", err)
	}
	var doc struct {
		PluginConfig map[string]map[string]string `yaml:"plugin_config"`
		Settings     map[string]yaml.Node         `yaml:",inline"`
	}
	// The decoder refuses a name that stands twice.
	if err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, usagef("%s: %w", c.file, err)
	}
	c.pluginConfig = doc.PluginConfig
	settings := map[string]string{}
	lines := slices.SortedFunc(maps.Keys(doc.Settings), func(a, b string) int { return doc.Settings[a].Line - doc.Settings[b].Line })
	for _, key := range lines { // the first mistake of the file is told, not any
		node := doc.Settings[key]
		if !slices.Contains(hostSettings, strings.ReplaceAll(key, "_", "-")) {
			return nil, usagef("%s:%d: unknown setting %q: known are plugin_config, %s", c.file, node.Line, key,
				strings.ReplaceAll(strings.Join(hostSettings, ", "), "-", "_"))
		}
		values := []string{node.Value}
		if node.Kind == yaml.SequenceNode {
			values = values[:0]
			for _, n := range node.Content {
				values = append(values, n.Value)
			}
		} else if node.Kind != yaml.ScalarNode {
			return nil, usagef("%s:%d: %s must be a plain value or a list of them", c.file, node.Line, key)
		}
		settings[key] = strings.Join(values, ",")
	}
	return settings, nil
}

func (c *config) getenv(name string) string {
	for _, kv := range slices.Backward(c.env) { // of a name that stands twice the last one counts, as for exec
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// size is a number of bytes, written as 67108864, 64MiB or 1GiB.
type size uint64

func (s *size) Type() string { return "bytes" }

func (s *size) String() string {
	switch n := uint64(*s); {
	case n > 0 && n%(1<<30) == 0:
		return fmt.Sprintf("%dGiB", n>>30)
	case n > 0 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", n>>20)
	default:
		return strconv.FormatUint(n, 10)
	}
}

func (s *size) Set(text string) error {
	shift := 0
	number := text
	for suffix, n := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			number, shift = strings.TrimSpace(rest), n
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n > (1<<63)>>shift {
		like := "67108864 or 64MiB"
		if unit := strings.TrimRight(text, "BbiI"); len(unit) > 1 && strings.ContainsAny(unit[len(unit)-1:], "kKmMgGtT") {
			like = strings.TrimSpace(unit[:len(unit)-1]) + strings.ToUpper(unit[len(unit)-1:]) + "iB"
		}
		return fmt.Errorf("%q is not a number of bytes: write %s", text, like)
	}
	*s = size(n << shift)
	return nil
}
