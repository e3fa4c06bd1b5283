// Package tool makes a Go program a pawl plugin (ABI.md, level 2).
//
// A tool is a function of typed arguments, registered in init:
//
//	type args struct {
//		Name string `json:"name" description:"Whom to greet."`
//	}
//
//	func init() {
//		tool.Handle("greet", tool.Spec{Description: "Say hello.", Effects: tool.Read},
//			func(c *tool.Call, in args) (string, error) { return "hello " + in.Name, nil })
//	}
//
//	func main() {}
//
// Build it with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o greet.wasm .
//
// The same program compiles natively, so that a plain test can call its tools
// through package tooltest. main is not called in a plugin: everything that a
// call needs is made in init or in the handler. Every call runs in a fresh
// instance, so a package variable never carries anything to the next one.
package tool

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Effects say whether a tool changes anything. Reads may run beside others, and
// the host refuses their writes.
type Effects string

// The effects of a tool. The zero value means Write.
const (
	Read  Effects = abi.EffectsRead
	Write Effects = abi.EffectsWrite
)

// Spec describes a tool to the model and to whoever approves its calls.
type Spec struct {
	Description string
	Effects     Effects
	// Input is the JSON Schema of the arguments. Without it the schema is made
	// from the argument type; see [Handle].
	Input json.RawMessage
	// Output is the JSON Schema of the result, checked by the host. Optional.
	Output json.RawMessage
}

// Info is what the manifest says of the plugin itself.
type Info struct {
	Name, Version string
	KV            string // abi.KVNone (also ""), abi.KVReadOnly or abi.KVReadWrite
}

// A Host does one operation: the request's JSON in, the answer's JSON out. A
// negative n means that the request was not accepted (abi.ErrRange and so on).
type Host func(op string, request []byte) (answer []byte, n int)

// Error is why a call failed, or why the host refused an operation. A handler
// that returns one ends its call with this code and message.
type Error struct {
	Code      string `json:"code,omitempty"` // a word; the host's are abi.Code…
	Message   string `json:"message"`
	Retryable bool   `json:"retryable,omitempty"`
}

func (e *Error) Error() string {
	if e.Code == "" {
		return e.Message
	}
	return e.Code + ": " + e.Message
}

// Fail returns the error that ends a call with a code of the tool's own,
// [a-z0-9_.-]{1,64}, and a message that says what to do next.
func Fail(code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

type entry struct {
	name string
	spec Spec
	// schema makes the input schema. It waits for a plugin to describe itself,
	// since every call would pay for it otherwise: init runs in each instance.
	schema func() json.RawMessage
	run    func(c *Call, arguments json.RawMessage) (any, error)
}

// set is a plugin: what Handle and Describe put together.
type set struct {
	info  Info
	tools []entry
}

var plugin set // what the exports serve

// Describe sets what the manifest says of the plugin. Call it in init.
func Describe(info Info) { plugin.info = info }

// Handle registers a tool. Call it in init.
//
// In is a struct whose exported fields are the arguments, named by their json
// tags. Its schema covers strings, booleans, numbers, []byte, slices, maps with
// string keys, structs, pointers, any and json.RawMessage; no additional
// properties. A field is required unless it is a pointer or has omitempty or
// omitzero. The tags description:"…", format:"…", enum:"a|b" and default:"JSON"
// add those keywords. For anything else give Spec.Input: a plugin with a type
// that is beyond this panics when it describes itself, that is, when it is
// loaded, and in a test that calls tooltest.Manifest.
func Handle[In, Out any](name string, spec Spec, handler func(*Call, In) (Out, error)) {
	plugin.add(entryOf(name, spec, handler))
}

func (s *set) add(e entry) {
	for _, other := range s.tools {
		if other.name == e.name {
			panic("tool: " + e.name + " is registered twice")
		}
	}
	s.tools = append(s.tools, e)
}

func entryOf[In, Out any](name string, spec Spec, handler func(*Call, In) (Out, error)) entry {
	return entry{
		name:   name,
		spec:   spec,
		schema: func() json.RawMessage { return schemaOf[In](name) },
		run: func(c *Call, arguments json.RawMessage) (any, error) {
			var in In
			if err := json.Unmarshal(arguments, &in); err != nil {
				return nil, Fail(abi.CodeInvalid, "arguments of %s: %v", name, err)
			}
			return handler(c, in)
		},
	}
}

// Serve runs the call that host has ready, and returns what pawl_call returns.
// The exports call it; tests reach it through package tooltest.
func Serve(host Host) int { return plugin.serve(host) }

// DescribeTo gives the manifest to host, and returns what pawl_describe returns.
func DescribeTo(host Host) int { return plugin.describe(host) }

func (s *set) serve(host Host) int {
	c := &Call{host: host}
	var request request
	if err := c.do(abi.OpInput, struct{}{}, &request); err != nil {
		return c.fail(err)
	}
	c.request = request
	for _, t := range s.tools {
		if t.name != request.Tool {
			continue
		}
		result, err := t.run(c, request.Arguments)
		if err == nil {
			err = c.do(abi.OpOutput, result, nil)
		}
		return c.fail(err)
	}
	return c.fail(Fail(abi.CodeInvalid, "this plugin has no tool %q", request.Tool))
}

// fail ends the call with err, if there is one.
func (c *Call) fail(err error) int {
	if err == nil {
		return 0
	}
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Message: err.Error()}
	} else if e.Error() != err.Error() { // the tool wrapped it: keep its words
		e = &Error{Code: e.Code, Message: err.Error(), Retryable: e.Retryable}
	}
	if err := c.do(abi.OpFail, e, nil); err != nil {
		return 2
	}
	return 1
}

type manifest struct {
	ABI         int               `json:"abi"`
	Level       int               `json:"level"`
	Name        string            `json:"name,omitempty"`
	Version     string            `json:"version,omitempty"`
	Tools       []manifestTool    `json:"tools"`
	Permissions map[string]string `json:"permissions,omitempty"`
}

type manifestTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Input       json.RawMessage `json:"input_schema"`
	Output      json.RawMessage `json:"output_schema,omitempty"`
	Effects     Effects         `json:"effects"`
}

func (s *set) describe(host Host) int {
	m := manifest{ABI: abi.Version, Level: abi.LevelCore, Name: s.info.Name, Version: s.info.Version}
	for _, t := range s.tools {
		if t.spec.Input == nil {
			t.spec.Input = t.schema()
		}
		if t.spec.Effects == "" {
			t.spec.Effects = Write
		}
		m.Tools = append(m.Tools, manifestTool{t.name, t.spec.Description, t.spec.Input, t.spec.Output, t.spec.Effects})
	}
	if s.info.KV != "" {
		m.Permissions = map[string]string{"kv": s.info.KV}
	}
	c := &Call{host: host}
	return c.fail(c.do(abi.OpOutput, m, nil))
}
