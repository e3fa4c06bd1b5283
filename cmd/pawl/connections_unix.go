//go:build unix

package main

import "golang.org/x/sys/unix"

// ownFiles are descriptors that connections leave to the process itself: Badger opens tables and logs when it needs them, and a
// store that cannot ends the host.
const ownFiles = 256

// maxConnections is how many connections are accepted at a time; further ones wait in the kernel. It follows the process's limit of
// open files, which Go has raised to the hard limit.
func maxConnections() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur > 1<<20 {
		return 1 << 20
	}
	return max(16, int(r.Cur)-ownFiles)
}
