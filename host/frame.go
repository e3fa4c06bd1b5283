package host

import (
	"fmt"
	"iter"
	"slices"

	"github.com/pawlhost/pawl/store"
)

// frame is one planner at work in a run: the root's, or that of a live subagent call. A call of the tool task opens one; it ends
// with the call's result.
type frame struct {
	store.Frame
	agent  *agentVersion
	parent *frame        // nil for the root
	calls  []*store.Call // of the frame's current turn, in call order
	dirty  bool
}

// Bounds of a run's frames.
const (
	maxDepth      = 8    // a subagent of a subagent of …
	maxLiveFrames = 64   // at the same time
	maxFrames     = 1000 // in the life of a run
	maxOpenCalls  = 2000 // in the batches of all frames: one commit must be able to end them
)

// call is the call that opened the frame; nil for the root.
func (f *frame) call() *store.Call {
	if f.parent == nil {
		return nil
	}
	return f.parent.calls[f.Index]
}

// path is the frame's place as names, such as "research/fetch"; empty for the root.
func (f *frame) path() string {
	switch {
	case f.parent == nil:
		return ""
	case f.parent.parent == nil:
		return f.Subagent
	default:
		return f.parent.path() + "/" + f.Subagent
	}
}

// idle reports whether it is the planner's turn.
func (f *frame) idle() bool {
	return !slices.ContainsFunc(f.calls, func(c *store.Call) bool { return c.State != store.CallFinished })
}

func (r *run) root() *frame { return r.frames[0] }

// calls are those of the current turn of every live frame.
func (r *run) calls() iter.Seq[*store.Call] {
	return func(yield func(*store.Call) bool) {
		for _, f := range r.frames {
			for _, c := range f.calls {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// open is the number of calls in the batches of all frames.
func (r *run) open() (n int) {
	for _, f := range r.frames {
		n += len(f.calls)
	}
	return n
}

// frame is the live frame with this number, nil when it has ended.
func (r *run) frame(id int) *frame {
	for _, f := range r.frames {
		if f.ID == id {
			return f
		}
	}
	return nil
}

// child is the live frame that a call opened, nil when there is none.
func (r *run) child(c *store.Call) *frame {
	for _, f := range r.frames {
		if f.parent != nil && f.call() == c {
			return f
		}
	}
	return nil
}

// idle is a frame whose planner has to be asked, the innermost first.
func (r *run) idle() *frame {
	for _, f := range slices.Backward(r.frames) {
		if f.idle() {
			return f
		}
	}
	return nil
}

// runnable are the calls that can begin now, in every frame. busy has those that run already.
func (r *run) runnable(busy map[string]bool) (next []*store.Call) {
	moving := map[*frame]bool{}                   // something of the frame runs, or can
	for _, f := range slices.Backward(r.frames) { // a child comes after its parent
		ready, active := f.ready(func(c *store.Call) (runs, waits bool) {
			if child := r.child(c); child != nil {
				return moving[child], !moving[child]
			}
			return busy[c.ID], false
		})
		moving[f] = active || len(ready) > 0
		next = append(next, ready...)
	}
	return next
}

// ready are the calls of the frame to begin now: all that are left where the whole batch only reads, else the next in call order. A
// call that its tool stopped, or whose subagent waits, does not hold the others; one that the gate stopped holds them all. started
// tells how a call stands that has begun; active is whether one of them runs.
func (f *frame) ready(started func(*store.Call) (runs, waits bool)) (next []*store.Call, active bool) {
	parallel := true
	for _, c := range f.calls {
		parallel = parallel && c.Effects == effectsRead
		switch c.State {
		case store.CallAwaiting:
			if c.Stop != nil && c.Stop.Origin == originGate {
				return nil, false // no call of a batch runs while a sibling awaits its decision
			}
		case store.CallStarted:
			if runs, waits := started(c); runs {
				active = true
			} else if !waits {
				next = append(next, c) // a crash or a conflict interrupted it
			}
		case store.CallPlanned:
			next = append(next, c)
		}
	}
	if parallel || len(next) == 0 {
		return next, active
	}
	if active {
		return nil, true
	}
	// What was interrupted goes first.
	if i := slices.IndexFunc(next, func(c *store.Call) bool { return c.State == store.CallStarted }); i >= 0 {
		return next[i : i+1], false
	}
	return next[:1], false
}

const effectsRead = "read"

// readFrames reads the live frames with their current batches.
func (r *run) readFrames(rd store.Reader) error {
	r.frames = []*frame{{Frame: store.Frame{Turn: r.Turn, Batch: r.Batch, Cursor: r.Cursor, Before: r.Before}}}
	for _, id := range r.Live {
		f := &frame{}
		if err := get(rd, frameKey(r.key, id), &f.Frame); err != nil {
			return err
		}
		if f.parent = r.frame(f.Parent); f.parent == nil {
			return fmt.Errorf("%w: frame %d has no parent", store.ErrCorrupt, id)
		}
		r.frames = append(r.frames, f)
	}
	for _, f := range r.frames {
		for i := range f.Batch {
			c := &store.Call{Frame: f.ID, Turn: f.Turn, Index: i}
			if err := get(rd, callKey(r.key, c), c); err != nil {
				return err
			}
			f.calls = append(f.calls, c)
		}
	}
	return nil
}

// bind gives the frames their agents.
func (r *run) bind(agent *agentVersion) error {
	r.agent = agent
	for _, f := range r.frames {
		if f.parent == nil {
			f.agent = agent
		} else if f.agent = f.parent.agent.subagents[f.Subagent]; f.agent == nil {
			return fmt.Errorf("%w: frame %d is of no subagent that the agent has", store.ErrCorrupt, f.ID)
		}
	}
	return nil
}
