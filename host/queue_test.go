package host

import (
	"context"
	"fmt"
	"testing"
)

// Tenants take turns, and none has all workers.
func TestQueue_TenantsTakeTurns(t *testing.T) {
	t.Parallel()
	q := newQueue(8)
	for i := range 20 {
		q.push(ref{tenant: "greedy", id: fmt.Sprint(i)})
		q.push(ref{tenant: "greedy", id: fmt.Sprint(i)}) // once is enough
	}
	q.push(ref{tenant: "other", id: "a"})
	var got []ref
	for {
		r, _, ok := q.pop(context.Background())
		if !ok {
			break
		}
		got = append(got, r)
	}
	// The other tenant's run comes second, and two of eight workers stay free for whoever comes.
	if len(got) != 7 || got[1].tenant != "other" || got[6].id != "5" {
		t.Fatalf("taken: %v", got)
	}
	q.push(ref{tenant: "third", id: "b"})
	if r, _, ok := q.pop(context.Background()); !ok || r.tenant != "third" {
		t.Errorf("the third tenant waits: %v %v", r, ok)
	}
	q.push(got[0]) // while it is driven: once more afterwards
	for _, r := range got {
		q.done(r)
	}
	seen := map[string]int{}
	for {
		r, _, ok := q.pop(context.Background())
		if !ok {
			break
		}
		seen[r.id]++
		q.done(r)
	}
	if len(seen) != 15 || seen["0"] != 1 || seen["19"] != 1 { // 14 that waited, and the first again
		t.Errorf("the rest: %v", seen)
	}
	if w, d := q.depth(); w != 0 || d != 1 || len(q.turns) != 0 || len(q.waiting) != 0 {
		t.Errorf("left: %d waiting, %d driven, turns %v", w, d, q.turns)
	}
}
