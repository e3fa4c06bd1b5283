package plugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Options say where plugins come from and what bounds them.
type Options struct {
	Dir      string                       // the operator's folder: NAME.wasm and perhaps NAME.json, its manifest; "" for none
	Bundled  fs.FS                        // embedded plugins, in folders or not, laid out alike; nil for none
	CacheDir string                       // compiled code; "" keeps it in memory only. Who can write it can run code in the host.
	Limits   Limits                       // defaults and ceilings of every plugin
	Config   map[string]map[string]string // by plugin, what the config operation answers
	Log      *slog.Logger                 // nil for none
}

// Set is the plugins of a host: loaded once, called concurrently.
type Set struct {
	opt   Options
	log   *slog.Logger
	cache string         // the compile cache's folder, "" for none
	calls sync.WaitGroup // running calls, so that Close can wait
	slots *slots

	mu      sync.RWMutex
	closed  bool
	plugins []*plugin // by name
	byName  map[string]*Tool
	tools   []*Tool // by Name
	skipped []Skipped
}

// Skipped is a plugin that was not loaded.
type Skipped struct{ Plugin, Reason string }

// Open loads every plugin, compiling up to one per processor at a time. A module that cannot be used is skipped with a
// reason, see [Set.Skipped]: one bad file never keeps the host down. The error is about what the operator has to mend
// first: a folder that cannot be read, or a runtime that does not keep deadlines.
func Open(ctx context.Context, o Options) (*Set, error) {
	s := &Set{opt: o, log: o.Log}
	s.opt.Limits = o.Limits.withDefaults()
	s.slots = newSlots(s.opt.Limits.Guests)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := deadlineWorks(); err != nil {
		return nil, err
	}
	s.openCache()
	files, err := s.find()
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, f := range files {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			p, err := s.load(ctx, f)
			s.mu.Lock()
			defer s.mu.Unlock()
			if err != nil {
				s.skipped = append(s.skipped, Skipped{f.name, err.Error()})
				s.log.Warn("plugin skipped", "plugin", f.name, "reason", err.Error())
				return
			}
			s.plugins = append(s.plugins, p)
		})
	}
	wg.Wait()
	slices.SortFunc(s.skipped, func(a, b Skipped) int { return strings.Compare(a.Plugin, b.Plugin) })
	s.index()
	if err := ctx.Err(); err != nil {
		_ = s.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return s, nil
}

// file is a plugin that was found.
type file struct {
	name string
	fsys fs.FS
	path string // of the module, in fsys
}

// find lists the modules. The operator's plugin takes the place of a bundled one of the same name.
func (s *Set) find() ([]file, error) {
	found := map[string]file{}
	if s.opt.Bundled != nil {
		err := fs.WalkDir(s.opt.Bundled, ".", func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(path, ".wasm") {
				s.add(found, file{stem(path), s.opt.Bundled, path})
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("bundled plugins: %w", err)
		}
	}
	if s.opt.Dir != "" {
		entries, err := os.ReadDir(s.opt.Dir)
		if err != nil {
			return nil, fmt.Errorf("plugin folder: %w; create it or leave --plugins out", err)
		}
		dir := os.DirFS(s.opt.Dir)
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".wasm") {
				s.add(found, file{stem(e.Name()), dir, e.Name()})
			}
		}
	}
	return slices.Collect(maps.Values(found)), nil
}

func (s *Set) add(found map[string]file, f file) {
	if !validName(f.name) {
		reason := "its file name is not a plugin name; use 1 to 64 of A-Z a-z 0-9 _ - before .wasm"
		s.skipped = append(s.skipped, Skipped{f.name, reason})
		s.log.Warn("plugin skipped", "plugin", f.name, "reason", reason)
		return
	}
	if _, ok := found[f.name]; ok {
		s.log.Info("plugin replaces the bundled one", "plugin", f.name)
	}
	found[f.name] = f
}

func stem(path string) string {
	return strings.TrimSuffix(path[strings.LastIndexByte(path, '/')+1:], ".wasm")
}

// readFile reads at most limit bytes.
func readFile(fsys fs.FS, path string, limit int) ([]byte, error) {
	// Before it is opened: opening a pipe waits for its writer, for ever.
	if st, err := fs.Stat(fsys, path); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(b) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", path, limit)
	}
	return b, err
}

// AddFunc adds a plugin that is a Go function: m.Name names it, m.Tools are its tools, m.Level is not used, and its
// digest covers the manifest. It goes through the same dispatcher and limits as a module, except that nothing can stop
// Go code: fn must return when its context ends. Tools that were looked up before keep their names.
func (s *Set) AddFunc(m Manifest, fn func(ctx context.Context, c *Session) error) error {
	m, raw, err := funcManifest(m)
	if err != nil {
		return fmt.Errorf("plugin %q: manifest: %w", m.Name, err)
	}
	if !validName(m.Name) {
		return fmt.Errorf("plugin %q: its name must be 1 to 64 of A-Z a-z 0-9 _ -", m.Name)
	}
	p, err := newPlugin(m.Name, m, nil, raw, s.opt.Limits, s.opt.Config[m.Name])
	if err != nil {
		return fmt.Errorf("plugin %q: %w", m.Name, err)
	}
	p.fn = fn
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	for _, have := range s.plugins {
		if have.name == p.name {
			return fmt.Errorf("plugin %q: there is one of this name already", p.name)
		}
	}
	s.plugins = append(s.plugins, p)
	s.index()
	return nil
}

var errClosed = errors.New("the plugins are closed")

// index names the tools. Tools are copied, so that one that is in use never changes. The caller holds mu, or is Open.
func (s *Set) index() {
	slices.SortFunc(s.plugins, func(a, b *plugin) int { return strings.Compare(a.name, b.name) })
	exports := map[string]int{}
	for _, p := range s.plugins {
		for _, t := range p.tools {
			exports[t.Bare]++
		}
	}
	s.tools, s.byName = nil, map[string]*Tool{}
	for _, p := range s.plugins {
		for _, t := range p.tools {
			named := *t
			if named.Name = t.Bare; exports[t.Bare] > 1 {
				named.Name = p.name + "." + t.Bare
			}
			s.tools = append(s.tools, &named)
			s.byName[named.Name] = &named
		}
	}
	slices.SortFunc(s.tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
}

// Tools are all tools, by Name.
func (s *Set) Tools() []*Tool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.tools)
}

// Lookup finds a tool by its Name.
func (s *Set) Lookup(name string) (*Tool, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.byName[name]
	return t, ok
}

// Skipped tells which plugins were not loaded and why.
func (s *Set) Skipped() []Skipped {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.skipped)
}

// enter counts a call in, unless the set is closed.
func (s *Set) enter() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return false
	}
	s.calls.Add(1)
	return true
}

// Close waits for the running calls, or until ctx ends, and frees the compiled code. Cancel the calls' contexts first
// to be quick. When ctx ends before the calls do, nothing is freed, since code that runs is never taken away; new
// calls are refused all the same, and Close can be called again.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.calls.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("tool calls still run: %w", ctx.Err())
	}
	s.mu.Lock()
	plugins := s.plugins
	s.plugins = nil
	s.mu.Unlock()
	var errs []error
	for _, p := range plugins {
		if p.guest != nil {
			errs = append(errs, p.guest.close(ctx))
		}
	}
	return errors.Join(errs...)
}

// load reads, checks, compiles and probes one module.
func (s *Set) load(ctx context.Context, f file) (*plugin, error) {
	raw, err := readFile(f.fsys, f.path, s.opt.Limits.ModuleBytes)
	if err != nil {
		return nil, err
	}
	m, err := scan(raw, s.opt.Limits)
	if err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	manifest, err := readFile(f.fsys, strings.TrimSuffix(f.path, ".wasm")+".json", abi.MaxManifest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		manifest = m.manifest
	case err != nil:
		return nil, fmt.Errorf("manifest: %w", err)
	}
	var g *guest
	if manifest == nil {
		if _, ok := m.exports[abi.ExportDescribe]; !ok {
			return nil, fmt.Errorf("it has no manifest; write %s.json beside it, or a custom section %s", f.name, abi.ManifestSection)
		}
		if g, err = s.newGuest(ctx, f.name, m, abi.LevelCore, s.opt.Limits); err != nil {
			return nil, err
		}
		if manifest, err = g.describe(ctx, s.opt.Limits); err != nil {
			_ = g.close(ctx)
			return nil, fmt.Errorf("%s: %w", abi.ExportDescribe, err)
		}
	}
	p, err := s.complete(ctx, f.name, m, raw, manifest, g)
	if err != nil && g != nil {
		_ = g.close(ctx)
	}
	return p, err
}

func (s *Set) complete(ctx context.Context, name string, m *module, raw, manifest []byte, g *guest) (*plugin, error) {
	mf, err := ParseManifest(manifest)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	p, err := newPlugin(name, mf, raw, manifest, s.opt.Limits, s.opt.Config[name])
	if err != nil {
		return nil, err
	}
	if g == nil {
		if g, err = s.newGuest(ctx, name, m, mf.Level, p.limits); err != nil {
			return nil, err
		}
	} else if mf.Level != abi.LevelCore {
		return nil, fmt.Errorf("manifest: at /level: a module with %s is of level %d", abi.ExportDescribe, abi.LevelCore)
	}
	p.guest = g
	if err := g.probe(ctx, p.limits); err != nil {
		_ = g.close(ctx)
		return nil, err
	}
	return p, nil
}
