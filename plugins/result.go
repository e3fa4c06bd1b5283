package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/sys"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Failure is why a call has no result.
type Failure struct {
	Code      string // one of the codes below
	Message   string
	ToolCode  string // the tool's own word, with CodeToolError
	Retryable bool   // the tool says that the same call may succeed later
}

// Codes of a [Failure].
const (
	CodeTimeout   = "timeout"    // its wall time is used up
	CodeCrashed   = "crashed"    // a trap, a panic, a stack overflow
	CodeLimit     = "limit"      // memory, output or a call line beyond its limit
	CodeToolError = "tool_error" // the tool said so, or its result is not usable
	CodeCancelled = "cancelled"  // the host cancelled the call's context
)

// Pause is a tool's own stop.
type Pause struct {
	Reason  string
	Payload json.RawMessage // an object
	Schema  json.RawMessage // what an answer must match, nil for anything; it compiles
}

// Result is how a call ended: with exactly one of Output, Failure and Pause.
type Result struct {
	Output  json.RawMessage // one I-JSON value
	Failure *Failure
	Pause   *Pause
	Logs    []LogLine
	Reads   map[string]uint64 // key → Token of its first read: the commit's preconditions
	Writes  []KVWrite         // by key; none after a Failure
	Active  time.Duration     // how long the guest had the worker
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
		if err := schema.Validate(s.output); err != nil {
			return nil, toolError("its result does not match its output_schema: %v", err)
		}
	}
	return s.output, nil
}
