package policy

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The base modules are tested in Rego, beside them.
func TestBaseModules(t *testing.T) {
	t.Parallel()
	modules, err := load(contents{})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("rego/*_test.rego")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d test files, %v", len(files), err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if modules[name], err = parse(name, text); err != nil {
			t.Fatal(err)
		}
	}
	results, err := runTests(t.Context(), modules)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) < 20 {
		t.Errorf("only %d tests ran", len(results))
	}
	for _, r := range results {
		if !r.Pass {
			t.Errorf("%s: %s failed\n%s", r.Location, r.Name, r.Output)
		}
	}
}

func TestTestReportsWhatFailsAndWhere(t *testing.T) {
	t.Parallel()
	rules := folder(
		"pay.rego", "package pawl.rules\npause contains {\"rule\": \"pay\"} if input.call.tool == \"pay\"\n",
		"pay_test.rego", "package pawl.rules_test\nimport data.pawl.rules\ntest_pays if count(rules.pause) == 1 with input.call.tool as \"pay\"\n"+
			"test_wrong if { print(\"here\", count(rules.pause)); count(rules.pause) == 1 }\n",
	)
	results, err := Test(t.Context(), rules)
	if err != nil || len(results) != 2 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for _, r := range results {
		switch {
		case strings.HasSuffix(r.Name, "test_pays") && !r.Pass:
			t.Errorf("%+v should pass", r)
		case strings.HasSuffix(r.Name, "test_wrong") && (r.Pass || r.Location != "pay_test.rego:4" || !strings.Contains(r.Output, "here 0")):
			t.Errorf("%+v should fail at pay_test.rego:4 and print", r)
		}
	}
	// Tests are read as rules are: what the host does not read is not there, and what is not a file is not waited for.
	dir := t.TempDir()
	write(t, dir, "pay.rego", pauses("pay"), ".git/old_test.rego", "garbage", "..data/pay_test.rego", "garbage")
	if results, err := Test(t.Context(), Dir(dir)); err != nil || len(results) != 0 {
		t.Errorf("names with a dot: %+v, %v", results, err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "x_test.rego"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Test(t.Context(), Dir(dir)); err == nil || !strings.Contains(err.Error(), "x_test.rego: cannot be read: it is not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := Test(t.Context(), folder("a_test.rego", "package a\ntest_x if http.send({})")); err == nil || !strings.Contains(err.Error(), "a_test.rego:2") {
		t.Errorf("a test that cannot be compiled gives %v", err)
	}
}
