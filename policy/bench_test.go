package policy

import (
	"fmt"
	"strings"
	"testing"
)

// thousandRules is a folder of n rules whose i-th has the condition that form gives.
func thousandRules(n int, form func(i int) string) string {
	var b strings.Builder
	b.WriteString("package pawl.rules\n")
	for i := range n {
		fmt.Fprintf(&b, "pause contains {\"rule\": \"r%d\"} if {\n%s\n}\n", i, form(i))
	}
	return b.String()
}

// The forms of a condition, as people write them, and whether OPA finds the few rules that can hold without trying all.
var ruleForms = map[string]struct {
	indexed bool
	form    func(i int) string
}{
	"equality":            {true, func(i int) string { return fmt.Sprintf("\tinput.call.tool == \"t%d\"", i) }},
	"equality_of_a_field": {true, func(i int) string { return fmt.Sprintf("\tinput.call.arguments.account == \"a%d\"", i) }},
	"in_a_set":            {true, func(i int) string { return fmt.Sprintf("\tinput.call.tool in {\"t%d\", \"u%d\"}", i, i) }},
	"startswith":          {true, func(i int) string { return fmt.Sprintf("\tstartswith(input.call.arguments.path, \"/p%d/\")", i) }},
	"endswith":            {true, func(i int) string { return fmt.Sprintf("\tendswith(input.call.arguments.path, \".x%d\")", i) }},
	"any_prefix_match": {true, func(i int) string {
		return fmt.Sprintf("\tstrings.any_prefix_match(input.call.arguments.path, [\"/p%d/\", \"/q%d/\"])", i, i)
	}},
	"glob": {true, func(i int) string {
		return fmt.Sprintf("\tglob.match(\"p%d:*\", [\":\"], input.call.arguments.topic)", i)
	}},
	"equality_and_more": {true, func(i int) string {
		return fmt.Sprintf("\tinput.call.tool == \"t%d\"\n\tnot startswith(input.tenant, \"x\")", i)
	}},
	"by_a_variable":    {true, func(i int) string { return fmt.Sprintf("\ttool := input.call.tool\n\ttool == \"t%d\"", i) }},
	"by_a_function":    {false, func(i int) string { return fmt.Sprintf("\tlower(input.call.tool) == \"t%d\"", i) }},
	"by_a_regex":       {false, func(i int) string { return fmt.Sprintf("\tregex.match(\"^/p%d/\", input.call.arguments.path)", i) }},
	"by_an_inequality": {false, func(i int) string { return fmt.Sprintf("\tinput.call.arguments.amount > %d", i+1000) }},
	"negated":          {false, func(i int) string { return fmt.Sprintf("\tnot input.call.tool != \"t%d\"", i) }},
}

// Two hundred rules of a form that the README calls indexed cost no more allocations than twice those of one, and of another form
// many more: then the README is out of date. Not parallel, since the count is that of the whole process.
func TestIndexedFormsStayIndexed(t *testing.T) {
	in := input("read_file", `{"account":"a","amount":5,"path":"/notes/x.md","topic":"n:x"}`)
	for name, f := range ruleForms {
		allocs := func(n int) float64 {
			e := newEngine(t, "r.rego", thousandRules(n, f.form))
			return testing.AllocsPerRun(20, func() {
				if d := e.Gate(t.Context(), nil, in); d.Effect != Allow {
					t.Fatalf("%s: %+v", name, d)
				}
			})
		}
		one, many := allocs(1), allocs(200)
		if indexed := many <= 2*one; indexed != f.indexed {
			t.Errorf("%s: %v allocations with one rule, %v with 200; indexed: want %v", name, one, many, f.indexed)
		}
	}
}

func BenchmarkGate(b *testing.B) {
	gate := func(b *testing.B, e *Engine, on *Interrupts, in *Input, want Effect) {
		b.Helper()
		b.ReportAllocs()
		for b.Loop() {
			if d := e.Gate(b.Context(), on, in); d.Effect != want {
				b.Fatalf("%+v", d)
			}
		}
	}
	pauses := input("write_file", `{"content":"hi","path":"/memories/AGENTS.md"}`)
	passes := input("read_file", `{"account":"a","amount":5,"path":"/notes/x.md","topic":"n:x"}`)
	b.Run("defaults/pause", func(b *testing.B) { gate(b, newEngine(b), nil, pauses, Pause) })
	b.Run("defaults/allow", func(b *testing.B) { gate(b, newEngine(b), nil, passes, Allow) })
	ten := `{"transfer":{"when":[{"amount":{"min":1000}},{"currency":{"not_in":["EUR"]}}]}`
	for i := range 9 {
		ten += fmt.Sprintf(`,"t%d":{"when":{"to":{"suffix":"@x%d"},"n":{"min":%d}}}`, i, i, i)
	}
	ten += "}"
	b.Run("ten/pause", func(b *testing.B) {
		e := newEngine(b)
		gate(b, e, compileOn(b, e, ten), input("transfer", `{"amount":1000,"currency":"EUR"}`), Pause)
	})
	b.Run("ten/allow", func(b *testing.B) {
		e := newEngine(b)
		gate(b, e, compileOn(b, e, ten), input("transfer", `{"amount":10,"currency":"EUR"}`), Allow)
	})
	for _, name := range sortedKeys(ruleForms) {
		f := ruleForms[name]
		e := newEngine(b, "r.rego", thousandRules(1000, f.form))
		b.Run("thousand/"+name+"/allow", func(b *testing.B) { gate(b, e, nil, passes, Allow) })
		if f.indexed {
			b.Run("thousand/"+name+"/pause", func(b *testing.B) { gate(b, e, nil, pauses, Pause) })
		}
	}
	b.Run("thousand/one_of_them_pauses", func(b *testing.B) {
		e := newEngine(b, "r.rego", thousandRules(1000, ruleForms["equality"].form))
		gate(b, e, nil, input("t500", `{}`), Pause)
	})
}

func BenchmarkAuthz(b *testing.B) {
	e := newEngine(b)
	in := &AuthzInput{
		Act:       "approval.decide",
		Principal: Principal{Tenant: "t", ID: "a", Kind: "user", Roles: []string{"admin"}},
		Resource:  Resource{Tenant: "t", CreatedBy: "m", Subject: "m", Reason: "approval_required", Origin: "gate"},
	}
	b.ReportAllocs()
	for b.Loop() {
		if v := e.Authz(b.Context(), in); !v.Allow {
			b.Fatalf("%+v", v)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	e := newEngine(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		compileOn(b, e, fmt.Sprintf(`{"transfer":{"when":[{"amount":{"min":%d}},{"currency":{"not_in":["EUR"]}}]}}`, i))
	}
}

func BenchmarkNewWithThousandRules(b *testing.B) {
	rules := thousandRules(1000, ruleForms["equality"].form)
	for b.Loop() {
		newEngine(b, "r.rego", rules)
	}
}
