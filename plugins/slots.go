package plugins

import (
	"context"
	"sync"
)

// slots bound the guests that run at the same time: each may take its whole memory limit, and how many there are is the host's to
// say, not a batch's. One owner never has all of them, so that nobody's long calls keep everybody else's from beginning.
type slots struct {
	all      chan struct{}
	perOwner int

	mu     sync.Mutex
	owners map[string]*ownerSlots
}

// ownerSlots are one owner's; they exist while somebody uses or wants them.
type ownerSlots struct {
	taken chan struct{}
	users int
}

func newSlots(n int) *slots {
	return &slots{all: make(chan struct{}, n), perOwner: n - (n+3)/4, owners: map[string]*ownerSlots{}}
}

// acquire waits for a slot, or for the end of ctx. The caller releases it.
func (s *slots) acquire(ctx context.Context, owner string) (release func(), err error) {
	o := s.of(owner)
	select {
	case o.taken <- struct{}{}:
	case <-ctx.Done():
		s.leave(owner, o)
		return nil, ctx.Err()
	}
	select {
	case s.all <- struct{}{}:
	case <-ctx.Done():
		<-o.taken
		s.leave(owner, o)
		return nil, ctx.Err()
	}
	return func() { <-s.all; <-o.taken; s.leave(owner, o) }, nil
}

func (s *slots) of(owner string) *ownerSlots {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[owner]
	if o == nil {
		o = &ownerSlots{taken: make(chan struct{}, max(1, s.perOwner))}
		s.owners[owner] = o
	}
	o.users++
	return o
}

func (s *slots) leave(owner string, o *ownerSlots) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.users--; o.users == 0 {
		delete(s.owners, owner)
	}
}
