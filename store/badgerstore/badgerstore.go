// Package badgerstore is the embedded store: one process, one directory, Badger below.
//
// Every write goes through one committer goroutine, which folds the changes that wait into one transaction with one sync
// (commit.go). Every read uses a shared read-only transaction that the committer replaces after each fold (view.go), so
// that readers never wait for a disk and never see what could still be lost.
//
// # Space
//
// Badger writes its logs and tables through memory maps of sparse files. On a full disk such a write is not an error but
// SIGBUS, which ends the process. So the store asks the file system before every fold, and answers ErrFull when less is
// free than Options.MinFree and what Badger still owes: tables for its logs, the output of its next compaction (space.go).
// Other programs can fill the disk in between, and only the reserve that the host keeps, well above this, protects from
// them. Preallocating Badger's files from outside would leave a gap whenever it begins a new one.
//
// # Values
//
// All values stay in Badger's tree, below its value threshold: the value log only logs a failed sync and acknowledges all
// the same, and has lost values in collection. Blobs are stored in pieces.
package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/pawlhost/pawl/store"
)

// Options of Open; the zero value is good.
type Options struct {
	// Logger receives Badger's warnings and errors, and the store's own. Nil discards them.
	Logger *slog.Logger
	// OnFatal is called once, from the committer, when a failed commit has ended the store: what was not acknowledged
	// may or may not be there after a restart, so the process should end without closing the store. It must not
	// call Close and wait for it.
	OnFatal func(error)
	// MinFree is the margin in bytes: Commit returns ErrFull when less is free than it and what Badger has yet to write
	// (up to a few hundred MiB in a busy store, next to nothing in a small one). 0 means 64 MiB.
	MinFree uint64
	// Maintain is the time between two passes of garbage collection. 0 means ten minutes.
	Maintain time.Duration

	noSync    bool                    // tests: prove that the durability proof can fail
	oneByOne  bool                    // benchmarks: a transaction for each change
	memTable  int64                   // tests: flush early
	commit    func(*badger.Txn) error // tests: a commit that fails
	freeSpace func(string) (uint64, bool)
}

// Store implements store.Store.
type Store struct {
	dir  string
	opts Options
	db   *badger.DB
	feed *store.Feed

	maxSize, maxCount int64 // of one fold, in Badger's measure

	mu     sync.Mutex
	cond   *sync.Cond // queue, active and ended have changed
	queue  []*request
	view   *view // what everybody reads
	active int   // Views running
	ended  error // wraps ErrClosed, once closing or failed
	failed bool  // ended by a failed commit

	committer state // the committer's own
	owed      owed  // what Space takes off
	swept     bool  // under mu: ranges were deleted since the last flatten

	stop      chan struct{} // ends maintenance
	owned     sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

var _ store.Store = (*Store)(nil)

// format is the newest store format that this code reads and writes. A directory gets the lowest that knows what is in it.
const (
	format       = formatChains
	formatPlain  = 1
	formatChains = 2 // entries of logs with their links: from the first chained append on
)

// Key spaces: the first byte of every key in Badger. The callers' keys lie below spaceItem only, so that no key of theirs
// can reach what is the store's own.
const (
	spaceMeta = "m" // format number, last version
	spaceItem = "i" // key → version, value
	spaceLog  = "l" // log, 0x01, seq → data, behind its links if it is chained
	spaceHead = "h" // log → last seq, hash of the last chained entry if there is one
	spaceBlob = "b" // tenant, digest [, piece] → version, time and size, or bytes

	keyFormat  = spaceMeta + "format"
	keyVersion = spaceMeta + "version"
)

// Open opens the directory, or makes it. Errors: ErrLocked when another process uses it, ErrFormat when a newer pawl (or
// another program) wrote it, ErrFull when there is no room to open it.
func Open(dir string, opts Options) (*Store, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.MinFree == 0 {
		opts.MinFree = 64 << 20
	}
	if opts.Maintain == 0 {
		opts.Maintain = 10 * time.Minute
	}
	if opts.freeSpace == nil {
		opts.freeSpace = freeSpace
	}
	if opts.commit == nil {
		opts.commit = (*badger.Txn).Commit
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if free, ok := opts.freeSpace(dir); ok && free < unflushed(dir) {
		return nil, fmt.Errorf("%w: %s has %d MiB left and needs %d to open: make room", store.ErrFull, dir, free>>20,
			unflushed(dir)>>20)
	}
	dropEmptyLogs(dir)
	db, err := badger.Open(badgerOptions(dir, opts))
	switch {
	case err != nil && strings.Contains(err.Error(), "Cannot acquire directory lock"): // Badger keeps no error to test for
		return nil, fmt.Errorf("%w: %s: stop the other pawl that uses this directory, or choose another one",
			store.ErrLocked, dir)
	case err != nil:
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	s := &Store{
		dir: dir, opts: opts, db: db, feed: store.NewFeed(), stop: make(chan struct{}),
		maxSize: db.MaxBatchSize() - 1<<10, maxCount: db.MaxBatchCount() - 16,
	}
	s.cond = sync.NewCond(&s.mu)
	if err := s.checkFormat(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.view = &view{txn: db.NewTransaction(false), refs: 1}
	s.committer.version, err = readNumber(s.view.txn, keyVersion)
	if err == nil {
		s.committer.format, err = readNumber(s.view.txn, keyFormat)
	}
	if err != nil {
		s.view.txn.Discard()
		return nil, errors.Join(err, db.Close())
	}
	s.owned.Go(s.commitLoop)
	s.owned.Go(s.maintain)
	return s, nil
}

// badgerOptions sizes Badger for a small machine with many records at rest. Anonymous memory is the memtables (three at
// most, 64 MiB and a batch each), the block cache, and the table builders' buffers while it loads; table indexes stay in the
// page cache. The process should set a memory limit (640 MiB measured well), else the collector lets this double.
func badgerOptions(dir string, opts Options) badger.Options {
	b := badger.DefaultOptions(dir).
		WithSyncWrites(!opts.noSync).
		WithDetectConflicts(false). // the committer is the only writer
		WithVerifyValueChecksum(true).
		WithChecksumVerificationMode(options.OnBlockRead).
		WithMemTableSize(64 << 20). // a batch is 15 % of it: more than 2 × store.MaxChange
		WithNumMemtables(2).
		WithBlockCacheSize(32 << 20).
		WithNumCompactors(2).
		WithValueThreshold(1 << 20). // above store.MaxValue: the value log stays empty
		WithValueLogFileSize(16 << 20).
		WithMetricsEnabled(false).
		WithLogger(logger{opts.Logger.With("component", "badger")})
	if opts.memTable > 0 {
		b = b.WithMemTableSize(opts.memTable).WithValueThreshold(min(1<<20, opts.memTable/10)).
			WithBaseTableSize(opts.memTable / 2).WithBaseLevelSize(opts.memTable)
	}
	return b
}

// checkFormat writes the format number into a new directory and compares it in an old one.
func (s *Store) checkFormat() error {
	var found uint64
	empty := true
	err := s.db.View(func(txn *badger.Txn) (err error) {
		if found, err = readNumber(txn, keyFormat); err != nil || found != 0 {
			return err
		}
		it := txn.NewIterator(badger.IteratorOptions{})
		defer it.Close()
		it.Rewind()
		empty = !it.Valid()
		return nil
	})
	switch {
	case err != nil:
		return err
	case found > format:
		return fmt.Errorf("%w: %s has format %d, this pawl knows formats up to %d: run the pawl release that wrote it, "+
			"or a newer one", store.ErrFormat, s.dir, found, format)
	case found == 0 && !empty:
		return fmt.Errorf("%w: %s is a Badger directory of another program: choose another directory",
			store.ErrFormat, s.dir)
	case found == 0:
		return s.db.Update(func(txn *badger.Txn) error { return txn.Set([]byte(keyFormat), number(formatPlain)) })
	}
	return nil
}

// Feed implements store.Store.
func (s *Store) Feed() *store.Feed { return s.feed }

// Close implements store.Store. It waits for accepted changes and running Views. After a failed commit it does not close
// Badger, which would write out its memory with half of the failed fold in it: the directory stays locked until the
// process ends, and the next Open replays the log, which holds every acknowledged change.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		if s.ended == nil {
			s.ended = store.ErrClosed
		}
		s.cond.Broadcast()
		s.mu.Unlock()
		close(s.stop)
		s.owned.Wait()
		s.feed.Close()
		s.mu.Lock()
		for s.active > 0 {
			s.cond.Wait()
		}
		s.mu.Unlock()
		s.view.txn.Discard()
		if !s.failed {
			s.closeErr = s.db.Close()
		}
	})
	return s.closeErr
}

// usable returns the error of a call that cannot begin.
func (s *Store) usable(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	return ctx.Err()
}

// maintain collects Badger's garbage from time to time. Flattening rewrites the whole tree, so it is done at most once a
// day, after retention has deleted ranges, whose bytes would otherwise stay below their tombstones for long.
func (s *Store) maintain() {
	tick := time.NewTicker(s.opts.Maintain)
	defer tick.Stop()
	const day = 24 * time.Hour
	last := time.Now()
	for {
		select {
		case <-s.stop:
			return
		case now := <-tick.C:
			s.collect()
			if now.Sub(last) < day || !s.roomToFlatten() || !s.takeSwept() {
				continue
			}
			if err := s.db.Flatten(1); err != nil {
				s.opts.Logger.Warn("store: flatten failed", "error", err)
			}
			last = now
		}
	}
}

// collect rewrites value log files until there is nothing to gain, which is at once unless an old format left values.
func (s *Store) collect() {
	for {
		switch err := s.db.RunValueLogGC(0.5); {
		case err == nil:
		case errors.Is(err, badger.ErrNoRewrite), errors.Is(err, badger.ErrRejected):
			return
		default:
			s.opts.Logger.Warn("store: value log collection failed", "error", err)
			return
		}
	}
}

// roomToFlatten reports whether the whole tree fits a second time.
func (s *Store) roomToFlatten() bool {
	free, ok := s.opts.freeSpace(s.dir)
	var tree int64
	for _, l := range s.db.Levels() {
		tree += l.Size
	}
	return !ok || free > uint64(2*tree)+plenty
}

func (s *Store) takeSwept() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	swept := s.swept
	s.swept = false
	return swept
}

// logger passes Badger's warnings and errors on; the rest is noise to an operator.
type logger struct{ *slog.Logger }

func (l logger) Errorf(f string, a ...any)   { l.Error(fmt.Sprintf(f, a...)) }
func (l logger) Warningf(f string, a ...any) { l.Warn(fmt.Sprintf(f, a...)) }
func (l logger) Infof(string, ...any)        {}
func (l logger) Debugf(string, ...any)       {}
