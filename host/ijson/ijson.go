// Package ijson reads I-JSON (RFC 7493) and writes it in its one canonical form (RFC 8785).
//
// What a person approves, what policy judges and what a tool reads are the same bytes. That holds only if a text has one
// meaning for every reader: two members of one name, a lone surrogate or a number that does not fit a double mean
// different things to different parsers, so such texts are refused and never repaired.
package ijson

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep arrays and objects may nest. It bounds what recursive readers behind this package (schema,
// policy, guests) have to survive.
const MaxDepth = 128

const maxPointer = 512

// maxInteger is 2^53-1: beyond it neighbouring integers share a double. No double beyond it has a fraction, so the bound
// holds for every number, however it is spelled (9007199254740993, 1e16, 9007199254740992.0).
const maxInteger = 1<<53 - 1

// Error says what is wrong with a text, and where. It never quotes the text's values.
type Error struct {
	// Pointer is the JSON pointer (RFC 6901) of the offending value, "" for the whole text. Of a very long pointer it is
	// the beginning.
	Pointer string
	Detail  string
}

func (e *Error) Error() string {
	if e.Pointer == "" {
		return e.Detail
	}
	return e.Detail + " (at " + e.Pointer + ")"
}

// Check returns nil if b is one I-JSON value with white space around it at most, else an *Error.
func Check(b []byte) error {
	// A nil *Error in an error would not be nil.
	if e := check(b); e != nil {
		return e
	}
	return nil
}

// Parse checks b and returns its canonical form: members sorted, one spelling for each number and string, no white space.
// Texts of one meaning have one canonical form, and Parse of a canonical form returns it unchanged. The error is an
// *Error. The result does not share memory with b.
func Parse(b []byte) (canonical []byte, err error) {
	if e := check(b); e != nil {
		return nil, e
	}
	// Canonicalize rounds numbers to doubles without a word; check has refused those for which that changes an integer.
	v := jsontext.Value(bytes.Clone(b))
	if err := v.Canonicalize(); err != nil {
		return nil, refuse(err, nil)
	}
	return v, nil
}

// Digest returns "sha256:" and the SHA-256 of canonical in hex.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func check(b []byte) *Error {
	if bytes.HasPrefix(b, []byte("\xef\xbb\xbf")) {
		return &Error{Detail: "the text begins with a byte order mark: remove it"}
	}
	// Decoding every string costs an allocation each; only these bytes can spell a noncharacter.
	decodeStrings := bytes.Contains(b, []byte(`\u`)) || bytes.ContainsFunc(b, func(r rune) bool { return r >= 0xfdd0 })
	d := jsontext.NewDecoder(bytes.NewBuffer(b))
	for {
		switch d.PeekKind() {
		case jsontext.KindNumber:
			n, err := d.ReadValue()
			if err != nil {
				return refuse(err, d)
			}
			if detail := checkNumber(n); detail != "" {
				return &Error{Pointer: pointer(d.StackPointer()), Detail: detail}
			}
		default:
			t, err := d.ReadToken()
			if err != nil {
				return refuse(err, d)
			}
			if t.Kind() == jsontext.KindString && decodeStrings && strings.ContainsFunc(t.String(), isNoncharacter) {
				return &Error{Pointer: pointer(d.StackPointer()), Detail: "a string holds a Unicode noncharacter, which I-JSON forbids"}
			}
			if d.StackDepth() > MaxDepth {
				return &Error{Pointer: pointer(d.StackPointer()), Detail: "nested deeper than " + strconv.Itoa(MaxDepth) + " levels"}
			}
		}
		if d.StackDepth() == 0 {
			break
		}
	}
	if _, err := d.ReadToken(); err == nil {
		return &Error{Detail: "more than one JSON value: send exactly one"}
	} else if !errors.Is(err, io.EOF) {
		return &Error{Detail: "data after the JSON value: send exactly one value"}
	}
	return nil
}

func checkNumber(n []byte) string {
	// Up to 15 digits are exact in a double, whatever the sign.
	if len(n) <= 15 && !bytes.ContainsAny(n, ".eE") {
		return ""
	}
	f, err := strconv.ParseFloat(string(n), 64)
	switch {
	case err != nil:
		return "a number does not fit a double: send it as a string"
	case f > maxInteger || f < -maxInteger:
		return "a number is beyond ±(2^53-1), where doubles skip integers: send it as a string"
	}
	return ""
}

// isNoncharacter: Unicode 16, section 23.7.
func isNoncharacter(r rune) bool { return r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe }

// refuse translates an error of jsontext.
func refuse(err error, d *jsontext.Decoder) *Error {
	e := &Error{Detail: "not well-formed JSON"}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		e.Detail = "the JSON text ends too early"
		if d != nil && d.InputOffset() == 0 && len(bytes.TrimSpace(d.UnreadBuffer())) == 0 {
			e.Detail = "the text is empty: send a JSON value"
		}
	}
	if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		e.Pointer = pointer(s.JSONPointer)
		switch {
		case errors.Is(s.Err, jsontext.ErrDuplicateName):
			e.Detail = "an object has two members of this name"
		case s.Err != nil && strings.Contains(s.Err.Error(), "UTF-8"):
			e.Detail = "a string is not valid UTF-8"
		case s.Err != nil && strings.Contains(s.Err.Error(), "surrogate"), s.Err != nil && strings.Contains(s.Err.Error(), "escape"):
			e.Detail = "a string has a malformed escape sequence or a lone surrogate"
		}
	}
	return e
}

// pointer bounds a pointer, whose names come from the text and can be as long as it: error answers must not be. It cuts
// between two names.
func pointer(p jsontext.Pointer) string {
	s := strings.ToValidUTF8(string(p), "\ufffd")
	if len(s) <= maxPointer {
		return s
	}
	return s[:max(0, strings.LastIndexByte(s[:maxPointer], '/'))]
}
