package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing/fstest"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/plugins"
)

func (a *app) pluginCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "plugin",
		Aliases: []string{"plugins"},
		Short:   "Look into a plugin file, and call its tools, without a host",
		Long: `For people who write tools: loads a .wasm file as a host would (the manifest is in it, or beside it as NAME.json), with the same
checks and limits. Policies and approvals are the host's, so none stop a call here.`,
		Example: `  pawl plugin inspect hello.wasm
  pawl plugin call hello.wasm greet --arguments '{"name": "Ada"}'`,
	}
	inspect := &cobra.Command{
		Use: "inspect FILE.wasm", Short: "Check a plugin and show its tools, limits and permissions", Example: "  pawl plugin inspect hello.wasm",
		RunE: func(c *cobra.Command, args []string) error {
			set, err := a.openPlugin(c.Context(), args[0], nil)
			if err != nil {
				return err
			}
			defer set.Close(context.WithoutCancel(c.Context()))
			return a.showTools(set.Tools())
		},
	}
	var arguments, toolContext string
	var config map[string]string
	var approve []string
	var storeFile string
	call := &cobra.Command{
		Use:   "call FILE.wasm TOOL",
		Short: "Call a tool of a plugin once, without a host",
		Long: `Calls a tool as a host would, with its checks and limits. Behind it is an empty store whose writes are only shown, or with --store a file
that the next call goes on with. A tool that pauses ends with exit code 6; --approve is the person who says yes: the tool finds the key
in its context.`,
		Example: `  pawl plugin call hello.wasm greet --arguments '{"name": "Ada"}'
  pawl plugin call count.wasm count --store count.json
  pawl plugin call memory.wasm forget --arguments '{"key": "n"}' --approve 'forget n'
  pawl plugin call weather.wasm forecast --arguments @args.json --set-config units=metric`,
		RunE: func(c *cobra.Command, args []string) error {
			raw, err := a.jsonValue(arguments)
			if err != nil {
				return usagef("--arguments: %w", err)
			}
			var tc json.RawMessage
			if toolContext != "" {
				if tc, err = a.jsonValue(toolContext); err != nil {
					return usagef("--tool-context: %w", err)
				}
			}
			set, err := a.openPlugin(c.Context(), args[0], config)
			if err != nil {
				return err
			}
			defer set.Close(context.WithoutCancel(c.Context()))
			tool, ok := set.Lookup(args[1])
			if !ok {
				return &exitError{exitNotFound, fmt.Errorf("%s has no tool %q: pawl plugin inspect lists them", args[0], args[1])}
			}
			if raw, err = ijson.Parse(raw); err != nil {
				return usagef("the arguments are not I-JSON: %w", err)
			}
			if raw, err = tool.Check(raw); err != nil {
				return usagef("the arguments do not fit the tool's schema: %w", err)
			}
			if raw, err = ijson.Parse(raw); err != nil {
				return usagef("the arguments with their defaults are not I-JSON: %w", err)
			}
			approvals := map[string]bool{}
			for _, key := range approve {
				approvals[key] = true
			}
			approved, err := marshal(approvals)
			if err != nil {
				return err
			}
			store, err := openScratch(storeFile)
			if err != nil {
				return err
			}
			r := set.Call(c.Context(), plugins.Call{
				Tool: tool, RunID: "run_offline", CallID: "call_offline", Arguments: raw, ToolContext: tc, Approvals: approved, Time: time.Now(), KV: store.kv(),
			})
			return errors.Join(store.keep(r.Writes), a.showResult(r))
		},
	}
	call.Flags().StringVar(&arguments, "arguments", "{}", "the arguments, `JSON` or @FILE")
	call.Flags().StringVar(&toolContext, "tool-context", "", "the caller's context, a `JSON` object or @FILE")
	call.Flags().StringArrayVar(&approve, "approve", nil, "the approval `KEY` of a pause that somebody has approved (repeatable)")
	call.Flags().StringVar(&storeFile, "store", "", "a JSON `FILE` that is the store behind the call, made if missing")
	call.Flags().StringToStringVar(&config, "set-config", nil, "what the tool reads with the operation config: `KEY=VALUE` (repeatable)")
	call.Flags().Lookup("set-config").DefValue = "" // not "[]"
	c.AddCommand(inspect, call)
	return c
}

// openPlugin loads one plugin file, with the manifest that may lie beside it.
func (a *app) openPlugin(ctx context.Context, file string, config map[string]string) (*plugins.Set, error) {
	name := strings.TrimSuffix(filepath.Base(file), ".wasm")
	module, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &exitError{exitNotFound, err}
	}
	if err != nil {
		return nil, err
	}
	folder := fstest.MapFS{name + ".wasm": {Data: module}}
	sidecar, err := os.ReadFile(strings.TrimSuffix(file, ".wasm") + ".json")
	if err == nil {
		folder[name+".json"] = &fstest.MapFile{Data: sidecar}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	set, err := plugins.Open(ctx, plugins.Options{Bundled: folder, CacheDir: a.cacheDir(), Config: map[string]map[string]string{name: config}})
	if err != nil {
		return nil, err
	}
	if skipped := set.Skipped(); len(skipped) > 0 {
		return nil, errors.Join(fmt.Errorf("%s: a host would skip it: %s", file, skipped[0].Reason), set.Close(ctx))
	}
	return set, nil
}

func (a *app) showTools(tools []*plugins.Tool) error {
	for i, t := range tools {
		if a.json {
			err := a.printJSON(map[string]any{
				"name": t.Name, "plugin": t.Plugin, "digest": t.Digest, "level": t.Level, "effects": t.Effects, "description": t.Description,
				"input_schema": t.InputSchema, "output_schema": t.OutputSchema, "permissions": t.Permissions,
				"limits": map[string]any{
					"memory_bytes": int64(t.Limits.MemoryPages) << 16, "timeout_ms": t.Limits.WallTime.Milliseconds(),
					"result_bytes": t.Limits.Output, "calls": t.Limits.Calls, "log_lines": t.Limits.LogLines,
				},
			})
			if err != nil {
				return err
			}
			continue
		}
		if i == 0 {
			memory, result := size(t.Limits.MemoryPages)<<16, size(t.Limits.Output)
			fmt.Fprintf(a.stdout, "plugin %s, level %d\n  digest      %s\n  kv          %s\n  limits      %s memory, %s a call, %s of result, %d operations\n",
				visible(t.Plugin), t.Level, t.Digest, orNone(t.Permissions.KV), &memory, t.Limits.WallTime, &result, t.Limits.Calls)
		}
		fmt.Fprintf(a.stdout, "\ntool %s (%s)\n  %s\n  input   %s\n", visible(t.Name), visible(t.Effects), cut(t.Description, shownChars), showJSON(t.InputSchema, shownChars))
		if len(t.OutputSchema) > 0 {
			fmt.Fprintf(a.stdout, "  output  %s\n", showJSON(t.OutputSchema, shownChars))
		}
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return visible(s)
}

// showResult prints how an offline call ended: the result to stdout, what it logged and would have written to stderr.
func (a *app) showResult(r *plugins.Result) error {
	for _, l := range r.Logs {
		fmt.Fprintf(a.stderr, "log %s: %s\n", visible(l.Level), visible(l.Message))
	}
	sort.Slice(r.Writes, func(i, j int) bool { return r.Writes[i].Key < r.Writes[j].Key })
	for _, w := range r.Writes {
		if w.Deleted {
			fmt.Fprintf(a.stderr, "kv delete %s\n", cut(w.Key, 200))
		} else {
			fmt.Fprintf(a.stderr, "kv put %s: %s\n", cut(w.Key, 200), cut(string(w.Value), 200))
		}
	}
	switch {
	case r.Failure != nil:
		code := r.Failure.Code
		if r.Failure.ToolCode != "" {
			code += " " + r.Failure.ToolCode
		}
		return fmt.Errorf("the call failed: %s: %s", visible(code), visible(r.Failure.Message))
	case r.Pause != nil:
		fmt.Fprintf(a.stderr, "the tool pauses (%s)\n", visible(r.Pause.Reason))
		if len(r.Pause.Schema) > 0 {
			fmt.Fprintf(a.stderr, "an answer must match %s\n", visibleJSON(string(r.Pause.Schema)))
		}
		if err := a.printRaw(r.Pause.Payload); err != nil {
			return err
		}
		return errWaiting
	}
	return a.printRaw(r.Output)
}
