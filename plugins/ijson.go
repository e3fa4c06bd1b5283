package plugins

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deep a value may nest (wire.md, Errors).
const maxDepth = 128

// maxExact is 2^53-1, the largest integer that every JSON implementation keeps (RFC 7493, section 2.2).
const maxExact = 1<<53 - 1

// checkIJSON reports why b is not exactly one I-JSON value (RFC 7493): syntax, duplicate names, invalid UTF-8 and lone
// surrogates, integers beyond ±(2^53−1), numbers that overflow, nesting beyond [maxDepth]. The error names a JSON pointer.
func checkIJSON(b []byte) error {
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

func checkNumber(s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) {
		return errors.New("a number that overflows")
	}
	for _, c := range s {
		if c == '.' || c == 'e' || c == 'E' {
			return nil
		}
	}
	if n, err := strconv.ParseInt(s, 10, 64); err != nil || n > maxExact || n < -maxExact {
		return errors.New("an integer beyond 2^53-1; send it as a string")
	}
	return nil
}
