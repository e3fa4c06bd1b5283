package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Effect is what the gate decides. Its zero value denies: compare with Allow, never with Deny.
type Effect string

const (
	Allow Effect = "allow"
	Pause Effect = "pause"
	Deny  Effect = "deny"
)

// Decision is the gate's answer for one call. The zero value denies.
type Decision struct {
	Effect           Effect
	Code             string        // "" for a decision of the rules; else why there is none, with Effect Deny
	Reason           string        // of a pause: approval_required or constraints_conflict
	AllowedDecisions []string      // of a pause: sorted, never empty
	Title, Message   string        // of a pause: from the first of its rules
	TTL              time.Duration // of a pause: the smallest of its rules; 0: none has one
	Rules            []string      // the ids of the rules that pause or deny, sorted
	Reasons          []string      // of a deny: texts of the rules, sorted; they may be shown to the model
	Detail           string        // of a failure: for the operator's log; holds no argument
	Revision         string        // of the set of rules that answered
}

// Gate decides one call. It never fails open and has no error: whatever goes wrong is a Deny with a Code. on is nil for the
// built-in defaults. It returns within about the deadline, whatever the rules do.
func (e *Engine) Gate(ctx context.Context, on *Interrupts, in *Input) Decision {
	return e.decide(ctx, on, in, false)
}

// Fires answers for edited arguments: does each of these rules still stop the call? A matcher of interrupt_on that cannot be
// evaluated counts as not firing, the opposite of the gate, since an edit must not lead out of what was put to the
// approver. missing are the rules that do not fire, sorted. denied is the gate's refusal of the edited call, if it refuses
// it; then, on every failure, and when rules is empty, all is false.
func (e *Engine) Fires(ctx context.Context, on *Interrupts, in *Input, rules []string) (all bool, missing []string, denied *Decision) {
	for _, strict := range []bool{false, true} {
		d := e.decide(ctx, on, in, strict)
		if d.Effect != Allow && d.Effect != Pause {
			missing = slices.Clone(rules)
			slices.Sort(missing)
			return false, missing, &d
		}
		if !strict {
			continue
		}
		for _, rule := range rules {
			if d.Effect != Pause || !slices.Contains(d.Rules, rule) {
				missing = append(missing, rule)
			}
		}
	}
	slices.Sort(missing)
	return len(rules) > 0 && len(missing) == 0, slices.Compact(missing), nil
}

func (e *Engine) decide(ctx context.Context, on *Interrupts, in *Input, strict bool) Decision {
	d := e.judge(ctx, on, in, strict)
	d.Revision = e.revision
	return d
}

func (e *Engine) judge(ctx context.Context, on *Interrupts, in *Input, strict bool) Decision {
	doc, err := in.document()
	if err != nil {
		return refuse(&failure{CodeInput, err.Error()})
	}
	if on == nil {
		on = e.defaults
	}
	interrupts := &on.stop
	if strict {
		interrupts = &on.sure
	}
	v, fail := e.run(func(cancel topdown.Cancel) (ast.Value, *failure) {
		return e.gateValue(ctx, interrupts, doc, cancel)
	})
	if fail != nil {
		return refuse(fail)
	}
	d, fail := readDecision(v)
	if fail != nil {
		return refuse(fail)
	}
	return d
}

// gateValue asks the agent's own rules first and hands what they ask for to the gate as input.interrupts. They are compiled
// apart from the rest because there may be thousands of agents, and people's rules are the same for all.
func (e *Engine) gateValue(ctx context.Context, interrupts *rego.PreparedEvalQuery, doc ast.Object, cancel topdown.Cancel) (ast.Value, *failure) {
	v, fail := e.evaluate(ctx, interrupts, doc, cancel)
	if fail != nil {
		return nil, fail
	}
	stops, ok := v.(ast.Set)
	if !ok {
		return nil, &failure{CodeShape, "interrupt_on did not give a set"}
	}
	doc.Insert(ast.InternedTerm("interrupts"), ast.NewTerm(stops.Sorted()))
	return e.evaluate(ctx, &e.gate, doc, cancel)
}

func refuse(f *failure) Decision {
	return Decision{Effect: Deny, Code: f.code, Reasons: []string{f.code}, Detail: f.detail}
}

const (
	maxRules  = 64  // that stop one call
	maxRuleID = 256 // bytes
)

// readDecision reads data.pawl.gate.decision and believes nothing: a pause needs all that a decision about it needs.
func readDecision(v ast.Value) (Decision, *failure) {
	shape := func(detail string) (Decision, *failure) { return Decision{}, &failure{CodeShape, detail} }
	obj, ok := v.(ast.Object)
	if !ok {
		return shape("the decision is not an object")
	}
	r := reader{obj: obj}
	d := Decision{Effect: Effect(r.text("effect")), Rules: r.texts("rules")}
	// The ids go where arguments must not: bounded, they name rules and carry nothing.
	if len(d.Rules) > maxRules || slices.ContainsFunc(d.Rules, func(id string) bool { return len(id) > maxRuleID }) {
		return shape(fmt.Sprintf("more than %d rules stop the call, or a rule's id is longer than %d bytes", maxRules, maxRuleID))
	}
	switch d.Effect {
	case Allow:
		if len(d.Rules) > 0 {
			return shape("the decision allows a call that rules stop")
		}
	case Deny:
		d.Code, d.Reasons = r.optional("code"), r.texts("reasons")
		if d.Code != "" {
			d.Detail, d.Reasons = strings.Join(d.Reasons, "; "), []string{d.Code}
		}
	case Pause:
		d.Reason, d.AllowedDecisions = r.text("reason"), r.texts("allowed_decisions")
		d.Title, d.Message = r.text("title"), r.text("message")
		if ttl := r.text("ttl"); ttl != "" {
			var err error
			if d.TTL, err = time.ParseDuration(ttl); err != nil || d.TTL <= 0 {
				return shape("the decision's ttl is not a positive duration")
			}
		}
		if d.Reason != "approval_required" && d.Reason != "constraints_conflict" {
			return shape("the decision's reason is unknown")
		}
		if len(d.Rules) == 0 || len(d.AllowedDecisions) == 0 {
			return shape("the decision names no rule, or allows no decision")
		}
		for _, kind := range d.AllowedDecisions {
			if !slices.Contains(decisionKinds, kind) {
				return shape("the decision allows an unknown decision")
			}
		}
	default:
		return shape("the decision's effect is unknown")
	}
	if r.bad != "" {
		return shape("the decision's " + r.bad + " is missing or of the wrong type")
	}
	return d, nil
}

// reader takes members out of an object and remembers the first that is not as it should be.
type reader struct {
	obj ast.Object
	bad string
}

func (r *reader) text(name string) string {
	if t := r.obj.Get(ast.InternedTerm(name)); t != nil {
		if s, ok := t.Value.(ast.String); ok {
			return string(s)
		}
	}
	if r.bad == "" {
		r.bad = name
	}
	return ""
}

func (r *reader) optional(name string) string {
	if r.obj.Get(ast.InternedTerm(name)) == nil {
		return ""
	}
	return r.text(name)
}

func (r *reader) texts(name string) []string {
	var array *ast.Array
	if t := r.obj.Get(ast.InternedTerm(name)); t != nil {
		array, _ = t.Value.(*ast.Array)
	}
	ok := array != nil
	var texts []string
	for i := 0; ok && i < array.Len(); i++ {
		var s ast.String
		s, ok = array.Elem(i).Value.(ast.String)
		texts = append(texts, string(s))
	}
	if !ok && r.bad == "" {
		r.bad = name
	}
	return texts
}
