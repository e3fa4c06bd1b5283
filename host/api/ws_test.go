package api_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
)

func sub(id, run string, more ...any) map[string]any {
	return with(map[string]any{"type": "subscribe", "id": id, "run": run}, more...)
}

func TestWebSocketShowsThePauseAndDecidesIt(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	w := r.ws("admin")
	if w.header.Get("Sec-Websocket-Protocol") != "pawl.v1" {
		t.Errorf("subprotocol %q", w.header.Get("Sec-Websocket-Protocol"))
	}
	w.text(sub("1", run.ID))
	snap := w.want("snapshot")
	if snap["id"] != "1" || snap["seq"].(float64) < 1 || snap["run"].(map[string]any)["pause"].(map[string]any)["resume_token"] != nil {
		t.Errorf("snapshot %v", snap)
	}
	pause := w.want("pause")["pause"].(map[string]any)
	if pause["resume_token"] != run.Pause.ResumeToken {
		t.Errorf("pause %v", pause)
	}
	w.text(with(decisions(run.Pause, "approve"), "type", "decide", "id", 7, "run", run.ID))
	seen := map[string]bool{}
	last := snap["seq"].(float64)
	for !seen["ack"] || !seen["run.finished"] {
		m, err := w.read()
		if err != nil {
			t.Fatal(err)
		}
		switch m["type"] {
		case "ack":
			seen["ack"] = true
			if m["id"] != float64(7) || m["run"].(map[string]any)["id"] != run.ID {
				t.Errorf("ack %v", m)
			}
		case "event":
			e := m["event"].(map[string]any)
			if m["seq"].(float64) != last+1 || e["seq"] != m["seq"] {
				t.Errorf("event %v after %v", m["seq"], last)
			}
			last++
			seen[e["type"].(string)] = true
			if e["type"] == "approval.decided" && strings.Contains(fmt.Sprint(m), "resume_token") {
				t.Errorf("an event with a token: %v", m)
			}
		default:
			t.Errorf("%v", m)
		}
	}
	if !seen["approval.decided"] || !seen["call.finished"] {
		t.Errorf("events %v", seen)
	}
	// The subscription ended with its run; its id is free, and unsubscribing it is fine.
	w.text(`{"type":"unsubscribe","id":"1"}`)
	w.want("ack")
	w.text(sub("1", run.ID, "after", 0))
	w.want("snapshot")
	if seqs, types := w.events("1", "run.finished"); !consecutive(1, seqs) || types[0] != "run.created" {
		t.Errorf("from the start: %v %v", seqs, types)
	}
}

func TestWebSocketResumesByTokenOnce(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	resume := with(decisions(run.Pause, "approve"), "type", "resume", "resume_token", run.Pause.ResumeToken)
	m := r.ws("member")
	m.text(with(resume, "id", "x"))
	m.problem(403, "x")
	w := r.ws("admin")
	w.text(with(resume, "id", "a", "resume_token", "garbage"))
	w.problem(404, "a")
	w.text(with(resume, "id", "b"))
	w.want("ack")
	w.text(with(resume, "id", "c"))
	if p := w.problem(409, "c"); p["code"] != "token_used" && p["code"] != "already_decided" {
		t.Errorf("%v", p)
	}
}

func TestWebSocketOriginAndCredentials(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true, Origins: []string{"https://chat.example"}}, hosttest.Options{})
	own := "http://" + r.web.Listener.Addr().String()
	host := r.web.Listener.Addr().String()
	_, port, _ := strings.Cut(host, ":")
	for _, tt := range []struct {
		who     string
		headers []string
		status  int
	}{
		{"admin", nil, 101},
		{"", nil, 101}, // it has to say hello
		{"admin", []string{"Origin", own}, 101},
		{"admin", []string{"Origin", strings.ToUpper(own)}, 101},
		{"admin", []string{"Origin", "https://chat.example"}, 101},
		{"admin", []string{"Origin", "https://chat.example.evil"}, 403},
		{"admin", []string{"Origin", "http://chat.example"}, 403},
		{"admin", []string{"Origin", "https://chat.example:8443"}, 403},
		{"admin", []string{"Origin", "https://" + host}, 403},
		{"admin", []string{"Origin", "http://127.0.0.1"}, 403},
		{"admin", []string{"Origin", "http://localhost:" + port}, 403},
		{"admin", []string{"Origin", "null"}, 403},
		{"", []string{"Origin", "https://evil.example"}, 403},
		{"nobody", []string{"Origin", "https://evil.example"}, 403},
		{"nobody", nil, 401},
		{"", []string{"Authorization", "Basic x"}, 401},
		{"", []string{"Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket.nope"}, 401},
		{"", []string{"Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."}, 401},
		{"admin", []string{"Sec-WebSocket-Protocol", "chat"}, 400},
		{"admin", []string{"Sec-WebSocket-Protocol", ""}, 101},
		{"admin", []string{"Sec-WebSocket-Version", "8"}, 400},
		{"admin", []string{"Sec-WebSocket-Key", "short"}, 400},
		{"admin", []string{"Upgrade", ""}, 426},
		{"", []string{"Upgrade", ""}, 401},
		{"nobody", []string{"Upgrade", ""}, 401},
	} {
		w := r.handshake(tt.who, tt.headers...)
		if w.status != tt.status {
			t.Errorf("%q %v: %d %s, want %d", tt.who, tt.headers, w.status, w.body, tt.status)
		}
		if w.status != 101 && w.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%q %v: %s %s", tt.who, tt.headers, w.header.Get("Content-Type"), w.body)
		}
		if w.status == 101 && tt.who != "" {
			w.want("welcome")
		}
	}
}

func TestTicketsOpenOneSocketWithinTheirTime(t *testing.T) {
	t.Parallel()
	r := dev(t)
	ticket := func() string { return r.ok("member", "POST", "/v1/ws/ticket", nil).str("ticket") }
	tk := ticket()
	w := r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+tk)
	if w.status != 101 || w.header.Get("Sec-Websocket-Protocol") != "pawl.v1" {
		t.Fatalf("%d %v", w.status, w.header)
	}
	if m := w.want("welcome"); m["principal"] != "member" {
		t.Errorf("%v", m)
	}
	if w := r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+tk); w.status != 401 {
		t.Errorf("a used ticket: %d", w.status)
	}
	tk = ticket()
	if w := r.handshake("", "Sec-WebSocket-Protocol", "pawl.ticket."+tk); w.status != 400 || strings.Contains(fmt.Sprint(w.header, string(w.body)), tk) {
		t.Errorf("a ticket alone is not a protocol, and is not echoed: %d %v", w.status, w.header)
	}
	// Of racing sockets one gets it.
	tk = ticket()
	var wg sync.WaitGroup
	statuses := make(chan int, 20)
	for range 20 {
		wg.Go(func() { statuses <- r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+tk).status })
	}
	wg.Wait()
	close(statuses)
	won := 0
	for s := range statuses {
		if s == 101 {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d of 20 sockets opened with one ticket", won)
	}
	tk = ticket()
	r.Clock.Advance(29 * time.Second)
	if w := r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+tk); w.status != 101 {
		t.Errorf("after 29 s: %d", w.status)
	}
	tk = ticket()
	r.Clock.Advance(30 * time.Second)
	if w := r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+tk); w.status != 401 {
		t.Errorf("after 30 s: %d", w.status)
	}
	// A ticket is worth no more than the key that it was given for.
	key := r.ok("owner", "POST", "/v1/keys", `{"principal":"guest","roles":["member"],"kind":"user"}`)
	tk = r.ok(key.str("key"), "POST", "/v1/ws/ticket", nil).str("ticket")
	r.ok("owner", "DELETE", "/v1/keys/"+key.str("id"), nil)
	if w := r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+tk); w.status == 101 {
		w.closes(4403)
	}
}

// What a socket is welcomed as is what it is now, and not what asked for its ticket.
func TestATicketWelcomesWithTheRolesOfNow(t *testing.T) {
	t.Parallel()
	r := dev(t)
	key := r.ok("owner", "POST", "/v1/keys", `{"principal":"guest","roles":["admin"],"kind":"user"}`).str("key")
	tk := r.ok(key, "POST", "/v1/ws/ticket", nil).str("ticket")
	r.ok("owner", "PUT", "/v1/principals/guest", `{"roles":["member"],"kind":"service"}`)
	m := r.handshake("", "Sec-WebSocket-Protocol", "pawl.v1, pawl.ticket."+tk).want("welcome")
	if fmt.Sprint(m["roles"]) != "[member]" || m["kind"] != "service" {
		t.Errorf("%v", m)
	}
}

func TestHelloAuthenticatesInTimeOrTheSocketEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Options{Dev: true, HelloTimeout: 300 * time.Millisecond}, hosttest.Options{})
	w := r.handshake("")
	w.text(map[string]any{"type": "hello", "token": r.keys["member"]})
	if m := w.want("welcome"); m["principal"] != "member" || m["time"] == nil {
		t.Errorf("%v", m)
	}
	time.Sleep(400 * time.Millisecond) // longer than the time for hello, which no longer counts
	w.text(`{"type":"ping","id":"p"}`)
	if m := w.want("pong"); m["id"] != "p" {
		t.Errorf("%v", m)
	}
	w.text(map[string]any{"type": "hello", "token": r.keys["admin"]})
	w.problem(400, nil)
	w.text(map[string]any{"type": "hello", "token": r.keys["member"]})
	w.text(`{"type":"hello"}`)
	w.text(`{"type":"ping"}`)
	if m, err := w.read(); err != nil || m["type"] != "pong" {
		t.Errorf("a hello once authenticated is quiet: %v %v", m, err)
	}
	for _, first := range []string{`{"type":"hello"}`, `{"type":"hello","token":"nope"}`, `{"type":"hello","token":7}`, `{"type":"subscribe","id":"1","queue":true}`, `{`, `[]`, `{"type":"ping"}`, `{"type":"hello","token":"` + r.keys["member"] + `","x":1}`} {
		w := r.handshake("")
		w.text(first)
		if p := w.problem(401, idOf(first)); p["code"] != "unauthenticated" {
			t.Errorf("%s: %v", first, p)
		}
		w.closes(4401)
	}
	late := r.handshake("")
	late.problem(401, nil)
	late.closes(4401)
}

func idOf(frame string) any {
	var m map[string]any
	_ = json.Unmarshal([]byte(frame), &m)
	return m["id"]
}

func TestMalformedFramesAreToldAndTheSocketStays(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	w := r.ws("admin")
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		frame   string
		status  int
		pointer string
	}{
		{``, 400, ""},
		{`{`, 400, ""},
		{`[]`, 400, ""},
		{`"x"`, 400, ""},
		{`null`, 400, ""},
		{`{}`, 400, "/type"},
		{`{"id":"1"}`, 400, "/type"},
		{`{"id":"1","type":7}`, 400, "/type"},
		{`{"id":"1","type":"nope"}`, 400, "/type"},
		{`{"id":{},"type":"ping"}`, 400, "/id"},
		{`{"id":"` + long + `","type":"ping"}`, 400, "/id"},
		{`{"id":"1","type":"ping","x":1}`, 400, "/x"},
		{`{"id":"1","id":"2","type":"ping"}`, 400, "/id"},
		{`{"type":"subscribe","queue":true}`, 400, "/id"},
		{`{"id":"1","type":"subscribe"}`, 400, "/run"},
		{`{"id":"1","type":"subscribe","run":"` + run.ID + `","queue":true}`, 400, "/queue"},
		{`{"id":"1","type":"subscribe","run":"` + run.ID + `","after":-1}`, 400, "/after"},
		{`{"id":"1","type":"subscribe","run":"` + run.ID + `","after":"1"}`, 400, "/after"},
		{`{"id":"1","type":"subscribe","run":"` + run.ID + `","after":999}`, 400, "/after"},
		{`{"id":"1","type":"subscribe","queue":true,"after":7}`, 400, "/after"},
		{`{"id":"1","type":"subscribe","queue":true,"after":"!"}`, 400, "/after"},
		{`{"id":"1","type":"subscribe","run":"run_x"}`, 404, ""},
		{`{"id":"1","type":"decide","decisions":[]}`, 400, "/run"},
		{`{"id":"1","type":"decide","run":"` + run.ID + `"}`, 400, "/decisions"},
		{`{"id":"1","type":"decide","run":"` + run.ID + `","decisions":[{"kind":"approve"}]}`, 400, "/decisions/0/approval_id"},
		{`{"id":"1","type":"decide","run":"` + run.ID + `","decisions":[{"approval_id":"a","kind":"approve","foo":1}]}`, 400, "/decisions/0/foo"},
		{`{"id":"1","type":"decide","run":"` + run.ID + `","decisions":[],"user_input":1}`, 400, "/user_input"},
		{`{"id":"1","type":"decide","run":"` + run.ID + `","decisions":[]}`, 409, ""},
		{`{"id":"1","type":"decide","run":"run_x","decisions":7}`, 404, ""},
		{`{"id":"1","type":"resume"}`, 400, "/resume_token"},
		{`{"id":"1","type":"resume","resume_token":"x"}`, 404, ""},
		{`{"id":"1","type":"ping","n":` + strings.Repeat("[", 10000) + `}`, 400, ""},
	} {
		w.text(tt.frame)
		want := idOf(tt.frame)
		if _, isString := want.(string); !isString || want == long || strings.Contains(tt.frame, `"id":"2"`) {
			want = nil
		}
		p := w.problem(tt.status, want)
		if got, _ := p["pointer"].(string); tt.status == 400 && got != tt.pointer && !strings.Contains(tt.frame, "[[[") {
			t.Errorf("%.80s: pointer %q, want %q", tt.frame, got, tt.pointer)
		}
	}
	w.text(sub("q", "", "queue", true, "run", ""))
	w.want("snapshot")
	w.text(sub("q", run.ID))
	if p := w.problem(400, "q"); p["pointer"] != "/id" {
		t.Errorf("a duplicate id: %v", p)
	}
	w.text(sub("2", run.ID))
	w.want("snapshot")
	w.text(`{"type":"ping"}`)
	w.want("pong")
}

func TestFramingIsAsRFC6455Says(t *testing.T) {
	t.Parallel()
	r := dev(t)
	ping := func(pad int) []byte {
		return []byte(`{"type":"ping","id":"p"` + strings.Repeat(" ", pad-len(`{"type":"ping","id":"p"}`)) + `}`)
	}
	// Fragments, with a control frame in between, and the largest message there may be.
	w := r.ws("member")
	msg := ping(64 << 10)
	w.frame(false, 1, msg[:10])
	w.frame(true, 9, []byte("hi"))
	w.frame(false, 0, msg[10:40000])
	w.frame(false, 0, nil)
	w.frame(true, 0, msg[40000:])
	w.want("pong")
	w.text(string(msg))
	w.want("pong")
	for name, tt := range map[string]struct {
		send func(w *rawWS)
		code int
	}{
		"one byte too many":     {func(w *rawWS) { w.frame(true, 1, ping(64<<10+1)) }, 1009},
		"far too many":          {func(w *rawWS) { _ = w.tryFrame(true, 1, ping(4<<20)) }, 1009},
		"too many in fragments": {func(w *rawWS) { w.frame(false, 1, ping(40<<10)); _ = w.tryFrame(true, 0, ping(40<<10)) }, 1009},
		"a length of 2^63":      {func(w *rawWS) { w.conn.Write(append([]byte{0x81, 0xff}, binary.BigEndian.AppendUint64(nil, 1<<63)...)) }, 1002},
		"a length beyond memory": {func(w *rawWS) {
			w.conn.Write(append(append([]byte{0x81, 0xff}, binary.BigEndian.AppendUint64(nil, 1<<40)...), make([]byte, 4+70000)...))
		}, 1009},
		"binary":                  {func(w *rawWS) { w.frame(true, 2, []byte(`{"type":"ping"}`)) }, 1003},
		"invalid UTF-8":           {func(w *rawWS) { w.frame(true, 1, []byte("{\"type\":\"\xff\"}")) }, 1007},
		"UTF-8 cut at the end":    {func(w *rawWS) { w.frame(true, 1, []byte("\xe2\x82")) }, 1007},
		"an unmasked frame":       {func(w *rawWS) { w.conn.Write([]byte{0x81, 0x02, '{', '}'}) }, 1002},
		"a reserved bit":          {func(w *rawWS) { w.conn.Write([]byte{0xc1, 0x80, 0, 0, 0, 0}) }, 1002},
		"an unknown opcode":       {func(w *rawWS) { w.frame(true, 3, nil) }, 1002},
		"a continuation of none":  {func(w *rawWS) { w.frame(true, 0, nil) }, 1002},
		"a text within a message": {func(w *rawWS) { w.frame(false, 1, []byte("{")); w.frame(true, 1, []byte("}")) }, 1002},
		"a long control frame":    {func(w *rawWS) { w.frame(true, 9, make([]byte, 126)) }, 1002},
		"a close without a code":  {func(w *rawWS) { w.frame(true, 8, nil) }, 1000},
		"a close with a code":     {func(w *rawWS) { w.frame(true, 8, []byte{0x03, 0xe9}) }, 1001},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := r.ws("member")
			w.t = t
			tt.send(w)
			w.closes(tt.code)
		})
	}
}

// A client that drops at every point around a pause and comes back with its cursor sees each event once, and gets the token of
// an open pause again.
// Public failure ST4.
func TestInvariant13_DroppingAnywhereLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	r := dev(t)
	r.Script("two", `[{"calls":[{"tool_call_id":"a","tool":"write_file","arguments":{"path":"/memories/a","content":""}}]},`+
		`{"calls":[{"tool_call_id":"b","tool":"write_file","arguments":{"path":"/memories/b","content":""}}]},{"final":1}]`, "")
	whole := r.run("member", "two")
	for range 2 {
		r.ok("admin", "POST", "/v1/runs/"+whole.ID+"/approvals", decisions(r.Settled(whole.ID).Pause, "approve"))
	}
	r.Settled(whole.ID)
	total := len(r.Events(whole.ID))
	if total < 12 {
		t.Fatalf("%d events", total)
	}
	for drop := 0; drop <= total; drop++ {
		t.Run(fmt.Sprint(drop), func(t *testing.T) {
			t.Parallel()
			run := r.run("member", "two")
			got, after, tokens := 0, any(0), map[string]bool{}
			connect := func() *rawWS {
				w := r.ws("admin")
				w.t = t
				w.text(sub("1", run.ID, "after", after))
				w.want("snapshot")
				return w
			}
			w := connect()
			dropped := false
			for got < total {
				if got >= drop && !dropped {
					dropped = true
					w.conn.Close()
					w = connect()
				}
				m, err := w.read()
				if err != nil {
					t.Fatal(err)
				}
				switch m["type"] {
				case "pause":
					p := m["pause"].(map[string]any)
					tokens[p["resume_token"].(string)] = true
					var hp host.Pause
					b, _ := json.Marshal(p)
					if err := json.Unmarshal(b, &hp); err != nil {
						t.Fatal(err)
					}
					// Decided only once its event was seen, so that the drop points around it are all met.
					if got >= drop || dropped {
						r.do("admin", "POST", "/v1/resume", with(decisions(&hp, "approve"), "resume_token", hp.ResumeToken))
					} else {
						go r.do("admin", "POST", "/v1/resume", with(decisions(&hp, "approve"), "resume_token", hp.ResumeToken))
					}
				case "event":
					got++
					if m["seq"] != float64(got) {
						t.Fatalf("event %v, want %d", m["seq"], got)
					}
					after = got
				}
			}
			if len(tokens) != 2 {
				t.Errorf("%d tokens for two pauses", len(tokens))
			}
			w.conn.Close()
		})
	}
}

func TestTheQueueShowsWhatWaitsAndGoesOnFromItsCursor(t *testing.T) {
	t.Parallel()
	r := dev(t)
	first := r.paused("member")
	w := r.ws("admin")
	w.text(`{"type":"subscribe","id":"q","queue":true}`)
	snap := w.want("snapshot")
	if as := snap["approvals"].([]any); len(as) != 1 || as[0].(map[string]any)["id"] != first.Pause.Approvals[0].ID {
		t.Errorf("%v", snap)
	}
	cursor := snap["cursor"].(string)
	w.conn.Close()
	second := r.paused("member2")
	w = r.ws("admin")
	w.text(map[string]any{"type": "subscribe", "id": "q", "queue": true, "after": cursor})
	w.want("snapshot")
	var last string
	for last == "" {
		m := w.want("event")
		e := m["event"].(map[string]any)
		if e["run_id"] == first.ID {
			t.Errorf("an event from before the cursor: %v", m)
		}
		if strings.Contains(fmt.Sprint(m), "resume_token") {
			t.Errorf("the queue shows a token: %v", m)
		}
		if m["cursor"] == nil || m["cursor"] == cursor {
			t.Errorf("cursor %v", m["cursor"])
		}
		cursor = m["cursor"].(string)
		if e["type"] == "approval.requested" && e["run_id"] == second.ID {
			last = e["approval"].(map[string]any)["id"].(string)
		}
	}
	if last != second.Pause.Approvals[0].ID {
		t.Errorf("approval %s", last)
	}
	// A member's queue has the own runs only.
	m := r.ws("member2")
	m.text(`{"type":"subscribe","id":"q","queue":true,"after":0}`)
	if snap := m.want("snapshot"); len(snap["approvals"].([]any)) != 1 {
		t.Errorf("%v", snap)
	}
	for {
		e := m.want("event")["event"].(map[string]any)
		if e["run_id"] != second.ID {
			t.Errorf("a foreign event: %v", e)
		}
		if e["type"] == "approval.requested" {
			break
		}
	}
	o := r.ws("other_admin")
	o.text(`{"type":"subscribe","id":"q","queue":true,"after":0}`)
	if snap := o.want("snapshot"); len(snap["approvals"].([]any)) != 0 {
		t.Errorf("%v", snap)
	}
	o.text(`{"type":"ping"}`)
	if x, err := o.read(); err != nil || x["type"] != "pong" {
		t.Errorf("another tenant's queue shows %v %v", x, err)
	}
}

// Public failure DX8.
func TestInvariant9_OneOfAHundredDecisionsOverBothWiresWins(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	var socks []*rawWS
	for range 50 {
		socks = append(socks, r.ws("admin"))
	}
	start := make(chan struct{})
	codes := make(chan string, 100)
	var wg sync.WaitGroup
	body := decisions(run.Pause, "approve")
	for i := range 50 {
		wg.Go(func() {
			<-start
			a := r.do("owner", "POST", "/v1/runs/"+run.ID+"/approvals", body)
			if a.status == 409 && (len(a.json["decisions"].([]any)) != 1) {
				t.Errorf("a loser is not told who won: %s", a.raw)
			}
			codes <- fmt.Sprint(a.status, a.str("code"))
		})
		wg.Go(func() {
			<-start
			socks[i].text(with(body, "type", "decide", "id", "d", "run", run.ID))
			m, err := socks[i].read()
			if err != nil {
				t.Error(err)
				return
			}
			if m["type"] == "ack" {
				codes <- "200"
				return
			}
			p := m["problem"].(map[string]any)
			codes <- fmt.Sprint(p["status"], p["code"])
		})
	}
	close(start)
	wg.Wait()
	close(codes)
	count := map[string]int{}
	for c := range codes {
		count[c]++
	}
	if count["200"] != 1 || count["409already_decided"]+count["409 already_decided"] != 99 {
		t.Errorf("%v, want one 200 and 99 already_decided", count)
	}
	r.Settled(run.ID)
	if n := r.Ran.Count("write_file"); n != 1 {
		t.Errorf("the call ran %d times", n)
	}
}

// Over a socket too, what is foreign looks like what is unknown, to the byte.
func TestInvariant10_SocketsTellNothingOfForeignRuns(t *testing.T) {
	t.Parallel()
	r := dev(t)
	run := r.paused("member")
	for _, who := range []string{"member2", "other_admin", "other_member"} {
		w := r.ws(who)
		for _, f := range []map[string]any{
			{"type": "subscribe"}, {"type": "subscribe", "after": 0}, with(decisions(run.Pause, "approve"), "type", "decide"),
		} {
			var answers []string
			for _, id := range []string{"run_019e0000-0000-7000-8000-000000000000", "x", run.ID} {
				w.text(with(f, "id", "1", "run", id))
				answers = append(answers, fmt.Sprint(w.problem(404, "1")))
			}
			if answers[0] != answers[1] || answers[0] != answers[2] {
				t.Errorf("%s %v:\n%s", who, f, strings.Join(answers, "\n"))
			}
		}
		w.text(with(decisions(run.Pause, "approve"), "type", "resume", "id", "t", "resume_token", run.Pause.ResumeToken))
		if who == "member2" {
			w.problem(403, "t")
		} else {
			w.problem(404, "t")
		}
	}
	if a := r.ok("member", "GET", "/v1/runs/"+run.ID, nil); a.str("state") != "awaiting_approval" {
		t.Errorf("%s", a.raw)
	}
}

// A frame that is JSON and not I-JSON is refused under the id that can be read; one that is no JSON, or whose id is in doubt, under none.
func TestARefusedFrameEchoesAReadableID(t *testing.T) {
	t.Parallel()
	r := dev(t)
	w := r.ws("member")
	for frame, id := range map[string]any{
		`{"type":"ping","id":"q","x":9007199254740993}`: "q",
		`{"type":"ping","id":7,"x":1,"x":2}`:            float64(7),
		`{"type":"ping","id":"\ud800"}`:                 nil,
		`{"type":"ping","id":{"a":1},"x":1e999}`:        nil,
		`{"type":"ping","id":"q"`:                       nil,
	} {
		w.text(frame)
		w.problem(400, id)
	}
}
