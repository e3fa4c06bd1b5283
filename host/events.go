package host

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// eventRecord is a stored event. What lives elsewhere (arguments, results, outputs) is not copied into it: readers hydrate it.
type eventRecord struct {
	Type    string          `json:"t"`
	At      time.Time       `json:"a"`
	Run     string          `json:"r"`
	Data    json.RawMessage `json:"d,omitempty"`
	Hydrate hydrate         `json:"h,omitzero"`
	// By and For are the run's creator and subject, in the tenant's queue only: they tell whose event it is.
	By    string `json:"b,omitempty"`
	For   string `json:"f,omitempty"`
	Agent string `json:"g,omitempty"`
}

// hydrate names what an event shows beside its own data.
type hydrate struct {
	Approval string   `json:"a,omitempty"` // as it was requested: pending
	Pause    string   `json:"p,omitempty"` // its payload
	Call     *callRef `json:"c,omitempty"` // its result
	Output   bool     `json:"o,omitempty"` // of the run
	Input    bool     `json:"i,omitempty"` // of the run
	Message  int      `json:"m,omitempty"` // what a user added
	Part     string   `json:"s,omitempty"` // of the task call: a message of its frame
}

type callRef [3]int // frame, turn, index

// Stream is a live reader of one log for one actor: it catches up from the store, then sleeps until a commit. It is not safe for
// concurrent use.
type Stream struct {
	h     *Host
	actor Actor
	as    uint64 // the generation of people whose rights the actor has
	log   store.Key
	run   string    // "" for the queue
	head  store.Run // of the run, as it was at the start: whose it is
	after uint64
	sub   *store.Subscription
	ended bool
	// transient events of the run, nil for the queue
	progress chan Event
	release  func()
}

// WatchRun returns a snapshot of a run (without its token), the head of the log that the snapshot shows, and the stream of what
// follows after; nil means from the snapshot on.
func (h *Host) WatchRun(ctx context.Context, a Actor, id string, after *uint64) (Run, uint64, *Stream, error) {
	key := runKey(a.Tenant, id)
	s := &Stream{h: h, actor: a, as: h.people.generation(), log: runLog(key), run: id}
	s.sub = h.store.Feed().Subscribe(s.log) // before the log is read: nothing falls between
	s.progress, s.release = h.progress.watch(key)
	v, err := h.rendered(ctx, a, id)
	if err != nil {
		s.Close()
		return Run{}, 0, nil, err
	}
	s.after, s.head = v.seq, v.run.Run
	if after != nil {
		if *after > v.seq {
			s.Close()
			return Run{}, 0, nil, invalid("/after", "the log of this run has %d events", v.seq)
		}
		s.after = *after
	}
	s.ended = v.run.State.Ended() && s.after >= v.seq
	return v.view, v.seq, s, nil
}

// WatchQueue returns the pending approvals that the actor may see, the cursor they belong to, and the stream of what follows: after
// the cursor; "" means from now on, "0" from the start.
func (h *Host) WatchQueue(ctx context.Context, a Actor, cursor string) ([]Approval, string, *Stream, error) {
	if err := h.allow(ctx, a, "queue.read", policy.Resource{Kind: "queue", Tenant: a.Tenant}); err != nil {
		return nil, "", nil, h.refused(ctx, a, "queue.read", "tenant", a.Tenant, err)
	}
	s := &Stream{h: h, actor: a, as: h.people.generation(), log: queueLog(a.Tenant)}
	s.sub = h.store.Feed().Subscribe(s.log)
	var head uint64
	if err := h.store.View(ctx, func(rd store.Reader) (err error) { head, err = rd.LogHead(s.log); return err }); err != nil {
		s.Close()
		return nil, "", nil, err
	}
	s.after = head
	if cursor != "" {
		n, err := parseCursor(cursor)
		if err != nil || n > head {
			s.Close()
			return nil, "", nil, invalid("/after", "not a cursor of this queue; use one that an event or a snapshot gave you")
		}
		s.after = n
	}
	if cursor == "0" { // the start is where retention has left the log
		if err := h.store.View(ctx, func(rd store.Reader) (err error) { s.after, err = trimmed(rd, s.log); return err }); err != nil {
			s.Close()
			return nil, "", nil, err
		}
	}
	// Read after the head, so that what opens in between is both in the list and in the stream, and in none of them never.
	pending, _, err := h.Approvals(ctx, a, "", Page{Limit: 200})
	if err != nil {
		s.Close()
		return nil, "", nil, err
	}
	return pending, formatCursor(head), s, nil
}

// trimmed returns how many entries at the beginning of a log are gone.
func trimmed(rd store.Reader, log store.Key) (uint64, error) {
	head, err := rd.LogHead(log)
	if err != nil {
		return 0, err
	}
	n := sort.Search(int(head), func(i int) bool {
		_, lerr := rd.Log(log, uint64(i), 1)
		if lerr != nil && !errors.Is(lerr, store.ErrTrimmed) {
			err = lerr
		}
		return lerr == nil
	})
	return uint64(n), err
}

// A queue's cursor is opaque: a later store with several hosts will need more than a number.
func formatCursor(n uint64) string {
	return base64.RawURLEncoding.EncodeToString([]byte("q" + strconv.FormatUint(n, 10)))
}

func parseCursor(s string) (uint64, error) {
	if s == "0" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 2 || b[0] != 'q' {
		return 0, errors.New("malformed cursor")
	}
	return strconv.ParseUint(string(b[1:]), 10, 64)
}

// Cursor is the place right after a queue event.
func (s *Stream) Cursor(e Event) string { return formatCursor(e.Seq) }

// Close releases the stream.
func (s *Stream) Close() {
	s.sub.Close()
	if s.release != nil {
		s.release()
	}
}

// Next returns the events that follow, at least one. It returns io.EOF after run.finished, CodeCursorExpired when the log no
// longer has what follows, CodeNotFound when the actor may no longer see it.
func (s *Stream) Next(ctx context.Context) ([]Event, error) {
	for {
		if s.ended {
			return nil, io.EOF
		}
		wait := s.sub.Wait() // before the look: a publish in between closes it
		entries, err := s.sub.Poll(s.after)
		if errors.Is(err, store.ErrTrimmed) || err == nil && len(entries) == 0 {
			entries, err = s.catchUp(ctx)
		}
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 {
			events, err := s.render(ctx, entries)
			if err != nil || len(events) > 0 {
				return events, err
			}
			continue // all of them were somebody else's
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait:
		case e := <-s.progress:
			if err := s.refresh(ctx); err != nil {
				return nil, err
			}
			return []Event{e}, nil
		}
	}
}

// catchUp reads the log from the store.
func (s *Stream) catchUp(ctx context.Context) (entries []store.Entry, err error) {
	err = s.h.store.View(ctx, func(rd store.Reader) error {
		entries, err = rd.Log(s.log, s.after, 256)
		return err
	})
	if errors.Is(err, store.ErrTrimmed) {
		return nil, errf(CodeCursorExpired, "the log no longer has what follows this cursor; subscribe without after")
	}
	if err == nil && len(entries) == 0 && s.run != "" {
		// The log of a run that retention removed is empty: do not wait for ever.
		err = s.h.store.View(ctx, func(rd store.Reader) error {
			head, err := readHead(rd, s.actor.Tenant, s.run)
			if err == nil && head.State.Ended() {
				last, err := rd.LogHead(s.log)
				s.ended = err == nil && s.after >= last
				return err
			}
			return err
		})
		if s.ended {
			return nil, io.EOF
		}
		err = runError(err)
	}
	return entries, err
}

// refresh gives the stream the rights that its actor has now; CodeNotFound when the run is not the actor's to see any more.
func (s *Stream) refresh(ctx context.Context) error {
	now := s.h.people.generation()
	if now == s.as {
		return nil
	}
	a, err := s.h.Fresh(ctx, s.actor)
	if err != nil {
		return err
	}
	if s.run != "" && !s.h.sees(ctx, a, s.head) {
		return errNotFound("run")
	}
	s.actor, s.as = a, now
	return nil
}

func (s *Stream) render(ctx context.Context, entries []store.Entry) ([]Event, error) {
	ctx = context.WithoutCancel(ctx) // a caller that leaves must not lose what its cursor has passed
	if err := s.refresh(ctx); err != nil {
		return nil, err
	}
	var out []Event
	size := 0
	for _, e := range entries {
		ev, err := s.h.events.get(s.log, e.Seq, func() (shown, error) { return s.h.show(ctx, s.actor.Tenant, e) })
		s.after = e.Seq
		if errors.Is(err, store.ErrNotFound) {
			continue // retention has taken what the event shows
		}
		if err != nil {
			return nil, err
		}
		if s.run == "" && !s.mine(ctx, ev.rec) {
			continue
		}
		out = append(out, ev.event)
		if s.run != "" && ev.rec.Type == "run.finished" {
			s.ended = true
			break
		}
		if size += len(ev.event.Data); size > maxEventBytes {
			break // the cursor is here; the rest follows when these are gone
		}
	}
	return out, nil
}

// maxEventBytes bounds the events that one reader holds at a time.
const maxEventBytes = 1 << 20

// shown is a stored event as it goes out. It never changes: what it hydrates is what was true when it was announced.
type shown struct {
	rec   eventRecord
	event Event
}

func (h *Host) show(ctx context.Context, tenant string, e store.Entry) (shown, error) {
	var rec eventRecord
	if err := store.Decode(e.Data, &rec); err != nil {
		return shown{}, err
	}
	ev, err := h.renderEvent(ctx, tenant, e.Seq, rec)
	return shown{rec, ev}, err
}

// eventCache keeps the newest rendered events, so that ten thousand watchers of one log render an event once.
type eventCache struct {
	mu    sync.Mutex
	m     map[eventKey]*cached
	order []eventKey // first in, first out
	bytes int
}

type eventKey struct {
	log store.Key
	seq uint64
}

type cached struct {
	once  sync.Once
	shown shown
	err   error
	// size is what the entry counts for, under the cache's lock: an entry may be dropped while it is still being rendered.
	size int
}

const (
	eventCacheEntries = 4096
	eventCacheBytes   = 16 << 20
)

func (c *eventCache) get(log store.Key, seq uint64, render func() (shown, error)) (shown, error) {
	k := eventKey{log, seq}
	c.mu.Lock()
	e := c.m[k]
	if e == nil {
		if c.m == nil {
			c.m = map[eventKey]*cached{}
		}
		e = &cached{}
		c.m[k] = e
		c.order = append(c.order, k)
	}
	c.mu.Unlock()
	e.once.Do(func() {
		e.shown, e.err = render()
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.m[k] != e: // it has gone already
		case e.err != nil:
			delete(c.m, k) // the next reader tries again
		default:
			e.size = len(e.shown.event.Data)
			c.bytes += e.size
		}
		for len(c.order) > 0 && (len(c.order) > eventCacheEntries || c.bytes > eventCacheBytes) {
			old := c.order[0]
			c.order = c.order[1:]
			if o := c.m[old]; o != nil {
				c.bytes -= o.size
				delete(c.m, old)
			}
		}
	})
	return e.shown, e.err
}

// mine reports whether the actor may see a queue event, by the rights it has now.
func (s *Stream) mine(ctx context.Context, rec eventRecord) bool {
	return s.h.sees(ctx, s.actor, store.Run{Tenant: s.actor.Tenant, ID: rec.Run, CreatedBy: rec.By, Subject: rec.For, Agent: rec.Agent})
}

// renderEvent makes the wire's object of a stored event.
func (h *Host) renderEvent(ctx context.Context, tenant string, seq uint64, rec eventRecord) (Event, error) {
	m := map[string]any{}
	if rec.Data != nil {
		var data map[string]json.RawMessage
		if err := json.Unmarshal(rec.Data, &data); err != nil {
			return Event{}, fmt.Errorf("%w: event data", store.ErrCorrupt)
		}
		for k, v := range data {
			m[k] = v
		}
	}
	m["seq"], m["type"], m["time"], m["run_id"] = seq, rec.Type, Time(rec.At), rec.Run
	if rec.Hydrate != (hydrate{}) {
		if err := h.hydrate(ctx, tenant, rec, m); err != nil {
			return Event{}, err
		}
	}
	return Event{Seq: seq, Type: rec.Type, RunID: rec.Run, Data: mustJSON(m)}, nil
}

func (h *Host) hydrate(ctx context.Context, tenant string, rec eventRecord, m map[string]any) error {
	key := runKey(tenant, rec.Run)
	var (
		head store.Run
		ap   store.Approval
		c    store.Call
		out  store.Body
	)
	hy := rec.Hydrate
	err := h.store.View(ctx, func(rd store.Reader) error {
		var err error
		if head, err = readHead(rd, tenant, rec.Run); err != nil {
			return err
		}
		if hy.Output {
			return get(rd, key.With("out"), &out)
		}
		if hy.Message > 0 {
			var m store.Message
			err := get(rd, messagesKey(key).With(hy.Message), &m)
			out = m.Content
			return err
		}
		if hy.Input {
			var rc store.RunContext
			err := get(rd, key.With("ctx"), &rc)
			out = rc.Input
			return err
		}
		id := hy.Approval
		if hy.Pause != "" {
			var p store.Pause
			if err := get(rd, pauseKey(key, hy.Pause), &p); err != nil {
				return err
			}
			id = p.Approvals[0]
		}
		var at callRef
		if id != "" {
			if err := get(rd, approvalKey(key, id), &ap); err != nil {
				return err
			}
			at = callRef{ap.Frame, ap.Turn, ap.Index}
		} else {
			at = *hy.Call
		}
		return get(rd, callKey(key, &store.Call{Frame: at[0], Turn: at[1], Index: at[2]}), &c)
	})
	if err != nil {
		return err
	}
	switch {
	case hy.Part != "":
		var agent *agentVersion
		if agent, err = h.agentVersion(ctx, tenant, head.Agent, head.AgentVersion); err != nil {
			return err
		}
		var text json.RawMessage
		if text, err = h.part(ctx, agent, tenant, &c, hy.Part); err == nil {
			err = withContent(m, text)
		}
	case hy.Output || hy.Input || hy.Message > 0:
		var text json.RawMessage
		if text, err = h.text(ctx, tenant, out); err != nil {
			return err
		}
		if rec.Type != "message" {
			m["output"] = text
			break
		}
		err = withContent(m, text)
	case hy.Call != nil:
		if c.Result != nil {
			m["result"], err = h.text(ctx, tenant, *c.Result)
		}
	default:
		ap.State, ap.Decision = store.ApprovalPending, nil // as it was requested; a later decision is a later event
		var v Approval
		if v, err = h.approvalView(ctx, head, &ap, &c); err != nil {
			return err
		}
		if hy.Pause != "" {
			m["payload"] = pausePayload(v)
		} else {
			m["approval"] = v
		}
	}
	return err
}

// withContent puts the text into the message that an event announces.
func withContent(m map[string]any, text json.RawMessage) error {
	var msg Message
	if err := json.Unmarshal(m["message"].(json.RawMessage), &msg); err != nil {
		return err
	}
	msg.Content = text
	m["message"] = msg
	return nil
}

// WaitRun returns the run when it stops, ends or waits for its client, or as it is when ctx is done.
func (h *Host) WaitRun(ctx context.Context, a Actor, id string) (Run, error) {
	r, err := h.open(context.WithoutCancel(ctx), a, id)
	if err != nil {
		return Run{}, err
	}
	// Watching begins before the look, so that no commit falls between.
	sub := h.store.Feed().Subscribe(runLog(r.key))
	defer sub.Close()
	for {
		wait := sub.Wait()
		var head store.Run
		err := h.store.View(context.WithoutCancel(ctx), func(rd store.Reader) (err error) {
			head, err = readHead(rd, a.Tenant, id)
			return err
		})
		if err != nil {
			return Run{}, runError(err)
		}
		if head.State != store.RunQueued && head.State != store.RunRunning {
			break
		}
		select {
		case <-wait:
			continue
		case <-ctx.Done():
		}
		break
	}
	return h.view(context.WithoutCancel(ctx), a, r)
}

// progressHub passes transient events to whoever watches a run right now. Nobody is waited for: a full watcher misses progress.
type progressHub struct {
	mu sync.Mutex
	m  map[store.Key]map[chan Event]bool
}

func (p *progressHub) watch(run store.Key) (chan Event, func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil {
		p.m = map[store.Key]map[chan Event]bool{}
	}
	if p.m[run] == nil {
		p.m[run] = map[chan Event]bool{}
	}
	ch := make(chan Event, 16)
	p.m[run][ch] = true
	return ch, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.m[run], ch)
		if len(p.m[run]) == 0 {
			delete(p.m, run)
		}
	})
}

func (p *progressHub) publish(run store.Key, id string, c *store.Call, now time.Time, progress json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.m[run]) == 0 {
		return
	}
	e := Event{Type: "call.progress", RunID: id, Data: mustJSON(map[string]any{
		"type": "call.progress", "time": Time(now), "run_id": id, "call_id": c.ID, "tool_call_id": c.ToolCallID, "progress": progress,
	})}
	for ch := range p.m[run] {
		select {
		case ch <- e:
		default:
		}
	}
}
