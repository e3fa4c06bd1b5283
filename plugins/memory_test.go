package plugins

import (
	"bytes"
	"testing"
)

func TestInvariant10_PooledMemoryComesBackCleared(t *testing.T) {
	for round := range 50 {
		m := &linearMemory{limit: 1 << 22}
		b := m.Allocate(0, 0).Reallocate(pageSize)
		fill := func(b []byte, from int) {
			for i := range b {
				if i >= from && b[i] != 0 {
					t.Fatalf("round %d: byte %d is %d", round, i, b[i])
				}
				b[i] = byte(i%251) + 1
			}
		}
		fill(b, 0)
		for _, pages := range []int{2, 3, 7, 20, 64} {
			before := bytes.Clone(b) // what it moves from goes back to the pool
			next := m.Reallocate(uint64(pages) * pageSize)
			if len(next) != pages*pageSize || cap(next) != len(next) || !bytes.Equal(next[:len(b)], before) {
				t.Fatalf("growing to %d pages lost or exposed bytes", pages)
			}
			fill(next, len(b))
			b = next
		}
		if m.Reallocate(1<<22+1) != nil || !m.denied {
			t.Fatal("it grew beyond its limit")
		}
		m.Free() // of the runtime, from another goroutine: must change nothing
		b[0] = 1
		m.release()
		m.release()
	}
}

func TestMemoryBeyondThePoolIsNotKept(t *testing.T) {
	m := &linearMemory{limit: 1 << 32}
	if b := m.Reallocate(1<<maxPooled + pageSize); len(b) != 1<<maxPooled+pageSize || m.box != nil {
		t.Fatal("a large memory was taken from the pool")
	}
	m.release()
}
