// Package pawl_test holds the house together: who may import whom, and what a file may be called.
package pawl_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const module = "github.com/pawlhost/pawl"

// pkg is a package as "go list" tells it: its folder below the module, and what its shipped files import.
type pkg struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	Imports    []string
	folder     string
}

// rule is one import rule of .golangci.yaml.
type rule struct {
	Files []string
	Deny  []struct{ Pkg, Desc string }
}

// The rules are written once, in .golangci.yaml, and hold without the linter that reads them there.
func TestImportRules(t *testing.T) {
	t.Parallel()
	rules, pkgs := importRules(t), packages(t)
	if len(rules) < 10 || len(pkgs) < 10 {
		t.Fatalf("only %d rules and %d packages: this test would hold nothing", len(rules), len(pkgs))
	}
	for name, r := range rules {
		applied := false
		for _, p := range pkgs {
			if !r.covers(t, p.folder) {
				continue
			}
			applied = true
			for _, imported := range p.Imports {
				if why := r.denies(imported); why != "" {
					t.Errorf("%s imports %s, against rule %q: %s", p.ImportPath, imported, name, why)
				}
			}
		}
		if !applied {
			t.Errorf("rule %q covers no package: is its pattern right? %v", name, r.Files)
		}
	}
}

// The reader of the rules is itself tried, on imports that are forbidden.
func TestImportRulesCatch(t *testing.T) {
	t.Parallel()
	rules := importRules(t)
	for _, c := range []struct{ folder, imports string }{
		{"store", module + "/host"},
		{"store/badgerstore", module + "/policy"},
		{"policy", module + "/store"},
		{"policy", module + "/plugins"},
		{"plugins", module + "/store"},
		{"plugins/bundled", module + "/host"},
		{"host", module + "/host/api"},
		{"host", module + "/store/badgerstore"},
		{"host", "net/http"},
		{"host/api", module + "/store/memstore"},
		{"host/api", module + "/policy"},
		{"host/planner", module + "/plugins"},
		{"host", "github.com/tetratelabs/wazero/api"},
		{"store", "github.com/dgraph-io/badger/v4"},
		{"host", "github.com/open-policy-agent/opa/v1/rego"},
		{"host", "github.com/gorilla/websocket"},
		{"host/api", "golang.org/x/oauth2"},
		{"host", "go.opentelemetry.io/otel/trace"},
		{"host/telemetry", module + "/store"},
		{"host/api", "github.com/coreos/go-oidc/v3/oidc"},
		{"host", "github.com/coreos/go-oidc/v3/oidc"},
		{"host/issuer", module + "/store"},
		{"cmd/pawl", module + "/host/hosttest"},
		{"cmd/pawl", "testing"},
		{"sdk/client", module + "/host"},
		{"sdk/guest/go/tool", module + "/plugins"},
	} {
		caught := false
		for _, r := range rules {
			caught = caught || r.covers(t, c.folder) && r.denies(c.imports) != ""
		}
		if !caught {
			t.Errorf("no rule keeps %s from importing %s", c.folder, c.imports)
		}
	}
	for _, c := range []struct{ folder, imports string }{
		{"cmd/pawl", module + "/store/badgerstore"},
		{"host", module + "/store"},
		{"host/api", module + "/host"},
		{"host/api", "github.com/gorilla/websocket"},
		{"plugins", module + "/sdk/abi"},
		{"store/badgerstore", module + "/store"},
		{"store/badgerstore", "github.com/dgraph-io/badger/v4"},
		{"host", "log/slog"},
		{"host/telemetry", "go.opentelemetry.io/otel/trace"},
	} {
		for name, r := range rules {
			if why := r.denies(c.imports); why != "" && r.covers(t, c.folder) {
				t.Errorf("rule %q keeps %s from importing %s: %s", name, c.folder, c.imports, why)
			}
		}
	}
}

// A guest that uses the Go SDK inherits nothing but the standard library.
func TestGuestSDKBringsNothingAlong(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.folder, "sdk/guest/") && !strings.HasPrefix(p.folder, "sdk/abi") || strings.HasPrefix(p.folder, "sdk/abi/") {
			continue
		}
		for _, i := range p.Imports {
			first, _, _ := strings.Cut(i, "/")
			if strings.Contains(first, ".") && !strings.HasPrefix(i, module+"/sdk/") {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
}

// A file or a package is named for the noun it holds.
func TestNames(t *testing.T) {
	t.Parallel()
	vague := regexp.MustCompile(`^(utils?|helpers?|commons?|types|misc|base)(_test)?(\.go)?$`)
	for _, p := range packages(t) {
		if vague.MatchString(p.Name) {
			t.Errorf("package %s has a name that says nothing", p.ImportPath)
		}
		entries, err := os.ReadDir(p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if vague.MatchString(e.Name()) && strings.HasSuffix(e.Name(), ".go") {
				t.Errorf("%s/%s has a name that says nothing", p.folder, e.Name())
			}
		}
	}
}

// The program's shape: main is small, one file reads the outside, one file names stores.
func TestProgramShape(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("cmd/pawl/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no program: %v", err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(f)
		if n := bytes.Count(raw, []byte("\n")); name == "main.go" && n > 60 {
			t.Errorf("main.go has %d lines, at most 60", n)
		}
		if name != "serve.go" && bytes.Contains(raw, []byte(module+"/store/")) {
			t.Errorf("%s names a store's implementation; serve.go alone does", name)
		}
		if name != "config.go" && bytes.Contains(raw, []byte("os.Getenv")) {
			t.Errorf("%s reads the environment; config.go alone does", name)
		}
	}
}

func importRules(t *testing.T) map[string]rule {
	t.Helper()
	raw, err := os.ReadFile(".golangci.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Linters struct {
			Settings struct {
				Depguard struct{ Rules map[string]rule }
			}
		}
	}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for name, r := range doc.Linters.Settings.Depguard.Rules {
		for _, d := range r.Deny {
			if len(d.Desc) < 20 {
				t.Errorf("rule %q denies %s without a reason", name, d.Pkg)
			}
		}
	}
	return doc.Linters.Settings.Depguard.Rules
}

// covers reports whether the rule is for the shipped files of a folder. As in depguard a pattern with ! takes out again.
func (r rule) covers(t *testing.T, folder string) bool {
	t.Helper()
	in := false
	for _, pattern := range r.Files {
		not, out := strings.CutPrefix(pattern, "!")
		if not == "$test" {
			continue // only shipped files are looked at here
		}
		if glob(t, not).MatchString(path.Join(folder, "x.go")) {
			if out {
				return false
			}
			in = true
		}
	}
	return in
}

// glob turns ** and * into a regular expression.
func glob(t *testing.T, pattern string) *regexp.Regexp {
	t.Helper()
	quoted := regexp.QuoteMeta(pattern)
	quoted = strings.ReplaceAll(quoted, `\*\*/`, `(?:.*/)?`)
	quoted = strings.ReplaceAll(quoted, `\*\*`, `.*`)
	quoted = strings.ReplaceAll(quoted, `\*`, `[^/]*`)
	return regexp.MustCompile(`^/?` + quoted + `$`)
}

// denies returns the reason why an import is denied, "" if it is not.
func (r rule) denies(imported string) string {
	for _, d := range r.Deny {
		exact, isExact := strings.CutSuffix(d.Pkg, "$")
		if isExact && imported == exact || !isExact && strings.HasPrefix(imported, d.Pkg) {
			return d.Desc
		}
	}
	return ""
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,GoFiles,Imports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath == module {
			continue
		}
		p.folder = strings.TrimPrefix(p.ImportPath, module+"/")
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b pkg) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return all
}
