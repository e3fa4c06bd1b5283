package badgerstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// fullChild fills its file system until the store refuses, makes room, goes on, and checks that nothing acknowledged is
// missing. It is a process of its own, because what it must not die of is SIGBUS.
func fullChild(dir string) {
	if err := fill(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func fill(mount string) error {
	ctx := context.Background()
	filler := filepath.Join(mount, "filler")
	if err := os.WriteFile(filler, make([]byte, 100<<20), 0o600); err != nil {
		return err
	}
	dir := filepath.Join(mount, "store")
	s, err := badgerstore.Open(dir, badgerstore.Options{})
	if err != nil {
		return err
	}
	value := make([]byte, 20<<10)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(value)
	var next atomic.Int64
	var mu sync.Mutex
	var acked []int64
	write := func() error {
		i := next.Add(1)
		c := &store.Change{Puts: []store.Put{{Key: store.K("k", uint64(i)), Value: value}}}
		c.Append(store.K("log"), []byte("e"))
		_, err := s.Commit(ctx, c)
		if err == nil {
			mu.Lock()
			acked = append(acked, i)
			mu.Unlock()
		}
		return err
	}
	// Badger gives space back while it flushes and compacts, so full comes and goes; it must be an error each time.
	refused := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				err := write()
				if err != nil && !errors.Is(err, store.ErrFull) {
					fmt.Println("commit near the end of the medium:", err)
					os.Exit(1)
				}
				mu.Lock()
				if err != nil {
					refused++
				}
				done := refused >= 2000
				mu.Unlock()
				if done {
					return
				}
				if err != nil {
					time.Sleep(time.Millisecond) // the pace of a caller who tries again
				}
			}
		})
	}
	wg.Wait()
	full := len(acked)
	if full < 1000 {
		return fmt.Errorf("only %d changes before the medium was full", full)
	}
	check := func() error {
		return s.View(ctx, func(r store.Reader) error {
			for _, i := range acked {
				if _, err := r.Get(store.K("k", uint64(i))); err != nil {
					return fmt.Errorf("acknowledged change %d: %w", i, err)
				}
			}
			head, err := r.LogHead(store.K("log"))
			if head != uint64(len(acked)) {
				err = fmt.Errorf("%d entries for %d changes", head, len(acked))
			}
			return err
		})
	}
	if err := check(); err != nil {
		return err
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	for range 500 {
		if err := write(); err != nil {
			return fmt.Errorf("commit after room was made: %w", err)
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	if s, err = badgerstore.Open(dir, badgerstore.Options{}); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	return s.Close()
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("needs Linux and root to mount a small tmpfs")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=400m", "pawl-test", dir).CombinedOutput(); err != nil {
		t.Skipf("may not mount a tmpfs here: %s", out)
	}
	defer func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := child(ctx, "full", dir).CombinedOutput(); err != nil {
		t.Errorf("child: %v\n%s", err, out)
	}
}
