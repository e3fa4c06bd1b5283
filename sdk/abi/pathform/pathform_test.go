package pathform

import (
	"path"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func TestCanonicalAcceptsOneSpellingOfEachPlace(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in, hint string
		ok       bool
	}{
		{"/", "/", true},
		{"/a", "/a", true},
		{"/memories/AGENTS.md", "/memories/AGENTS.md", true},
		{"/memories", "/memories", true},
		{"/memories/", "/memories", false},
		{"", "", false},
		{".", "/", false},
		{"./", "/", false},
		{"..", "/", false},
		{"../memories/x", "/memories/x", false},
		{"memories/x", "/memories/x", false},
		{"./memories/x", "/memories/x", false},
		{"//", "/", false},
		{"//memories/x", "/memories/x", false},
		{"/memories//x", "/memories/x", false},
		{"/./memories/x", "/memories/x", false},
		{"/notes/../memories/x", "/memories/x", false},
		{"/..", "/", false},
		{"/../memories/x", "/memories/x", false},
		{"/memories/.", "/memories", false},
		{"/memories/..", "/", false},
		{"/...", "/...", true},
		{"/.hidden", "/.hidden", true},
		{"/a..b", "/a..b", true},
		{`\memories\x`, "/memories/x", false},
		{`/memories\x`, "/memories/x", false},
		{`C:\memories`, "/C:/memories", false},
		{"/memories/x\x00", "/memories/x", false},
		{"/mem\x00ories/x", "/memories/x", false},
		{"/memories/x\n", "/memories/x", false},
		{"/memories/\tx", "/memories/x", false},
		{"/memories/x\x7f", "/memories/x", false},
		{"/memories/\u0085x", "/memories/x", false}, // C1 control
		{"/mem\u200bories/x", "/memories/x", false}, // zero width space
		{"/mem\u200dories/x", "/memories/x", false}, // zero width joiner
		{"/\u202ememories/x", "/memories/x", false}, // right-to-left override
		{"/mem\u00adories/x", "/memories/x", false}, // soft hyphen
		{"\ufeff/memories/x", "/memories/x", false}, // byte order mark
		{"/mem\U000e0061ories/x", "/memories/x", false},
		{"\u200b", "", false},
		{"/memories/\xff", "", false},
		{"/mem\xc0\xafories", "", false},            // overlong solidus
		{"/m\xed\xa0\x80", "", false},               // a surrogate in UTF-8
		{"/cafe\u0301", "/caf\u00e9", false},        // NFD
		{"/caf\u00e9", "/caf\u00e9", true},          // NFC
		{"/\u212bngstrom", "/\u00c5ngstrom", false}, // the Angstrom sign normalises to a letter
		{"/x\u037e", "/x;", false},                  // the Greek question mark normalises to a semicolon
		{"/x\u1fef", "/x`", false},                  // so does oxia's grave accent
		{"/%2e%2e/memories/x", "/%2e%2e/memories/x", true},
		{"/%2fmemories/x", "/%2fmemories/x", true},
		{"%2fmemories/x", "/%2fmemories/x", false},
		{"/Memories/x", "/Memories/x", true},
		{"/m\u0435mories/x", "/m\u0435mories/x", true}, // Cyrillic е
		{"\uff0fmemories\uff0fx", "/\uff0fmemories\uff0fx", false},
		{"/notes\uff0f..\uff0fmemories", "/notes\uff0f..\uff0fmemories", true},
		{"/\u2215memories", "/\u2215memories", true},
		{"/\u2025/memories", "/\u2025/memories", true}, // two dot leader is one character, not ".."
		{" /memories/x", "/ /memories/x", false},
		{"/memories /x", "/memories /x", true},
		{"/memories/x ", "/memories/x ", true},
		{"/a\u00a0b", "/a\u00a0b", true}, // a space (Zs), neither control nor format
		{"~/memories", "/~/memories", false},
		{"file:///memories/x", "/file:/memories/x", false},
	} {
		got, ok := Canonical(tc.in)
		if got != tc.hint || ok != tc.ok {
			t.Errorf("Canonical(%q) = %q, %v; want %q, %v", tc.in, got, ok, tc.hint, tc.ok)
		}
	}
}

func TestUnderCoversTheDirectoryAndWhatIsBelow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		p, dir string
		want   bool
	}{
		{"/memories", "/memories/", true},
		{"/memories", "/memories", true},
		{"/memories/x", "/memories/", true},
		{"/memories/x", "/memories", true},
		{"/memoriesx", "/memories", false},
		{"/memoriesx", "/memories/", false},
		{"/memorie", "/memories", false},
		{"/notes/memories/x", "/memories", false},
		{"/Memories/x", "/memories", false},
		{"/", "/", true},
		{"/x", "/", true},
		{"/", "/memories", false},
	} {
		if got := Under(tc.p, tc.dir); got != tc.want {
			t.Errorf("Under(%q, %q) = %v; want %v", tc.p, tc.dir, got, tc.want)
		}
	}
}

// The rule is written a second time here, straight from its definition, and a hint must itself be canonical: a model that
// follows the hint must not be sent round again.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{"", "/", "/a/../b", `a\b`, "/\u200b/..", "/cafe\u0301", "\xff", "/..\u200b/", "\u200b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		want := strings.HasPrefix(p, "/") && path.Clean(p) == p && utf8.ValidString(p) && norm.NFC.IsNormalString(p) &&
			!strings.ContainsRune(p, '\\') && !strings.ContainsFunc(p, func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf) })
		hint, ok := Canonical(p)
		if ok != want {
			t.Fatalf("Canonical(%q) ok = %v; want %v", p, ok, want)
		}
		if ok && hint != p {
			t.Fatalf("Canonical(%q) changed a canonical path to %q", p, hint)
		}
		if again, ok := Canonical(hint); hint != "" && (!ok || again != hint) {
			t.Fatalf("the hint %q for %q is not canonical", hint, p)
		}
	})
}

func BenchmarkCanonical(b *testing.B) {
	for b.Loop() {
		Canonical("/memories/AGENTS.md")
	}
}
