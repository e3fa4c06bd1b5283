package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fence   = regexp.MustCompile("(?s)```.*?```")
	notWord = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Whoever follows a link arrives, and whoever begins at the README finds every guide and every example.
func TestLinksLeadSomewhereAndTheReadmeLeadsEverywhere(t *testing.T) {
	t.Parallel()
	const root = ".."
	linked := map[string]bool{} // from the README
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (d.Name() == "node_modules" || d.Name()[0] == '.' || d.Name()[0] == '_' || d.Name() == "data") {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(string(raw), ""), -1) {
			if strings.Contains(m[1], ":") {
				continue // elsewhere
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s leads nowhere", path, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s: %s has no heading #%s", path, target, anchor)
			}
			if path == filepath.Join(root, "README.md") {
				linked[target] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"../docs/*.md", "../*.md", "../examples/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v %v", pattern, found, err)
		}
		for _, f := range found {
			if f != "../README.md" && !linked[f] {
				t.Errorf("README.md does not lead to %s", f)
			}
		}
	}
}

// anchors are the headings of a document as links name them.
func anchors(t *testing.T, file string) []string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(raw), ""), -1) {
		names = append(names, strings.ReplaceAll(notWord.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return names
}
