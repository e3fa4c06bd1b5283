package plugins

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// funcSet is a set with one Go function, tool "f", and the permission kv.
func funcSet(t testing.TB, kv, effects string, lim Limits, fn func(ctx context.Context, c *Session) error) (*Set, *Tool) {
	t.Helper()
	s := openSet(t, Options{Limits: lim, Config: map[string]map[string]string{"p": {"greeting": "hello"}}})
	err := s.AddFunc(Manifest{Name: "p", Permissions: Permissions{KV: kv},
		Tools: []ToolSpec{{Name: "f", Description: "a test", InputSchema: json.RawMessage(`{"type":"object"}`), Effects: effects}}}, fn)
	if err != nil {
		t.Fatal(err)
	}
	return s, tool(t, s, "f")
}

// script is a function that does operations and gives the list of their answers.
func script(steps ...[2]string) func(ctx context.Context, c *Session) error {
	return func(ctx context.Context, c *Session) error {
		var answers []json.RawMessage
		for _, st := range steps {
			answers = append(answers, c.Dispatch(ctx, st[0], []byte(st[1])))
		}
		out, err := json.Marshal(answers)
		c.Dispatch(ctx, "output", out)
		return err
	}
}

func TestDispatchAnswers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70_000)
	for _, c := range []struct{ why, kv, op, req, want string }{
		{"no permission", "none", "kv.get", `{"key":"a"}`, `"code":"denied"`},
		{"read only", "ro", "kv.get", `{"key":"a"}`, `{"ok":{"found":false}}`},
		{"read only, put", "ro", "kv.put", `{"key":"a","value":"1"}`, `"code":"denied"`},
		{"read only, delete", "ro", "kv.delete", `{"key":"a"}`, `"code":"denied"`},
		{"a long key", "rw", "kv.get", `{"key":"` + long[:1025] + `"}`, `"code":"too_large"`},
		{"a long value", "rw", "kv.put", `{"key":"a","value":"` + long + `"}`, `"code":"too_large"`},
		{"control characters", "rw", "kv.get", `{"key":"a\u0085"}`, `"code":"invalid"`},
		{"loose base64", "rw", "kv.put", `{"key":"a","value_b64":"YR=="}`, `"code":"invalid"`},
		{"an unknown member", "rw", "kv.get", `{"key":"a","x":1}`, `"code":"invalid"`},
		{"another case", "rw", "kv.get", `{"Key":"a"}`, `"code":"invalid"`},
		{"a fraction as version", "rw", "kv.put", `{"key":"a","value":"","if_version":1.5}`, `"code":"invalid"`},
		{"a negative version", "rw", "kv.put", `{"key":"a","value":"","if_version":-1}`, `"code":"invalid"`},
		{"a request that is no object", "rw", "kv.get", `"a"`, `"code":"invalid"`},
		{"duplicate names", "rw", "kv.get", `{"key":"a","key":"b"}`, `"code":"invalid"`},
		{"not JSON", "rw", "kv.get", `{`, `"code":"invalid"`},
		{"not UTF-8", "rw", "kv.get", "{\"key\":\"\xff\"}", `"code":"invalid"`},
		{"a lone surrogate", "rw", "kv.get", `{"key":"\ud800"}`, `"code":"invalid"`},
		{"config", "none", "config", `{"key":"greeting"}`, `{"ok":{"value":"hello"}}`},
		{"no config", "none", "config", `{"key":"x"}`, `{"ok":{"found":false}}`},
		{"an unknown operation", "rw", "kv.inc", `{}`, `"code":"unsupported"`},
		{"a later operation", "rw", "http", `{}`, `"code":"unsupported"`},
		{"a long name of an operation", "rw", long[:65], `{}`, `"code":"too_large"`},
		{"a name that is not UTF-8", "rw", "\xff", `{}`, `"code":"unsupported"`},
		{"a long request", "rw", "log", `"` + strings.Repeat("x", 2<<20) + `"`, `"code":"too_large"`},
		{"a reason that is none", "none", "pause", `{"reason":"x","payload":{}}`, `"code":"invalid"`},
		{"a payload that is none", "none", "pause", `{"reason":"await_input","payload":1}`, `"code":"invalid"`},
		{"no payload", "none", "pause", `{"reason":"await_input"}`, `"code":"invalid"`},
		{"a long payload", "none", "pause", `{"reason":"await_input","payload":{"a":"` + long + `"}}`, `"code":"too_large"`},
		{"a schema of null", "none", "pause", `{"reason":"await_input","payload":{},"schema":null}`, `"code":"invalid"`},
		{"a schema that is no object", "none", "pause", `{"reason":"await_input","payload":{},"schema":false}`, `schema is an object`},
		{"a schema with a bad keyword", "none", "pause", `{"reason":"await_input","payload":{},"schema":{"type":"int"}}`, `"code":"invalid","message":"schema: `},
		{"a schema from elsewhere", "none", "pause", `{"reason":"await_input","payload":{},"schema":{"$ref":"http://127.0.0.1/s"}}`, `may only refer to itself`},
		{"a schema with a costly pattern", "none", "pause", `{"reason":"await_input","payload":{},"schema":{"pattern":"(a{30}){30}"}}`, `repeat less`},
		{"a long schema", "none", "pause", `{"reason":"await_input","payload":{},"schema":{"a":"` + long[:16384] + `"}}`, `"code":"too_large"`},
		{"no request means {}", "none", "input", ``, `{"ok":{"tool":"f"`},
	} {
		s, tl := funcSet(t, c.kv, "", Limits{}, script([2]string{c.op, c.req}))
		r := s.Call(context.Background(), Call{Tool: tl, KV: (&memKV{}).view()})
		if r.Failure != nil || !strings.Contains(string(r.Output), c.want) || !json.Valid(r.Output) {
			t.Errorf("%s: %s %+v", c.why, r.Output, r.Failure)
		}
		if len(r.Writes) > 0 || r.Pause != nil {
			t.Errorf("%s: a refused operation left writes %v, pause %v", c.why, r.Writes, r.Pause)
		}
	}
}

func TestToolThatDeclaresReadCannotWrite(t *testing.T) {
	t.Parallel()
	s, tl := funcSet(t, "rw", "read", Limits{}, script([2]string{"kv.put", `{"key":"a","value":"1"}`}))
	r := s.Call(context.Background(), Call{Tool: tl, KV: (&memKV{}).view()})
	if !strings.Contains(string(r.Output), "denied") || len(r.Writes) > 0 {
		t.Fatalf("%s %v", r.Output, r.Writes)
	}
}

func TestLimitsOfOneCall(t *testing.T) {
	t.Parallel()
	lim := Limits{Calls: 5, LogLines: 3, KVWrites: 2, KVBytes: 100, Output: 50}
	s, tl := funcSet(t, "rw", "", lim, func(ctx context.Context, c *Session) error {
		say := func(op, req string, want ...string) error {
			a := string(c.Dispatch(ctx, op, []byte(req)))
			for _, w := range want {
				if !strings.Contains(a, w) {
					return fmt.Errorf("%s %s: %s", op, req, a)
				}
			}
			return nil
		}
		var errs []error
		for range 10 {
			errs = append(errs, say("log", `{"level":"info","message":"x"}`, `{"ok":{}}`))
		}
		errs = append(errs,
			say("kv.put", `{"key":"a","value":"1"}`, `"version":1`),
			say("kv.put", `{"key":"b","value":"1"}`, `"version":1`),
			say("kv.put", `{"key":"c","value":"1"}`, `"code":"limit"`),
			say("kv.put", `{"key":"a","value":"`+strings.Repeat("x", 100)+`"}`, `"code":"limit"`),
			say("kv.put", `{"key":"a","value":"2"}`, `"version":2`),
			say("kv.get", `{"key":"a"}`, `"code":"limit"`),
			say("output", `1`, `{"ok":{}}`),
			say("output", `"`+strings.Repeat("x", 50)+`"`, `"code":"too_large"`))
		return errors.Join(errs...)
	})
	r := s.Call(context.Background(), Call{Tool: tl, KV: (&memKV{}).view()})
	wantOutput(t, r, `1`)
	if len(r.Logs) != 4 || r.Logs[3].Message != "7 more log lines were not kept" {
		t.Errorf("%v", r.Logs)
	}
	if len(r.Writes) != 2 || string(r.Writes[0].Value) != "2" {
		t.Errorf("%v", r.Writes)
	}
}

func TestOutputThatWasRefusedIsSaidToBeTooLarge(t *testing.T) {
	t.Parallel()
	s, tl := funcSet(t, "none", "", Limits{Output: 10}, func(ctx context.Context, c *Session) error {
		c.Dispatch(ctx, "output", []byte(`"`+strings.Repeat("x", 50)+`"`))
		return nil
	})
	wantFailure(t, s.Call(context.Background(), Call{Tool: tl}), CodeLimit, "longer than 10 bytes")
}

func TestGoFunctionsEndLikeGuests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why           string
		fn            func(ctx context.Context, c *Session) error
		code, message string
	}{
		{"an error", func(context.Context, *Session) error { return errors.New("no disk") }, CodeToolError, "no disk"},
		{"a panic", func(context.Context, *Session) error { panic("oh") }, CodeCrashed, "oh"},
		{"a nil map", func(context.Context, *Session) error { var m map[string]int; m["a"] = 1; return nil }, CodeCrashed, "nil map"},
		{"nothing", func(context.Context, *Session) error { return nil }, CodeToolError, "without a result"},
		{"a deadline", func(ctx context.Context, _ *Session) error { <-ctx.Done(); return ctx.Err() }, CodeTimeout, "50ms"},
	} {
		s, tl := funcSet(t, "none", "", Limits{WallTime: 50e6}, c.fn)
		wantFailure(t, s.Call(context.Background(), Call{Tool: tl}), c.code, c.message)
	}
}

func TestPauseCannotBeSwallowed(t *testing.T) {
	t.Parallel()
	var late []byte
	var kept *Session
	s, tl := funcSet(t, "rw", "", Limits{}, func(ctx context.Context, c *Session) error {
		kept = c
		for range 2 {
			func() {
				defer func() { _ = recover() }()
				c.Dispatch(ctx, "pause", []byte(`{"reason":"await_input","payload":{}}`))
				t.Error("pause returned")
			}()
		}
		func() {
			defer func() { _ = recover() }()
			c.Dispatch(ctx, "kv.put", []byte(`{"key":"late","value":"1"}`))
			t.Error("an operation after pause returned")
		}()
		return errors.New("I go on")
	})
	r := s.Call(context.Background(), Call{Tool: tl, KV: (&memKV{}).view()})
	if r.Pause == nil || r.Failure != nil || r.Output != nil || len(r.Writes) > 0 {
		t.Fatalf("%+v", r)
	}
	s2, tl2 := funcSet(t, "rw", "", Limits{}, func(_ context.Context, c *Session) error {
		kept = c
		c.Dispatch(context.Background(), "output", []byte("1"))
		return nil
	})
	s2.Call(context.Background(), Call{Tool: tl2})
	if late = kept.Dispatch(context.Background(), "log", []byte(`{"level":"info","message":"x"}`)); !strings.Contains(string(late), "has ended") {
		t.Errorf("%s", late)
	}
}

func TestResultIsCheckedAgainstOutputSchema(t *testing.T) {
	t.Parallel()
	s := openSet(t, Options{})
	for name, out := range map[string]string{"good": `{"n":1}`, "bad": `{"n":"x"}`} {
		err := s.AddFunc(Manifest{Name: name, Tools: []ToolSpec{{Name: name, Description: "x", InputSchema: json.RawMessage(`{"type":"object"}`),
			OutputSchema: json.RawMessage(`{"properties":{"n":{"type":"integer"},"m":{"default":1}}}`)}}},
			func(ctx context.Context, c *Session) error { c.Dispatch(ctx, "output", []byte(out)); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	wantOutput(t, s.Call(context.Background(), Call{Tool: tool(t, s, "good")}), `{"n":1}`)
	wantFailure(t, s.Call(context.Background(), Call{Tool: tool(t, s, "bad")}), CodeToolError, "output_schema: /n")
}

func TestProgressReachesTheHost(t *testing.T) {
	t.Parallel()
	s, tl := funcSet(t, "none", "", Limits{}, script([2]string{"progress", `{"done":1,"total":2.5,"message":"m"}`}, [2]string{"progress", `{"done":"1"}`}))
	var got []string
	s.Call(context.Background(), Call{Tool: tl, Progress: func(p json.RawMessage) { got = append(got, string(p)) }})
	if !slices.Equal(got, []string{`{"done":1,"total":2.5,"message":"m"}`}) {
		t.Errorf("%q", got)
	}
}

func TestReadsAreTheCommitsPreconditions(t *testing.T) {
	t.Parallel()
	m := &memKV{items: map[string]KVItem{"a": {Value: []byte("1"), Version: 4, Found: true, Token: 9}, "gone": {Version: 2, Token: 5}}}
	s, tl := funcSet(t, "rw", "", Limits{}, func(ctx context.Context, c *Session) error {
		c.Dispatch(ctx, "kv.get", []byte(`{"key":"a"}`))
		m.mu.Lock()
		m.items["a"] = KVItem{Value: []byte("2"), Version: 5, Found: true, Token: 10} // somebody else
		m.mu.Unlock()
		a := c.Dispatch(ctx, "kv.get", []byte(`{"key":"a"}`)) // one call sees one state
		c.Dispatch(ctx, "kv.get", []byte(`{"key":"none"}`))
		g := c.Dispatch(ctx, "kv.put", []byte(`{"key":"gone","value":"x","if_version":0}`))
		c.Dispatch(ctx, "output", []byte(`[`+string(a)+`,`+string(g)+`]`))
		return nil
	})
	r := s.Call(context.Background(), Call{Tool: tl, KV: m.view()})
	wantOutput(t, r, `[{"ok":{"value":"1","version":4}},{"ok":{"version":3}}]`)
	if len(r.Reads) != 3 || r.Reads["a"] != 9 || r.Reads["none"] != 0 || r.Reads["gone"] != 5 {
		t.Errorf("%v", r.Reads)
	}
	if m.commit(r) == nil {
		t.Error("a stale read was committed")
	}
}

func TestStoreErrorsStayInTheHost(t *testing.T) {
	t.Parallel()
	s, tl := funcSet(t, "ro", "", Limits{}, script([2]string{"kv.get", `{"key":"a"}`}, [2]string{"kv.list", `{"prefix":""}`}))
	boom := errors.New("secret path /var/lib")
	r := s.Call(context.Background(), Call{Tool: tl, KV: KV{
		Get:  func(context.Context, string) (KVItem, error) { return KVItem{}, boom },
		List: func(context.Context, string, string, int) ([]string, error) { return nil, boom }}})
	if strings.Count(string(r.Output), `"unavailable"`) != 2 || strings.Contains(string(r.Output), "secret") {
		t.Errorf("%s", r.Output)
	}
}

// TestKVAgainstAModel runs random operations over several calls; after each, the answers and the committed state are
// those of a plain map.
func TestKVAgainstAModel(t *testing.T) {
	t.Parallel()
	type rec struct {
		value   string
		version int
		found   bool
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		committed := &memKV{}
		model := map[string]rec{}
		key := func() string { return fmt.Sprintf("k/%c%c", 'a'+rng.IntN(3), 'a'+rng.IntN(4)) }
		for range 15 {
			work := map[string]rec{}
			for k, v := range model {
				work[k] = v
			}
			s, tl := funcSet(t, "rw", "", Limits{}, func(ctx context.Context, c *Session) error {
				do := func(op, req string) map[string]any {
					var a map[string]any
					if err := json.Unmarshal(c.Dispatch(ctx, op, []byte(req)), &a); err != nil {
						t.Fatal(err)
					}
					return a
				}
				for range 30 {
					k := key()
					have := work[k]
					switch rng.IntN(5) {
					case 0:
						a := do("kv.get", fmt.Sprintf(`{"key":%q}`, k))["ok"].(map[string]any)
						if have.found && (a["value"] != have.value || a["version"] != float64(have.version)) || !have.found && a["found"] != false {
							t.Errorf("seed %d: get %s: %v, want %+v", seed, k, a, have)
						}
					case 1, 2:
						v := fmt.Sprint(rng.IntN(100))
						do("kv.put", fmt.Sprintf(`{"key":%q,"value_b64":%q}`, k, base64.StdEncoding.EncodeToString([]byte(v))))
						work[k] = rec{v, have.version + 1, true}
					case 3:
						do("kv.delete", fmt.Sprintf(`{"key":%q}`, k))
						if have.found {
							work[k] = rec{"", have.version + 1, false}
						}
					case 4:
						var want []string
						for k, v := range work {
							if v.found && k > "k/aa" {
								want = append(want, k)
							}
						}
						slices.Sort(want)
						var got []string
						for after, more := "k/aa", true; more; {
							a := do("kv.list", fmt.Sprintf(`{"prefix":"k/","after":%q,"limit":2}`, after))["ok"].(map[string]any)
							for _, k := range a["keys"].([]any) {
								got = append(got, k.(string))
							}
							after, more = a["next"].(string)
						}
						if !slices.Equal(got, want) {
							t.Errorf("seed %d: list %v, want %v", seed, got, want)
						}
					}
				}
				c.Dispatch(ctx, "output", []byte("null"))
				return nil
			})
			r := s.Call(context.Background(), Call{Tool: tl, KV: committed.view()})
			if r.Failure != nil {
				t.Fatal(r.Failure)
			}
			if err := committed.commit(r); err != nil {
				t.Fatal(err)
			}
			model = work
			for k, v := range model {
				it := committed.items[k]
				if it.Found != v.found || string(it.Value) != v.value || it.Version != uint64(v.version) {
					t.Errorf("seed %d: %s committed as %+v, want %+v", seed, k, it, v)
				}
			}
		}
	}
}

// FuzzDispatch: whatever a guest sends, the answer is one JSON object and nothing panics but an accepted pause.
func FuzzDispatch(f *testing.F) {
	for _, op := range []string{"input", "output", "fail", "log", "progress", "config", "kv.get", "kv.put", "kv.delete", "kv.list", "pause", "http", ""} {
		f.Add(op, []byte(`{"key":"a","value":"b","prefix":"","level":"info","message":"m","reason":"await_input","payload":{}}`))
		f.Add(op, []byte(`{"key":"a"}`))
	}
	f.Add("pause", []byte(`{"reason":"await_input","payload":{},"schema":{"$ref":"#/$defs/a","$defs":{"a":{"type":["string","null"],"pattern":"a+"}}}}`))
	f.Add("kv.put", []byte(`{"key":"a","value_b64":"AA==","if_version":0}`))
	f.Add("kv.list", []byte(`{"prefix":"a","after":"\u0000","limit":1e3}`))
	s, tl := funcSet(f, "rw", "", Limits{}, nil)
	_ = s
	f.Fuzz(func(t *testing.T, op string, req []byte) {
		ses := &Session{call: &Call{Tool: tl, KV: (&memKV{}).view()}, lim: tl.Limits, request: []byte("{}")}
		defer func() {
			if r := recover(); r != nil && (ses.pause == nil || r != errPaused) {
				panic(r)
			}
		}()
		a := ses.Dispatch(context.Background(), op, req)
		if err := checkIJSON(a); err != nil || a[0] != '{' || strings.ContainsAny(string(a), "\n\r") && op != "input" {
			t.Fatalf("%q %q: %q %v", op, req, a, err)
		}
	})
}
