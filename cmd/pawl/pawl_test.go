package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pawlhost/pawl/plugins/bundled"
)

// TestMain makes this test binary the program itself when it is started as pawl, so that scripts and tests run the real
// main in processes of their own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"pawl":       main,
		"pawl-crash": crashHost, // a host with a counting tool; see crash_test.go
	})
}

// TestScripts runs testdata/*.txtar. Beyond the usual commands they have
//
//	host NAME [ARG…]     starts (or starts again) "pawl serve --dev" on folder NAME, sets PAWL_URL, PAWL_ADDR and a variable for each principal's key
//	crash NAME, term NAME end it with SIGKILL, or with SIGTERM and a good exit
//	exits CODE CMD…      runs a command that must end with this code
//	keep VAR             keeps the last output, trimmed, in a variable
//
// Under the race detector the hosts have it; the commands that are typed are hundreds, and begin faster without.
func TestScripts(t *testing.T) {
	t.Parallel()
	typed := filepath.Dir(plainProgram(t, "pawl"))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Values[hosts{}] = map[string]*child{}
			e.Setenv("PATH", typed+string(filepath.ListSeparator)+e.Getenv("PATH"))
			for _, name := range []string{"files.wasm", "files.json"} {
				raw, err := bundled.FS.ReadFile(name)
				if err == nil {
					err = os.WriteFile(filepath.Join(e.WorkDir, name), raw, 0o600)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"host": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) == 0 {
					ts.Fatalf("usage: host NAME [ARG…]")
				}
				running := ts.Value(hosts{}).(map[string]*child)
				c := running[args[0]]
				if c == nil {
					c = &child{data: ts.MkAbs(args[0]), listen: "127.0.0.1:0"}
					running[args[0]] = c
					ts.Defer(c.kill)
				}
				c.extra, c.exe = args[1:], program(ts)
				ts.Check(c.start(context.Background()))
				ts.Setenv("PAWL_URL", c.base)
				ts.Setenv("PAWL_ADDR", c.listen)
				for name, key := range c.keys {
					ts.Setenv(name, key)
				}
			},
			"crash": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Value(hosts{}).(map[string]*child)[args[0]].kill()
			},
			"hangup": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(ts.Value(hosts{}).(map[string]*child)[args[0]].cmd.Process.Signal(syscall.SIGHUP))
			},
			"until": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: until PATTERN CMD…")
				}
				pattern := regexp.MustCompile(args[0])
				if !eventually(context.Background(), time.Minute, func() bool {
					_ = ts.Exec(args[1], args[2:]...) // its exit code is for "exits" to look at
					return pattern.MatchString(ts.ReadFile("stdout"))
				}) {
					ts.Fatalf("%q did not come", args[0])
				}
			},
			"term": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(ts.Value(hosts{}).(map[string]*child)[args[0]].stop(context.Background()))
			},
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits CODE CMD…")
				}
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got := 0
				if exit, ok := errors.AsType[*exec.ExitError](ts.Exec(args[1], args[2:]...)); ok {
					got = exit.ExitCode()
				}
				if got != want {
					ts.Fatalf("exit code %d, want %d", got, want)
				}
			},
			"keep": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
			},
		},
	})
}

type hosts struct{}

// program is the path of this test binary under the name pawl.
func program(ts *testscript.TestScript) string {
	path, err := exec.LookPath("pawl")
	ts.Check(err)
	return path
}

// The first sentence, as a newcomer runs it.
func TestDemoYes(t *testing.T) {
	t.Parallel()
	pawl, err := exec.LookPath("pawl")
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), pawl, "demo", "--yes")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("demo --yes: %v\n%s", err, out)
	}
	for _, want := range []string{
		"kill -9", "awaiting_approval", "403 forbidden", "written once", "409", "approval.decided", `{"content":"Ask before you deploy on a Friday."}`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the story does not tell %q:\n%s", want, out)
		}
	}
	left, err := filepath.Glob(filepath.Join(tmp, "pawl-demo-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("the demo left %v behind: %v", left, err)
	}
}

// However the demo ends, no host stays behind; and where it can still do something, no folder either.
func TestDemoLeavesNoHostBehind(t *testing.T) {
	t.Parallel()
	pawl, err := exec.LookPath("pawl")
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(*os.Process, io.Closer) error{
		"the terminal closes":  func(p *os.Process, _ io.Closer) error { return p.Signal(syscall.SIGHUP) },
		"nobody reads on":      func(_ *os.Process, out io.Closer) error { return out.Close() },
		"killed, the hard way": func(p *os.Process, _ io.Closer) error { return p.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			cmd := exec.CommandContext(t.Context(), pawl, "demo")
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			typed, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			address, lines := "", bufio.NewReader(out)
			for !strings.Contains(address, "starts again") { // the second host is the one that waits with the person
				if address, err = lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			for !strings.Contains(address, "asked by") {
				if address, err = lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			hosts, err := filepath.Glob(filepath.Join(tmp, "pawl-demo-*", "data", "db", "LOCK"))
			if err != nil || len(hosts) != 1 {
				t.Fatalf("no host runs: %v %v", hosts, err)
			}
			if err := end(cmd.Process, out); err != nil {
				t.Fatal(err)
			}
			typed.Write([]byte("y\n")) // so that a story which nobody reads is told to its end
			_ = cmd.Wait()
			held := func() bool {
				s, err := openStore(filepath.Dir(filepath.Dir(hosts[0])), 0, slog.New(slog.DiscardHandler))
				if err == nil {
					err = s.Close()
				}
				return err != nil
			}
			if name != "killed, the hard way" {
				if _, err := os.Stat(hosts[0]); err == nil {
					t.Error("the demo left its folder behind")
				}
				return
			}
			if !eventually(t.Context(), 15*time.Second, func() bool { return !held() }) {
				t.Error("the host of a killed demo still has its folder")
			}
		})
	}
}

// With a person at the keyboard: the text is edited, or the write refused.
func TestDemoAsks(t *testing.T) {
	t.Parallel()
	pawl, err := exec.LookPath("pawl")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ typed, want string }{
		"edit":   {"what?\ne\nOnly on Mondays.\n", `{"content":"Only on Mondays."}`},
		"reject": {"n\n", "The write never ran"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), pawl, "demo")
			cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
			cmd.Stdin = strings.NewReader(c.typed)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.want) {
				t.Errorf("demo: %v, want %q:\n%s", err, c.want, out)
			}
		})
	}
}
