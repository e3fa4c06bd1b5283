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
	blocks := pieces(t, "../../docs/tour.md", "sh", "yaml")
	if len(blocks) != 3 || !strings.Contains(blocks[0], "./pawl serve --dev --data ./data\n") {
		t.Fatalf("the tour has %d blocks; this test knows the start of the host, the agent, the session", len(blocks))
	}
	r := newReader(t)
	if err := os.WriteFile(filepath.Join(r.dir, "ops.yaml"), []byte(blocks[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	r.types(blocks[2])
	if len(r.seen) != 2 {
		t.Errorf("the tour showed %v; want an approval and a run", r.seen)
	}
}

// The same for the page about people in the loop: where to look shows what the page says is there.
func TestHumanInTheLoopWorksAsWritten(t *testing.T) {
	t.Parallel()
	blocks := pieces(t, "../../docs/human-in-the-loop.md", "sh")
	if len(blocks) != 3 || !strings.Contains(blocks[0], "./pawl serve --dev --data ./data\n") {
		t.Fatalf("the page has %d blocks; this test knows the start of the host, the first session, where to look", len(blocks))
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("skipped: curl is not installed")
	}
	r := newReader(t)
	r.types(blocks[1])
	if out := r.types(blocks[2]); !strings.Contains(out, "pawl_approvals_pending") || !strings.Contains(out, "Plant beans") || !strings.Contains(out, "interrupt_on/write_file") {
		t.Errorf("where to look shows\n%s", out)
	}
}

// pieces are the fenced blocks of a page in these languages, in order.
func pieces(t *testing.T, page string, languages ...string) (blocks []string) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?s)```(?:"+strings.Join(languages, "|")+")\n(.*?)```").FindAllStringSubmatch(string(raw), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// reader is a person in a checkout of their own, with ./pawl built, its host running on ./data, and a page before them.
type reader struct {
	t        *testing.T
	dir      string
	host     *child
	function string            // the page's key()
	seen     map[string]string // what a person would copy for apr_… and run_…
}

func newReader(t *testing.T) *reader {
	t.Helper()
	pawl, err := exec.LookPath("pawl")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, dir: t.TempDir(), seen: map[string]string{}}
	if err := errors.Join(os.Symlink(pawl, filepath.Join(r.dir, "pawl")), os.Symlink(examples, filepath.Join(r.dir, "examples"))); err != nil {
		t.Fatal(err)
	}
	r.host = &child{data: filepath.Join(r.dir, "data"), listen: "127.0.0.1:0", exe: pawl}
	if err := r.host.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.host.kill)
	return r
}

var ids = regexp.MustCompile(`(apr|run)_[-0-9a-f]{36}`)

// types types a block line by line; each ends with 0, or with the "exit code" that its comment names.
func (r *reader) types(block string) (printed string) {
	r.t.Helper()
	block = strings.TrimSpace(block)
	if first, rest, _ := strings.Cut(block, "\n"); strings.HasPrefix(first, "key()") {
		r.function, block = first, strings.TrimSpace(rest)
	}
	if r.function == "" {
		r.t.Fatalf("nobody has defined key(): %q", block)
	}
	for line := range strings.SplitSeq(block, "\n") {
		for prefix, id := range r.seen {
			line = strings.ReplaceAll(line, prefix+"_…", id)
		}
		sh := exec.CommandContext(r.t.Context(), "sh", "-c", r.function+"\n"+line)
		sh.Dir, sh.Env = r.dir, append(os.Environ(), "PAWL_URL="+r.host.base)
		out, err := sh.CombinedOutput()
		got, want := 0, 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			got = exit.ExitCode()
		}
		if _, code, ok := strings.Cut(line, "exit code "); ok {
			want = int(code[0] - '0')
		}
		if got != want {
			r.t.Fatalf("%s\nends with %d, want %d:\n%s", line, got, want, out)
		}
		for _, m := range ids.FindAllStringSubmatch(string(out), -1) {
			r.seen[m[1]] = m[0]
		}
		printed += string(out)
	}
	return printed
}
