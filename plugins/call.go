package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Call is one tool call. The JSON members are canonical I-JSON that the host has checked.
type Call struct {
	Tool        *Tool
	Owner       string // whose call it is: no owner has all slots for guests
	RunID       string
	CallID      string
	Arguments   json.RawMessage // an object, as [Tool.Check] filled it
	ToolContext json.RawMessage // an object; nil is {}
	Approvals   json.RawMessage // an object; nil is {}
	Time        time.Time       // where the guest's clock begins; give the same one when the call is run again
	KV          KV
	Progress    func(json.RawMessage) // nil drops it; called by the call's goroutine, must not block
}

// Call runs one call to its end. It never fails itself: how the call ended is in the [Result]. It returns within the
// plugin's wall time, or soon after ctx ends, with the exceptions that the package's documentation names.
func (s *Set) Call(ctx context.Context, c Call) *Result {
	if !s.enter() {
		return &Result{Failure: &Failure{Code: CodeCancelled, Message: "the host is shutting down", Retryable: true}}
	}
	defer s.calls.Done()
	p := c.Tool.plugin
	if p.guest != nil {
		release, err := s.slots.acquire(ctx, c.Owner)
		if err != nil {
			return &Result{Failure: &Failure{Code: CodeCancelled, Message: "the call was cancelled before it began", Retryable: true}}
		}
		defer release()
	}
	start := time.Now()
	ses := &Session{call: &c, lim: p.limits}
	if p.guest != nil && p.guest.level == abi.LevelCalls {
		ses.nonce = newNonce()
	}
	ses.request = requestDocument(&c, ses.nonce)
	run, cancel := context.WithTimeout(ctx, p.limits.WallTime)
	defer cancel()
	err := s.run(run, p, ses)
	ses.over = true
	r := ses.result(ctx, run, err)
	r.Active = time.Since(start)
	return r
}

// crash is a panic of a Go function, or of the runtime.
type crash struct{ reason string }

func (c *crash) Error() string { return c.reason }

func (s *Set) run(ctx context.Context, p *plugin, ses *Session) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			var over limitError
			if errors.Is(r, errPaused) || errors.As(r, &over) {
				err = r
				return
			}
			s.log.Error("tool panicked", "plugin", p.name, "panic", r.Error(), "stack", string(debug.Stack()))
			err = &crash{r.Error()}
		default:
			s.log.Error("tool panicked", "plugin", p.name, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = &crash{fmt.Sprint(r)}
		}
	}()
	if len(ses.request) > abi.MaxAnswer {
		return limitError(fmt.Sprintf("the request is %d bytes; a tool is given at most %d", len(ses.request), abi.MaxAnswer))
	}
	switch {
	case p.fn != nil:
		if err := ctx.Err(); err != nil {
			return err
		}
		return p.fn(ctx, ses)
	case p.guest.level == abi.LevelCore:
		status, err := p.guest.core(ctx, ses, abi.ExportCall)
		if err == nil {
			ses.status = int32(status)
		}
		return err
	}
	return p.guest.command(ctx, ses)
}
