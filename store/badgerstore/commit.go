package badgerstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"

	"github.com/pawlhost/pawl/store"
)

// change is a store.Change in Badger's keys; blobs and sweeps use it too.
type change struct {
	ifs     []condition
	deletes []string
	puts    []put
	appends []store.Append
}

type condition struct {
	key     string
	version uint64
}

type put struct {
	key   string
	value []byte // without its version
}

// overhead is what a write costs at most besides its key and bytes: version or number, and Badger's own fields.
const overhead = binary.MaxVarintLen64 + 24

// cost measures a change as Badger will, rounded up.
func (c *change) cost() (size, count int64) {
	for _, d := range c.deletes {
		size += int64(len(d)) + overhead
	}
	for _, p := range c.puts {
		size += int64(len(p.key)+len(p.value)) + overhead
	}
	for _, a := range c.appends {
		size += int64(2*len(a.Log)+len(a.Data)) + 2*overhead // the entry and the head
		if a.Chained {
			size += int64(chainLinks + hashSize)
		}
	}
	return size, int64(len(c.deletes) + len(c.puts) + 2*len(c.appends))
}

// request is a change that waits for its outcome.
type request struct {
	change
	size, count int64
	taken       atomic.Bool // by the committer, or by the caller that gave up; the first wins
	done        chan struct{}
	receipt     store.Receipt
	err         error
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, c *store.Change) (store.Receipt, error) {
	if err := c.Check(); err != nil {
		return store.Receipt{}, err
	}
	raw := change{appends: c.Appends}
	for _, p := range c.If {
		raw.ifs = append(raw.ifs, condition{spaceItem + string(p.Key), p.Version})
	}
	for _, d := range c.Deletes {
		raw.deletes = append(raw.deletes, spaceItem+string(d))
	}
	for _, p := range c.Puts {
		raw.puts = append(raw.puts, put{spaceItem + string(p.Key), p.Value})
	}
	return s.submit(ctx, raw)
}

// submit queues a change and waits. The context can take it back until the committer has taken it.
func (s *Store) submit(ctx context.Context, c change) (store.Receipt, error) {
	r := &request{change: c, done: make(chan struct{})}
	r.size, r.count = c.cost()
	if r.size > s.maxSize/2 || r.count > s.maxCount/2 {
		return store.Receipt{}, fmt.Errorf("%w: %d bytes in %d writes", store.ErrTooLarge, r.size, r.count)
	}
	if err := ctx.Err(); err != nil {
		return store.Receipt{}, err
	}
	s.mu.Lock()
	if s.ended != nil {
		defer s.mu.Unlock()
		return store.Receipt{}, s.ended
	}
	s.queue = append(s.queue, r)
	s.cond.Broadcast()
	s.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return store.Receipt{}, ctx.Err()
		}
		<-r.done
	}
	return r.receipt, r.err
}

// state is what only the committer touches.
type state struct {
	version uint64 // last one given out
	format  uint64 // of the directory
	heads   headCache

	debt, debtAge uint64 // bytes that Badger owes the disk, and bytes written since that was looked up
}

func (s *Store) commitLoop() {
	for {
		batch := s.next()
		if batch == nil {
			return
		}
		err := s.fold(batch)
		if err != nil {
			s.fail(err, batch)
		}
		for _, r := range batch {
			close(r.done)
		}
		runtime.Gosched() // whom this answers may be back with the next change before the fold closes
		if err != nil && s.opts.OnFatal != nil {
			s.opts.OnFatal(err)
		}
	}
}

// next waits for changes and takes as many, in order, as fit into one transaction. It returns nil when the store has ended
// and nothing waits any more.
func (s *Store) next() []*request {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var batch []*request
		var size, count int64
		rest := s.queue
		for len(rest) > 0 {
			r := rest[0]
			if len(batch) > 0 && (s.opts.oneByOne || size+r.size > s.maxSize || count+r.count > s.maxCount) {
				break
			}
			rest = rest[1:]
			if r.taken.CompareAndSwap(false, true) {
				batch, size, count = append(batch, r), size+r.size, count+r.count
			}
		}
		s.queue = rest
		switch {
		case len(batch) > 0:
			return batch
		case s.ended != nil:
			return nil
		}
		s.queue = nil
		s.cond.Wait()
	}
}

// fail ends the store: Badger may show what was not synced, and a second attempt could build on it.
func (s *Store) fail(err error, batch []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
	s.ended = fmt.Errorf("%w: a commit failed, restart pawl: %w", store.ErrClosed, err)
	for _, r := range append(batch, s.queue...) {
		r.receipt, r.err = store.Receipt{}, s.ended
	}
	for _, r := range s.queue {
		if r.taken.CompareAndSwap(false, true) {
			close(r.done)
		}
	}
	s.queue = nil
	s.feed.Close()
}

// fold writes a batch in one transaction and fills in the outcomes. First every change is planned against the view and
// what the changes before it in the same fold will write; only then the first key is set. An error means that the commit
// itself has failed; the outcome is then unknown.
func (s *Store) fold(batch []*request) error {
	p := plan{txn: s.view.txn, state: &s.committer, version: s.committer.version, writes: map[string]write{},
		heads: map[store.Key]head{}}
	full := s.full(batch)
	for _, r := range batch {
		if r.err = full; r.err == nil {
			r.err = p.add(r)
		}
	}
	if len(p.writes) == 0 {
		return nil
	}
	txn := s.db.NewTransaction(true)
	defer txn.Discard()
	for k, w := range p.writes {
		var err error
		switch {
		case w.deleted:
			err = txn.Delete([]byte(k))
		case w.chained:
			err = txn.SetEntry(badger.NewEntry([]byte(k), w.value).WithMeta(metaChained))
		default:
			err = txn.Set([]byte(k), w.value)
		}
		if err != nil {
			return err
		}
	}
	if err := txn.Set([]byte(keyVersion), number(p.version)); err != nil {
		return err
	}
	written := max(s.committer.format, p.format)
	if written > s.committer.format {
		if err := txn.Set([]byte(keyFormat), number(written)); err != nil {
			return err
		}
	}
	if err := s.opts.commit(txn); err != nil {
		return err
	}
	s.committer.version, s.committer.format = p.version, written
	for log, h := range p.heads {
		s.committer.heads.put(log, h)
	}
	s.install()
	for _, a := range p.appended {
		s.feed.Publish(a.log, a.entry)
	}
	return nil
}

// plan is a fold in the making.
type plan struct {
	txn      *badger.Txn // the view
	state    *state
	version  uint64
	writes   map[string]write
	format   uint64 // that the writes need
	heads    map[store.Key]head
	appended []appended
}

type write struct {
	value   []byte
	version uint64 // 0 for what has none
	deleted bool
	chained bool // an entry with its links
}

// head is how far a log is: its last number, and the hash of its last chained entry.
type head struct {
	seq  uint64
	hash store.Hash
}

type appended struct {
	log   store.Key
	entry store.Entry
}

// add checks one change and plans its writes. An error leaves no trace: everything is read before anything is planned.
func (p *plan) add(r *request) error {
	for _, c := range r.ifs {
		v, err := p.versionOf(c.key)
		if err != nil {
			return err
		}
		if v != c.version {
			return store.ErrConflict
		}
	}
	for _, a := range r.appends {
		if err := p.loadHead(a.Log, a.Chained); err != nil {
			return err
		}
	}
	if r.count == 0 {
		return nil
	}
	p.version++
	r.receipt.Version = p.version
	for _, k := range r.deletes {
		p.writes[k] = write{deleted: true}
		if log, ok := strings.CutPrefix(k, spaceHead); ok {
			p.heads[store.Key(log)] = head{}
		}
	}
	for _, w := range r.puts {
		value := binary.AppendUvarint(make([]byte, 0, len(w.value)+5), p.version)
		p.writes[w.key] = write{value: append(value, w.value...), version: p.version}
	}
	for _, a := range r.appends {
		h := p.heads[a.Log]
		h.seq++
		e := store.Entry{Seq: h.seq, Data: a.Data}
		w := write{value: a.Data}
		if a.Chained {
			e.Prev, e.Hash = h.hash, store.ChainHash(a.Log, h.seq, h.hash, a.Data)
			h.hash = e.Hash
			w = write{value: encodeLinks(e), chained: true}
			p.format = formatChains
		}
		p.heads[a.Log] = h
		p.writes[entryKey(a.Log, h.seq)] = w
		p.writes[spaceHead+string(a.Log)] = write{value: encodeHead(h)}
		p.appended = append(p.appended, appended{a.Log, e})
		r.receipt.Seqs = append(r.receipt.Seqs, h.seq)
	}
	return nil
}

func (p *plan) versionOf(key string) (uint64, error) {
	if w, ok := p.writes[key]; ok {
		return w.version, nil
	}
	_, v, err := get(p.txn, key)
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	return v, err
}

// loadHead makes p.heads know the last number of a log. Of a chained log it looks behind the head, too, when it reads it from the
// database: the first time, and the log is then this process's alone.
func (p *plan) loadHead(log store.Key, chained bool) error {
	if _, ok := p.heads[log]; ok {
		return nil
	}
	h, ok := p.state.heads.get(log)
	if !ok {
		var err error
		if h, err = readHead(p.txn, log); err == nil && chained {
			err = endsAt(p.txn, log, h)
		}
		if err != nil {
			return err
		}
	}
	p.heads[log] = h
	return nil
}

// headCache keeps the heads of recently written logs, in two generations of bounded size.
type headCache struct{ young, old map[store.Key]head }

const headGeneration = 8192

func (c *headCache) get(log store.Key) (head, bool) {
	if h, ok := c.young[log]; ok {
		return h, true
	}
	h, ok := c.old[log]
	return h, ok
}

func (c *headCache) put(log store.Key, h head) {
	if c.young == nil || len(c.young) >= headGeneration {
		c.young, c.old = make(map[store.Key]head), c.young
	}
	c.young[log] = h
}
