package badgerstore

import "github.com/dgraph-io/badger/v4"

// What tests may set that nobody else may.

func (o Options) WithoutSync() Options { o.noSync = true; return o }

func (o Options) OneByOne() Options { o.oneByOne = true; return o }

func (o Options) WithMemTable(n int64) Options { o.memTable = n; return o }

func (o Options) WithCommit(f func(*badger.Txn) error) Options { o.commit = f; return o }

func (o Options) WithFreeSpace(f func(string) (uint64, bool)) Options { o.freeSpace = f; return o }

// Badger is the engine below, for compaction on demand and for reading raw keys.
func (s *Store) Badger() *badger.DB { return s.db }

// Waiting is the number of changes that no fold has taken yet.
func (s *Store) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// Format is the newest known store format, KeyFormat where a directory says its own, and MetaChained marks an entry with links.
const (
	Format      = format
	KeyFormat   = keyFormat
	MetaChained = metaChained
)
