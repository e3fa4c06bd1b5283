package plugins

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func names(s *Set) (out []string) {
	for _, t := range s.Tools() {
		out = append(out, t.Name)
	}
	return out
}

func TestToolNamesAreUniqueInTheSet(t *testing.T) {
	t.Parallel()
	core := guestBytes(t, "core")
	s := openSet(t, Options{Bundled: fstest.MapFS{
		"a.wasm": {Data: core}, "a.json": {Data: []byte(manifestOf(2, "echo once"))},
		"sub/b.wasm": {Data: core}, "sub/b.json": {Data: []byte(manifestOf(2, "echo trap"))},
	}})
	if got := names(s); !slices.Equal(got, []string{"a.echo", "b.echo", "once", "trap"}) {
		t.Fatalf("%v, skipped %v", got, s.Skipped())
	}
	if _, ok := s.Lookup("echo"); ok {
		t.Error("a name that two plugins export was found bare")
	}
	before := tool(t, s, "once")
	if err := s.AddFunc(Manifest{Name: "c", Tools: []ToolSpec{{Name: "once", Description: "x", InputSchema: json.RawMessage(`{"type":"object"}`)}}},
		func(ctx context.Context, c *Session) error { c.Dispatch(ctx, "output", c.Request()); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := names(s); !slices.Equal(got, []string{"a.echo", "a.once", "b.echo", "c.once", "trap"}) || before.Name != "once" {
		t.Errorf("%v, and the one before is %s", got, before.Name)
	}
	// The guest is told the name that its manifest uses.
	for _, n := range []string{"b.echo", "c.once"} {
		r := s.Call(context.Background(), Call{Tool: tool(t, s, n)})
		if want := `"tool":"` + n[2:] + `"`; r.Failure != nil || !strings.Contains(string(r.Output), want) {
			t.Errorf("%s: %s %+v", n, r.Output, r.Failure)
		}
	}
	if err := s.AddFunc(Manifest{Name: "c", Tools: []ToolSpec{{Name: "x", Description: "x", InputSchema: json.RawMessage(`{"type":"object"}`)}}}, nil); err == nil {
		t.Error("a second plugin of the same name was taken")
	}
}

func TestBadPluginsAreSkippedWithAReasonAndTheOthersLoad(t *testing.T) {
	t.Parallel()
	core, cmd := guestBytes(t, "core"), guestBytes(t, "cmd")
	start := assemble(voidType, oneFunc, section{5, []byte{1, 0, 1}}, section{7, append([]byte{2, 6}, "memory\x02\x00\x06_start\x00\x00"...)},
		section{8, []byte{0}}, section{10, []byte{1, 7, 0, 0x03, 0x40, 0x0c, 0, 0x0b, 0x0b}})
	bad := map[string]struct {
		wasm     []byte
		manifest string
		want     string
	}{
		"component":  {[]byte("\x00asm\x0d\x00\x01\x00"), manifestOf(2, "a"), "component"},
		"nomanifest": {core, "", "nomanifest.json"},
		"badjson":    {core, `{"abi":1,`, "manifest"},
		"unknown":    {core, manifestOf(2, "a", `"x":1`), "/x"},
		"imports":    {core, manifestOf(0, "a"), "pawl.call, pawl.read"},
		"noexport":   {cmd, manifestOf(2, "a"), "pawl_call() -> i32"},
		"initloop":   {guestBytes(t, "core_initloop"), manifestOf(2, "a"), "starting it: timeout"},
		"descloop":   {guestBytes(t, "core_descloop"), "", "pawl_describe: timeout"},
		"startloop":  {start, manifestOf(0, "a"), "starting it: timeout"},
		"schema":     {core, strings.Replace(manifestOf(2, "a"), `"object"`, `"string"`, 1), "/tools/0/input_schema"},
		"remote":     {core, strings.Replace(manifestOf(2, "a"), `{"type":"object"}`, `{"type":"object","$ref":"https://example.com/x"}`, 1), "may only refer to itself"},
		"badcode": {assemble(voidType, oneFunc, section{5, []byte{1, 0, 1}}, section{7, append([]byte{2, 6}, "memory\x02\x00\x06_start\x00\x00"...)},
			section{10, []byte{1, 4, 0, 0x6a, 0x1a, 0x0b}}), manifestOf(0, "a"), "does not compile"},
		"small":    {core, manifestOf(2, "a", `"limits":{"memory_bytes":65536}`), "pages of memory to start"},
		"no.name":  {core, manifestOf(2, "a"), "not a plugin name"},
		"toolarge": {make([]byte, 1<<20), manifestOf(2, "a"), "longer than"},
	}
	dir := t.TempDir()
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range bad {
		write(name+".wasm", b.wasm)
		if b.manifest != "" {
			write(name+".json", []byte(b.manifest))
		}
	}
	write("good.wasm", core)
	write("good.json", []byte(manifestOf(2, "echo")))
	write("described.wasm", guestBytes(t, "core_init"))
	write("section.wasm", append(slices.Clone(core), assemble(custom("pawl.manifest", []byte(manifestOf(2, "once"))))[8:]...))
	if err := os.Mkdir(filepath.Join(dir, "folder.wasm"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := openSet(t, Options{Dir: dir, Limits: Limits{LoadTime: 100 * time.Millisecond, ModuleBytes: 1 << 19}})
	skipped := map[string]string{}
	for _, sk := range s.Skipped() {
		skipped[sk.Plugin] = sk.Reason
	}
	for name, b := range bad {
		if !strings.Contains(skipped[name], b.want) {
			t.Errorf("%s: %q, want %q", name, skipped[name], b.want)
		}
		delete(skipped, name)
	}
	if !strings.Contains(skipped["folder"], "regular") || len(skipped) != 1 {
		t.Errorf("skipped too: %v", skipped)
	}
	if got := names(s); !slices.Equal(got, []string{"echo", "once", "ready"}) {
		t.Errorf("loaded %v", got)
	}
	wantOutput(t, call(t, s, "ready", `{}`), `true`)
	wantOutput(t, call(t, s, "once", `{}`), `true`)
}

func TestOperatorsPluginReplacesTheBundledOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	core := guestBytes(t, "core")
	for name, b := range map[string][]byte{"p.wasm": core, "p.json": []byte(manifestOf(2, "once"))} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := openSet(t, Options{Dir: dir, Bundled: fstest.MapFS{"p.wasm": {Data: core}, "p.json": {Data: []byte(manifestOf(2, "echo"))}}})
	if got := names(s); !slices.Equal(got, []string{"once"}) {
		t.Errorf("%v", got)
	}
	if _, err := Open(context.Background(), Options{Dir: filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "create it") {
		t.Errorf("%v", err)
	}
}

func TestInvariant6_TheDigestCoversModuleAndManifest(t *testing.T) {
	t.Parallel()
	digest := func(wasm []byte, manifest string) string {
		s := openSet(t, Options{Bundled: fstest.MapFS{"p.wasm": {Data: wasm}, "p.json": {Data: []byte(manifest)}}})
		return s.Tools()[0].Digest
	}
	core := guestBytes(t, "core")
	other := append(slices.Clone(core), assemble(custom("note", []byte("x")))[8:]...)
	a, b, c, d := digest(core, manifestOf(2, "echo")), digest(core, manifestOf(2, "echo")), digest(core, manifestOf(2, "echo")+" "), digest(other, manifestOf(2, "echo"))
	if a != b || a == c || a == d || !strings.HasPrefix(a, "sha256:") || len(a) != 71 {
		t.Errorf("%s %s %s %s", a, b, c, d)
	}
	if digestOf([]byte("ab"), []byte("c")) == digestOf([]byte("a"), []byte("bc")) {
		t.Error("bytes can move between module and manifest")
	}
}

func TestCheckFillsAndRefusesArguments(t *testing.T) {
	t.Parallel()
	s := openSet(t, Options{})
	err := s.AddFunc(Manifest{Name: "p", Tools: []ToolSpec{{Name: "w", Description: "x", InputSchema: json.RawMessage(
		`{"type":"object","required":["path"],"properties":{"path":{"type":"string","format":"path"},"mode":{"default":"a"}},"additionalProperties":false}`)}}},
		func(context.Context, *Session) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	w := tool(t, s, "w")
	if got, err := w.Check([]byte(`{"path":"/x"}`)); err != nil || string(got) != `{"mode":"a","path":"/x"}` {
		t.Errorf("%s %v", got, err)
	}
	if _, err := w.Check([]byte(`{"path":"//x"}`)); err == nil || !strings.Contains(err.Error(), `/path: `) || !strings.Contains(err.Error(), `"/x"`) {
		t.Errorf("%v", err)
	}
}
