package badgerstore_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

const traced = 12

// traceChild marks each request and each acknowledgement with a write of its own, for the system call trace.
func traceChild(dir string) {
	opts := badgerstore.Options{}
	if os.Getenv("PAWL_STORE_NOSYNC") != "" {
		opts = opts.WithoutSync()
	}
	s, err := badgerstore.Open(dir, opts)
	if err != nil {
		panic(err)
	}
	for n := range traced {
		_, _ = os.Stderr.Write(fmt.Appendf(nil, "REQ %d\n", n))
		if n%2 == 0 {
			_, err = s.Commit(context.Background(), put(store.K("k", n), "v"))
		} else {
			_, err = s.PutBlob(context.Background(), "t", fmt.Append(nil, n), time.Unix(1, 0))
		}
		if err != nil {
			panic(err)
		}
		_, _ = os.Stderr.Write(fmt.Appendf(nil, "ACK %d\n", n))
	}
}

// TestInvariant4_AcknowledgedImpliesSynced reads the system calls of a process that commits: between each request and its
// acknowledgement the kernel must have finished syncing the log that the change was written to. The same check fails
// when SyncWrites is off, so it can fail.
func TestInvariant4_AcknowledgedImpliesSynced(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace on the PATH to prove that a sync lies before each acknowledgement")
	}
	if out, err := exec.Command(strace, "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		t.Skipf("strace may not trace here (ptrace is not permitted): %s", out)
	}
	for _, c := range []struct {
		name, nosync string
		synced       int
	}{
		{"SyncWrites", "", traced},
		{"WithoutSyncWritesTheProofFails", "1", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			dir, trace := t.TempDir(), t.TempDir()+"/trace"
			cmd := child(ctx, "trace", dir, strace, "-f", "-y", "-s", "64", "-e", "signal=none",
				"-e", "trace=write,mmap,msync,fsync,fdatasync", "-o", trace)
			cmd.Env = append(cmd.Env, "PAWL_STORE_NOSYNC="+c.nosync)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("child: %v\n%s", err, out)
			}
			lines, err := os.ReadFile(trace)
			if err != nil {
				t.Fatal(err)
			}
			if got := syncedRequests(t, lines); got != c.synced {
				t.Errorf("%d of %d acknowledgements came after a sync of the log, want %d", got, traced, c.synced)
			}
		})
	}
}

var (
	mapped  = regexp.MustCompile(`mmap\(.*MAP_SHARED, \d+<([^>]*)>, 0\) += (0x[0-9a-f]+)`)
	msync   = regexp.MustCompile(`msync\((0x[0-9a-f]+), .*MS_SYNC\) += 0$`)
	fsync   = regexp.MustCompile(`f(?:data)?sync\(\d+<([^>]*)>\) += 0$`)
	resumed = regexp.MustCompile(`<\.\.\. \w+ resumed>(.*)$`)
	marker  = regexp.MustCompile(`write\(2<.*"(REQ|ACK) (\d+)\\n"`)
)

// syncedRequests counts the acknowledgements that have a finished sync of a log (.mem) between request and answer. A call
// that another thread interrupts is written as two lines; it counts where it finishes.
func syncedRequests(t *testing.T, trace []byte) int {
	t.Helper()
	unfinished := map[string]string{} // by thread
	file := map[string]string{}       // by address
	began, synced, answered, good := false, false, 0, 0
	for line := range bytes.Lines(trace) {
		pid, call, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		call = strings.TrimSpace(call)
		// A marker counts where its write begins, an answer cannot be seen earlier.
		if m := marker.FindStringSubmatch(call); m != nil {
			switch m[1] {
			case "REQ":
				began, synced = true, false
			case "ACK":
				if !began || m[2] != fmt.Sprint(answered) {
					t.Fatalf("unexpected marker: %s", call)
				}
				answered++
				if synced {
					good++
				}
				began = false
			}
		}
		if head, ok := strings.CutSuffix(call, " <unfinished ...>"); ok {
			unfinished[pid] = head
			continue
		}
		if m := resumed.FindStringSubmatch(call); m != nil {
			call = unfinished[pid] + m[1]
		}
		if m := mapped.FindStringSubmatch(call); m != nil {
			file[m[2]] = m[1]
		}
		if m := msync.FindStringSubmatch(call); m != nil && strings.HasSuffix(file[m[1]], ".mem") {
			synced = true
		}
		if m := fsync.FindStringSubmatch(call); m != nil && strings.HasSuffix(m[1], ".mem") {
			synced = true
		}
	}
	if answered != traced {
		t.Fatalf("%d answers in the trace, want %d", answered, traced)
	}
	return good
}
