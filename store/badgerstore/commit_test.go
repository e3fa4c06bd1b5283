package badgerstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
)

// gate lets a test hold the committer before or after Badger's commit.
type gate struct {
	arrived, pass chan struct{}
	commits       atomic.Int64
	after         bool
}

func newGate() *gate { return &gate{arrived: make(chan struct{}), pass: make(chan struct{})} }

func (g *gate) commit(txn *badger.Txn) error {
	g.commits.Add(1)
	if g.after {
		if err := txn.Commit(); err != nil {
			return err
		}
	}
	g.arrived <- struct{}{}
	<-g.pass
	if g.after {
		return nil
	}
	return txn.Commit()
}

// outcome of a commit in the background.
type outcome struct {
	receipt store.Receipt
	err     error
}

func start(ctx context.Context, s *badgerstore.Store, c *store.Change) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		r, err := s.Commit(ctx, c)
		out <- outcome{r, err}
	}()
	return out
}

// queue starts commits one after the other, so that they wait in this order.
func queue(t *testing.T, s *badgerstore.Store, changes ...*store.Change) (outs []<-chan outcome) {
	t.Helper()
	for _, c := range changes {
		n := s.Waiting()
		outs = append(outs, start(context.Background(), s, c))
		eventually(t, "the change waits", func() bool { return s.Waiting() == n+1 })
	}
	return outs
}

func TestInvariant4_ReadersNeitherWaitForACommitNorSeeIt(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		g := newGate()
		g.after = after
		s := fresh(t, badgerstore.Options{}.WithCommit(g.commit))
		k, log := store.K("k"), store.K("log")
		sub := s.Feed().Subscribe(log)
		c := put(k, "v")
		c.Append(log, []byte("e"))
		out := start(context.Background(), s, c)
		<-g.arrived // Badger is committing, or has committed
		if got := get(t, s, k); got != "" {
			t.Errorf("visible before Commit returned: %q", got)
		}
		if e, err := sub.Poll(0); len(e) != 0 || err != nil {
			t.Errorf("announced before Commit returned: %v, %v", e, err)
		}
		select {
		case o := <-out:
			t.Errorf("returned before the commit: %v", o)
		default:
		}
		g.pass <- struct{}{}
		if o := <-out; o.err != nil {
			t.Fatal(o.err)
		}
		if got := get(t, s, k); got != "v" {
			t.Errorf("after Commit returned: %q", got)
		}
		if e, err := sub.Next(context.Background(), 0); len(e) != 1 || err != nil {
			t.Errorf("announced: %v, %v", e, err)
		}
		sub.Close()
	}
}

func TestFoldChecksAgainstWhatItWillWrite(t *testing.T) {
	t.Parallel()
	g := newGate()
	s := fresh(t, badgerstore.Options{}.WithCommit(g.commit))
	a, log := store.K("a"), store.K("log")
	first := start(context.Background(), s, put(store.K("first"), "v"))
	<-g.arrived

	create := func(v string) *store.Change {
		c := put(a, v)
		c.Require(a, 0)
		c.Append(log, []byte(v))
		return c
	}
	del := &store.Change{Deletes: []store.Key{a}}
	del.Append(log, []byte("deleted"))
	checked := func(v uint64) *store.Change {
		c := &store.Change{}
		c.Require(a, v)
		return c
	}
	// Versions are given out one by one: the first change had 1.
	outs := queue(t, s,
		create("one"),   // 2
		create("two"),   // conflict
		checked(2),      // holds, writes nothing
		checked(3),      // conflict
		put(a, "three"), // 3
		del,             // 4
		checked(0),      // holds
		create("four"),  // 5
		checked(5),      // holds
		put(a, "last"),  // 6
		create("never"), // conflict
		&store.Change{}, // nothing at all
	)
	g.pass <- struct{}{}
	<-g.arrived
	g.pass <- struct{}{}
	if o := <-first; o.err != nil || o.receipt.Version != 1 {
		t.Fatalf("first: %v", o)
	}
	want := []uint64{2, 0, 0, 0, 3, 4, 0, 5, 0, 6, 0, 0}
	conflict := map[int]bool{1: true, 3: true, 10: true}
	for i, out := range outs {
		o := <-out
		if conflict[i] != errors.Is(o.err, store.ErrConflict) || (!conflict[i] && o.err != nil) ||
			o.receipt.Version != want[i] {
			t.Errorf("change %d: %v, want version %d, conflict %v", i, o, want[i], conflict[i])
		}
	}
	if n := g.commits.Load(); n != 2 {
		t.Errorf("%d commits, want the twelve waiting changes in one", n)
	}
	if got := get(t, s, a); got != "last" {
		t.Errorf("a = %q", got)
	}
	err := s.View(context.Background(), func(r store.Reader) error {
		es, err := r.Log(log, 0, 0)
		if len(es) != 3 || string(es[0].Data) != "one" || string(es[1].Data) != "deleted" || es[2].Seq != 3 {
			t.Errorf("log: %v", es)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What does not fit into Badger's batch opens the next fold; nothing is split.
func TestFoldLimit(t *testing.T) {
	t.Parallel()
	g := newGate()
	s := fresh(t, badgerstore.Options{}.WithCommit(g.commit))
	if limit := s.Badger().MaxBatchSize(); limit < 2*store.MaxChange {
		t.Fatalf("Badger's batch limit %d is below twice MaxChange", limit)
	}
	first := start(context.Background(), s, put(store.K("first"), "v"))
	<-g.arrived
	var changes []*store.Change
	for i := range 3 { // of the largest size; two fit
		c := &store.Change{}
		for j := range 4 {
			c.Put(store.K("big", i, j), make([]byte, store.MaxValue))
		}
		changes = append(changes, c)
	}
	for i := range 6 { // of the most appends, whose heads count twice; four or five fit
		c := &store.Change{}
		for j := range store.MaxWrites {
			c.Append(store.K("logs", i, j), nil)
		}
		changes = append(changes, c)
	}
	outs := queue(t, s, changes...)
	folds := 0
	for done := false; !done; {
		select {
		case g.pass <- struct{}{}:
			folds++
		case <-g.arrived:
		case o := <-outs[len(outs)-1]:
			if o.err != nil {
				t.Error(o.err)
			}
			done = true
		}
	}
	for i, out := range append(outs[:len(outs)-1], first) {
		if o := <-out; o.err != nil {
			t.Errorf("change %d: %v", i, o.err)
		}
	}
	if folds < 1+2+1 || folds > 1+2+3 {
		t.Errorf("%d folds", folds)
	}
}

func TestContextCountsUntilAccepted(t *testing.T) {
	t.Parallel()
	g := newGate()
	s := fresh(t, badgerstore.Options{}.WithCommit(g.commit))
	ctx, cancel := context.WithCancel(context.Background())
	accepted := start(ctx, s, put(store.K("accepted"), "v"))
	<-g.arrived
	waiting := start(ctx, s, put(store.K("waiting"), "v"))
	eventually(t, "the second change waits", func() bool { return s.Waiting() == 1 })
	cancel()
	if o := <-waiting; !errors.Is(o.err, context.Canceled) {
		t.Errorf("the waiting change: %v, want Canceled", o.err)
	}
	select {
	case o := <-accepted:
		t.Errorf("the accepted change returned without its outcome: %v", o)
	default:
	}
	g.pass <- struct{}{}
	if o := <-accepted; o.err != nil {
		t.Errorf("the accepted change: %v, want its outcome", o.err)
	}
	last := start(context.Background(), s, put(store.K("last"), "v"))
	<-g.arrived
	g.pass <- struct{}{}
	if o := <-last; o.err != nil || o.receipt.Version != 2 {
		t.Errorf("last: %v; the withdrawn change must not have a version", o)
	}
	if get(t, s, store.K("accepted")) != "v" || get(t, s, store.K("waiting")) != "" {
		t.Error("the accepted change is missing, or the withdrawn one is there")
	}
}

func TestInvariant4_FailedCommitEndsTheStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	boom := errors.New("boom")
	hold, pass := make(chan struct{}), make(chan struct{})
	var n atomic.Int64
	fatal := make(chan error, 2)
	s := open(t, dir, badgerstore.Options{OnFatal: func(err error) { fatal <- err }}.WithCommit(
		func(txn *badger.Txn) error {
			if n.Add(1) == 1 {
				return txn.Commit()
			}
			hold <- struct{}{}
			<-pass
			return boom
		}))
	ctx := context.Background()
	if _, err := s.Commit(ctx, put(store.K("good"), "v")); err != nil {
		t.Fatal(err)
	}
	sub := s.Feed().Subscribe(store.K("log"))
	defer sub.Close()
	outs := []<-chan outcome{start(ctx, s, put(store.K("bad"), "v"))}
	<-hold
	conflict := put(store.K("bad"), "v")
	conflict.Require(store.K("good"), 0)
	outs = append(outs, queue(t, s, put(store.K("next"), "v"), conflict)...)
	close(pass)
	for i, out := range outs {
		if o := <-out; !errors.Is(o.err, store.ErrClosed) || !errors.Is(o.err, boom) || o.receipt.Version != 0 {
			t.Errorf("waiter %d: %v, want ErrClosed and the cause", i, o)
		}
	}
	if err := <-fatal; !errors.Is(err, boom) {
		t.Errorf("OnFatal: %v", err)
	}
	later := map[string]error{
		"view":         s.View(ctx, func(store.Reader) error { return nil }),
		"delete range": s.DeleteRange(ctx, store.K("good")),
	}
	_, later["commit"] = s.Commit(ctx, put(store.K("k"), "v"))
	_, later["blob"] = s.Blob(ctx, "t", store.DigestOf(nil))
	_, later["put blob"] = s.PutBlob(ctx, "t", nil, time.Unix(0, 0))
	_, later["next"] = sub.Next(ctx, 0)
	for name, err := range later {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(fatal) != 0 || n.Load() != 2 {
		t.Errorf("OnFatal called again, or %d commits tried", n.Load())
	}
	// Here the process would end. Badger is closed in its place, so that the directory can be opened again.
	if err := s.Badger().Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, badgerstore.Options{})
	defer s.Close()
	if get(t, s, store.K("good")) != "v" || get(t, s, store.K("bad")) != "" || get(t, s, store.K("next")) != "" {
		t.Error("the acknowledged change is missing, or another one is there")
	}
}

func TestFullMediumRefusesAndRecovers(t *testing.T) {
	t.Parallel()
	var free atomic.Uint64
	free.Store(1 << 40)
	s := fresh(t, badgerstore.Options{MinFree: 100 << 20}.WithFreeSpace(
		func(string) (uint64, bool) { return free.Load(), true }))
	ctx := context.Background()
	for i := range 10 {
		if _, err := s.Commit(ctx, put(store.K("old", i), "v")); err != nil {
			t.Fatal(err)
		}
	}
	free.Store(99 << 20)
	// What Badger owes is taken off: a mark of the host's is reached before the store refuses.
	if got, ok := s.Space(); !ok || got >= 99<<20 || got < 90<<20 {
		t.Errorf("space = %d, %v", got, ok)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			c := put(store.K("new"), "v")
			c.Append(store.K("log"), []byte("e"))
			if i == 0 {
				c.Require(store.K("old", 0), 0) // would conflict
			}
			r, err := s.Commit(ctx, c)
			if !errors.Is(err, store.ErrFull) || r.Version != 0 {
				t.Errorf("commit on a full medium: %v, %v", r, err)
			}
		})
	}
	wg.Wait()
	if _, err := s.PutBlob(ctx, "t", []byte("x"), time.Unix(0, 0)); !errors.Is(err, store.ErrFull) {
		t.Errorf("blob on a full medium: %v", err)
	}
	if get(t, s, store.K("new")) != "" || get(t, s, store.K("old", 3)) != "v" {
		t.Error("a refused change is there, or reading has suffered")
	}
	if err := s.DeleteRange(ctx, store.K("old")); err != nil {
		t.Errorf("retention must be able to make room: %v", err)
	}
	free.Store(1 << 40)
	r, err := s.Commit(ctx, &store.Change{Appends: []store.Append{{Log: store.K("log"), Data: []byte("first")}}})
	if err != nil || r.Seqs[0] != 1 {
		t.Errorf("after room was made: %v, %v", r, err)
	}
}

// Heads that have left the cache are read again.
func TestMoreLogsThanTheHeadCacheHolds(t *testing.T) {
	t.Parallel()
	s := fresh(t, badgerstore.Options{})
	for round := range uint64(2) {
		for part := range 2 {
			c := &store.Change{}
			for i := range 9000 {
				c.Append(store.K("log", part, i), fmt.Append(nil, round))
			}
			r, err := s.Commit(context.Background(), c)
			if err != nil {
				t.Fatal(err)
			}
			for i, seq := range r.Seqs {
				if seq != round+1 {
					t.Fatalf("log %d/%d: sequence number %d in round %d", part, i, seq, round)
				}
			}
		}
	}
}
