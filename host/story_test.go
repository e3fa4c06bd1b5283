package host_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// A story is a run of random turns, answered by random people in random ways, with restarts in between, beside a model that says
// how each call must end and how often its tool may have run. Some of its calls give work to subagents, whose turns are as random.
type story struct {
	t      *testing.T
	h      *hosttest.Host
	disk   store.Store
	mortal *mortal // the store of a host that is killed after some commits; nil: hosts are stopped in order
	rnd    *rand.Rand
	run    host.Run
	labels int // names given to calls
	calls  int // calls that must be there in the end
	said   int // messages that must be there in the end, beside those of the root and the calls' results
	subs   []*storySub
	ran    []string          // of the hosts before the last restart
	ends   map[string]string // by label: the result or error code
	runs   map[string]int    // by label: how often its tool runs
	given  int               // decisions
}

// storySub is a subagent that no call has named yet. Each works once, so that every call of the story has its own label.
type storySub struct {
	name, doc   string
	calls, said int // with those of its own subagents
}

const storyRules = `deny contains "huge" if { input.call.tool == "transfer"; input.call.arguments.amount > 9000 }
pause contains {"rule": "big"} if { input.call.tool == "transfer"; input.call.arguments.amount > 5000 }`

func TestInvariants1To3And8And9_OverRandomStories(t *testing.T) {
	t.Parallel()
	stories(t, func(*story) {})
}

// The same on hosts that are killed, again and again, at a random commit. What was asked of a host that died is asked of the next one.
func TestInvariants1To3And8And9_OverRandomStoriesWithCrashes(t *testing.T) {
	t.Parallel()
	stories(t, func(s *story) {
		s.mortal = newMortal(s.disk, 0)
		s.reboot()
	})
}

func stories(t *testing.T, begin func(*story)) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := &story{t: t, rnd: rand.New(rand.NewPCG(seed, 2)), disk: memstore.New(), ends: map[string]string{}, runs: map[string]int{}}
			t.Cleanup(func() { s.disk.Close() })
			s.h = hosttest.New(t, hosttest.Options{Store: s.disk, Rules: rules(storyRules)})
			for range 6 {
				s.subs = append(s.subs, s.subagent(1))
			}
			var docs []string
			for _, sub := range s.subs {
				docs = append(docs, sub.doc)
			}
			s.h.Agent("story", `{"planner":{"kind":"external"},"tools":["transfer","echo","ask","task"],"interrupt_on":{"transfer":{"when":{"amount":{"min":10}}}},
				"subagents":[`+strings.Join(docs, ",")+`]}`)
			s.run = s.h.Create(hosttest.Member, "story")
			begin(s)
			for range 5 {
				s.turn()
			}
			s.finish()
		})
	}
}

// reboot starts the next host, on what the last one left.
func (s *story) reboot() {
	s.h.Stop()
	s.ran = append(s.ran, s.h.Ran.All()...)
	o := hosttest.Options{Store: s.disk, Clock: s.h.Clock, Rules: rules(storyRules)}
	if s.mortal != nil {
		s.mortal = newMortal(s.disk, 2+s.rnd.IntN(12)) // two are the least that can make progress
		o.Store = s.mortal
	}
	s.h = hosttest.New(s.t, o)
}

// died reports whether the host lost its store, and starts the next one then.
func (s *story) died() bool {
	if s.mortal == nil {
		return false
	}
	select {
	case <-s.mortal.dead:
		s.reboot()
		return true
	default:
		return false
	}
}

// ask makes a request, of the next host if this one dies under it.
func (s *story) ask(request func() error) error {
	for {
		if err := request(); err == nil || !s.died() {
			return err
		}
	}
}

func (s *story) decides(a host.Actor, ds ...host.Decision) error {
	return s.ask(func() error { _, err := s.h.Answer(a, s.run.ID, ds...); return err })
}

// subagent makes one that plays one or two random turns; it may have a subagent of its own.
func (s *story) subagent(depth int) *storySub {
	sub := &storySub{name: fmt.Sprintf("sub%d", s.labels), said: 2} // what it is given, and its answer
	s.labels++
	var below []*storySub
	inside := ""
	if depth < 2 {
		below = []*storySub{s.subagent(depth + 1)}
		inside = `,"subagents":[` + below[0].doc + `]`
	}
	var turns []string
	for range 1 + s.rnd.IntN(2) {
		turns = append(turns, `{"calls":`+s.batch(1+s.rnd.IntN(3), &below, &sub.calls, &sub.said)+`}`)
		sub.said++
	}
	sub.doc = fmt.Sprintf(`{"name":%q,"planner":{"kind":"script","turns":[%s,{"final":%q}]},"tools":["transfer","echo","ask","task"]%s}`,
		sub.name, strings.Join(turns, ","), sub.name+" is done", inside)
	return sub
}

// batch makes n random calls, tells the model how they must end, and counts them. subs are the subagents that they may name.
func (s *story) batch(n int, subs *[]*storySub, count, said *int) string {
	var calls []string
	for range n {
		s.labels++
		*count++
		label := fmt.Sprintf("c%d", s.labels)
		tool, args := "", ""
		switch n := s.rnd.IntN(12); {
		case n < 4:
			amount := []int{1, 10, 100, 6000, 9500}[s.rnd.IntN(5)]
			tool, args = "transfer", fmt.Sprintf(`{"amount":%d,"to":%q}`, amount, label)
			s.ends[label] = fmt.Sprintf(`{"amount":%d,"currency":"EUR","to":%q}`, amount, label)
			s.runs[label] = 1
			if amount > 9000 {
				s.ends[label], s.runs[label] = "denied", 0
			}
		case n < 6:
			tool, args = "echo", fmt.Sprintf(`{"to":%q}`, label)
			s.ends[label], s.runs[label] = args, 1
		case n < 7:
			tool, args = "missing", fmt.Sprintf(`{"to":%q}`, label)
			s.ends[label] = "unknown_tool"
		case n < 8:
			tool, args = "transfer", fmt.Sprintf(`{"to":%q}`, label)
			s.ends[label] = "invalid_arguments"
		case n < 10 && len(*subs) > 0:
			sub := (*subs)[0]
			*subs = (*subs)[1:]
			*count, *said = *count+sub.calls, *said+sub.said
			tool, args = "task", fmt.Sprintf(`{"subagent":%q,"input":"go on"}`, sub.name)
			s.ends[label] = fmt.Sprintf("%q", sub.name+" is done")
		default:
			reason := []string{"approval_required", "await_input", "constraints_conflict"}[s.rnd.IntN(3)]
			tool, args = "ask", fmt.Sprintf(`{"reason":%q,"payload":{"to":%q}}`, reason, label)
			s.runs[label] = 1
		}
		calls = append(calls, fmt.Sprintf(`{"tool_call_id":%q,"tool":%q,"arguments":%s}`, label, tool, args))
	}
	return "[" + strings.Join(calls, ",") + "]"
}

// turn proposes a batch and answers until its calls have all ended.
func (s *story) turn() {
	s.t.Helper()
	calls := s.batch(1+s.rnd.IntN(5), &s.subs, &s.calls, &s.said)
	if err := s.ask(func() error {
		_, err := propose(s.h, hosttest.Member, s.run.ID, batch(s.run.Turn+1, calls))
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	for s.settle(); s.run.Pause != nil; s.settle() {
		s.gateHolds()
		s.answer()
	}
}

func (s *story) settle() {
	s.t.Helper()
	if s.rnd.IntN(4) == 0 {
		s.reboot()
	}
	for settled := false; !settled; settled = !s.died() {
		s.wait()
	}
}

// wait waits until the run stops or ends, or the host dies.
func (s *story) wait() {
	s.t.Helper()
	if s.mortal == nil {
		s.run = s.h.Settled(s.run.ID)
		return
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	go func(dead <-chan struct{}) {
		select {
		case <-dead:
			cancel()
		case <-ctx.Done():
		}
	}(s.mortal.dead)
	r, err := s.h.WaitRun(ctx, hosttest.Owner, s.run.ID)
	switch {
	case err == nil && ctx.Err() == nil:
		s.run = r
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		s.t.Fatalf("the run is still %s, %v", r.State, err)
	}
}

// gateHolds: while a call of a batch waits at the gate, none of it has run. What a person answered in its place has ended.
func (s *story) gateHolds() {
	s.t.Helper()
	for _, ap := range s.run.Pause.Approvals {
		if ap.Tool != "transfer" {
			continue
		}
		at := byLabel(s.run, ap.ToolCallID)[0]
		for _, c := range s.run.Calls {
			if c.ParentCallID == at.ParentCallID && c.Turn == at.Turn && c.State != store.CallPlanned && c.State != store.CallAwaiting && (s.runs[c.ToolCallID] > 0 || c.Tool == "task") {
				s.t.Fatalf("call %s is %s while %s waits at the gate", c.ToolCallID, c.State, ap.ToolCallID)
			}
		}
	}
}

// answer decides what is open, in one request or in the subject's and the admin's.
func (s *story) answer() {
	s.t.Helper()
	var own, all []host.Decision
	for _, ap := range s.run.Pause.Approvals {
		if ap.State != store.ApprovalPending {
			continue
		}
		d := s.decide(ap)
		if all = append(all, d); ap.Reason == "await_input" {
			own = append(own, d)
		}
	}
	s.given += len(all)
	if len(own) > 0 && len(own) < len(all) && s.rnd.IntN(2) == 0 {
		if err := s.decides(hosttest.Member, own...); err != nil {
			s.t.Fatal(err)
		}
		if s.rnd.IntN(2) == 0 {
			s.settle()
		}
		for _, d := range own {
			for i := range all {
				if all[i].ApprovalID == d.ApprovalID {
					all = append(all[:i], all[i+1:]...)
					break
				}
			}
		}
	}
	if len(all) > 1 {
		if err := s.decides(hosttest.Admin, all[1:]...); host.CodeOf(err) != host.CodeIncomplete {
			s.t.Fatalf("without one of %d: %v", len(all), err)
		}
	}
	if err := s.decides(hosttest.Owner, all...); err != nil {
		s.t.Fatal(err)
	}
}

// decide chooses a decision for an approval and tells the model what it means.
func (s *story) decide(ap host.Approval) host.Decision {
	label := ap.ToolCallID
	d := host.Decision{ApprovalID: ap.ID, Kind: ap.Allowed[s.rnd.IntN(len(ap.Allowed))], ArgsDigest: ap.ArgsDigest}
	asked := ap.Tool == "ask"
	if asked && ap.Subagent != "" && d.Kind == "approve" {
		d.Kind = "reject" // a script asks again about what was approved
	}
	end := ""
	switch d.Kind {
	case "approve":
		end = string(ap.Arguments)
	case "edit": // within what stopped it: one edit in two meets the rule "big", unless it is there already
		amount := 6000 + s.rnd.IntN(3000)
		if len(ap.Rules) == 1 && s.rnd.IntN(2) == 0 {
			amount = 11
		}
		end = fmt.Sprintf(`{"amount":%d,"currency":"EUR","to":%q}`, amount, label)
		d.Arguments = raw(end)
	case "reject":
		end = "rejected"
	case "respond":
		end = fmt.Sprint(s.rnd.IntN(100))
		d.Value = raw(end)
	}
	if asked {
		end = fmt.Sprintf(`{"reason":%q,"decision":%q}`, ap.Reason, d.Kind)
		if d.Kind == "respond" {
			end = fmt.Sprintf(`{"reason":%q,"decision":"respond","user_input":%s}`, ap.Reason, d.Value)
		}
	} else if d.Kind == "reject" || d.Kind == "respond" {
		s.runs[label] = 0
	}
	s.ends[label] = end
	return d
}

// finish ends the run and compares everything that can be read with the model.
func (s *story) finish() {
	s.t.Helper()
	if err := s.ask(func() error {
		_, err := finish(s.h, hosttest.Member, s.run.ID, s.run.Turn+1, `"end"`)
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	s.settle()
	crashed := s.mortal != nil
	s.mortal = nil
	s.reboot() // one that lives
	if s.run.State != store.RunSucceeded || len(s.run.Calls) != s.calls {
		s.t.Fatalf("run %s with %d calls of %d", s.run.State, len(s.run.Calls), s.calls)
	}
	attempts := map[string]int{}
	for _, a := range append(s.ran, s.h.Ran.All()...) {
		if _, rest, ok := strings.Cut(a, `"to":"`); ok {
			label, _, _ := strings.Cut(rest, `"`)
			attempts[label]++
		}
	}
	for _, c := range s.run.Calls {
		if got := resultOf(c); got != s.ends[c.ToolCallID] || c.State != store.CallFinished {
			s.t.Errorf("call %s (%s) ended with %s, want %s", c.ToolCallID, c.Tool, got, s.ends[c.ToolCallID])
		}
		// A call whose result was lost with its host runs again; one that may not run never does.
		if n := s.runs[c.ToolCallID]; attempts[c.ToolCallID] != n && !(crashed && n > 0 && attempts[c.ToolCallID] > n) {
			s.t.Errorf("call %s (%s) ran %d times, want %d", c.ToolCallID, c.Tool, attempts[c.ToolCallID], s.runs[c.ToolCallID])
		}
	}
	finished, decided := map[string]int{}, 0
	open := ""
	for i, e := range logOf(s.t, s.h, hosttest.Member, s.run.ID) {
		w := parse(s.t, e)
		if w.Seq != uint64(i+1) {
			s.t.Fatalf("event %d has seq %d", i+1, w.Seq)
		}
		switch w.Type {
		case "call.finished":
			finished[w.ToolCallID]++
		case "approval.decided":
			decided++
		case "run.paused":
			if open != "" {
				s.t.Errorf("pause %s opens while %s is open", w.PauseID, open)
			}
			open = w.PauseID
		case "run.resumed":
			if w.PauseID != open {
				s.t.Errorf("resumed from %s, the open pause was %s", w.PauseID, open)
			}
			open = ""
		}
	}
	for label, n := range finished {
		if n != 1 {
			s.t.Errorf("call %s finished %d times", label, n)
		}
	}
	rows := 0
	for _, row := range s.h.AuditRows("demo") {
		if row.Action == "approval.decide" && row.Outcome == "ok" {
			rows++
		}
	}
	if len(finished) != s.calls || decided != s.given || rows != s.given {
		s.t.Errorf("%d calls finished of %d; %d decisions, %d events, %d audit rows", len(finished), s.calls, s.given, decided, rows)
	}
	aps, _, err := s.h.Approvals(s.t.Context(), hosttest.Admin, "pending", host.Page{})
	if err != nil || len(aps) != 0 {
		s.t.Errorf("still pending: %d, %v", len(aps), err)
	}
	msgs, err := s.h.Trajectory(s.t.Context(), hosttest.Member, s.run.ID)
	if err != nil || len(msgs) != s.calls+s.said+s.run.Turn+1 {
		s.t.Errorf("%d messages for %d calls in %d turns, %d of subagents, %v", len(msgs), s.calls, s.run.Turn, s.said, err)
	}
	for i, m := range msgs {
		if m.Seq != i+1 {
			s.t.Errorf("message %d has seq %d", i+1, m.Seq)
		}
	}
}
