package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/tester"
)

// TestResult is the outcome of one rule whose name begins with test_.
type TestResult struct {
	Name     string `json:"name"`     // package and rule, such as data.pawl.rules_test.test_limit
	Location string `json:"location"` // file:line
	Pass     bool   `json:"pass"`
	Skip     bool   `json:"skip,omitempty"`   // the name begins with todo_
	Output   string `json:"output,omitempty"` // of print
}

// testDeadline bounds one test.
const testDeadline = 5 * time.Second

// Test runs the *_test.rego of a rules folder against its modules and the base, like `opa test`, with the host's builtins and
// strictness. A folder that New would refuse is an error, and so is a test that cannot be compiled or evaluated.
func Test(ctx context.Context, rules fs.FS) ([]TestResult, error) {
	modules, err := load(readFolder(rules, false))
	if err != nil {
		return nil, err
	}
	tests := readFolder(rules, true)
	problems := tests.problems
	for _, f := range tests.files {
		m, err := parse(f.name, f.text)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		modules[f.name] = m
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("policy tests: %w", errors.Join(problems...))
	}
	return runTests(ctx, modules)
}

func runTests(ctx context.Context, modules map[string]module) ([]TestResult, error) {
	parsed := make(map[string]*ast.Module, len(modules))
	for name, m := range modules {
		parsed[name] = m.parsed
	}
	var builtins []*tester.Builtin
	options := regoOptions()
	for i, own := range ownBuiltins {
		builtins = append(builtins, &tester.Builtin{Decl: &ast.Builtin{Name: own.decl.Name, Decl: own.decl.Decl}, Func: options[i]})
	}
	results, err := tester.NewRunner().
		AddCustomBuiltins(builtins). // before the compiler, which they may not change afterwards
		SetCompiler(newCompiler().WithEnablePrintStatements(true)).
		SetModules(parsed).
		RaiseBuiltinErrors(true).
		CapturePrintOutput(true).
		SetTimeout(testDeadline).
		RunTests(ctx, nil)
	if err != nil {
		return nil, moduleErrors(err)
	}
	var out []TestResult
	var problems []error
	for r := range results {
		t := TestResult{Name: r.Package + "." + r.Name, Pass: r.Pass(), Skip: r.Skip, Output: string(r.Output)}
		if r.Location != nil {
			t.Location = fmt.Sprintf("%s:%d", r.Location.File, r.Location.Row)
		}
		if r.Error != nil {
			problems = append(problems, fmt.Errorf("%s: %s: %w", t.Location, t.Name, r.Error))
		}
		out = append(out, t)
	}
	return out, errors.Join(problems...)
}
