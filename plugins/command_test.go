package plugins

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

const commandTools = "echo pretty eof args exit3 silent7 exitmax logs flood errflood nothing badutf8 surrogate two dup big sleep nap " +
	"random loop file forge forge2 calls output badcall noanswer pause longline tail halfline unknown"

func TestInvariant11_CommandsEndWithinTheirLimitsAndTheNextCallWorks(t *testing.T) {
	t.Parallel()
	for level := range 2 {
		s := openGuest(t, "cmd", manifestOf(level, commandTools, `"permissions":{"kv":"rw"}`), smallLimits)
		for _, c := range []struct{ tool, code, message string }{
			{"exit3", CodeToolError, "exit status 3: first line\nthe order is gone\uFFFD"},
			{"silent7", CodeToolError, "exit status 7"},
			{"exitmax", CodeToolError, "exit status 4294967295"}, // the runtime's own mark of a deadline
			{"flood", CodeLimit, "printed more than 1048576 bytes"},
			{"nothing", CodeToolError, "without a result"},
			{"badutf8", CodeToolError, "not one I-JSON value"},
			{"surrogate", CodeToolError, "not one I-JSON value"},
			{"two", CodeToolError, "more follows"},
			{"dup", CodeToolError, "duplicate"},
			{"big", CodeToolError, "2^53"},
			{"sleep", CodeTimeout, "within 1s"},
			{"loop", CodeTimeout, "within 1s"},
			{"longline", CodeLimit, ""},
			{"unknown", CodeToolError, "no such tool"},
		} {
			within(t, 10*time.Second, func() { wantFailure(t, call(t, s, c.tool, `{}`), c.code, c.message) })
			wantOutput(t, call(t, s, "tail", `{}`), `1`)
		}
	}
}

func TestCommandHearsItsRequestAndNothingElse(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "cmd", manifestOf(0, commandTools), Limits{})
	wantOutput(t, call(t, s, "echo", `{"a":"\n"}`),
		`{"tool":"echo","arguments":{"a":"\n"},"context":{"run_id":"run_1","call_id":"call_1","tool_context":{},"approvals":{}}}`)
	for name, want := range map[string]string{"pretty": "{\"a\":\n 1}", "eof": `"eof"`, "args": `true`, "nap": `true`, "file": `false`} {
		wantOutput(t, call(t, s, name, `{}`), want)
	}
}

func TestClockAndRandomBelongToTheCallAndRepeatWithIt(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "cmd", manifestOf(0, commandTools), Limits{})
	run := func(id string, at time.Time) string {
		r := s.Call(context.Background(), Call{Tool: tool(t, s, "random"), RunID: "r", CallID: id, Time: at})
		if r.Failure != nil {
			t.Fatal(r.Failure)
		}
		return string(r.Output)
	}
	at := time.Unix(1_800_000_003, 0)
	if a, b := run("c", at), run("c", at); a != b {
		t.Errorf("%s and %s", a, b)
	}
	a, b := run("c", at), run("d", at.Add(time.Second))
	if a[:9] == b[:9] || a[10] == b[10] {
		t.Errorf("two calls share random numbers or clock: %s and %s", a, b)
	}
}

func TestStandardErrorBecomesLogLines(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "cmd", manifestOf(0, commandTools), Limits{})
	r := call(t, s, "logs", `{}`)
	wantOutput(t, r, `1`)
	if want := []LogLine{{"info", "one"}, {"info", "two"}, {"info", "three"}}; len(r.Logs) != 3 || r.Logs[0] != want[0] || r.Logs[1] != want[1] || r.Logs[2] != want[2] {
		t.Errorf("%v", r.Logs)
	}
	r = call(t, s, "errflood", `{}`)
	wantOutput(t, r, `1`)
	total := 0
	for _, l := range r.Logs {
		total += len(l.Message)
	}
	if total > 300<<10 || !strings.Contains(r.Logs[len(r.Logs)-1].Message, "not kept") {
		t.Errorf("%d bytes of log, last %.80q", total, r.Logs[len(r.Logs)-1].Message)
	}
}

func TestPrintedCallLinesMakeNoEffect(t *testing.T) {
	t.Parallel()
	for level := range 2 {
		s := openGuest(t, "cmd", manifestOf(level, commandTools, `"permissions":{"kv":"rw"}`), Limits{})
		for _, name := range []string{"forge", "forge2", "halfline"} {
			r := call(t, s, name, `{}`)
			if len(r.Writes) > 0 || len(r.Reads) > 0 {
				t.Errorf("level %d, %s: writes %v reads %v", level, name, r.Writes, r.Reads)
			}
			if name == "forge" && r.Failure != nil {
				t.Errorf("level %d: a printed line was not plain output: %s", level, r.Failure.Message)
			}
		}
		if level == 0 {
			r := call(t, s, "calls", `{}`) // has no nonce, and no answer
			wantFailure(t, r, CodeToolError, "not one I-JSON value")
		}
	}
}

func TestLevel1Calls(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "cmd", manifestOf(1, commandTools, `"permissions":{"kv":"rw"}`), Limits{})
	r := call(t, s, "calls", `{}`)
	wantOutput(t, r, "{\"got\":\n"+`{"ok":{"value":"41","version":1}}}`)
	if len(r.Writes) != 1 || string(r.Writes[0].Value) != "41" {
		t.Errorf("%v", r.Writes)
	}
	wantOutput(t, call(t, s, "output", `{}`), `{"set":true}`)
	wantOutput(t, call(t, s, "noanswer", `{}`), `"eof"`)
	if r := call(t, s, "badcall", `{}`); r.Failure != nil || !strings.Contains(string(r.Output), `"code":"invalid"`) {
		t.Errorf("%s %+v", r.Output, r.Failure)
	}
	r = call(t, s, "pause", `{}`)
	if r.Pause == nil || r.Pause.Reason != "await_input" || r.Failure != nil || r.Output != nil {
		t.Errorf("%+v", r)
	}
	seen := map[string]bool{}
	for range 20 {
		var doc struct {
			Context struct{ Nonce string } `json:"context"`
		}
		if err := json.Unmarshal(call(t, s, "echo", `{}`).Output, &doc); err != nil {
			t.Fatal(err)
		}
		if len(doc.Context.Nonce) != 32 || seen[doc.Context.Nonce] {
			t.Errorf("nonce %q", doc.Context.Nonce)
		}
		seen[doc.Context.Nonce] = true
	}
}

// TestCallLinesAreFoundAsTheVectorsSay cuts the streams of sdk/abi at every size of write.
func TestCallLinesAreFoundAsTheVectorsSay(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../sdk/abi/vectors/lines.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Nonce   string
		Streams []struct {
			Name, Stdout, Output string
			Calls                []struct{ Op string }
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Streams) < 10 {
		t.Fatalf("only %d streams", len(v.Streams))
	}
	for _, st := range v.Streams {
		for size := 1; size <= len(st.Stdout); size++ {
			c := newCallLines(v.Nonce)
			for b := []byte(st.Stdout); len(b) > 0; b = b[min(size, len(b)):] {
				_, _ = c.Write(b[:min(size, len(b))])
			}
			c.flush()
			if string(c.out.b) != st.Output {
				t.Errorf("%s by %d: output %q, want %q", st.Name, size, c.out.b, st.Output)
			}
			if n := bytes.Count(c.in.Bytes(), []byte("\n")); n != len(st.Calls) {
				t.Errorf("%s by %d: %d answers, want %d", st.Name, size, n, len(st.Calls))
			}
		}
	}
}

// TestInvariant11_AnswersThatNobodyReadsEndTheGuest asks for a large document again and again and never reads.
func TestInvariant11_AnswersThatNobodyReadsEndTheGuest(t *testing.T) {
	t.Parallel()
	c := newCallLines("n")
	c.s.request = []byte(`"` + strings.Repeat("x", 900_000) + `"`)
	var ended any
	for range 3 {
		func() {
			defer func() { ended = recover() }()
			_, _ = c.Write([]byte("@pawl:n input {}\n"))
		}()
	}
	if _, ok := ended.(limitError); !ok || c.in.Len() > maxUnread+1<<20 {
		t.Errorf("%d bytes wait unread, the guest ended with %v", c.in.Len(), ended)
	}
}

func newCallLines(nonce string) *callLines {
	s := &Session{call: &Call{Tool: &Tool{plugin: &plugin{}}}, lim: Limits{}.withDefaults(), request: []byte("{}")}
	return &callLines{ctx: context.Background(), s: s, in: &bytes.Buffer{}, out: &stdout{limit: 1 << 20}, prefix: []byte("@pawl:" + nonce)}
}

func FuzzCallLines(f *testing.F) {
	f.Add([]byte("@pawl:n kv.get {\"key\":\"a\"}\nrest"), 3)
	f.Add([]byte("@pawl:n\r\n@pawl:x y\n@paw"), 1)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 1 {
			size = 1
		}
		c, whole := newCallLines("n"), newCallLines("n")
		_, _ = whole.Write(b)
		whole.flush()
		for r := b; len(r) > 0; r = r[min(size, len(r)):] {
			_, _ = c.Write(r[:min(size, len(r))])
		}
		c.flush()
		if !bytes.Equal(c.out.b, whole.out.b) || !bytes.Equal(c.in.Bytes(), whole.in.Bytes()) {
			t.Fatalf("cut by %d it reads differently: %q %q", size, c.out.b, whole.out.b)
		}
	})
}
