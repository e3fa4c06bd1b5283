package badgerstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/pawlhost/pawl/store"
)

// A blob is one change: a head (when it was last put, how long it is) and the bytes in pieces that stay in Badger's tree.
// It is durable, or absent, as a whole.
const pieceSize = 512 << 10

func blobKey(tenant string, d store.Digest, piece ...any) string {
	return spaceBlob + string(store.K(tenant, string(d)).With(piece...))
}

// PutBlob implements store.Store.
func (s *Store) PutBlob(ctx context.Context, tenant string, data []byte, now time.Time) (store.Digest, error) {
	if len(data) > store.MaxChange {
		return "", fmt.Errorf("%w: a blob of %d bytes, at most %d", store.ErrTooLarge, len(data), store.MaxChange)
	}
	d := store.DigestOf(data)
	head := blobKey(tenant, d)
	for {
		put0, version, err := s.blobHead(ctx, head)
		switch {
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return "", err
		case err == nil && !now.After(put0.time):
			return d, nil
		}
		// The condition races SweepBlobs: whoever comes second looks again.
		c := change{
			ifs:  []condition{{head, version}},
			puts: []put{{head, blobHead{now, len(data)}.encode()}},
		}
		if version == 0 {
			for i, rest := 0, data; len(rest) > 0; i++ {
				n := min(pieceSize, len(rest))
				c.puts = append(c.puts, put{blobKey(tenant, d, i), rest[:n]})
				rest = rest[n:]
			}
		}
		if _, err = s.submit(ctx, c); !errors.Is(err, store.ErrConflict) {
			return d, err
		}
	}
}

// Blob implements store.Store.
func (s *Store) Blob(ctx context.Context, tenant string, d store.Digest) ([]byte, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if !d.Valid() {
		return nil, store.ErrNotFound
	}
	var data []byte
	err := s.View(ctx, func(r store.Reader) error {
		txn := r.(reader).txn
		raw, _, err := get(txn, blobKey(tenant, d))
		if err != nil {
			return err
		}
		head, err := decodeBlobHead(raw)
		if err != nil {
			return err
		}
		data = make([]byte, 0, head.size)
		for i := 0; len(data) < head.size; i++ {
			piece, _, err := get(txn, blobKey(tenant, d, i))
			if err != nil {
				return fmt.Errorf("%w: blob %s: piece %d: %w", store.ErrCorrupt, d, i, err)
			}
			data = append(data, piece...)
		}
		return nil
	})
	if err == nil && store.DigestOf(data) != d {
		err = fmt.Errorf("%w: blob %s: its bytes have another digest", store.ErrCorrupt, d)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// SweepBlobs implements store.Store.
func (s *Store) SweepBlobs(
	ctx context.Context, tenant string, before time.Time, used func(store.Digest) bool,
) (int, error) {
	type old struct {
		digest  store.Digest
		version uint64
		pieces  int
	}
	var found []old
	err := s.View(ctx, func(r store.Reader) error {
		prefix := store.K(tenant)
		it := iterate(r.(reader).txn, spaceBlob+string(prefix), false)
		defer it.Close()
		for it.Rewind(); it.Valid(); {
			k := store.Key(it.Item().Key()[len(spaceBlob):])
			if k >= prefix.End() {
				return nil
			}
			if child := k.Child(prefix); child != k { // a piece
				it.Seek([]byte(spaceBlob + string(child.End())))
				continue
			}
			raw, version, err := decode(it.Item())
			if err != nil {
				return err
			}
			head, err := decodeBlobHead(raw)
			if err != nil {
				return err
			}
			if head.time.Before(before) {
				found = append(found, old{store.Digest(k.Last()), version, (head.size + pieceSize - 1) / pieceSize})
			}
			it.Next()
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, b := range found {
		if used(b.digest) {
			continue
		}
		head := blobKey(tenant, b.digest)
		c := change{ifs: []condition{{head, b.version}}, deletes: []string{head}}
		for i := range b.pieces {
			c.deletes = append(c.deletes, blobKey(tenant, b.digest, i))
		}
		switch _, err := s.submit(ctx, c); {
		case err == nil:
			n++
		case !errors.Is(err, store.ErrConflict): // a conflict: put again meanwhile, so it stays
			return n, err
		}
	}
	return n, nil
}

type blobHead struct {
	time time.Time
	size int
}

func (h blobHead) encode() []byte {
	return binary.AppendUvarint(binary.AppendVarint(nil, h.time.UnixNano()), uint64(h.size))
}

func decodeBlobHead(raw []byte) (blobHead, error) {
	nanos, n := binary.Varint(raw)
	size, m := binary.Uvarint(raw[max(n, 0):])
	if n <= 0 || m <= 0 || size > store.MaxChange {
		return blobHead{}, fmt.Errorf("%w: blob head", store.ErrCorrupt)
	}
	return blobHead{time.Unix(0, nanos), int(size)}, nil
}

func (s *Store) blobHead(ctx context.Context, key string) (h blobHead, version uint64, err error) {
	err = s.View(ctx, func(r store.Reader) error {
		raw, v, err := get(r.(reader).txn, key)
		if err != nil {
			return err
		}
		version = v
		h, err = decodeBlobHead(raw)
		return err
	})
	return h, version, err
}
