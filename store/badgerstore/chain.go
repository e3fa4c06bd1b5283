package badgerstore

import (
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"github.com/pawlhost/pawl/store"
)

// A chained entry lies in Badger as its two hashes and its data, and Badger's own byte beside the value says so: what was written
// before logs could be chained needs no marker and is read as it is.
const (
	metaChained byte = 1

	hashSize   = len(store.Hash{})
	chainLinks = 2 * len(store.Hash{})
)

func encodeLinks(e store.Entry) []byte {
	b := make([]byte, 0, chainLinks+len(e.Data))
	b = append(b, e.Prev[:]...)
	b = append(b, e.Hash[:]...)
	return append(b, e.Data...)
}

// decodeEntry reads an entry; its number is in its key. One that is too short for its links has none: whoever follows the chain sees
// that, and the entries around it can be read on.
func decodeEntry(it *badger.Item) (store.Entry, error) {
	raw, err := it.ValueCopy(nil)
	if err != nil || it.UserMeta() != metaChained || len(raw) < chainLinks {
		return store.Entry{Data: raw}, err
	}
	e := store.Entry{Data: raw[chainLinks:]}
	copy(e.Prev[:], raw)
	copy(e.Hash[:], raw[hashSize:])
	return e, nil
}

func encodeHead(h head) []byte {
	b := number(h.seq)
	if !h.hash.IsZero() {
		b = append(b, h.hash[:]...)
	}
	return b
}

// readHead reads how far a log is; the zero head when there is none.
func readHead(txn *badger.Txn, log store.Key) (h head, err error) {
	rest, seq, err := get(txn, spaceHead+string(log))
	if errors.Is(err, store.ErrNotFound) {
		return head{}, nil
	}
	if err == nil && len(rest) != 0 && len(rest) != hashSize {
		err = fmt.Errorf("%w: head of a log", store.ErrCorrupt)
	}
	copy(h.hash[:], rest)
	h.seq = seq
	return h, err
}

// endsAt returns ErrCorrupt when a log has entries behind its head. No commit leaves any: somebody else took the head away, set it back,
// or put them there, and the next append would go over what was written.
func endsAt(txn *badger.Txn, log store.Key, h head) error {
	it := iterate(txn, entryPrefix(log), false)
	defer it.Close()
	if it.Seek([]byte(entryKey(log, h.seq+1))); it.Valid() {
		return fmt.Errorf("%w: a log has entries behind entry %d, where its head says that it ends", store.ErrCorrupt, h.seq)
	}
	return nil
}
