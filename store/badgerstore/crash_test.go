package badgerstore_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// children are programs that this test binary becomes when PAWL_STORE_CHILD names one.
var children = map[string]func(dir string){
	"crash": crashChild,
	"trace": traceChild,
	"full":  fullChild,
}

// child prepares this binary as one of children.
func child(ctx context.Context, name, dir string, wrap ...string) *exec.Cmd {
	argv := append(wrap, os.Args[0])
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PAWL_STORE_CHILD="+name, "PAWL_STORE_DIR="+dir)
	return cmd
}

const crashWorkers = 8

// Each step of a worker is one change of several parts: three items, an index key that moves, an entry in the shared log and
// one in the worker's own. parts builds it.
func parts(worker, n int, state uint64) *store.Change {
	id := fmt.Sprintf("%d/%d ", worker, n)
	value := id + strings.Repeat("x", 500*(n%7))
	w := store.K("worker", worker)
	c := &store.Change{}
	c.Require(w, state)
	c.Put(w, []byte(strconv.Itoa(n)))
	for i := range 3 {
		c.Put(w.With("step", n, i), []byte(value))
	}
	if n > 0 {
		c.Delete(store.K("index", worker, n-1))
	}
	c.Put(store.K("index", worker, n), nil)
	c.Chain(store.K("shared"), []byte(id))
	c.Append(w, []byte(id))
	return c
}

// crashChild commits until it is killed, and writes a line for everything that was acknowledged.
func crashChild(dir string) {
	s, err := badgerstore.Open(dir, badgerstore.Options{}.WithMemTable(2<<20)) // flushes and compactions happen, too
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	ctx := context.Background()
	ack := func(format string, args ...any) {
		_, _ = os.Stdout.Write(fmt.Appendf(nil, format+"\n", args...)) // one write, so a line is whole or torn at the end
	}
	ack("open")
	var wg sync.WaitGroup
	for worker := range crashWorkers {
		wg.Go(func() {
			n, version := -1, uint64(0)
			_ = s.View(ctx, func(r store.Reader) error {
				it, err := r.Get(store.K("worker", worker))
				if err == nil {
					n, _ = strconv.Atoi(string(it.Value))
					version = it.Version
				}
				return nil
			})
			for {
				n++
				r, err := s.Commit(ctx, parts(worker, n, version))
				if err != nil {
					ack("error %v", err)
					return
				}
				version = r.Version
				ack("step %d %d %d %d %d", worker, n, version, r.Seqs[0], r.Seqs[1])
				if n%9 == 0 {
					d, err := s.PutBlob(ctx, "t", blobOf(worker, n), time.Unix(int64(n+1), 0))
					if err != nil {
						ack("error %v", err)
						return
					}
					ack("blob %d %d %s", worker, n, d)
				}
			}
		})
	}
	wg.Wait()
}

func blobOf(worker, n int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%d/%d ", worker, n), 3000) }

// TestInvariant4_SIGKILL kills a process that commits, again and again in one directory. PAWL_CRASH_ROUNDS sets how often.
func TestInvariant4_SIGKILL(t *testing.T) {
	t.Parallel()
	rounds := 12
	if n, err := strconv.Atoi(os.Getenv("PAWL_CRASH_ROUNDS")); err == nil {
		rounds = n
	}
	if testing.Short() {
		rounds = 3
	}
	dir := t.TempDir()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	acked := &acknowledged{steps: map[string][3]uint64{}, blobs: map[store.Digest][]byte{}}
	for round := range rounds {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		cmd := child(ctx, "crash", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The instant is random in acknowledgements and in time.
		left, pause := rng.IntN(400), time.Duration(rng.IntN(3000))*time.Microsecond
		lines := bufio.NewReader(out)
		for ; left >= 0; left-- {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("round %d: the child ended by itself: %v", round, err)
			}
			acked.add(t, line)
		}
		kill := time.AfterFunc(pause, func() { _ = cmd.Process.Kill() })
		rest, _ := io.ReadAll(lines)
		kill.Stop()
		_ = cmd.Wait()
		cancel()
		for line := range strings.Lines(string(rest)) {
			if strings.HasSuffix(line, "\n") { // a torn line acknowledged nothing
				acked.add(t, line)
			}
		}
		s := open(t, dir, badgerstore.Options{}.WithMemTable(2<<20))
		acked.verify(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	t.Logf("%d changes and %d blobs acknowledged over %d kills", len(acked.steps), len(acked.blobs), rounds)
	if len(acked.steps) < 10*rounds {
		t.Error("too few changes for the test to mean anything")
	}
}

// acknowledged is what the outside world was told.
type acknowledged struct {
	steps   map[string][3]uint64 // worker/n: version, shared and own sequence number
	blobs   map[store.Digest][]byte
	version uint64
}

func (a *acknowledged) add(t *testing.T, line string) {
	t.Helper()
	var worker, n int
	var v, shared, own uint64
	var d store.Digest
	if _, err := fmt.Sscanf(line, "step %d %d %d %d %d\n", &worker, &n, &v, &shared, &own); err == nil {
		id := fmt.Sprintf("%d/%d ", worker, n)
		if _, again := a.steps[id]; again {
			t.Errorf("step %s was acknowledged twice", id)
		}
		a.steps[id] = [3]uint64{v, shared, own}
		a.version = max(a.version, v)
		return
	}
	if _, err := fmt.Sscanf(line, "blob %d %d %s\n", &worker, &n, &d); err == nil {
		a.blobs[d] = blobOf(worker, n)
		return
	}
	if line != "open\n" {
		t.Errorf("the child says %q", line)
	}
}

// verify holds the store against what was acknowledged, and each change against itself.
func (a *acknowledged) verify(t *testing.T, s store.Store) {
	t.Helper()
	ctx := context.Background()
	err := s.View(ctx, func(r store.Reader) error {
		versions := map[uint64]string{}
		inLog := map[string]uint64{}
		all := func(log store.Key, fn func(store.Entry)) {
			head, err := r.LogHead(log)
			if err != nil {
				t.Error(err)
			}
			entries, err := r.Log(log, 0, 1<<30)
			if err != nil || uint64(len(entries)) != head {
				t.Errorf("log %q has %d entries and head %d, %v", log, len(entries), head, err)
			}
			for i, e := range entries {
				if e.Seq != uint64(i)+1 {
					t.Fatalf("log %q has %d at place %d", log, e.Seq, i+1)
				}
				fn(e)
			}
		}
		chain := store.Chain{Log: store.K("shared")}
		all(store.K("shared"), func(e store.Entry) {
			if fault := chain.Next(e); fault != nil {
				t.Errorf("the shared log after a kill: %v", fault)
			}
			if _, twice := inLog[string(e.Data)]; twice {
				t.Errorf("step %s is twice in the shared log", e.Data)
			}
			inLog[string(e.Data)] = e.Seq
		})
		steps := 0
		for worker := range crashWorkers {
			w := store.K("worker", worker)
			it, err := r.Get(w)
			if err != nil {
				continue // it had not begun
			}
			last, _ := strconv.Atoi(string(it.Value))
			own := map[string]uint64{}
			all(w, func(e store.Entry) { own[string(e.Data)] = e.Seq })
			if len(own) != last+1 {
				t.Errorf("worker %d is at step %d with %d log entries", worker, last, len(own))
			}
			var index []store.Key
			err = r.Scan(store.Range{Prefix: store.K("index", worker)}, func(it store.Item) bool {
				index = append(index, it.Key)
				return true
			})
			if err != nil || len(index) != 1 || index[0] != store.K("index", worker, last) {
				t.Errorf("worker %d at step %d is indexed as %q, %v", worker, last, index, err)
			}
			for n := range last + 1 {
				steps++
				id := fmt.Sprintf("%d/%d ", worker, n)
				var version uint64
				for i, p := range parts(worker, n, 0).Puts[1:4] {
					it, err := r.Get(p.Key)
					if err != nil || !bytes.Equal(it.Value, p.Value) || (i > 0 && it.Version != version) {
						t.Errorf("part %d of step %s: %d bytes at %d, %v", i, id, len(it.Value), it.Version, err)
					}
					version = it.Version
				}
				if other, used := versions[version]; used {
					t.Errorf("steps %s and %s share version %d", id, other, version)
				}
				versions[version] = id
				got := [3]uint64{version, inLog[id], own[id]}
				if want, ok := a.steps[id]; ok && got != want {
					t.Errorf("step %s is %v, acknowledged as %v", id, got, want)
				}
				if got[1] == 0 || got[2] == 0 {
					t.Errorf("step %s has no log entry", id)
				}
			}
			if _, err := r.Get(w.With("step", last+1, 0)); err == nil {
				t.Errorf("worker %d: a part of step %d without the rest", worker, last+1)
			}
		}
		for id := range a.steps {
			if inLog[id] == 0 {
				t.Errorf("step %s was acknowledged and is gone", id)
			}
		}
		if steps != len(inLog) {
			t.Errorf("%d steps and %d entries in the shared log", steps, len(inLog))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for d, data := range a.blobs {
		if got, err := s.Blob(ctx, "t", d); err != nil || !bytes.Equal(got, data) {
			t.Errorf("acknowledged blob %s: %d bytes, %v", d, len(got), err)
		}
	}
	r, err := s.Commit(ctx, &store.Change{Puts: []store.Put{{Key: store.K("reopened"), Value: nil}}})
	if err != nil || r.Version <= a.version {
		t.Errorf("version %d after the restart, %v; %d was given out before", r.Version, err, a.version)
	}
	a.version = max(a.version, r.Version)
}

// A log cut at any byte opens, and shows a prefix of what was committed: every change whose bytes are there, none in part.
func TestTruncatedTail(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	s := open(t, src, badgerstore.Options{})
	defer s.Close()
	ctx := context.Background()
	const changes = 30
	var ends [changes + 1]int // where the log ended when change n was acknowledged
	files := func() map[string][]byte {
		m := map[string][]byte{}
		entries, err := os.ReadDir(src)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() == "LOCK" {
				continue
			}
			f, err := os.Open(src + "/" + e.Name())
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(io.LimitReader(f, 1<<20)) // what lies behind is a hole
			_ = f.Close()
			if err != nil {
				t.Fatal(err)
			}
			m[e.Name()] = data
		}
		return m
	}
	const wal = "00001.mem"
	end := func() int { return len(bytes.TrimRight(files()[wal], "\x00")) }
	ends[0] = end()
	for n := range changes {
		c := &store.Change{}
		for i := range 3 {
			c.Put(store.K("change", n, i), bytes.Repeat([]byte{byte(n + 1)}, 50+n*i))
		}
		c.Append(store.K("log"), binary.AppendUvarint(nil, uint64(n)))
		if _, err := s.Commit(ctx, c); err != nil {
			t.Fatal(err)
		}
		ends[n+1] = end()
		if ends[n+1] <= ends[n] {
			t.Fatalf("change %d is not in %s", n, wal)
		}
	}
	image := files()
	rng := rand.New(rand.NewPCG(94, 740))
	cuts := []int{ends[changes], ends[changes] - 1, ends[changes-1], ends[changes-1] + 1, ends[0]}
	for range 25 {
		cuts = append(cuts, ends[0]+rng.IntN(ends[changes]-ends[0]))
	}
	for i, cut := range cuts {
		dir := t.TempDir()
		for name, data := range image {
			size := int64(len(data))
			if name == wal {
				// Half of the cuts leave a short file, half one with a hole: a crash does either.
				data = data[:cut]
				size = int64(cut)
				if i%2 == 0 {
					size = 4 << 20
				}
			}
			if err := os.WriteFile(dir+"/"+name, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(dir+"/"+name, size); err != nil {
				t.Fatal(err)
			}
		}
		cutStore := open(t, dir, badgerstore.Options{})
		whole := 0
		for whole < changes && ends[whole+1] <= cut {
			whole++
		}
		err := cutStore.View(ctx, func(r store.Reader) error {
			head, err := r.LogHead(store.K("log"))
			if err != nil {
				return err
			}
			// The zeroes at a change's end are part of the hole, so one more change can be whole.
			if int(head) != whole && int(head) != whole+1 {
				t.Errorf("cut at %d: %d changes, want %d", cut, head, whole)
			}
			for n := range changes {
				for i := range 3 {
					it, err := r.Get(store.K("change", n, i))
					if there := err == nil; there != (n < int(head)) {
						t.Errorf("cut at %d: part %d of change %d: %v, with %d changes there", cut, i, n, err, head)
					} else if there && !bytes.Equal(it.Value, bytes.Repeat([]byte{byte(n + 1)}, 50+n*i)) {
						t.Errorf("cut at %d: part %d of change %d has other bytes", cut, i, n)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if r, err := cutStore.Commit(ctx, put(store.K("on"), "v")); err != nil || r.Version < uint64(whole)+1 {
			t.Errorf("cut at %d: version %d, %v", cut, r.Version, err)
		}
		if err := cutStore.Close(); err != nil {
			t.Error(err)
		}
	}
}
