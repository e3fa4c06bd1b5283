package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// File is one of the people's modules as it was loaded.
type File struct {
	Name   string // its path below the folder
	Digest string // SHA-256 of its text, as "sha256:…"
	Bytes  int
}

// contents are the rules of a folder, or their tests, as one walk found them. What could not be read is part of it, so that
// a folder that stays unreadable is stable too.
type contents struct {
	files    []source // by name
	problems []error
}

type source struct {
	name string
	text []byte
}

const (
	maxModule  = 1 << 20 // bytes of one of the people's files
	maxModules = 16 << 20
	maxEntries = 20_000 // of a folder, with all below it
	maxFolders = 16
)

// readFolder reads the rules below a folder, *.rego, or their tests, *_test.rego. Names that begin with a dot are not looked at: editors, version control and the
// volumes of Kubernetes keep theirs there (a ConfigMap's files are links into ..data, which is swapped at once, and the real folder
// beside it would be a second copy). Links to folders are followed, since such a volume has them for paths with a slash.
func readFolder(rules fs.FS, tests bool) contents {
	var c contents
	if rules == nil {
		return c
	}
	total, entries, endless := 0, 0, false
	problem := func(name, format string, args ...any) {
		c.problems = append(c.problems, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}
	var walk func(dir string, depth int)
	walk = func(dir string, depth int) {
		list, err := fs.ReadDir(rules, dir)
		if err != nil {
			problem(dir, "cannot be read: %w", err)
			return
		}
		for _, d := range list {
			if endless {
				return
			}
			name := path.Join(dir, d.Name())
			if strings.HasPrefix(d.Name(), ".") {
				continue
			}
			if entries++; entries > maxEntries {
				problem(name, "the folder has more than %d entries: is there a link that leads back to itself?", maxEntries)
				endless = true
				return
			}
			st, err := fs.Stat(rules, name) // of what a link leads to
			switch {
			case err == nil && st.IsDir():
				if depth == maxFolders {
					problem(name, "more than %d folders deep: is there a link that leads back to itself?", maxFolders)
					endless = true
					return
				}
				walk(name, depth+1)
				continue
			case path.Ext(name) != ".rego", strings.HasSuffix(name, "_test.rego") != tests:
				continue
			case err != nil:
				problem(name, "cannot be read: %w", err)
				continue
			}
			text, err := readModule(rules, name, st)
			if err != nil {
				problem(name, "cannot be read: %w", err)
				continue
			}
			if total += len(text); len(text) > maxModule || total > maxModules {
				problem(name, "larger than %d bytes, or all files together than %d: move data out of the rules", maxModule, maxModules)
				return
			}
			c.files = append(c.files, source{name, text})
		}
	}
	walk(".", 0)
	return c
}

// readModule reads a little more than a module may have. What is not a file is not opened: opening a pipe waits for its writer,
// for ever, and a device may never end.
func readModule(rules fs.FS, name string, st fs.FileInfo) ([]byte, error) {
	if !st.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	f, err := rules.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err = f.Stat(); err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() { // it was replaced meanwhile
		return nil, errors.New("it is not a regular file")
	}
	return io.ReadAll(io.LimitReader(f, maxModule+1))
}

// digest names the contents. Lengths are hashed too, so that text cannot move from one file to the next unnoticed.
func (c *contents) digest() digest {
	h := sha256.New()
	for _, f := range c.files {
		fmt.Fprintf(h, "%d %s %d\n", len(f.name), f.name, len(f.text))
		h.Write(f.text)
	}
	for _, p := range c.problems {
		fmt.Fprintf(h, "problem %q\n", p.Error())
	}
	return digest(h.Sum(nil))
}

// list describes the files.
func (c *contents) list() []File {
	out := make([]File, len(c.files))
	for i, f := range c.files {
		sum := sha256.Sum256(f.text)
		out[i] = File{f.name, "sha256:" + hex.EncodeToString(sum[:]), len(f.text)}
	}
	return out
}
