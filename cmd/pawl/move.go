package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
)

// runsMoves are the moves of a planner that is somewhere else, for trying and for helping out.
func (a *app) runsMoves() []*cobra.Command {
	var calls, state, output string
	propose := a.move("calls", "propose RUN", "Propose the calls of the next turn, for a planner of your own",
		`Proposes a batch of calls, as the planner of an agent with the kind external does. Calls that nothing stops run at once; if one must stop,
the whole batch waits.`,
		`  pawl runs propose run_0199… --calls '[{"tool": "read_file", "arguments": {"path": "/a"}}]'
  pawl runs propose run_0199… --calls @calls.json --planner-state @state.json`,
		map[string]*string{"calls": &calls, "planner_state": &state}, "calls")
	propose.Flags().StringVar(&calls, "calls", "", "the calls, a `JSON` list of {tool, arguments}, or @FILE")
	propose.Flags().StringVar(&state, "planner-state", "", "state of your planner, `JSON` or @FILE, kept with the run")
	finish := a.move("finish", "finish RUN", "End a run with its output, for a planner of your own", "Ends a run whose planner is somewhere else: this is its answer.",
		`  pawl runs finish run_0199… --output '"done"'`, map[string]*string{"output": &output}, "output")
	finish.Flags().StringVar(&output, "output", "", "the run's output, `JSON` or @FILE")
	return []*cobra.Command{propose, finish}
}

func (a *app) move(route, use, short, long, example string, values map[string]*string, needed string) *cobra.Command {
	var turn int
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		RunE: func(c *cobra.Command, args []string) error {
			if *values[needed] == "" {
				return usagef("%s needs --%s", c.Name(), needed)
			}
			body := map[string]any{}
			for name, text := range values {
				if *text == "" {
					continue
				}
				v, err := a.jsonValue(*text)
				if err != nil {
					return usagef("--%s: %w", strings.ReplaceAll(name, "_", "-"), err)
				}
				body[name] = v
			}
			r, err := a.remote()
			if err != nil {
				return err
			}
			var run host.Run
			if turn == 0 {
				if err := r.call(c.Context(), http.MethodGet, runPath(args[0]), nil, &run); err != nil {
					return err
				}
				turn = run.Turn + 1
			}
			body["turn"] = turn
			var raw json.RawMessage
			if err := r.call(c.Context(), http.MethodPost, runPath(args[0])+"/"+route, body, &raw); err != nil {
				return err
			}
			if a.json {
				return a.printRun(raw)
			}
			if err := json.Unmarshal(raw, &run); err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "turn %d; run %s is %s\n", turn, visible(run.ID), visible(string(run.State)))
			if !run.State.Ended() {
				fmt.Fprintf(a.stdout, "what comes of it: pawl run --attach %s\n", visible(run.ID))
			}
			return nil
		},
	}
	c.Flags().IntVar(&turn, "turn", 0, "the turn `N`, so that a repeat is none (default: the run's next)")
	return c
}
