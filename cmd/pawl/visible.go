package main

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// What a terminal shows of arguments, messages and titles was written by a model, a tool or a stranger. A prompt that
// prints them as they are can be made to show something else than what runs (Deno's CVE-2023-28446: escape sequences
// that overwrote the prompt; CVE-2021-42574: bidi controls that reorder the text). So every such value passes through here: what
// cannot be seen is written as an escape, and what is cut says how much of it is missing.

// visible returns s for one line of a terminal: controls, format characters (bidi, zero-width, tags), odd spaces,
// fillers and stray combining marks become \n, \t or \uXXXX, a byte that is not UTF-8 becomes \xNN, and a backslash is
// doubled so that an escape of ours cannot be forged.
func visible(s string) string { return escape(s, true) }

// visibleJSON does the same for JSON text. The result is JSON of the same value: JSON has its own backslashes, and the escapes
// are JSON's.
func visibleJSON(s string) string { return escape(s, false) }

func escape(s string, plain bool) string {
	var b strings.Builder
	base, marks := false, 0 // whether a mark has a letter to sit on, and how many sit there
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		mark := unicode.In(r, unicode.Mn, unicode.Mc)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
			base = false
		case r == '\\' && plain:
			b.WriteString(`\\`)
			base = false
		case r == '\n' && plain:
			b.WriteString(`\n`)
			base = false
		case r == '\t' && plain:
			b.WriteString(`\t`)
			base = false
		case mark && base && marks < 2 && !invisible(r):
			marks++
			b.WriteRune(r)
		case mark || invisible(r):
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, u)
			}
			base = false
		default:
			b.WriteRune(r)
			base, marks = unicode.IsLetter(r), 0
		}
		i += n
	}
	return b.String()
}

// invisible reports whether r has no ink of its own, moves other ink, or is not a character that anyone has agreed on.
func invisible(r rune) bool {
	switch {
	case r == ' ':
		return false
	case !unicode.IsGraphic(r): // Cc, Cf, Co, Cs, Zl, Zp, unassigned
		return true
	case unicode.Is(unicode.Zs, r), unicode.Is(unicode.Me, r), unicode.Is(unicode.Variation_Selector, r),
		unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r): // Hangul fillers, the grapheme joiner, and their like
		return true
	}
	return r == '\u2800' || r == '\ufffc' // the empty Braille pattern; the object replacement character
}

// cut returns visible(s), shortened to max characters of s. It never cuts silently.
func cut(s string, max int) string {
	n := utf8.RuneCountInString(s)
	if n <= max {
		return visible(s)
	}
	return visible(firstRunes(s, max)) + missing(n-max, s)
}

// missing says how many characters are not shown, and the digest of the whole text, for a comparison with another view.
func missing(n int, whole string) string {
	return fmt.Sprintf(" … [%d more characters, sha256:%x]", n, sha256.Sum256([]byte(whole)))
}

func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// lookalikes reports whether a word of s mixes Latin letters with letters of a script that has doubles of them.
func lookalikes(s string) bool {
	latin, other := false, false
	for _, r := range s {
		switch {
		case unicode.Is(unicode.Latin, r):
			latin = true
		case unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee, unicode.Lisu):
			other = true
		case !unicode.IsLetter(r):
			latin, other = false, false
		}
		if latin && other {
			return true
		}
	}
	return false
}
