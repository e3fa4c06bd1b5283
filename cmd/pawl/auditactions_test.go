package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The list of actions that people are offered is the one that the host writes: every literal that its sources give to a row.
func TestAuditActionsAreThoseOfTheHost(t *testing.T) {
	t.Parallel()
	written := map[string]bool{}
	action := regexp.MustCompile(`^[a-z]+\.[a-z_]+$`)
	add := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil && action.MatchString(s) {
					written[s] = true
				}
			}
		}
	}
	var files []string
	for _, pattern := range []string{"../../host/*.go", "../../host/api/*.go"} {
		list, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, list...)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Action" {
					add(n.Value)
				}
			case *ast.AssignStmt:
				for i, left := range n.Lhs {
					if name := called(left); strings.EqualFold(name, "action") && len(n.Lhs) == len(n.Rhs) {
						add(n.Rhs[i])
					}
				}
			case *ast.CallExpr:
				if slices.Contains([]string{"did", "refused", "May", "changeTenant", "auditTenant"}, called(n.Fun)) {
					add(n.Args...)
				}
			}
			return true
		})
	}
	docs, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, a := range auditActions {
		known[a.name] = true
		if !strings.Contains(string(docs), "`"+a.name+"`") {
			t.Errorf("docs/operating.md does not name %s", a.name)
		}
	}
	got, want := slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(written))
	if len(want) < 30 || !slices.Equal(got, want) {
		t.Errorf("known here\n%q, written by the host\n%q", got, want)
	}
}

// called is the last name of an expression.
func called(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}
