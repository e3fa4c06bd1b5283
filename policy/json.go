package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

// maxDepth bounds the nesting of a document. Requests are held to 128 levels; the rest is for what the host wraps around.
const maxDepth = 160

// parseJSON reads one JSON document straight into the values that Rego works on, so that a number keeps the text that it was
// written with and a document is read once. It is strict where a second reading could differ: a name that appears twice,
// invalid UTF-8, a lone surrogate and anything after the document are errors.
func parseJSON(raw []byte) (*ast.Term, error) {
	p := jsonParser{in: raw}
	t, err := p.value(0)
	if err == nil && p.space() < len(p.in) {
		err = errors.New("text after the document")
	}
	if err != nil {
		return nil, fmt.Errorf("byte %d: %w", p.at, err)
	}
	return t, nil
}

type jsonParser struct {
	in []byte
	at int
}

var (
	errEnd       = errors.New("the document ends too early")
	errDepth     = fmt.Errorf("nested deeper than %d", maxDepth)
	errSyntax    = errors.New("not JSON")
	errTwice     = errors.New("a name appears twice") // which one is not said: errors are logged, and names may be secret
	errSurrogate = errors.New("a lone surrogate")
	errUTF8      = errors.New("not UTF-8")
)

// space skips white space and returns the position.
func (p *jsonParser) space() int {
	for p.at < len(p.in) && (p.in[p.at] == ' ' || p.in[p.at] == '\n' || p.in[p.at] == '\t' || p.in[p.at] == '\r') {
		p.at++
	}
	return p.at
}

// next skips white space and returns the byte there, 0 at the end.
func (p *jsonParser) next() byte {
	if p.space() == len(p.in) {
		return 0
	}
	return p.in[p.at]
}

func (p *jsonParser) value(depth int) (*ast.Term, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	switch c := p.next(); {
	case c == 0 && p.at == len(p.in):
		return nil, errEnd
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		s, err := p.text()
		return ast.InternedTerm(s), err
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case p.word("null"):
		return ast.InternedNullTerm, nil
	case p.word("true"):
		return ast.InternedTerm(true), nil
	case p.word("false"):
		return ast.InternedTerm(false), nil
	}
	return nil, errSyntax
}

func (p *jsonParser) word(w string) bool {
	if !strings.HasPrefix(string(p.in[p.at:min(len(p.in), p.at+len(w))]), w) {
		return false
	}
	p.at += len(w)
	return true
}

func (p *jsonParser) object(depth int) (*ast.Term, error) {
	obj := ast.NewObject()
	p.at++
	if p.next() == '}' {
		p.at++
		return ast.NewTerm(obj), nil
	}
	for {
		if p.next() != '"' {
			return nil, errSyntax
		}
		name, err := p.text()
		if err != nil {
			return nil, err
		}
		if p.next() != ':' {
			return nil, errSyntax
		}
		p.at++
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		before := obj.Len()
		obj.Insert(ast.InternedTerm(name), v)
		if obj.Len() == before {
			return nil, errTwice
		}
		switch p.next() {
		case ',':
			p.at++
		case '}':
			p.at++
			return ast.NewTerm(obj), nil
		default:
			return nil, errSyntax
		}
	}
}

func (p *jsonParser) array(depth int) (*ast.Term, error) {
	var elems []*ast.Term
	p.at++
	if p.next() == ']' {
		p.at++
		return ast.ArrayTerm(), nil
	}
	for {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		elems = append(elems, v)
		switch p.next() {
		case ',':
			p.at++
		case ']':
			p.at++
			return ast.ArrayTerm(elems...), nil
		default:
			return nil, errSyntax
		}
	}
}

// number reads a number by the grammar of RFC 8259 section 6.
func (p *jsonParser) number() (*ast.Term, error) {
	start := p.at
	digits := func() bool {
		from := p.at
		for p.at < len(p.in) && p.in[p.at] >= '0' && p.in[p.at] <= '9' {
			p.at++
		}
		return p.at > from
	}
	is := func(set string) bool {
		if p.at < len(p.in) && strings.IndexByte(set, p.in[p.at]) >= 0 {
			p.at++
			return true
		}
		return false
	}
	is("-")
	if !is("0") && !digits() {
		return nil, errSyntax
	}
	if is(".") && !digits() {
		return nil, errSyntax
	}
	if is("eE") {
		is("+-")
		if !digits() {
			return nil, errSyntax
		}
	}
	text := json.Number(p.in[start:p.at])
	if _, err := text.Float64(); err != nil {
		return nil, errors.New("a number that overflows")
	}
	return ast.NumberTerm(text), nil
}

// text reads a string; the opening quote is at p.at.
func (p *jsonParser) text() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case c == '"':
			s := string(p.in[start:p.at])
			p.at++
			if !utf8.ValidString(s) {
				return "", errUTF8
			}
			return s, nil
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			return "", errSyntax
		}
		p.at++
	}
	return "", errEnd
}

// escaped reads the rest of a string that has an escape at p.at.
func (p *jsonParser) escaped(start int) (string, error) {
	var b strings.Builder
	b.Write(p.in[start:p.at])
	for p.at < len(p.in) {
		c := p.in[p.at]
		p.at++
		switch {
		case c == '"':
			if !utf8.ValidString(b.String()) {
				return "", errUTF8
			}
			return b.String(), nil
		case c < 0x20:
			return "", errSyntax
		case c != '\\':
			b.WriteByte(c)
			continue
		}
		if p.at == len(p.in) {
			break
		}
		c = p.in[p.at]
		p.at++
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			b.WriteByte("\"\\/\b\f\n\r\t"[i])
			continue
		}
		if c != 'u' {
			return "", errSyntax
		}
		r, err := p.unit()
		if err != nil {
			return "", err
		}
		if r >= 0xdc00 && r < 0xe000 {
			return "", errSurrogate
		}
		if r >= 0xd800 && r < 0xdc00 {
			if p.at+2 > len(p.in) || p.in[p.at] != '\\' || p.in[p.at+1] != 'u' {
				return "", errSurrogate
			}
			p.at += 2
			low, err := p.unit()
			if err != nil {
				return "", err
			}
			if low < 0xdc00 || low >= 0xe000 {
				return "", errSurrogate
			}
			r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
		}
		b.WriteRune(r)
	}
	return "", errEnd
}

// unit reads the four hexadecimal digits of a \u escape.
func (p *jsonParser) unit() (rune, error) {
	if p.at+4 > len(p.in) {
		return 0, errEnd
	}
	var r rune
	for _, c := range p.in[p.at : p.at+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, errSyntax
		}
		r = r<<4 | rune(c)
	}
	p.at += 4
	return r, nil
}
