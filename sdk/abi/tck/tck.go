// Package tck says, as compiled guests and a table, what a host of the pawl ABI
// does. A host loads each of Guests, runs each of Cases on the guests of its
// levels, and compares; sdk/abi/vectors has the lines of level 1 besides.
//
// The guests are checked in, so that a test needs no toolchain; build.sh
// compiles them to the same bytes again.
package tck

import (
	"embed"
	"fmt"

	"github.com/pawlhost/pawl/sdk/abi"
)

//go:embed command.wasm core.wasm hello.wasm command0.json command1.json core.json
var files embed.FS

// Guest is a module with its manifest.
type Guest struct {
	Name     string
	Level    int
	Module   []byte
	Manifest []byte // a sidecar's; nil for a module that describes itself
}

// Guests returns one guest for each level, and the one of level 2 also without
// its sidecar.
func Guests() []Guest {
	return []Guest{
		{"command0", abi.LevelCommand, read("command.wasm"), read("command0.json")},
		{"command1", abi.LevelCalls, read("command.wasm"), read("command1.json")},
		{"core", abi.LevelCore, read("core.wasm"), read("core.json")},
		{"described", abi.LevelCore, read("core.wasm"), nil},
	}
}

// Hello is the module of sdk/guest/go/hello: a Go program of 3 MB, for tests of
// the Go SDK and for benchmarks. It describes itself.
func Hello() []byte { return read("hello.wasm") }

func read(name string) []byte {
	raw, err := files.ReadFile(name)
	if err != nil {
		panic(err) // embedded above
	}
	return raw
}

// Log is a line that a call must log.
type Log struct{ Level, Message string }

// Case is one call and how it must end: with Output, Failure or Pause.
type Case struct {
	Name      string
	Levels    []int
	Tool      string
	Arguments string            // JSON
	Approvals string            // JSON, "" for none
	Before    map[string]string // the KV; each key is at version 1
	Config    map[string]string

	Output  string // JSON, compared as such
	Failure string // a code of the wire
	Message string // a part of the failure's message
	Word    string // the tool's own code
	Pause   string // its request as JSON
	Logs    []Log
	After   map[string]string // the KV; nil: as before
}

// Config is what the operator set for every guest.
var Config = map[string]string{"greeting": "hello"}

var (
	all      = []int{abi.LevelCommand, abi.LevelCalls, abi.LevelCore}
	commands = []int{abi.LevelCommand, abi.LevelCalls}
	calls    = []int{abi.LevelCalls, abi.LevelCore}
	command  = []int{abi.LevelCommand}
	core     = []int{abi.LevelCore}
	lines    = []int{abi.LevelCalls}
)

const ok = `{"ok":{}}`

// do writes the arguments of the tool "do" and the answers that it must give.
type step struct{ op, request, answer string }

func do(name string, c Case, steps ...step) Case {
	c.Name, c.Tool = name, "do"
	if c.Levels == nil {
		c.Levels = calls
	}
	c.Arguments, c.Output = `{"calls":[`, `[`
	for i, s := range steps {
		if i > 0 {
			c.Arguments += ","
			c.Output += ","
		}
		c.Arguments += fmt.Sprintf("[%q,%s]", s.op, s.request)
		c.Output += s.answer
	}
	c.Arguments, c.Output = c.Arguments+"]}", c.Output+"]"
	return c
}

// silent is do without a result of its own.
func silent(name string, c Case, steps ...step) Case {
	output := c.Output
	c = do(name, c, steps...)
	c.Output = output
	c.Arguments = c.Arguments[:len(c.Arguments)-1] + `,"silent":true}`
	return c
}

// refused marks an answer whose message is the host's own: a comparison takes
// the code and retryable only.
func refused(code string, retryable bool) string {
	return fmt.Sprintf(`{"error":{"code":%q,"message":"","retryable":%v}}`, code, retryable)
}

// Cases returns the table.
func Cases() []Case {
	return []Case{
		{Name: "the arguments arrive, and nothing after them", Levels: []int{0, 2}, Tool: "echo",
			Arguments: `{"a":[1,2.5,-0.001,true,null,{"b":"\u0000\"\\\n é😀"}]}`,
			Output:    `{"arguments":{"a":[1,2.5,-0.001,true,null,{"b":"\u0000\"\\\n é😀"}]},"nonce":0,"more":0}`},

		{Name: "what is printed is the result", Levels: commands, Tool: "print", Arguments: `{"text":" {\"a\":\n1}\r\n"}`, Output: `{"a":1}`},
		{Name: "null is a result", Levels: commands, Tool: "print", Arguments: `{"text":"null"}`, Output: `null`},
		{Name: "nothing is no result", Levels: commands, Tool: "print", Arguments: `{"text":" \n"}`, Failure: "tool_error"},
		{Name: "two values are no result", Levels: commands, Tool: "print", Arguments: `{"text":"1 2"}`, Failure: "tool_error"},
		{Name: "duplicate names are no result", Levels: commands, Tool: "print", Arguments: `{"text":"{\"a\":1,\"a\":1}"}`, Failure: "tool_error"},
		{Name: "level 0 never calls", Levels: command, Tool: "print", Failure: "tool_error",
			Arguments: `{"text":"@pawl:~ kv.put {\"key\":\"a\",\"value\":\"b\"}\n@pawl: kv.put {\"key\":\"a\",\"value\":\"b\"}\n"}`},
		{Name: "a foreign nonce does not call", Levels: lines, Tool: "print", Failure: "tool_error",
			Arguments: `{"text":"@pawl:00000000000000000000000000000000 kv.put {\"key\":\"a\",\"value\":\"b\"}\n"}`},
		{Name: "the nonce in the middle of a line does not call", Levels: lines, Tool: "print", Failure: "tool_error",
			Arguments: `{"text":" @pawl:~ kv.put {\"key\":\"a\",\"value\":\"b\"}\n"}`},
		{Name: "a longer nonce does not call", Levels: lines, Tool: "print", Failure: "tool_error",
			Arguments: `{"text":"@pawl:~~ kv.put {\"key\":\"a\",\"value\":\"b\"}\n"}`},
		{Name: "a line without its end does not call", Levels: lines, Tool: "print", Failure: "tool_error",
			Arguments: `{"text":"@pawl:~ kv.put {\"key\":\"a\",\"value\":\"b\"}"}`},
		{Name: "a call between output", Levels: lines, Tool: "print", Output: `[1]`,
			Arguments: `{"text":"[\n@pawl:~ kv.put {\"key\":\"a\",\"value\":\"b\"}\r\n1]"}`, After: map[string]string{"a": "b"}},
		{Name: "output drops what is printed", Levels: lines, Tool: "print", Output: `{"a":1}`,
			Arguments: `{"text":"noise\n@pawl:~ output {\"a\":1}\nnoise"}`},

		{Name: "a status fails the call", Levels: commands, Tool: "exit", Arguments: `{"code":7,"text":"no disk\n"}`, Failure: "tool_error", Message: "no disk",
			Logs: []Log{{"info", "no disk"}}},
		{Name: "standard error of a good call is logged", Levels: commands, Tool: "exit", Arguments: `{"code":0,"text":"one\ntwo"}`, Failure: "tool_error",
			Logs: []Log{{"info", "one"}, {"info", "two"}}},
		{Name: "a number fails the call", Levels: core, Tool: "return", Arguments: `{"code":7}`, Failure: "tool_error", Message: "7"},
		{Name: "zero without a result", Levels: core, Tool: "return", Arguments: `{"code":0}`, Failure: "tool_error"},
		{Name: "no UTF-8", Levels: all, Tool: "bytes", Arguments: `{}`, Failure: "tool_error"},
		{Name: "a trap", Levels: all, Tool: "trap", Arguments: `{}`, Failure: "crashed"},
		{Name: "memory without end", Levels: all, Tool: "grow", Arguments: `{}`, Failure: "limit"},
		{Name: "output without end", Levels: commands, Tool: "flood", Arguments: `{}`, Failure: "limit"},
		{Name: "a fresh instance", Levels: core, Tool: "remember", Arguments: `{}`, Output: `1`},
		{Name: "a fresh instance again", Levels: core, Tool: "remember", Arguments: `{}`, Output: `1`},
		{Name: "edges of the memory and of the limits", Levels: core, Tool: "edges", Arguments: `{}`,
			Output: edges},

		silent("the last output wins", Case{Output: `{"b":[]}`}, step{"output", `1`, ok}, step{"output", `{"b":[]}`, ok}),
		silent("null by output", Case{Output: `null`}, step{"output", `null`, ok}),
		silent("false by output", Case{Output: `false`}, step{"output", `false`, ok}),
		silent("no output", Case{Failure: "tool_error"}),
		silent("fail wins, and nothing is kept", Case{Failure: "tool_error", Message: "because", Word: "my.word"},
			step{"kv.put", `{"key":"a","value":"b"}`, ok}, step{"fail", `{"message":"first"}`, ok},
			step{"fail", `{"message":"because","code":"my.word","retryable":true}`, ok}, step{"output", `1`, ok}),
		do("fail, misused", Case{}, step{"fail", `{}`, refused("invalid", false)}, step{"fail", `{"message":""}`, refused("invalid", false)},
			step{"fail", `{"message":"a","code":"A B"}`, refused("invalid", false)}, step{"fail", `{"message":"a","why":"b"}`, refused("invalid", false)}),
		do("log", Case{Logs: []Log{{"debug", "a"}, {"info", "é"}, {"warn", ""}, {"error", "😀"}}},
			step{"log", `{"level":"debug","message":"a"}`, ok}, step{"log", `{"level":"info","message":"é"}`, ok},
			step{"log", `{"level":"warn","message":""}`, ok}, step{"log", `{"level":"error","message":"\ud83d\ude00"}`, ok},
			step{"log", `{"level":"fatal","message":"a"}`, refused("invalid", false)}, step{"log", `[]`, refused("invalid", false)}),
		do("progress", Case{}, step{"progress", `{}`, ok}, step{"progress", `{"done":1,"total":2.5,"message":"m"}`, ok},
			step{"progress", `{"done":"1"}`, refused("invalid", false)}),
		do("config", Case{}, step{"config", `{"key":"greeting"}`, `{"ok":{"value":"hello"}}`},
			step{"config", `{"key":"other"}`, `{"ok":{"found":false}}`}),

		do("kv: a call reads its own writes", Case{After: map[string]string{"a": "2"}},
			step{"kv.get", `{"key":"a"}`, `{"ok":{"found":false}}`}, step{"kv.put", `{"key":"a","value":"1"}`, `{"ok":{"version":1}}`},
			step{"kv.get", `{"key":"a"}`, `{"ok":{"value":"1","version":1}}`}, step{"kv.put", `{"key":"a","value":"2"}`, `{"ok":{"version":2}}`},
			step{"kv.get", `{"key":"a"}`, `{"ok":{"value":"2","version":2}}`}),
		do("kv: bytes", Case{After: map[string]string{"b": "\xff\x00", "e": ""}},
			step{"kv.put", `{"key":"b","value_b64":"/wA="}`, `{"ok":{"version":1}}`}, step{"kv.get", `{"key":"b"}`, `{"ok":{"value_b64":"/wA=","version":1}}`},
			step{"kv.put", `{"key":"e","value":""}`, `{"ok":{"version":1}}`}, step{"kv.get", `{"key":"e"}`, `{"ok":{"value":"","version":1}}`},
			step{"kv.put", `{"key":"x","value_b64":"/w"}`, refused("invalid", false)}, step{"kv.put", `{"key":"x"}`, refused("invalid", false)},
			step{"kv.put", `{"key":"x","value":"","value_b64":""}`, refused("invalid", false)}),
		do("kv: conditions", Case{Before: map[string]string{"a": "x"}, After: map[string]string{"a": "y", "n": "1"}},
			step{"kv.put", `{"key":"a","value":"y","if_version":0}`, refused("conflict", true)}, step{"kv.put", `{"key":"a","value":"y","if_version":2}`, refused("conflict", true)},
			step{"kv.delete", `{"key":"a","if_version":7}`, refused("conflict", true)}, step{"kv.put", `{"key":"a","value":"y","if_version":1}`, `{"ok":{"version":2}}`},
			step{"kv.put", `{"key":"n","value":"1","if_version":1}`, refused("conflict", true)}, step{"kv.put", `{"key":"n","value":"1","if_version":0}`, `{"ok":{"version":1}}`},
			step{"kv.put", `{"key":"n","value":"1","if_version":"0"}`, refused("invalid", false)}),
		do("kv: a version is never used again", Case{Before: map[string]string{"a": "x"}, After: map[string]string{"a": "y"}},
			step{"kv.delete", `{"key":"a"}`, ok}, step{"kv.get", `{"key":"a"}`, `{"ok":{"found":false}}`}, step{"kv.delete", `{"key":"a"}`, ok},
			step{"kv.put", `{"key":"a","value":"y","if_version":0}`, `{"ok":{"version":3}}`}),
		do("kv: lists", Case{Before: map[string]string{"k/a": "", "k/b": "", "k/é": "", "l": ""}, After: map[string]string{"k/b": "", "k/bb": "", "k/é": "", "l": ""}},
			step{"kv.list", `{"prefix":"k/"}`, `{"ok":{"keys":["k/a","k/b","k/é"]}}`}, step{"kv.list", `{"prefix":"k/","limit":2}`, `{"ok":{"keys":["k/a","k/b"],"next":"k/b"}}`},
			step{"kv.list", `{"prefix":"k/","after":"k/b"}`, `{"ok":{"keys":["k/é"]}}`}, step{"kv.list", `{"prefix":"z"}`, `{"ok":{"keys":[]}}`},
			step{"kv.put", `{"key":"k/bb","value":""}`, `{"ok":{"version":1}}`}, step{"kv.delete", `{"key":"k/a"}`, ok},
			step{"kv.list", `{"prefix":"k/"}`, `{"ok":{"keys":["k/b","k/bb","k/é"]}}`}, step{"kv.list", `{"prefix":"k/","limit":0}`, refused("invalid", false)},
			step{"kv.list", `{"prefix":"k/","limit":1001}`, refused("invalid", false)}, step{"kv.list", `{}`, refused("invalid", false)},
			step{"kv.list", `{"prefix":"","limit":1000}`, `{"ok":{"keys":["k/b","k/bb","k/é","l"]}}`}),
		do("kv: keys", Case{}, step{"kv.get", `{"key":""}`, refused("invalid", false)}, step{"kv.get", `{"key":"a\u0000"}`, refused("invalid", false)},
			step{"kv.get", `{}`, refused("invalid", false)}, step{"kv.get", `{"key":1}`, refused("invalid", false)}, step{"kv.get", `{"key":"a","keys":[]}`, refused("invalid", false)}),

		do("operations of a later edition", Case{}, step{"http", `{}`, refused("unsupported", false)}, step{"artifact.put", `{}`, refused("unsupported", false)},
			step{"artifact.get", `{}`, refused("unsupported", false)}, step{"interrupt", `{}`, refused("unsupported", false)}, step{"call", `{}`, refused("unsupported", false)},
			step{"sleep", `{}`, refused("unsupported", false)}, step{"kv.increment", `{}`, refused("unsupported", false)}),
		do("pause, refused, goes on", Case{}, step{"pause", `{}`, refused("invalid", false)}, step{"pause", `{"reason":"bored","payload":{}}`, refused("invalid", false)},
			step{"pause", `{"reason":"await_input","payload":[]}`, refused("invalid", false)}),
		do("pause with a schema that is none, goes on", Case{},
			step{"pause", `{"reason":"await_input","payload":{},"schema":null}`, refused("invalid", false)},
			step{"pause", `{"reason":"await_input","payload":{},"schema":true}`, refused("invalid", false)},
			step{"pause", `{"reason":"await_input","payload":{},"schema":{"type":7}}`, refused("invalid", false)},
			step{"pause", `{"reason":"await_input","payload":{},"schema":{"$ref":"https://example.com/s.json"}}`, refused("invalid", false)}),
		silent("pause with a schema", Case{Pause: `{"reason":"await_input","payload":{},"schema":{"type":"boolean"}}`},
			step{"pause", `{"reason":"await_input","payload":{},"schema":{"type":"boolean"}}`, ok}),
		silent("pause does not return", Case{Pause: `{"reason":"await_input","payload":{"q":"é?"}}`, After: map[string]string{"a": "b"}},
			step{"kv.put", `{"key":"a","value":"b"}`, ok}, step{"pause", `{"reason":"await_input","payload":{"q":"é?"}}`, ok}, step{"kv.put", `{"key":"c","value":"d"}`, ok}),
	}
}

// edges is core.c's list, in its order.
const edges = `[0,-1,1,-1,-1,-1,0,-2,-2,-2,-2,-2,-2,-3,-3,1,-1,-1,0,4,1,5,1,0,1,1,9]`
