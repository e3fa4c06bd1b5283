package host

import (
	"context"
	"sync"
)

// queue is the runnable queue: in memory, each run at most once in it and at most once with a driver. It is rebuilt from the index
// of live runs when the host starts. Tenants take turns, first in first out within each, and none has all workers: a tenant
// with a thousand long runs keeps nobody else's from beginning.
type queue struct {
	mu   sync.Mutex
	wake chan struct{} // holds a token while there may be work
	// waiting holds the runs of each tenant that has any; turns has the tenants in the order of their turns.
	waiting map[string][]ref
	turns   []string
	queued  map[runID]bool
	// driving holds the runs that a worker has, with the means to interrupt their guests; again notes that the run was
	// pushed meanwhile.
	driving map[runID]*driver
	// driven counts the workers of each tenant; perTenant is the most.
	driven    map[string]int
	perTenant int
	// parked are runs that could not go on because the store had no room.
	parked []ref
}

type runID struct{ tenant, id string }

type driver struct {
	cancel context.CancelFunc
	again  bool
}

func newQueue(workers int) *queue {
	return &queue{
		wake: make(chan struct{}, 1), waiting: map[string][]ref{}, queued: map[runID]bool{}, driving: map[runID]*driver{},
		driven: map[string]int{}, perTenant: max(1, workers-(workers+3)/4),
	}
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
	if q.queued[k] {
		return
	}
	q.queued[k] = true
	if len(q.waiting[r.tenant]) == 0 {
		q.turns = append(q.turns, r.tenant)
	}
	q.waiting[r.tenant] = append(q.waiting[r.tenant], r)
	q.signal()
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
	r, ok := q.take()
	if !ok {
		return ref{}, nil, false
	}
	if len(q.turns) > 0 {
		q.signal() // another worker may take the next one
	}
	k := runID{r.tenant, r.id}
	delete(q.queued, k)
	q.driven[r.tenant]++
	rctx, cancel := context.WithCancel(ctx)
	q.driving[k] = &driver{cancel: cancel}
	return r, rctx, true
}

// take finds the tenant whose turn it is, among those that may have another worker.
func (q *queue) take() (ref, bool) {
	for range q.turns {
		tenant := q.turns[0]
		q.turns = q.turns[1:]
		if q.driven[tenant] >= q.perTenant {
			q.turns = append(q.turns, tenant)
			continue
		}
		runs := q.waiting[tenant]
		r := runs[0]
		if runs[0] = (ref{}); len(runs) > 1 {
			q.waiting[tenant] = runs[1:]
			q.turns = append(q.turns, tenant)
		} else {
			delete(q.waiting, tenant)
		}
		return r, true
	}
	return ref{}, false
}

// done releases a run.
func (q *queue) done(r ref) {
	q.mu.Lock()
	k := runID{r.tenant, r.id}
	d := q.driving[k]
	delete(q.driving, k)
	if q.driven[r.tenant]--; q.driven[r.tenant] == 0 {
		delete(q.driven, r.tenant)
	}
	if len(q.turns) > 0 {
		q.signal() // this tenant may have another worker now
	}
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
	return len(q.queued), len(q.driving)
}
