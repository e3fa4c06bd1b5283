package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

func tasks(n int) string {
	var calls []string
	for i := range n {
		calls = append(calls, task(fmt.Sprint("t", i), "w", "x"))
	}
	return strings.Join(calls, ",")
}

func bigTransfers(n, size int) string {
	var calls []string
	for i := range n {
		calls = append(calls, fmt.Sprintf(`{"tool_call_id":"p%d","tool":"transfer","arguments":{"amount":1,"to":%q}}`, i, strings.Repeat("x", size)))
	}
	return strings.Join(calls, ",")
}

// A run whose frames hold more arguments than a commit does can still pause, be decided, cancelled, superseded and expire; and whatever
// becomes of it, the sweep goes on with what is due in other tenants.
func TestLimits_WhatARunHoldsNeverKeepsItFromEnding(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(h *hosttest.Host, r host.Run) error{
		"cancelled": func(h *hosttest.Host, r host.Run) error {
			_, err := h.Cancel(t.Context(), hosttest.Owner, r.ID)
			return err
		},
		"superseded": func(h *hosttest.Host, r host.Run) error { _, err := say(h, hosttest.Member, r.ID, true); return err },
		"rejected": func(h *hosttest.Host, r host.Run) error {
			_, err := h.DecideAll(hosttest.Admin, r, "reject")
			return err
		},
		"expired": func(h *hosttest.Host, _ host.Run) error {
			h.Clock.Advance(48 * time.Hour)
			return h.Sweep(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Agent("wide", scripted(`[{"calls":[`+tasks(16)+`]},{"final":"done"}]`, `,"interrupt_on":{"transfer":true},"subagents":[`+
				sub("w", `[{"calls":[`+bigTransfers(15, 60<<10)+`]},{"final":1}]`, "")+`]`))
			r := h.Settled(h.Create(hosttest.Member, "wide").ID)
			if r.Pause == nil || len(r.Pause.Approvals) != 240 || !strings.Contains(string(r.Pause.Approvals[239].Arguments), "xxx") {
				t.Fatalf("the run is %s: %+v", r.State, r.Error)
			}
			_, _, err := h.SaveAgent(t.Context(), hosttest.OtherAdmin, "small", hosttest.Body(json.RawMessage(scripted(`[{"calls":[`+pay+`]},{"final":1}]`, `,"interrupt_on":{"transfer":true}`))))
			if err != nil {
				t.Fatal(err)
			}
			small := h.Create(hosttest.OtherMember, "small")
			if err := end(h, r); err != nil {
				t.Fatal(err)
			}
			if r = h.Settled(r.ID); !r.State.Ended() {
				t.Errorf("the run is %s", r.State)
			}
			h.Clock.Advance(48 * time.Hour)
			if err := h.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			if small, err = h.GetRun(t.Context(), hosttest.OtherAdmin, small.ID); err != nil || small.State != store.RunFailed {
				t.Errorf("the other tenant's run, two days later: %s %v", small.State, err)
			}
		})
	}
}

// A run that ends in one frame, while a tool runs in another and a third waits, leaves no call open; what the tool brings is recorded.
func TestInvariant9_ARunThatEndsInOneFrameEndsTheOthers(t *testing.T) {
	t.Parallel()
	started, leave := make(chan struct{}), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"brief": func(ctx context.Context, s *plugins.Session) error {
		<-started
		for began := time.Now(); time.Since(began) < 5*time.Millisecond; { // active time
		}
		_, err := hosttest.Op(ctx, s, "output", true)
		return err
	}, "longer": func(ctx context.Context, s *plugins.Session) error {
		close(started)
		<-leave
		_, err := hosttest.Op(context.WithoutCancel(ctx), s, "output", "finished")
		return err
	}}})
	h.Agent("lead", strings.ReplaceAll(scripted(`[{"calls":[`+task("a", "x", "1")+`,`+task("b", "y", "2")+`,`+task("c", "z", "3")+`]},{"final":"done"}]`,
		`,"limits":{"active":"1ms"},"interrupt_on":{"transfer":true},"subagents":[`+sub("x", `[{"calls":[{"tool_call_id":"s","tool":"brief","arguments":{}}]},{"final":1}]`, "")+`,`+
			sub("y", `[{"calls":[`+pay+`]},{"final":1}]`, "")+`,`+sub("z", `[{"calls":[{"tool_call_id":"l","tool":"longer","arguments":{}}]},{"final":1}]`, "")+`]`), `"fail"`, `"brief","longer"`))
	id := h.Create(hosttest.Member, "lead").ID
	r := h.Settled(id)
	if r.State != store.RunFailed || r.Error == nil || r.Error.Code != "limit" {
		t.Fatalf("the run is %s: %+v", r.State, r.Error)
	}
	close(leave)
	for deadline := time.Now().Add(20 * time.Second); byLabel(r, "l")[0].State != store.CallFinished; {
		var err error
		if r, err = h.GetRun(t.Context(), hosttest.Owner, id); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("what ran in another frame never ended")
		}
	}
	for _, c := range r.Calls {
		if c.State != store.CallFinished {
			t.Errorf("call %s is %s", c.ToolCallID, c.State)
		}
	}
	if got := string(byLabel(r, "l")[0].Result); got != `"finished"` {
		t.Errorf("its result is %s", got)
	}
}

// A tool that had run and asked is not told that it did not run, and what somebody had answered stands.
func TestSupersede_TellsTheTruthOfWhatHadRun(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"save_and_ask": func(ctx context.Context, s *plugins.Session) error {
		if _, err := hosttest.Op(ctx, s, "kv.put", map[string]string{"key": "/notes/x", "value": "saved"}); err != nil {
			return err
		}
		_, err := hosttest.Op(ctx, s, "pause", json.RawMessage(s.Arguments()))
		return err
	}}})
	asking := func(label, reason string) string {
		return fmt.Sprintf(`{"tool_call_id":%q,"tool":"save_and_ask","arguments":{"reason":%q,"payload":{}}}`, label, reason)
	}
	h.Agent("a", strings.ReplaceAll(scripted(`[{"calls":[`+asking("answered", "await_input")+`,`+asking("open", "approval_required")+`,`+pay+`]},{"final":"done"}]`, ""), `"fail"`, `"save_and_ask"`))
	r := h.Settled(h.Create(hosttest.Member, "a").ID)
	if _, err := h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "respond", Value: raw(`"mine"`)}); err != nil {
		t.Fatal(err)
	}
	if _, err := say(h, hosttest.Member, r.ID, true); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if c := byLabel(r, "answered")[0]; !strings.Contains(string(c.Result), `"user_input":"mine"`) {
		t.Errorf("an answered question ended with %s %+v", c.Result, c.Error)
	}
	if c := byLabel(r, "open")[0]; c.Error == nil || strings.Contains(c.Error.Message, "did not run") || !strings.Contains(c.Error.Message, "wrote before stays") {
		t.Errorf("a question that nobody answered ended with %+v", c.Error)
	}
}

// The limit of turns refuses a further batch, and not the end after the last one.
func TestLimits_TheLastTurnMayBeAnswered(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("default", `{"planner":{"kind":"external"},"tools":["echo"],"limits":{"turns":1}}`)
	out, err := h.CallTool(t.Context(), hosttest.Member, "echo", host.Idempotency{}, hosttest.Body(host.DirectCall{Arguments: raw(`{"a":1}`)}))
	if err != nil || out.Error != nil || string(out.Result) != `{"a":1}` {
		t.Errorf("a direct call: %s %+v %v", out.Result, out.Error, err)
	}
	h.Agent("once", scripted(`[{"calls":[`+pay+`]},{"final":"done"}]`, `,"limits":{"turns":1}`))
	if r := h.Settled(h.Create(hosttest.Member, "once").ID); r.State != store.RunSucceeded {
		t.Errorf("the run is %s: %+v", r.State, r.Error)
	}
	r := h.Settled(h.Batch(hosttest.Member, "default", `[{"tool":"echo","arguments":{}}]`).ID)
	turn := 2
	r, err = h.Propose(t.Context(), hosttest.Member, r.ID, host.Idempotency{}, hosttest.Body(host.Batch{Turn: &turn, Calls: []host.ProposedCall{{Tool: "echo"}}}))
	if err != nil || r.State != store.RunFailed || r.Error.Code != "limit" || h.Ran.Count("echo") != 2 {
		t.Errorf("a batch too many: %s %+v %v; ran %q", r.State, r.Error, err, h.Ran.All())
	}
}

func TestLimits_ASubagentsActiveTimeIsItsOwn(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"slow": func(ctx context.Context, s *plugins.Session) error {
		for began := time.Now(); time.Since(began) < 5*time.Millisecond; {
		}
		_, err := hosttest.Op(ctx, s, "output", true)
		return err
	}}})
	slow := `{"calls":[{"tool":"slow","arguments":{}}]},`
	h.Agent("lead", strings.ReplaceAll(scripted(`[{"calls":[`+task("a", "x", "1")+`]},{"final":"done"}]`,
		`,"subagents":[`+sub("x", `[`+slow+slow+`{"final":1}]`, `,"limits":{"active":"1ms"}`)+`]`), `"fail"`, `"slow"`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	if c := byLabel(r, "a")[0]; c.Error == nil || c.Error.Code != "limit" || h.Ran.Count("slow") != 1 || r.State != store.RunSucceeded {
		t.Errorf("its tool ran %d times; its task ended with %s %+v", h.Ran.Count("slow"), c.Result, c.Error)
	}
}

// The trusted flag is for the agent whose tool asked: a sibling with the same call, which was rejected, does not get it.
func TestTrustedFlag_IsForTheSubagentThatAsked(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	gw := `{"tool_call_id":"g","tool":"gated_write","arguments":{}}`
	h.Agent("lead", scripted(`[{"calls":[`+task("a", "x", "1")+`,`+task("b", "y", "2")+`]},{"final":"done"}]`,
		`,"subagents":[`+sub("x", `[{"calls":[`+gw+`]},{"final":1}]`, "")+`,`+sub("y", `[{"calls":[`+gw+`]},{"calls":[`+gw+`]},{"final":1}]`, "")+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	var ds []host.Decision
	for _, a := range r.Pause.Approvals {
		ds = append(ds, host.Decision{ApprovalID: a.ID, Kind: map[string]string{"x": "approve", "y": "reject"}[a.Subagent]})
	}
	if _, err := h.Answer(hosttest.Admin, r.ID, ds...); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.Pause == nil || len(r.Pause.Approvals) != 1 || r.Pause.Approvals[0].Subagent != "y" {
		t.Errorf("x was approved and y was not; what is asked now: %+v", r.Pause)
	}
}

// Nor does another task of the same subagent.
func TestTrustedFlag_IsForTheTaskThatAsked(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	gw := `{"tool_call_id":"g","tool":"gated_write","arguments":{}}`
	h.Agent("lead", scripted(`[{"calls":[`+task("a", "y", "1")+`,`+task("b", "y", "2")+`]},{"final":"done"}]`, `,"subagents":[`+sub("y", `[{"calls":[`+gw+`]},{"calls":[`+gw+`]},{"final":1}]`, "")+`]`))
	r := h.Settled(h.Create(hosttest.Member, "lead").ID)
	a := byLabel(r, "a")[0].ID
	var ds []host.Decision
	for _, ap := range r.Pause.Approvals {
		ds = append(ds, host.Decision{ApprovalID: ap.ID, Kind: map[bool]string{true: "approve", false: "reject"}[ap.ParentCallID == a]})
	}
	if _, err := h.Answer(hosttest.Admin, r.ID, ds...); err != nil {
		t.Fatal(err)
	}
	for _, c := range byLabel(h.Settled(r.ID), "g") {
		if string(c.Result) == `{"written":true}` && c.ParentCallID != a {
			t.Errorf("the task that was rejected has written: %+v", c)
		}
	}
}

// MX5. A stale button, when the run waits for something else by now, is told what became of its approval: 409 with who decided it, or
// that it was superseded; never that its presser may not press it.
func TestInvariant9_AStaleButtonIsToldWhatBecameOfItsApproval(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"calls":[{"tool":"transfer","arguments":{"amount":2}}]},{"final":1}]`, gatedTransfer)
	for _, end := range []string{"decided", "superseded"} {
		r := h.Create(hosttest.Member, "pay")
		stale := r.Pause.Approvals[0].ID
		var err error
		if end == "decided" {
			_, err = h.DecideAll(hosttest.Owner, r, "reject")
		} else {
			_, err = say(h, hosttest.Member, r.ID, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		if r = h.Settled(r.ID); r.Pause == nil || r.Pause.Approvals[0].ID == stale {
			t.Fatalf("%s: the run is %s", end, r.State)
		}
		before := h.Stored()
		_, err = h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: stale, Kind: "approve"})
		if end == "superseded" {
			refusal(t, err, host.CodeWrongState)
		} else if e := refusal(t, err, host.CodeAlreadyDecided); !slices.ContainsFunc(e.Decisions, func(d host.DecidedBy) bool {
			return d.ApprovalID == stale && d.DecidedBy == "owner" && d.Kind == "reject"
		}) {
			t.Errorf("told %+v", e.Decisions)
		}
		h.Unchanged(before)
	}
}

// A late result of a cancelled run, whose reads another run has changed meanwhile, ends the call: nothing tries for ever.
func TestInvariant9_ALateResultThatCannotBeKeptEndsItsCall(t *testing.T) {
	t.Parallel()
	started, leave := make(chan struct{}), make(chan struct{})
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"rmw": func(ctx context.Context, s *plugins.Session) error {
		ctx = context.WithoutCancel(ctx)
		_, _ = hosttest.Op(ctx, s, "kv.get", map[string]string{"key": "/notes/k"})
		close(started)
		<-leave
		if _, err := hosttest.Op(ctx, s, "kv.put", map[string]string{"key": "/notes/k", "value": "late"}); err != nil {
			return err
		}
		_, err := hosttest.Op(ctx, s, "output", true)
		return err
	}}})
	h.Agent("a", strings.ReplaceAll(scripted(`[{"calls":[`+task("t", "w", "x")+`]},{"final":1}]`, `,"subagents":[`+sub("w", `[{"calls":[{"tool_call_id":"m","tool":"rmw","arguments":{}}]},{"final":1}]`, "")+`]`), `"fail"`, `"rmw"`))
	h.Script("b", `[{"calls":[{"tool":"write_file","arguments":{"path":"/notes/k","content":"other"}}]},{"final":1}]`, "")
	id := h.Create(hosttest.Member, "a").ID
	<-started
	if r := h.Settled(h.Create(hosttest.Member, "b").ID); r.State != store.RunSucceeded {
		t.Fatal(r.State)
	}
	r, err := h.Cancel(t.Context(), hosttest.Member, id)
	if err != nil {
		t.Fatal(err)
	}
	close(leave)
	for deadline := time.Now().Add(20 * time.Second); byLabel(r, "m")[0].State != store.CallFinished; {
		if r, err = h.GetRun(t.Context(), hosttest.Owner, id); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the call never ended")
		}
	}
	if c := byLabel(r, "m")[0]; c.Error == nil || c.Error.Code != "cancelled" || !strings.Contains(c.Error.Message, "changed what it read") {
		t.Errorf("it ended with %s %+v", c.Result, c.Error)
	}
}

// null is as if a member were not there: a subagent that says interrupt_on: null inherits.
func TestInvariant5_NullIsNoInterruptOn(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("a", scripted(`[{"calls":[`+task("t", "w", "x")+`]},{"final":1}]`, `,"interrupt_on":{"transfer":true},"subagents":[`+sub("w", `[{"calls":[`+pay+`]},{"final":1}]`, `,"interrupt_on":null`)+`]`))
	if r := h.Settled(h.Create(hosttest.Member, "a").ID); r.State != store.RunAwaitingApproval {
		t.Errorf("the run is %s, ran %q", r.State, h.Ran.All())
	}
}

// A crash interrupts a call, a new rule stops its sibling: however that pause ends, the interrupted call ends with it, and does not run
// once a newer message has come.
func TestInvariant9_AnInterruptedCallBesideANewStop(t *testing.T) {
	t.Parallel()
	turns := `[{"calls":[{"tool_call_id":"s","tool":"slow","arguments":{}},{"tool_call_id":"e","tool":"echo","arguments":{}}]},{"final":1}]`
	for _, doc := range []string{scripted(turns, ""), scripted(`[{"calls":[`+task("t", "w", "x")+`]},{"final":"done"}]`, `,"subagents":[`+sub("w", turns, "")+`]`)} {
		for _, end := range []string{"expire", "cancel", "supersede", "approve"} {
			t.Run(end, func(t *testing.T) {
				t.Parallel()
				var attempts atomic.Int64
				began := make(chan struct{}, 1)
				tools := map[string]hosttest.Func{"slow": func(ctx context.Context, s *plugins.Session) error {
					if attempts.Add(1) == 1 {
						began <- struct{}{}
						<-ctx.Done()
						return ctx.Err()
					}
					_, err := hosttest.Op(ctx, s, "output", "slow")
					return err
				}}
				h := hosttest.New(t, hosttest.Options{Tools: tools, Config: func(c *host.Config) { c.Grace = 1 }})
				h.Agent("a", strings.ReplaceAll(doc, `"fail"`, `"slow"`))
				id := h.Create(hosttest.Member, "a").ID
				<-began
				h = restart(t, h, hosttest.Options{Tools: tools, Rules: rules(pauseEcho)})
				r := h.Settled(id)
				if r.Pause == nil {
					t.Fatalf("the run is %s", r.State)
				}
				var err error
				switch end {
				case "expire":
					h.Clock.Advance(25 * time.Hour)
					err = h.Sweep(t.Context())
				case "cancel":
					_, err = h.Cancel(t.Context(), hosttest.Member, id)
				case "supersede":
					_, err = say(h, hosttest.Member, id, true)
				case "approve":
					_, err = h.DecideAll(hosttest.Admin, r, "approve")
				}
				if err != nil {
					t.Fatal(err)
				}
				r = h.Settled(id)
				for _, c := range r.Calls {
					if !r.State.Ended() || c.State != store.CallFinished {
						t.Errorf("the run is %s and call %s is %s", r.State, c.ToolCallID, c.State)
					}
				}
				if n := attempts.Load(); (n > 1) != (end == "approve") {
					t.Errorf("the interrupted call ran %d times", n)
				}
			})
		}
	}
}

// The same answer by token once more, while another party's part is open, was given already: it is no bad request.
func TestInvariant9_AnAnswerTwiceWhileAnotherPartIsOpen(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("lead", scripted(`[{"calls":[`+task("a", "x", "1")+`,`+task("b", "y", "2")+`]},{"final":"done"}]`, `,"interrupt_on":{"transfer":true},"subagents":[`+
		sub("x", `[{"calls":[{"tool":"ask","arguments":{"reason":"await_input","payload":{}}}]},{"final":1}]`, "")+`,`+sub("y", `[{"calls":[`+pay+`]},{"final":1}]`, "")+`]`))
	r, err := h.GetRun(t.Context(), hosttest.Member, h.Settled(h.Create(hosttest.Member, "lead").ID).ID)
	if err != nil {
		t.Fatal(err)
	}
	answer := func() error {
		_, err := h.Resume(t.Context(), hosttest.Member, r.Pause.ResumeToken, host.Idempotency{}, hosttest.Body(host.Answer{UserInput: raw(`"x"`)}))
		return err
	}
	if err := answer(); err != nil {
		t.Fatal(err)
	}
	refusal(t, answer(), host.CodeAlreadyDecided)
}
