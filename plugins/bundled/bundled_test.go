package bundled_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/plugins/bundled"
	"github.com/pawlhost/pawl/sdk/abi"
)

var opened = sync.OnceValues(func() (*plugins.Set, error) {
	return plugins.Open(context.Background(), plugins.Options{Bundled: bundled.FS})
})

func TestMain(m *testing.M) {
	m.Run()
	if set, err := opened(); err == nil {
		_ = set.Close(context.Background())
	}
}

// disk is the committed KV of one tenant.
type disk map[string][]byte

func (d disk) kv() plugins.KV {
	return plugins.KV{
		Get: func(_ context.Context, key string) (plugins.KVItem, error) {
			v, found := d[key]
			return plugins.KVItem{Value: v, Version: 1, Token: 1, Found: found}, nil
		},
		List: func(_ context.Context, prefix, after string, limit int) ([]string, error) {
			var keys []string
			for _, key := range slices.Sorted(maps.Keys(d)) {
				if strings.HasPrefix(key, prefix) && key > after && len(keys) < limit {
					keys = append(keys, key)
				}
			}
			return keys, nil
		},
	}
}

type args map[string]any

// call runs a tool as the host does: checked arguments, and its writes only if it succeeds.
func (d disk) call(t testing.TB, name string, a args) *plugins.Result {
	t.Helper()
	set, err := opened()
	if err != nil {
		t.Fatal(err)
	}
	tool, ok := set.Lookup(name)
	if !ok {
		t.Fatalf("no tool %s; skipped: %v", name, set.Skipped())
	}
	raw, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = tool.Check(raw); err != nil {
		t.Fatalf("%s %v: %v", name, a, err)
	}
	r := set.Call(context.Background(), plugins.Call{Tool: tool, RunID: "run_1", CallID: "call_1", Arguments: raw, KV: d.kv()})
	for _, w := range r.Writes {
		if w.Deleted {
			delete(d, w.Key)
		} else {
			d[w.Key] = slices.Clone(w.Value)
		}
	}
	return r
}

func (d disk) good(t testing.TB, name string, a args) string {
	t.Helper()
	r := d.call(t, name, a)
	if r.Failure != nil {
		t.Fatalf("%s: %+v", name, *r.Failure)
	}
	return string(r.Output)
}

func (d disk) content(t testing.TB, path string) string {
	t.Helper()
	var out struct{ Content string }
	if err := json.Unmarshal([]byte(d.good(t, "read_file", args{"path": path})), &out); err != nil {
		t.Fatal(err)
	}
	return out.Content
}

func TestFilesAreWhatWasWritten(t *testing.T) {
	t.Parallel()
	for _, content := range []string{
		"", "hi", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é€😀\U0010FFFF\u2028", strings.Repeat("\x01", 100_000),
		strings.Repeat("x", 65532), strings.Repeat("x", 65533), strings.Repeat("x", 65536), strings.Repeat("x", 65537),
		strings.Repeat("x", 131072), strings.Repeat("😀", 100_000), strings.Repeat("é😀x", 100_000), strings.Repeat("y", 999_998),
	} {
		d := disk{}
		want := fmt.Sprintf(`{"path":"/a/b","bytes":%d,"created":true}`, len(content))
		if got := d.good(t, "write_file", args{"path": "/a/b", "content": content}); got != want {
			t.Errorf("write_file: %s; want %s", got, want)
		}
		if got := d.content(t, "/a/b"); got != content {
			t.Errorf("%d bytes came back as %d others", len(content), len(got))
		}
		for key, value := range d {
			if len(key) > abi.MaxKey || len(value) > abi.MaxValue {
				t.Errorf("a key of %d bytes with a value of %d", len(key), len(value))
			}
		}
	}
}

// The file system against a map, over random writes and edits of all sizes: whatever a file was before, it is
// afterwards what was written last, and no part of an older one is left.
func TestFilesKeepNothingOfWhatWasThereBefore(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	d, model := disk{}, map[string]string{}
	sizes := []int{0, 1, 100, 65530, 65533, 65536, 65540, 131066, 131072, 131080, 200_000}
	units := []string{"x", "é", "😀", "ab\n"}
	for range 25 {
		path := []string{"/f", "/f/"[:2] + "2", "/d/f"}[rnd.IntN(3)]
		unit := units[rnd.IntN(len(units))]
		text := strings.Repeat(unit, sizes[rnd.IntN(len(sizes))]/len(unit))
		if old := model[path]; old != "" && rnd.IntN(2) == 0 {
			d.good(t, "edit_file", args{"path": path, "old": old, "new": text})
		} else {
			d.good(t, "write_file", args{"path": path, "content": text})
		}
		model[path] = text
		stored := 0
		for path, want := range model {
			if got := d.content(t, path); got != want {
				t.Fatalf("%s: %d bytes; want %d", path, len(got), len(want))
			}
			stored += len(want)
		}
		for _, value := range d {
			stored -= len(value)
		}
		if stored != 0 {
			t.Fatalf("the KV holds %d bytes that are of no file", -stored)
		}
	}
}

func TestFilesRefuseWithAWordAndSayWhatToDo(t *testing.T) {
	t.Parallel()
	d := disk{"file/a": []byte("one two two aaa"), "file/d/e/f": []byte("x"), "file/bin": []byte("\xff\x00")}
	before := maps.Clone(d)
	for _, tt := range []struct {
		tool string
		args args
		word string
		says string
	}{
		{"read_file", args{"path": "/b"}, "not_found", "/b does not exist; use ls"},
		{"read_file", args{"path": "/a/b"}, "not_found", "/a/b does not exist"},
		{"read_file", args{"path": "/d/e"}, "is_directory", "/d/e is a directory"},
		{"read_file", args{"path": "/"}, "is_directory", "/ is a directory"},
		{"read_file", args{"path": "/bin"}, "not_text", "/bin is not UTF-8"},
		{"write_file", args{"path": "/", "content": "x"}, "is_directory", "/ is a directory"},
		{"write_file", args{"path": "/d", "content": "x"}, "is_directory", "/d is a directory"},
		{"write_file", args{"path": "/a/b/c", "content": "x"}, "not_a_directory", "/a is a file"},
		{"write_file", args{"path": "/big", "content": strings.Repeat("x", 999_999)}, "too_large", "1,000,000"},
		{"write_file", args{"path": "/big", "content": strings.Repeat("\n", 500_000)}, "too_large", "/big"},
		{"edit_file", args{"path": "/b", "old": "x", "new": "y"}, "not_found", "/b does not exist"},
		{"edit_file", args{"path": "/d", "old": "x", "new": "y"}, "is_directory", "/d is a directory"},
		{"edit_file", args{"path": "/a", "old": "three", "new": "y"}, "no_match", "old does not occur in /a"},
		{"edit_file", args{"path": "/a", "old": "two", "new": "y"}, "not_unique", "old occurs 2 times in /a"},
		{"edit_file", args{"path": "/a", "old": "aa", "new": "y"}, "not_unique", "old occurs 2 times in /a"}, // overlapping
		{"ls", args{"path": "/a"}, "not_a_directory", "/a is a file"},
		{"ls", args{"path": "/x"}, "not_found", "/x does not exist"},
	} {
		r := d.call(t, tt.tool, tt.args)
		if r.Failure == nil || r.Failure.Code != plugins.CodeToolError || r.Failure.ToolCode != tt.word || !strings.Contains(r.Failure.Message, tt.says) {
			t.Errorf("%s %.60v: %+v, output %.60s; want %s, %q", tt.tool, tt.args, r.Failure, r.Output, tt.word, tt.says)
		}
	}
	if !maps.EqualFunc(d, before, slices.Equal) {
		t.Error("a refusal has changed something")
	}
}

func TestEditFileReplacesTheOnePlace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ before, old, new, after string }{
		{"one two", "two", "three", "one three"},
		{"one two", "one", "", " two"},
		{"one", "one", "one", "one"},
		{"aab", "ab", "c", "ac"},
		{"abababc", "ababc", "x", "abx"},
		{"naïve 😀", "😀", "\\\"\n", "naïve \\\"\n"},
		{strings.Repeat("a", 70_000) + "b", "b", "c", strings.Repeat("a", 70_000) + "c"},
		{strings.Repeat("a", 300_000) + "b", strings.Repeat("a", 299_999) + "b", "c", "ac"}, // quadratic, were it naive
	} {
		d := disk{}
		d.good(t, "write_file", args{"path": "/f", "content": tt.before})
		if got := d.good(t, "edit_file", args{"path": "/f", "old": tt.old, "new": tt.new}); got != `{"path":"/f","replacements":1}` {
			t.Errorf("edit_file: %s", got)
		}
		if got := d.content(t, "/f"); got != tt.after {
			t.Errorf("%.40q with %.20q for %.20q: %.40q", tt.before, tt.new, tt.old, got)
		}
	}
}

func TestWriteFileSaysWhetherItCreated(t *testing.T) {
	t.Parallel()
	d := disk{}
	for _, created := range []bool{true, false, false} {
		want := fmt.Sprintf(`{"path":"/memories/AGENTS.md","bytes":2,"created":%v}`, created)
		if got := d.good(t, "write_file", args{"path": "/memories/AGENTS.md", "content": "hi"}); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	if len(d) != 1 || string(d["file/memories/AGENTS.md"]) != "hi" {
		t.Errorf("the KV is %q", d)
	}
}

func TestLsListsDirectChildrenOnce(t *testing.T) {
	t.Parallel()
	d := disk{}
	for i := range 450 { // more than a page in one directory, and more than a page of directories
		d[fmt.Sprintf("file/big/%03d", i)] = []byte("x")
		d[fmt.Sprintf("file/dirs/%03d/f", i)] = []byte("x")
		d[fmt.Sprintf("file/dirs/%03d/g", i)] = []byte("x")
	}
	for i := range 1001 {
		d[fmt.Sprintf("file/huge/%04d", i)] = []byte("x")
	}
	d["file/big-"], d["file/big0"], d["file/é 😀"] = nil, nil, nil
	d["more/big/000//0001"] = []byte("x") // a part is nobody's child
	type entry struct{ Name, Type string }
	list := func(path string) (entries []entry, truncated bool) {
		var out struct {
			Path      string
			Entries   []entry
			Truncated bool
		}
		a := args{"path": path}
		if path == "" {
			a, path = args{}, "/"
		}
		if err := json.Unmarshal([]byte(d.good(t, "ls", a)), &out); err != nil || out.Path != path {
			t.Fatalf("ls %s: %+v, %v", path, out, err)
		}
		return out.Entries, out.Truncated
	}
	want := []entry{{"big-", "file"}, {"big", "directory"}, {"big0", "file"}, {"dirs", "directory"}, {"huge", "directory"}, {"é 😀", "file"}}
	for _, path := range []string{"", "/"} {
		if got, truncated := list(path); !slices.Equal(got, want) || truncated {
			t.Errorf("root: %v", got)
		}
	}
	for path, kind := range map[string]string{"/big": "file", "/dirs": "directory"} {
		got, truncated := list(path)
		if len(got) != 450 || truncated {
			t.Errorf("%s: %d entries, truncated %v", path, len(got), truncated)
		}
		for i, e := range got {
			if e != (entry{fmt.Sprintf("%03d", i), kind}) {
				t.Errorf("%s: entry %d is %v", path, i, e)
			}
		}
	}
	if got, truncated := list("/huge"); len(got) != 1000 || !truncated {
		t.Errorf("/huge: %d entries, truncated %v", len(got), truncated)
	}
	if got := (disk{}).good(t, "ls", args{}); got != `{"path":"/","entries":[]}` {
		t.Errorf("an empty file system: %s", got)
	}
}

// The schema stops these at the host; the guest does not rely on it.
func TestFilesTouchNothingForAPathThatIsNotCanonical(t *testing.T) {
	t.Parallel()
	set, err := opened()
	if err != nil {
		t.Fatal(err)
	}
	tool, _ := set.Lookup("write_file")
	for _, path := range []string{
		"", "a", "a/b", "//", "//a", "/a/", "/a//b", "/.", "/..", "/a/.", "/a/..", "/a/./b", "/a/../b", `/a\b`,
		"/a\n", "/\x00", "/a\x7f", "/" + strings.Repeat("a", 1000),
	} {
		raw, err := json.Marshal(args{"path": path, "content": "x"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tool.Check(raw); err == nil {
			t.Errorf("the schema accepts %q", path)
		}
		r := set.Call(t.Context(), plugins.Call{Tool: tool, Arguments: raw, KV: disk{}.kv()})
		if r.Failure == nil || r.Failure.ToolCode != abi.CodeInvalid || len(r.Writes)+len(r.Reads) > 0 {
			t.Errorf("%q: %+v, writes %v, reads %v", path, r.Failure, r.Writes, r.Reads)
		}
	}
	for _, path := range []string{"/...", "/.a", "/a..", "/ ", "/a b/ü/😀", "/%2e%2e", "/" + strings.Repeat("a", 999)} {
		if got := (disk{}).good(t, "write_file", args{"path": path, "content": ""}); !strings.Contains(got, `"created":true`) {
			t.Errorf("%q: %s", path, got)
		}
	}
}

func TestReadsDeclareThemselvesAndOnlyWritesWrite(t *testing.T) {
	t.Parallel()
	raw, err := fs.ReadFile(bundled.FS, "files.json")
	if err != nil {
		t.Fatal(err)
	}
	m, err := plugins.ParseManifest(raw)
	if err != nil {
		t.Fatal(err)
	}
	effects := map[string]string{}
	for _, tool := range m.Tools {
		effects[tool.Name] = tool.Effects
	}
	want := map[string]string{"ls": "read", "read_file": "read", "write_file": "write", "edit_file": "write"}
	if !maps.Equal(effects, want) {
		t.Errorf("effects %v; want %v", effects, want)
	}
}

func BenchmarkReadFile(b *testing.B) {
	bench(b, disk{"file/a": []byte("hello")}, "read_file", `{"path":"/a"}`)
}

func BenchmarkWriteFile(b *testing.B) {
	bench(b, disk{}, "write_file", `{"content":"hi","path":"/memories/AGENTS.md"}`)
}

func BenchmarkReadFile64K(b *testing.B) {
	bench(b, disk{"file/a": []byte(strings.Repeat("a line of forty bytes, as texts have it\n", 1600))}, "read_file", `{"path":"/a"}`)
}

// bench is one pristine call in process, without a store.
func bench(b *testing.B, d disk, name, arguments string) {
	set, err := opened()
	if err != nil {
		b.Fatal(err)
	}
	tool, _ := set.Lookup(name)
	call := plugins.Call{Tool: tool, RunID: "run_1", CallID: "call_1", Arguments: json.RawMessage(arguments), KV: d.kv()}
	b.ReportAllocs()
	for b.Loop() {
		if r := set.Call(b.Context(), call); r.Failure != nil {
			b.Fatal(r.Failure)
		}
	}
}
