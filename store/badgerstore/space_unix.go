//go:build linux || darwin || freebsd

package badgerstore

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dropEmptyLogs deletes log files without a byte. A process that is killed between making a log and giving it its size
// leaves one, about once in 200 kills under load, and Badger then refuses to open the directory ("Create a new file"), again for
// each such file, with goroutines left behind each time. It holds Badger's own lock meanwhile: an empty log of a process that
// lives is one that it is just making.
func dropEmptyLogs(dir string) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close() // and with it the lock
	if unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return // Open will say who has it
	}
	for _, pattern := range []string{"*.mem", "*.vlog"} {
		logs, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, log := range logs {
			if st, err := os.Stat(log); err == nil && st.Size() == 0 {
				_ = os.Remove(log)
			}
		}
	}
}

// freeSpace returns the bytes that an ordinary user can still write to the file system of dir.
func freeSpace(dir string) (uint64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return uint64(st.Bavail) * uint64(st.Bsize), true
}

// usedBytes returns what a sparse file takes on disk; 0 when it is gone.
func usedBytes(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return uint64(st.Blocks) * 512
}
