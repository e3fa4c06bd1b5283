package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// settings loads the host's settings as "pawl serve" does.
func settings(t *testing.T, env, args []string) (*app, error) {
	t.Helper()
	a := &app{config: config{env: env}}
	c := &cobra.Command{RunE: func(c *cobra.Command, _ []string) error { return a.load(c) }, SilenceUsage: true, SilenceErrors: true}
	a.hostFlags(c.Flags())
	c.SetArgs(args)
	return a, c.Execute()
}

func TestSettingsComeFromFlagThenEnvironmentThenFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pawl.yaml")
	err := os.WriteFile(file, []byte("approval_ttl: 1h\nstore_reserve: 1GiB\nworkers: 3\nmetrics_open: true\nallow_origin: [https://a, https://b]\nplugin_config: {p: {k: v}}\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	a, err := settings(t, nil, nil)
	if err != nil || a.ttl != 24*time.Hour || a.reserve != 512<<20 || a.reserveLow != 64<<20 || a.sweep != 30*time.Second || a.metrics {
		t.Errorf("defaults: %+v %v", a.config, err)
	}
	a, err = settings(t, nil, []string{"--config", file})
	if err != nil || a.ttl != time.Hour || a.reserve != 1<<30 || a.workers != 3 || !a.metrics || len(a.origins) != 2 || a.pluginConfig["p"]["k"] != "v" {
		t.Errorf("file: %+v %v", a.config, err)
	}
	env := []string{"PAWL_APPROVAL_TTL=3h", "PAWL_APPROVAL_TTL=2h", "PAWL_STORE_RESERVE=67108864", "PAWL_HOST_KEY=secret", "PAWL_WORKERS="}
	a, err = settings(t, env, []string{"--config", file})
	if err != nil || a.ttl != 2*time.Hour || a.reserve != 64<<20 || a.workers != 3 || a.hostKey != "secret" {
		t.Errorf("environment: %+v %v", a.config, err)
	}
	a, err = settings(t, env, []string{"--config", file, "--approval-ttl", "5m", "--store-reserve", "0"})
	if err != nil || a.ttl != 5*time.Minute || a.reserve != 1 || a.reserveLow != 1 {
		t.Errorf("flags: %+v %v", a.config, err)
	}
}

func TestBadSettingsAreRefusedWithTheirPlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"listen: x\nlisten: y":       "already defined",
		"host_key: abc":              `unknown setting "host_key"`, // a secret is not for a file that everybody reads
		"a: 1\nworkers: {x: 1}":      ":1: unknown setting",
		"\nworkers: {x: 1}":          ":2: workers must be a plain value",
		"workers: many":              "workers",
		"store_reserve: 5GB":         "not a number of bytes",
		"approval_ttl: tomorrow":     "approval_ttl",
		"approval_ttl: 0s":           "approval-ttl",
		"retention: -1h":             "retention",
		"approval_sweep_interval: 0": "approval-sweep-interval",
		"plugin_config: [1]":         "plugin_config",
		"workers: [":                 "yaml",
		"store_reserve: 99999999TiB": "not a number of bytes",
	} {
		file := filepath.Join(t.TempDir(), "pawl.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := settings(t, nil, []string{"--config", file})
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), strings.TrimPrefix(want, "plugin_config")) {
			t.Errorf("%q: %v, want %q and exit code 2", text, err, want)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{"0": 0, "1": 1, "1KiB": 1 << 10, "64 MiB": 64 << 20, "3GiB": 3 << 30, "2TiB": 2 << 40} {
		var s size
		if err := s.Set(text); err != nil || uint64(s) != want {
			t.Errorf("%s: %d %v", text, s, err)
		}
		var again size
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%s prints as %s, which reads as %d", text, s.String(), again)
		}
	}
	for _, text := range []string{"", "-1", "1.5GiB", "MiB", "64MB", "18446744073709551616", "9223372036854775808KiB"} {
		var s size
		if err := s.Set(text); err == nil {
			t.Errorf("%q is %d bytes", text, s)
		}
	}
}

// Every command that a person can type has a summary and, where it takes something, an example; help never fails.
func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	a := &app{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || c.Runnable() && c.Name() != "version" && c.Name() != "pawl" && c.Example == "" {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
		var out bytes.Buffer
		args := append(strings.Fields(c.CommandPath())[1:], "--help")
		if code := run(t.Context(), args, nil, strings.NewReader(""), &out, &out); code != exitOK || out.Len() == 0 {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
	walk(a.root())
}

// What an operator can set is what the manual lists.
func TestOperatingManualListsEverySetting(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	manual := string(raw)
	for _, name := range hostSettings {
		env := "PAWL_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if !strings.Contains(manual, "`--"+name+"`") || !strings.Contains(manual, "`"+env+"`") {
			t.Errorf("docs/operating.md lacks --%s or %s", name, env)
		}
	}
}
