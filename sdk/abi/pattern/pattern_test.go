package pattern

import (
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"
)

func TestStepsAreThoseOfTheProgramAndNeverMoreBelowIt(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{
		"", "a", "abc", "(?i)straße", "a|b|cd", "a*", "(?:a*)*", "a{0}", "(a{2,}){3}", "(x{0}y){9}", "^{5}", "(?:^a?$){7}", "[^ ]{2,9}", ".{30}", "(?:ab|a{3}){4,}", "a{1000}",
	} {
		re, err := syntax.Parse(expression, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := syntax.Compile(re.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if n, err := Steps(expression, 1<<20); err != nil || n != len(prog.Inst) {
			t.Errorf("%s: %d steps, %v; its program has %d", expression, n, err, len(prog.Inst))
		}
		if n, _ := Steps(expression, 0); n > len(prog.Inst) {
			t.Errorf("%s: at least %d steps, and its program has %d", expression, n, len(prog.Inst))
		}
	}
	if _, err := Steps("(", 10); err == nil {
		t.Error("( was taken")
	}
}

func TestStepsOfALongProgramAreNotWrittenOut(t *testing.T) {
	expression := strings.Repeat("a{1000}", 2000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n, err := Steps(expression, 400)
	runtime.ReadMemStats(&after)
	if err != nil || n != 2_000_000 {
		t.Errorf("%d, %v", n, err)
	}
	if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 30 {
		t.Errorf("it took %d MiB", grown)
	}
}

func FuzzSteps(f *testing.F) {
	for _, s := range []string{"a{3}", "(a|b){2,}", "(?:(?:a{9}){9})?", "[a-c]*?x{0}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		least, err := Steps(expression, 0)
		if err != nil || least > 5000 {
			return
		}
		if n, err := Steps(expression, 1<<20); err == nil && n < least {
			t.Errorf("%q: at least %d steps, and its program has %d", expression, least, n)
		}
	})
}
