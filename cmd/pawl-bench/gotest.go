package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// goBench runs benchmarks of a package and returns, by name, each of their metrics.
func (b *bench) goBench(ctx context.Context, pkg, pattern string) (map[string]map[string]float64, error) {
	howLong := "1s"
	if b.quick {
		howLong = "50ms"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", pattern, "-benchtime", howLong, pkg)
	cmd.Dir = b.root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.Bytes())
	}
	return parse(string(out)), nil
}

// parse reads the lines of go test -bench: a name, the iterations, and pairs of value and unit.
func parse(out string) map[string]map[string]float64 {
	all := map[string]map[string]float64{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 { // the number of CPUs
			name = name[:i]
		}
		metrics := map[string]float64{}
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				metrics[f[i+1]] = v
			}
		}
		all[name] = metrics
	}
	return all
}

func (b *bench) store(ctx context.Context) error {
	got, err := b.goBench(ctx, "./store/badgerstore", "^BenchmarkCommit$")
	if err != nil {
		return err
	}
	for _, waiters := range []int{1, 16, 64} {
		for _, mode := range []string{"folded", "single"} {
			v, ok := got[fmt.Sprintf("Commit/waiters=%d/%s", waiters, mode)]["changes/s"]
			if !ok {
				return fmt.Errorf("no number for %d waiters, %s", waiters, mode)
			}
			r := result{Name: fmt.Sprintf("store: durable commits, %d waiting, %s", waiters, mode), Value: v, Unit: "/s"}
			if waiters == 64 && mode == "folded" {
				r = r.least(5800)
				r.Note = "the design's measurement, 20 KB each"
			}
			b.report(r)
		}
	}
	return nil
}

func (b *bench) gate(ctx context.Context) error {
	got, err := b.goBench(ctx, "./policy", "^BenchmarkGate$/^(defaults|ten|thousand)$/^(allow|pause|equality|startswith)$")
	if err != nil {
		return err
	}
	var ten float64
	for _, name := range []string{"defaults/allow", "defaults/pause", "ten/allow", "ten/pause", "thousand/equality/allow", "thousand/equality/pause",
		"thousand/startswith/allow", "thousand/startswith/pause"} {
		ns, ok := got["Gate/"+name]["ns/op"]
		if !ok {
			return fmt.Errorf("no number for %s", name)
		}
		r := result{Name: "gate decision, " + strings.ReplaceAll(name, "/", ", "), Value: ns / 1000, Unit: "µs"}
		switch {
		case name == "ten/pause":
			ten = ns / 1000
			r = r.most(60)
		case strings.HasPrefix(name, "thousand/") && strings.HasSuffix(name, "/pause"):
			r = r.most(2 * ten)
			r.Note = "twice the time with ten"
		default:
			r = r.most(60)
		}
		b.report(r)
	}
	return nil
}

func (b *bench) guests(ctx context.Context) error {
	got, err := b.goBench(ctx, "./plugins", "^BenchmarkPristineCallOf(C|Command|Go)$")
	if err != nil {
		return err
	}
	for _, g := range []struct {
		name, text string
		budget     float64
	}{{"PristineCallOfC", "guest: pristine call, small C tool (level 2)", 15}, {"PristineCallOfCommand", "guest: pristine call, C command (level 0)", 0},
		{"PristineCallOfGo", "guest: pristine call, 3 MB Go tool", 1000}} {
		ns, ok := got[g.name]["ns/op"]
		if !ok {
			return fmt.Errorf("no number for %s", g.name)
		}
		r := result{Name: g.text, Value: ns / 1000, Unit: "µs"}
		if g.budget > 0 {
			r = r.most(g.budget)
		}
		if g.name == "PristineCallOfGo" {
			r.Note = "a tenth of the 10 ms that a fresh instance takes; a later issue's budget"
		}
		b.report(r)
	}
	return nil
}
