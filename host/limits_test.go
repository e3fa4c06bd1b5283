package host_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

func TestStore_TheHeadOfARunStaysBelow4KiB(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"shout": func(ctx context.Context, s *plugins.Session) error {
		return fmt.Errorf("%s", strings.Repeat("\x01\x02\u2028<", 4<<10))
	}}})
	h.External("default", `{}`)
	check := func(what, run string) {
		t.Helper()
		if n := len(h.Stored()[string(store.K("t", "demo", "run", run))]); n == 0 || n > 4<<10 {
			t.Errorf("%s: the head has %d bytes, at most 4 KiB are allowed: lists, claims and decisions read it", what, n)
		}
	}
	// Flags that wait for their calls.
	var calls []string
	for i := range 40 {
		calls = append(calls, fmt.Sprintf(`{"tool":"ask","arguments":{"reason":"approval_required","payload":{"approval_key":"%03d%s"}}}`, i, strings.Repeat("k", 200)))
	}
	r := h.Settled(h.Batch(hosttest.Member, "default", "["+strings.Join(calls, ",")+"]").ID)
	check("40 open approvals", r.ID)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	check("40 approvals granted", r.ID)
	// The longest error that a tool can make the run end with.
	out, err := h.CallTool(t.Context(), hosttest.Member, "shout", host.Idempotency{}, hosttest.Body(host.DirectCall{Arguments: raw(`{}`)}))
	if err != nil || out.Error == nil || out.Error.Message == "" {
		t.Fatalf("%+v, %v", out, err)
	}
	check("a long error", out.Run.ID)
	long, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "default", SessionID: strings.Repeat("\x01", 256), Input: raw(`"` + strings.Repeat("i", 60<<10) + `"`)}))
	if err == nil {
		check("a long session", long.ID)
	}
}

// What a tool may do within its limits must fit into one commit, or end with an error: a run that cannot be recorded hangs.
// Public failure HS4.
func TestLimits_WhatFitsTheLimitsIsRecorded(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{
		"fill": func(ctx context.Context, s *plugins.Session) error {
			for i := range 70 {
				value := strings.Repeat("v", 60<<10)
				if _, err := hosttest.Op(ctx, s, "kv.put", map[string]string{"key": fmt.Sprint(i), "value": value}); err != nil {
					break // its limit; what was written until here counts
				}
			}
			_, err := hosttest.Op(ctx, s, "output", "filled")
			return err
		},
		"shout": func(ctx context.Context, s *plugins.Session) error {
			for n := 2 << 20; n > 0; n /= 2 {
				if _, err := hosttest.Op(ctx, s, "output", strings.Repeat("o", n)); err == nil {
					return nil
				}
			}
			return nil
		},
		"beg": func(ctx context.Context, s *plugins.Session) error {
			_, err := hosttest.Op(ctx, s, "pause", map[string]any{"reason": "await_input", "payload": map[string]string{"p": strings.Repeat("p", 64<<10-10)}})
			return err
		},
	}})
	h.External("all", `{}`)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	settled := func(calls string) host.Run {
		t.Helper()
		r := h.Batch(hosttest.Member, "all", calls)
		r, err := h.WaitRun(ctx, hosttest.Member, r.ID)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("run %s for ever, %v; log:\n%.3000s", r.State, err, lastLines(h.Log.String()))
		}
		return r
	}
	if r := settled(`[{"tool":"shout"}]`); r.Calls[0].State != store.CallFinished {
		t.Errorf("the call is %s", r.Calls[0].State)
	}
	if r := settled(`[{"tool":"fill"},{"tool":"echo"}]`); resultOf(r.Calls[1]) != "{}" {
		t.Errorf("results %.200s", resultsOf(r))
	}
	r := settled("[" + strings.Repeat(`{"tool":"beg"},`, 127) + `{"tool":"beg"}]`)
	if r.Pause == nil || len(r.Pause.Approvals) == 0 {
		t.Fatalf("state %s, error %+v, results %.200s, log %.2000s", r.State, r.Error, resultsOf(r), lastLines(h.Log.String()))
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "respond"); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); r.State != store.RunAwaitingPlanner {
		t.Errorf("state %s", r.State)
	}
}

func lastLines(s string) string { return s[max(0, len(s)-3000):] }
