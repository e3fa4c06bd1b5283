package policy

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Live is a rules folder and the engine that it made last. A new set of rules takes effect as a whole: whoever takes the Engine
// once and asks it everything of one request gets answers of one set, however often the folder changes meanwhile. An engine that
// nobody asks any more is garbage like any other value.
type Live struct {
	options Options
	shared  *shared
	current atomic.Pointer[Loaded]
	failed  atomic.Pointer[Failure]

	mu        sync.Mutex // one look at a time
	judged    digest     // the contents whose fate is known: loaded, or refused
	seen      digest     // the contents that the last look found
	seenSince time.Time
}

type digest = [sha256.Size]byte

// Loaded is a set of rules in force.
type Loaded struct {
	*Engine
	At    time.Time
	Files []File // by name
}

// Failure is why the present contents of the folder are not in force.
type Failure struct {
	At  time.Time
	Err error // a line for each problem, with file and line number
}

// Settle is how long the contents of a folder must have been the same before they are believed: a file that is just being
// written is not a rule.
const Settle = time.Second

// Open loads a folder for the first time, with the errors of New. now is the moment.
func Open(ctx context.Context, o Options, now time.Time) (*Live, error) {
	l := &Live{options: o, shared: newShared(o.Deadline)}
	c := readFolder(o.Rules, false)
	e, err := build(ctx, l.shared, c)
	if err != nil {
		return nil, err
	}
	l.judged = c.digest()
	l.seen, l.seenSince = l.judged, now
	l.current.Store(&Loaded{e, now, c.list()})
	return l, nil
}

// Current is the set in force. It never fails and never waits.
func (l *Live) Current() *Loaded { return l.current.Load() }

// Failed is nil unless the last contents that were looked at are refused; then the set in force is older than the folder.
func (l *Live) Failed() *Failure { return l.failed.Load() }

// Abandoned counts the evaluations that went on after their deadline, since the start, of all sets.
func (l *Live) Abandoned() int64 { return l.Current().Abandoned() }

// Look is what one look at the folder found.
type Look int

// What a look finds.
const (
	Unchanged Look = iota // what is known already
	Unsettled             // something new, not yet the same for as long as Settle: look again
	Taken                 // something new, and it is in force now
	Refused               // something new that cannot be used: the old set stays, and Failed says why
)

// errEmptied: a volume that is not mounted, or a copy that went wrong, looks like this. Whoever means it can restart.
var errEmptied = errors.New("the folder has no rules any more, and the old ones stay in force: put them back, or start the host without --rules")

// Look reads the folder and takes what is new in it, if that has settled. again also takes what is known already, so that who asks
// for a reload gets one. Engines that were taken before keep answering as they did.
func (l *Live) Look(ctx context.Context, now time.Time, again bool) Look {
	if l.options.Rules == nil {
		return Unchanged
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := readFolder(l.options.Rules, false)
	is := c.digest()
	if is != l.seen || now.Before(l.seenSince) {
		l.seen, l.seenSince = is, now
	}
	if is == l.judged && !again {
		return Unchanged
	}
	if now.Sub(l.seenSince) < Settle {
		return Unsettled
	}
	l.judged = is
	e, err := build(ctx, l.shared, c)
	if err == nil && len(c.files) == 0 && len(l.Current().Files) > 0 {
		err = errEmptied
	}
	if err != nil {
		l.failed.Store(&Failure{now, err})
		return Refused
	}
	l.current.Store(&Loaded{e, now, c.list()})
	l.failed.Store(nil)
	return Taken
}
