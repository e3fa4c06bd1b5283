package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

// wire is an event as a client parses it.
type wire struct {
	Seq         uint64          `json:"seq"`
	Type        string          `json:"type"`
	Time        string          `json:"time"`
	RunID       string          `json:"run_id"`
	CallID      string          `json:"call_id"`
	ToolCallID  string          `json:"tool_call_id"`
	PauseID     string          `json:"pause_id"`
	ApprovalID  string          `json:"approval_id"`
	ApprovalIDs []string        `json:"approval_ids"`
	Approval    json.RawMessage `json:"approval"`
	Decision    *host.Decided   `json:"decision"`
	Payload     json.RawMessage `json:"payload"`
	Result      json.RawMessage `json:"result"`
	Output      json.RawMessage `json:"output"`
	State       store.RunState  `json:"state"`
	Error       *store.Failure  `json:"error"`
}

func parse(t testing.TB, e host.Event) wire {
	t.Helper()
	var w wire
	if err := json.Unmarshal(e.Data, &w); err != nil {
		t.Fatalf("event %s: %v", e.Data, err)
	}
	if w.Seq != e.Seq || w.Type != e.Type || w.RunID != e.RunID {
		t.Fatalf("event %s does not say %d, %s, %s", e.Data, e.Seq, e.Type, e.RunID)
	}
	return w
}

// logOf reads the whole log of a run, from the start until run.finished or the head.
func logOf(t testing.TB, h *hosttest.Host, a host.Actor, run string) []host.Event {
	t.Helper()
	var zero uint64
	_, head, s, err := h.WatchRun(t.Context(), a, run, &zero)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out []host.Event
	for uint64(len(out)) < head {
		evs, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, evs...)
	}
	return out
}

func typesOf(evs []host.Event) string {
	var types []string
	for _, e := range evs {
		types = append(types, e.Type)
	}
	return strings.Join(types, " ")
}

func TestEvents_TheirOrderForTypicalRuns(t *testing.T) {
	t.Parallel()
	const (
		pay  = `{"calls":[{"tool_call_id":"a","tool":"transfer","arguments":{"amount":1}},{"tool_call_id":"b","tool":"echo","arguments":{}}]}`
		ask  = `{"calls":[{"tool_call_id":"a","tool":"ask","arguments":{"reason":"await_input","payload":{}}},{"tool_call_id":"b","tool":"echo","arguments":{}}]}`
		bad  = `{"calls":[{"tool":"echo","arguments":{}},{"tool":"none"}]}`
		stop = "run.created run.started approval.requested run.paused"
		run  = "call.started call.finished"
		end  = "message run.finished"
	)
	for _, tc := range []struct {
		name, turns string
		act         func(h *hosttest.Host, r host.Run) error
		want        string
	}{
		{"no stop", `[{"calls":[{"tool":"echo","arguments":{}}]},{"final":1}]`, nil, "run.created run.started " + run + " " + end},
		{"only a final", `[{"final":1}]`, nil, "run.created " + end},
		{"no final", `[{"calls":[{"tool":"echo"}]}]`, nil, "run.created run.started " + run + " run.finished"},
		{"an error at the gate", `[` + bad + `,{"final":1}]`, nil, "run.created run.started call.finished " + run + " " + end},
		{"a gate stop, approved", `[` + pay + `,{"final":1}]`, decideAs("approve"), stop + " approval.decided run.resumed " + run + " " + run + " " + end},
		{"a gate stop, rejected", `[` + pay + `,{"final":1}]`, decideAs("reject"), stop + " approval.decided run.resumed call.finished " + run + " " + end},
		{"a gate stop, cancelled", `[` + pay + `,{"final":1}]`, func(h *hosttest.Host, r host.Run) error {
			_, err := h.Cancel(h.Context(), hosttest.Member, r.ID)
			return err
		}, stop + " call.finished call.finished run.finished"},
		{"a gate stop, expired", `[` + pay + `,{"final":1}]`, func(h *hosttest.Host, r host.Run) error {
			h.Clock.Advance(24 * time.Hour)
			return h.Sweep(h.Context())
		}, stop + " approval.expired call.finished call.finished run.finished"},
		{"a tool's question", `[` + ask + `,{"final":1}]`, decideAs("respond"),
			"run.created run.started call.started " + run + " approval.requested run.paused approval.decided run.resumed call.finished " + end},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, hosttest.Options{})
			h.Script("s", tc.turns, gatedTransfer)
			r := h.Settled(h.Create(hosttest.Member, "s").ID)
			if tc.act != nil {
				if err := tc.act(h, r); err != nil {
					t.Fatal(err)
				}
				r = h.Settled(r.ID)
			}
			evs := logOf(t, h, hosttest.Member, r.ID)
			got := strings.ReplaceAll(typesOf(evs), " approval.expiring", "")
			if got != tc.want {
				t.Errorf("events\n got %s\nwant %s", got, tc.want)
			}
			for i, e := range evs {
				w := parse(t, e)
				if w.Seq != uint64(i+1) || w.RunID != r.ID || w.Time == "" {
					t.Errorf("event %d is %s", i+1, e.Data)
				}
			}
			last := parse(t, evs[len(evs)-1])
			if last.State != r.State || string(last.Output) != string(r.Output) || (last.Error == nil) != (r.Error == nil) {
				t.Errorf("run.finished says %s, output %s; the run %s, %s", last.State, last.Output, r.State, r.Output)
			}
			// Nothing follows run.finished, and a reader that has it is told so at once.
			_, head, s, err := h.WatchRun(t.Context(), hosttest.Member, r.ID, &last.Seq)
			if err != nil || head != last.Seq {
				t.Fatalf("head %d, %v", head, err)
			}
			defer s.Close()
			if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("after the last event: %v, want EOF", err)
			}
		})
	}
}

func decideAs(kind string) func(*hosttest.Host, host.Run) error {
	return func(h *hosttest.Host, r host.Run) error {
		_, err := h.DecideAll(hosttest.Admin, r, kind)
		return err
	}
}

// answerOpenPause decides what a run waits for, as an inbox does when it sees run.paused.
func answerOpenPause(t testing.TB, h *hosttest.Host, run string) {
	t.Helper()
	r, err := h.GetRun(t.Context(), hosttest.Admin, run)
	if err != nil || r.Pause == nil {
		t.Fatalf("run.paused was announced and GET shows %s, %v", r.State, err)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
}

const twoStops = `[{"calls":[{"tool":"transfer","arguments":{"amount":1}},{"tool":"echo","arguments":{}}]},` +
	`{"calls":[{"tool":"transfer","arguments":{"amount":2}},{"tool":"fail","arguments":{}}]},{"final":{"done":true}}]`

func TestInvariant13_AReaderThatDropsAfterEveryEventMissesNothing(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("s", twoStops, gatedTransfer)
	r := h.Create(hosttest.Member, "s")
	var got []string
	var cursor uint64
	for ended := false; !ended; {
		_, _, s, err := h.WatchRun(t.Context(), hosttest.Member, r.ID, &cursor)
		if err != nil {
			t.Fatal(err)
		}
		evs, err := s.Next(t.Context())
		s.Close()
		if err != nil {
			t.Fatal(err)
		}
		e := evs[0] // the rest of what was sent is lost with the connection
		if e.Seq != cursor+1 {
			t.Fatalf("after %d came %d", cursor, e.Seq)
		}
		cursor = e.Seq
		got = append(got, string(e.Data))
		if e.Type == "run.paused" {
			answerOpenPause(t, h, r.ID)
		}
		ended = e.Type == "run.finished"
	}
	var whole []string
	for _, e := range logOf(t, h, hosttest.Member, r.ID) {
		whole = append(whole, string(e.Data))
	}
	if !slices.Equal(got, whole) {
		t.Errorf("live\n%s\nlater\n%s", strings.Join(got, "\n"), strings.Join(whole, "\n"))
	}
}

func TestInvariant13_AQueueReaderThatDropsAfterEveryEventMissesNothing(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("s", twoStops, gatedTransfer)
	mine, others := h.Create(hosttest.Member, "s"), h.Create(hosttest.Member2, "s")
	for who, a := range map[string]host.Actor{"admin": hosttest.Admin, "member": hosttest.Member} {
		_, err := h.GetRun(t.Context(), a, mine.ID)
		if err != nil {
			t.Fatal(who, err)
		}
	}
	// Live, one event for each connection.
	cursor, ended := "0", map[string]bool{}
	var live []string
	for len(ended) < 2 {
		_, _, s, err := h.WatchQueue(t.Context(), hosttest.Admin, cursor)
		if err != nil {
			t.Fatal(err)
		}
		evs, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e := evs[0]
		cursor = s.Cursor(e)
		s.Close()
		live = append(live, string(e.Data))
		switch e.Type {
		case "run.paused":
			answerOpenPause(t, h, e.RunID)
		case "run.finished":
			ended[e.RunID] = true
		}
	}
	read := func(a host.Actor, n int) (out []string) {
		_, _, s, err := h.WatchQueue(t.Context(), a, "0")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for len(out) < n {
			evs, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range evs {
				out = append(out, string(e.Data))
			}
		}
		return out
	}
	if whole := read(hosttest.Admin, len(live)); !slices.Equal(live, whole) {
		t.Errorf("live\n%s\nlater\n%s", strings.Join(live, "\n"), strings.Join(whole, "\n"))
	}
	var own []string
	for _, e := range live {
		if strings.Contains(e, mine.ID) {
			own = append(own, e)
		} else if !strings.Contains(e, others.ID) {
			t.Errorf("a queue event of no run: %s", e)
		}
	}
	if got := read(hosttest.Member, len(own)); !slices.Equal(got, own) {
		t.Errorf("a member reads\n%s\nof\n%s", strings.Join(got, "\n"), strings.Join(own, "\n"))
	}
}

func TestInvariant4_WhatWasAnnouncedStaysAsItWasAnnounced(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: rules(`pause contains {"rule": "big"} if { input.call.tool == "transfer"; input.call.arguments.amount > 1000 }`)})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":10}},{"tool":"ask","arguments":{"reason":"approval_required","payload":{"k":"<&>"}}}]`)
	asked := map[string]string{} // approvals as GET shows them while they wait
	look := func() {
		v, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, ap := range v.Pause.Approvals {
			if ap.State == store.ApprovalPending {
				asked[ap.ID] = text(t, ap, nil)
			}
		}
	}
	seen := map[uint64]string{}
	check := func(when string) {
		t.Helper()
		announced := map[string]string{}
		for _, e := range logOf(t, h, hosttest.Member, r.ID) {
			w := parse(t, e)
			if was, ok := seen[e.Seq]; ok && was != string(e.Data) {
				t.Errorf("%s: event %d changed\nfrom %s\nto   %s", when, e.Seq, was, e.Data)
			}
			seen[e.Seq] = string(e.Data)
			if w.Type == "approval.requested" {
				var ap host.Approval
				if err := json.Unmarshal(w.Approval, &ap); err != nil {
					t.Fatal(err)
				}
				announced[ap.ID] = text(t, ap, nil)
			}
		}
		for id, want := range asked {
			if announced[id] != want {
				t.Errorf("%s: announced\n%s\nshown by GET\n%s", when, announced[id], want)
			}
		}
		if len(announced) != len(asked) {
			t.Errorf("%s: %d announced, %d shown by GET", when, len(announced), len(asked))
		}
	}
	look()
	check("at the gate")
	for _, args := range []string{`{"amount":5000}`, `{"amount":6000}`} {
		if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(args)}); err != nil {
			t.Fatal(err)
		}
		r = h.Settled(r.ID)
		look()
		check("after the edit to " + args)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "respond"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if _, err := finish(h, hosttest.Member, r.ID, 2, `"<end>"`); err != nil {
		t.Fatal(err)
	}
	check("after the end")
	results := map[string]string{}
	for _, c := range h.Settled(r.ID).Calls {
		results[c.ID] = string(c.Result)
	}
	for _, e := range logOf(t, h, hosttest.Member, r.ID) {
		if w := parse(t, e); w.Type == "call.finished" && string(w.Result) != results[w.CallID] {
			t.Errorf("call.finished shows %s, the call %s", w.Result, results[w.CallID])
		}
	}
}

// Public failures MX7, ST2.
func TestEvents_TheLiveSetEqualsTheSetThatGETShows(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", `{"transfer":true,"read_echo":true}`)
	var zero uint64
	r := h.Batch(hosttest.Member, "ask", `[{"tool":"transfer","arguments":{"amount":1}},{"tool":"read_echo","arguments":{}},`+
		`{"tool":"ask","arguments":{"reason":"await_input","payload":{}}},{"tool":"ask","arguments":{"reason":"approval_required","payload":{}}}]`)
	_, _, s, err := h.WatchRun(t.Context(), hosttest.Member, r.ID, &zero)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	live, at := map[string]bool{}, uint64(0)
	compare := func(want int) {
		t.Helper()
		_, head, probe, err := h.WatchRun(t.Context(), hosttest.Member, r.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		probe.Close()
		for at < head {
			evs, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range evs {
				at = e.Seq
				switch w := parse(t, e); w.Type {
				case "approval.requested":
					var ap host.Approval
					if err := json.Unmarshal(w.Approval, &ap); err != nil {
						t.Fatal(err)
					}
					live[ap.ID] = true
				case "approval.decided", "approval.expired":
					delete(live, w.ApprovalID)
				case "run.paused":
					for _, id := range w.ApprovalIDs {
						if !live[id] {
							t.Errorf("run.paused names %s, which was not requested", id)
						}
					}
					if len(w.ApprovalIDs) != len(live) {
						t.Errorf("run.paused lists %d of %d", len(w.ApprovalIDs), len(live))
					}
				}
			}
		}
		shown := map[string]bool{}
		aps, err := h.RunApprovals(t.Context(), hosttest.Member, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, ap := range aps {
			if ap.State == store.ApprovalPending {
				shown[ap.ID] = true
			}
		}
		queue, _, err := h.Approvals(t.Context(), hosttest.Member, "pending", host.Page{})
		if err != nil || !maps.Equal(live, shown) || len(queue) != len(shown) || len(shown) != want {
			t.Errorf("live %v, GET %v, queue of %d (%v), want %d", live, shown, len(queue), err, want)
		}
	}
	compare(2)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	compare(2)
	if _, err := h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "respond", Value: raw("1")}); err != nil {
		t.Fatal(err)
	}
	compare(1)
	h = restart(t, h, hosttest.Options{})
	if _, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[1].ID, Kind: "reject"}); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	compare(0)
}

func TestEvents_ASlowReaderCatchesUpFromTheStore(t *testing.T) {
	t.Parallel()
	const lines, calls = 200, 14
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"chatty": func(ctx context.Context, s *plugins.Session) error {
		for i := range lines {
			if _, err := hosttest.Op(ctx, s, "log", map[string]string{"level": "info", "message": fmt.Sprint(i, strings.Repeat("x", 200))}); err != nil {
				return err
			}
		}
		_, err := hosttest.Op(ctx, s, "output", 1)
		return err
	}}})
	h.External("talk", `{}`)
	r := h.Create(hosttest.Member, "talk")
	_, _, s, err := h.WatchRun(t.Context(), hosttest.Member, r.ID, nil) // it holds the ring open, and reads nothing yet
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := propose(h, hosttest.Member, r.ID, batch(1, "["+strings.Repeat(`{"tool":"chatty"},`, calls-1)+`{"tool":"chatty"}]`)); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); resultOf(r.Calls[calls-1]) != "1" {
		t.Fatalf("results %s", resultsOf(r))
	}
	if _, err := finish(h, hosttest.Member, r.ID, 2, "1"); err != nil {
		t.Fatal(err)
	}
	next, logs := uint64(2), 0 // 1 was run.created
	for {
		evs, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range evs {
			if e.Seq != next {
				t.Fatalf("event %d came as %d", next, e.Seq)
			}
			next++
			if e.Type == "call.log" {
				logs++
			}
		}
	}
	if logs != lines*calls {
		t.Errorf("%d log events of %d", logs, lines*calls)
	}
}

// Public failure MX1.
func TestEvents_FiftyParallelPausesHaveTheirOwnIds(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"read_ask": func(ctx context.Context, s *plugins.Session) error {
		_, err := hosttest.Op(ctx, s, "pause", map[string]any{"reason": "await_input", "payload": map[string]any{}})
		return err
	}}})
	h.External("ask", `{"echo":true}`)
	for _, call := range []string{`{"tool":"echo","arguments":{}}`, `{"tool":"read_ask"}`} {
		r := h.Settled(h.Batch(hosttest.Member, "ask", "["+strings.Repeat(call+",", 49)+call+"]").ID)
		ids, calls := map[string]bool{}, map[string]bool{}
		var order []string
		for _, ap := range r.Pause.Approvals {
			ids[ap.ID], calls[ap.CallID] = true, true
			order = append(order, ap.ID)
		}
		if len(ids) != 50 || len(calls) != 50 {
			t.Fatalf("%s: %d approvals for %d calls", call, len(ids), len(calls))
		}
		evs := logOf(t, h, hosttest.Member, r.ID)
		if w := parse(t, evs[len(evs)-1]); w.Type != "run.paused" || !slices.Equal(w.ApprovalIDs, order) {
			t.Errorf("%s: the last event is %s with %d ids", call, w.Type, len(w.ApprovalIDs))
		}
		if _, err := h.DecideAll(hosttest.Admin, r, "respond"); err != nil {
			t.Fatal(err)
		}
		for _, c := range h.Settled(r.ID).Calls {
			if c.State != store.CallFinished || c.Error != nil {
				t.Fatalf("%s: a call is %s: %+v", call, c.State, c.Error)
			}
		}
	}
}

func TestEvents_ACursorThatNobodyGaveIsRefused(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("s", twoStops, gatedTransfer)
	r := h.Create(hosttest.Member, "s")
	beyond := uint64(99)
	_, _, _, err := h.WatchRun(t.Context(), hosttest.Member, r.ID, &beyond)
	if e := refusal(t, err, host.CodeInvalid); e.Pointer != "/after" {
		t.Errorf("pointer %q", e.Pointer)
	}
	for _, c := range []string{"x", "1", "cTE", "cTk5OTk", "\x00", strings.Repeat("a", 10000)} {
		_, _, s, err := h.WatchQueue(t.Context(), hosttest.Admin, c)
		if err == nil {
			s.Close()
			if c != "cTE" { // the cursor after the first event
				t.Errorf("cursor %q was taken", c)
			}
			continue
		}
		refusal(t, err, host.CodeInvalid)
	}
	for _, c := range []string{"x", "====", "\n"} {
		_, _, err := h.ListRuns(t.Context(), hosttest.Admin, host.RunFilter{}, host.Page{Cursor: c})
		refusal(t, err, host.CodeInvalid)
	}
}

func TestEvents_ProgressIsSeenByWhoWatchesAndIsNotStored(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"work": func(ctx context.Context, s *plugins.Session) error {
		if _, err := hosttest.Op(ctx, s, "progress", map[string]any{"message": "half"}); err != nil {
			return err
		}
		_, err := hosttest.Op(ctx, s, "output", 1)
		return err
	}}})
	h.External("work", `{}`)
	r := h.Create(hosttest.Member, "work")
	_, _, s, err := h.WatchRun(t.Context(), hosttest.Member, r.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := propose(h, hosttest.Member, r.ID, batch(1, `[{"tool":"work"}]`)); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if resultOf(r.Calls[0]) != "1" {
		t.Fatalf("the call ended with %s: %+v", resultOf(r.Calls[0]), r.Calls[0].Error)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for seen := false; !seen; {
		evs, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range evs {
			if e.Type == "call.progress" {
				seen = true
				if e.Seq != 0 || !strings.Contains(string(e.Data), `"half"`) || strings.Contains(string(e.Data), `"seq"`) {
					t.Errorf("a transient event is %d: %s", e.Seq, e.Data)
				}
			}
		}
	}
	if got := typesOf(logOf(t, h, hosttest.Member, r.ID)); strings.Contains(got, "progress") {
		t.Errorf("stored: %s", got)
	}
}
