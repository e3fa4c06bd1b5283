package store

import (
	"context"
	"fmt"
	"time"
)

// Store is the one seam between the host and an engine. All methods are safe for concurrent use.
//
// After Close, or after a failed commit has poisoned an engine, every method returns ErrClosed (wrapped).
type Store interface {
	// View calls fn with a consistent view: everything that was durable when View began, nothing younger. It never
	// waits for a commit in flight. The Reader, and what it returned, must not be used after fn returns, except
	// that byte slices are the caller's to keep.
	View(ctx context.Context, fn func(Reader) error) error

	// Commit applies c, all or nothing. When it returns nil the change is durable (it survives power loss), and
	// visible to every View that begins afterwards; nobody has seen it before. A failed precondition returns
	// ErrConflict, a change that Check refuses ErrTooLarge, a medium without room ErrFull, a chained append to a log whose end was
	// tampered with ErrCorrupt; all leave nothing behind.
	// The context counts only until the change is accepted: afterwards the outcome is awaited, so that
	// a caller never leaves without knowing it. The change's slices must not be modified afterwards: the feed shares them.
	Commit(ctx context.Context, c *Change) (Receipt, error)

	// PutBlob stores data under its digest for a tenant and returns once it is durable. Storing the same bytes again
	// writes no bytes again and refreshes the blob's time, so that a collection pass (SweepBlobs) does not take it. Data
	// above MaxChange is ErrTooLarge.
	PutBlob(ctx context.Context, tenant string, data []byte, now time.Time) (Digest, error)

	// Blob returns the bytes of a blob, verified against the digest; ErrNotFound for an unknown or foreign one,
	// ErrCorrupt for bytes that do not match. The slice is the caller's.
	Blob(ctx context.Context, tenant string, d Digest) ([]byte, error)

	// SweepBlobs deletes the tenant's blobs that were put before the given time and for which used returns false. It
	// returns how many it deleted.
	SweepBlobs(ctx context.Context, tenant string, before time.Time, used func(Digest) bool) (int, error)

	// DeleteRange deletes every key and log at or below prefix; blobs stay. It is for retention only: it is not atomic
	// with anything, but it is idempotent, and a crash in between leaves a range that the next call finishes. The item
	// at prefix itself goes last, so that it is still there to find the rest by. Nobody may write at or below prefix
	// meanwhile; a log that is appended to afterwards begins again at 1.
	DeleteRange(ctx context.Context, prefix Key) error

	// TrimLog deletes the entries of a log with Seq ≤ through; the numbers go on as before. It is for retention: not atomic with
	// anything, but idempotent, and a crash in between leaves entries that the next call takes.
	TrimLog(ctx context.Context, log Key, through uint64) error

	// Feed serves the live tail of logs from memory, in commit order, without touching the engine.
	Feed() *Feed

	// Space reports the free bytes of the medium. An engine without a medium reports ok == false.
	Space() (free uint64, ok bool)

	// Close waits for accepted changes, then releases the engine. It is idempotent.
	Close() error
}

// Reader reads one consistent view. It is safe for concurrent use while fn of View runs.
type Reader interface {
	// Get returns the item at k, or ErrNotFound.
	Get(k Key) (Item, error)

	// Scan calls fn for the items of r in key order (or reverse), until fn returns false or r.Limit is reached.
	Scan(r Range, fn func(Item) bool) error

	// Log returns entries of a log with Seq > after, oldest first, at most limit (0 means 1000). When the entry right after the
	// cursor was trimmed the error is ErrTrimmed, beside the entries that are left after it.
	Log(log Key, after uint64, limit int) ([]Entry, error)

	// LogHead returns the highest sequence number of a log, 0 for an empty one.
	LogHead(log Key) (uint64, error)

	// ChainHead returns the hash of the last chained entry of a log, also after it was trimmed; the zero Hash when there was none.
	ChainHead(log Key) (Hash, error)
}

// Item is a stored value with the version of the change that wrote it.
type Item struct {
	Key     Key
	Value   []byte
	Version uint64
}

// Range selects the items strictly below Prefix (the item at Prefix itself is not part of it).
type Range struct {
	Prefix Key
	// After, when not empty, is a key below Prefix: only later items (earlier ones when Reverse) are visited.
	After Key
	// Limit is the most items visited; 0 means no limit.
	Limit   int
	Reverse bool
	// Children visits only keys that have exactly one element more than Prefix, and skips what lies below them
	// without reading it: the runs of a tenant without their calls.
	Children bool
}

// Bounds returns the half-open interval [lo, hi) of key positions that the range covers; an error when After is not below
// Prefix. Engines use it, so that all cut at the same places.
func (r Range) Bounds() (lo, hi Key, err error) {
	lo, hi = r.Prefix+"\x00", r.Prefix.End() // 0x00 sorts before the tag of any element
	if r.After == "" {
		return lo, hi, nil
	}
	if r.After < lo || r.After >= hi {
		return "", "", fmt.Errorf("range after %q does not lie below %q", r.After, r.Prefix)
	}
	if r.Reverse {
		return lo, r.After, nil
	}
	return r.After + "\x00", hi, nil // 0x00 again: whatever lies below After is later than it
}

// Change is everything that one step writes. Build it with its methods or as a literal. Preconditions are checked against
// what was there before it; then deletes apply, then puts, so that moving an index key onto itself keeps it; a later
// put of the same key wins. A change without writes only checks, and its receipt is zero.
type Change struct {
	If      []Precondition
	Puts    []Put
	Deletes []Key // index keys only: state is never deleted (Badger has resurrected deleted keys)
	Appends []Append
}

// Precondition holds when the item at Key has Version; Version 0 means that there is none.
type Precondition struct {
	Key     Key
	Version uint64
}

// Put writes Value at Key.
type Put struct {
	Key   Key
	Value []byte
}

// Append adds one entry to a named log. The store assigns the next dense sequence number, in commit order; of a chained entry also
// its hash, which covers the hash of the chained entry before it (see [ChainHash]).
type Append struct {
	Log     Key
	Data    []byte
	Chained bool
}

// Entry is one entry of a log; Seq counts from 1 without gaps. Prev and Hash are zero in an entry that is not chained, and Prev
// in the first that is.
type Entry struct {
	Seq  uint64
	Data []byte
	Prev Hash
	Hash Hash
}

// Receipt tells what a commit assigned: the version of every put, and a sequence number for each append, in order.
type Receipt struct {
	Version uint64
	Seqs    []uint64
}

const (
	// MaxChange is the largest change in bytes (keys, values and log entries) that every engine accepts. Larger bodies
	// are blobs.
	MaxChange = 4 << 20
	// MaxValue is the largest single value or log entry: what Badger keeps in its tree. Larger ones go to its value
	// log, which has lost values after power failures and swallows a failed sync.
	MaxValue = 1<<20 - 1<<10
	// MaxKey is the longest key in bytes.
	MaxKey = 16 << 10
	// MaxWrites is the most puts, deletes and appends in one change.
	MaxWrites = 10_000
)

// Require adds a precondition.
func (c *Change) Require(k Key, version uint64) { c.If = append(c.If, Precondition{k, version}) }

// Put adds a write.
func (c *Change) Put(k Key, value []byte) { c.Puts = append(c.Puts, Put{k, value}) }

// Delete adds the removal of an index key.
func (c *Change) Delete(k Key) { c.Deletes = append(c.Deletes, k) }

// Append adds a log entry.
func (c *Change) Append(log Key, data []byte) {
	c.Appends = append(c.Appends, Append{Log: log, Data: data})
}

// Chain adds a chained log entry.
func (c *Change) Chain(log Key, data []byte) {
	c.Appends = append(c.Appends, Append{Log: log, Data: data, Chained: true})
}

// Empty reports whether the change writes nothing.
func (c *Change) Empty() bool { return len(c.Puts)+len(c.Deletes)+len(c.Appends) == 0 }

// Check returns ErrTooLarge when the change, or a value or key in it, is larger than every engine accepts.
// Engines call it before they look at anything else.
func (c *Change) Check() error {
	if n := c.Size(); n > MaxChange {
		return fmt.Errorf("%w: %d bytes, at most %d: store large bodies as blobs", ErrTooLarge, n, MaxChange)
	}
	if n := len(c.Puts) + len(c.Deletes) + len(c.Appends); n > MaxWrites {
		return fmt.Errorf("%w: %d writes, at most %d", ErrTooLarge, n, MaxWrites)
	}
	check := func(k Key, v []byte) error {
		if len(k) > MaxKey {
			return fmt.Errorf("%w: a key of %d bytes, at most %d", ErrTooLarge, len(k), MaxKey)
		}
		if len(v) > MaxValue {
			return fmt.Errorf("%w: a value of %d bytes, at most %d: store it as a blob", ErrTooLarge, len(v), MaxValue)
		}
		return nil
	}
	for _, p := range c.If {
		if err := check(p.Key, nil); err != nil {
			return err
		}
	}
	for _, d := range c.Deletes {
		if err := check(d, nil); err != nil {
			return err
		}
	}
	for _, p := range c.Puts {
		if err := check(p.Key, p.Value); err != nil {
			return err
		}
	}
	for _, a := range c.Appends {
		if err := check(a.Log, a.Data); err != nil {
			return err
		}
	}
	return nil
}

// Size is the number of bytes that count against MaxChange.
func (c *Change) Size() int {
	n := 0
	for _, p := range c.Puts {
		n += len(p.Key) + len(p.Value)
	}
	for _, d := range c.Deletes {
		n += len(d)
	}
	for _, a := range c.Appends {
		n += len(a.Log) + len(a.Data)
	}
	return n
}
