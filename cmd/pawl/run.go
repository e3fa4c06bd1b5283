package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

func (a *app) runCommand() *cobra.Command {
	var o struct {
		input, calls, toolContext, plannerState, session, user, attach string
		wait, detach                                                   bool
	}
	c := &cobra.Command{
		Use:   "run [AGENT]",
		Short: "Start a run of an agent and follow it",
		Long: `Starts a run and prints its events. When the run stops for a decision it tells what waits and how to decide, and ends with
exit code 6, as it does when the run's planner is somewhere else and has to move; with --wait it stays until the run has ended.

A value that begins with @ is read from that file (JSON or YAML), @- from standard input.`,
		Example: `  pawl run ops
  pawl run ops --input '{"ticket": 4711}' --wait
  pawl run ops --calls @calls.json        # calls of the first turn, for an external planner
  pawl run --attach run_0199…             # follow a run that is there`,
		RunE: func(c *cobra.Command, args []string) error {
			if (len(args) == 1) == (o.attach != "") {
				return usagef("name an agent, or a run with --attach: see pawl run --help")
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			if o.attach != "" {
				return a.follow(c.Context(), r, o.attach, o.wait)
			}
			body := map[string]any{"agent": args[0]}
			for name, text := range map[string]string{
				"input": o.input, "calls": o.calls, "tool_context": o.toolContext, "planner_state": o.plannerState,
			} {
				if text == "" {
					continue
				}
				if body[name], err = a.jsonValue(text); err != nil {
					return usagef("--%s: %w", strings.ReplaceAll(name, "_", "-"), err)
				}
			}
			if o.user != "" {
				body["user"] = o.user
			}
			if o.session != "" {
				body["session_id"] = o.session
			}
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodPost, "/v1/runs", body, &raw); err != nil {
				return err
			}
			var run host.Run
			if err := json.Unmarshal(raw, &run); err != nil {
				return err
			}
			if o.detach {
				if a.json {
					return a.printRun(raw)
				}
				_, err := fmt.Fprintln(a.stdout, visible(run.ID))
				return err
			}
			return a.follow(c.Context(), r, run.ID, o.wait)
		},
	}
	f := c.Flags()
	a.clientFlags(f)
	f.StringVar(&o.input, "input", "", "the run's input, `JSON` or @FILE")
	f.StringVar(&o.calls, "calls", "", "proposed calls, a `JSON` list of {tool, arguments}, or @FILE")
	f.StringVar(&o.toolContext, "tool-context", "", "context for the tools, a `JSON` object or @FILE")
	f.StringVar(&o.plannerState, "planner-state", "", "state of your planner, `JSON` or @FILE, kept with the run")
	f.StringVar(&o.session, "session", "", "session `ID`")
	f.StringVar(&o.user, "user", "", "the `PRINCIPAL` that the run is for (services that may act for others)")
	f.StringVar(&o.attach, "attach", "", "follow this `RUN` instead of starting one")
	f.BoolVar(&o.wait, "wait", false, "stay while the run waits, until it has ended")
	f.BoolVar(&o.detach, "detach", false, "print the run's id and return")
	return c
}

// errWaiting ends a command whose run waits; what waits has been printed.
var errWaiting = &exitError{exitWaiting, errors.New("")}

// quiet is how long nothing has to happen before a run is asked whether it waits for its planner.
const quiet = 500 * time.Millisecond

// follow prints the events of a run until it has ended or, without wait, until nothing happens before somebody decides or the
// run's own planner, which is somewhere else, proposes.
func (a *app) follow(ctx context.Context, r *remote, id string, wait bool) error {
	if wait {
		r.Retries = 20 // about forty seconds: a host that restarts meanwhile is part of the story
	}
	// That a run waits for its planner is not an event: after a moment without one, the run itself is asked.
	var planner atomic.Pointer[host.Run]
	stream, stop := context.WithCancel(ctx)
	defer stop()
	idle := time.AfterFunc(quiet, func() {
		var run host.Run
		if !wait && r.call(stream, http.MethodGet, runPath(id), nil, &run) == nil && run.State == store.RunAwaitingPlanner {
			planner.Store(&run)
			stop()
		}
	})
	defer idle.Stop()
	// A pause that is in the log may be over long since, so after each one the run is asked, too.
	there := false
	err := r.events(stream, id, func(e event) error {
		idle.Reset(quiet)
		if a.json {
			if err := a.printRaw(e.raw); err != nil {
				return err
			}
		} else {
			if !there { // a run that is not there is not announced
				there = true
				fmt.Fprintf(a.stdout, "run %s\n", visible(id))
			}
			showEvent(a.stdout, e)
		}
		if e.Type != "run.paused" {
			return nil
		}
		var run host.Run
		if err := r.call(ctx, http.MethodGet, runPath(id), nil, &run); err != nil {
			return err
		}
		if run.Pause == nil || run.Pause.ID != e.PauseID {
			return nil
		}
		if !a.json {
			a.showPause(run, !wait)
		}
		if wait {
			return nil
		}
		return errWaiting
	})
	if run := planner.Load(); run != nil {
		if !a.json {
			fmt.Fprintf(a.stdout, "\nthe run waits for turn %[1]d of its planner:\n\n"+
				"    pawl runs propose %[2]s --calls '[…]'\n    pawl runs finish %[2]s --output '…'\n    pawl runs cancel %[2]s\n", run.Turn+1, visible(id))
		}
		return errWaiting
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted; the run goes on: pawl run --attach %s follows it, pawl runs cancel ends it", visible(id))
	}
	if err != nil {
		return err
	}
	var run host.Run
	if err := r.call(ctx, http.MethodGet, runPath(id), nil, &run); err != nil {
		return err
	}
	if run.State != store.RunSucceeded {
		text := "the run failed"
		if run.State == store.RunCancelled {
			text = "the run was cancelled"
		}
		if run.Error != nil {
			text += ": " + run.Error.Code + ": " + run.Error.Message
		}
		return errors.New(visible(text))
	}
	return nil
}

// showPause prints what a run waits for and how to decide it.
func (a *app) showPause(run host.Run, leaving bool) {
	fmt.Fprintf(a.stdout, "\nthe run waits (%s) until somebody decides:\n", visible(string(run.State)))
	open := pending(run.Pause.Approvals)
	for _, p := range open {
		fmt.Fprintln(a.stdout)
		showApproval(a.stdout, p, false)
		howToSee(a.stdout, p, false)
	}
	if len(open) > 1 {
		fmt.Fprintln(a.stdout)
	}
	howToDecide(a.stdout, open)
	if !leaving {
		fmt.Fprintln(a.stdout)
		return
	}
	fmt.Fprintf(a.stdout, "\nthen: pawl run --attach %s --wait\n", visible(run.ID))
}

func runPath(id string) string { return "/v1/runs/" + url.PathEscape(id) }

// jsonValue reads a value given on the command line: JSON text, or @FILE with JSON or YAML. The JSON goes to the host as it
// is, byte for byte: the host is the one who judges it.
func (a *app) jsonValue(text string) (json.RawMessage, error) {
	name, isFile := strings.CutPrefix(text, "@")
	if !isFile {
		var v json.RawMessage
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			if !strings.ContainsAny(text[:min(1, len(text))], `{["`) {
				err = errors.New("a string needs its quotes")
			}
			return nil, fmt.Errorf("%s is not JSON: %w", cut(text, 200), err)
		}
		return json.RawMessage(text), nil
	}
	raw, err := a.readFileOrStdin(name)
	if err != nil {
		return nil, err
	}
	return jsonOrYAML(name, raw)
}

func (a *app) readFileOrStdin(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(a.stdin)
	}
	return os.ReadFile(name)
}

// jsonOrYAML returns raw as JSON; it is YAML when the file's name says so.
func jsonOrYAML(name string, raw []byte) (json.RawMessage, error) {
	if ext := filepath.Ext(name); ext == ".yaml" || ext == ".yml" {
		var v any
		if err := yaml.Unmarshal(raw, &v); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return marshal(v)
	}
	if !json.Valid(raw) {
		var v any
		return nil, fmt.Errorf("%s is not JSON: %w", name, json.Unmarshal(raw, &v))
	}
	return raw, nil
}

// eventually calls fn until it returns true, ctx is done or the time is over; fn sees each state of a remote host.
func eventually(ctx context.Context, within time.Duration, fn func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !fn() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}
