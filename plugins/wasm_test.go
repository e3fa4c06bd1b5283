package plugins

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
)

// wasmBytes assembles a module.
type section struct {
	id   byte
	body []byte
}

func assemble(sections ...section) []byte {
	b := []byte("\x00asm\x01\x00\x00\x00")
	for _, s := range sections {
		b = append(b, s.id)
		b = binary.AppendUvarint(b, uint64(len(s.body)))
		b = append(b, s.body...)
	}
	return b
}

func custom(name string, body []byte) section {
	b := binary.AppendUvarint(nil, uint64(len(name)))
	return section{0, append(append(b, name...), body...)}
}

var (
	voidType = section{1, []byte{1, 0x60, 0, 0}}
	oneFunc  = section{3, []byte{1, 0}}
	oneCode  = section{10, []byte{1, 2, 0, 0x0b}}
)

func TestModulesThatAreRefusedBeforeTheRuntimeSeesThem(t *testing.T) {
	t.Parallel()
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0x0f} // 2^32-1
	lim := Limits{MemoryPages: 16, TableElements: 1000}.withDefaults()
	for _, c := range []struct {
		why  string
		b    []byte
		want string
	}{
		{"empty", nil, "not a WebAssembly module"},
		{"text", []byte("(module)   "), "not a WebAssembly module"},
		{"a component", []byte("\x00asm\x0d\x00\x01\x00"), "wasm32-wasip1"},
		{"version 2", []byte("\x00asm\x02\x00\x00\x00"), "version 2"},
		{"cut off", assemble(voidType)[:10], "ends within"},
		{"an unknown section", assemble(section{13, nil}), "kind 13"},
		{"order", assemble(oneFunc, voidType), "out of order"},
		{"twice", assemble(voidType, voidType), "out of order"},
		{"types that are not there", assemble(section{1, huge}), "count beyond"},
		{"parameters that are not there", assemble(section{1, append([]byte{1, 0x60}, huge...)}), "count beyond"},
		{"a type of garbage collection", assemble(section{1, []byte{1, 0x5f, 0}}), "proposals"},
		{"imports that are not there", assemble(section{2, huge}), "count beyond"},
		{"functions that are not there", assemble(section{3, huge}), "count beyond"},
		{"functions without code", assemble(voidType, oneFunc), "declares 1 functions and has 0"},
		{"tables that are not there", assemble(section{4, huge}), "count beyond"},
		{"a large table", assemble(section{4, append([]byte{1, 0x70, 0}, huge...)}), "1000"},
		{"a shared table", assemble(section{4, []byte{1, 0x70, 3, 0, 1}}), "shared"},
		{"much memory", assemble(section{5, []byte{1, 0, 17}}), "17 pages"},
		{"shared memory", assemble(section{5, []byte{1, 3, 1, 2}}), "threads"},
		{"64-bit memory", assemble(section{5, []byte{1, 4, 1}}), "wasm32"},
		{"two memories", assemble(section{5, []byte{2, 0, 1, 0, 1}}), "more than one"},
		{"an imported memory", assemble(section{2, []byte{1, 1, 'e', 1, 'm', 2, 0, 1}}), `memory "e"."m"`},
		{"an imported table", assemble(section{2, []byte{1, 1, 'e', 1, 't', 1, 0x70, 0, 1}}), `table "e"."t"`},
		{"an imported global", assemble(section{2, []byte{1, 1, 'e', 1, 'g', 3, 0x7f, 0}}), `global "e"."g"`},
		{"globals that are not there", assemble(section{6, huge}), "count beyond"},
		{"exports that are not there", assemble(section{7, huge}), "count beyond"},
		{"an export that is not UTF-8", assemble(section{7, []byte{1, 1, 0xff, 0, 0}}), "not UTF-8"},
		{"elements that are not there", assemble(section{9, append([]byte{1, 0, 0x41, 0, 0x0b}, huge...)}), "count beyond"},
		{"bodies that are not there", assemble(voidType, oneFunc, section{10, huge}), "count beyond"},
		{"locals by the thousand million", assemble(voidType, oneFunc, section{10, append(append([]byte{1, 9, 1}, huge...), 0x7f, 0, 0x0b)}), "locals"},
		{"data beyond its end", assemble(section{11, append([]byte{1, 0, 0x41, 0, 0x0b}, huge...)}), "beyond its end"},
		{"an endless constant", assemble(section{6, []byte{1, 0x7f, 0, 0x41, 0x80, 0x80}}), "ends too early"},
		{"a number of six bytes", assemble(section{3, []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0}}), "number"},
		{"left-over bytes", assemble(section{8, []byte{0, 0}}), "left over"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := scan(c.b, lim)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.why, err)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 256<<20 {
			t.Errorf("%s: it allocated %d MiB", c.why, grown>>20)
		}
	}
}

func TestTablesGetAMaximum(t *testing.T) {
	t.Parallel()
	lim := Limits{TableElements: 1000}.withDefaults()
	for _, c := range []struct{ in, want []byte }{
		{[]byte{1, 0x70, 0, 1}, []byte{1, 0x70, 1, 1, 0xe8, 7}},
		{[]byte{1, 0x6f, 1, 1, 5}, []byte{1, 0x6f, 1, 1, 5}},
		{[]byte{1, 0x70, 1, 1, 0xff, 0xff, 3}, []byte{1, 0x70, 1, 1, 0xe8, 7}},
	} {
		m, err := scan(assemble(section{4, c.in}), lim)
		if err != nil || !bytes.Equal(m.binary, assemble(section{4, c.want})) {
			t.Errorf("%x: %x %v", c.in, m.binary, err)
		}
	}
}

// TestInvariant11_TableGrowIsBounded runs table.grow by 2^32-3 and by what fits.
func TestInvariant11_TableGrowIsBounded(t *testing.T) {
	t.Parallel()
	for _, by := range []struct {
		leb  []byte
		want uint64
	}{{[]byte{0x7d}, 0xffffffff}, {[]byte{0xc0, 0x84, 0x3d}, 0xffffffff}, {[]byte{10}, 1}} {
		body := append([]byte{0, 0xd0, 0x70, 0x41}, by.leb...)
		body = append(body, 0xfc, 0x0f, 0, 0x0b)
		b := assemble(section{1, []byte{1, 0x60, 0, 1, 0x7f}}, oneFunc, section{4, []byte{1, 0x70, 0, 1}},
			section{7, []byte{1, 1, 'f', 0, 0}}, section{10, append([]byte{1, byte(len(body))}, body...)})
		m, err := scan(b, Limits{TableElements: 1000}.withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		rt := wazero.NewRuntimeWithConfig(ctx, runtimeConfig(16, nil))
		i, err := rt.Instantiate(ctx, m.binary)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := i.ExportedFunction("f").Call(ctx); err != nil || r[0] != by.want {
			t.Errorf("by %x: %v %v, want %x", by.leb, r, err, by.want)
		}
		_ = rt.Close(ctx)
	}
}

func TestNameSectionsThatLieAreDropped(t *testing.T) {
	t.Parallel()
	lie := []byte{1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f}
	honest := []byte{1, 4, 1, 0, 1, 'f'}
	for _, c := range []struct {
		body []byte
		kept bool
	}{{lie, false}, {honest, true}, {[]byte{1, 200}, false}} {
		m, err := scan(assemble(voidType, oneFunc, oneCode, custom("name", c.body), custom(".debug_info", []byte("x"))), Limits{}.withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		if kept := bytes.Contains(m.binary, []byte("name")); kept != c.kept {
			t.Errorf("%x: kept %v", c.body, kept)
		}
		if bytes.Contains(m.binary, []byte(".debug_info")) {
			t.Error("debug data was kept")
		}
	}
}

// FuzzScan: what passes can be given to the runtime, which then neither panics nor allocates without bound.
func FuzzScan(f *testing.F) {
	for _, name := range []string{"core_init", "core"} {
		f.Add(guestBytes(f, name))
	}
	f.Add(assemble(voidType, oneFunc, section{4, []byte{1, 0x70, 0, 1}}, section{5, []byte{1, 0, 1}}, section{8, []byte{0}},
		section{9, []byte{1, 0, 0x41, 0, 0x0b, 1, 0}}, oneCode, section{11, []byte{1, 0, 0x41, 0, 0x0b, 1, 'x'}}))
	lim := Limits{MemoryPages: 16, TableElements: 1000}.withDefaults()
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := scan(b, lim)
		if err != nil {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		ctx := context.Background()
		rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(features).WithMemoryLimitPages(16))
		_, _ = rt.CompileModule(ctx, m.binary)
		_ = rt.Close(ctx)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20+uint64(len(b))*1000 {
			t.Fatalf("%d bytes made the decoder allocate %d MiB", len(b), grown>>20)
		}
	})
}

// TestJoinedDataLeavesTheSameMemory compares the memory of a module with that of what scan made of it.
func TestJoinedDataLeavesTheSameMemory(t *testing.T) {
	t.Parallel()
	seg := func(at int32, b string) []byte {
		out := append(appendSigned([]byte{0, 0x41}, at), 0x0b, byte(len(b)))
		return append(out, b...)
	}
	passive := []byte{1, 1, 'p'}
	for _, c := range []struct {
		why  string
		segs [][]byte
		want int // segments left
	}{
		{"none", nil, 0},
		{"neighbours", [][]byte{seg(0, "ab"), seg(2, "cd"), seg(10, "e")}, 1},
		{"far apart", [][]byte{seg(0, "ab"), seg(60_000, "cd")}, 2},
		{"out of order and apart", [][]byte{seg(100, "ab"), seg(110, "ab"), seg(0, "cd"), seg(8, "x")}, 2},
		{"one between two others", [][]byte{seg(0, "ab"), seg(20, "cd"), seg(10, "x")}, 3},
		{"overlapping", [][]byte{seg(0, "abcd"), seg(2, "xy")}, 2},
		{"passive", [][]byte{seg(0, "a"), passive, seg(2, "b")}, 3},
		{"the last byte", [][]byte{seg(65_530, "ab"), seg(65_535, "z")}, 1},
		{"beyond the end", [][]byte{seg(65_530, "ab"), seg(65_535, "zz")}, 1},
		{"at a negative address", [][]byte{seg(0, "ab"), seg(-1, "z")}, 2},
	} {
		body := binary.AppendUvarint(nil, uint64(len(c.segs)))
		for _, s := range c.segs {
			body = append(body, s...)
		}
		module := assemble(section{5, []byte{1, 0, 1}}, section{7, append([]byte{1, 6}, "memory\x02\x00"...)}, section{11, body})
		m, err := scan(module, Limits{}.withDefaults())
		if err != nil {
			t.Fatalf("%s: %v", c.why, err)
		}
		memory := func(b []byte) (string, error) {
			ctx := context.Background()
			rt := wazero.NewRuntimeWithConfig(ctx, runtimeConfig(16, nil))
			defer rt.Close(ctx)
			i, err := rt.Instantiate(ctx, b)
			if err != nil {
				return "", err
			}
			mem, _ := i.Memory().Read(0, 65536)
			return string(mem), nil
		}
		before, err1 := memory(module)
		after, err2 := memory(m.binary)
		if before != after || (err1 == nil) != (err2 == nil) {
			t.Errorf("%s: another memory, %v %v", c.why, err1, err2)
		}
		const count = 8 + 5 + 12 + 2 // behind header, memory, export, and the section's id and size
		if len(c.segs) > 0 && int(m.binary[count]) != c.want {
			t.Errorf("%s: %d segments, want %d", c.why, m.binary[count], c.want)
		}
	}
	for _, v := range []int32{0, 1, 63, 64, -1, -64, -65, 1 << 20, -1 << 31, 1<<31 - 1} {
		r := &reader{b: append(appendSigned([]byte{0x41}, v), 0x0b)}
		if at, ok := r.offset(); !ok || int32(at) != v || len(r.b) != 0 {
			t.Errorf("%d reads as %d, %v", v, int32(at), ok)
		}
	}
}
