package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Key is an order-preserving tuple of strings and unsigned integers, never a joined string, so that no element can reach
// into the next one (a tenant named "a/b" is not tenant "a"). Keys compare element by element, as byte strings do:
// a key sorts before everything below it, strings before integers, strings by bytes, integers by value.
//
// The layout follows FoundationDB's tuple layer: 0x02 s… 0x00 for a string, with 0x00 inside written as 0x00 0xFF, and
// 0x15 plus eight big-endian bytes for an integer.
type Key string

const (
	tagString = 0x02
	tagUint   = 0x15
)

// K builds a key from strings, Key-valued prefixes being extended with [Key.With]. It panics on other types, which is a
// mistake in the program and never in data.
func K(elems ...any) Key { return Key("").With(elems...) }

// With returns the key extended by elements.
func (k Key) With(elems ...any) Key {
	b := make([]byte, len(k), len(k)+16*len(elems))
	copy(b, k)
	for _, e := range elems {
		switch v := e.(type) {
		case string:
			b = append(b, tagString)
			for i := range len(v) {
				b = append(b, v[i])
				if v[i] == 0 {
					b = append(b, 0xFF)
				}
			}
			b = append(b, 0)
		case uint64:
			b = append(b, tagUint)
			b = binary.BigEndian.AppendUint64(b, v)
		case int:
			if v < 0 {
				panic(fmt.Sprintf("store: negative key element %d", v))
			}
			b = append(b, tagUint)
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		default:
			panic(fmt.Sprintf("store: key element of type %T", e))
		}
	}
	return Key(b)
}

// Elems decodes the key into its strings and uint64s. Any byte string that K cannot have made is an error.
func (k Key) Elems() ([]any, error) {
	var out []any
	for rest := string(k); rest != ""; {
		e, n, err := next(rest)
		if err != nil {
			return nil, err
		}
		out, rest = append(out, e), rest[n:]
	}
	return out, nil
}

// Last decodes the last element, which must be a string; it is "" for another key.
func (k Key) Last() string {
	elems, err := k.Elems()
	if err != nil || len(elems) == 0 {
		return ""
	}
	s, _ := elems[len(elems)-1].(string)
	return s
}

// End is the first position after k and everything below it. A scan of a subtree is [k, k.End()) and never "all byte
// strings that begin with k": ("a") is also a byte prefix of its neighbour ("a\x00b"), which sorts at or after End.
func (k Key) End() Key { return k + "\xff" }

// Child cuts k after the one element that follows prefix; it is k itself for a direct child, and "" when k does not lie
// below prefix.
func (k Key) Child(prefix Key) Key {
	rest, ok := strings.CutPrefix(string(k), string(prefix))
	if !ok || rest == "" {
		return ""
	}
	n := elemLen(rest)
	if n == 0 {
		return ""
	}
	return k[:len(prefix)+n]
}

var errKey = errors.New("malformed key")

// next decodes the first element of a non-empty encoding and returns it with its encoded length.
func next(s string) (any, int, error) {
	n := elemLen(s)
	switch {
	case n == 0:
		return nil, 0, errKey
	case s[0] == tagUint:
		return binary.BigEndian.Uint64([]byte(s[1:9])), n, nil
	}
	return strings.ReplaceAll(s[1:n-1], "\x00\xff", "\x00"), n, nil
}

// elemLen is the length of the first element's encoding, 0 if there is no whole one.
func elemLen(s string) int {
	switch s[0] {
	case tagUint:
		if len(s) >= 9 {
			return 9
		}
	case tagString:
		for i := 1; i < len(s); i++ {
			switch {
			case s[i] != 0:
			case i+1 < len(s) && s[i+1] == 0xFF:
				i++
			default:
				return i + 1
			}
		}
	}
	return 0
}
