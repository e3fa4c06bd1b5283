// Package tooltest is a pawl host in memory, for the plain unit tests of tools
// that are written with package tool. It answers as ABI.md says and keeps no
// time or memory limits. The real host is the judge; this one is fast.
package tooltest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/sdk/guest/go/tool"
)

// Host answers the calls of tools. Its fields may be set before each Call; the
// zero value is a host with an empty KV that may be written. It is not safe for
// concurrent use.
type Host struct {
	KV          map[string][]byte // what is committed; a good call changes it
	Config      map[string]string
	ToolContext any
	Approvals   map[string]bool // of the next call only
	ReadOnly    bool            // kv.put and kv.delete are denied

	versions map[string]int64
	calls    int
}

// Result is how a call ended: with Output, with Error, or with Paused.
type Result struct {
	Output   json.RawMessage
	Error    *tool.Error
	Paused   *Pause
	Logs     []Log
	Progress []json.RawMessage
}

// Pause is a stop that a tool raised.
type Pause struct {
	Reason  string          `json:"reason"`
	Payload json.RawMessage `json:"payload"`
	Schema  json.RawMessage `json:"schema,omitempty"`
}

// Log is a line that a tool logged.
type Log struct {
	Level   string `json:"level"`
	Message string `json:"message"`
}

// Decode decodes the output; the error of a call without one is its own.
func (r Result) Decode(into any) error {
	switch {
	case r.Error != nil:
		return r.Error
	case r.Paused != nil:
		return errors.New("the call paused: " + r.Paused.Reason)
	}
	return json.Unmarshal(r.Output, into)
}

// Call runs a tool of this program with arguments, any value that encodes to a
// JSON object. Writes to the KV are kept only if the call does not fail.
func (h *Host) Call(name string, arguments any) Result {
	if h.KV == nil {
		h.KV = map[string][]byte{}
	}
	if h.versions == nil {
		h.versions = map[string]int64{}
	}
	for key := range h.KV {
		if h.versions[key] == 0 {
			h.versions[key] = 1
		}
	}
	h.calls++
	toolContext := h.ToolContext
	if toolContext == nil {
		toolContext = struct{}{}
	}
	request := map[string]any{"tool": name, "arguments": arguments, "context": map[string]any{
		"run_id": "run_test", "call_id": fmt.Sprintf("call_%d", h.calls),
		"tool_context": toolContext, "approvals": h.Approvals,
	}}
	h.Approvals = nil
	call := &call{host: h, request: request, kv: maps.Clone(h.KV), versions: maps.Clone(h.versions)}
	status := call.run(func() int { return tool.Serve(call.do) })
	r := call.result
	switch {
	case r.Error != nil:
	case r.Paused == nil && status != 0:
		r.Error = &tool.Error{Message: fmt.Sprintf("the tool returned %d", status)}
	case r.Paused == nil && r.Output == nil:
		r.Error = &tool.Error{Message: "the tool gave no result"}
	default:
		h.KV, h.versions = call.kv, call.versions
	}
	if r.Error != nil || r.Paused != nil {
		r.Output = nil
	}
	return r
}

// Manifest is the manifest that this program describes.
func Manifest() (json.RawMessage, error) {
	call := &call{host: &Host{}}
	if status := call.run(func() int { return tool.DescribeTo(call.do) }); status != 0 {
		return nil, fmt.Errorf("pawl_describe returned %d: %w", status, call.result.Error)
	}
	return call.result.Output, nil
}

type call struct {
	host     *Host
	request  any
	kv       map[string][]byte
	versions map[string]int64
	result   Result
}

// paused unwinds the tool: pause does not return.
type paused struct{ *call }

func (c *call) run(f func() int) (status int) {
	defer func() {
		if p := recover(); p != nil && p != (paused{c}) {
			panic(p)
		}
	}()
	return f()
}

func (c *call) do(op string, request []byte) ([]byte, int) {
	switch {
	case len(op) > abi.MaxOp || len(request) > abi.MaxRequest:
		return nil, abi.ErrTooLarge
	case !utf8.ValidString(op) || !utf8.Valid(request) || !json.Valid(request):
		return nil, abi.ErrMalformed
	}
	ok, refusal := c.answer(op, request)
	answer := map[string]any{"ok": ok}
	if refusal != nil {
		answer = map[string]any{"error": map[string]any{
			"code": refusal.Code, "message": refusal.Message, "retryable": refusal.Retryable,
		}}
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		panic(err) // the test gave a tool_context or arguments that are no JSON
	}
	return raw, len(raw)
}

func refuse(code, format string, args ...any) *tool.Error {
	return &tool.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// decode is strict, as hosts are.
func decode(request []byte, into any) *tool.Error {
	d := json.NewDecoder(bytes.NewReader(request))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return refuse(abi.CodeInvalid, "%v", err)
	}
	return nil
}

func (c *call) answer(op string, request []byte) (ok any, refusal *tool.Error) {
	ok = struct{}{}
	switch op {
	case abi.OpInput:
		return c.request, nil
	case abi.OpOutput:
		if len(request) > abi.MaxResult {
			return nil, refuse(abi.CodeTooLarge, "a result of %d bytes; the limit is %d", len(request), abi.MaxResult)
		}
		c.result.Output = bytes.Clone(request)
	case abi.OpFail:
		var e tool.Error
		if refusal = decode(request, &e); refusal == nil {
			c.result.Error = &e
		}
	case abi.OpLog:
		var l Log
		if refusal = decode(request, &l); refusal == nil {
			c.result.Logs = append(c.result.Logs, l)
		}
	case abi.OpProgress:
		c.result.Progress = append(c.result.Progress, bytes.Clone(request))
	case abi.OpConfig:
		var r struct {
			Key string `json:"key"`
		}
		if refusal = decode(request, &r); refusal != nil {
			return nil, refusal
		}
		value, found := c.host.Config[r.Key]
		if !found {
			return map[string]any{"found": false}, nil
		}
		return map[string]any{"value": value}, nil
	case abi.OpPause:
		var p Pause
		if refusal = decode(request, &p); refusal != nil {
			return nil, refusal
		}
		switch p.Reason {
		case abi.ReasonApprovalRequired, abi.ReasonAwaitInput, abi.ReasonExternalEvent, abi.ReasonConstraintsConflict:
		default:
			return nil, refuse(abi.CodeInvalid, "reason %q", p.Reason)
		}
		if !strings.HasPrefix(string(p.Payload), "{") {
			return nil, refuse(abi.CodeInvalid, "payload is not an object")
		}
		if len(p.Payload) > abi.MaxPayload {
			return nil, refuse(abi.CodeTooLarge, "a payload of %d bytes; the limit is %d", len(p.Payload), abi.MaxPayload)
		}
		if p.Schema != nil && !strings.HasPrefix(string(p.Schema), "{") {
			return nil, refuse(abi.CodeInvalid, "schema is not an object")
		}
		if len(p.Schema) > abi.MaxSchema {
			return nil, refuse(abi.CodeTooLarge, "a schema of %d bytes; the limit is %d", len(p.Schema), abi.MaxSchema)
		}
		c.result.Paused = &p
		panic(paused{c})
	case abi.OpKVGet, abi.OpKVPut, abi.OpKVDelete, abi.OpKVList:
		return c.kvOp(op, request)
	default:
		return nil, refuse(abi.CodeUnsupported, "no operation %q", op)
	}
	return ok, refusal
}

func (c *call) kvOp(op string, request []byte) (any, *tool.Error) {
	if op == abi.OpKVList {
		return c.list(request)
	}
	var r struct {
		Key       string  `json:"key"`
		Value     *string `json:"value"`
		ValueB64  *string `json:"value_b64"`
		IfVersion *int64  `json:"if_version"`
	}
	if refusal := decode(request, &r); refusal != nil {
		return nil, refusal
	}
	if r.Key == "" || len(r.Key) > abi.MaxKey {
		return nil, refuse(abi.CodeInvalid, "a key of %d bytes; it must have 1 to %d", len(r.Key), abi.MaxKey)
	}
	value, found := c.kv[r.Key]
	if op == abi.OpKVGet {
		switch {
		case !found:
			return map[string]any{"found": false}, nil
		case utf8.Valid(value):
			return map[string]any{"value": string(value), "version": c.versions[r.Key]}, nil
		}
		return map[string]any{"value_b64": base64.StdEncoding.EncodeToString(value), "version": c.versions[r.Key]}, nil
	}
	if c.host.ReadOnly {
		return nil, refuse(abi.CodeDenied, "this plugin may only read its KV")
	}
	if r.IfVersion != nil && (*r.IfVersion != 0) != found || r.IfVersion != nil && found && *r.IfVersion != c.versions[r.Key] {
		return nil, &tool.Error{Code: abi.CodeConflict, Message: r.Key + " has changed", Retryable: true}
	}
	if op == abi.OpKVDelete {
		if found {
			delete(c.kv, r.Key)
			c.versions[r.Key]++
		}
		return struct{}{}, nil
	}
	switch {
	case (r.Value == nil) == (r.ValueB64 == nil):
		return nil, refuse(abi.CodeInvalid, "give one of value and value_b64")
	case r.Value != nil:
		value = []byte(*r.Value)
	default:
		var err error
		if value, err = base64.StdEncoding.DecodeString(*r.ValueB64); err != nil {
			return nil, refuse(abi.CodeInvalid, "value_b64: %v", err)
		}
	}
	if len(value) > abi.MaxValue {
		return nil, refuse(abi.CodeTooLarge, "a value of %d bytes; the limit is %d", len(value), abi.MaxValue)
	}
	c.kv[r.Key] = value
	c.versions[r.Key]++
	return map[string]any{"version": c.versions[r.Key]}, nil
}

func (c *call) list(request []byte) (any, *tool.Error) {
	r := struct {
		Prefix string `json:"prefix"`
		After  string `json:"after"`
		Limit  int    `json:"limit"`
	}{Limit: abi.DefaultList}
	if refusal := decode(request, &r); refusal != nil {
		return nil, refusal
	}
	if r.Limit < 1 || r.Limit > abi.MaxListKeys {
		return nil, refuse(abi.CodeInvalid, "limit %d; it must be 1 to %d", r.Limit, abi.MaxListKeys)
	}
	keys := []string{}
	for _, key := range slices.Sorted(maps.Keys(c.kv)) {
		if !strings.HasPrefix(key, r.Prefix) || key <= r.After {
			continue
		}
		if len(keys) == r.Limit {
			return map[string]any{"keys": keys, "next": keys[len(keys)-1]}, nil
		}
		keys = append(keys, key)
	}
	return map[string]any{"keys": keys}, nil
}
