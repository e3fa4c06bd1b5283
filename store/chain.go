package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// Hash ties an entry of a chained log to the one before it. The zero Hash means that there is none.
type Hash [sha256.Size]byte

const hashPrefix = "sha256:"

func (h Hash) String() string { return hashPrefix + hex.EncodeToString(h[:]) }

// IsZero reports whether there is no hash.
func (h Hash) IsZero() bool { return h == Hash{} }

// ParseHash reads what String writes.
func ParseHash(s string) (h Hash, err error) {
	text, ok := strings.CutPrefix(s, hashPrefix)
	if n, derr := hex.Decode(h[:], []byte(text[:min(len(text), 2*len(h))])); !ok || derr != nil || n != len(h) || len(text) != 2*len(h) || text != strings.ToLower(text) {
		return Hash{}, fmt.Errorf("not a hash: write sha256: and 64 small hexadecimal digits")
	}
	return h, nil
}

// chainDomain separates these hashes from every other use of SHA-256, and numbers the encoding.
const chainDomain = "pawl.chain.v1\n"

// ChainHash is the hash of one entry of a chained log: SHA-256 over
//
//	"pawl.chain.v1\n"  length of the log's key, 8 bytes, big-endian  the key
//	sequence number, 8 bytes, big-endian  hash of the chained entry before it, 32 bytes, zero for the first  the data
//
// Every part but the last has a length that is fixed or written before it, so that no two entries have one encoding. The key
// has the tenant in it: an entry cannot be moved to another tenant's log.
func ChainHash(log Key, seq uint64, prev Hash, data []byte) (h Hash) {
	d := sha256.New()
	b := make([]byte, 0, len(chainDomain)+len(log)+16+len(prev))
	b = append(b, chainDomain...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(log)))
	b = append(b, log...)
	b = binary.BigEndian.AppendUint64(b, seq)
	b = append(b, prev[:]...)
	d.Write(b)
	d.Write(data)
	d.Sum(h[:0])
	return h
}

// Chain follows a chained log from entry to entry and tells where it is not what was written. It knows only what it is shown: that
// the end is missing, or that everything was written anew, shows against a head that was kept elsewhere (see [Chain.At]).
type Chain struct {
	Log Key
	// Segment accepts any entry as the first one. Else the first is number 1.
	Segment bool
	// Kept are numbers whose hash is asked for afterwards.
	Kept []uint64

	first, last, begun uint64
	hash               Hash
	changed            bool // the last entry is not what it was
	at                 map[uint64]Hash
}

// ChainError is one place where a log is not what was written.
type ChainError struct {
	Seq    uint64
	Detail string
}

func (e *ChainError) Error() string { return fmt.Sprintf("row %d %s", e.Seq, e.Detail) }

// Next takes the next entry. After an error the chain goes on from that entry, so that each fault is told once.
func (c *Chain) Next(e Entry) *ChainError {
	if c.first == 0 {
		if c.first = e.Seq; e.Seq > 1 && c.Segment {
			c.last = e.Seq - 1
		}
	}
	if e.Seq <= c.last {
		return &ChainError{e.Seq, fmt.Sprintf("comes after row %d: it was moved, repeated or inserted", c.last)}
	}
	before := c.last
	// Else the one before it was not shown, or is not to be believed.
	known := before+1 == e.Seq && (e.Seq == 1 || before >= c.first) && !c.changed
	prev := c.hash
	c.last, c.changed = e.Seq, false
	if !e.Hash.IsZero() {
		c.hash = e.Hash
	}
	for _, k := range c.Kept {
		if k == e.Seq {
			if c.at == nil {
				c.at = map[uint64]Hash{}
			}
			c.at[k] = e.Hash
		}
	}
	if e.Hash.IsZero() {
		if c.changed = c.begun != 0; c.changed {
			return &ChainError{e.Seq, fmt.Sprintf("has no hash, though the chain begins at row %d: it was inserted, or written by an older pawl", c.begun)}
		}
		if before+1 != e.Seq {
			return missing(before, e.Seq)
		}
		return nil
	}
	if c.begun == 0 {
		c.begun = e.Seq
	}
	switch {
	case ChainHash(c.Log, e.Seq, e.Prev, e.Data) != e.Hash:
		c.changed = true
		return &ChainError{e.Seq, "was changed: what it says is not what was hashed"}
	case before+1 != e.Seq:
		return missing(before, e.Seq)
	case known && e.Prev != prev:
		return &ChainError{e.Seq, fmt.Sprintf("does not follow row %d: one of the two was replaced", before)}
	}
	return nil
}

func missing(before, seq uint64) *ChainError {
	if before+2 == seq {
		return &ChainError{before + 1, "is missing"}
	}
	return &ChainError{before + 1, fmt.Sprintf("and those up to row %d are missing", seq-1)}
}

// First is the number of the first entry seen, 0 before there is one.
func (c *Chain) First() uint64 { return c.first }

// Last is the highest number seen.
func (c *Chain) Last() uint64 { return c.last }

// Begun is the number of the first entry that has a hash, 0 if there is none. Those before it were written before logs of this
// kind were chained.
func (c *Chain) Begun() uint64 { return c.begun }

// Hash is the hash of the last entry that has one.
func (c *Chain) Hash() Hash { return c.hash }

// At compares the chain with a head that was kept elsewhere, the number of which is among Kept: nil if the chain has that entry with
// that hash.
func (c *Chain) At(seq uint64, h Hash) *ChainError {
	switch got, ok := c.at[seq]; {
	case seq > c.last:
		return &ChainError{seq, fmt.Sprintf("is gone: the log ends at row %d, so its end was cut off", c.last)}
	case seq < c.first:
		return &ChainError{seq, fmt.Sprintf("is not among these rows, which begin at row %d: check the whole log", c.first)}
	case !ok:
		return &ChainError{seq, "is missing"}
	case got != h:
		return &ChainError{seq, "has another hash than the head that was kept: it, or a row before it, was written anew"}
	}
	return nil
}
