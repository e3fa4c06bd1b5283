package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// The page's table of transitions is the code's: it names every state of a run, every step that sets one, and no step that there
// is not.
func TestHumanInTheLoopNamesEveryTransition(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("human-in-the-loop.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "| from | to | by |")
	if table, _, _ = strings.Cut(table, "\n\n"); !ok {
		t.Fatal("the page has no table of transitions")
	}
	for _, s := range []store.RunState{
		store.RunQueued, store.RunRunning, store.RunAwaitingApproval, store.RunAwaitingInput, store.RunAwaitingEvent, store.RunAwaitingPlanner,
		store.RunSucceeded, store.RunFailed, store.RunCancelled,
	} {
		if !strings.Contains(table, "`"+string(s)+"`") {
			t.Errorf("no transition to or from %s", s)
		}
	}
	steps, sets := runSteps(t)
	for name := range sets {
		if !strings.Contains(table, "| `"+name+"` |") {
			t.Errorf("step.%s sets the state of a run, and the table does not have it", name)
		}
	}
	rows := regexp.MustCompile("(?m)^\\|[^|]*\\|[^|]*\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1)
	if len(rows) < 12 {
		t.Errorf("only %d rows were read", len(rows))
	}
	for _, row := range rows {
		if !steps[row[1]] {
			t.Errorf("the table has a step %q, and host/transition.go does not", row[1])
		}
	}
}

// runSteps are the methods of step, and those of them that assign to the state of the run.
func runSteps(t *testing.T) (all, sets map[string]bool) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../host/transition.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all, sets = map[string]bool{}, map[string]bool{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil {
			continue
		}
		if star, ok := f.Recv.List[0].Type.(*ast.StarExpr); !ok || star.X.(*ast.Ident).Name != "step" {
			continue
		}
		all[f.Name.Name] = true
		ast.Inspect(f, func(n ast.Node) bool {
			a, ok := n.(*ast.AssignStmt)
			if !ok {
				return true
			}
			for _, left := range a.Lhs {
				if field, ok := left.(*ast.SelectorExpr); ok && field.Sel.Name == "State" && isRun(field.X) {
					sets[f.Name.Name] = true
				}
			}
			return true
		})
	}
	if len(sets) < 4 {
		t.Fatalf("only %v set a state: does this test still know how?", sets)
	}
	return all, sets
}

// isRun reports whether x is r or s.r.
func isRun(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "r"
	case *ast.SelectorExpr:
		return x.Sel.Name == "r"
	}
	return false
}

// A page that points at a test as its proof points at one that there is.
func TestPagesNameTestsThatThereAre(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	for _, pattern := range []string{"../*_test.go", "../*/*_test.go", "../*/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(raw, -1) {
				have[string(m[1])] = true
			}
		}
	}
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(raw, -1) {
			if named++; !have[string(m[1])] {
				t.Errorf("%s: there is no test %s", page, m[1])
			}
		}
	}
	if named < 8 {
		t.Errorf("only %d tests are named", named)
	}
}
