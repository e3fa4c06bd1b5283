package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pawlhost/pawl/store"
)

// tally counts the runs that have not ended, by state, and the pending approvals, by tool. It is read from the indexes once, in
// the background after the start, and follows every commit of this process from then on: a scrape reads no store.
//
// The first count reads one view while the host works. So that each commit is either in that view or followed, and never both,
// begin is held for reading around a commit and its add, and for writing at the moment when the view is opened.
type tally struct {
	begin              sync.RWMutex
	mu                 sync.Mutex
	following, counted bool
	states             map[store.RunState]int64
	pending            map[string]int64
}

// unended are the states that a run can leave.
var unended = []store.RunState{
	store.RunQueued, store.RunRunning, store.RunAwaitingApproval, store.RunAwaitingInput, store.RunAwaitingEvent, store.RunAwaitingPlanner,
}

// add follows a committed step.
func (t *tally) add(s *step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.following {
		return // the view that is still to be opened will show it
	}
	if !s.new {
		t.states[s.was.State]--
	}
	t.states[s.r.State]++
	for _, a := range s.opened {
		t.pending[a.Tool]++
	}
	for _, a := range s.settled {
		t.pending[a.Tool]--
	}
}

func (t *tally) follow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.following, t.counted = true, false
	t.states, t.pending = map[store.RunState]int64{}, map[string]int64{}
}

// count reads the indexes. Runs that are on their way or wait for their client are few enough to look at each.
func (h *Host) count(ctx context.Context) error {
	h.tally.begin.Lock()
	open := sync.OnceFunc(h.tally.begin.Unlock)
	defer open()
	found := tally{states: map[store.RunState]int64{}, pending: map[string]int64{}}
	err := h.store.View(ctx, func(rd store.Reader) error {
		h.tally.follow()
		open()
		var err error
		each := func(prefix store.Key, fn func(elems []any, value []byte) error) {
			if err != nil {
				return
			}
			serr := rd.Scan(store.Range{Prefix: prefix}, func(it store.Item) bool {
				var elems []any
				if elems, err = it.Key.Elems(); err == nil {
					err = fn(elems, it.Value)
				}
				if err == nil {
					err = ctx.Err()
				}
				return err == nil
			})
			err = errors.Join(err, serr)
		}
		in := func(states ...store.RunState) func([]any, []byte) error {
			return func(elems []any, _ []byte) error {
				head, err := readHead(rd, elems[1].(string), elems[2].(string))
				if err == nil && slices.Contains(states, head.State) {
					found.states[head.State]++
				}
				return ignoreAbsent(err)
			}
		}
		each(store.K("live"), in(store.RunQueued, store.RunRunning))
		each(store.K("idle"), in(store.RunAwaitingPlanner))
		each(store.K("due"), func(elems []any, value []byte) error {
			if len(elems) != 6 || elems[2] != duePause {
				return nil
			}
			if len(value) > 0 {
				found.waiting(value)
				return nil
			}
			return ignoreAbsent(found.paused(rd, elems[3].(string), elems[4].(string), elems[5].(string)))
		})
		return err
	})
	if err != nil {
		return err
	}
	t := &h.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	for s, n := range found.states {
		t.states[s] += n
	}
	for tool, n := range found.pending {
		t.pending[tool] += n
	}
	t.counted = true
	return nil
}

// waits is what the index of due pauses says of a run's open one, so that a million of them can be counted without reading their
// records: the state, and the tool of each pending approval, with a zero byte before it.
func (r *run) waits() []byte {
	b := []byte(r.State)
	for _, a := range r.approvals {
		if a.State == store.ApprovalPending {
			b = append(append(b, 0), a.Tool...)
		}
	}
	return b
}

// waiting counts what waits has written.
func (t *tally) waiting(value []byte) {
	state, tools, _ := strings.Cut(string(value), "\x00")
	t.states[store.RunState(state)]++
	for tool := range strings.SplitSeq(tools, "\x00") {
		if tool != "" {
			t.pending[tool]++
		}
	}
}

// paused counts a run with its pause, if that is the one that is open: for entries that an older version wrote.
func (t *tally) paused(rd store.Reader, tenant, id, pauseID string) error {
	head, err := readHead(rd, tenant, id)
	if err != nil || !head.State.Paused() || head.PauseID != pauseID {
		return err
	}
	t.states[head.State]++
	r := &run{Run: head, key: runKey(tenant, id)}
	if err := r.readPause(rd); err != nil {
		return fmt.Errorf("run %s: %w", id, err)
	}
	for _, a := range r.approvals {
		if a.State == store.ApprovalPending {
			t.pending[a.Tool]++
		}
	}
	return nil
}

// ignoreAbsent: an index entry may outlive what it names.
func ignoreAbsent(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// gauges are the counts as a metric shows them: of every state and every tool, also at zero.
func (h *Host) gauges() (pending, byState map[string]int64, ok bool) {
	t := &h.tally
	t.mu.Lock()
	states, tools, counted := maps.Clone(t.states), maps.Clone(t.pending), t.counted
	t.mu.Unlock()
	if !counted {
		return nil, nil, false
	}
	pending, byState = map[string]int64{}, map[string]int64{}
	for _, s := range unended {
		byState[string(s)] = max(0, states[s])
	}
	for _, t := range h.plugins.Tools() {
		pending[t.Name] = 0
	}
	for tool, n := range tools {
		pending[h.toolLabel(tool)] += n
	}
	return pending, byState, true
}

// toolLabel is a tool's name where there are to be few of them: of an installed one, else "other".
func (h *Host) toolLabel(name string) string {
	if t, ok := h.plugins.Lookup(name); ok {
		return t.Name
	}
	return "other"
}
