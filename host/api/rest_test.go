package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
)

func TestARunOverREST(t *testing.T) {
	t.Parallel()
	r := dev(t)
	a := r.ok("member", "POST", "/v1/runs", map[string]any{"agent": "ops", "session_id": "s1"}, "Prefer", "wait=20")
	if a.status != 201 || a.header.Get("Preference-Applied") != "wait=20" || a.header.Get("Location") != "/v1/runs/"+a.str("id") {
		t.Errorf("%d %v", a.status, a.header)
	}
	run := a.str("id")
	if a.str("state") != "awaiting_approval" || a.str("pause", "resume_token") == "" || a.str("session_id") != "s1" {
		t.Fatalf("%s", a.raw)
	}
	list := r.ok("member", "GET", "/v1/runs?state=awaiting_approval", nil)
	if strings.Contains(string(list.raw), "resume_token") || !strings.Contains(string(list.raw), run) {
		t.Errorf("list: %s", list.raw)
	}
	aps := r.ok("member", "GET", "/v1/runs/"+run+"/approvals", nil)
	id := aps.json["approvals"].([]any)[0].(map[string]any)["id"].(string)
	queue := r.ok("admin", "GET", "/v1/approvals?state=pending", nil)
	if !strings.Contains(string(queue.raw), id) {
		t.Errorf("queue: %s", queue.raw)
	}
	body := map[string]any{"decisions": []any{map[string]any{"approval_id": id, "kind": "approve", "message": "fine"}}}
	if a := r.refused("member", "POST", "/v1/runs/"+run+"/approvals", body, 403, "forbidden"); len(a.json["reasons"].([]any)) == 0 {
		t.Errorf("403 without reasons: %s", a.raw)
	}
	first := r.ok("admin", "POST", "/v1/runs/"+run+"/approvals", body, "Idempotency-Key", "k 1")
	again := r.ok("admin", "POST", "/v1/runs/"+run+"/approvals", body, "Idempotency-Key", "k 1")
	if first.status != 200 || again.status != 200 || again.str("id") != run {
		t.Errorf("repeat: %d %s", again.status, again.raw)
	}
	r.refused("admin", "POST", "/v1/runs/"+run+"/approvals", with(body, "tool_context", map[string]any{"x": 1}), 422, "idempotency_mismatch", "Idempotency-Key", "k 1")
	lost := r.refused("owner", "POST", "/v1/runs/"+run+"/approvals", body, 409, "already_decided")
	if d := lost.json["decisions"].([]any)[0].(map[string]any); d["decided_by"] != "admin" || d["kind"] != "approve" || d["approval_id"] != id {
		t.Errorf("the loser is told %s", lost.raw)
	}
	r.Settled(run)
	done := r.ok("member", "GET", "/v1/runs/"+run, nil)
	if done.str("state") != "succeeded" || done.json["output"] != "done" {
		t.Errorf("%s", done.raw)
	}
	if a := r.ok("member", "GET", "/v1/runs/"+run+"/trajectory", nil); len(a.json["messages"].([]any)) == 0 {
		t.Errorf("%s", a.raw)
	}
	if rows := r.ok("admin", "GET", "/v1/audit?action=approval.decide&limit=10", nil); !strings.Contains(string(rows.raw), `"outcome":"denied"`) || !strings.Contains(string(rows.raw), `"outcome":"ok"`) {
		t.Errorf("audit: %s", rows.raw)
	}
}

func TestAToolCallAnswersItsResultItsErrorOrItsPause(t *testing.T) {
	t.Parallel()
	r := dev(t)
	a := r.ok("member", "POST", "/v1/tools/echo/call", `{"arguments":{"x":"<&>"}}`)
	if a.status != 200 || a.json["result"].(map[string]any)["x"] != "<&>" || a.json["error"] != nil {
		t.Errorf("%d %s", a.status, a.raw)
	}
	if a := r.ok("member", "POST", "/v1/tools/fail/call", `{"arguments":{}}`); a.status != 200 || a.str("error", "code") == "" || a.json["result"] != nil {
		t.Errorf("%d %s", a.status, a.raw)
	}
	a = r.ok("member", "POST", "/v1/tools/write_file/call", `{"arguments":{"path":"/memories/x","content":""}}`)
	if a.status != 202 || a.str("run", "pause", "resume_token") == "" {
		t.Errorf("%d %s", a.status, a.raw)
	}
	r.refused("member", "POST", "/v1/tools/nope/call", `{"arguments":{}}`, 404, "not_found")
	r.refused("member", "POST", "/v1/tools/echo/call", `{"agent":"nobody","arguments":{}}`, 404, "not_found")
	if a := r.ok("member", "POST", "/v1/tools/write_file/call", `{"arguments":{"path":1}}`); a.str("error", "code") != "invalid_arguments" {
		t.Errorf("arguments that miss the schema end the call: %d %s", a.status, a.raw)
	}
}

func TestAnExternalPlannerDrivesItsRun(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.ok("member", "POST", "/v1/runs", `{"agent":"ext"}`, "Prefer", "wait=20").str("id")
	call := `{"turn":1,"calls":[{"tool_call_id":"a","tool":"echo","arguments":{}}],"planner_state":{"n":1}}`
	r.refused("member", "POST", "/v1/runs/"+run+"/calls", `{"turn":2,"calls":[{"tool":"echo","arguments":{}}]}`, 409, "wrong_turn")
	if a := r.refused("member", "POST", "/v1/runs/"+run+"/calls", `{"turn":1,"calls":[{"tool":"echo"}]}`, 400, "invalid"); a.str("pointer") != "/calls/0/arguments" {
		t.Errorf("%s", a.raw)
	}
	r.ok("member", "POST", "/v1/runs/"+run+"/calls", call)
	r.Settled(run)
	if a := r.ok("member", "POST", "/v1/runs/"+run+"/calls", call); a.status != 200 {
		t.Errorf("a repeat of the stored batch: %d", a.status)
	}
	if a := r.refused("member", "POST", "/v1/runs/"+run+"/finish", `{"turn":2}`, 400, "invalid"); a.str("pointer") != "/output" {
		t.Errorf("%s", a.raw)
	}
	if a := r.ok("member", "POST", "/v1/runs/"+run+"/finish", `{"turn":2,"output":null}`); a.str("state") != "succeeded" || !strings.Contains(string(a.raw), `"output":null`) {
		t.Errorf("null is an output: %s", a.raw)
	}
}

// Whatever is wrong with a request, the answer is the first of 413, 401, 404, 403, 400.
func TestChecksComeInTheirOrder(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member").ID
	huge := `{"a":"` + strings.Repeat("x", 1<<20) + `"}`
	for _, path := range []string{"/v1/runs", "/v1/runs/" + run + "/approvals", "/v1/resume", "/v1/keys", "/v1/nope", "/v1/policy/evaluate"} {
		r.refused("nobody", "POST", path, huge, 413, "too_large")
		r.refused("", "POST", path, struct{ io.Reader }{strings.NewReader(huge)}, 413, "too_large") // chunked: no length is told
		a := r.refused("nobody", "POST", path, `{`, 401, "unauthenticated")
		if a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("401 of %s without WWW-Authenticate", path)
		}
		r.refused("", "POST", path, `{`, 401, "unauthenticated")
	}
	r.refused("other_admin", "POST", "/v1/runs/"+run+"/approvals", `{`, 404, "not_found")
	r.refused("member2", "POST", "/v1/runs/"+run+"/approvals", `{`, 404, "not_found")
	r.refused("member2", "POST", "/v1/runs/"+run+"/cancel", `{`, 404, "not_found")
	r.refused("member", "POST", "/v1/runs/"+run+"/approvals", `{`, 403, "forbidden")
	r.refused("service", "POST", "/v1/runs/"+run+"/approvals", `{`, 401, "unauthenticated")
	r.refused("bot", "POST", "/v1/runs/"+run+"/approvals", `{`, 403, "forbidden")
	r.refused("admin", "POST", "/v1/runs/"+run+"/approvals", `{`, 400, "invalid")
	r.refused("admin", "POST", "/v1/runs/"+run+"/approvals", `{"decisions":[]}`, 400, "invalid", "Idempotency-Key", "ä")
	a := r.refused("admin", "POST", "/v1/runs/"+run+"/approvals", `{"decisions":[]}`, 409, "incomplete")
	if len(a.json["outstanding"].([]any)) != 1 {
		t.Errorf("%s", a.raw)
	}
	for _, path := range []string{"/v1/keys?limit=x", "/v1/audit?limit=x", "/v1/audit?from=yesterday"} {
		r.refused("member", "GET", path, nil, 403, "forbidden")
		r.refused("admin", "GET", path, nil, 400, "invalid")
	}
	for _, body := range []string{`{`, `[]`, ``} {
		r.refused("member", "PUT", "/v1/agents/a", body, 403, "forbidden")
		r.refused("admin", "PUT", "/v1/agents/a", body, 400, "invalid")
	}
}

func TestUnknownRoutesAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	r := dev(t)
	for _, path := range []string{"/", "/v2/runs", "/favicon.ico", "/healthz/"} {
		r.refused("", "GET", path, nil, 404, "not_found")
	}
	for _, path := range []string{"/v1", "/v1/", "/v1/runs/", "/v1/nope", "/v1/runs/x/nope", "/v1//runs", "/v1/%2e%2e/runs", "/v1/oauth/x"} {
		r.refused("", "GET", path, nil, 401, "unauthenticated")
		r.refused("member", "GET", path, nil, 404, "not_found")
	}
	if a := r.refused("member", "PATCH", "/v1/runs", nil, 405, "method_not_allowed"); a.header.Get("Allow") != "GET, POST" {
		t.Errorf("Allow: %s", a.header.Get("Allow"))
	}
	r.refused("", "PATCH", "/v1/runs", nil, 401, "unauthenticated")
	if a := r.refused("", "POST", "/healthz", nil, 405, "method_not_allowed"); a.header.Get("Allow") != "GET" {
		t.Errorf("Allow: %s", a.header.Get("Allow"))
	}
	if a := r.do("member", "HEAD", "/v1/runs", nil); a.status != 200 || len(a.raw) != 0 {
		t.Errorf("HEAD: %d %q", a.status, a.raw)
	}
}

// what others may learn about a thing: nothing, not even that it is there.
func TestInvariant10_UnknownAndForeignAreEqualToTheByte(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	unknown := "run_019e0000-0000-7000-8000-000000000000"
	garbage := []string{"x", "run_", "..%2f", "%00", strings.Repeat("a", 5000)}
	strip := func(a answered) string {
		h := maps.Clone(a.header)
		delete(h, "Date")
		return fmt.Sprint(a.status, h, string(a.raw))
	}
	answer := `{"decisions":[]}`
	for _, op := range []struct{ method, path, body string }{
		{"GET", "/v1/runs/%s", ""}, {"GET", "/v1/runs/%s/trajectory", ""}, {"GET", "/v1/runs/%s/approvals", ""}, {"GET", "/v1/runs/%s/events", ""},
		{"POST", "/v1/runs/%s/approvals", answer}, {"POST", "/v1/runs/%s/cancel", ""}, {"POST", "/v1/runs/%s/token", ""},
		{"POST", "/v1/runs/%s/calls", `{"turn":1,"calls":[]}`}, {"POST", "/v1/runs/%s/finish", `{"turn":1,"output":1}`}, {"POST", "/v1/runs/%s/input", `{"input":1}`},
	} {
		for _, who := range []string{"member2", "other_admin", "other_member"} {
			want := strip(r.refused(who, op.method, fmt.Sprintf(op.path, unknown), op.body, 404, "not_found"))
			for _, id := range append(garbage, run.ID) {
				if got := strip(r.refused(who, op.method, fmt.Sprintf(op.path, id), op.body, 404, "not_found")); got != want {
					t.Errorf("%s %s by %s\n got %s\nwant %s", op.method, id, who, got, want)
				}
			}
		}
	}
	// Tokens: malformed, flipped, cut, another tenant's, padded, with other base64 letters.
	tok := run.Pause.ResumeToken
	flip := []byte(tok)
	flip[len(flip)/2] ^= 1
	if flip[len(flip)/2] < '0' {
		flip[len(flip)/2] = 'Z'
	}
	body := func(token string) string {
		b, _ := json.Marshal(with(decisions(run.Pause, "approve"), "resume_token", token))
		return string(b)
	}
	want := strip(r.refused("admin", "POST", "/v1/resume", body("x"), 404, "not_found"))
	for _, bad := range []string{"", string(flip), tok[:len(tok)-1], tok + "=", tok + "A", " " + tok, tok + "\n", strings.ToUpper(tok), "pause_x"} {
		if got := strip(r.refused("admin", "POST", "/v1/resume", body(bad), 404, "not_found")); got != want {
			t.Errorf("token %q\n got %s\nwant %s", bad, got, want)
		}
	}
	for _, who := range []string{"other_admin", "other_member"} {
		if got := strip(r.refused(who, "POST", "/v1/resume", body(tok), 404, "not_found")); got != want {
			t.Errorf("%s with a foreign token\n got %s\nwant %s", who, got, want)
		}
	}
	r.refused("member2", "POST", "/v1/resume", body(tok), 403, "forbidden")
	r.refused("member", "POST", "/v1/resume", body(tok), 403, "forbidden")
	// Keys and agents.
	keys := r.ok("other_admin", "GET", "/v1/keys", nil).json["keys"].([]any)
	foreign := keys[0].(map[string]any)["id"].(string)
	if a, b := strip(r.refused("admin", "DELETE", "/v1/keys/"+foreign, nil, 404, "not_found")), strip(r.refused("admin", "DELETE", "/v1/keys/nope", nil, 404, "not_found")); a != b {
		t.Errorf("keys\n%s\n%s", a, b)
	}
	if a, b := strip(r.refused("other_admin", "GET", "/v1/agents/ops", nil, 404, "not_found")), strip(r.refused("other_admin", "GET", "/v1/agents/nope", nil, 404, "not_found")); a != b {
		t.Errorf("agents\n%s\n%s", a, b)
	}
	if a := r.ok("member", "GET", "/v1/runs/"+run.ID, nil); a.str("state") != "awaiting_approval" || a.str("pause", "resume_token") != tok {
		t.Errorf("a bad request changed something: %s", a.raw)
	}
}

// Every route, by everybody: on the own run of member, in tenant demo.
func TestInvariant10_EveryRouteByEverybody(t *testing.T) {
	t.Parallel()
	r := dev(t)
	who := []string{"", "owner", "admin", "member", "member2", "bot", "other_admin", "other_member"}
	all := func(status int) []int { return []int{401, status, status, status, status, status, status, status} }
	managers := func(status, other int) []int { return []int{401, status, status, 403, 403, other, status, 403} }
	tested := map[string]bool{}
	seq := 0
	for _, tt := range []struct {
		method, path, body string
		want               []int
	}{
		{"POST", "/v1/runs", `{"agent":"free"}`, []int{401, 201, 201, 201, 201, 201, 404, 404}}, // the other tenant has no such agent
		{"GET", "/v1/runs", "", all(200)},
		{"GET", "/v1/runs/{run}", "", []int{401, 200, 200, 200, 404, 200, 404, 404}},
		{"GET", "/v1/runs/{run}/trajectory", "", []int{401, 200, 200, 200, 404, 200, 404, 404}},
		{"GET", "/v1/runs/{run}/approvals", "", []int{401, 200, 200, 200, 404, 200, 404, 404}},
		{"POST", "/v1/runs/{run}/calls", `{"turn":1,"calls":[{"tool":"echo","arguments":{}}]}`, []int{401, 409, 409, 409, 404, 409, 404, 404}},
		{"POST", "/v1/runs/{run}/finish", `{"turn":1,"output":1}`, []int{401, 409, 409, 409, 404, 409, 404, 404}},
		{"POST", "/v1/runs/{run}/input", `{"input":"and another thing"}`, []int{401, 409, 409, 409, 404, 409, 404, 404}},
		{"POST", "/v1/runs/{run}/cancel", "", []int{401, 200, 200, 200, 404, 200, 404, 404}},
		{"POST", "/v1/runs/{run}/token", "", []int{401, 200, 200, 200, 404, 403, 404, 404}},
		{"POST", "/v1/runs/{run}/approvals", "{decisions}", []int{401, 200, 200, 403, 404, 403, 404, 404}},
		{"POST", "/v1/resume", "{resume}", []int{401, 200, 200, 403, 403, 403, 404, 404}},
		{"GET", "/v1/runs/{run}/events", "", []int{401, 400, 400, 400, 404, 400, 404, 404}}, // with a bad cursor, so that it ends
		{"GET", "/v1/approvals", "", all(200)},
		{"GET", "/v1/approvals/{approval}", "", []int{401, 200, 200, 200, 404, 200, 404, 404}},
		{"GET", "/v1/tools", "", all(200)},
		{"POST", "/v1/tools/{tool}/call", `{"arguments":{}}`, []int{401, 200, 200, 200, 200, 200, 404, 404}},
		{"GET", "/v1/agents", "", all(200)},
		{"GET", "/v1/agents/{name}", "", []int{401, 200, 200, 200, 200, 200, 404, 404}},
		{"PUT", "/v1/agents/{name}", `{"planner":{"kind":"external"},"tools":["echo"]}`, managers(201, 201)},
		{"DELETE", "/v1/agents/{name}", "", []int{401, 204, 204, 403, 403, 204, 404, 404}},
		{"GET", "/v1/audit", "", managers(200, 200)},
		{"GET", "/v1/audit/head", "", managers(200, 200)},
		{"GET", "/v1/audit/export", "", managers(200, 200)},
		{"GET", "/v1/keys", "", managers(200, 200)},
		{"POST", "/v1/keys", `{"principal":"new","roles":["member"],"kind":"user"}`, managers(201, 403)},
		{"DELETE", "/v1/keys/{id}", "", []int{401, 204, 204, 403, 403, 204, 404, 404}},
		{"GET", "/v1/principals", "", managers(200, 200)},
		{"GET", "/v1/principals/{id}", "", []int{401, 200, 200, 403, 403, 200, 404, 403}},
		{"PUT", "/v1/principals/{id}", `{"roles":["member"]}`, []int{401, 200, 200, 403, 403, 403, 201, 403}}, // the other tenant makes its own
		{"DELETE", "/v1/principals/{id}", "", []int{401, 204, 204, 403, 403, 204, 404, 403}},
		{"GET", "/v1/tenant", "", all(200)},
		{"PATCH", "/v1/tenant", `{"second_party":false}`, []int{401, 200, 403, 403, 403, 403, 403, 403}},
		{"GET", "/v1/tenants", "", []int{401, 403, 403, 403, 403, 403, 403, 403}}, // there is no operators' tenant
		{"POST", "/v1/tenants", `{"name":"new"}`, []int{401, 403, 403, 403, 403, 403, 403, 403}},
		{"GET", "/v1/tenants/{tenant}", "", []int{401, 403, 403, 403, 403, 403, 403, 403}},
		{"PATCH", "/v1/tenants/{tenant}", `{"disabled":true}`, []int{401, 403, 403, 403, 403, 403, 403, 403}},
		{"GET", "/v1/policy", "", managers(200, 200)},
		{"POST", "/v1/policy/evaluate", `{"agent":"ops","call":{"tool":"echo","arguments":{}}}`, []int{401, 200, 200, 403, 403, 200, 404, 403}},
		{"POST", "/v1/ws/ticket", "", all(201)},
		{"GET", "/v1/ws", "", all(426)},
		{"GET", "/healthz", "", []int{200, 200, 200, 200, 200, 200, 200, 200}},
		{"GET", "/readyz", "", []int{200, 200, 200, 200, 200, 200, 200, 200}},
		{"GET", "/metrics", "", managers(200, 200)},
		{"GET", "/openapi.json", "", []int{200, 200, 200, 200, 200, 200, 200, 200}},
	} {
		tested[strings.ToLower(tt.method)+" "+strings.ReplaceAll(tt.path, "{tenant}", "{name}")] = true
		for i, actor := range who {
			seq++
			agent, key := fmt.Sprintf("a%d", seq), ""
			path, body := tt.path, tt.body
			if strings.Contains(path, "{run}") || strings.Contains(path, "{approval}") || strings.HasPrefix(body, "{resume}") {
				run := r.paused("member")
				path = strings.ReplaceAll(path, "{approval}", run.Pause.Approvals[0].ID)
				path = strings.ReplaceAll(path, "{run}", run.ID)
				b, _ := json.Marshal(decisions(run.Pause, "reject"))
				body = strings.ReplaceAll(body, "{decisions}", string(b))
				b, _ = json.Marshal(with(decisions(run.Pause, "reject"), "resume_token", run.Pause.ResumeToken))
				body = strings.ReplaceAll(body, "{resume}", string(b))
			}
			if strings.Contains(path, "{name}") {
				if tt.method != "PUT" {
					r.Agent(agent, `{"planner":{"kind":"external"},"tools":["echo"]}`)
				}
				path = strings.ReplaceAll(path, "{name}", agent)
			}
			path = strings.ReplaceAll(path, "{tenant}", "other")
			if strings.Contains(path, "principals/{id}") {
				r.ok("owner", "PUT", fmt.Sprintf("/v1/principals/p%d", seq), `{"roles":["member"]}`)
				path = strings.ReplaceAll(path, "{id}", fmt.Sprintf("p%d", seq))
			}
			if strings.Contains(path, "{id}") {
				key = r.ok("owner", "POST", "/v1/keys", `{"principal":"x","roles":["member"],"kind":"user"}`).str("id")
				path = strings.ReplaceAll(path, "{id}", key)
			}
			path = strings.ReplaceAll(path, "{tool}", "echo")
			if strings.HasSuffix(path, "/events") {
				path += "?after=x"
			}
			if a := r.do(actor, tt.method, path, body); a.status != tt.want[i] {
				t.Errorf("%s %s by %q: %d, want %d: %s", tt.method, tt.path, actor, a.status, tt.want[i], a.raw)
			}
		}
	}
	for path, ops := range openapi["paths"].(map[string]any) {
		for method := range ops.(map[string]any) {
			if !tested[method+" "+path] {
				t.Errorf("%s %s is served and not in this table", method, path)
			}
		}
	}
}

func TestInvariant10_ListsShowOwnThingsOnly(t *testing.T) {
	t.Parallel()
	r := dev(t)
	mine, theirs := r.paused("member").ID, r.paused("member2").ID
	for _, path := range []string{"/v1/runs", "/v1/approvals", "/v1/approvals?state=pending"} {
		for who, want := range map[string][2]bool{"member": {true, false}, "member2": {false, true}, "admin": {true, true}, "other_admin": {}, "other_member": {}} {
			raw := string(r.ok(who, "GET", path, nil).raw)
			if strings.Contains(raw, mine) != want[0] || strings.Contains(raw, theirs) != want[1] {
				t.Errorf("%s by %s: %s", path, who, raw)
			}
		}
	}
	if raw := string(r.ok("other_admin", "GET", "/v1/audit", nil).raw); strings.Contains(raw, "member2") || strings.Contains(raw, mine) {
		t.Errorf("audit of another tenant: %s", raw)
	}
}

func TestListsPageWithoutGapsOrRepeats(t *testing.T) {
	t.Parallel()
	r := dev(t)
	want := []string{}
	for range 7 {
		want = append(want, r.paused("member").ID)
	}
	for _, path := range []string{"/v1/runs", "/v1/approvals"} {
		got, cursor := []string{}, ""
		for range 10 {
			a := r.ok("member", "GET", path+"?limit=3"+cursor, nil)
			for _, key := range []string{"runs", "approvals"} {
				items, _ := a.json[key].([]any)
				for _, it := range items {
					m := it.(map[string]any)
					if id, ok := m["run_id"].(string); ok {
						got = append(got, id)
					} else {
						got = append(got, m["id"].(string))
					}
				}
			}
			if a.str("next") == "" {
				break
			}
			cursor = "&cursor=" + a.str("next")
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\n got %v\nwant %v", path, got, want)
		}
		r.refused("member", "GET", path+"?limit=201", nil, 400, "invalid")
		r.refused("member", "GET", path+"?cursor=%21", nil, 400, "invalid")
	}
	r.refused("member", "GET", "/v1/runs?state=sleeping", nil, 400, "invalid")
	if a := r.ok("member2", "GET", "/v1/runs", nil); !bytes.Contains(a.raw, []byte(`"runs":[]`)) {
		t.Errorf("an empty list is []: %s", a.raw)
	}
}

func TestIdempotencyKeyMakesOneRun(t *testing.T) {
	t.Parallel()
	r := dev(t)
	ids := make(chan string, 20)
	for range 20 {
		go func() {
			ids <- r.do("member", "POST", "/v1/runs", `{"agent":"ops"}`, "Idempotency-Key", "once").str("id")
		}()
	}
	first := <-ids
	for range 19 {
		if id := <-ids; id != first {
			t.Errorf("runs %s and %s", first, id)
		}
	}
	if n := len(r.ok("member", "GET", "/v1/runs", nil).json["runs"].([]any)); n != 1 {
		t.Errorf("%d runs", n)
	}
	r.refused("member", "POST", "/v1/runs", `{"agent":"free"}`, 422, "idempotency_mismatch", "Idempotency-Key", "once")
	if a := r.ok("member2", "POST", "/v1/runs", `{"agent":"free"}`, "Idempotency-Key", "once"); a.str("id") == first {
		t.Error("another principal's key is another key")
	}
	key := r.ok("owner", "POST", "/v1/keys", `{"principal":"p","roles":["member"],"kind":"user"}`, "Idempotency-Key", "k")
	again := r.ok("owner", "POST", "/v1/keys", `{"principal":"p","roles":["member"],"kind":"user"}`, "Idempotency-Key", "k")
	if key.str("key") == "" || again.str("key") != "" || key.str("id") != again.str("id") {
		t.Errorf("the secret is shown once: %s then %s", key.raw, again.raw)
	}
}

func TestPreferWaitEndsWithTheStopAndWithItsTime(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := newRig(t, api.Options{Dev: true}, hosttest.Options{Tools: slow(release)})
	r.Script("slow", `[{"calls":[{"tool_call_id":"c","tool":"slow","arguments":{}}]},{"final":1}]`, "")
	start := time.Now()
	a := r.ok("member", "POST", "/v1/runs", `{"agent":"slow"}`, "Prefer", "wait=1")
	if took := time.Since(start); a.status != 201 || took < time.Second || took > 20*time.Second || a.str("state") == "succeeded" {
		t.Errorf("%d after %v: %s", a.status, took, a.raw)
	}
	close(release)
	if a := r.ok("member", "POST", "/v1/runs", `{"agent":"slow"}`, "Prefer", "wait=50"); a.str("state") != "succeeded" {
		t.Errorf("%s", a.raw)
	}
	if a := r.ok("member", "POST", "/v1/runs", `{"agent":"slow"}`, "Prefer", "respond-async"); a.header.Get("Preference-Applied") != "" {
		t.Errorf("a preference that was not applied is named: %v", a.header)
	}
}

func TestRateLimitIsPerKeyAndOffInDev(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Rate: 0.001, Burst: 3}, hosttest.Options{})
	for range 3 {
		r.ok("member", "GET", "/v1/tools", nil)
	}
	a := r.refused("member", "GET", "/v1/tools", nil, 429, "rate_limited")
	if a.header.Get("Retry-After") == "" || a.header.Get("Retry-After") == "0" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	r.refused("member", "GET", "/v1/runs/unknown", nil, 429, "rate_limited")
	r.refused("nobody", "GET", "/v1/tools", nil, 401, "unauthenticated")
	r.ok("member2", "GET", "/v1/tools", nil)
	d := dev(t)
	for range 300 {
		d.ok("member", "GET", "/v1/tools", nil)
	}
}

func TestMetricsAreForManagersUnlessOpen(t *testing.T) {
	t.Parallel()
	r := dev(t)
	r.run("member", "free")
	r.ok("owner", "PATCH", "/v1/tenant", `{}`)
	a := r.ok("admin", "GET", "/metrics", nil)
	docs, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (pawl_\w+)`).FindAllSubmatch(a.raw, -1) {
		if !strings.Contains(string(docs), "`"+string(m[1])+"`") {
			t.Errorf("docs/operating.md has no %s", m[1])
		}
	}
	for _, line := range []string{
		`pawl_http_requests_total{method="POST",route="/v1/runs",status="201"} 1`, `pawl_http_requests_total{method="PATCH",route="/v1/tenant",status="200"} 1`, `pawl_run_transitions_total{to="created"} 1`,
		`pawl_run_transitions_total{to="finished"} 1`, "pawl_websockets 0", "pawl_runs_waiting 0",
	} {
		if !strings.Contains(string(a.raw), line+"\n") {
			t.Errorf("no %s in\n%s", line, a.raw)
		}
	}
	if strings.Contains(string(a.raw), "run_0") {
		t.Error("an id became a label")
	}
	open := newRig(t, api.Options{Dev: true, MetricsOpen: true, Version: "v9"}, hosttest.Options{})
	if a := open.ok("", "GET", "/metrics", nil); !strings.Contains(string(a.raw), `version="v9"`) {
		t.Errorf("%s", a.raw)
	}
}

// Public failure HS4.
func TestRequestsBoundTheirBodiesToTheByte(t *testing.T) {
	t.Parallel()
	r := dev(t)
	pad := func(n int) string {
		s := `{"agent":"free","input":""}`
		return strings.Replace(s, `""`, `"`+strings.Repeat("x", n-len(s))+`"`, 1)
	}
	if a := r.ok("member", "POST", "/v1/runs", pad(1<<20)); a.status != 201 {
		t.Errorf("1 MiB: %d", a.status)
	}
	r.refused("member", "POST", "/v1/runs", pad(1<<20+1), 413, "too_large")
	r.refused("member", "POST", "/v1/runs", pad(5<<20), 413, "too_large")
	deep := `{"agent":"free","input":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}`
	if a := r.refused("member", "POST", "/v1/runs", deep, 400, "invalid"); !strings.HasPrefix(a.str("pointer"), "/input/0") {
		t.Errorf("%s", a.raw)
	}
	for body, pointer := range map[string]string{
		`{"agent":"free","input":9007199254740993}`: "/input", `{"agent":"free","input":1e400}`: "/input", `{"agent":"free","agent":"ops"}`: "/agent",
		`{"agent":"free","input":"\ud800"}`: "/input", "{\"agent\":\"free\",\"input\":\"\xff\"}": "/input", `{"agent":"free","bogus":1}`: "/bogus",
	} {
		if a := r.refused("member", "POST", "/v1/runs", body, 400, "invalid"); a.str("pointer") != pointer {
			t.Errorf("%s: %s", body, a.raw)
		}
	}
	if n := len(r.ok("member", "GET", "/v1/runs", nil).json["runs"].([]any)); n != 1 {
		t.Errorf("a refused body made a run: %d", n)
	}
}

// The log has a line a request, and never what the request or its answer said.
func TestInvariant14_LogsHoldNoBodiesQueriesOrCredentials(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	r.do("admin", "GET", "/v1/runs?agent=secret-query", nil)
	r.do("member", "POST", "/v1/runs", `{"agent":"free","input":"secret-body","bogus":1}`)
	r.do("pawl_bad_secret-credential", "GET", "/v1/runs", nil)
	ticket := r.ok("admin", "POST", "/v1/ws/ticket", nil).str("ticket")
	r.ok("admin", "POST", "/v1/resume", with(decisions(run.Pause, "approve"), "resume_token", run.Pause.ResumeToken, "tool_context", map[string]any{"x": "secret-body"}))
	r.Settled(run.ID)
	logs := r.log.String() + r.Log.String()
	for _, secret := range append(slices.Collect(maps.Values(r.keys)), "secret-query", "secret-body", "secret-credential", ticket, run.Pause.ResumeToken) {
		if strings.Contains(logs, secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
	if !strings.Contains(logs, "route=/v1/resume") || !strings.Contains(logs, "principal=admin") {
		t.Errorf("the log tells nothing:\n%s", logs)
	}
	events, _ := json.Marshal(r.Events(run.ID))
	rows, _ := json.Marshal(r.AuditRows("demo"))
	for what, text := range map[string]string{"events": string(events), "audit": string(rows)} {
		if strings.Contains(text, run.Pause.ResumeToken) {
			t.Errorf("%s hold the resume token", what)
		}
	}
}

func TestAPanicIsA500WithoutItsText(t *testing.T) {
	t.Parallel()
	log := &hosttest.Log{}
	s := api.New(new(host.Host), api.Options{Log: slog.New(slog.NewTextHandler(log, nil))}) // a host of nothing panics where it is asked
	rec := httptest.NewRecorder()
	req, _ := http.NewRequest("GET", "/v1/runs", nil)
	req.Header.Set("Authorization", "Bearer pawl_00000000000000000000000000000000_AAAA")
	s.ServeHTTP(rec, req)
	if rec.Code != 500 || !strings.Contains(rec.Body.String(), `"code":"internal"`) || strings.Contains(rec.Body.String(), "nil pointer") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	var p struct {
		TraceID string `json:"trace_id"`
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || len(p.TraceID) != 32 || !strings.Contains(log.String(), p.TraceID) {
		t.Errorf("trace %q is not in the log: %s", p.TraceID, log)
	}
	if strings.Contains(log.String(), "pawl_secret") {
		t.Error("the log holds the credential")
	}
}

// Every list holds to its parameters, with 403 before 400.
func TestListsRefuseParametersThatTheyDoNotHave(t *testing.T) {
	t.Parallel()
	r := dev(t)
	for path, want := range map[string]string{
		"/v1/runs?stat=failed": "stat", "/v1/runs?order=newset": "order", "/v1/runs?cursor=%21": "cursor", "/v1/approvals?state=decided": "state",
		"/v1/approvals?stat=pending": "stat", "/v1/agents?nam=x": "nam", "/v1/tools?q=x": "q", "/v1/keys?limit=no": "limit", "/v1/principals?rol=x": "rol",
		"/v1/audit?acton=agent.save": "acton", "/v1/audit?from=yesterday": "from", "/v1/audit?after=%21": "after", "/v1/audit/export?frm=x": "frm",
	} {
		a := r.refused("admin", "GET", path, nil, 400, "invalid")
		if a.str("parameter") != want {
			t.Errorf("%s: %s; want %s", path, a.raw, want)
		}
	}
	r.refused("member", "GET", "/v1/audit?acton=x", nil, 403, "forbidden")
	r.ok("admin", "GET", "/v1/audit?cursor=&limit=1", nil)
}
