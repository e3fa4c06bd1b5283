package plugins

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pawlhost/pawl/sdk/abi/pathform"
	"github.com/pawlhost/pawl/sdk/abi/pattern"
)

// Schema is a compiled JSON schema (draft 2020-12 unless $schema says an older one). It is safe for concurrent use.
type Schema struct {
	s        *jsonschema.Schema
	defaults bool // some default may be filled in

	mu    sync.Mutex // one check at a time: they take microseconds, and share the meter
	meter *meter
}

// meter bounds the work of one check. A schema of thirty lines can ask for 2^30 evaluations of one value, and the library cannot
// be interrupted; so each evaluation of a subschema spends one, as an extension of the vocabulary that is in every subschema.
type meter struct{ left int }

// allowance is for a value of n bytes: what honest schemas take, and what a processor does within a second.
func allowance(n int) int { return 100_000 + 4*n }

func (m *meter) spend() {
	if m.left--; m.left < 0 {
		panic(errTooMuchWork)
	}
}

var errTooMuchWork = errors.New("the schema asks for too many evaluations of this value")

// Validate implements [jsonschema.SchemaExt].
func (m *meter) Validate(*jsonschema.ValidatorContext, any) { m.spend() }

// The bounds of a pattern, like those of interrupt_on: it cannot be interrupted either.
const (
	maxPattern       = 400      // instructions
	maxPatternSource = 4 << 10  // bytes of the pattern itself: a class of a few bytes has hundreds of ranges
	maxPatternText   = 32 << 10 // bytes of the text
)

// bounded is a regular expression of a schema. A text that is too long for it does not match: doubt refuses.
type bounded struct{ *regexp.Regexp }

func (p bounded) MatchString(s string) bool {
	return len(s) <= maxPatternText && p.Regexp.MatchString(s)
}

func compilePattern(s string) (jsonschema.Regexp, error) {
	if len(s) > maxPatternSource {
		return nil, fmt.Errorf("a pattern is at most %d bytes", maxPatternSource)
	}
	n, err := pattern.Steps(s, maxPattern)
	if err != nil {
		return nil, err
	}
	if n > maxPattern {
		return nil, fmt.Errorf("the pattern takes %d steps for each character, at most %d: repeat less", n, maxPattern)
	}
	compiled, err := regexp.Compile(s)
	return bounded{compiled}, err
}

// SchemaError says where a value misses its schema.
type SchemaError struct {
	Pointer string // JSON pointer into the value, "" for the whole
	Message string
}

func (e *SchemaError) Error() string {
	if e.Pointer == "" {
		return e.Message
	}
	return e.Pointer + ": " + e.Message
}

// schemaURL is the schema's own address, so that a relative $ref resolves to something that the loader refuses.
const schemaURL = "pawl:///schema.json"

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("$ref to %s: a schema may only refer to itself; copy what it needs into $defs", url)
}

// CompileSchema compiles raw. A reference that leaves the document is an error: nothing is ever fetched. Formats are
// asserted; besides the standard ones there is "path", see [pathform.Canonical]. A keyword of the wrong shape is a *[SchemaError] that points
// at it.
func CompileSchema(raw json.RawMessage) (_ *Schema, err error) {
	defer func() { // a schema may be a model's: the host must not fall over it
		if recover() != nil {
			err = errors.New("it cannot be compiled")
		}
	}()
	if err := checkIJSON(raw); err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.RegisterFormat(&jsonschema.Format{Name: "path", Validate: validatePath})
	c.UseRegexpEngine(compilePattern)
	m := &meter{}
	c.RegisterVocabulary(&jsonschema.Vocabulary{
		URL:     "pawl:meter",
		Compile: func(*jsonschema.CompilerContext, map[string]any) (jsonschema.SchemaExt, error) { return m, nil },
	})
	c.AssertVocabs()
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	s, err := c.Compile(schemaURL)
	if bad, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		return nil, schemaError(bad.Err)
	}
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), schemaURL, ""))
	}
	return &Schema{s: s, defaults: hasDefault(s, map[*jsonschema.Schema]bool{}), meter: m}, nil
}

func validatePath(v any) error {
	p, ok := v.(string)
	if !ok {
		return nil
	}
	hint, ok := pathform.Canonical(p)
	switch {
	case ok:
		return nil
	case hint == "":
		return errors.New("the path is not canonical; write it absolute, like /notes/today.md")
	}
	return fmt.Errorf("the path is not canonical; write %q", hint)
}

// Check fills in the defaults of missing properties and validates the result. A filled-in default is taken as it is,
// so its own properties are not filled. The result is b itself when nothing was missing, else JSON that the caller has
// to make canonical again. The error is a *[SchemaError]. b must be I-JSON.
func (s *Schema) Check(b []byte) ([]byte, error) {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return nil, &SchemaError{Message: "it is not JSON: " + err.Error()}
	}
	filled, err := s.holds(v, len(b), s.defaults)
	if err != nil {
		return nil, err
	}
	if !filled {
		return b, nil
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, &SchemaError{Message: err.Error()}
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// Validate checks b, which must be I-JSON, as it is: no default is filled in. The error is a *[SchemaError].
func (s *Schema) Validate(b []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return &SchemaError{Message: "it is not JSON: " + err.Error()}
	}
	_, err = s.holds(v, len(b), false)
	return err
}

// holds fills defaults into v where asked, and validates it. A panic of the library is an error of this value: the host must not
// fall over one tool's result.
func (s *Schema) holds(v any, size int, defaults bool) (filled bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meter.left = allowance(size)
	defer func() {
		switch r := recover(); r {
		case nil:
		case errTooMuchWork:
			err = &SchemaError{Message: errTooMuchWork.Error()}
		default:
			err = &SchemaError{Message: "it cannot be checked against its schema"}
		}
	}()
	filled = defaults && s.meter.fill(s.s, v, 0)
	if err := s.s.Validate(v); err != nil {
		return filled, schemaError(err)
	}
	return filled, nil
}

// fill puts missing defaults into v, in place. It follows what always applies (properties, items, $ref, allOf), never
// what applies perhaps (anyOf, oneOf, if).
func (m *meter) fill(s *jsonschema.Schema, v any, depth int) (filled bool) {
	m.spend()
	if s == nil || depth > maxDepth { // a $ref to itself
		return false
	}
	if s.Ref != nil {
		filled = m.fill(s.Ref, v, depth+1)
	}
	for _, sub := range s.AllOf {
		filled = m.fill(sub, v, depth+1) || filled
	}
	switch v := v.(type) {
	case map[string]any:
		for name, sub := range s.Properties {
			if have, ok := v[name]; ok {
				filled = m.fill(sub, have, depth+1) || filled
			} else if d := defaultOf(sub, 0); d != nil {
				v[name] = clone(*d)
				filled = true
			}
		}
	case []any:
		for i, item := range v {
			filled = m.fill(itemSchema(s, i), item, depth+1) || filled
		}
	}
	return filled
}

func defaultOf(s *jsonschema.Schema, depth int) *any {
	if s == nil || depth > maxDepth {
		return nil
	}
	if s.Default != nil {
		return s.Default
	}
	return defaultOf(s.Ref, depth+1)
}

func itemSchema(s *jsonschema.Schema, i int) *jsonschema.Schema {
	if i < len(s.PrefixItems) {
		return s.PrefixItems[i]
	}
	if s.Items2020 != nil {
		return s.Items2020
	}
	switch items := s.Items.(type) {
	case *jsonschema.Schema:
		return items
	case []*jsonschema.Schema:
		if i < len(items) {
			return items[i]
		}
	}
	return nil
}

func hasDefault(s *jsonschema.Schema, seen map[*jsonschema.Schema]bool) bool {
	if s == nil || seen[s] {
		return false
	}
	seen[s] = true
	if s.Default != nil || hasDefault(s.Ref, seen) || hasDefault(s.Items2020, seen) {
		return true
	}
	subs := append(append([]*jsonschema.Schema{}, s.AllOf...), s.PrefixItems...)
	for _, sub := range s.Properties {
		subs = append(subs, sub)
	}
	switch items := s.Items.(type) {
	case *jsonschema.Schema:
		subs = append(subs, items)
	case []*jsonschema.Schema:
		subs = append(subs, items...)
	}
	for _, sub := range subs {
		if hasDefault(sub, seen) {
			return true
		}
	}
	return false
}

// clone copies a default, so that filling one call's arguments never changes another's.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[k] = clone(e)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, e := range v {
			l[i] = clone(e)
		}
		return l
	}
	return v
}

// schemaError picks the deepest first cause: the one that a person or a model can act on.
func schemaError(err error) *SchemaError {
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return &SchemaError{Message: err.Error()}
	}
	out := deepest(ve).BasicOutput()
	message := "it does not match"
	if out.Error != nil {
		message = out.Error.String()
	}
	return &SchemaError{Pointer: out.InstanceLocation, Message: cut(message, 512)}
}

func deepest(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	var best *jsonschema.ValidationError
	for _, c := range e.Causes {
		if d := deepest(c); best == nil || len(d.InstanceLocation) > len(best.InstanceLocation) {
			best = d
		}
	}
	if best == nil {
		return e
	}
	return best
}

// cut shortens s to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// isObject reports whether only objects can match: the schema's own type says so.
func (s *Schema) isObject() bool {
	return s.s.Types != nil && slices.Equal(s.s.Types.ToStrings(), []string{"object"})
}
