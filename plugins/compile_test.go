package plugins

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

func cacheOptions(t testing.TB, dir string, log *slog.Logger) Options {
	return Options{CacheDir: dir, Log: log, Bundled: fstest.MapFS{
		"core.wasm": {Data: guestBytes(t, "core")}, "core.json": {Data: []byte(manifestOf(2, coreTools))}}}
}

// entries lists the files of the one entry in dir.
func entryFiles(t *testing.T, dir string) (entry string, files []string) {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil || len(found) != 1 || strings.HasPrefix(found[0].Name(), ".") {
		t.Fatalf("the cache has %v, %v", found, err)
	}
	entry = filepath.Join(dir, found[0].Name())
	err = filepath.WalkDir(entry, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Base(p) != sumFile {
			files = append(files, p)
		}
		return err
	})
	if err != nil || len(files) != 1 {
		t.Fatalf("the entry has %v, %v", files, err)
	}
	return entry, files
}

func TestCorruptCacheEntriesAreRebuilt(t *testing.T) {
	t.Parallel()
	write := func(path string, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for why, spoil := range map[string]func(entry, file string){
		"truncated":           func(_, f string) { write(f, read(f)[:100]) },
		"empty":               func(_, f string) { write(f, nil) },
		"one bit":             func(_, f string) { b := read(f); b[len(b)/2] ^= 1; write(f, b) },
		"counts by the giga":  func(_, f string) { b := read(f); copy(b[12:], "\xff\xff\xff\xff\xff\xff\xff\xff"); write(f, b) },
		"gone":                func(_, f string) { _ = os.Remove(f) },
		"no checksums":        func(e, _ string) { _ = os.Remove(filepath.Join(e, sumFile)) },
		"a file more":         func(e, _ string) { write(filepath.Join(e, "x"), []byte("x")) },
		"a folder as content": func(_, f string) { _ = os.Remove(f); _ = os.Mkdir(f, 0o700) },
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "cache")
			wantOutput(t, call(t, openSet(t, cacheOptions(t, dir, nil)), "once", `{}`), `true`)
			entry, files := entryFiles(t, dir)
			good := read(files[0])
			spoil(entry, files[0])
			var log strings.Builder
			s := openSet(t, cacheOptions(t, dir, slog.New(slog.NewTextHandler(&log, nil))))
			wantOutput(t, call(t, s, "once", `{}`), `true`)
			if !strings.Contains(log.String(), "rebuilt") {
				t.Errorf("nothing was logged: %s", log.String())
			}
			if _, files = entryFiles(t, dir); string(read(files[0])) != string(good) {
				t.Error("the entry is another one now")
			}
		})
	}
}

func TestCacheIsUsedAndNotWhenOthersCanWriteIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cache")
	openSet(t, cacheOptions(t, dir, nil))
	entry, files := entryFiles(t, dir)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(files[0], old, old); err != nil {
		t.Fatal(err)
	}
	openSet(t, cacheOptions(t, dir, nil))
	if st, err := os.Stat(files[0]); err != nil || st.ModTime().After(old.Add(time.Minute)) {
		t.Errorf("a sound entry was written again: %v", err)
	}
	if err := verify(entry); err != nil {
		t.Error(err)
	}
	left := filepath.Join(dir, ".new-1234")
	if err := errors.Join(os.Chmod(dir, 0o700), os.Mkdir(left, 0o700), os.Chtimes(left, old, old.Add(-time.Hour))); err != nil {
		t.Fatal(err)
	}
	openSet(t, cacheOptions(t, dir, nil))
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Error("what a dead process left is still there")
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	s := openSet(t, cacheOptions(t, dir, slog.New(slog.NewTextHandler(&log, nil))))
	wantOutput(t, call(t, s, "once", `{}`), `true`)
	if !strings.Contains(log.String(), "others can write") {
		t.Errorf("%s", log.String())
	}
}

func TestUnusableCacheFolderCostsOnlyTheCache(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, call(t, openSet(t, cacheOptions(t, file, nil)), "once", `{}`), `true`)
}

// fillCache is a process of the next test.
func fillCache(dir string) int {
	b, err := os.ReadFile("testdata/wasm/core.wasm")
	if err != nil {
		return 2
	}
	s, err := Open(context.Background(), Options{CacheDir: dir, Bundled: fstest.MapFS{
		"core.wasm": {Data: b}, "core.json": {Data: []byte(manifestOf(2, coreTools))}}})
	if err != nil || len(s.Skipped()) > 0 {
		return 3
	}
	tl, _ := s.Lookup("once")
	if r := s.Call(context.Background(), Call{Tool: tl}); string(r.Output) != "true" {
		return 4
	}
	return 0
}

func TestTenProcessesShareOneCache(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Skip("this test starts itself again; the test binary has no path: " + err.Error())
	}
	dir := filepath.Join(t.TempDir(), "cache")
	round := func() {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				c := exec.Command(exe)
				c.Env = append(os.Environ(), "PAWL_TEST_FILL_CACHE="+dir)
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		wg.Wait()
	}
	round()
	_, files := entryFiles(t, dir)
	if err := os.Truncate(files[0], 10); err != nil {
		t.Fatal(err)
	}
	round() // all of them find it corrupt
	entry, _ := entryFiles(t, dir)
	if err := verify(entry); err != nil {
		t.Error(err)
	}
}

func TestParallelSetsOfOneModule(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cache")
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			s, err := Open(context.Background(), cacheOptions(t, dir, nil))
			if err != nil {
				t.Error(err)
				return
			}
			if r := s.Call(context.Background(), Call{Tool: tool(t, s, "once")}); string(r.Output) != "true" {
				t.Errorf("%+v", r)
			}
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	entryFiles(t, dir)
}

func TestCompilerThatIsSlowOrPanicsIsAReason(t *testing.T) {
	t.Parallel()
	_, err := compileGuard(context.Background(), 10*time.Millisecond, func(ctx context.Context) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}, func(int) {})
	if err == nil || !strings.Contains(err.Error(), "longer than 10ms") {
		t.Error(err)
	}
	if _, err = compileGuard(context.Background(), time.Minute, func(context.Context) (int, error) { panic("bug") }, func(int) {}); err == nil ||
		!strings.Contains(err.Error(), "bug") {
		t.Error(err)
	}
	release, dropped := make(chan struct{}), make(chan int, 1)
	_, err = compileGuard(context.Background(), time.Millisecond, func(context.Context) (int, error) { <-release; return 7, nil }, func(n int) { dropped <- n })
	if !errors.Is(err, context.DeadlineExceeded) && (err == nil || !strings.Contains(err.Error(), "longer than")) {
		t.Error(err)
	}
	close(release)
	if n := <-dropped; n != 7 {
		t.Error("what came late was not dropped")
	}
}
