package api_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pawlhost/pawl/host"
)

// Public failures of other systems that show on a wire. (The ids: see ../lessons_race_test.go.)

// BY2. What a client says about a call's past is refused by its member's name, and what it keeps for itself decides nothing.
func TestInvariant7_AClientCannotSayThatItsCallWasApproved(t *testing.T) {
	t.Parallel()
	r := dev(t)
	const call = `{"tool_call_id":"c1","tool":"write_file","arguments":{"path":"/memories/x","content":"y"}%s}`
	for _, forged := range []string{
		`"state":"finished"`, `"state":"planned"`, `"result":{"version":1}`, `"approval_ids":["apr_1"]`, `"approved":true`, `"decision":{"kind":"approve","decided_by":"admin"}`, `"edited_arguments":{}`,
	} {
		name := strings.SplitN(forged, `"`, 3)[1]
		for _, tt := range []struct{ path, body string }{
			{"/v1/runs", `{"agent":"ext","calls":[` + call + `]}`}, {"/v1/policy/evaluate", `{"agent":"ext","call":` + call + `}`},
		} {
			a := r.refused("admin", "POST", tt.path, fmt.Sprintf(tt.body, ","+forged), 400, "invalid")
			if !strings.HasSuffix(a.str("pointer"), "/"+name) {
				t.Errorf("%s with %s: pointer %q", tt.path, forged, a.str("pointer"))
			}
		}
	}
	for _, forged := range []string{`{"approvals":{"write_file":true}}`, `{"approvals":{}}`, `{"user_id":"admin"}`, `{"tenant_id":"other"}`} {
		r.refused("member", "POST", "/v1/runs", `{"agent":"ext","tool_context":`+forged+`}`, 400, "invalid")
	}
	run := r.ok("member", "POST", "/v1/runs", `{"agent":"ext","planner_state":{"approvals":[{"id":"apr_1","state":"decided","decision":{"kind":"approve"}}]},`+
		`"tool_context":{"approved":true,"decision":"approve"},"calls":[`+fmt.Sprintf(call, "")+`]}`)
	if run.str("state") != "awaiting_approval" || len(r.Ran.All()) != 0 {
		t.Errorf("%s", run.raw)
	}
	// The decision of a run that somebody else decided fits no other run, whatever its shape.
	other := r.paused("member")
	for _, id := range []string{"apr_1", "apr_019e0000-0000-7000-8000-000000000000", other.Pause.Approvals[0].ID, run.str("pause", "id")} {
		r.refused("admin", "POST", "/v1/runs/"+run.str("id")+"/approvals", map[string]any{"decisions": []any{map[string]any{"approval_id": id, "kind": "approve"}}}, 400, "invalid")
	}
	if n := len(r.Ran.All()); n != 0 {
		t.Errorf("%d tools ran", n)
	}
}

// BY26. Two users' decisions come interleaved, over one wire and over two: each is judged by who sent it.
func TestInvariant7_InterleavedDecisionsAreEachTheirSenders(t *testing.T) {
	t.Parallel()
	r := dev(t)
	member, admin := r.ws("member"), r.ws("admin")
	for i := range 20 {
		run := r.paused("member")
		frame := with(decisions(run.Pause, "approve"), "type", "decide", "id", fmt.Sprint(i), "run", run.ID)
		first := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			member.text(frame)
			member.problem(403, fmt.Sprint(i))
		})
		wg.Go(func() {
			if a := r.do("member", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve")); a.status != 403 {
				t.Errorf("the member is answered %d", a.status)
			}
		})
		wg.Go(func() {
			admin.text(frame)
			if m := admin.want("ack"); m["id"] != fmt.Sprint(i) {
				t.Errorf("%v", m)
			}
			close(first)
		})
		wg.Go(func() {
			<-first
			if a := r.do("owner", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "reject")); a.status != 409 || !strings.Contains(string(a.raw), `"decided_by":"admin"`) {
				t.Errorf("who comes second is answered %d %s", a.status, a.raw)
			}
		})
		wg.Wait()
	}
}

// same is two tenants in which everything has the same names: agents, principals, sessions, labels. Each run's arguments, and those of
// its subagent, carry a marker that only its readers may meet.
type same struct {
	*rig
	runs  map[string]host.Run // by marker
	reads map[string][]string // by key: the markers that its principal may meet
}

func newSame(t *testing.T) *same {
	w := &same{dev(t), map[string]host.Run{}, map[string][]string{}}
	for _, tenant := range []string{"demo", "other"} {
		key := func(id, role string) string {
			name := tenant + "/" + id
			w.keys[name] = w.newKey(host.Actor{Tenant: tenant, ID: id, Kind: host.KindUser, Roles: []string{role}})
			return name
		}
		boss := key("boss", "owner")
		for _, id := range []string{"ann", "bob"} {
			who := key(id, "member")
			marker := "mark-" + tenant + "-" + id
			// The subagent's call has the marker too: an agent for each, of the same name in both tenants.
			doc := `{"planner":{"kind":"script","turns":[{"calls":[{"tool_call_id":"t","tool":"task","arguments":{"subagent":"w","input":"` + marker + `"}}]},{"final":"` + marker + `"}]},
				"tools":["task","write_file"],"subagents":[{"name":"w","planner":{"kind":"script","turns":[
				{"calls":[{"tool_call_id":"c","tool":"write_file","arguments":{"path":"/memories/x","content":"` + marker + `"}}]},{"final":1}]},"tools":["write_file"]}]}`
			w.ok(boss, "PUT", "/v1/agents/lead-"+id, doc)
			a := w.ok(who, "POST", "/v1/runs", map[string]any{"agent": "lead-" + id, "session_id": "s", "input": marker}, "Prefer", "wait=20", "Idempotency-Key", "same")
			var run host.Run
			if err := json.Unmarshal(a.raw, &run); err != nil || run.Pause == nil {
				t.Fatalf("%s, %v", a.raw, err)
			}
			w.runs[marker] = run
			w.reads[who], w.reads[boss] = append(w.reads[who], marker), append(w.reads[boss], marker)
		}
	}
	return w
}

// only checks that a text holds what who may meet, or at least (where) nothing else.
func (w *same) only(who, what, text string, all bool) {
	w.t.Helper()
	for marker, run := range w.runs {
		mine := slices.Contains(w.reads[who], marker)
		for _, s := range []string{marker, run.ID, run.Pause.ID, run.Pause.Approvals[0].ID, run.Pause.ResumeToken} {
			if !mine && strings.Contains(text, s) {
				w.t.Errorf("%s: %s shows %s of %s", who, what, s, marker)
			}
		}
		if mine && all && !strings.Contains(text, run.ID) {
			w.t.Errorf("%s: %s does not show the own run %s", who, what, marker)
		}
	}
}

func TestInvariant10_TwoTenantsOfTheSameNamesOverTheWires(t *testing.T) {
	t.Parallel()
	w := newSame(t)
	lists := []string{"/v1/runs", "/v1/runs?state=awaiting_approval", "/v1/approvals?state=pending"}
	for who := range w.reads {
		for _, path := range lists {
			w.only(who, path, string(w.ok(who, "GET", path, nil).raw), true)
		}
		for _, id := range []string{"ann", "bob"} { // a search by the same name, and by the session that all have
			w.only(who, "a search", string(w.ok(who, "GET", "/v1/runs?agent=lead-"+id, nil).raw), false)
			tenant, _, _ := strings.Cut(who, "/")
			if a := w.ok(who, "GET", "/v1/agents/lead-"+id, nil); strings.Count(string(a.raw), "mark-") != strings.Count(string(a.raw), "mark-"+tenant) {
				t.Errorf("%s reads the agent %s", who, a.raw) // agents are a tenant's, and all its members read them
			}
		}
		for marker, run := range w.runs {
			ap := run.Pause.Approvals[0].ID
			mine := slices.Contains(w.reads[who], marker)
			for _, path := range []string{"/v1/runs/" + run.ID, "/v1/runs/" + run.ID + "/trajectory", "/v1/runs/" + run.ID + "/approvals", "/v1/approvals/" + ap} {
				a := w.do(who, "GET", path, nil)
				if mine && (a.status != 200 || !strings.Contains(string(a.raw), marker)) || !mine && a.status != 404 {
					t.Errorf("%s reads %s of %s: %d %s", who, path, marker, a.status, a.raw)
				}
			}
			if !mine {
				w.refused(who, "GET", "/v1/runs/"+run.ID+"/events", nil, 404, "not_found")
				w.refused(who, "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"), 404, "not_found")
				w.refused(who, "POST", "/v1/runs/"+run.ID+"/cancel", nil, 404, "not_found")
			}
			if !strings.HasPrefix(marker, "mark-"+strings.Split(who, "/")[0]) {
				w.refused(who, "POST", "/v1/resume", with(decisions(run.Pause, "approve"), "resume_token", run.Pause.ResumeToken), 404, "not_found")
				// Its approval in an own run's decision: as one that nobody has.
				for _, own := range w.reads[who] {
					if strings.HasSuffix(who, "/boss") {
						w.refused(who, "POST", "/v1/runs/"+w.runs[own].ID+"/approvals", decisions(run.Pause, "approve"), 400, "invalid")
					}
				}
			}
		}
	}
	// Cursors go on in the list of who shows them, whoever was given them.
	for _, path := range append(lists, "/v1/audit") {
		for from := range w.reads {
			sep := "?"
			if strings.Contains(path, "?") {
				sep = "&"
			}
			a := w.do(from, "GET", path+sep+"limit=1", nil)
			next, name := a.str("next"), "cursor"
			if path == "/v1/audit" {
				name = "after"
			}
			if next == "" {
				continue
			}
			for who := range w.reads {
				w.only(who, path+" from the cursor of "+from, string(w.do(who, "GET", path+sep+name+"="+url.QueryEscape(next), nil).raw), false)
			}
		}
	}
}

func TestInvariant10_TheAuditAndTheQueueOfTwoTenantsOfTheSameNames(t *testing.T) {
	t.Parallel()
	w := newSame(t)
	decided := w.runs["mark-demo-ann"]
	w.refused("demo/ann", "POST", "/v1/runs/"+decided.ID+"/approvals", decisions(decided.Pause, "approve"), 403, "forbidden")
	w.ok("demo/boss", "POST", "/v1/runs/"+decided.ID+"/approvals", decisions(decided.Pause, "approve"))
	w.Settled(decided.ID)
	ap := decided.Pause.Approvals[0].ID
	for _, query := range []string{"", "?actor=boss", "?actor=ann", "?action=approval.decide", "?target=" + ap, "?action=agent.save&actor=boss"} {
		a := w.ok("other/boss", "GET", "/v1/audit"+query, nil)
		w.only("other/boss", "the audit "+query, string(a.raw), false)
		if strings.Contains(query, ap) && len(a.json["rows"].([]any)) != 0 {
			t.Errorf("%s: %s", query, a.raw)
		}
	}
	if a := w.ok("demo/boss", "GET", "/v1/audit?target="+ap, nil); len(a.json["rows"].([]any)) != 2 {
		t.Errorf("its own audit has %s", a.raw)
	}
	// The queue over a socket: the snapshot, the events from the start, and from the cursor of somebody else.
	cursors := map[string]string{}
	queue := func(who string, after any) string {
		t.Helper()
		s := w.ws(who)
		defer s.conn.Close()
		s.text(map[string]any{"type": "subscribe", "id": "q", "queue": true, "after": after})
		m, err := s.read()
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(m)
		if m["type"] != "snapshot" {
			return text // a cursor that is not its own may be refused
		}
		cursors[who], _ = m["cursor"].(string)
		s.text(`{"type":"ping","id":"end"}`)
		for {
			if m, err = s.read(); err != nil {
				t.Fatal(err)
			}
			if m["type"] == "pong" {
				return text
			}
			text += fmt.Sprint(m)
		}
	}
	for who := range w.reads {
		w.only(who, "the queue", queue(who, 0), false)
	}
	for who := range w.reads {
		for from, cursor := range cursors {
			w.only(who, "the queue from the cursor of "+from, queue(who, cursor), false)
		}
	}
	// A subscription to a run, by everybody who may not see it, and its events by who may.
	for who := range w.reads {
		s := w.ws(who)
		for marker, run := range w.runs {
			s.text(map[string]any{"type": "subscribe", "id": marker, "run": run.ID, "after": 0})
			if !slices.Contains(w.reads[who], marker) {
				s.problem(404, marker)
				continue
			}
			if m := s.want("snapshot"); m["id"] != marker || m["run"].(map[string]any)["id"] != run.ID {
				t.Errorf("%s: %v", who, m)
			}
			s.text(map[string]any{"type": "unsubscribe", "id": marker})
			s.text(map[string]any{"type": "ping", "id": "p" + marker})
			for {
				m, err := s.read()
				if err != nil {
					t.Fatal(err)
				}
				w.only(who, "a frame", fmt.Sprint(m), false)
				if m["type"] == "pong" {
					break
				}
			}
		}
		s.conn.Close()
	}
}
