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

// decodeEntry reads an entry; its number is in its key.
func decodeEntry(it *badger.Item) (store.Entry, error) {
	raw, err := it.ValueCopy(nil)
	if err != nil || it.UserMeta() != metaChained {
		return store.Entry{Data: raw}, err
	}
	if len(raw) < chainLinks {
		return store.Entry{}, fmt.Errorf("%w: links of a log entry", store.ErrCorrupt)
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
