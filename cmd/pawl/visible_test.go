package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// What an approver sees is all that there is: nothing hides, moves or imitates.
// Public failure HV1.
func TestVisibleShowsWhatHides(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, want string }{
		{"plain text stays", `rm -rf /tmp/x "quoted"`, `rm -rf /tmp/x "quoted"`},
		{"letters of the world stay", "Grüße, 東京, مرحبا, Việt", "Grüße, 東京, مرحبا, Việt"},
		{"decomposed letters stay", "e\u0301a\u0323\u0302", "e\u0301a\u0323\u0302"},
		{"a stack of marks does not", "e\u0301\u0301\u0301", "e\u0301\u0301\\u0301"},
		{"a mark without a letter does not", "/\u0338x", `/\u0338x`},
		{"an enclosing mark does not", "a\u20e0", `a\u20e0`},
		{"ANSI: clear screen", "\x1b[2Jok", `\u001b[2Jok`},
		{"ANSI in one byte (C1)", "\u009b2J", `\u009b2J`},
		{"carriage return that overwrites", "good\rbad", `good\u000dbad`},
		{"backspace", "rm\b\bls", `rm\u0008\u0008ls`},
		{"bell, delete, null", "\a\x7f\x00", `\u0007\u007f\u0000`},
		{"line breaks and tabs", "a\n\tb", `a\n\tb`},
		{"Unicode line breaks", "a\u2028b\u2029c\u0085", `a\u2028b\u2029c\u0085`},
		{"bidi override", "/safe/\u202etxt.exe", `/safe/\u202etxt.exe`},
		{"bidi isolates and marks", "\u2066\u2069\u200e\u061c", `\u2066\u2069\u200e\u061c`},
		{"zero-width", "ad\u200bmin\u200d\u2060\ufeff", `ad\u200bmin\u200d\u2060\ufeff`},
		{"soft hyphen", "pa\u00adwl", `pa\u00adwl`},
		{"tag characters (ASCII smuggling)", "hi\U000e0041", `hi\udb40\udc41`},
		{"variation selectors", "a\ufe0f\U000e0100", `a\ufe0f\udb40\udd00`},
		{"fillers", "\u3164\u115f\uffa0\u2800", `\u3164\u115f\uffa0\u2800`},
		{"odd spaces", "a\u00a0b\u2003c\u3000", `a\u00a0b\u2003c\u3000`},
		{"private use and unassigned", "\ue000\U0003fffe", `\ue000\ud8bf\udffe`},
		{"not UTF-8", "a\xff\xc0b", `a\xff\xc0b`},
		{"our own escapes cannot be forged", `\u202e`, `\\u202e`},
	} {
		if got := visible(c.in); got != c.want {
			t.Errorf("%s: visible(%+q) = %q, want %q", c.name, c.in, got, c.want)
		}
	}
}

func TestVisibleJSONKeepsTheValue(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", `a\b"c`, "\x1b[2J\u202e\u200b\U000e0041\u007f", "東京 e\u0301"} {
		raw, err := json.Marshal(map[string]string{s: s})
		if err != nil {
			t.Fatal(err)
		}
		shown := visibleJSON(string(raw))
		var back map[string]string
		if err := json.Unmarshal([]byte(shown), &back); err != nil || back[s] != s {
			t.Errorf("visibleJSON(%s) = %s: %v %q", raw, shown, err, back)
		}
		if strings.ContainsAny(shown, "\x1b\u202e\u200b\U000e0041\u007f") {
			t.Errorf("visibleJSON(%s) = %q still hides something", raw, shown)
		}
	}
}

// A padded value cannot push its end out of sight without the reader being told.
func TestCutSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	long := "safe" + strings.Repeat("é", 996) + "; rm -rf /"
	got := cut(long, 4)
	want := "safe … [1006 more characters, sha256:"
	if !strings.HasPrefix(got, want) || len(got) != len(want)+64+1 {
		t.Errorf("cut = %q", got)
	}
	if got := cut("short", 5); got != "short" {
		t.Errorf("cut of a value that fits = %q", got)
	}
}

func TestLookalikes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		"/memories/x": false, "/memоries/x": true /* Cyrillic o */, "привет world": false, "αx": true, "日本 abc": false, "": false,
	} {
		if got := lookalikes(in); got != want {
			t.Errorf("lookalikes(%q) = %v", in, got)
		}
	}
}
