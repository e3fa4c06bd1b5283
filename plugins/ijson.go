package plugins

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deep a value may nest (wire.md, Errors).
const maxDepth = 128

// maxExact is 2^53-1, the largest integer that every JSON implementation keeps (RFC 7493, section 2.2).
const maxExact = 1<<53 - 1

// checkIJSON reports why b is not exactly one I-JSON value (RFC 7493): syntax, duplicate names, invalid UTF-8 and lone
// surrogates, numbers beyond ±(2^53−1), nesting beyond [maxDepth]. The error names a JSON pointer.
func checkIJSON(b []byte) error {
	if quickIJSON(b) {
		return nil
	}
	return slowIJSON(b)
}

func slowIJSON(b []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(b))
	for {
		t, err := d.ReadToken()
		switch {
		case err == io.EOF && d.InputOffset() > 0 && d.StackDepth() == 0:
			return nil
		case err == io.EOF:
			return errors.New("it is empty")
		case err != nil:
			var syn *jsontext.SyntacticError
			if errors.As(err, &syn) && syn.JSONPointer != "" {
				return fmt.Errorf("at %s: %w", syn.JSONPointer, syn.Err)
			}
			if errors.As(err, &syn) {
				return fmt.Errorf("at byte %d: %w", syn.ByteOffset, syn.Err)
			}
			return err
		}
		if d.StackDepth() > maxDepth {
			return fmt.Errorf("it nests deeper than %d", maxDepth)
		}
		if t.Kind() == '0' {
			if err := checkNumber(t.String()); err != nil {
				return fmt.Errorf("at %q: %w", string(d.StackPointer()), err)
			}
		}
		if d.StackDepth() == 0 {
			if rest := bytes.TrimLeft(b[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
				return errors.New("more follows after the JSON value")
			}
			return nil
		}
	}
}

// checkNumber refuses every number beyond maxExact, however it is spelled: no double there has a fraction, and the
// canonical form (RFC 8785) of 1e17 is that of an integer. And every one that becomes zero without being it: exact
// arithmetic on 1e-9999999 brings the schema library down.
func checkNumber(s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return errors.New("a number that overflows")
	}
	if f == 0 && strings.ContainsAny(mantissa(s), "123456789") {
		return errors.New("a number that is nearer to zero than a double can be")
	}
	if math.Abs(f) > maxExact {
		return errors.New("a number beyond ±(2^53-1), where doubles skip integers; send it as a string")
	}
	return nil
}

// mantissa is a number without its exponent.
func mantissa(s string) string {
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		return s[:i]
	}
	return s
}

// quickIJSON is checkIJSON for values that are fine, without saying where one is not: it decides most of what a guest
// sends, several times a call.
func quickIJSON(b []byte) bool {
	if !jsontext.Value(b).IsValid() {
		return false
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		case c == '-' || c >= '0' && c <= '9':
			from := i
			for i+1 < len(b) && (b[i+1] >= '0' && b[i+1] <= '9' || b[i+1] == '.' || b[i+1]|0x20 == 'e' || b[i+1] == '+' || b[i+1] == '-') {
				i++
			}
			number := b[from : i+1]
			if (len(number) > len("999999999999999") || bytes.ContainsAny(number, "eE")) && checkNumber(string(number)) != nil {
				return false
			}
		}
	}
	return true
}
