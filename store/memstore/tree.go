package memstore

import (
	"hash/maphash"

	"github.com/pawlhost/pawl/store"
)

// tree is a persistent treap: every change makes new nodes along one path, so that a root is a snapshot that nobody can
// disturb, and a View is one pointer. A node's priority is a hash of its key, so the shape depends only on the contents.
type tree[V any] struct{ root *node[V] }

type node[V any] struct {
	key         store.Key
	value       V
	prio        uint64
	left, right *node[V]
}

var seed = maphash.MakeSeed()

func (t tree[V]) get(k store.Key) (v V, ok bool) {
	for n := t.root; n != nil; {
		switch {
		case k < n.key:
			n = n.left
		case k > n.key:
			n = n.right
		default:
			return n.value, true
		}
	}
	return v, false
}

func (t tree[V]) put(k store.Key, v V) tree[V] {
	left, right := t.delete(k).root.split(k)
	return tree[V]{merge(merge(left, &node[V]{key: k, value: v, prio: maphash.String(seed, string(k))}), right)}
}

func (t tree[V]) delete(k store.Key) tree[V] {
	if _, ok := t.get(k); !ok {
		return t
	}
	return tree[V]{t.root.without(k)}
}

// cut removes every key in [lo, hi).
func (t tree[V]) cut(lo, hi store.Key) tree[V] {
	left, rest := t.root.split(lo)
	_, right := rest.split(hi)
	return tree[V]{merge(left, right)}
}

// ascend visits [lo, hi) in order until fn returns false; descend does it backwards. Both report whether fn never did.
func (t tree[V]) ascend(lo, hi store.Key, fn func(store.Key, V) bool) bool {
	return t.root.ascend(lo, hi, fn)
}

func (t tree[V]) descend(lo, hi store.Key, fn func(store.Key, V) bool) bool {
	return t.root.descend(lo, hi, fn)
}

func (n *node[V]) without(k store.Key) *node[V] {
	if k == n.key {
		return merge(n.left, n.right)
	}
	c := *n
	if k < n.key {
		c.left = n.left.without(k)
	} else {
		c.right = n.right.without(k)
	}
	return &c
}

// split parts n into the keys below k and the rest.
func (n *node[V]) split(k store.Key) (left, right *node[V]) {
	if n == nil {
		return nil, nil
	}
	c := *n
	if n.key < k {
		c.right, right = n.right.split(k)
		return &c, right
	}
	left, c.left = n.left.split(k)
	return left, &c
}

// merge joins two treaps, all keys of a being below those of b.
func merge[V any](a, b *node[V]) *node[V] {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	if a.prio > b.prio {
		c := *a
		c.right = merge(a.right, b)
		return &c
	}
	c := *b
	c.left = merge(a, b.left)
	return &c
}

func (n *node[V]) ascend(lo, hi store.Key, fn func(store.Key, V) bool) bool {
	if n == nil {
		return true
	}
	if n.key >= lo && !n.left.ascend(lo, hi, fn) {
		return false
	}
	if n.key >= lo && n.key < hi && !fn(n.key, n.value) {
		return false
	}
	return n.key >= hi || n.right.ascend(lo, hi, fn)
}

func (n *node[V]) descend(lo, hi store.Key, fn func(store.Key, V) bool) bool {
	if n == nil {
		return true
	}
	if n.key < hi && !n.right.descend(lo, hi, fn) {
		return false
	}
	if n.key >= lo && n.key < hi && !fn(n.key, n.value) {
		return false
	}
	return n.key < lo || n.left.descend(lo, hi, fn)
}
