package policy

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// What a broken rule does to a call: it never runs, and the code says why.
func TestInvariant5_BrokenRulesFailClosedWithTheirCode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rule, code string
	}{
		"endless": {`deny contains "x" if {
			some a in numbers.range(1, 100000)
			some b in numbers.range(1, 100000)
			a + b < 0
		}`, CodeTimeout},
		"one endless builtin": {`deny contains "x" if count(numbers.range(1, 100000000000)) < 0`, CodeTimeout},
		"conflict": {`
			limit := 1 if input.turn > 0
			limit := 2 if input.turn > 1
			deny contains "x" if limit > 3`, CodeConflict},
		"conflict in a function": {`
			f(x) := 1 if x > 0
			f(x) := 2 if x > 1
			deny contains "x" if f(input.turn) > 3`, CodeConflict},
		"a builtin's error":                     {`deny contains "x" if time.parse_rfc3339_ns(input.call.arguments.when) > 0`, CodeError},
		"a type error":                          {`deny contains "x" if lower(input.turn) == "x"`, CodeError},
		"negated type error":                    {`pause contains {"rule": "x"} if not startswith(input.turn, "x")`, CodeError},
		"a path of no text":                     {`deny contains "x" if pawl.path.under(input.turn, ["/x"])`, CodeError},
		"division by zero":                      {`deny contains "x" if 1 / (input.turn - 2) > 0`, CodeError},
		"a text as a pause":                     {`pause contains "stop"`, CodeShape},
		"a number as a pause":                   {`pause contains 7`, CodeShape},
		"a number as a deny":                    {`deny contains 7`, CodeShape},
		"a bad decision":                        {`pause contains {"rule": "x", "allowed_decisions": ["aprove"]}`, CodeShape},
		"a bad ttl":                             {`pause contains {"rule": "x", "ttl": "tomorrow"}`, CodeShape},
		"a misspelt member":                     {`pause contains {"rule": "x", "allowed_decision": ["approve"]}`, CodeShape},
		"the name of a rule that is not theirs": {`pause contains {"rule": "default/write_file"}`, CodeShape},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deadline := time.Minute // for a code other than policy_timeout a slow machine must not matter
			if tc.code == CodeTimeout {
				deadline = 50 * time.Millisecond
			}
			e := newEngineWith(t, Options{Deadline: deadline}, "broken.rego", "package pawl.rules\n"+tc.rule)
			start := time.Now()
			d := e.Gate(t.Context(), nil, input("read_file", `{"when":"soon"}`))
			if d.Effect != Deny || d.Code != tc.code || !slices.Equal(d.Reasons, []string{tc.code}) || d.Detail == "" {
				t.Errorf("%+v; want a deny with %s", d, tc.code)
			}
			if strings.Contains(d.Detail, "soon") {
				t.Errorf("the detail %q repeats an argument", d.Detail)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestInvariant5_BrokenAuthzRulesRefuse(t *testing.T) {
	t.Parallel()
	question := &AuthzInput{Act: "run.create", Principal: Principal{Tenant: "t", ID: "o", Kind: "user", Roles: []string{"owner"}}, Resource: Resource{Tenant: "t"}}
	for rule, code := range map[string]string{
		`deny contains "x" if { some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a + b < 0 }`: CodeTimeout,
		`deny contains "x" if to_number(input.act) > 0`:                                                              CodeError,
		"f(x) := 1 if x != 0\nf(x) := 2 if x != 1\ndeny contains \"x\" if f(input.act) > 3":                          CodeConflict,
		`deny contains 7`:              CodeShape,
		`deny contains {"message": 1}`: CodeShape,
	} {
		deadline := time.Minute
		if code == CodeTimeout {
			deadline = 50 * time.Millisecond
		}
		e := newEngineWith(t, Options{Deadline: deadline}, "broken.rego", "package pawl.rules.authz\n"+rule)
		if v := e.Authz(t.Context(), question); v.Allow || v.Code != code || !slices.Equal(v.Reasons, []string{code}) {
			t.Errorf("%s: %+v; want %s", rule, v, code)
		}
	}
}

// A builtin that cannot be interrupted does not hold the caller; the evaluation is counted until it ends.
// Public failure BY20.
func TestDeadlineHoldsForWorkThatCannotBeInterrupted(t *testing.T) {
	t.Parallel()
	e := newEngineWith(t, Options{Deadline: time.Millisecond})
	release := make(chan struct{})
	v, fail := e.run(func(topdown.Cancel) (ast.Value, *failure) {
		<-release
		return ast.Boolean(true), nil
	})
	if v != nil || fail == nil || fail.code != CodeTimeout {
		t.Errorf("%v, %+v", v, fail)
	}
	if e.Abandoned() != 1 || e.abandoned.Load() != 1 {
		t.Errorf("%d abandoned, %d running; want 1, 1", e.Abandoned(), e.abandoned.Load())
	}
	close(release)
	for end := time.Now().Add(time.Minute); e.abandoned.Load() != 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the abandoned evaluation still counts after its end")
		}
	}
	if e.Abandoned() != 1 {
		t.Errorf("%d abandoned since the start; want 1", e.Abandoned())
	}
}

func TestInvariant5_APanicOfTheEvaluatorIsARefusal(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	v, fail := e.run(func(topdown.Cancel) (ast.Value, *failure) { panic("secret") })
	if v != nil || fail == nil || fail.code != CodeError || strings.Contains(fail.detail, "secret") {
		t.Errorf("%v, %+v", v, fail)
	}
	if d := e.Gate(t.Context(), nil, input("read_file", `{}`)); d.Effect != Allow {
		t.Errorf("after a panic: %+v", d)
	}
}

// With too many of them running on, new evaluations are refused at once and start no goroutine.
func TestTooManyAbandonedEvaluationsRefuse(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.abandoned.Store(maxAbandoned)
	if d := e.Gate(t.Context(), nil, input("read_file", `{}`)); d.Effect != Deny || d.Code != CodeTimeout {
		t.Errorf("%+v", d)
	}
	// Rules of the gate that hang keep nobody from deciding.
	if v := e.Authz(t.Context(), &AuthzInput{
		Act: "approval.decide", Principal: Principal{Tenant: "t", ID: "a", Kind: "user", Roles: []string{"admin"}}, Resource: Resource{Kind: "approval", Tenant: "t"},
	}); !v.Allow {
		t.Errorf("authorization meanwhile: %+v", v)
	}
	e.abandoned.Store(0)
	if d := e.Gate(t.Context(), nil, input("read_file", `{}`)); d.Effect != Allow {
		t.Errorf("%+v", d)
	}
}

// A client that hangs up must not turn a call into a recorded refusal.
func TestTheCallersCancelDoesNotChangeADecision(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d := e.Gate(ctx, nil, input("read_file", `{}`)); d.Effect != Allow {
		t.Errorf("%+v", d)
	}
}

func TestNewRefusesBrokenFoldersAndSaysWhere(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files []string
		want  []string
	}{
		"syntax":                       {[]string{"a/pay.rego", "package pawl.rules\n\ndeny contains if"}, []string{"a/pay.rego:3: "}},
		"two files":                    {[]string{"a.rego", "package pawl.rules\n!", "b.rego", "package pawl.gate\n"}, []string{"a.rego:2: ", "b.rego:1: "}},
		"the host's package":           {[]string{"a.rego", "package pawl.gate\n\ndecision := {\"effect\": \"allow\"}"}, []string{"a.rego:1: package pawl.gate", "pawl.rules"}},
		"the interrupts package":       {[]string{"a.rego", "package pawl.interrupts\nstop contains 1"}, []string{"a.rego:1: "}},
		"a package like it":            {[]string{"a.rego", "package pawl.rulesx\n"}, []string{"a.rego:1: "}},
		"no package":                   {[]string{"a.rego", "deny contains 1"}, []string{"a.rego:1: "}},
		"empty":                        {[]string{"a.rego", ""}, []string{"a.rego"}},
		"only a comment":               {[]string{"a.rego", "# nothing"}, []string{"a.rego"}},
		"a package named pause":        {[]string{"a.rego", "package pawl.rules.pause\nx := 1"}, []string{"a.rego:1: "}},
		"a package named deny":         {[]string{"a.rego", "package pawl.rules.authz.deny\nx := 1"}, []string{"a.rego:1: "}},
		"pause is no set":              {[]string{"a.rego", "package pawl.rules\n\npause := \"stop\" if input.turn > 0"}, []string{"a.rego:3: pause must be a set"}},
		"pause is true":                {[]string{"a.rego", "package pawl.rules\npause if input.turn > 0"}, []string{"a.rego:2: pause must be a set"}},
		"pause is a default":           {[]string{"a.rego", "package pawl.rules\ndefault pause := false"}, []string{"a.rego:2: pause must be a set"}},
		"pause is a function":          {[]string{"a.rego", "package pawl.rules\npause(x) := x"}, []string{"a.rego:2: pause must be a set"}},
		"deny is an object":            {[]string{"a.rego", "package pawl.rules\ndeny[\"x\"] := 1"}, []string{"a.rego:2: deny must be a set"}},
		"deny of a team by a path":     {[]string{"a.rego", "package pawl.rules\nteam.deny contains \"no\" if input.call.tool == \"send\""}, []string{"a.rego:2: team.deny", "is called deny in a package of its own"}},
		"authorization by a path":      {[]string{"a.rego", "package pawl.rules\nauthz.deny contains \"no\" if input.turn > 0"}, []string{"a.rego:2: authz.deny", "is called authz"}},
		"authorization as an object":   {[]string{"a.rego", "package pawl.rules\nauthz := {\"deny\": {\"no\"}}"}, []string{"a.rego:2: authz", "is called authz"}},
		"pause at the end of a path":   {[]string{"a.rego", "package pawl.rules\nsmall.pause contains 1"}, []string{"a.rego:2: small.pause"}},
		"a set below deny":             {[]string{"a.rego", "package pawl.rules\ndeny.x contains 1"}, []string{"a.rego:2: deny must be a set"}},
		"a set by the back door":       {[]string{"a.rego", "package pawl.rules\nallow := true", "b.rego", "package pawl.rules.team\npause := 1"}, []string{"b.rego:2: pause must be a set"}},
		"pause in authz":               {[]string{"a.rego", "package pawl.rules.authz\npause contains 1"}, []string{"a.rego:2: pause has no meaning"}},
		"old Rego":                     {[]string{"a.rego", "package pawl.rules\ndeny[x] { x := 1 }"}, []string{"a.rego:2: "}},
		"http.send":                    {[]string{"a.rego", "package pawl.rules\ndeny contains http.send({\"url\": \"http://x\"})"}, []string{"a.rego:2: undefined function http.send", "switched off"}},
		"http.send by with":            {[]string{"a.rego", "package pawl.rules\ndeny contains x if x := count(\"a\") with count as http.send"}, []string{"a.rego:2: "}},
		"a recursion through the gate": {[]string{"a.rego", "package pawl.rules\nimport data.pawl.gate\npause contains {\"rule\": \"x\"} if gate.decision.effect == \"allow\""}, []string{"recursive"}},
		"a conflict of definitions":    {[]string{"a.rego", "package pawl.rules\nx := 1", "b.rego", "package pawl.rules\nx contains 2"}, []string{".rego:2: "}},
		"an unsafe variable":           {[]string{"a.rego", "package pawl.rules\ndeny contains y if x > 1"}, []string{"a.rego:2: "}},
		"too large":                    {[]string{"a.rego", "package pawl.rules\n#" + strings.Repeat("x", maxModule)}, []string{"a.rego: larger than"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := New(t.Context(), Options{Rules: folder(tc.files...)})
			if err == nil || e != nil {
				t.Fatalf("the folder is accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

// What reaches out of the process, what cannot be replayed, and what signs is no word of the language here.
func TestBuiltinsThatReachOutAreUnknown(t *testing.T) {
	t.Parallel()
	for _, call := range []string{
		`http.send({})`, `net.lookup_ip_addr("x")`, `net.cidr_expand("10.0.0.0/8")`, `opa.runtime()`, `rand.intn("x", 2)`, `uuid.rfc4122("x")`,
		`time.now_ns()`, `io.jwt.decode("x")`, `io.jwt.encode_sign({}, {}, {})`, `io.jwt.decode_verify("x", {})`, `trace("x")`,
		`crypto.x509.parse_certificates("x")`, `providers.aws.sign_req({}, {}, 1)`, `rego.parse_module("x", "y")`,
		`json.match_schema({}, {})`, `graphql.parse_query("x")`,
	} {
		_, err := New(t.Context(), Options{Rules: folder("a.rego", "package pawl.rules\ndeny contains x if x := "+call)})
		if err == nil || !strings.Contains(err.Error(), "undefined function") {
			t.Errorf("%s: %v", call, err)
		}
	}
	for _, b := range capabilities().Builtins {
		if b.IsNondeterministic() {
			t.Errorf("%s is not deterministic", b.Name)
		}
	}
	if net := capabilities().AllowNet; net == nil || len(net) > 0 {
		t.Errorf("allow_net is %v; nil would mean every host", net)
	}
}

// Every package below pawl.rules counts, test files do not, and the base cannot be replaced by a file of its name.
// Public failure BY18.
func TestPeoplesModulesOnlyAdd(t *testing.T) {
	t.Parallel()
	e := newEngine(t,
		"root.rego", "package pawl.rules\npause contains {\"rule\": \"root\"} if input.call.tool == \"x\"\n",
		"deep/er/team.rego", "package pawl.rules.team.money\npause contains {\"rule\": \"team\"} if input.call.tool == \"x\"\ndeny contains \"closed\" if input.call.tool == \"y\"\n",
		"team2.rego", "package pawl.rules.team.money\npause contains {\"rule\": \"team2\"} if input.call.tool == \"x\"\n",
		"odd.rego", "package pawl.rules[\"a-b\"]\npause contains {\"rule\": \"odd\"} if input.call.tool == \"x\"\n",
		"authz.rego", "package pawl.rules.authz\ndeny contains \"root\" if input.act == \"run.list\"\n",
		"authz2.rego", "package pawl.rules.authz.team\ndeny contains \"team\" if input.act == \"run.list\"\n",
		"x_test.rego", "package pawl.rules\ndeny contains \"a test is no rule\"\n",
		"notes.txt", "package pawl.gate",
		"pawl/gate.rego", "package pawl.rules.decoy\nx := 1\n",
	)
	if d := e.Gate(t.Context(), nil, input("x", `{}`)); !slices.Equal(d.Rules, []string{"odd", "root", "team", "team2"}) {
		t.Errorf("%+v", d)
	}
	if d := e.Gate(t.Context(), nil, input("y", `{}`)); d.Effect != Deny || d.Code != "" || !slices.Equal(d.Reasons, []string{"closed"}) {
		t.Errorf("%+v", d)
	}
	if d := e.Gate(t.Context(), nil, input("write_file", `{"path":"/memories/x"}`)); !slices.Equal(d.Rules, []string{"default/write_file"}) {
		t.Errorf("%+v", d)
	}
	v := e.Authz(t.Context(), &AuthzInput{Act: "run.list", Principal: Principal{Tenant: "t", ID: "o", Kind: "user"}, Resource: Resource{Tenant: "t"}})
	if v.Allow || !slices.Equal(v.Reasons, []string{"root", "team"}) {
		t.Errorf("%+v", v)
	}
}

func TestRevisionIsThatOfTheText(t *testing.T) {
	t.Parallel()
	const a, b = "package pawl.rules\nx := 1\n", "package pawl.rules\nx := 1 # \n"
	bare, one, same, other := newEngine(t), newEngine(t, "a.rego", a), newEngine(t, "a.rego", a, "a_test.rego", "package y"), newEngine(t, "a.rego", b)
	if len(bare.Revision()) != len("sha256:")+64 || !strings.HasPrefix(bare.Revision(), "sha256:") {
		t.Error(bare.Revision())
	}
	if one.Revision() != same.Revision() {
		t.Error("a test file changes the revision")
	}
	if one.Revision() == bare.Revision() || one.Revision() == other.Revision() {
		t.Error("a changed rule does not change the revision")
	}
}

func TestNewRefusesAFolderThatCannotBeRead(t *testing.T) {
	t.Parallel()
	if _, err := New(t.Context(), Options{Rules: os.DirFS(filepath.Join(t.TempDir(), "missing"))}); err == nil {
		t.Error("a missing folder is accepted: its rules would be too")
	}
	if _, err := New(t.Context(), Options{Rules: fstest.MapFS{"a.rego": &fstest.MapFile{Mode: fs.ModeDir | 0o755}}}); err != nil {
		t.Errorf("a directory with the name of a module: %v", err)
	}
}

// The engine believes its own base module no more than anything else.
func TestInvariant5_WhatIsNoDecisionIsARefusal(t *testing.T) {
	t.Parallel()
	const pause = `"effect": "pause", "reason": "approval_required", "allowed_decisions": ["approve"], "title": "", "message": "", "ttl": "", "rules": ["a"]`
	good := ast.MustParseTerm(`{` + pause + `}`).Value
	if d, fail := readDecision(good); fail != nil || d.Effect != Pause {
		t.Fatalf("%+v %+v", d, fail)
	}
	for _, s := range []string{
		`"allow"`, `true`, `null`, `["allow"]`, `{}`, `{"allow": true}`, `{"effect": true}`, `{"effect": "allow"}`, `{"effect": "Allow", "rules": []}`,
		`{"effect": "", "rules": []}`, `{"effect": "allow", "rules": ["a"]}`, `{"effect": "allow", "rules": "a"}`, `{"effect": "allow", "rules": [1]}`,
		`{"effect": "allow", "rules": {}}`, `{"effect": "deny", "rules": []}`, `{"effect": "pause", "rules": ["a"]}`,
	} {
		if d, fail := readDecision(ast.MustParseTerm(s).Value); fail == nil || fail.code != CodeShape || d.Effect != "" {
			t.Errorf("%s is read as %+v", s, d)
		}
	}
	for _, change := range []string{
		`"reason": ""`, `"reason": "await_input"`, `"allowed_decisions": []`, `"allowed_decisions": ["maybe"]`, `"allowed_decisions": {"approve"}`,
		`"ttl": "soon"`, `"ttl": "-1s"`, `"ttl": 1`, `"rules": []`, `"title": null`, `"message": 1`,
	} {
		name, _, _ := strings.Cut(change, ":")
		kept := slices.DeleteFunc(strings.SplitAfter(pause, ", "), func(s string) bool { return strings.HasPrefix(s, name) })
		s := "{" + strings.TrimSuffix(strings.Join(kept, ""), ", ") + ", " + change + "}"
		if d, fail := readDecision(ast.MustParseTerm(s).Value); fail == nil || fail.code != CodeShape || d.Effect != "" {
			t.Errorf("%s is read as %+v", s, d)
		}
	}
	for _, s := range []string{`true`, `"allow"`, `{}`, `{"allow": true}`, `{"allow": "true", "reasons": []}`, `{"allow": true, "reasons": ["x"]}`, `{"reasons": []}`} {
		if v, ok := readVerdict(ast.MustParseTerm(s).Value); ok && v.Allow {
			t.Errorf("%s is read as %+v", s, v)
		}
	}
	e := newEngine(t)
	m, err := parse("x.rego", []byte("package x\ny := 1 if input.nothing"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := compile(map[string]module{"x.rego": m})
	if err != nil {
		t.Fatal(err)
	}
	q, err := prepare(t.Context(), c, "data.x.y")
	if err != nil {
		t.Fatal(err)
	}
	if v, fail := e.evaluate(t.Context(), &q, ast.NewObject(), topdown.NewCancel()); v != nil || fail == nil || fail.code != CodeUndefined {
		t.Errorf("undefined gives %v, %+v", v, fail)
	}
}

// Ids name rules: too many or too long ones are a decision of the wrong shape, and a pipe is not a module.
func TestInvariant5_RuleIDsAndFilesAreBounded(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"many": `pause contains {"rule": sprintf("team/%d", [i])} if some i in numbers.range(1, 65)`,
		"long": `pause contains {"rule": concat("", ["team/", sprintf("%v", [input.call.arguments])])} if true`,
	} {
		e, err := New(t.Context(), Options{Rules: fstest.MapFS{"a.rego": {Data: []byte("package pawl.rules\n\n" + rule + "\n")}}})
		if err != nil {
			t.Fatal(err)
		}
		if d := e.Gate(t.Context(), nil, input("echo", `{"q":"`+strings.Repeat("x", 300)+`"}`)); d.Effect != Deny || d.Code != CodeShape {
			t.Errorf("%s: %+v", name, d)
		}
	}
	_, err := New(t.Context(), Options{Rules: fstest.MapFS{"a.rego": {Mode: fs.ModeNamedPipe}}})
	if err == nil || !strings.Contains(err.Error(), "a.rego") || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a pipe: %v", err)
	}
}

// A set that nothing reads is a misspelt pause or deny, and would stop nothing for ever.
func TestInvariant5_AMisspeltSetIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"pauses contains {\"rule\": \"team/a\"} if input.call.tool == \"x\"":                                         "a.rego:3",
		"denied contains \"no\" if true":                                                                             "misspelt",
		"big contains t if { some t in [\"a\"] }\n\npause contains {\"rule\": \"team/a\"} if input.call.tool in big": "",
		"big contains t if { some t in [\"a\"] }\n\npause contains {\"rule\": r} if { r := concat(\"/\", [\"team\", \"a\"]); data.pawl.rules.big[input.call.tool] }": "",
		"pauses contains \"a\" if true\n\ndeny contains \"no\" if input.call.tool == \"pauses\"":                                                                     "misspelt", // a text that happens to be the name
		"big contains \"a\"\n\nm[k] := 1 if some k in [\"a\"]\n\ndeny contains m[big[_]]":                                                                            "",
		"big contains \"a\"\n\ndeny contains \"no\" if not input.call.tool in big":                                                                                   "",
		"lists.big contains \"a\"\n\ndeny contains \"no\" if input.call.tool in lists.big":                                                                           "",
		"lists.big contains \"a\"\n\ndeny contains \"no\" if input.call.tool in lists[_]":                                                                            "",
		"lists.big contains \"a\"\n\ndeny contains \"no\" if input.call.tool == \"big\"":                                                                             "misspelt",
		"big contains \"a\"\n\nsmall := {x | some x in big}":                                                                                                         "",
		"big contains \"a\"\n\nf(x) := 1 if x == \"a\" else := 2 if x in big":                                                                                        "",
		"limit := 3\n\nhelper(x) if x > limit":                                                                                                                       "", // constants and functions may wait for their use
	} {
		_, err := New(t.Context(), Options{Rules: fstest.MapFS{"a.rego": {Data: []byte("package pawl.rules\n\n" + text + "\n")}}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	// A set of another package, by each way to it.
	for text, used := range map[string]bool{
		"import data.pawl.rules.lists.blocked as b\ndeny contains \"no\" if input.call.tool in b": true,
		"import data.pawl.rules.lists.blocked\ndeny contains \"no\" if blocked[input.call.tool]":  true,
		"import data.pawl.rules.lists\ndeny contains \"no\" if input.call.tool in lists.blocked":  true,
		"import data.pawl.rules.lists as l\ndeny contains \"no\" if input.call.tool in l[_]":      true,
		"import data.pawl.rules.lists as l\ndeny contains \"no\" if input.call.tool in l.limits":  false,
		"deny contains \"no\" if input.call.tool in data.pawl.rules.lists[\"blocked\"]":           true,
		"deny contains \"no\" if { some lists in [1]; input.turn == lists }":                      false,
		"blocked := [\"b\"]\ndeny contains \"no\" if input.call.tool in blocked":                  false,
	} {
		_, err := New(t.Context(), Options{Rules: folder("a.rego", "package pawl.rules.lists\nblocked contains \"x\"\nlimits := {\"x\"}\n", "b.rego", "package pawl.rules\n"+text+"\n")})
		if (err == nil) != used || err != nil && !strings.Contains(err.Error(), "a.rego:2: nothing reads the set blocked") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
