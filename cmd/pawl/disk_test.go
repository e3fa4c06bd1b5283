//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

// A disk that fills up: new runs are refused first, decisions pass, then they are refused too; nothing is lost, the process
// lives, and everything goes on when there is space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to mount a small tmpfs")
	}
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=384m"); err != nil {
		t.Skipf("skipped: cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	c := newChild(t, "pawl")
	c.data = filepath.Join(disk, "data")
	c.extra = []string{"--store-reserve", "160MiB", "--store-reserve-low", "80MiB"}
	mustStart(t, c)
	owner := c.as("owner")
	mustCall(t, owner, http.MethodPut, agentPath("ops"), json.RawMessage(demoAgent), nil)

	var runs []host.Run
	newRun := func() error {
		var run host.Run
		err := owner.call(t.Context(), http.MethodPost, "/v1/runs", map[string]any{"agent": "ops"}, &run)
		if err == nil {
			runs = append(runs, run)
		}
		return err
	}
	approve := func(run host.Run) error {
		now := getRun(t, owner, run.ID)
		var list []map[string]any
		for _, p := range now.Pause.Approvals {
			list = append(list, map[string]any{"approval_id": p.ID, "kind": "approve"})
		}
		return owner.call(t.Context(), http.MethodPost, runPath(run.ID)+"/approvals", map[string]any{"decisions": list}, nil)
	}
	ends := func(run host.Run) {
		t.Helper()
		if !eventually(t.Context(), 20*time.Second, func() bool { return getRun(t, owner, run.ID).State == store.RunSucceeded }) {
			t.Errorf("run %s is %s", run.ID, getRun(t, owner, run.ID).State)
		}
	}
	for range 6 {
		if err := newRun(); err != nil {
			t.Fatal(err)
		}
	}

	leaveFree(t, disk, 120<<20) // below the first mark
	if !eventually(t.Context(), 10*time.Second, func() bool { return status(newRun()) == http.StatusInsufficientStorage }) {
		t.Fatal("new runs are not refused")
	}
	if got := ready(t, c); got != http.StatusInsufficientStorage {
		t.Errorf("/readyz says %d", got)
	}
	for _, run := range runs[:2] {
		if err := approve(run); err != nil {
			t.Errorf("a decision below the first mark: %v", err)
		}
		ends(run)
	}

	leaveFree(t, disk, 40<<20) // below the second
	if !eventually(t.Context(), 10*time.Second, func() bool { return status(newRun()) == http.StatusInsufficientStorage }) {
		t.Fatal("new runs are not refused")
	}
	if got := status(approve(runs[2])); got != http.StatusInsufficientStorage {
		t.Errorf("a decision below the second mark got %d", got)
	}
	if now := getRun(t, owner, runs[2].ID); now.State != store.RunAwaitingApproval {
		t.Errorf("a refused decision left the run %s", now.State)
	}

	leaveFree(t, disk, 0) // there is space again
	if !eventually(t.Context(), 30*time.Second, func() bool { return ready(t, c) == http.StatusOK }) {
		t.Fatal("it does not recover")
	}
	if err := newRun(); err != nil {
		t.Error(err)
	}
	for _, run := range runs[2:] {
		if err := approve(run); err != nil {
			t.Errorf("a decision after there is space: %v", err)
		}
		ends(run)
	}
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustStart(t, c)
	owner = c.as("owner")
	for _, run := range runs {
		ends(run) // and nothing was lost
	}
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// leaveFree fills the file system until so many bytes are free; 0 removes what fills it.
func leaveFree(t *testing.T, disk string, free int64) {
	t.Helper()
	ballast := filepath.Join(disk, "ballast")
	_ = os.Remove(ballast)
	if free == 0 {
		return
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	n := int64(st.Bavail)*st.Bsize - free
	if n <= 0 {
		t.Fatalf("only %d bytes are free, %d wanted", int64(st.Bavail)*st.Bsize, free)
	}
	if err := os.WriteFile(ballast, bytes.Repeat([]byte("ballast "), int(n/8)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// status is the HTTP status of an error, 200 for none.
func status(err error) int {
	if err == nil {
		return http.StatusOK
	}
	if p, ok := err.(*problem); ok {
		return p.Status
	}
	return 0
}

func ready(t *testing.T, c *child) int {
	t.Helper()
	resp, err := http.Get(c.base + "/readyz")
	if err != nil {
		t.Fatalf("the host is gone: %v: %s", err, strings.TrimSpace(c.log.text()))
	}
	resp.Body.Close()
	return resp.StatusCode
}
