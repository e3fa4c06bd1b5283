package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/policy"
)

func (a *app) policyStatusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show which rules a host has in force, and why it refused a change",
		Long: `Shows the revision of the rules in force, when they were loaded, and the files they are made of.

Exit codes: 0 the rules folder is in force as it is, 1 it has changed to something that the host cannot use; the old rules are in
force, and the problems are listed with file and line.`,
		Example: "  pawl policy status\n  kill -HUP $(pidof pawl) && pawl policy status --json",
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.remote()
			if err != nil {
				return err
			}
			var p host.Policy
			if err := r.call(c.Context(), http.MethodGet, "/v1/policy", nil, &p); err != nil {
				return err
			}
			if a.json {
				raw, err := marshal(p)
				if err := errors.Join(err, a.printRaw(raw)); err != nil {
					return err
				}
			} else if err := a.showPolicy(p); err != nil {
				return err
			}
			if p.Refused != nil {
				return &exitError{exitFailed, errors.New("the rules folder is not in force as it is")}
			}
			return nil
		},
	}
	a.clientFlags(c.Flags())
	return c
}

func (a *app) showPolicy(p host.Policy) error {
	fmt.Fprintf(a.stdout, "revision %s, loaded %s\n", visible(p.Revision), p.LoadedAt)
	if len(p.Files) == 0 {
		fmt.Fprintln(a.stdout, "no files: the host has its built-in rules only")
	} else {
		var rows [][]any
		for _, f := range p.Files {
			rows = append(rows, []any{f.Name, f.Bytes, f.Digest})
		}
		if err := a.table([]string{"FILE", "BYTES", "DIGEST"}, rows); err != nil {
			return err
		}
	}
	if p.Refused != nil {
		fmt.Fprintf(a.stdout, "refused at %s:\n", p.Refused.At)
		for _, line := range p.Refused.Problems {
			fmt.Fprintln(a.stdout, "  "+visible(line))
		}
	}
	return nil
}

// checked is what `policy check` found, for programs.
type checked struct {
	Revision string              `json:"revision"`
	Files    []host.PolicyFile   `json:"files"`
	Tests    []policy.TestResult `json:"tests"`
}

func (a *app) policyCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FOLDER",
		Short: "Load a folder of rules as a host would, and run its tests",
		Long: `Loads the rules of a folder with the strictness of a host (packages, misspelt members of the input, functions that are switched
off) and with more: values that a rule writes out and that can never be right. Runs its *_test.rego. Nothing else is needed: no host, no database.

Exit codes: 0 a host would take the folder and its tests pass, 1 it would not, a value is wrong, or a test fails; each problem has its file and line.`,
		Example: "  pawl policy check ./rules\n  pawl policy check ./rules && rsync -a ./rules/ /etc/pawl/rules/",
		RunE: func(c *cobra.Command, args []string) error {
			if st, err := os.Stat(args[0]); err != nil || !st.IsDir() {
				return usagef("%s is not a folder", args[0])
			}
			rules := policy.Dir(args[0])
			live, err := policy.Open(c.Context(), policy.Options{Rules: rules}, time.Now())
			if err != nil {
				return err
			}
			now := live.Current()
			if err := now.Doubts(); err != nil {
				return fmt.Errorf("a host would take the folder, and these rules would deny every call that they match:\n%w", err)
			}
			tests, err := policy.Test(c.Context(), rules)
			out := checked{Revision: now.Revision(), Files: []host.PolicyFile{}, Tests: tests}
			for _, f := range now.Files {
				out.Files = append(out.Files, host.PolicyFile{Name: f.Name, Digest: f.Digest, Bytes: f.Bytes})
			}
			if out.Tests == nil {
				out.Tests = []policy.TestResult{}
			}
			return errors.Join(a.showChecked(out), err)
		},
	}
}

// showChecked prints what was found and returns an error if a test failed.
func (a *app) showChecked(out checked) error {
	failed, skipped := 0, 0
	for _, t := range out.Tests {
		switch {
		case t.Skip:
			skipped++
		case !t.Pass:
			failed++
			if !a.json {
				fmt.Fprintf(a.stdout, "FAIL %s: %s\n", visible(t.Location), visible(t.Name))
				if s := strings.TrimSpace(t.Output); s != "" {
					fmt.Fprintln(a.stdout, "  "+visibleLines(strings.ReplaceAll(s, "\n", "\n  ")))
				}
			}
		}
	}
	if a.json {
		raw, err := marshal(out)
		if err := errors.Join(err, a.printRaw(raw)); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.stdout, "%s, %s: %d passed, %d failed, %d skipped\nrevision %s\n",
			count(len(out.Files), "file"), count(len(out.Tests), "test"), len(out.Tests)-failed-skipped, failed, skipped, out.Revision)
	}
	if len(out.Files) == 0 {
		fmt.Fprintln(a.stderr, "warning: the folder has no rules: no file NAME.rego")
	}
	if failed > 0 {
		return &exitError{exitFailed, fmt.Errorf("%d of %d tests failed", failed, len(out.Tests))}
	}
	return nil
}

// count is a number of things in words: "1 file", "2 files".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
