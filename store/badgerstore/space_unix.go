//go:build linux || darwin || freebsd

package badgerstore

import "golang.org/x/sys/unix"

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
