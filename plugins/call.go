package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/sys"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Call is one tool call. The JSON members are canonical I-JSON that the host has checked.
type Call struct {
	Tool        *Tool
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
	start := time.Now()
	p := c.Tool.plugin
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

// result says how the call ended.
func (s *Session) result(host, run context.Context, err error) *Result {
	r := &Result{Logs: s.logs.closed()}
	if r.Failure = s.ended(host, run, s.lim.WallTime, err); r.Failure != nil {
		return r
	}
	r.Reads = s.kv.preconditions()
	r.Writes = s.kv.writes()
	if r.Pause = s.pause; r.Pause != nil {
		return r
	}
	if r.Output, r.Failure = s.value(); r.Failure != nil {
		r.Reads, r.Writes = nil, nil // a failed call leaves nothing behind
	}
	return r
}

// ended tells why a guest did not come to a regular end, nil if it did or paused.
func (s *Session) ended(host, run context.Context, limit time.Duration, err error) *Failure {
	var over limitError
	var exit *sys.ExitError
	switch {
	case err == nil, s.pause != nil:
		return nil
	case errors.As(err, &over):
		return &Failure{Code: CodeLimit, Message: string(over)}
	case run.Err() != nil && errors.Is(host.Err(), context.Canceled):
		return &Failure{Code: CodeCancelled, Message: "the host cancelled the call", Retryable: true}
	case run.Err() != nil:
		return &Failure{Code: CodeTimeout, Message: fmt.Sprintf("it did not end within %s", limit)}
	case isExit0(err):
		return nil
	}
	if s.memory.denied && s.failure == nil {
		return &Failure{Code: CodeLimit, Message: fmt.Sprintf("it ran out of memory; its limit is %d KiB", s.memory.limit>>10)}
	}
	var c *crash
	switch {
	case errors.As(err, &exit):
		if s.failure != nil {
			return s.failure
		}
		return toolError("%s", exitMessage(exit.ExitCode(), s.stderr))
	case errors.As(err, &c):
		return &Failure{Code: CodeCrashed, Message: cut(c.reason, 1024)}
	case s.call.Tool != nil && s.call.Tool.plugin.fn != nil:
		if s.failure != nil {
			return s.failure
		}
		return toolError("%s", cut(valid(err.Error()), abi.MaxMessage))
	}
	return &Failure{Code: CodeCrashed, Message: crashMessage(err)}
}

// crashMessage is the trap and where it happened, without the rest of a deep stack.
func crashMessage(err error) string {
	lines := strings.Split(valid(err.Error()), "\n")
	return cut(strings.Join(lines[:min(8, len(lines))], "\n"), 1024)
}

func isExit0(err error) bool {
	var exit *sys.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == 0
}

func exitMessage(code uint32, stderr []byte) string {
	tail := strings.TrimSpace(valid(string(stderr)))
	if tail == "" {
		return fmt.Sprintf("it ended with exit status %d and no word on standard error", code)
	}
	return fmt.Sprintf("it ended with exit status %d: %s", code, tail)
}

func toolError(format string, args ...any) *Failure {
	return &Failure{Code: CodeToolError, Message: fmt.Sprintf(format, args...)}
}

// value is the result of a guest that ended by itself, checked.
func (s *Session) value() (json.RawMessage, *Failure) {
	var over limitError
	switch {
	case s.failure != nil:
		return nil, s.failure
	case s.status != 0:
		return nil, toolError("%s returned %d; a tool says why with fail", abi.ExportCall, s.status)
	case s.output != nil:
	case errors.As(s.refused, &over):
		return nil, &Failure{Code: CodeLimit, Message: string(over)}
	case s.refused != nil:
		return nil, toolError("%v", s.refused)
	case len(s.printed) > 0:
		if err := checkIJSON(s.printed); err != nil {
			return nil, toolError("what it printed is not one I-JSON value: %v", err)
		}
		s.output = s.printed
	default:
		return nil, toolError("it ended without a result; a result of nothing is null")
	}
	if schema := s.call.Tool.result; schema != nil {
		if err := schema.validate(s.output); err != nil {
			return nil, toolError("its result does not match its output_schema: %v", err)
		}
	}
	return s.output, nil
}
