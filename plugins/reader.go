package plugins

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// reader reads the binary format. After an error everything it returns is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(msg string) {
	if r.err == nil {
		r.err = errors.New(msg)
	}
	r.b = nil
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("it ends too early")
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) take(n uint32) []byte {
	if uint64(n) > uint64(len(r.b)) {
		r.fail("a length beyond its end")
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u32() uint32 {
	v, n := binary.Uvarint(r.b[:min(5, len(r.b))])
	if n <= 0 || v > 1<<32-1 {
		r.fail("a number that is cut off or too large")
		return 0
	}
	r.b = r.b[n:]
	return uint32(v)
}

// count reads a vector's length. Every element takes a byte at least, so a longer one is a lie.
func (r *reader) count() uint32 {
	n := r.u32()
	if uint64(n) > uint64(len(r.b)) {
		r.fail("a count beyond its end")
		return 0
	}
	return n
}

func (r *reader) name() string {
	b := r.take(r.u32())
	if !utf8.Valid(b) {
		r.fail("a name that is not UTF-8")
	}
	return string(b)
}

func (r *reader) nameMap() {
	for range r.count() {
		r.u32()
		r.name()
	}
}

func (r *reader) types() []byte {
	n := r.count()
	b := make([]byte, 0, n)
	for range n {
		b = append(b, r.valueType())
	}
	return b
}

func (r *reader) valueType() byte {
	t := r.byte()
	switch t {
	case 0x7f, 0x7e, 0x7d, 0x7c, 0x7b, 0x70, 0x6f:
	default:
		r.fail("a value type that is not of WebAssembly 2.0")
	}
	return t
}

func (r *reader) limits() (flags byte, least, most uint32) {
	flags = r.byte()
	least = r.u32()
	if flags&1 != 0 {
		most = r.u32()
	}
	return flags, least, most
}

// constExpr skips a constant expression.
func (r *reader) constExpr() {
	for r.err == nil {
		switch op := r.byte(); op {
		case 0x0b: // end
			return
		case 0x41, 0x42: // i32.const, i64.const
			for r.err == nil && r.byte()&0x80 != 0 {
			}
		case 0x43:
			r.take(4)
		case 0x44:
			r.take(8)
		case 0x23, 0xd2: // global.get, ref.func
			r.u32()
		case 0xd0: // ref.null
			r.valueType()
		case 0xfd: // v128.const
			if r.u32() != 12 {
				r.fail("a constant expression with an unknown instruction")
			}
			r.take(16)
		default:
			r.fail("a constant expression with an unknown instruction")
		}
	}
}

// offset reads a constant expression and, if it is a single i32.const, its value.
func (r *reader) offset() (at uint32, constant bool) {
	whole := r.b
	r.constExpr()
	expr := whole[:len(whole)-len(r.b)]
	if r.err != nil || len(expr) < 3 || expr[0] != 0x41 {
		return 0, false
	}
	var shift uint
	for i, c := range expr[1:] {
		if shift < 32 {
			at |= uint32(c&0x7f) << shift
		}
		if shift += 7; c&0x80 == 0 {
			if c&0x40 != 0 && shift < 32 {
				at |= ^uint32(0) << shift
			}
			return at, i+3 == len(expr) // only end follows
		}
	}
	return 0, false
}
