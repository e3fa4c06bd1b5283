package host

import (
	"context"
	"sync"
)

// queue is the runnable queue: in memory, first in first out, each run at most once in it and at most once with a driver. It
// is rebuilt from the index of live runs when the host starts.
type queue struct {
	mu     sync.Mutex
	wake   chan struct{} // holds a token while there may be work
	items  []ref
	queued map[runID]bool
	// driving holds the runs that a worker has, with the means to interrupt their guests; again notes that the run was
	// pushed meanwhile.
	driving map[runID]*driver
	// parked are runs that could not go on because the store had no room.
	parked []ref
}

type runID struct{ tenant, id string }

type driver struct {
	cancel context.CancelFunc
	again  bool
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), queued: map[runID]bool{}, driving: map[runID]*driver{}}
}

// push adds a run. A run that is being driven is driven again afterwards, so that no wake-up is lost between a driver's last
// look and its leaving.
func (q *queue) push(r ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := runID{r.tenant, r.id}
	if d := q.driving[k]; d != nil {
		d.again = true
		return
	}
	if !q.queued[k] {
		q.queued[k] = true
		q.items = append(q.items, r)
		q.signal()
	}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop takes the next run, or reports false. The caller must call done.
func (q *queue) pop(ctx context.Context) (ref, context.Context, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return ref{}, nil, false
	}
	r := q.items[0]
	q.items[0] = ref{}
	q.items = q.items[1:]
	if len(q.items) > 0 {
		q.signal()
	}
	k := runID{r.tenant, r.id}
	delete(q.queued, k)
	rctx, cancel := context.WithCancel(ctx)
	q.driving[k] = &driver{cancel: cancel}
	return r, rctx, true
}

// done releases a run.
func (q *queue) done(r ref) {
	q.mu.Lock()
	k := runID{r.tenant, r.id}
	d := q.driving[k]
	delete(q.driving, k)
	q.mu.Unlock()
	d.cancel()
	if d.again {
		q.push(ref{tenant: r.tenant, id: r.id})
	}
}

// interrupt ends the guests of a run that a worker has.
func (q *queue) interrupt(tenant, id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d := q.driving[runID{tenant, id}]; d != nil {
		d.cancel()
	}
}

// park keeps a run aside until the next sweep.
func (q *queue) park(r ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.parked = append(q.parked, ref{tenant: r.tenant, id: r.id})
}

// unpark queues what was parked.
func (q *queue) unpark() {
	q.mu.Lock()
	parked := q.parked
	q.parked = nil
	q.mu.Unlock()
	for _, r := range parked {
		q.push(r)
	}
}

// depth is the number of runs that wait for a worker, and of those that have one.
func (q *queue) depth() (waiting, driven int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items), len(q.driving)
}
