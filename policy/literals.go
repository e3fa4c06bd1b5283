package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The members of what a pause says, and of what a deny may say: see gate.rego, which holds every value to the same at run time.
var (
	stopMembers    = []string{"rule", "reason", "title", "message", "allowed_decisions", "ttl"}
	refusalMembers = []string{"rule", "message"}
	stopReasons    = []string{"approval_required", "constraints_conflict"}
	reservedRules  = []string{"interrupt_on/", "default/", "preset."}
)

var stopTTL = regexp.MustCompile(`^([0-9]{1,6}(\.[0-9]{1,9})?(ns|us|µs|ms|s|m|h))+$`)

// checkLiterals finds elements of pause and deny that can never be read: each such rule denies every call that it matches. Only what is written
// out is looked at, in the head or in a variable of the body that the head names; what is computed shows at run time.
func checkLiterals(modules map[string]module) error {
	var problems []error
	for _, name := range sortedKeys(modules) {
		m := modules[name].parsed
		if strings.HasPrefix(name, basePrefix) {
			continue
		}
		for _, r := range m.Rules {
			set := string(r.Head.Ref()[0].Value.(ast.Var))
			if r.Head.Key == nil || !slices.Contains(collected, set) {
				continue
			}
			element := written(r)
			l := literals{at: element.Location}
			switch {
			case isAuthz(m):
				l.word(element)
			case set == "pause":
				l.stop(element)
			default:
				l.refusal(element)
			}
			problems = append(problems, l.problems...)
		}
	}
	return errors.Join(problems...)
}

// written is the term that a rule puts into its set: that of the head, or what the body assigns to the variable there.
func written(r *ast.Rule) *ast.Term {
	for _, e := range r.Body {
		if e.IsAssignment() && e.Operand(0).Equal(r.Head.Key) {
			return e.Operand(1)
		}
	}
	return r.Head.Key
}

// literals collects what is wrong in the literals of one element.
type literals struct {
	at       *ast.Location // of the element
	problems []error
}

func (l *literals) wrong(t *ast.Term, format string, args ...any) {
	at := l.at
	if t.Location != nil {
		at = t.Location
	}
	l.problems = append(l.problems, fmt.Errorf("%s:%d: "+format, append([]any{at.File, at.Row}, args...)...))
}

func (l *literals) stop(t *ast.Term) {
	o, ok := t.Value.(ast.Object)
	if !ok {
		if scalar(t) || collection(t) {
			l.wrong(t, `pause: an element must be an object with a rule, such as {"rule": "team/limit"}`)
		}
		return
	}
	l.members(t, o, stopMembers, stopMembers[:1])
	o.Foreach(func(k, v *ast.Term) {
		name, _ := k.Value.(ast.String)
		switch text, isText := v.Value.(ast.String); name {
		case "rule":
			l.text("pause", "rule", v)
			for _, prefix := range reservedRules {
				if isText && strings.HasPrefix(string(text), prefix) {
					l.wrong(v, "pause: rule %s: ids that begin with %s are the host's own; name it otherwise, such as team/…", text, prefix)
				}
			}
		case "reason":
			l.oneOf("pause: reason", v, stopReasons)
		case "title", "message":
			if !isText && (scalar(v) || collection(v)) {
				l.wrong(v, "pause: %s must be a text", string(name))
			}
		case "allowed_decisions":
			l.decisions(v)
		case "ttl":
			d, err := time.ParseDuration(string(text))
			if isText && (err != nil || d <= 0 || !stopTTL.MatchString(string(text))) || !isText && (scalar(v) || collection(v)) {
				l.wrong(v, "pause: ttl %s must be a positive duration such as 1h or 90m", v)
			}
		}
	})
}

func (l *literals) decisions(t *ast.Term) {
	n := 0
	each := func(e *ast.Term) { n++; l.oneOf("pause: allowed_decisions has", e, decisionKinds) }
	switch v := t.Value.(type) {
	case *ast.Array:
		v.Foreach(each)
	case ast.Set:
		v.Foreach(each)
	default:
		if scalar(t) || collection(t) {
			l.wrong(t, "pause: allowed_decisions must be a list of %s", strings.Join(decisionKinds, ", "))
		}
		return
	}
	if n == 0 {
		l.wrong(t, "pause: allowed_decisions is empty; name at least one of %s, or deny the call", strings.Join(decisionKinds, ", "))
	}
}

func (l *literals) refusal(t *ast.Term) {
	o, ok := t.Value.(ast.Object)
	switch {
	case ok:
		l.members(t, o, refusalMembers, refusalMembers)
		o.Foreach(func(k, v *ast.Term) {
			if name, ok := k.Value.(ast.String); ok {
				l.text("deny", string(name), v)
			}
		})
	case collection(t):
		l.wrong(t, "deny: an element must be a text, or {rule, message}")
	default:
		l.text("deny", "an element", t)
	}
}

// word checks a refusal of an act: a stable word.
func (l *literals) word(t *ast.Term) {
	if collection(t) {
		l.wrong(t, "deny: a refusal of an act must be a text, a stable word that clients can branch on")
		return
	}
	l.text("deny", "a refusal of an act", t)
}

// text refuses a literal that is no text, an empty one, and one that is too long for an id.
func (l *literals) text(set, name string, t *ast.Term) {
	text, ok := t.Value.(ast.String)
	switch {
	case ok && text == "", !ok && (scalar(t) || collection(t)):
		l.wrong(t, "%s: %s must be a text that is not empty", set, name)
	case name == "rule" && len(text) > maxRuleID:
		l.wrong(t, "%s: rule is longer than %d bytes", set, maxRuleID)
	}
}

func (l *literals) oneOf(what string, t *ast.Term, known []string) {
	text, ok := t.Value.(ast.String)
	if ok && slices.Contains(known, string(text)) || !ok && !scalar(t) && !collection(t) {
		return
	}
	hint := ""
	if near := nearest(string(text), known); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	l.wrong(t, "%s %s, and there is only %s%s", what, t, strings.Join(known, ", "), hint)
}

// members refuses names that an element does not have, and an element without those that it needs.
func (l *literals) members(t *ast.Term, o ast.Object, known, needed []string) {
	open := false // a name is computed
	has := map[string]bool{}
	o.Foreach(func(k, _ *ast.Term) {
		name, ok := k.Value.(ast.String)
		if !ok {
			open = true
			return
		}
		has[string(name)] = true
		if !slices.Contains(known, string(name)) {
			l.oneOf("an element has the member", k, known)
		}
	})
	for _, name := range needed {
		if !has[name] && !open {
			l.wrong(t, "an element must say its %s", name)
		}
	}
}

// scalar reports whether a term is written out, as one value.
func scalar(t *ast.Term) bool {
	switch t.Value.(type) {
	case ast.Null, ast.Boolean, ast.Number, ast.String:
		return true
	}
	return false
}

func collection(t *ast.Term) bool {
	switch t.Value.(type) {
	case *ast.Array, ast.Set, ast.Object:
		return true
	}
	return false
}
