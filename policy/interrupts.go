package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/pawlhost/pawl/sdk/abi/pathform"
	"github.com/pawlhost/pawl/sdk/abi/pattern"
)

// InvalidError is what is wrong with an interrupt_on. Pointer is a JSON pointer into it; Detail says what to write instead.
type InvalidError struct {
	Pointer string
	Detail  string
}

func (e *InvalidError) Error() string { return fmt.Sprintf("interrupt_on%s: %s", e.Pointer, e.Detail) }

// Interrupts is one agent version's interrupt_on with the built-in defaults, compiled. It is immutable and safe for
// concurrent use, also with several engines.
type Interrupts struct {
	text       string
	stop, sure rego.PreparedEvalQuery
	removed    []string
}

// Removed lists the default stops that no rule covers any more, such as "write_file under /skills/". A stop counts as covered
// only if that is plain from the configuration: a rule of that tool without `when`, or with an alternative that has only an
// `under` on path which contains the prefix. Anything cleverer is reported.
func (i *Interrupts) Removed() []string { return slices.Clone(i.removed) }

// Rego is the generated module, for people who want to know why a call stops.
func (i *Interrupts) Rego() string { return i.text }

// entry is the configuration of one tool.
type entry struct {
	id, tool            string // tool: bare name or plugin.tool
	allowed             []string
	ttl, title, message string
	when                []alternative // any of; nil: always
}

type alternative []field // all of

type field struct {
	name     string
	path     []string // the name as a path into the arguments
	matchers []matcher
	absent   bool // missing: no_match
}

// matcher is one test of a value. `args` are JSON texts, which are Rego terms too.
type matcher struct {
	kind string
	args []json.RawMessage
}

var decisionKinds = []string{"approve", "edit", "reject", "respond"}

// The prefixes that an agent's own memory and instructions live under: who writes there changes what the agent does next.
var (
	defaultPrefixes = []string{"/memories/", "/skills/"}
	defaultTools    = []string{"edit_file", "write_file"}
)

func defaultEntry(tool string) entry {
	return entry{
		id: "default/" + tool, tool: tool, allowed: decisionKinds,
		title:   "A file of the agent's memory or skills is about to change",
		message: "What lies under /memories/ and /skills/ steers what the agent does later.",
		when: []alternative{{{name: "path", path: []string{"path"}, matchers: []matcher{
			{"under", []json.RawMessage{json.RawMessage(`"/memories"`), json.RawMessage(`"/skills"`)}},
		}}}},
	}
}

// Bounds of a configuration: each tool, field and matcher of it becomes a rule or two that are compiled.
const (
	maxInterruptOn = 64 << 10 // bytes
	maxParts       = 1000     // tools, fields and matchers together

	// A pattern cannot be interrupted, and takes at worst as many steps as its program is long for each byte of its text. So
	// both are bounded: a text above maxPatternText cannot be evaluated (it stops), and what all patterns of a
	// configuration take on one text stays well below the deadline.
	maxPattern     = 400      // instructions of one
	maxSteps       = 2000     // instructions of all
	maxPatternText = 32 << 10 // bytes
)

// patternSize is the length of a pattern's program, 0 for one that does not compile.
func patternSize(expression string) int {
	n, err := pattern.Steps(expression, maxPattern)
	if err != nil {
		return 0
	}
	return n
}

// parseInterruptOn reads interrupt_on and merges the defaults. nil, empty and null are an empty configuration.
func parseInterruptOn(raw json.RawMessage) (entries []entry, removed []string, err error) {
	own := map[string]json.RawMessage{}
	if raw = bytes.Trim(raw, " \t\r\n"); len(raw) > 0 && string(raw) != "null" {
		if len(raw) > maxInterruptOn {
			return nil, nil, &InvalidError{"", fmt.Sprintf("larger than %d bytes: write such rules in Rego, in the rules folder", maxInterruptOn)}
		}
		if _, err := parseJSON(raw); err != nil {
			return nil, nil, &InvalidError{"", err.Error()}
		}
		if own, err = objectOf("", raw, "an object of tool names"); err != nil {
			return nil, nil, err
		}
	}
	configured := map[string]*entry{}
	for _, tool := range sortedKeys(own) {
		at := pointer("", tool)
		if tool == "" {
			return nil, nil, &InvalidError{at, "a tool name is missing"}
		}
		if len(tool) > 200 {
			return nil, nil, &InvalidError{at, "a tool's name has at most 200 bytes"}
		}
		switch v := string(own[tool]); v {
		case "true":
			configured[tool] = &entry{allowed: decisionKinds}
		case "false":
			configured[tool] = nil
			continue
		default:
			e, err := parseEntry(at, own[tool])
			if err != nil {
				return nil, nil, err
			}
			configured[tool] = e
		}
		e := configured[tool]
		e.id, e.tool = "interrupt_on/"+tool, tool
		if e.title == "" {
			e.title = tool + " needs a decision"
		}
		if e.message == "" {
			e.message = "The agent's interrupt_on asks for one before this call."
		}
		entries = append(entries, *e)
	}
	parts, patterns := len(entries), 0
	for _, e := range entries {
		for _, a := range e.when {
			for _, f := range a {
				parts += 1 + len(f.matchers)
				for _, m := range f.matchers {
					if m.kind != "regex" {
						continue
					}
					for _, arg := range m.args {
						var s string
						_ = json.Unmarshal(arg, &s) // it was a text above
						patterns += patternSize(s)
					}
				}
			}
		}
	}
	if patterns > maxSteps {
		return nil, nil, &InvalidError{"", fmt.Sprintf("its patterns take %d steps for each character, at most %d: use prefix, suffix or in, or write the rules in Rego", patterns, maxSteps)}
	}
	if parts > maxParts {
		return nil, nil, &InvalidError{"", fmt.Sprintf("more than %d tools, fields and matchers: write such rules in Rego, in the rules folder", maxParts)}
	}
	for _, tool := range defaultTools {
		e, replaced := configured[tool]
		if !replaced {
			entries = append(entries, defaultEntry(tool))
			continue
		}
		for _, prefix := range defaultPrefixes {
			if !e.covers(prefix) {
				removed = append(removed, tool+" under "+prefix)
			}
		}
	}
	return entries, removed, nil
}

// covers reports whether the entry plainly stops every canonical path under prefix.
func (e *entry) covers(prefix string) bool {
	if e == nil {
		return false
	}
	return e.when == nil || slices.ContainsFunc(e.when, func(a alternative) bool {
		if len(a) != 1 || len(a[0].path) != 1 || a[0].path[0] != "path" || len(a[0].matchers) != 1 || a[0].matchers[0].kind != "under" {
			return false
		}
		return slices.ContainsFunc(a[0].matchers[0].args, func(dir json.RawMessage) bool {
			var s string
			return json.Unmarshal(dir, &s) == nil && pathform.Under(strings.TrimSuffix(prefix, "/"), s)
		})
	})
}

func parseEntry(at string, raw json.RawMessage) (*entry, error) {
	all, err := objectOf(at, raw, "true, false or an object")
	if err != nil {
		return nil, err
	}
	e := &entry{allowed: decisionKinds}
	for _, name := range sortedKeys(all) {
		v, at := all[name], pointer(at, name)
		switch name {
		case "allowed_decisions":
			if e.allowed, err = parseDecisions(at, v); err != nil {
				return nil, err
			}
		case "when":
			if e.when, err = parseWhen(at, v); err != nil {
				return nil, err
			}
		case "ttl":
			if err := text(at, v, &e.ttl); err != nil {
				return nil, err
			}
			if d, err := time.ParseDuration(e.ttl); err != nil || d <= 0 || !durationForm.MatchString(e.ttl) {
				return nil, &InvalidError{at, `must be a positive duration such as "1h" or "90m"`}
			}
		case "title":
			err = text(at, v, &e.title)
		case "message":
			err = text(at, v, &e.message)
		default:
			err = &InvalidError{at, "unknown member: use allowed_decisions, when, ttl, title or message"}
		}
		if err != nil {
			return nil, err
		}
	}
	return e, nil
}

// durationForm is the same expression as in gate.rego.
var durationForm = regexp.MustCompile(`^([0-9]{1,6}(\.[0-9]{1,9})?(ns|us|µs|ms|s|m|h))+$`)

func parseDecisions(at string, raw json.RawMessage) ([]string, error) {
	items, ok := array(raw)
	if !ok || len(items) == 0 {
		return nil, &InvalidError{at, "must be an array of approve, edit, reject and respond that is not empty"}
	}
	var kinds []string
	for i, item := range items {
		var kind string
		if json.Unmarshal(item, &kind) != nil || !slices.Contains(decisionKinds, kind) {
			return nil, &InvalidError{at + "/" + strconv.Itoa(i), "must be approve, edit, reject or respond"}
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds, nil
}

func parseWhen(at string, raw json.RawMessage) ([]alternative, error) {
	items, isList := array(raw)
	if !isList {
		a, err := parseAlternative(at, raw)
		return []alternative{a}, err
	}
	if len(items) == 0 {
		return nil, &InvalidError{at, "an empty list matches nothing: leave `when` out to stop every call, or set the tool to false"}
	}
	var when []alternative
	for i, item := range items {
		a, err := parseAlternative(at+"/"+strconv.Itoa(i), item)
		if err != nil {
			return nil, err
		}
		when = append(when, a)
	}
	return when, nil
}

func parseAlternative(at string, raw json.RawMessage) (alternative, error) {
	fields, err := objectOf(at, raw, "an object of fields, or a list of such objects")
	if err != nil {
		return nil, err
	}
	if len(fields) == 0 {
		return nil, &InvalidError{at, "names no field: leave `when` out to stop every call"}
	}
	var a alternative
	for _, name := range sortedKeys(fields) {
		f, err := parseField(pointer(at, name), name, fields[name])
		if err != nil {
			return nil, err
		}
		a = append(a, f)
	}
	return a, nil
}

func parseField(at, name string, raw json.RawMessage) (field, error) {
	f := field{name: name, path: []string{name}}
	if rest, ok := strings.CutPrefix(name, "/"); ok {
		f.path = strings.Split(rest, "/")
		for i, part := range f.path {
			if badEscape.MatchString(part) {
				return f, &InvalidError{at, "not a JSON pointer: write ~ as ~0 and / as ~1 (RFC 6901)"}
			}
			f.path[i] = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		}
	}
	all, err := objectOf(at, raw, "an object of matchers, such as {\"equals\": …}")
	if err != nil {
		return f, err
	}
	for _, kind := range sortedKeys(all) {
		v, at := all[kind], pointer(at, kind)
		if kind == "missing" {
			if string(v) != `"no_match"` {
				return f, &InvalidError{at, `the only value is "no_match"; without it a missing field matches`}
			}
			f.absent = true
			continue
		}
		m, err := parseMatcher(at, kind, v)
		if err != nil {
			return f, err
		}
		f.matchers = append(f.matchers, m)
	}
	if len(f.matchers) == 0 {
		return f, &InvalidError{at, "needs at least one matcher: " + matcherNames}
	}
	return f, nil
}

var badEscape = regexp.MustCompile(`~([^01]|$)`)

const matcherNames = "equals, in, not_in, prefix, suffix, regex, under, min, max or min_bytes"

func parseMatcher(at, kind string, raw json.RawMessage) (matcher, error) {
	m := matcher{kind: kind}
	items, isList := array(raw)
	switch kind {
	case "equals":
		m.args = []json.RawMessage{raw}
		if isList {
			m.args = append(m.args, items...) // the list itself, or any of it: whichever was meant is stopped
		}
		return m, nil
	case "in", "not_in":
		if !isList || len(items) == 0 {
			return m, &InvalidError{at, "must be an array that is not empty"}
		}
		m.args = items
		return m, nil
	case "min", "max":
		if !isNumber(raw) {
			return m, &InvalidError{at, "must be a number"}
		}
		m.args = []json.RawMessage{raw}
		return m, nil
	case "min_bytes":
		if n, err := strconv.Atoi(string(raw)); err != nil || n < 0 {
			return m, &InvalidError{at, "must be a whole number that is not negative"}
		}
		m.args = []json.RawMessage{raw}
		return m, nil
	case "prefix", "suffix", "regex", "under":
	default:
		return m, &InvalidError{at, "unknown matcher: use " + matcherNames}
	}
	if !isList {
		items = []json.RawMessage{raw}
	}
	if len(items) == 0 {
		return m, &InvalidError{at, "an empty list matches nothing"}
	}
	for i, item := range items {
		at := at
		if isList {
			at += "/" + strconv.Itoa(i)
		}
		var s string
		if err := text(at, item, &s); err != nil {
			return m, err
		}
		switch kind {
		case "regex":
			n, err := pattern.Steps(s, maxPattern)
			if err != nil {
				return m, &InvalidError{at, err.Error() + " (RE2 syntax)"}
			}
			if n > maxPattern {
				return m, &InvalidError{at, fmt.Sprintf("this pattern takes %d steps for each character, at most %d: repeat less, or write the rule in Rego", n, maxPattern)}
			}
		case "under":
			dir := s
			if dir != "/" {
				dir = strings.TrimSuffix(dir, "/")
			}
			if hint, ok := pathform.Canonical(dir); !ok {
				detail := "must be an absolute, canonical path"
				if hint != "" {
					detail += ", such as " + strconv.Quote(hint)
				}
				return m, &InvalidError{at, detail}
			}
			item, _ = json.Marshal(dir)
		}
		m.args = append(m.args, item)
	}
	return m, nil
}

// objectOf reads an object.
func objectOf(at string, raw json.RawMessage, want string) (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	if len(raw) == 0 || raw[0] != '{' || json.Unmarshal(raw, &all) != nil {
		return nil, &InvalidError{at, "must be " + want}
	}
	return all, nil
}

// array reads an array.
func array(raw json.RawMessage) ([]json.RawMessage, bool) {
	var items []json.RawMessage
	ok := len(raw) > 0 && raw[0] == '[' && json.Unmarshal(raw, &items) == nil
	return items, ok
}

func text(at string, raw json.RawMessage, s *string) error {
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, s) != nil {
		return &InvalidError{at, "must be a text"}
	}
	return nil
}

func isNumber(raw json.RawMessage) bool {
	t, err := parseJSON(raw)
	if err != nil {
		return false
	}
	_, ok := t.Value.(ast.Number)
	return ok
}

func pointer(at, name string) string {
	return at + "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}
