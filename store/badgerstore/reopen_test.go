package badgerstore_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pawlhost/pawl/store/badgerstore"
)

// A process that dies between making a log file and giving it its size leaves an empty file; seen about once in 200 kills.
func TestOpenGetsPastEmptyLogFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := badgerstore.Open(dir, badgerstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"00099.mem", "000099.vlog"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = badgerstore.Open(dir, badgerstore.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
