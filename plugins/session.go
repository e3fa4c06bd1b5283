package plugins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Session is one tool call as its guest sees it: the one dispatcher that every level and every Go function goes
// through. It belongs to one goroutine at a time and to one call; after the call it answers nothing.
type Session struct {
	call    *Call
	lim     Limits
	request []byte // the request document
	nonce   string // level 1
	loading bool   // at load: only output, fail and log
	memory  linearMemory

	output  json.RawMessage
	refused error  // why the last output was not taken, if none was
	printed []byte // all that a command printed, if it sent no output
	stderr  []byte // the tail
	status  int32  // what pawl_call returned
	failure *Failure
	pause   *Pause
	logs    logBook
	calls   int
	kv      kvBuffer
	over    bool // the call has ended
}

// errPaused unwinds a guest that has paused. No guest code runs while it travels.
var errPaused = errors.New("the call has paused")

// limitError ends a guest that has left a limit which it cannot be told about by an answer.
type limitError string

func (e limitError) Error() string { return string(e) }

// refusal is an error answer.
type refusal struct {
	code, message string
	retryable     bool
}

func (r *refusal) Error() string { return r.message }

func refuse(code, format string, args ...any) *refusal {
	return &refusal{code: code, message: fmt.Sprintf(format, args...)}
}

// Tool is the tool that is called.
func (s *Session) Tool() *Tool { return s.call.Tool }

// Arguments are the call's arguments, canonical and checked. They must not be changed.
func (s *Session) Arguments() json.RawMessage { return s.call.Arguments }

// Request is the request document of ABI.md, section 1.
func (s *Session) Request() json.RawMessage { return s.request }

// Dispatch does one operation: its name and its request in, its answer out, always one of {"ok":…} and
// {"error":{…}}. A refusal is an answer. It does not return from a pause that was accepted: it panics with a sentinel
// that [Set.Call] expects, so a Go function must not recover what it did not raise itself.
func (s *Session) Dispatch(ctx context.Context, op string, req []byte) []byte {
	b, err := s.dispatch(ctx, op, req)
	if err != nil {
		return answer(nil, refuse(abi.CodeInvalid, "the request is not I-JSON: %v", err))
	}
	return b
}

// dispatch is Dispatch with an error for a request that is not I-JSON, which level 2 tells by a number.
func (s *Session) dispatch(ctx context.Context, op string, req []byte) ([]byte, error) {
	switch {
	case s.over:
		return answer(nil, refuse(abi.CodeUnavailable, "the call has ended")), nil
	case s.pause != nil:
		panic(errPaused)
	}
	if len(req) == 0 {
		req = []byte("{}")
	}
	if len(op) > abi.MaxOp || len(req) > abi.MaxRequest {
		return answer(nil, refuse(abi.CodeTooLarge, "an operation's name is at most %d bytes and its request %d", abi.MaxOp, abi.MaxRequest)), nil
	}
	if err := checkIJSON(req); err != nil {
		if op == abi.OpOutput && s.output == nil {
			s.refused = fmt.Errorf("its result is not I-JSON: %w", err)
		}
		return nil, err
	}
	ok, err := s.do(ctx, op, req)
	if s.pause != nil {
		panic(errPaused)
	}
	return answer(ok, err), nil
}

// answer builds {"ok":ok} or the error; ok is JSON, nil stands for {}.
func answer(ok []byte, err error) []byte {
	if err != nil {
		var r *refusal
		if !errors.As(err, &r) {
			r = &refusal{code: abi.CodeUnavailable, message: err.Error(), retryable: true}
		}
		b := append([]byte(nil), `{"error":{"code":`...)
		b = appendString(b, r.code)
		b = append(b, `,"message":`...)
		b = appendString(b, r.message)
		b = append(b, `,"retryable":`...)
		if r.retryable {
			return append(b, "true}}"...)
		}
		return append(b, "false}}"...)
	}
	if ok == nil {
		return []byte(`{"ok":{}}`)
	}
	b := make([]byte, 0, len(ok)+len(`{"ok":}`))
	b = append(b, `{"ok":`...)
	b = append(b, ok...)
	return append(b, '}')
}

// appendString appends s as a JSON string. What is not UTF-8 in it is replaced.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

func (s *Session) do(ctx context.Context, op string, req []byte) ([]byte, error) {
	switch op {
	case abi.OpOutput:
		return nil, s.setOutput(req)
	case abi.OpFail:
		return nil, s.fail(req)
	case abi.OpLog:
		return nil, s.log(req)
	}
	if s.loading {
		return nil, refuse(abi.CodeDenied, "%s may use output, fail and log only", abi.ExportDescribe)
	}
	if op == abi.OpInput {
		return s.request, decode(req, &struct{}{})
	}
	if s.calls++; s.calls > s.lim.Calls {
		return nil, refuse(abi.CodeLimit, "this call has used its %d operations", s.lim.Calls)
	}
	switch op {
	case abi.OpProgress:
		return nil, s.progress(req)
	case abi.OpConfig:
		return s.config(req)
	case abi.OpKVGet:
		return s.kvGet(ctx, req)
	case abi.OpKVPut:
		return s.kvPut(ctx, req)
	case abi.OpKVDelete:
		return nil, s.kvDelete(ctx, req)
	case abi.OpKVList:
		return s.kvList(ctx, req)
	case abi.OpPause:
		return nil, s.setPause(req)
	case abi.OpHTTP, abi.OpArtifactPut, abi.OpArtifactGet, abi.OpInterrupt, abi.OpCall, abi.OpSleep:
		return nil, refuse(abi.CodeUnsupported, "this host does not offer %s yet", op)
	}
	return nil, refuse(abi.CodeUnsupported, "there is no operation %q", cut(op, abi.MaxOp))
}

// decode reads a request strictly.
func decode(req []byte, into any) error {
	if err := unmarshal(req, into); err != nil {
		return refuse(abi.CodeInvalid, "%v", err)
	}
	return nil
}

func (s *Session) setOutput(req []byte) error {
	if len(req) > s.lim.Output {
		if s.output == nil {
			s.refused = limitError(fmt.Sprintf("the result is longer than %d bytes", s.lim.Output))
		}
		return refuse(abi.CodeTooLarge, "a result is at most %d bytes", s.lim.Output)
	}
	s.output, s.refused = append(json.RawMessage(nil), req...), nil
	return nil
}

func (s *Session) fail(req []byte) error {
	var r struct {
		Message   string `json:"message"`
		Code      string `json:"code"`
		Retryable bool   `json:"retryable"`
	}
	if err := decode(req, &r); err != nil {
		return err
	}
	if r.Message == "" {
		return refuse(abi.CodeInvalid, "fail needs a message")
	}
	if !validErrorCode(r.Code) {
		return refuse(abi.CodeInvalid, "code is up to %d of a-z 0-9 _ . -", abi.MaxErrorCode)
	}
	s.failure = &Failure{Code: CodeToolError, Message: cut(r.Message, abi.MaxMessage), ToolCode: r.Code, Retryable: r.Retryable}
	return nil
}

func validErrorCode(code string) bool {
	if len(code) > abi.MaxErrorCode {
		return false
	}
	for _, c := range []byte(code) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-') {
			return false
		}
	}
	return true
}

func (s *Session) log(req []byte) error {
	var r struct {
		Level   string `json:"level"`
		Message string `json:"message"`
	}
	if err := decode(req, &r); err != nil {
		return err
	}
	switch r.Level {
	case abi.LogDebug, abi.LogInfo, abi.LogWarn, abi.LogError:
	default:
		return refuse(abi.CodeInvalid, "level is debug, info, warn or error")
	}
	s.logs.add(&s.lim, r.Level, r.Message)
	return nil
}

func (s *Session) progress(req []byte) error {
	var r struct {
		Done    *float64 `json:"done"`
		Total   *float64 `json:"total"`
		Message *string  `json:"message"`
	}
	if err := decode(req, &r); err != nil {
		return err
	}
	if s.call.Progress == nil {
		return nil
	}
	out := struct {
		Done    *float64 `json:"done,omitempty"`
		Total   *float64 `json:"total,omitempty"`
		Message string   `json:"message,omitempty"`
	}{Done: r.Done, Total: r.Total}
	if r.Message != nil {
		out.Message = cut(*r.Message, abi.MaxMessage)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	s.call.Progress(b)
	return nil
}

func (s *Session) config(req []byte) ([]byte, error) {
	var r struct {
		Key string `json:"key"`
	}
	if err := decode(req, &r); err != nil {
		return nil, err
	}
	v, ok := s.call.Tool.plugin.config[r.Key]
	if !ok {
		return []byte(`{"found":false}`), nil
	}
	return append(appendString([]byte(`{"value":`), v), '}'), nil
}

func (s *Session) setPause(req []byte) error {
	var r struct {
		Reason  string         `json:"reason"`
		Payload jsontext.Value `json:"payload"`
		Schema  jsontext.Value `json:"schema"`
	}
	if err := decode(req, &r); err != nil {
		return err
	}
	switch r.Reason {
	case abi.ReasonApprovalRequired, abi.ReasonAwaitInput, abi.ReasonExternalEvent, abi.ReasonConstraintsConflict:
	default:
		return refuse(abi.CodeInvalid, "reason is approval_required, await_input, external_event or constraints_conflict")
	}
	if r.Payload.Kind() != '{' {
		return refuse(abi.CodeInvalid, "payload is an object")
	}
	if len(r.Payload) > abi.MaxPayload {
		return refuse(abi.CodeTooLarge, "a payload is at most %d bytes; keep larger things elsewhere and name them", abi.MaxPayload)
	}
	var flag struct {
		Key string `json:"approval_key"`
	}
	if err := json.Unmarshal(r.Payload, &flag); err == nil && len(flag.Key) > abi.MaxApprovalKey {
		return refuse(abi.CodeTooLarge, "an approval_key is at most %d bytes; use a digest of what is longer", abi.MaxApprovalKey)
	}
	if err := checkAnswerSchema(r.Schema); err != nil {
		return err
	}
	s.pause = &Pause{Reason: r.Reason, Payload: bytes.Clone(r.Payload), Schema: bytes.Clone(r.Schema)}
	return nil
}

// checkAnswerSchema refuses a schema that no answer could be held to: whoever asks can still ask differently, whoever answers
// could not.
func checkAnswerSchema(raw jsontext.Value) error {
	switch {
	case len(raw) == 0:
		return nil
	case raw.Kind() != '{':
		return refuse(abi.CodeInvalid, "schema is an object; leave it out where any answer will do")
	case len(raw) > abi.MaxSchema:
		return refuse(abi.CodeTooLarge, "the schema of an answer is at most %d bytes", abi.MaxSchema)
	}
	if _, err := CompileSchema(json.RawMessage(raw)); err != nil {
		return refuse(abi.CodeInvalid, "schema: %s", cut(valid(err.Error()), 1024))
	}
	return nil
}

// requestDocument builds what input answers. Its parts are JSON already.
func requestDocument(c *Call, nonce string) []byte {
	b := make([]byte, 0, 256+len(c.Arguments)+len(c.ToolContext)+len(c.Approvals))
	b = appendString(append(b, `{"tool":`...), c.Tool.Bare)
	b = append(append(b, `,"arguments":`...), object(c.Arguments)...)
	b = appendString(append(b, `,"context":{"run_id":`...), c.RunID)
	b = appendString(append(b, `,"call_id":`...), c.CallID)
	b = append(append(b, `,"tool_context":`...), object(c.ToolContext)...)
	b = append(append(b, `,"approvals":`...), object(c.Approvals)...)
	if nonce != "" {
		b = appendString(append(b, `,"nonce":`...), nonce)
	}
	return append(b, "}}"...)
}

// object gives the JSON on one line: level 0 and 1 guests read it as a line.
func object(raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return []byte("{}")
	}
	for _, c := range raw {
		if c == '\n' || c == '\r' {
			v := append(jsontext.Value(nil), raw...)
			if v.Compact() == nil {
				return v
			}
		}
	}
	return raw
}
