package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

func TestAMisspeltInputIsRefusedWithTheNearestName(t *testing.T) {
	t.Parallel()
	const fires = "pause contains {\"rule\": \"x\"} if "
	for name, tc := range map[string]struct {
		file string // of package pawl.rules, unless it names one
		want []string
	}{
		"a member":                    {fires + `input.call.argument.path == "/x"`, []string{"a.rego:2:", `input.call has no member "argument"`, `did you mean "arguments"?`}},
		"at the top":                  {fires + `input.principle.id == "x"`, []string{"a.rego:2:", `input has no member "principle"`, `"principal"`}},
		"in brackets":                 {fires + `input["call"]["Tool"] == "x"`, []string{`"Tool"`, `did you mean "tool"?`}},
		"below not":                   {fires + "{\n\tinput.call.tool == \"x\"\n\tnot input.call.argument.path\n}", []string{"a.rego:4:", `"argument"`}},
		"behind a variable":           {fires + "{\n\tcall := input.call\n\tcall.argument.path == \"/x\"\n}", []string{"a.rego:4:", `call has no member "argument"`}},
		"behind an import":            {"import input.call as c\n" + fires + `c.argument.path == "x"`, []string{"a.rego:3:", `"argument"`}},
		"in a batch":                  {fires + "{\n\tsome c in input.batch\n\tc.tol == \"x\"\n}", []string{"a.rego:4:", `did you mean "tool"?`}},
		"in a helper of the package":  {"big if input.call.arg.n > 1\n" + fires + "big", []string{"a.rego:2:", `"arg"`}},
		"in a comprehension":          {fires + `count([c | some c in input.batches]) > 1`, []string{`did you mean "batch"?`}},
		"below a text":                {fires + `input.tenant.name == "x"`, []string{"a.rego:2:", "input.tenant has no members"}},
		"one that only the agent has": {fires + `input.agent.permission == "locked"`, []string{`did you mean "permissions"?`}},
		"of an element":               {fires + `input.interrupts[_].rules == "x"`, []string{`did you mean "rule"?`}},
		"of the other question":       {fires + `input.act == "run.create"`, []string{`input has no member "act"`}},
		"in a message":                {"deny contains {\"rule\": \"x\", \"message\": input.call.tools} if true", []string{`did you mean "tool"?`}},
		"authz":                       {"package pawl.rules.authz\ndeny contains \"x\" if input.resource.tol == \"x\"", []string{"a.rego:2:", `did you mean "tool"?`}},
		"authz, of the gate":          {"package pawl.rules.authz\ndeny contains \"x\" if input.call.tool == \"x\"", []string{"a.rego:2:", `input has no member "call"`}},
		"a team's package":            {"package pawl.rules.team\n" + fires + `input.cal.tool == "x"`, []string{"a.rego:2:", `did you mean "call"?`}},
		"a helper of neither":         {"package pawl.rules.lib\nf(x) if input.cal.tool == x", []string{"a.rego:2:", `"cal"`}},
		"of another input":            {fires + `helper with input as {"zzz": 1}` + "\nhelper if input.zzz == 1", []string{"a.rego:3:", `input has no member "zzz"`, "to a function, as an argument"}},
		"two of them":                 {fires + `input.cal.tool == "x"` + "\n" + fires + `input.turns == 3`, []string{"a.rego:2:", "a.rego:3:", `"turn"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := tc.file
			if !strings.HasPrefix(text, "package") {
				text = "package pawl.rules\n" + text
			}
			_, err := New(t.Context(), Options{Rules: folder("a.rego", text+"\n")})
			if err == nil {
				t.Fatal("it loads, and would never fire")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %s", err, want)
				}
			}
		})
	}
}

// What people write and mean is not refused, however odd.
func TestInputsThatAreThereAreNotRefused(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]string{
		"anything in the arguments": {"a.rego", `package pawl.rules
			pause contains {"rule": "a"} if input.call.arguments.any.thing[0]["at all"] == 1
			pause contains {"rule": "b"} if input.call.arguments[_] > 3
			pause contains {"rule": "c"} if { some k, v in input.call.arguments; startswith(k, "x"); v.y }
			pause contains {"rule": "d"} if input.call.arguments == {}
			pause contains {"rule": "e"} if { args := input.call.arguments; args.transfer.amount > input.untrusted.tool_context.budget.left }
			pause contains {"rule": "f"} if { some c in input.batch; c.arguments.path == input.call.arguments.path }`},
		"every member": {"a.rego", `package pawl.rules
			pause contains {"rule": "a"} if {
				input.tenant; input.principal.id; input.principal.kind; input.principal.roles[_]; input.subject; input.agent.name; input.agent.version
				input.agent.permissions; input.run.id; input.run.created_by; input.run.session_id; input.frame.depth; input.turn; input.time; input.batch
				input.call.tool; input.call.plugin; input.call.name; input.call.digest; input.call.effects; input.call.tool_call_id; input.call.index
				input.call.size; input.untrusted.tool_context.x; input.history.calls; input.history.approved; input.history.rejected
				some stop in input.interrupts; stop.rule; stop.reason; stop.allowed_decisions; stop.title; stop.message; stop.ttl
			}`},
		"dynamic names": {"a.rego", `package pawl.rules
			names := ["tool", "nothing"]
			pause contains {"rule": "a"} if { some n in names; input.call[n] == "x" }
			pause contains {"rule": "b"} if { some k; input[k] == "x" }
			pause contains {"rule": "c"} if object.get(input, ["call", "argument"], "") == "x"
			pause contains {"rule": "d"} if { walk(input, [path, value]); path[0] == "x"; value == 1 }
			pause contains {"rule": "e"} if { some k, v in input.principal; k == "id"; v == "x" }`},
		"functions and with": {"a.rego", `package pawl.rules
			f(call) if call.whatever == 1
			pause contains {"rule": "a"} if f(input.call)
			big if input.call.arguments.n > 1
			pause contains {"rule": "b"} if big with input.call.arguments as {"n": 3}
			pause contains {"rule": "c"} if big with input as {"call": {"arguments": {"n": 3}}}
			pause contains {"rule": "d"} if object.union(input.call, {"x": 1}).x == 1`},
		"types that do not fit": {"a.rego", `package pawl.rules
			pause contains {"rule": "a"} if input.run.session_id == null
			pause contains {"rule": "b"} if input.turn == "2"
			pause contains {"rule": "c"} if lower(input.turn) == "x"
			pause contains {"rule": "d"} if input.principal.roles == {"admin"}`},
		"schemas of their own": {"a.rego", "# METADATA\n# scope: package\n# schemas:\n#   - input: schema.mine\npackage pawl.rules\npause contains {\"rule\": \"a\"} if input.call.tool == \"x\"\n"},
		"a helper for both": {
			"lib.rego", "package pawl.rules.lib\nadmin if \"admin\" in input.principal.roles\ndecides if input.act == \"approval.decide\"\nwrites if input.call.effects == \"write\"\n",
			"gate.rego", "package pawl.rules\nimport data.pawl.rules.lib\npause contains {\"rule\": \"a\"} if lib.writes\n",
			"authz.rego", "package pawl.rules.authz\nimport data.pawl.rules.lib\ndeny contains \"a\" if lib.decides\n",
		},
		"authorization takes from the gate's package": {
			"gate.rego", "package pawl.rules\nmoney if input.resource.tool == \"transfer\"\npause contains {\"rule\": \"a\"} if input.call.tool == \"x\"\n",
			"authz.rego", "package pawl.rules.authz\ndeny contains \"a\" if data.pawl.rules.money\n",
		},
		"every member of the other question": {"authz.rego", `package pawl.rules.authz
			deny contains "a" if {
				input.act; input.principal.tenant; input.principal.id; input.principal.kind; input.principal.roles; input.resource.kind
				input.resource.tenant; input.resource.id; input.resource.created_by; input.resource.subject; input.resource.agent
				input.resource.tool; input.resource.reason; input.resource.origin; input.resource.roles; input.resource.kind_of_key
			}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := New(t.Context(), Options{Rules: folder(files...)}); err != nil {
				t.Error(err)
			}
		})
	}
}

// The shapes have every member that the documents have, no more and no less.
func TestTheShapesAreThoseOfTheDocuments(t *testing.T) {
	t.Parallel()
	in := input("t", `{"any":1}`)
	in.Batch = []*Call{{Tool: "u", Arguments: json.RawMessage(`{"any":1}`)}}
	in.Agent.Permissions = []string{"auto"}
	doc, err := in.document()
	if err != nil {
		t.Fatal(err)
	}
	doc.Insert(ast.StringTerm("interrupts"), ast.ArrayTerm(ast.NewTerm(ast.MustInterfaceToValue(stopShape{AllowedDecisions: []string{"approve"}}))))
	who := &AuthzInput{Principal: Principal{Roles: []string{"member"}}, Resource: Resource{Roles: []string{"member"}}}
	for name, tc := range map[string]struct {
		shape map[string]any
		doc   ast.Value
	}{"gate": {gateShape, doc}, "authz": {authzShape, who.document()}} {
		got, want := shapeNames("", tc.shape), names("", ast.NewTerm(tc.doc))
		want = slices.DeleteFunc(want, func(s string) bool { return strings.HasSuffix(s, "/any") || strings.HasSuffix(s, "/budget") })
		for _, open := range []string{"/call/arguments", "/batch/-/arguments", "/untrusted/tool_context"} {
			if name == "gate" {
				want = append(want, open)
			}
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the shape has\n%v\nthe document\n%v", name, got, want)
		}
	}
}

func shapeNames(at string, s map[string]any) (all []string) {
	switch s["type"] {
	case "object":
		for name, m := range s["properties"].(map[string]any) {
			all = append(all, shapeNames(at+"/"+name, m.(map[string]any))...)
		}
	case "array":
		all = shapeNames(at+"/-", s["items"].(map[string]any))
	default:
		all = []string{at}
	}
	slices.Sort(all)
	return all
}
