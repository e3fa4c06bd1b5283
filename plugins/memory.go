package plugins

import (
	"math/bits"
	"sync"

	"github.com/tetratelabs/wazero/experimental"
)

// A call's linear memory comes from a pool by size class, because making and faulting in fresh memory costs more than
// the whole rest of a small call. What makes that safe:
//   - memory is cleared up to the highest byte the guest ever had before it returns to the pool, and a buffer is
//     only ever handed out cleared, so no byte of one call is visible to the next;
//   - wazero frees an instance's memory as soon as its exit code is set, which a deadline does from another
//     goroutine. So Free does nothing here, and [linearMemory.release] is called by the goroutine of the call when
//     the guest has returned for sure.

const (
	pageSize  = 64 << 10
	minClass  = 16 // 1 page
	maxPooled = 26 // 64 MiB; larger memories are left to the garbage collector
)

var memoryPool [maxPooled + 1]sync.Pool // of *[]byte with len = cap = 1<<class, all zero

func class(size uint64) int { return max(minClass, bits.Len64(size-1)) }

// linearMemory is one instance's memory: [experimental.LinearMemory] with a limit of its own, so that the host can tell
// a guest that ran out of memory from one that crashed.
type linearMemory struct {
	limit  uint64 // bytes
	buf    []byte // len = cap, its size class
	high   uint64 // bytes of buf that the guest has had
	denied bool   // a growth was refused
	box    *[]byte
}

func (m *linearMemory) Allocate(_, _ uint64) experimental.LinearMemory { return m }

// Reallocate grows the memory to size bytes, or returns nil: memory.grow then answers -1.
func (m *linearMemory) Reallocate(size uint64) []byte {
	if size > m.limit {
		m.denied = true
		return nil
	}
	if size == 0 {
		return []byte{}
	}
	if size > uint64(len(m.buf)) {
		old, oldBox, used := m.buf, m.box, m.high
		m.take(size)
		copy(m.buf, old[:used])
		give(old, oldBox, used)
	}
	m.high = max(m.high, size)
	// The capacity ends with the size: nothing behind it is the guest's.
	return m.buf[:size:size]
}

// Free is a no-op, see above.
func (m *linearMemory) Free() {}

func (m *linearMemory) take(size uint64) {
	c := class(size)
	if c > maxPooled {
		m.buf, m.box = make([]byte, size), nil
		return
	}
	if box, ok := memoryPool[c].Get().(*[]byte); ok {
		m.buf, m.box = *box, box
		return
	}
	m.buf = make([]byte, 1<<c)
	box := m.buf
	m.box = &box
}

// release gives the memory back. The guest must have returned.
func (m *linearMemory) release() {
	buf, box, high := m.buf, m.box, m.high
	m.buf, m.box, m.high = nil, nil, 0
	give(buf, box, high)
}

func give(buf []byte, box *[]byte, used uint64) {
	if box == nil {
		return
	}
	clear(buf[:used])
	memoryPool[class(uint64(len(buf)))].Put(box)
}
