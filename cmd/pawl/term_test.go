package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Every event of the wire has a form for people; one that a newer host adds is shown as it came.
func TestEveryEventHasAFormForPeople(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{"seq":1,"type":"run.created","agent":"ops","agent_version":3,"created_by":"ann"}`: "    1            run.created        agent ops, version 3, by ann",
		`{"seq":2,"type":"run.started"}`:                                                                                    "    2            run.started",
		`{"seq":3,"type":"run.paused","reason":"approval_required","payload":{"x":1}}`:                                      "    3            run.paused         waits: approval_required",
		`{"seq":4,"type":"run.resumed","pause_id":"pause_1"}`:                                                               "    4            run.resumed",
		`{"seq":5,"type":"run.finished","state":"succeeded","output":"done"}`:                                               `    5            run.finished       succeeded: "done"`,
		`{"seq":6,"type":"run.finished","state":"failed","error":{"code":"limit","message":"too long"}}`:                    "    6            run.finished       failed: limit (too long)",
		`{"seq":7,"type":"message","message":{"seq":1,"frame":0,"role":"user","content":{"q":1}}}`:                          `    7            message            user: {"q":1}`,
		`{"seq":8,"type":"message","message":{"role":"assistant","content":"\u001b[2J"}}`:                                   `    8            message            assistant: "\u001b[2J"`,
		`{"seq":9,"type":"message","message":{"role":"tool","tool_call_id":"c1","error":{"code":"denied","message":"no"}}}`: "    9            message            tool c1: denied (no)",
		`{"seq":10,"type":"call.started","tool_call_id":"c1","tool":"ls"}`:                                                  "   10            call.started       c1 ls",
		`{"seq":11,"type":"call.finished","tool_call_id":"c1","tool":"ls","result":null}`:                                   "   11            call.finished      c1 ls: null",
		`{"seq":12,"type":"call.log","tool_call_id":"c1","level":"info","message":"half"}`:                                  `   12            call.log           c1 info: "half"`,
		`{"type":"call.progress","tool_call_id":"c1","progress":{"done":1}}`:                                                `    -            call.progress      c1 {"done":1}`,
		`{"seq":13,"type":"approval.requested","approval":{"id":"apr_1","tool":"rm","arguments":{"a":1}}}`:                  `   13            approval.requested apr_1 rm {"a":1}`,
		`{"seq":14,"type":"approval.decided","approval_id":"apr_1","decision":{"kind":"reject","decided_by":"bob"}}`:        "   14            approval.decided   apr_1 reject by bob",
		`{"seq":15,"type":"approval.expiring","approval_id":"apr_1","expires_at":"2026-01-02T03:04:05.000Z"}`:               "   15            approval.expiring  apr_1 expires at 2026-01-02T03:04:05.000Z",
		`{"seq":16,"type":"approval.expired","approval_id":"apr_1"}`:                                                        "   16            approval.expired   apr_1 expired before anybody decided",
		`{"seq":17,"type":"weather.changed","time":"2026-01-02T03:04:05.000Z","to":"rain"}`:                                 `   17  03:04:05.000  weather.changed    {"seq":17,"type":"weather.changed","time":"2026-01-02T03:04:05.000Z","to":"rain"}`,
	} {
		e := event{raw: json.RawMessage(raw)}
		if err := json.Unmarshal(e.raw, &e); err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		var b strings.Builder
		showEvent(&b, e)
		// Without a time the column is empty; how wide it then is does not matter.
		wide := regexp.MustCompile(`^( *[-\d]+) {3,}`)
		if got, want := wide.ReplaceAllString(b.String(), "$1  "), wide.ReplaceAllString(want+"\n", "$1  "); got != want {
			t.Errorf("%s\nprints %q, want %q", raw, got, want)
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "now", 0: "now", 59 * time.Second: "in 59s", time.Minute: "in 1m", 59*time.Minute + 59*time.Second: "in 59m",
		23*time.Hour + 59*time.Minute: "in 23h", 47 * time.Hour: "in 47h", 49 * time.Hour: "in 2d",
	} {
		if got := within(d); got != want {
			t.Errorf("within(%s) = %q, want %q", d, got, want)
		}
	}
}
