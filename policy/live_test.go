package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
	"weak"
)

var moment = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func open(t *testing.T, rules fs.FS) *Live {
	t.Helper()
	l, err := Open(t.Context(), Options{Rules: rules, Deadline: time.Minute}, moment)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// write replaces files below a folder; an empty text removes one.
func write(t *testing.T, dir string, files ...string) {
	t.Helper()
	for i := 0; i < len(files); i += 2 {
		name := filepath.Join(dir, files[i])
		err := os.MkdirAll(filepath.Dir(name), 0o700)
		if err == nil && files[i+1] == "" {
			err = os.Remove(name)
		} else if err == nil {
			err = os.WriteFile(name, []byte(files[i+1]), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func pauses(rule string) string {
	return fmt.Sprintf("package pawl.rules\npause contains {\"rule\": %q} if input.call.tool == \"send\"\n", rule)
}

// stops are the rules that stop a call of send.
func stops(t *testing.T, e *Loaded) []string {
	t.Helper()
	d := e.Gate(t.Context(), nil, input("send", `{}`))
	if d.Effect == Deny || d.Code != "" {
		t.Fatalf("%+v", d)
	}
	return d.Rules
}

func TestLive_TakesWhatHasSettled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.rego", pauses("one"))
	l := open(t, Dir(dir))
	first := l.Current()
	now := moment
	look := func(after time.Duration, want Look) {
		t.Helper()
		now = now.Add(after)
		if got := l.Look(t.Context(), now, false); got != want {
			t.Fatalf("after %s: look %d, want %d (failed: %+v)", now.Sub(moment), got, want, l.Failed())
		}
	}
	look(time.Hour, Unchanged)
	write(t, dir, "a.rego", pauses("two")[:30]) // a copy that is half done, and cannot be parsed
	look(time.Second, Unsettled)
	write(t, dir, "a.rego", pauses("two"))
	look(Settle, Unsettled) // other contents than those of the last look
	look(Settle/2, Unsettled)
	if l.Current() != first || l.Failed() != nil {
		t.Fatal("contents that had not settled changed something")
	}
	look(Settle/2, Taken)
	look(time.Hour, Unchanged)
	if got := stops(t, l.Current()); !slices.Equal(got, []string{"two"}) || l.Current().Revision() == first.Revision() {
		t.Errorf("stops by %q, revision %s", got, l.Current().Revision())
	}
	if got := stops(t, first); !slices.Equal(got, []string{"one"}) {
		t.Errorf("who began with the first set gets %q from it", got)
	}
	if c := l.Current(); !c.At.Equal(now.Add(-time.Hour)) || len(c.Files) != 1 || c.Files[0].Name != "a.rego" || c.Files[0].Bytes != len(pauses("two")) {
		t.Errorf("%+v", c)
	}
	// A changed test, or a file of an editor, is no change of the rules.
	write(t, dir, "a_test.rego", "package x\n", ".a.rego.swp", "x", ".hidden.rego", "package x\n")
	look(time.Minute, Unchanged)
	// Asked for, what is known is taken again.
	if got := l.Look(t.Context(), now, true); got != Taken {
		t.Errorf("look %d", got)
	}
	// A clock that goes back only makes it wait.
	write(t, dir, "b.rego", pauses("three"))
	look(-time.Hour, Unsettled)
	look(Settle, Taken)
}

func TestLive_ABrokenFolderLeavesTheOldSetInForce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.rego", pauses("one"))
	l := open(t, Dir(dir))
	now := moment
	settled := func() Look {
		l.Look(t.Context(), now.Add(time.Minute), false)
		now = now.Add(2 * time.Minute)
		return l.Look(t.Context(), now, false)
	}
	for _, tc := range []struct{ name, file, text, says string }{
		{"no Rego", "b.rego", "package pawl.rules\n\npause contains {\"rule\": if", "b.rego:3"},
		{"a set that nothing reads", "b.rego", "package pawl.rules\npauses contains {\"rule\": \"x\"} if true", "b.rego:2"},
		{"an empty file", "b.rego", " ", "b.rego:1"},
		{"a package of the host", "b.rego", "package pawl.gate\n", "b.rego:1"},
		{"too large", "b.rego", "package pawl.rules\n#" + strings.Repeat("x", maxModule), "b.rego: larger"},
	} {
		write(t, dir, tc.file, tc.text)
		before := l.Current()
		if got := settled(); got != Refused || l.Current() != before || l.Failed() == nil || !strings.Contains(l.Failed().Err.Error(), tc.says) {
			t.Errorf("%s: look %d, failed %+v; want %q", tc.name, got, l.Failed(), tc.says)
		}
		if got := l.Look(t.Context(), now.Add(time.Hour), false); got != Unchanged {
			t.Errorf("%s: told again, %d", tc.name, got)
		}
		if got := stops(t, l.Current()); !slices.Equal(got, []string{"one"}) {
			t.Errorf("%s: stops by %q", tc.name, got)
		}
	}
	write(t, dir, "b.rego", "") // back to what was there: nothing is wrong any more
	if got := settled(); got != Taken || l.Failed() != nil {
		t.Errorf("look %d, failed %+v", got, l.Failed())
	}
	write(t, dir, "a.rego", "")
	if got := settled(); got != Refused || !strings.Contains(l.Failed().Err.Error(), "no rules any more") || len(stops(t, l.Current())) != 1 {
		t.Errorf("an emptied folder: look %d, failed %+v", got, l.Failed())
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got := settled(); got != Refused || len(stops(t, l.Current())) != 1 {
		t.Errorf("a folder that is gone: look %d, failed %+v", got, l.Failed())
	}
}

// A ConfigMap's volume, as the kubelet makes it: the files are links through ..data, which is replaced by a rename; an item with a slash
// in its path is a link to a folder.
func TestLive_FollowsTheSwapOfAConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Skip("no symbolic links here:", err)
		}
	}
	write(t, dir, "..v1/pay.rego", pauses("one"), "..v1/team/own.rego", strings.Replace(pauses("team"), "pawl.rules", "pawl.rules.team", 1))
	link("..v1", "..data")
	link(filepath.Join("..data", "pay.rego"), "pay.rego")
	link(filepath.Join("..data", "team"), "team")
	l := open(t, Dir(dir))
	if got := stops(t, l.Current()); !slices.Equal(got, []string{"one", "team"}) {
		t.Fatalf("stops by %q", got)
	}
	var names []string
	for _, f := range l.Current().Files {
		names = append(names, f.Name)
	}
	if !slices.Equal(names, []string{"pay.rego", "team/own.rego"}) {
		t.Errorf("files %q; each once", names)
	}
	write(t, dir, "..v2/pay.rego", pauses("two"), "..v2/team/own.rego", strings.Replace(pauses("team2"), "pawl.rules", "pawl.rules.team", 1))
	link("..v2", "..data_tmp")
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if got := l.Look(t.Context(), moment.Add(time.Minute), false); got != Unsettled {
		t.Errorf("look %d", got)
	}
	if got := l.Look(t.Context(), moment.Add(2*time.Minute), false); got != Taken {
		t.Errorf("look %d, failed %+v", got, l.Failed())
	}
	if got := stops(t, l.Current()); !slices.Equal(got, []string{"team2", "two"}) {
		t.Errorf("stops by %q", got)
	}
}

func TestLive_ALinkThatLeadsBackEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.rego", pauses("one"))
	for _, name := range []string{"x", "y"} {
		if err := os.Symlink(".", filepath.Join(dir, name)); err != nil {
			t.Skip("no symbolic links here:", err)
		}
	}
	if _, err := Open(t.Context(), Options{Rules: Dir(dir)}, moment); err == nil || !strings.Contains(err.Error(), "leads back to itself") {
		t.Errorf("%v", err)
	}
}

// swapped is a folder whose contents are replaced at once.
type swapped struct{ now atomic.Pointer[fstest.MapFS] }

func (s *swapped) Open(name string) (fs.File, error) { return s.now.Load().Open(name) }

func (s *swapped) put(files ...string) {
	f := folder(files...)
	s.now.Store(&f)
}

// Each set has two rules in two files, a refusal and an agent's rule beside them. Whoever asks one engine gets all of one set; what was
// asked meanwhile keeps nothing alive.
func TestLive_TwoHundredReloadsUnderLoad(t *testing.T) {
	t.Parallel()
	reloads, perReload := 200, 10
	if testing.Short() {
		reloads = 40
	}
	var rules swapped
	set := func(n int) {
		rules.put("a.rego", pauses(fmt.Sprintf("a%d", n)),
			"sub/b.rego", strings.Replace(pauses(fmt.Sprintf("b%d", n)), "pawl.rules", "pawl.rules.sub", 1),
			"authz.rego", fmt.Sprintf("package pawl.rules.authz\ndeny contains \"set_%d\" if input.act == \"run.list\"\n", n))
	}
	set(0)
	l := open(t, &rules)
	on := compileOn(t, l.Current().Engine, `{"send":true}`) // compiled once, for the first set
	var (
		mu        sync.Mutex
		revisions = map[string]int{}                       // which set each belongs to
		questions = make(chan struct{}, reloads*perReload) // so many for each reload, asked whenever there is a processor
		asked     sync.WaitGroup
		answers   atomic.Int64
	)
	for range 2 {
		asked.Go(func() {
			for range questions {
				e := l.Current()
				d := e.Gate(t.Context(), on, input("send", `{}`))
				v := e.Authz(t.Context(), &AuthzInput{Act: "run.list", Principal: Principal{Tenant: "t", ID: "o", Kind: "user", Roles: []string{"owner"}}, Resource: Resource{Tenant: "t"}})
				var n int
				if len(d.Rules) > 0 {
					_, _ = fmt.Sscanf(d.Rules[0], "a%d", &n)
				}
				mu.Lock()
				set, known := revisions[e.Revision()]
				revisions[e.Revision()] = n
				mu.Unlock()
				want := []string{fmt.Sprintf("a%d", n), fmt.Sprintf("b%d", n), "interrupt_on/send"}
				if known && set != n || d.Revision != e.Revision() || !slices.Equal(d.Rules, want) || !slices.Equal(v.Reasons, []string{fmt.Sprintf("set_%d", n)}) {
					t.Errorf("set %d (before: %d, %v): gate %+v, authz %+v", n, set, known, d, v)
					return
				}
				answers.Add(1)
			}
		})
	}
	old := []weak.Pointer[Engine]{weak.Make(l.Current().Engine)}
	now := moment
	var early runtime.MemStats
	for n := 1; n <= reloads; n++ {
		set(n)
		for range perReload {
			questions <- struct{}{}
		}
		now = now.Add(time.Minute)
		if got := l.Look(t.Context(), now, false); got != Unsettled {
			t.Fatalf("look %d", got)
		}
		if got := l.Look(t.Context(), now.Add(Settle), false); got != Taken {
			t.Fatalf("look %d, failed %+v", got, l.Failed())
		}
		old = append(old, weak.Make(l.Current().Engine))
		if n == reloads/10 {
			runtime.GC()
			runtime.ReadMemStats(&early)
		}
	}
	close(questions)
	asked.Wait()
	if answers.Load() != int64(reloads*perReload) || len(revisions) < 2 {
		t.Fatalf("%d answers, %d revisions", answers.Load(), len(revisions))
	}
	runtime.GC()
	runtime.GC()
	alive := 0
	for _, p := range old {
		if p.Value() != nil {
			alive++
		}
	}
	var late runtime.MemStats
	runtime.ReadMemStats(&late)
	if alive > 1 {
		t.Errorf("%d of %d sets are still in memory", alive, len(old))
	}
	t.Logf("%d answers meanwhile; live heap %d KiB after %d reloads, %d KiB after %d", answers.Load(), early.HeapAlloc>>10, reloads/10, late.HeapAlloc>>10, reloads)
	runtime.KeepAlive(l)
}

// late is a folder in which a file becomes a pipe after it was looked at and before it is opened.
type late struct {
	dir
	swap func()
}

func (l late) Stat(name string) (fs.FileInfo, error) {
	st, err := l.dir.Stat(name)
	l.swap()
	return st, err
}

func TestLive_APipeInTheLastMomentHoldsUpNothing(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	write(t, path, "a.rego", pauses("one"))
	swaps := false
	l := open(t, late{dir(path), func() {
		if swaps {
			if err := errors.Join(os.Remove(filepath.Join(path, "a.rego")), syscall.Mkfifo(filepath.Join(path, "a.rego"), 0o600)); err != nil {
				t.Error(err)
			}
		}
	}})
	now := moment
	swaps = true
	l.Look(t.Context(), now.Add(time.Second), false)
	swaps = false
	if look := l.Look(t.Context(), now.Add(time.Minute), true); look != Refused || !strings.Contains(l.Failed().Err.Error(), "a.rego: cannot be read: it is not a regular file") {
		t.Fatalf("%v, %v", look, l.Failed())
	}
	write(t, path, "a.rego", "", "b.rego", pauses("two"))
	l.Look(t.Context(), now.Add(2*time.Minute), false)
	if look := l.Look(t.Context(), now.Add(3*time.Minute), false); look != Taken || !slices.Equal(stops(t, l.Current()), []string{"two"}) {
		t.Errorf("%v, %v", look, stops(t, l.Current()))
	}
}
