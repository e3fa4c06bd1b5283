package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A newcomer who types the tour gets what it tells.
func TestTourWorksAsWritten(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/tour.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```(?:sh|yaml)\n(.*?)```").FindAllStringSubmatch(string(raw), -1)
	if len(blocks) != 3 || !strings.Contains(blocks[0][1], "./pawl serve --dev --data ./data\n") {
		t.Fatalf("the tour has %d blocks; this test knows the start of the host, the agent, the session", len(blocks))
	}
	pawl, err := exec.LookPath("pawl")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(pawl, filepath.Join(dir, "pawl")), os.WriteFile(filepath.Join(dir, "ops.yaml"), []byte(blocks[1][1]), 0o600)); err != nil {
		t.Fatal(err)
	}
	host := &child{data: filepath.Join(dir, "data"), listen: "127.0.0.1:0", exe: pawl}
	if err := host.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer host.kill()
	session := strings.TrimSpace(blocks[2][1])
	function, session, ok := strings.Cut(session, "\n")
	if !ok || !strings.HasPrefix(function, "key()") {
		t.Fatalf("the session begins with %q", function)
	}
	ids := regexp.MustCompile(`(apr|run)_[-0-9a-f]{36}`)
	seen := map[string]string{} // what a person would copy for apr_… and run_…
	for line := range strings.SplitSeq(strings.TrimSpace(session), "\n") {
		for prefix, id := range seen {
			line = strings.ReplaceAll(line, prefix+"_…", id)
		}
		sh := exec.CommandContext(t.Context(), "sh", "-c", function+"\n"+line)
		sh.Dir, sh.Env = dir, append(os.Environ(), "PAWL_URL="+host.base)
		out, err := sh.CombinedOutput()
		got, want := 0, 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			got = exit.ExitCode()
		}
		if _, code, ok := strings.Cut(line, "exit code "); ok {
			want = int(code[0] - '0')
		}
		if got != want {
			t.Fatalf("%s\nends with %d, want %d:\n%s", line, got, want, out)
		}
		for _, m := range ids.FindAllStringSubmatch(string(out), -1) {
			seen[m[1]] = m[0]
		}
	}
	if len(seen) != 2 {
		t.Errorf("the tour showed %v; want an approval and a run", seen)
	}
}
