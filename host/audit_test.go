package host_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/host/telemetry"
	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
)

// lines is an export of the whole audit log of a tenant, as the wire writes it.
func lines(t testing.TB, h *hosttest.Host, a host.Actor, f host.AuditFilter) (out []string) {
	t.Helper()
	e, err := h.ExportAudit(t.Context(), a, hosttest.Body(f))
	if err != nil {
		t.Fatal(err)
	}
	for {
		rows, err := e.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			raw, err := json.Marshal(row)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, string(raw))
		}
	}
}

// checked runs the host's own check and returns what it found.
func checked(c host.AuditCheck, lines []string) (faults []string) {
	for _, l := range lines {
		if f := c.Row([]byte(l)); f != nil {
			faults = append(faults, f.Detail)
		}
	}
	for _, f := range c.Finish() {
		faults = append(faults, f.Detail)
	}
	return faults
}

func wantChain(t testing.TB, h *hosttest.Host, a host.Actor) int {
	t.Helper()
	rows := lines(t, h, a, host.AuditFilter{})
	head, err := h.AuditHead(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	c := host.AuditCheck{Tenant: a.Tenant, Heads: []host.AuditHead{head}}
	if faults := checked(c, rows); faults != nil {
		t.Errorf("the audit of %s: %q", a.Tenant, faults)
	}
	return len(rows)
}

// An auditor has the lines, SHA-256 and docs/operating.md, and nothing of this program: the check is done here as it is told there.
func TestAudit_LinesCanBeCheckedByAnybody(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Script("ops", `[{"calls":[{"tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}]},{"final":1}]`, "")
	for _, name := range []string{"a<b>&c", "é\u2028", "\uffff nobody", "\x80bad"} { // what encoders treat in their own ways
		_, _, err := h.SaveAgent(t.Context(), hosttest.Member, name, hosttest.Body(json.RawMessage(`{}`)))
		refusal(t, err, host.CodeForbidden)
	}
	var prev [32]byte
	rows := lines(t, h, hosttest.Admin, host.AuditFilter{})
	if len(rows) < 5 {
		t.Fatalf("only %d rows", len(rows))
	}
	for i, line := range rows {
		var row map[string]any
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		tenant, seq, stated, before := row["tenant"].(string), uint64(row["seq"].(float64)), row["hash"].(string), row["prev_hash"].(string)
		for _, own := range []string{"tenant", "seq", "hash", "prev_hash"} {
			delete(row, own)
		}
		var what bytes.Buffer // members sorted, no white space, nothing escaped that need not be
		e := json.NewEncoder(&what)
		e.SetEscapeHTML(false)
		if err := e.Encode(row); err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer(`\u2028`, "\u2028").Replace(strings.TrimSuffix(what.String(), "\n"))
		key := "\x02t\x00\x02" + tenant + "\x00\x02audit\x00"
		b := []byte("pawl.chain.v1\n")
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(key))), key...)
		b = binary.BigEndian.AppendUint64(b, seq)
		b = append(append(b, prev[:]...), text...)
		sum := sha256.Sum256(b)
		if got := "sha256:" + hex.EncodeToString(sum[:]); got != stated || before != "sha256:"+hex.EncodeToString(prev[:]) || seq != uint64(i)+1 {
			t.Fatalf("row %d: %s after %x gives %s", seq, line, prev, got)
		}
		prev = sum
	}
	head, err := h.AuditHead(t.Context(), hosttest.Admin)
	if err != nil || head.Hash != "sha256:"+hex.EncodeToString(prev[:]) || head.Seq != uint64(len(rows)) || head.Time == nil {
		t.Errorf("the head is %+v, %v", head, err)
	}
}

func TestAudit_CheckFindsWhatWasDone(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for i := range 9 {
		h.Agent(fmt.Sprint("a", i), `{"planner":{"kind":"external"},"tools":["echo"]}`)
	}
	good := lines(t, h, hosttest.Admin, host.AuditFilter{})
	head, err := h.AuditHead(t.Context(), hosttest.Admin)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(i int, old, new string) []string {
		out := append([]string{}, good...)
		if out[i] = strings.Replace(out[i], old, new, 1); out[i] == good[i] {
			t.Fatalf("no %q in %s", old, out[i])
		}
		return out
	}
	swap := append([]string{}, good...)
	swap[3], swap[4] = swap[4], swap[3]
	for name, c := range map[string]struct {
		rows []string
		want string
	}{
		"as it was":              {good, ""},
		"another outcome":        {edit(4, `"outcome":"ok"`, `"outcome":"denied"`), "row 5 was changed"},
		"another time":           {edit(4, `"time":"2026`, `"time":"2025`), "row 5 was changed"},
		"another actor":          {edit(4, `"actor_id":"owner"`, `"actor_id":null`), "row 5 was changed"},
		"a member more":          {edit(4, `"detail"`, `"note":"x","detail"`), "row 5 was changed"},
		"another number":         {edit(4, `"seq":5`, `"seq":6`), "row 6 was changed"},
		"another tenant":         {edit(4, `"tenant":"demo"`, `"tenant":"other"`), `row 5 belongs to tenant "other"`},
		"no hash":                {edit(4, `"hash":"sha256`, `"hash":"`), "line 5 is not a row"},
		"a torn line":            {append(append([]string{}, good[:8]...), good[8][:40]), "line 9 is not a row"},
		"a member twice":         {edit(4, `"outcome":"ok"`, `"outcome":"denied","outcome":"ok"`), "line 5 is not a row"},
		"removed":                {append(append([]string{}, good[:4]...), good[5:]...), "row 5 is missing"},
		"reordered":              {swap, "row 4 is missing"},
		"twice":                  {append(append(append([]string{}, good[:5]...), good[4]), good[5:]...), "row 5 comes after row 5"},
		"cut":                    {good[:7], "row 9 is gone: the log ends at row 7"},
		"written with spaces":    {edit(4, `,"outcome":`, ` , "outcome" : `), ""},
		"members in other order": {edit(4, `{"tenant":"demo","seq":5,`, `{"seq":5,"tenant":"demo",`), ""},
	} {
		got := checked(host.AuditCheck{Heads: []host.AuditHead{head}}, c.rows)
		if c.want == "" && got != nil || c.want != "" && (len(got) == 0 || !strings.HasPrefix(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// tampered is a store with a log that takes no entry any more.
type tampered struct {
	store.Store
	log store.Key
}

func (s tampered) Commit(ctx context.Context, c *store.Change) (store.Receipt, error) {
	for _, a := range c.Appends {
		if a.Log == s.log {
			return store.Receipt{}, fmt.Errorf("%w: its end", store.ErrCorrupt)
		}
	}
	return s.Store.Commit(ctx, c)
}

// What is written for many tenants at once is written for those whose log is well.
func TestAudit_OneTamperedLogCostsNobodyElseARow(t *testing.T) {
	t.Parallel()
	under := memstore.New()
	t.Cleanup(func() { _ = under.Close() })
	first := hosttest.New(t, hosttest.Options{Store: under, Idle: true})
	for _, tenant := range []string{"demo", "other"} {
		if _, err := first.EnsureKey(t.Context(), tenant, host.NewKey{Principal: "p", Roles: []string{"member"}, Kind: "user"}); err != nil {
			t.Fatal(err)
		}
	}
	first.Stop()
	before := len(first.AuditRows("other"))
	h := hosttest.New(t, hosttest.Options{Store: tampered{under, store.K("t", "demo", "audit")}, Idle: true})
	if err := h.Note(t.Context(), host.Note{Action: "tick"}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
	if rows := h.AuditRows("other"); len(rows) != before+1 || rows[before].Action != "tick" {
		t.Errorf("%+v after %d rows", rows, before)
	}
}

// The log's own word on its end is held against its rows, which may be fewer where others came since.
func TestAudit_CheckFindsRowsBehindTheEnd(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.Agent("a", `{"planner":{"kind":"external"},"tools":["echo"]}`)
	rows := lines(t, h, hosttest.Admin, host.AuditFilter{})
	var c host.AuditCheck
	if faults := checked(c, rows); faults != nil {
		t.Fatal(faults)
	}
	for _, l := range rows {
		c.Row([]byte(l))
	}
	n := uint64(len(rows))
	for _, end := range []uint64{n, n + 1} {
		if f := c.End(host.AuditHead{Seq: end}); f != nil {
			t.Errorf("end %d: %v", end, f)
		}
	}
	if f := c.End(host.AuditHead{Seq: n - 1}); f == nil || f.Seq != n {
		t.Errorf("a row behind the end: %v", f)
	}
}

// What was written before the log was chained is read on, and the chain says where it begins.
func TestAudit_OldRowsAreReadAndTheChainBeginsAfterThem(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	at := time.Date(2025, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	for i := range 3 {
		var c store.Change
		c.Append(store.K("t", "demo", "audit"), store.Encode(map[string]any{
			"t": at, "k": "user", "a": "alice", "c": "run.cancel", "y": "run", "i": fmt.Sprint("run_", i), "o": "ok", "d": []byte(`{"agent":"ops"}`),
		}))
		if _, err := h.Store.Commit(t.Context(), &c); err != nil {
			t.Fatal(err)
		}
	}
	old, err := h.AuditHead(t.Context(), hosttest.Admin)
	if err != nil || old.Seq != 3 || old.Hash != "" {
		t.Errorf("the head of a log without a chain: %+v, %v", old, err)
	}
	h.Agent("a", `{"planner":{"kind":"external"},"tools":["echo"]}`)
	rows := h.AuditRows("demo")
	if len(rows) != 4 || rows[0].Hash != "" || rows[2].TargetID != "run_2" || *rows[0].ActorID != "alice" || rows[0].Time != host.Time(at) || rows[0].Detail["agent"] != "ops" ||
		rows[3].PrevHash != "sha256:"+strings.Repeat("0", 64) || rows[3].Hash == "" {
		t.Errorf("rows %+v", rows)
	}
	c := host.AuditCheck{Heads: []host.AuditHead{old}}
	for _, l := range lines(t, h, hosttest.Admin, host.AuditFilter{}) {
		if f := c.Row([]byte(l)); f != nil {
			t.Error(f)
		}
	}
	if f := c.Finish(); f != nil {
		t.Error(f)
	}
	if x := c.Extent(); x.Begun != 4 || x.First != 1 || x.Last != 4 {
		t.Errorf("the extent is %+v", x)
	}
}

// The first use of a key on a day is a row; the others are none; one that was revoked says so.
func TestAudit_KeyUse(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Idle: true})
	key := func(name string) host.Key {
		k, err := h.EnsureKey(t.Context(), "demo", host.NewKey{Principal: name, Roles: []string{"member"}, Kind: "user"})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	ann, bob := key("ann"), key("bob")
	use := func(k host.Key, n int) {
		for range n {
			_, _ = h.Authenticate(t.Context(), k.Key)
			_, _ = h.Authenticate(t.Context(), k.Key[:len(k.Key)-2]+"xx") // not its secret: nobody's use
		}
	}
	uses := func() (out []string) { // what waits is written when the host ends
		h.Start()
		h.Stop()
		for _, r := range h.AuditRows("demo") {
			if r.Action == "key.use" {
				out = append(out, fmt.Sprint(*r.ActorID, " ", r.Outcome, r.Reason, " ", r.Detail["day"]))
			}
		}
		return out
	}
	use(ann, 3)
	use(bob, 2)
	use(ann, 3)
	if got, want := fmt.Sprint(uses()), "[ann ok 2026-11-29 bob ok 2026-11-29]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	h.Clock.Advance(24 * time.Hour)
	use(bob, 5)
	if err := h.RevokeKey(t.Context(), hosttest.Owner, ann.ID); err != nil {
		t.Fatal(err)
	}
	use(ann, 5)
	if got, want := fmt.Sprint(uses()[2:]), "[bob ok 2026-11-30 ann deniedrevoked 2026-11-30]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// Nobody writes, and the keys are many: what does not fit waits for the next use.
	for i := range 1100 {
		use(key(fmt.Sprint("k", i)), 1)
	}
	if n := len(uses()); n != 4+1024 {
		t.Errorf("%d rows of 1100 keys' uses", n)
	}
	wantChain(t, h, hosttest.Admin)
}

// What the host itself does is told to every tenant, each in its own chain.
func TestAudit_NotesGoToEveryTenant(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for _, tenant := range []string{"demo", "other"} {
		if _, err := h.EnsureKey(t.Context(), tenant, host.NewKey{Principal: "p", Roles: []string{"member"}, Kind: "user"}); err != nil {
			t.Fatal(err)
		}
	}
	ctx := telemetry.With(t.Context(), telemetry.Remote("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"))
	if err := h.Note(ctx, host.Note{Action: "policy.reload", TargetKind: "policy", Target: "rules", Failed: true, Reason: "invalid", Detail: map[string]any{"revision": "sha256:1"}}); err != nil {
		t.Fatal(err)
	}
	if err := h.Note(ctx, host.Note{Action: "policy.reload", Detail: map[string]any{"n": 1 << 60}}); err == nil {
		t.Error("a detail that no reader could read alike was written")
	}
	for _, a := range []host.Actor{hosttest.Admin, hosttest.OtherAdmin} {
		rows := h.AuditRows(a.Tenant)
		last := rows[len(rows)-1]
		if len(rows) != 2 || last.Action != "policy.reload" || last.ActorKind != "system" || last.ActorID != nil || last.Outcome != "error" || last.Reason != "invalid" ||
			last.TraceID != "0123456789abcdef0123456789abcdef" || last.Detail["revision"] != "sha256:1" || last.Tenant != a.Tenant {
			t.Errorf("%s: %+v", a.Tenant, rows)
		}
		wantChain(t, h, a)
	}
	a, b := h.AuditRows("demo"), h.AuditRows("other")
	if a[1].Hash == b[1].Hash {
		t.Error("two tenants' rows have one hash")
	}
}

// A refusal of a route without a resource of its own is a row, too.
func TestAudit_EveryRefusalOfAnActIsARow(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Rules: fstest.MapFS{"a.rego": &fstest.MapFile{Data: []byte("package pawl.rules.authz\n\ndeny contains \"no_sockets\" if input.act == \"ws.connect\"\n")}}})
	refusal(t, h.May(t.Context(), hosttest.Admin, "ws.connect"), host.CodeForbidden)
	refusal(t, h.May(t.Context(), hosttest.Member, "metrics.read"), host.CodeForbidden)
	if err := h.May(t.Context(), hosttest.Admin, "metrics.read"); err != nil {
		t.Error(err)
	}
	rows := h.AuditRows("demo")
	if len(rows) != 2 || rows[0].Action != "ws.connect" || rows[0].Outcome != "denied" || fmt.Sprint(rows[0].Detail["reasons"]) != "[no_sockets]" || rows[1].Action != "metrics.read" {
		t.Errorf("%+v", rows)
	}
}

// Filters hold together and over pages, and what a page costs does not depend on what it finds.
func TestAudit_FiltersAndPages(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Idle: true})
	if _, err := h.EnsureKey(t.Context(), "demo", host.NewKey{Principal: "p", Roles: []string{"member"}, Kind: "user"}); err != nil {
		t.Fatal(err)
	}
	from := h.Clock.Now()
	const n = 6_000
	for i := range n {
		h.Clock.Advance(time.Second)
		if err := h.Note(t.Context(), host.Note{Action: []string{"even", "odd"}[i%2], TargetKind: "n", Target: fmt.Sprint(i % 100)}); err != nil {
			t.Fatal(err)
		}
	}
	pages := func(f host.AuditFilter) (rows []host.AuditRow, pages int) {
		for {
			got, next, err := h.Audit(t.Context(), hosttest.Admin, hosttest.Body(f))
			if err != nil {
				t.Fatal(err)
			}
			pages++
			rows = append(rows, got...)
			if next == "" {
				return rows, pages
			}
			if next <= f.After && len(next) <= len(f.After) {
				t.Fatalf("the cursor went from %s to %s", f.After, next)
			}
			f.After = next
		}
	}
	if rows, k := pages(host.AuditFilter{Action: "never"}); len(rows) != 0 || k != 2 {
		t.Errorf("nothing found in %d pages of %d rows", k, len(rows))
	}
	if rows, _ := pages(host.AuditFilter{Action: "odd", Target: "7", Limit: 7}); len(rows) != n/100 {
		t.Errorf("%d rows", len(rows))
	}
	if rows, _ := pages(host.AuditFilter{Action: "even", Target: "7"}); len(rows) != 0 {
		t.Errorf("%d rows of two filters that exclude each other", len(rows))
	}
	stretch := host.AuditFilter{From: host.Time(from.Add(1000 * time.Second)), To: host.Time(from.Add(1100 * time.Second)), Action: "odd", Limit: 3}
	if rows, _ := pages(stretch); len(rows) != 50 {
		t.Errorf("%d rows of a stretch", len(rows))
	}
	if rows, _ := pages(host.AuditFilter{Actor: "nobody"}); len(rows) != 0 {
		t.Errorf("%d rows of nobody", len(rows))
	}
	stretch.Action, stretch.Limit = "", 0
	out := lines(t, h, hosttest.Admin, stretch)
	if len(out) != 100 {
		t.Errorf("an export of 100 seconds has %d rows", len(out))
	}
	if faults := checked(host.AuditCheck{Segment: true}, out); faults != nil {
		t.Errorf("a stretch is no chain: %q", faults)
	}
	if out := lines(t, h, hosttest.Admin, host.AuditFilter{To: host.Time(from.Add(time.Millisecond))}); len(out) != 1 {
		t.Errorf("before everything but the key: %d rows", len(out))
	}
	if out := lines(t, h, hosttest.Admin, host.AuditFilter{From: host.Time(h.Clock.Now().Add(time.Hour))}); len(out) != 0 {
		t.Errorf("after everything: %d rows", len(out))
	}
	if out := lines(t, h, hosttest.Admin, host.AuditFilter{After: fmt.Sprint(n - 10)}); len(out) != 11 {
		t.Errorf("after a row: %d rows", len(out))
	}
}

// Clocks go back. A stretch of an export has no hole all the same, and loses nothing that belongs into it.
func TestAudit_AnExportIsWithoutHolesThoughClocksGoBack(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Idle: true})
	if _, err := h.EnsureKey(t.Context(), "demo", host.NewKey{Principal: "p", Roles: []string{"member"}, Kind: "user"}); err != nil {
		t.Fatal(err)
	}
	start := h.Clock.Now()
	for _, hour := range []int{1, 2, 9, 3, 4, 5, 1} {
		h.Clock.Advance(start.Add(time.Duration(hour) * time.Hour).Sub(h.Clock.Now()))
		if err := h.Note(t.Context(), host.Note{Action: "tick", TargetKind: "hour", Target: fmt.Sprint(hour)}); err != nil {
			t.Fatal(err)
		}
	}
	e, err := h.ExportAudit(t.Context(), hosttest.Admin, hosttest.Body(host.AuditFilter{From: host.Time(start.Add(2 * time.Hour)), To: host.Time(start.Add(5 * time.Hour))}))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Note(t.Context(), host.Note{Action: "tick", Target: "later"}); err != nil { // not part of an export that has begun
		t.Fatal(err)
	}
	rows, err := e.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var hours []string
	for _, r := range rows {
		hours = append(hours, r.TargetID)
	}
	if got := strings.Join(hours, " "); got != "2 9 3 4 5 1" {
		t.Errorf("from 2 to 5: %s", got)
	}
	if _, err := e.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// Sixty-four people at once, some refused, in two tenants: two chains, each whole.
func TestAudit_OneChainForEachTenantUnderLoad(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	var wg sync.WaitGroup
	const people, each = 64, 8
	for p := range people {
		a := hosttest.Owner
		if p%2 == 1 {
			a = host.Actor{Tenant: "other", ID: "other_owner", Kind: host.KindUser, Roles: []string{host.RoleOwner}}
		}
		wg.Go(func() {
			for i := range each {
				name := fmt.Sprintf("p%d-%d", p, i)
				if _, _, err := h.SaveAgent(context.Background(), a, name, hosttest.Body(json.RawMessage(`{"planner":{"kind":"external"},"tools":["write_file"],"interrupt_on":{"write_file":false}}`))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, a := range []host.Actor{hosttest.Owner, hosttest.OtherAdmin} {
		// each save also removes default stops
		rows := lines(t, h, a, host.AuditFilter{})
		if n := wantChain(t, h, a); n < people/2*each*2 || n != len(rows) {
			t.Errorf("%d rows in %s", n, a.Tenant)
		}
		for _, row := range rows {
			if !strings.HasPrefix(row, `{"tenant":"`+a.Tenant+`",`) {
				t.Fatalf("in the audit of %s: %s", a.Tenant, row)
			}
		}
	}
}

// panics is a planner with a bug.
type panics struct{}

func (panics) Check(json.RawMessage) error { return nil }

func (panics) Next(_ json.RawMessage, f host.Frame) (host.Proposal, error) {
	if f.Turn > 0 {
		panic("a bug")
	}
	return host.Proposal{Calls: []host.ProposedCall{{Tool: "echo", Arguments: json.RawMessage(`{}`)}}}, nil
}

// A run that the host gives up ends in the audit: nobody decided that.
func TestAudit_ARunGivenUpIsARow(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Config: func(c *host.Config) { c.Planners["panics"] = panics{} }})
	h.Agent("bad", `{"planner":{"kind":"panics"},"tools":["echo"]}`)
	run, err := h.CreateRun(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(host.NewRun{Agent: "bad"}))
	if err != nil {
		t.Fatal(err)
	}
	if run, err = h.WaitRun(t.Context(), hosttest.Member, run.ID); err != nil || run.State != store.RunFailed {
		t.Fatalf("%+v %v", run, err)
	}
	rows := h.AuditRows("demo")
	last := rows[len(rows)-1]
	if last.Action != "run.give_up" || last.ActorKind != "system" || last.TargetID != run.ID || last.Outcome != "error" {
		t.Errorf("%+v", rows)
	}
}
