package policy

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
)

// generatorVersion is part of the revision. Raise it when the generated rules change their meaning.
const generatorVersion = 2

// Compile turns an agent's interrupt_on into rules, with the built-in defaults. nil or null means the defaults only. The error
// is an *InvalidError. Equal texts are compiled once, as long as they are remembered.
func (e *Engine) Compile(interruptOn json.RawMessage) (*Interrupts, error) {
	key := sha256.Sum256(interruptOn)
	if on := e.compiled.get(key); on != nil {
		return on, nil
	}
	entries, removed, err := parseInterruptOn(interruptOn)
	if err != nil {
		return nil, err
	}
	on := &Interrupts{text: generate(entries), removed: removed}
	m, err := parse("interrupt_on.rego", []byte(on.text))
	if err != nil {
		return nil, &InvalidError{"", "cannot be compiled: " + err.Error()}
	}
	c, err := compile(map[string]module{"interrupt_on.rego": m})
	if err != nil {
		return nil, &InvalidError{"", "cannot be compiled: " + err.Error()}
	}
	ctx := context.Background()
	if on.stop, err = prepare(ctx, c, "data.pawl.interrupts.stop"); err != nil {
		return nil, &InvalidError{"", err.Error()}
	}
	if on.sure, err = prepare(ctx, c, "data.pawl.interrupts.sure"); err != nil {
		return nil, &InvalidError{"", err.Error()}
	}
	e.compiled.put(key, on)
	return on, nil
}

// generate writes the module. Two sets come out of it: `stop` holds what must stop when doubt stops (the gate), `sure` what
// stops beyond doubt (the scope of an edit). Both rest on one statement per matcher, `no`: the value is there, of the
// right type, and does not match. A `stop` needs that no matcher says no; a `sure` needs a value, its type and no `no`. So
// a missing field or a strange type can only fail towards stopping in the one and towards "outside" in the other.
//
// Texts of the configuration appear only as JSON literals, which are Rego literals, so that nothing in it can become code.
func generate(entries []entry) string {
	g := &generator{}
	g.line("# Generated from interrupt_on and the built-in defaults.")
	g.line("package pawl.interrupts")
	g.line("")
	g.line("stop contains false if false")
	g.line("sure contains false if false")
	for _, e := range entries {
		g.entry(e)
	}
	return g.String()
}

type generator struct {
	strings.Builder
	n int // of matchers and fields, for their names
}

func (g *generator) line(format string, args ...any) { fmt.Fprintf(g, format+"\n", args...) }

func (g *generator) entry(e entry) {
	stop := map[string]any{
		"rule": e.id, "reason": "approval_required", "allowed_decisions": e.allowed, "title": e.title, "message": e.message, "ttl": e.ttl,
	}
	var stops, sures string
	switch len(e.when) {
	case 0:
	case 1:
		stops, sures = g.alternative(e.when[0])
	default:
		g.n++
		any := g.n
		for _, a := range e.when {
			stop, sure := g.alternative(a)
			g.line("\nany_%d if {\n%s}\n\nany_sure_%d if {\n%s}", any, stop, any, sure)
		}
		stops, sures = fmt.Sprintf("\tany_%d\n", any), fmt.Sprintf("\tany_sure_%d\n", any)
	}
	for _, call := range calls(e.tool) {
		g.line("\nstop contains %s if {\n%s%s}", literal(stop), call, stops)
		g.line("\nsure contains %s if {\n%s%s}", literal(stop), call, sures)
	}
}

// calls returns the bodies that select the calls a name covers. A bare name covers every plugin's tool; plugin.tool covers
// one. A name with a dot is also tried as a bare one, so that a tool whose own name has a dot cannot slip through.
func calls(tool string) []string {
	bodies := []string{fmt.Sprintf("\tinput.call.tool == %s\n", literal(tool))}
	if i := strings.LastIndexByte(tool, '.'); i >= 0 {
		bodies = append(bodies, fmt.Sprintf("\tinput.call.tool == %s\n\tinput.call.plugin == %s\n", literal(tool[i+1:]), literal(tool[:i])))
	}
	return bodies
}

func (g *generator) alternative(a alternative) (stop, sure string) {
	for _, f := range a {
		value := fmt.Sprintf("[x] := pawl.lookup(input.call.arguments, %s)", literal(f.path))
		if f.name == f.path[0] {
			value = fmt.Sprintf("x := input.call.arguments[%s]", literal(f.name))
		}
		if f.absent {
			g.n++
			g.line("\nabsent_%d if pawl.lookup(input.call.arguments, %s) == []", g.n, literal(f.path))
			stop += fmt.Sprintf("\tnot absent_%d\n", g.n)
		}
		for _, m := range f.matchers {
			g.n++
			typed, no := m.rego()
			g.line("\nno_%d if {\n\t%s\n%s%s}", g.n, value, typed, no)
			if m.kind == "under" { // which is true of what is not canonical; an edit must be plainly below
				typed += "\tpawl.path.canonical(x)\n"
			}
			g.line("\nyes_%d if {\n\t%s\n%s\tnot no_%d\n}", g.n, value, typed, g.n)
			stop += fmt.Sprintf("\tnot no_%d\n", g.n)
			sure += fmt.Sprintf("\tyes_%d\n", g.n)
		}
	}
	return stop, sure
}

// rego returns the test that x can be judged, and the test that it does not match.
func (m matcher) rego() (typed, no string) {
	args := literal(m.args)
	const isText, isNumber = "\tis_string(x)\n", "\tis_number(x)\n"
	switch m.kind {
	case "equals", "in":
		return "", fmt.Sprintf("\tnot x in %s\n", args)
	case "not_in":
		return "", fmt.Sprintf("\tx in %s\n", args)
	case "prefix":
		return isText, fmt.Sprintf("\tnot strings.any_prefix_match(x, %s)\n", args)
	case "suffix":
		return isText, fmt.Sprintf("\tnot strings.any_suffix_match(x, %s)\n", args)
	case "regex":
		for _, pattern := range m.args {
			no += fmt.Sprintf("\tnot regex.match(%s, x)\n", pattern)
		}
		return isText + fmt.Sprintf("\tpawl.byte_size(x) <= %d\n", maxPatternText), no
	case "under":
		return isText, fmt.Sprintf("\tnot pawl.path.under(x, %s)\n", args)
	case "min":
		return isNumber, fmt.Sprintf("\tx < %s\n", m.args[0])
	case "max":
		return isNumber, fmt.Sprintf("\tx > %s\n", m.args[0])
	case "min_bytes":
		return "", fmt.Sprintf("\tpawl.byte_size(x) < %s\n", m.args[0])
	}
	return "", "\tfalse\n" // an unknown matcher, which parseMatcher refuses, would always match
}

// literal renders v as JSON.
func literal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("policy: a literal of strings and JSON texts cannot fail: " + err.Error())
	}
	return string(b)
}

// interruptsKept bounds the memory of compiled configurations, in bytes of their generated text: a configuration of usual size
// has 4 KB of text and takes 170 KB, so that some 250 are kept in 45 MB.
const interruptsKept = 1 << 20

// interruptsCache keeps the configurations used last.
type interruptsCache struct {
	mu    sync.Mutex
	size  int
	order list.List // of *cached, the last used in front
	byKey map[[32]byte]*list.Element
}

type cached struct {
	key [32]byte
	on  *Interrupts
}

func (c *interruptsCache) get(key [32]byte) *Interrupts {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.byKey[key]
	if !ok {
		return nil
	}
	c.order.MoveToFront(el)
	return el.Value.(*cached).on
}

func (c *interruptsCache) put(key [32]byte, on *Interrupts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey == nil {
		c.byKey = make(map[[32]byte]*list.Element)
	}
	if _, ok := c.byKey[key]; ok {
		return
	}
	c.byKey[key] = c.order.PushFront(&cached{key, on})
	for c.size += len(on.text); c.size > interruptsKept && c.order.Len() > 1; {
		oldest := c.order.Remove(c.order.Back()).(*cached)
		c.size -= len(oldest.on.text)
		delete(c.byKey, oldest.key)
	}
}
