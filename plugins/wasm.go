package plugins

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/pawlhost/pawl/sdk/abi"
)

// scan reads the structure of a module before the runtime does. The runtime's decoder believes every count that a
// module states and allocates for it (a 12-byte module can ask for 100 GiB), has no maximum for a table without one
// (table.grow ignores the memory limit), and does not say which imports are missing. So counts are checked against the
// bytes that are there, tables get a maximum, and imports and exports are known before a line is compiled.
// Format: WebAssembly core 2.0, section 5.

// module is what scan found.
type module struct {
	binary   []byte // what to compile: the input with tables bounded and debug data dropped
	imports  []imported
	exports  map[string]exported
	types    []funcType
	funcs    []uint32 // type of each own function
	pages    uint32   // of memory to start with
	manifest []byte   // the custom section, nil without one
}

type imported struct {
	module, name string
	typ          uint32
}

type exported struct {
	kind  byte // 0 function, 1 table, 2 memory, 3 global
	index uint32
}

type funcType struct{ params, results []byte }

func (f funcType) is(params, results int) bool {
	all := slices.Concat(f.params, f.results)
	for _, t := range all {
		if t != 0x7f { // i32
			return false
		}
	}
	return len(f.params) == params && len(f.results) == results
}

// Caps of one module; the specification's own embedding limits are in the same range.
const (
	maxFunctions = 100_000
	maxLocals    = 50_000
	maxBody      = 4 << 20
	maxNames     = 8 << 20
)

const (
	secCustom = iota
	secType
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
)

var sectionNames = [...]string{"custom", "type", "import", "function", "table", "memory", "global", "export", "start",
	"element", "code", "data", "data count"}

func scan(b []byte, lim Limits) (*module, error) {
	switch {
	case len(b) < 8 || string(b[:4]) != "\x00asm":
		return nil, errors.New("it is not a WebAssembly module; it does not begin with \\0asm")
	case bytes.Equal(b[4:8], []byte{0x0d, 0, 1, 0}):
		return nil, errors.New("it is a WebAssembly component; this host runs core modules. Build for a core target " +
			"(Rust: wasm32-wasip1 or wasm32-unknown-unknown, TinyGo: -target=wasip1, Go: GOOS=wasip1) without wrapping it as a component")
	case binary.LittleEndian.Uint32(b[4:8]) != 1:
		return nil, fmt.Errorf("it is of WebAssembly version %d; this host runs version 1", binary.LittleEndian.Uint32(b[4:8]))
	}
	s := &scanner{lim: lim, m: &module{exports: map[string]exported{}, binary: append(make([]byte, 0, len(b)+16), b[:8]...)}}
	r := &reader{b: b[8:]}
	last := 0
	for len(r.b) > 0 {
		id := r.byte()
		body := r.take(r.u32())
		if r.err != nil {
			return nil, fmt.Errorf("it ends within a section: %w", r.err)
		}
		if int(id) >= len(sectionNames) {
			return nil, fmt.Errorf("it has a section of kind %d, which is not of WebAssembly 2.0", id)
		}
		if id != secCustom {
			if o := order(id); o <= last {
				return nil, fmt.Errorf("its %s section is out of order", sectionNames[id])
			} else {
				last = o
			}
		}
		sec := &reader{b: body}
		out, err := s.section(id, sec, body)
		if err == nil {
			err = sec.err
		}
		if err == nil && id != secCustom && len(sec.b) > 0 {
			err = errors.New("it has bytes left over")
		}
		if err != nil {
			return nil, fmt.Errorf("%s section: %w", sectionNames[id], err)
		}
		if out != nil {
			s.m.binary = append(s.m.binary, id)
			s.m.binary = binary.AppendUvarint(s.m.binary, uint64(len(out)))
			s.m.binary = append(s.m.binary, out...)
		}
	}
	if len(s.m.funcs) != s.bodies {
		return nil, fmt.Errorf("it declares %d functions and has %d", len(s.m.funcs), s.bodies)
	}
	return s.m, nil
}

// order is a section's place: data count comes before code.
func order(id byte) int {
	switch {
	case id == secDataCount:
		return secCode
	case id >= secCode:
		return int(id) + 1
	}
	return int(id)
}

type scanner struct {
	m       *module
	lim     Limits
	bodies  int
	named   bool
	indexed bool // code may name data segments
}

// section checks one section and returns what to write in its place, nil to drop it.
func (s *scanner) section(id byte, r *reader, body []byte) ([]byte, error) {
	switch id {
	case secCustom:
		return s.custom(r, body)
	case secType:
		for range r.count() {
			if t := r.byte(); t != 0x60 && r.err == nil {
				return nil, fmt.Errorf("a type of kind %#x; switch off garbage collection and other proposals in your compiler", t)
			}
			s.m.types = append(s.m.types, funcType{r.types(), r.types()})
		}
	case secImport:
		return body, s.imports(r)
	case secFunction:
		n := r.count()
		if n > maxFunctions {
			return nil, fmt.Errorf("%d functions; the limit is %d", n, maxFunctions)
		}
		for range n {
			s.m.funcs = append(s.m.funcs, r.u32())
		}
	case secTable:
		return s.tables(r)
	case secMemory:
		n := r.count()
		if n > 1 {
			return nil, errors.New("more than one memory")
		}
		for range n {
			flags, least, _ := r.limits()
			if r.err == nil && flags > 1 {
				return nil, errors.New("a shared or 64-bit memory; build without threads and for wasm32")
			}
			s.m.pages = least
			if least > s.lim.MemoryPages {
				return nil, fmt.Errorf("it needs %d pages of memory to start; its limit is %d (64 KiB each)", least, s.lim.MemoryPages)
			}
		}
	case secGlobal:
		for range r.count() {
			r.valueType()
			r.byte()
			r.constExpr()
		}
	case secExport:
		for range r.count() {
			name := r.name()
			s.m.exports[name] = exported{r.byte(), r.u32()}
		}
	case secStart:
		r.u32()
	case secDataCount:
		r.u32()
		s.indexed = true
	case secElement:
		for range r.count() {
			s.element(r)
		}
	case secCode:
		n := r.count()
		s.bodies = int(n)
		for range n {
			if err := s.code(r); err != nil {
				return nil, err
			}
		}
	case secData:
		return s.data(r, body)
	}
	return body, nil
}

func (s *scanner) custom(r *reader, body []byte) ([]byte, error) {
	name := r.name()
	if r.err != nil {
		return nil, r.err
	}
	switch {
	case name == abi.ManifestSection:
		if s.m.manifest != nil {
			return nil, fmt.Errorf("%s is there twice", abi.ManifestSection)
		}
		s.m.manifest = append([]byte{}, r.b...)
	case name == "name" && !s.named && len(r.b) <= maxNames && soundNames(r.b):
		s.named = true
		return body, nil // function names make a trap's report readable
	}
	r.b = nil
	return nil, nil // debug data and what nobody reads
}

func (s *scanner) imports(r *reader) error {
	for range r.count() {
		i := imported{module: r.name(), name: r.name()}
		kind := r.byte()
		if r.err != nil {
			return r.err
		}
		if kind != 0 {
			what := map[byte]string{1: "table", 2: "memory", 3: "global", 4: "tag"}[kind]
			return fmt.Errorf("it imports the %s %q.%q; a module brings its own", what, i.module, i.name)
		}
		i.typ = r.u32()
		s.m.imports = append(s.m.imports, i)
	}
	return nil
}

// tables gives every table a maximum: table.grow heeds nothing else. The limit is for all tables of the module together; what
// their least sizes leave of it is shared out.
func (s *scanner) tables(r *reader) ([]byte, error) {
	type table struct {
		typ         byte
		least, most uint32
	}
	n := r.count()
	var all []table
	var sum uint64
	for range n {
		typ := r.byte()
		if r.err == nil && typ != 0x70 && typ != 0x6f {
			return nil, fmt.Errorf("a table of type %#x; switch off typed references in your compiler", typ)
		}
		flags, least, most := r.limits()
		if r.err == nil && flags > 1 {
			return nil, errors.New("a shared or 64-bit table")
		}
		if flags == 0 {
			most = s.lim.TableElements
		}
		all = append(all, table{typ, least, most})
		if sum += uint64(least); sum > uint64(s.lim.TableElements) {
			return nil, fmt.Errorf("tables of more than %d elements together; the limit is for all tables of a module", s.lim.TableElements)
		}
	}
	out := binary.AppendUvarint(nil, uint64(n))
	for _, t := range all {
		share := t.least + (s.lim.TableElements-uint32(sum))/uint32(n)
		out = append(out, t.typ, 1)
		out = binary.AppendUvarint(out, uint64(t.least))
		out = binary.AppendUvarint(out, uint64(min(t.most, share)))
	}
	return out, nil
}

func (s *scanner) element(r *reader) {
	kind := r.u32()
	if kind > 7 {
		r.fail("an element segment of an unknown kind")
		return
	}
	if kind&1 == 0 { // active
		if kind&2 != 0 {
			r.u32() // table
		}
		r.constExpr()
	}
	if kind&3 != 0 {
		r.byte() // element kind or reference type
	}
	for range r.count() {
		if kind&4 != 0 {
			r.constExpr()
		} else {
			r.u32()
		}
	}
}

// code checks a body's locals: a few bytes can declare four thousand million of them.
func (s *scanner) code(r *reader) error {
	size := r.u32()
	if size > maxBody {
		return fmt.Errorf("a function of %d bytes; the limit is %d", size, maxBody)
	}
	f := &reader{b: r.take(size)}
	var locals uint64
	for range f.count() {
		locals += uint64(f.u32())
		f.valueType()
	}
	if locals > maxLocals {
		return fmt.Errorf("a function with %d locals; the limit is %d", locals, maxLocals)
	}
	if f.err != nil {
		r.err = f.err
	}
	return nil
}

// signature is the type of an exported function.
func (m *module) signature(name string) (funcType, bool) {
	e, ok := m.exports[name]
	i := int(e.index) - len(m.imports)
	if !ok || e.kind != 0 || i < 0 || i >= len(m.funcs) || int(m.funcs[i]) >= len(m.types) {
		return funcType{}, false
	}
	return m.types[m.funcs[i]], true
}

// soundNames reports whether the counts of a name section are backed by bytes.
func soundNames(b []byte) bool {
	r := &reader{b: b}
	for len(r.b) > 0 && r.err == nil {
		id := r.byte()
		sub := &reader{b: r.take(r.u32())}
		switch id {
		case 0:
			sub.name()
		case 1:
			sub.nameMap()
		case 2:
			for range sub.count() {
				sub.u32()
				sub.nameMap()
			}
		}
		if sub.err != nil {
			return false
		}
	}
	return r.err == nil
}
