package host_test

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// ruleFolder is a rules folder whose contents are replaced while the host runs.
type ruleFolder struct{ now atomic.Pointer[fs.FS] }

func newFolder(f fs.FS) *ruleFolder {
	r := &ruleFolder{}
	r.now.Store(&f)
	return r
}

func (r *ruleFolder) Open(name string) (fs.File, error) { return (*r.now.Load()).Open(name) }

// replace changes the folder and lets the host look until that has settled.
func (r *ruleFolder) replace(h *hosttest.Host, f fs.FS) policy.Look {
	r.now.Store(&f)
	h.LookAtRules(context.Background())
	h.Clock.Advance(policy.Settle)
	return h.LookAtRules(context.Background())
}

func (r *ruleFolder) change(t *testing.T, h *hosttest.Host, f fs.FS) {
	t.Helper()
	if got := r.replace(h, f); got != policy.Taken {
		t.Fatalf("look %d: %+v", got, h.Policy.Failed())
	}
}

func ruleFile(name, text string) fs.FS { return fstest.MapFS{name: {Data: []byte(text)}} }

func pauseAll(rule string) fs.FS {
	return rules(fmt.Sprintf("pause contains {\"rule\": %q} if true", rule))
}

func TestReload_ANewRuleWaitsAgainForThatCallAlone(t *testing.T) {
	t.Parallel()
	folder := newFolder(rules(""))
	h := hosttest.New(t, hosttest.Options{Rules: folder})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	folder.change(t, h, rules(pauseEcho))
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	r = h.Settled(r.ID)
	if r.State != store.RunAwaitingApproval || len(r.Pause.Approvals) != 1 || !slices.Equal(r.Pause.Approvals[0].Rules, []string{"quiet"}) || len(h.Ran.All()) != 0 {
		t.Fatalf("state %s, pause %+v, ran %v", r.State, r.Pause, h.Ran.All())
	}
	folder.change(t, h, rules("")) // the rule goes again: what it stopped stays stopped
	if now := h.Settled(r.ID); now.State != store.RunAwaitingApproval || now.Pause.ID != r.Pause.ID {
		t.Fatalf("a removed rule let a call go: %s", now.State)
	}
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if got := resultsOf(h.Settled(r.ID)); got != paid+` {"hi":1}` {
		t.Errorf("results %s", got)
	}
}

// An edit is held to the rules that stopped the call. One that is gone cannot be asked, so that nothing is within it; the other
// decisions are free.
func TestReload_AnEditWithinARuleThatIsGoneIsOutside(t *testing.T) {
	t.Parallel()
	folder := newFolder(rules(`pause contains {"rule": "team/big"} if input.call.arguments.amount >= 10`))
	h := hosttest.New(t, hosttest.Options{Rules: folder})
	h.External("pay", gatedTransfer)
	edit := func(r host.Run, amount string) error {
		_, err := h.Answer(hosttest.Admin, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "edit", Arguments: raw(`{"amount":` + amount + `}`)})
		return err
	}
	one := `[{"tool":"transfer","arguments":{"amount":10}}]`
	r, other := h.Batch(hosttest.Member, "pay", one), h.Batch(hosttest.Member, "pay", one)
	e := refusal(t, edit(r, "9"), host.CodeOutOfScope)
	if strings.Contains(e.Detail, "gone") {
		t.Errorf("the rule is there: %s", e.Detail)
	}
	folder.change(t, h, rules(`pause contains {"rule": "team/bigger"} if input.call.arguments.amount >= 20`))
	before := h.Stored()
	e = refusal(t, edit(r, "11"), host.CodeOutOfScope)
	if !strings.Contains(e.Detail, `"team/big"`) || !strings.Contains(e.Detail, "gone") || !strings.Contains(e.Detail, "approve") {
		t.Errorf("%q; it should say which rule is gone and what is left to do", e.Detail)
	}
	h.Unchanged(before)
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if got := resultsOf(h.Settled(r.ID)); got != paid {
		t.Errorf("results %s", got)
	}
	// A rule that the edited call runs into, and that did not stop the first, asks for a decision of its own.
	folder.change(t, h, rules(`pause contains {"rule": "team/big"} if input.call.arguments.amount >= 10
pause contains {"rule": "team/bigger"} if input.call.arguments.amount >= 20`))
	if err := edit(other, "20"); err != nil {
		t.Fatal(err)
	}
	if other = h.Settled(other.ID); other.State != store.RunAwaitingApproval || !slices.Contains(other.Pause.Approvals[0].Rules, "team/bigger") {
		t.Errorf("state %s, pause %+v", other.State, other.Pause)
	}
}

func TestReload_IsAuditedLoggedAndShown(t *testing.T) {
	t.Parallel()
	folder := newFolder(pauseAll("one"))
	h := hosttest.New(t, hosttest.Options{Rules: folder})
	for _, a := range []host.Actor{hosttest.Owner, hosttest.OtherAdmin} { // a tenant is known by its keys
		if _, err := h.CreateKey(t.Context(), a, host.Idempotency{}, hosttest.Body(host.NewKey{Principal: "new", Roles: []string{"member"}, Kind: "user"})); err != nil {
			t.Fatal(err)
		}
	}
	shown := func() host.Policy {
		t.Helper()
		p, err := h.GetPolicy(t.Context(), hosttest.Admin)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := shown()
	if len(first.Files) != 1 || first.Files[0].Name != "people.rego" || first.Refused != nil || first.Revision != h.Policy.Current().Revision() {
		t.Errorf("%+v", first)
	}
	h.Clock.Advance(time.Minute)
	folder.change(t, h, pauseAll("two"))
	second := shown()
	if second.Revision == first.Revision || second.LoadedAt == first.LoadedAt || second.Files[0].Digest == first.Files[0].Digest {
		t.Errorf("%+v after %+v", second, first)
	}
	if got := folder.replace(h, rules("pause contains if")); got != policy.Refused {
		t.Fatalf("look %d", got)
	}
	broken := shown()
	if broken.Revision != second.Revision || broken.Refused == nil || len(broken.Refused.Problems) == 0 || !strings.Contains(broken.Refused.Problems[0], "people.rego:3") {
		t.Errorf("%+v", broken)
	}
	if got := h.LookAtRules(t.Context()); got != policy.Unchanged {
		t.Errorf("it is told again: %d", got)
	}
	if log := h.Log.String(); !strings.Contains(log, "the old rules stay in force") || !strings.Contains(log, "people.rego:3") || !strings.Contains(log, second.Revision) {
		t.Error("the log does not say what is wrong and where")
	}
	if s := h.Stats(); s.RulesTaken != 1 || s.RulesRefused != 1 || !s.RulesBroken {
		t.Errorf("%+v", s)
	}
	for _, tenant := range []string{"demo", "other"} {
		var got []string
		for _, row := range h.AuditRows(tenant) {
			if row.Action == "policy.reload" {
				got = append(got, row.Outcome+" "+row.Reason+" "+row.TargetID)
				if row.ActorKind != host.KindSystem || row.ActorID != nil || row.Detail["files"] != float64(1) || row.Detail["revision"] != second.Revision {
					t.Errorf("%s: %+v", tenant, row)
				}
			}
		}
		if want := []string{"ok  " + second.Revision, "error rules_refused " + second.Revision}; !slices.Equal(got, want) {
			t.Errorf("%s: rows %q, want %q", tenant, got, want)
		}
	}
	folder.change(t, h, pauseAll("two"))
	if p, s := shown(), h.Stats(); p.Refused != nil || p.Revision != second.Revision || s.RulesBroken {
		t.Errorf("%+v, %+v: what was wrong is put right", p, s)
	}
	if err := hosttest.New(t, hosttest.Options{}).ReloadRules(t.Context()); err == nil || !strings.Contains(err.Error(), "--rules") {
		t.Errorf("a host without a folder: %v", err)
	}
}

// Eight calls of one batch, the rules replaced all the time: each batch is stopped by one set, under its revision.
func TestReload_ABatchIsJudgedByOneSet(t *testing.T) {
	t.Parallel()
	folder := newFolder(pauseAll("set-0"))
	h := hosttest.New(t, hosttest.Options{Rules: folder})
	h.External("say", `{}`)
	batch := "[" + strings.TrimSuffix(strings.Repeat(`{"tool":"read_echo","arguments":{}},`, 8), ",") + "]"
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var batches atomic.Int64
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := h.Batch(hosttest.Member, "say", batch)
				seen := map[string]bool{}
				for _, ap := range r.Pause.Approvals {
					seen[strings.Join(ap.Rules, " ")] = true
				}
				if len(r.Pause.Approvals) != 8 || len(seen) != 1 {
					t.Errorf("%d approvals by %v", len(r.Pause.Approvals), seen)
				}
				batches.Add(1)
			}
		})
	}
	for n := 1; n <= 40; n++ {
		folder.change(t, h, pauseAll(fmt.Sprintf("set-%d", n)))
	}
	for batches.Load() < 3 && t.Context().Err() == nil {
		folder.change(t, h, pauseAll(fmt.Sprintf("more-%d", batches.Load())))
	}
	close(stop)
	wg.Wait()
}

// What is asked with a bound context is answered by the set that was in force, also when it has gone; who comes later gets the next.
func TestReload_ARequestSeesOneSet(t *testing.T) {
	t.Parallel()
	refuse := func(word string) fs.FS {
		return ruleFile("authz.rego", fmt.Sprintf("package pawl.rules.authz\ndeny contains %q if input.act == \"agent.list\"\n", word))
	}
	folder := newFolder(refuse("first"))
	h := hosttest.New(t, hosttest.Options{Rules: folder})
	why := func(ctx context.Context) []string {
		_, _, err := h.Agents(ctx, hosttest.Owner, host.Page{})
		return refusal(t, err, host.CodeForbidden).Reasons
	}
	bound := h.OneRuleset(t.Context())
	folder.change(t, h, refuse("second"))
	if got := why(bound); !slices.Equal(got, []string{"first"}) {
		t.Errorf("the request that began before: %q", got)
	}
	if got := why(h.OneRuleset(bound)); !slices.Equal(got, []string{"first"}) {
		t.Errorf("bound twice: %q", got)
	}
	if got := why(t.Context()); !slices.Equal(got, []string{"second"}) {
		t.Errorf("the next one: %q", got)
	}
	// With nobody's word in authorization any more, its answers are remembered again, and they are the new set's.
	folder.change(t, h, rules(""))
	for range 2 {
		if _, _, err := h.Agents(t.Context(), hosttest.Owner, host.Page{}); err != nil {
			t.Error(err)
		}
	}
	folder.change(t, h, refuse("third"))
	if got := why(t.Context()); !slices.Equal(got, []string{"third"}) {
		t.Errorf("%q", got)
	}
}

// Whoever approved a call and is asked again reads which rule is new, also where it says nothing itself.
func TestReload_ASecondQuestionSaysWhatIsNew(t *testing.T) {
	t.Parallel()
	folder := newFolder(rules(`pause contains {"rule": "team/old", "message": "of old"} if input.call.tool == "transfer"`))
	h := hosttest.New(t, hosttest.Options{Rules: folder})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":10}}]`)
	if got := r.Pause.Approvals[0].Message; strings.Contains(got, "before") {
		t.Errorf("the first question says %q", got)
	}
	folder.change(t, h, rules(`pause contains {"rule": "team/old", "message": "of old"} if input.call.tool == "transfer"
pause contains {"rule": "team/new"} if input.call.tool == "transfer"`))
	if _, err := h.DecideAll(hosttest.Admin, r, "approve"); err != nil {
		t.Fatal(err)
	}
	if r = h.Settled(r.ID); r.Pause == nil || r.Pause.Approvals[0].Message != "It was approved before; what stops it again: team/new.\nof old" {
		t.Errorf("the run is %s, the pause %+v", r.State, r.Pause)
	}
}
