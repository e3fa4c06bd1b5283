package policy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Dir is a rules folder on disk. Unlike os.DirFS it never waits for what it opens: a pipe that takes the place of a file between two looks
// would hold up every reload after it.
func Dir(path string) fs.FS { return dir(path) }

type dir string

// Open implements fs.FS.
func (d dir) Open(name string) (fs.File, error) {
	path, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, below(err, name) // and not f: a nil *os.File is no nil fs.File
	}
	return f, nil
}

// Stat implements fs.StatFS: it opens nothing.
func (d dir) Stat(name string) (fs.FileInfo, error) {
	path, err := d.path("stat", name)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(path)
	return st, below(err, name)
}

func (d dir) path(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return filepath.Join(string(d), filepath.FromSlash(name)), nil
}

// below names in an error the file as the folder knows it: where the folder lies is not everybody's business.
func below(err error, name string) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		pe.Path = name
	}
	return err
}
