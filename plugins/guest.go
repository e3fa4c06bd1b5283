package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/pawlhost/pawl/sdk/abi"
)

// guest is a compiled module in a runtime of its own, with the host modules that it imports. Each call gets a fresh
// instance; the runtime, the compiled code and the host modules are shared by all of them.
type guest struct {
	name  string
	level int
	wasi  bool
	init  bool // it exports _initialize
	*build
}

// running is a call's state behind its instance, found through the context.
type running struct {
	s     *Session
	ready []byte // the answer that read copies, from off
	off   int
}

type runningKey struct{}

// newGuest checks m against what its level needs and compiles it.
func (s *Set) newGuest(ctx context.Context, name string, m *module, level int, lim Limits) (*guest, error) {
	if err := m.fits(level); err != nil {
		return nil, err
	}
	if m.pages > lim.MemoryPages {
		return nil, fmt.Errorf("it needs %d pages of memory to start; its manifest's limit is %d (64 KiB each)", m.pages, lim.MemoryPages)
	}
	b, err := compileGuard(ctx, lim.CompileTime, func(ctx context.Context) (*build, error) {
		return s.compile(ctx, m.binary, lim.MemoryPages)
	}, func(b *build) { _ = b.close(context.WithoutCancel(ctx)) })
	if err != nil {
		return nil, fmt.Errorf("it does not compile: %w", err)
	}
	g := &guest{name: name, level: level, build: b}
	_, g.init = m.exports[abi.ExportInit]
	g.wasi = slices.ContainsFunc(m.imports, func(i imported) bool { return i.module == wasi_snapshot_preview1.ModuleName })
	if err := g.link(ctx); err != nil {
		_ = g.close(ctx)
		return nil, err
	}
	return g, nil
}

// fits checks imports, exports and their signatures.
func (m *module) fits(level int) error {
	var unknown []string
	for _, i := range m.imports {
		if !known(i, level) {
			unknown = append(unknown, i.module+"."+i.name)
		}
	}
	if len(unknown) > 0 {
		hint := "a module of level %d may import %s only"
		allowed := wasi_snapshot_preview1.ModuleName
		if level == abi.LevelCore {
			allowed = "pawl.call, pawl.read and " + allowed
		}
		return fmt.Errorf("unknown imports %s; "+hint, cut(strings.Join(unknown, ", "), 512), level, allowed)
	}
	if e, ok := m.exports[abi.ExportMemory]; !ok || e.kind != 2 {
		return fmt.Errorf("it does not export its memory as %q", abi.ExportMemory)
	}
	type export struct {
		name    string
		results int
		must    bool
	}
	want := []export{{abi.ExportStart, 0, true}}
	if level == abi.LevelCore {
		want = []export{{abi.ExportCall, 1, true}, {abi.ExportDescribe, 1, false}, {abi.ExportInit, 0, false}}
	}
	for _, w := range want {
		_, ok := m.exports[w.name]
		if !ok && !w.must {
			continue
		}
		if f, ok := m.signature(w.name); !ok || !f.is(0, w.results) {
			result := ""
			if w.results == 1 {
				result = " -> i32"
			}
			return fmt.Errorf("it does not export the function %s()%s, which level %d needs", w.name, result, level)
		}
	}
	return nil
}

// wasiNames are the functions that wazero has.
var wasiNames = sync.OnceValue(func() map[string]bool {
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer rt.Close(ctx)
	names := map[string]bool{}
	if c, err := wasi_snapshot_preview1.NewBuilder(rt).Compile(ctx); err == nil {
		for name := range c.ExportedFunctions() {
			names[name] = true
		}
	}
	return names
})

func known(i imported, level int) bool {
	switch i.module {
	case wasi_snapshot_preview1.ModuleName:
		return wasiNames()[i.name]
	case abi.ImportModule:
		return level == abi.LevelCore && (i.name == abi.ImportCall || i.name == abi.ImportRead)
	}
	return false
}

// link instantiates the host modules, once per guest.
func (g *guest) link(ctx context.Context) error {
	if g.wasi {
		if _, err := wasi_snapshot_preview1.Instantiate(ctx, g.rt); err != nil {
			return err
		}
	}
	if g.level != abi.LevelCore {
		return nil
	}
	i32 := api.ValueTypeI32
	_, err := g.rt.NewHostModuleBuilder(abi.ImportModule).
		NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(coreCall), []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}).Export(abi.ImportCall).
		NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(coreRead), []api.ValueType{i32, i32}, []api.ValueType{i32}).Export(abi.ImportRead).
		Instantiate(ctx)
	return err
}

// coreCall is the import pawl.call.
func coreCall(ctx context.Context, mod api.Module, stack []uint64) {
	r := ctx.Value(runningKey{}).(*running)
	r.ready, r.off = nil, 0
	status := func(n int32) { stack[0] = uint64(uint32(n)) }
	mem := mod.Memory()
	op, ok := mem.Read(uint32(stack[0]), uint32(stack[1]))
	req, ok2 := mem.Read(uint32(stack[2]), uint32(stack[3]))
	switch {
	case !ok || !ok2:
		status(abi.ErrRange)
		return
	case len(op) > abi.MaxOp || len(req) > abi.MaxRequest:
		status(abi.ErrTooLarge)
		return
	case !utf8.Valid(op): // dispatch looks at req
		status(abi.ErrMalformed)
		return
	}
	answer, err := r.s.dispatch(ctx, string(op), req)
	if err != nil {
		status(abi.ErrMalformed)
		return
	}
	r.ready = answer
	status(int32(len(answer)))
}

// coreRead is the import pawl.read.
func coreRead(ctx context.Context, mod api.Module, stack []uint64) {
	r := ctx.Value(runningKey{}).(*running)
	dst, ok := mod.Memory().Read(uint32(stack[0]), uint32(stack[1]))
	if !ok {
		n := int32(abi.ErrRange)
		stack[0] = uint64(uint32(n))
		return
	}
	n := copy(dst, r.ready[r.off:])
	r.off += n
	stack[0] = uint64(n)
}

// instance runs f with a fresh instance and frees it, also when the guest never came to be.
func (g *guest) instance(ctx context.Context, s *Session, cfg wazero.ModuleConfig, f func(ctx context.Context, i api.Module) error) error {
	ctx = context.WithValue(ctx, runningKey{}, &running{s: s})
	s.memory.limit = uint64(s.lim.MemoryPages) * pageSize
	defer s.memory.release()
	i, err := g.rt.InstantiateModule(experimental.WithMemoryAllocator(ctx, &s.memory), g.compiled, cfg)
	if err != nil {
		return err
	}
	defer i.Close(ctx)
	return f(ctx, i)
}

// core runs an exported function of a level 2 module, after _initialize.
func (g *guest) core(ctx context.Context, s *Session, export string) (status uint32, err error) {
	cfg, flush := g.coreConfig(ctx, s)
	defer flush()
	err = g.instance(ctx, s, cfg, func(ctx context.Context, i api.Module) error {
		if g.init {
			if err := i.ExportedFunction(abi.ExportInit).CallWithStack(ctx, nil); err != nil {
				return err
			}
		}
		if export == "" {
			return nil
		}
		var stack [1]uint64
		err := i.ExportedFunction(export).CallWithStack(ctx, stack[:])
		status = uint32(stack[0])
		return err
	})
	return status, err
}

// describe asks the module for its manifest.
func (g *guest) describe(ctx context.Context, lim Limits) ([]byte, error) {
	s := loadSession(lim)
	ctx, cancel := context.WithTimeout(ctx, lim.LoadTime)
	defer cancel()
	status, err := g.core(ctx, s, abi.ExportDescribe)
	if f := s.loadFailure(ctx, status, err); f != nil {
		return nil, f
	}
	if s.output == nil {
		return nil, errors.New("it gave no manifest; send it with output")
	}
	return s.output, nil
}

// probe makes one instance, so that a module whose start function or _initialize loops or traps is found at load.
func (g *guest) probe(ctx context.Context, lim Limits) error {
	s := loadSession(lim)
	ctx, cancel := context.WithTimeout(ctx, lim.LoadTime)
	defer cancel()
	var err error
	if g.level == abi.LevelCore {
		_, err = g.core(ctx, s, "")
	} else {
		cfg, flush := g.coreConfig(ctx, s) // nothing to read, output to the log
		err = g.instance(ctx, s, cfg, func(context.Context, api.Module) error { return nil })
		flush()
	}
	if f := s.loadFailure(ctx, 0, err); f != nil {
		return fmt.Errorf("starting it: %w", f)
	}
	return nil
}

func loadSession(lim Limits) *Session {
	return &Session{lim: lim, loading: true, call: &Call{}, request: json.RawMessage("{}")}
}

func (s *Session) loadFailure(ctx context.Context, status uint32, err error) error {
	s.over = true
	if f := s.ended(ctx, ctx, s.lim.LoadTime, err); f != nil {
		return errors.New(f.Code + ": " + f.Message)
	}
	if s.failure != nil {
		return errors.New(s.failure.Message)
	}
	if status != 0 {
		return fmt.Errorf("it returned %d", int32(status))
	}
	return nil
}

// deadlineWorks proves once per process that a loop ends at its deadline: a runtime built or configured without that
// would let the first bad guest hold its worker for ever, and nothing else would show it.
var deadlineWorks = sync.OnceValue(func() error {
	// (module (func (loop (br 0))) (start 0))
	loop := []byte("\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x08\x01\x00\x0a\x09\x01\x07\x00\x03\x40\x0c\x00\x0b\x0b")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	done := make(chan error, 1)
	go func() {
		defer cancel()
		rt := wazero.NewRuntimeWithConfig(ctx, runtimeConfig(1, nil))
		defer rt.Close(context.WithoutCancel(ctx))
		_, err := rt.Instantiate(ctx, loop)
		done <- err
	}()
	select {
	case err := <-done:
		if ctx.Err() != nil && err != nil {
			return nil
		}
		return fmt.Errorf("the WebAssembly runtime does not work here: %w", err)
	case <-time.After(10 * time.Second):
		return errors.New("the WebAssembly runtime does not end a loop at its deadline; this build cannot run guests safely")
	}
})
