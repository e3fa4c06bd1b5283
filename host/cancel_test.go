package host_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

func TestInvariant9_CancelEndsThePauseOnce(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("ops", memoryWrite, "")
	r := h.Create(hosttest.Member, "ops")
	for range 2 { // again is no error
		v, err := h.Cancel(t.Context(), hosttest.Member, r.ID)
		if err != nil || v.State != store.RunCancelled || v.Pause != nil {
			t.Fatalf("cancel: %v, %s, pause %v", err, v.State, v.Pause)
		}
		if c := v.Calls[0]; c.State != store.CallFinished || c.Error == nil || c.Error.Code != "cancelled" {
			t.Fatalf("the call that never ran: %+v", c)
		}
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); host.CodeOf(err) != host.CodeWrongState {
		t.Errorf("deciding after the cancel: %v", err)
	}
	if _, err := h.Resume(t.Context(), hosttest.Admin, r.Pause.ResumeToken, host.Idempotency{}, hosttest.Body(host.Answer{})); host.CodeOf(err) != host.CodeTokenUsed {
		t.Errorf("the token after the cancel: %v", err)
	}
	if list, _, err := h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{}); err != nil || len(list) != 0 {
		t.Errorf("the queue still shows %d approvals (%v)", len(list), err)
	}
	events := h.Events(r.ID)
	if last := events[len(events)-1]; last["type"] != "run.finished" || last["state"] != "cancelled" {
		t.Errorf("the log ends with %v", last)
	}
	rows := 0
	for _, row := range h.AuditRows("demo") {
		if row.Action == "run.cancel" && row.Outcome == "ok" {
			rows++
		}
	}
	if rows != 1 {
		t.Errorf("%d audit rows for one cancel", rows)
	}
}

// A call that runs while its run is cancelled is interrupted; what it had finished by then is kept, and the log stays ended.
func TestCancel_RecordsAResultThatWasFinished(t *testing.T) {
	t.Parallel()
	for name, finishes := range map[string]bool{"finished": true, "interrupted": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started, release := make(chan struct{}), make(chan struct{})
			h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"slow": func(ctx context.Context, s *plugins.Session) error {
				close(started)
				if !finishes {
					<-ctx.Done()
					return ctx.Err()
				}
				<-release
				if _, err := hosttest.Op(ctx, s, "kv.put", map[string]any{"key": "k", "value": "v"}); err != nil {
					return err
				}
				_, err := hosttest.Op(ctx, s, "output", "made it")
				return err
			}}})
			h.Script("slow", `[{"calls":[{"tool":"slow","arguments":{}},{"tool_call_id":"next","tool":"echo","arguments":{}}]},{"final":1}]`, "")
			r := h.Create(hosttest.Member, "slow")
			<-started
			v, err := h.Cancel(t.Context(), hosttest.Member, r.ID)
			if err != nil || v.State != store.RunCancelled || v.Calls[0].State != store.CallStarted {
				t.Fatalf("cancel: %v, %s, %+v", err, v.State, v.Calls)
			}
			before := len(h.Events(r.ID))
			close(release)
			h.Stop() // waits for the driver
			v, err = h.GetRun(t.Context(), hosttest.Member, r.ID)
			if err != nil || v.State != store.RunCancelled {
				t.Fatalf("%v, %s", err, v.State)
			}
			c := v.Calls[0]
			switch {
			case c.State != store.CallFinished:
				t.Errorf("the interrupted call is %s", c.State)
			case finishes && string(c.Result) != `"made it"` && (c.Error == nil || c.Error.Code != "cancelled"):
				t.Errorf("the finished call: %+v", c)
			case !finishes && (c.Error == nil || c.Error.Code != "cancelled"):
				t.Errorf("the interrupted call ended with %+v", c.Error)
			}
			if next := v.Calls[1]; next.Error == nil || next.Error.Code != "cancelled" || h.Ran.Count("echo") != 0 {
				t.Errorf("the call after it: %+v, ran %d", next, h.Ran.Count("echo"))
			}
			if after := len(h.Events(r.ID)); after != before {
				t.Errorf("%d events follow run.finished", after-before)
			}
			if n := strings.Count(h.Log.String(), "could not be driven"); n != 0 {
				t.Errorf("the driver failed: %s", h.Log)
			}
		})
	}
}

// A cancel races a decision: one of them wins, and the run ends once either way.
func TestInvariant9_CancelRacesADecision(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("pay", `[{"calls":[{"tool":"transfer","arguments":{"amount":1}}]},{"final":1}]`, `{"transfer":true}`)
	for range 100 {
		r := h.Create(hosttest.Member, "pay")
		done := make(chan error, 2)
		go func() { _, err := h.DecideAll(hosttest.Admin, r, "approve"); done <- err }()
		go func() { _, err := h.Cancel(context.Background(), hosttest.Member, r.ID); done <- err }()
		for range 2 {
			if err := <-done; err != nil && host.CodeOf(err) != host.CodeWrongState {
				t.Fatal(err)
			}
		}
		v := h.Settled(r.ID)
		finished := 0
		for _, e := range h.Events(r.ID) {
			if e["type"] == "run.finished" {
				finished++
			}
		}
		if !v.State.Ended() || finished != 1 {
			t.Fatalf("the run is %s with %d ends", v.State, finished)
		}
	}
}
