// Package policy answers two questions in Rego: must this tool call stop (Gate), and may this principal do this (Authz).
// Both have an embedded base module, both take people's modules that only add stops and refusals, and both fail closed:
// an evaluation that is undefined, fails, takes too long or has the wrong shape refuses, with a code that says which.
//
// A failure of the gate is a deny and not a pause: whoever would be asked to approve could not be told which rule asks, and
// an approval that nobody can judge is worse than an error that the model and the operator see.
package policy

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"time"
	_ "time/tzdata" // time.clock with a zone must answer the same on a machine without zone files

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
)

//go:embed rego/gate.rego rego/authz.rego
var base embed.FS

// Options configures an Engine. The zero value has no rules of people.
type Options struct {
	Rules    fs.FS         // people's modules (*.rego, but not *_test.rego); nil: none
	Deadline time.Duration // of one evaluation; 0 means DefaultDeadline
}

// DefaultDeadline is the deadline of one evaluation when Options has none. It is ten thousand times what a decision takes: a
// host under load must not deny calls because its processors are busy, and a rule that never ends still ends soon.
const DefaultDeadline = time.Second

// Engine holds one set of compiled modules, for ever the same. It is safe for concurrent use and has nothing to close.
type Engine struct {
	*shared
	gate, authz rego.PreparedEvalQuery
	defaults    *Interrupts
	revision    string
	// verdicts is nil where people's modules have a say in authorization.
	verdicts *verdicts
	doubts   error
}

// shared is what the engines of a folder have in common, one after the other: the bound on evaluations that hang is one of the
// process, and what was compiled of agents does not depend on people's rules.
type shared struct {
	evaluator
	// asking evaluates authorization, apart from the gate: a rule of the gate that hangs must not keep anybody from deciding.
	asking   evaluator
	compiled interruptsCache
}

func newShared(deadline time.Duration) *shared {
	return &shared{evaluator: newEvaluator(deadline), asking: newEvaluator(deadline)}
}

// New compiles the base and the people's modules. A module that cannot be used is an error with its file, the line and
// what to do; then there is no Engine, since a host that dropped a rule would let calls through.
func New(ctx context.Context, o Options) (*Engine, error) {
	return build(ctx, newShared(o.Deadline), readFolder(o.Rules, false))
}

func build(ctx context.Context, with *shared, from contents) (*Engine, error) {
	modules, err := load(from)
	if err != nil {
		return nil, err
	}
	compiler, err := compile(modules)
	if err != nil {
		return nil, err
	}
	e := &Engine{shared: with, revision: revision(modules), doubts: checkLiterals(modules)}
	if e.gate, err = prepare(ctx, compiler, "data.pawl.gate.decision"); err != nil {
		return nil, err
	}
	if e.authz, err = prepare(ctx, compiler, "data.pawl.authz.decision"); err != nil {
		return nil, err
	}
	e.verdicts = &verdicts{}
	for _, m := range modules {
		if isAuthz(m.parsed) {
			e.verdicts = nil
		}
	}
	if e.defaults, err = e.Compile(nil); err != nil {
		return nil, err
	}
	return e, nil
}

// Revision is the SHA-256 of the base and the people's modules, as "sha256:…". Two engines with one revision decide alike.
func (e *Engine) Revision() string { return e.revision }

// Doubts are the people's rules that say outright what can never be read, so that each denies every call it matches; nil for none. It has
// a line for each, with file and line number. They do not keep a folder from being loaded, since they let nothing through: refusing them
// would leave the older set in force, which may.
func (e *Engine) Doubts() error { return e.doubts }

// Abandoned counts the evaluations that went on after their deadline, since the start. A number that grows means that a
// rule calls a builtin on something too large.
func (e *Engine) Abandoned() int64 { return e.total.Load() + e.asking.total.Load() }

func newCompiler() *ast.Compiler {
	return ast.NewCompiler().WithCapabilities(capabilities()).WithBuiltins(builtinDecls())
}

func compile(modules map[string]module) (*ast.Compiler, error) {
	parsed := make(map[string]*ast.Module, len(modules))
	for name, m := range modules {
		parsed[name] = m.parsed
	}
	c := newCompiler()
	c.Compile(parsed)
	if c.Failed() {
		return nil, moduleErrors(c.Errors)
	}
	return c, nil
}

func prepare(ctx context.Context, c *ast.Compiler, query string) (rego.PreparedEvalQuery, error) {
	options := append(regoOptions(), rego.Compiler(c), rego.Query(query), rego.StrictBuiltinErrors(true))
	q, err := rego.New(options...).PrepareForEval(ctx)
	if err != nil {
		return q, fmt.Errorf("policy: prepare %s: %w", query, err)
	}
	return q, nil
}

// revision hashes names and texts with their lengths, so that text cannot move from one file to the next unnoticed.
func revision(modules map[string]module) string {
	names := make([]string, 0, len(modules))
	for name := range modules {
		names = append(names, name)
	}
	slices.Sort(names)
	h := sha256.New()
	fmt.Fprintf(h, "generator %d\n", generatorVersion)
	for _, name := range names {
		fmt.Fprintf(h, "%d %s %d\n", len(name), name, len(modules[name].text))
		h.Write(modules[name].text)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
