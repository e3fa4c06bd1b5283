package api_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
)

// A socket that authenticated long ago has the rights of now, frame by frame and event by event.
func TestInvariant7_ADemotionCountsOnOpenSocketsAtOnce(t *testing.T) {
	t.Parallel()
	r := dev(t)
	key := r.ok("owner", "POST", "/v1/keys", `{"principal":"ann","roles":["admin"],"kind":"user"}`).str("key")
	w := r.ws(key)
	run := r.paused("member")
	w.text(`{"type":"subscribe","id":"q","queue":true}`)
	w.want("snapshot")
	w.text(sub("r", run.ID))
	w.want("pause") // with its token
	r.ok("owner", "PUT", "/v1/principals/ann", `{"roles":["member"]}`)
	decide := func(id string, run host.Run) map[string]any {
		return with(decisions(run.Pause, "approve"), "type", "decide", "id", id, "run", run.ID)
	}
	w.text(decide("d", run))
	if p := w.problem(404, "d"); p["code"] != "not_found" { // a member does not see another's run
		t.Errorf("%v", p)
	}
	w.text(map[string]any{"type": "resume", "id": "t", "resume_token": run.Pause.ResumeToken, "decisions": decisions(run.Pause, "approve")["decisions"]})
	w.problem(403, "t")
	// What happens now to others is not theirs to see any more: neither in the queue nor in the run.
	r.ok("owner", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"))
	r.paused("member2")
	own := r.run(key, "ops")
	for seen := false; !seen; {
		m, err := w.read()
		if err != nil {
			t.Fatal(err)
		}
		if m["type"] == "error" && m["id"] == "r" {
			continue // the run has become unknown
		}
		e, ok := m["event"].(map[string]any)
		if !ok {
			t.Fatalf("%v", m)
		}
		if e["run_id"] != own.ID {
			t.Errorf("a member is shown %v", m)
		}
		seen = e["run_id"] == own.ID
	}
	r.ok("owner", "PUT", "/v1/principals/ann", `{"roles":["admin"]}`)
	w.text(decide("e", own))
	for {
		m, err := w.read()
		if err != nil || m["type"] == "error" {
			t.Fatalf("an admin again: %v %v", m, err)
		}
		if m["type"] == "ack" {
			break
		}
	}
}

func TestDisablingAPrincipalClosesItsSocketsAndStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Config: func(c *host.Config) { c.OperatorTenant = "demo" }})
	r.ok("owner", "PUT", "/v1/principals/heir", `{"roles":["owner"]}`)
	for name, end := range map[string]func(){
		"disabled": func() { r.ok("owner", "PUT", "/v1/principals/ann", `{"roles":["admin"],"disabled":true}`) },
		"removed":  func() { r.ok("owner", "DELETE", "/v1/principals/ann", nil) },
	} {
		one, two := r.newKey(host.Actor{Tenant: "demo", ID: "ann", Kind: "user", Roles: []string{"admin"}}), r.newKey(host.Actor{Tenant: "demo", ID: "ann", Kind: "user", Roles: []string{"admin"}})
		run := r.paused("member")
		a, b, keep := r.ws(one), r.handshake(""), r.ws("admin")
		b.text(map[string]any{"type": "hello", "token": two})
		b.want("welcome")
		stream := r.stream(one, run.ID, "")
		stream.next()
		ticket := r.ok(one, "POST", "/v1/ws/ticket", nil).str("ticket")
		end()
		a.closes(4403)
		b.closes(4403)
		stream.ends()
		if w := r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+ticket); w.status != 401 {
			t.Errorf("%s: a ticket from before: %d", name, w.status)
		}
		r.refused(one, "GET", "/v1/runs", nil, 401, "unauthenticated")
		keep.text(`{"type":"ping"}`)
		keep.want("pong")
	}
	w := r.ws("other_admin")
	r.ok("owner", "PATCH", "/v1/tenants/other", `{"disabled":true}`)
	w.closes(4403)
	r.refused("other_admin", "GET", "/v1/runs", nil, 401, "unauthenticated")
	r.ok("owner", "PATCH", "/v1/tenants/other", `{"disabled":false}`)
	r.ok("other_admin", "GET", "/v1/runs", nil)
	r.refused("heir", "GET", "/v1/tenants", nil, 401, "unauthenticated") // a principal without a key
	r.refused("admin", "GET", "/v1/tenants", nil, 403, "forbidden")
	made := r.ok("owner", "POST", "/v1/tenants", `{"name":"acme","owner":"eve"}`)
	r.ok(made.str("key", "key"), "PATCH", "/v1/tenant", `{"second_party":true}`)
	if got := r.ok("owner", "GET", "/v1/tenants", nil); got.status != 200 || len(got.json["tenants"].([]any)) != 3 {
		t.Errorf("%s", got.raw)
	}
	if got := r.ok("owner", "GET", "/v1/tenants/acme", nil); got.json["second_party"] != true {
		t.Errorf("%s", got.raw)
	}
	r.refused("owner", "GET", "/v1/tenants/nobody", nil, 404, "not_found")
	r.refused("owner", "DELETE", "/v1/principals/nobody", nil, 404, "not_found")
}

// Decisions of two users that cross each other, on sockets and over REST, are each the sender's own: nobody is allowed, and nobody is
// named, for another.
func TestInvariant7_CrossingDecisionsAreEachTheirSenders(t *testing.T) {
	t.Parallel()
	r := dev(t)
	const rounds = 20
	admin, member := r.ws("admin"), r.ws("member")
	runs := make([]host.Run, rounds)
	for i := range runs {
		runs[i] = r.paused("member")
	}
	var wg sync.WaitGroup
	answers := func(w *rawWS, n int, count map[string]int) {
		for range n {
			m, err := w.read()
			if err != nil {
				t.Errorf("%v", err)
				return
			}
			kind, _ := m["type"].(string)
			if p, ok := m["problem"].(map[string]any); ok {
				kind = fmt.Sprint(p["code"])
			}
			count[kind]++
		}
	}
	byAdmin, byMember := map[string]int{}, map[string]int{}
	wg.Go(func() { answers(admin, rounds, byAdmin) })
	wg.Go(func() { answers(member, rounds, byMember) })
	for i, run := range runs {
		frame := with(decisions(run.Pause, "reject"), "type", "decide", "id", i, "run", run.ID)
		wg.Go(func() {
			r.refused("bot", "POST", "/v1/runs/"+run.ID+"/approvals", decisions(run.Pause, "approve"), 403, "forbidden")
		})
		member.text(with(frame, "decisions", decisions(run.Pause, "approve")["decisions"]))
		admin.text(frame)
	}
	wg.Wait()
	if byAdmin["ack"] != rounds || byMember["forbidden"] != rounds {
		t.Errorf("admin got %v, member %v", byAdmin, byMember)
	}
	for _, run := range runs {
		var list struct{ Approvals []host.Approval }
		if err := json.Unmarshal(r.ok("admin", "GET", "/v1/runs/"+run.ID+"/approvals", nil).raw, &list); err != nil {
			t.Fatal(err)
		}
		for _, a := range list.Approvals {
			if a.Decision == nil || a.Decision.DecidedBy != "admin" || a.Decision.Kind != "reject" {
				t.Errorf("%s: %+v", run.ID, a.Decision)
			}
		}
	}
}
