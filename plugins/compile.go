package plugins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// features is what guests may use: WebAssembly core 2.0. Threads, tail calls and exceptions stay off; exceptions had
// wrong results around wazero v1.12.0 (its pull requests 2498 and 2504).
const features = api.CoreFeaturesV2

// runtimeVersion is wazero's, as linked.
var runtimeVersion = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == "github.com/tetratelabs/wazero" {
				return d.Version
			}
		}
	}
	return "unknown"
})

func runtimeConfig(pages uint32, cache wazero.CompilationCache) wazero.RuntimeConfig {
	// The runtime's own memory limit is a second fence: the first is linearMemory, which can say that it refused.
	c := wazero.NewRuntimeConfig().WithCoreFeatures(features).WithCloseOnContextDone(true).
		WithMemoryLimitPages(min(2*pages+16, 1<<16)).WithDebugInfoEnabled(false)
	if cache != nil {
		c = c.WithCompilationCache(cache)
	}
	return c
}

// compileGuard bounds compile's wall time. The runtime looks at its context between functions when it has more than
// one worker; in the middle of a function nothing can stop it, so a caller that waits is let go with an error and the
// compilation, which the caps of scan keep finite, ends on its own.
func compileGuard[T any](ctx context.Context, limit time.Duration, compile func(ctx context.Context) (T, error), drop func(T)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	type outcome struct {
		v   T
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		defer cancel()
		defer func() {
			if r := recover(); r != nil {
				done <- outcome{err: fmt.Errorf("the compiler failed: %v", r)}
			}
		}()
		v, err := compile(experimental.WithCompilationWorkers(ctx, max(2, runtime.GOMAXPROCS(0))))
		done <- outcome{v, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		select {
		case o = <-done:
		case <-time.After(time.Second):
			go func() {
				if o := <-done; o.err == nil {
					drop(o.v)
				}
			}()
			o.err = ctx.Err()
		}
	}
	if errors.Is(o.err, context.DeadlineExceeded) {
		o.err = fmt.Errorf("compiling it took longer than %s", limit)
	}
	return o.v, o.err
}

// The compile cache. Each module has a folder named by everything that decides its machine code; in it is what wazero
// writes, and a file of checksums. wazero trusts the numbers in an entry (a bad one makes it allocate without bound), so
// an entry is checked before wazero sees it. A new one is built in a folder of its own and renamed into place: several
// processes can share a cache, and a crash leaves nothing that looks complete.

const sumFile = "SHA256SUMS"

// cacheKey names a module's compiled code.
func cacheKey(binary []byte, pages uint32) string {
	h := sha256.New()
	fmt.Fprintf(h, "pawl compile cache 1\n%s %s %s\nfeatures %d close true pages %d\n", runtimeVersion(), runtime.GOOS, runtime.GOARCH,
		features, pages)
	h.Write(binary)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// build is a runtime with one compiled module.
type build struct {
	rt       wazero.Runtime
	cache    wazero.CompilationCache
	compiled wazero.CompiledModule
}

func (b *build) close(ctx context.Context) error {
	if b == nil || b.rt == nil {
		return nil
	}
	err := b.rt.Close(ctx)
	if b.cache != nil {
		err = errors.Join(err, b.cache.Close(ctx))
	}
	return err
}

// compileWith compiles binary; dir is wazero's cache folder, "" for none.
func compileWith(ctx context.Context, binary []byte, pages uint32, dir string) (b *build, err error) {
	b = &build{}
	defer func() {
		if err != nil {
			_ = b.close(context.WithoutCancel(ctx))
		}
	}()
	if dir != "" {
		if b.cache, err = wazero.NewCompilationCacheWithDir(dir); err != nil {
			return b, err
		}
	}
	b.rt = wazero.NewRuntimeWithConfig(ctx, runtimeConfig(pages, b.cache))
	b.compiled, err = b.rt.CompileModule(ctx, binary)
	return b, err
}

// compile compiles binary, from the cache in dir if there is one.
func (s *Set) compile(ctx context.Context, binary []byte, pages uint32) (*build, error) {
	root := s.cache
	if root == "" {
		return compileWith(ctx, binary, pages, "")
	}
	entry := filepath.Join(root, cacheKey(binary, pages))
	err := verify(entry)
	if err == nil {
		if b, err := compileWith(ctx, binary, pages, entry); err == nil {
			return b, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("compile cache entry rebuilt", "reason", err.Error())
	}
	tmp, err := os.MkdirTemp(root, ".new-")
	if err != nil {
		s.log.Warn("compile cache not used", "reason", err.Error())
		return compileWith(ctx, binary, pages, "")
	}
	defer os.RemoveAll(tmp)
	b, err := compileWith(ctx, binary, pages, tmp)
	if err != nil {
		// Either the module is bad or the disk is; without a cache we learn which.
		return compileWith(ctx, binary, pages, "")
	}
	if err := publish(root, tmp, entry); err != nil {
		s.log.Warn("compile cache entry not kept", "reason", err.Error())
	}
	return b, nil
}

// openCache makes the cache's folder ready and sweeps what a process that died has left in it. Without a usable folder
// the host works, only slower to start.
func (s *Set) openCache() {
	if s.opt.CacheDir == "" {
		return
	}
	if err := privateDir(s.opt.CacheDir); err != nil {
		s.log.Warn("compile cache not used", "reason", err.Error())
		return
	}
	s.cache = s.opt.CacheDir
	left, _ := filepath.Glob(filepath.Join(s.cache, ".*-*"))
	for _, dir := range left {
		if st, err := os.Stat(dir); err == nil && time.Since(st.ModTime()) > time.Hour {
			_ = os.RemoveAll(dir)
		}
	}
}

// privateDir makes dir and insists that only we can write it: what is in it is run as machine code.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if runtime.GOOS != "windows" && st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others can write the cache folder (mode %o); chmod 700 it", st.Mode().Perm())
	}
	return nil
}

// sums lists the files below dir with their checksums.
func sums(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path == filepath.Join(dir, sumFile) {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), filepath.ToSlash(rel))
		return err
	})
	return b.String(), err
}

func verify(entry string) error {
	want, err := os.ReadFile(filepath.Join(entry, sumFile))
	if err != nil {
		if _, serr := os.Stat(entry); serr == nil {
			return errors.New("it has no checksums")
		}
		return err
	}
	have, err := sums(entry)
	if err != nil {
		return err
	}
	if have != string(want) || have == "" {
		return errors.New("its checksums do not match")
	}
	return nil
}

// publish moves tmp to entry. An entry that another process has published meanwhile is kept if it is sound.
func publish(root, tmp, entry string) error {
	s, err := sums(tmp)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, sumFile), []byte(s), 0o600); err != nil {
		return err
	}
	for range 3 {
		if err = os.Rename(tmp, entry); err == nil || verify(entry) == nil {
			return nil
		}
		old, merr := os.MkdirTemp(root, ".old-")
		if merr != nil {
			return merr
		}
		// Moved away in one step, so that no reader sees half of it go.
		_ = os.Rename(entry, filepath.Join(old, "entry"))
		_ = os.RemoveAll(old)
	}
	return err
}
