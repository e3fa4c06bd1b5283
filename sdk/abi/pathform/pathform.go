// Package pathform decides whether a string is the one canonical spelling of a path in pawl's virtual file system.
//
// Policy asks it (the `under` matcher) and so do tool schemas (`"format": "path"`). Both must give the same answer: a
// spelling that policy reads as one place and a tool as another walks around the gate. So there is one spelling per place,
// nothing is ever rewritten on the way, and every other spelling is refused by the schema and stopped by the gate.
package pathform

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Canonical reports whether p is canonical: absolute, equal to path.Clean(p), in Unicode normalisation form C, valid UTF-8,
// without backslash and without control (Cc) or format (Cf) characters. If so, canonical is p itself.
// If not, canonical is a hint, the spelling that was probably meant; it is "" when there is no good guess. A hint is for a
// message to a person or a model. Never run it in place of p.
//
// What is deliberately literal, because the virtual file system has no rule that would make it something else:
//   - `%`: "/%2e%2e/x" names a directory called "%2e%2e". Nothing decodes it, here or later.
//   - Letter case: "/Memories/x" is another place than "/memories/x".
//   - Look-alikes ("/mеmories" with a Cyrillic е, U+FF0F fullwidth solidus, U+2215 division slash): NFC keeps them apart
//     from the ASCII characters, so they are ordinary characters of other names. (NFKC would fold some of them; nothing
//     in pawl applies it.)
//   - Spaces, also at either end of a name, and "~" or "*": no shell and no glob reads the path.
func Canonical(p string) (canonical string, ok bool) {
	if plain(p) {
		if path.Clean(p) == p {
			return p, true
		}
		return path.Clean(p), false
	}
	if p == "" || !utf8.ValidString(p) {
		return "", false
	}
	hint := strings.Map(func(r rune) rune {
		if r == '\\' {
			return '/'
		}
		if unicode.In(r, unicode.Cc, unicode.Cf) {
			return -1
		}
		return r
	}, p)
	hint = norm.NFC.String(hint)
	if hint == p && p[0] == '/' {
		if path.Clean(p) == p {
			return p, true
		}
		return path.Clean(p), false
	}
	if hint == "" {
		return "", false
	}
	return path.Clean("/" + hint), false
}

// plain reports an absolute path of printable ASCII without backslash: the usual case, which needs no Unicode tables.
func plain(p string) bool {
	if p == "" || p[0] != '/' {
		return false
	}
	for i := 0; i < len(p); i++ {
		if c := p[i]; c < 0x20 || c >= 0x7f || c == '\\' {
			return false
		}
	}
	return true
}

// Under reports whether the canonical path p is dir or lies below it. dir may end in a slash or not: "/memories/" covers
// "/memories" as well, since that is the directory itself. Neither is checked for being canonical here.
func Under(p, dir string) bool {
	dir = strings.TrimRight(dir, "/")
	return strings.HasPrefix(p, dir) && (len(p) == len(dir) || p[len(dir)] == '/')
}
