// Package pattern measures regular expressions that somebody else wrote, before they are compiled.
//
// Matching cannot be interrupted and takes at worst as many steps as the program is long for each byte of its text, so
// whoever takes patterns from others bounds their programs. A few bytes can ask for a long one: sixteen kilobytes of
// "a{1000}" take half a gigabyte and a second to be written out, only to be found too long.
package pattern

import "regexp/syntax"

// Steps is the length of the program of an RE2 expression in Perl's syntax. Above limit it is a lower bound and nothing was
// written out. The error is the one that regexp.Compile has.
func Steps(expression string, limit int) (int, error) {
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return 0, err
	}
	if n := least(re); n > limit {
		return n, nil
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0, err
	}
	return len(prog.Inst), nil
}

// least is how many instructions there are at least once the repetitions are written out.
func least(re *syntax.Regexp) (n int) {
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		n = 1
	}
	for _, sub := range re.Sub {
		n += least(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max)
	}
	return n
}
