package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/sdk/client"
)

// The exit codes, so that a script can tell what happened without reading text.
const (
	exitOK       = 0
	exitFailed   = 1 // it did not work, or the run ended failed or cancelled
	exitUsage    = 2 // the command line, a file, or the request is wrong
	exitNotFound = 3 // no such run, approval, agent, key or tool (or it is not yours to see)
	exitRefused  = 4 // no valid key, or policy refuses
	exitConflict = 5 // somebody was first, something changed, or it is too late
	exitWaiting  = 6 // the run waits for a decision, or for its planner
	exitAway     = 7 // the host cannot be reached, or asks to come back later
	exitTampered = 8 // a check of the audit log found that it is not what was written, or that nothing can tell
)

const exitHelp = `
Exit codes: 0 done, 1 failed (also: the run ended failed or cancelled), 2 usage, 3 not found, 4 refused (no valid key, or
policy), 5 conflict (already decided, changed, expired), 6 the run waits for a decision (or for its planner), 7 the host
is not reachable or asks to come back later, 8 the audit log is not what was
written, or nothing can tell.`

// exitError carries an exit code up to run. An error without one is exitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// app is what the subcommands share: the streams, the environment and the settings.
type app struct {
	config
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	json   bool
}

// pflag writes --json[=true|false]; nobody else does.
func init() {
	const noise = "[=true|false]"
	cobra.AddTemplateFunc("plainFlags", func(usages string) string {
		return strings.ReplaceAll(usages, noise, strings.Repeat(" ", len(noise)))
	})
}

// run is the whole program. It returns when the command is done or, after ctx is cancelled, has cleaned up.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{config: config{env: env}, stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if p, ok := errors.AsType[*problem](err); ok && !a.json {
		p.asTyped(c)
	}
	// A quiet error has said what it had to say on the way: exit 6 after the list of what waits.
	switch text := err.Error(); {
	case text == "":
	case a.json:
		a.complain(err)
	default:
		fmt.Fprintln(stderr, "pawl: "+visibleLines(text))
	}
	return exitCode(err)
}

// worded gives an error of this program what one of the host has: a word to branch on, and who decided.
type worded struct {
	error
	code      string
	decisions []client.DecidedBy
}

func (e *worded) Unwrap() error { return e.error }

// exitWords are the words of errors that have none of their own; where the host has a word for it, it is that one.
var exitWords = map[int]string{
	exitFailed: "failed", exitUsage: string(host.CodeInvalid), exitNotFound: string(host.CodeNotFound), exitRefused: string(host.CodeUnauthenticated),
	exitConflict: string(host.CodeWrongState), exitAway: "unreachable", exitTampered: "tampered",
}

// complain prints an error for programs: the host's problem as it came, or what this program has to say in the same shape; in both the
// exit code.
func (a *app) complain(err error) {
	own := struct {
		Code      string             `json:"code"`
		Detail    string             `json:"detail"`
		Decisions []client.DecidedBy `json:"decisions,omitempty"`
		ExitCode  int                `json:"exit_code"`
	}{exitWords[exitCode(err)], err.Error(), nil, exitCode(err)}
	var v any = &own
	if p, ok := errors.AsType[*problem](err); ok {
		v = struct {
			*client.Problem
			ExitCode int `json:"exit_code"`
		}{p.Problem, exitCode(err)}
	} else if w, ok := errors.AsType[*worded](err); ok {
		own.Code, own.Decisions = w.code, w.decisions
	} else if e, ok := errors.AsType[*host.Error](err); ok {
		own.Code = string(e.Code)
	}
	if raw, err := marshal(v); err == nil {
		fmt.Fprintln(a.stderr, visibleJSON(string(raw)))
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "pawl",
		Short: "A tool host for AI agents that stops where a person should look",
		Long: `pawl runs the tools of AI agents as WebAssembly guests. Policies decide which calls must stop; a stopped run is a durable
record, not a waiting process; a person lifts the pawl over HTTP, WebSocket or this command line.

New here? "pawl demo" tells the story in your terminal.

Commands that work on a running host have --url: it, or PAWL_URL, says where the host is (default
http://127.0.0.1:8080), and PAWL_KEY who you are.
` + exitHelp,
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return a.load(c) },
	}
	version := root.Flags().Bool("version", false, "print the version") // as "pawl version" does; people try both
	root.RunE = func(c *cobra.Command, _ []string) error {
		if *version {
			return a.printVersion()
		}
		return c.Help()
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, for programs; errors too, to standard error")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usagef("%w: see %s --help", err, c.CommandPath()) })
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages |", "FlagUsages | plainFlags |"))
	root.AddGroup(&cobra.Group{ID: "host", Title: "The host:"}, &cobra.Group{ID: "work", Title: "Runs and decisions:"},
		&cobra.Group{ID: "look", Title: "Tools, policies and people:"})
	root.AddCommand(
		in("host", a.demoCommand()), in("host", a.serveCommand()),
		in("work", a.runCommand()), in("work", a.runsCommand()), in("work", a.approvalsCommand()), in("work", a.auditCommand()),
		in("look", a.agentsCommand()), in("look", a.toolsCommand()), in("look", a.pluginCommand()),
		in("look", a.policyCommand()), in("look", a.keysCommand()), in("look", a.principalsCommand()), in("look", a.tenantsCommand()),
		a.versionCommand(),
	)
	generated(root)
	markUsage(root)
	a.offerAll(root)
	return root
}

func in(group string, c *cobra.Command) *cobra.Command {
	c.GroupID = group
	return c
}

// exitCode gives the exit code of an error.
func exitCode(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[*problem](err); ok {
		return e.exit()
	}
	switch host.CodeOf(err) { // of a command that works on the data folder itself
	case host.CodeInvalid:
		return exitUsage
	case host.CodeNotFound:
		return exitNotFound
	case host.CodeForbidden:
		return exitRefused
	}
	return exitFailed
}
