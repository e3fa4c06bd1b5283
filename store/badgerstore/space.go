package badgerstore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pawlhost/pawl/store"
)

// plenty is the free space above which nobody looks closer: more than Badger can owe, with level 0 at its stall.
const plenty = 4 << 30

// Space implements store.Store: the free bytes less what Badger still owes the medium, which is the room that Commit goes by
// too. So a mark above MinFree is reached before the store itself refuses. What is owed is looked at once a second at most.
func (s *Store) Space() (uint64, bool) {
	free, ok := s.opts.freeSpace(s.dir)
	if !ok || free >= plenty {
		return free, ok
	}
	s.owed.mu.Lock()
	defer s.owed.mu.Unlock()
	s.mu.Lock()
	ended := s.ended != nil
	s.mu.Unlock()
	if !ended && time.Since(s.owed.at) > time.Second {
		s.owed.bytes, s.owed.at = s.debt(), time.Now()
	}
	return free - min(free, s.owed.bytes), true
}

// owed is a look at the debt.
type owed struct {
	mu    sync.Mutex
	at    time.Time
	bytes uint64
}

// full returns ErrFull when the medium cannot take the batch and what Badger still owes it. Changes that only delete pass
// for longer: they are how space comes back.
func (s *Store) full(batch []*request) error {
	free, ok := s.opts.freeSpace(s.dir)
	if !ok {
		return nil
	}
	size, need, deletes := uint64(0), s.opts.MinFree, true
	for _, r := range batch {
		size += uint64(r.size)
		deletes = deletes && len(r.puts)+len(r.appends) == 0
	}
	if deletes {
		need /= 2
	}
	need += 2 * size // in the log now, in a table later
	if free >= need+plenty {
		return nil
	}
	c := &s.committer
	if c.debt += 2 * size; c.debtAge > 1<<20 || free < need+c.debt || c.debt == 0 {
		c.debt, c.debtAge = s.debt(), 0
	}
	c.debtAge += size
	if free >= need+c.debt {
		return nil
	}
	return fmt.Errorf("%w: %s has %d MiB left and needs %d: make room", store.ErrFull, s.dir, free>>20,
		(need+c.debt)>>20)
}

// debt is what Badger may have to write before it gives anything back: a table for every log in use, and the outcome of its
// largest compaction, which is level 0 with the level below.
func (s *Store) debt() (n uint64) {
	for _, l := range s.db.Levels() {
		if l.Level == 0 || l.IsBaseLevel {
			n += uint64(l.Size)
		}
	}
	return n + unflushed(s.dir)
}

// unflushed is the size of Badger's logs without their holes. Open has to make tables of them, too.
func unflushed(dir string) (n uint64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".mem") {
			n += usedBytes(filepath.Join(dir, e.Name()))
		}
	}
	return n
}
