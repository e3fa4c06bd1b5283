package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/open-policy-agent/opa/v1/ast"
)

// stopShape is an element of input.interrupts, as the generated rules make it.
type stopShape struct {
	Rule             string   `json:"rule"`
	Reason           string   `json:"reason"`
	AllowedDecisions []string `json:"allowed_decisions"`
	Title            string   `json:"title"`
	Message          string   `json:"message"`
	TTL              string   `json:"ttl"`
}

// The shapes of the two inputs, as JSON schemas. They come from the Go types whose JSON they are, so that a new member is known at once.
var (
	gateShape = func() map[string]any {
		s := shape(reflect.TypeFor[Input]())
		members := s["properties"].(map[string]any)
		members["interrupts"] = shape(reflect.TypeFor[[]stopShape]())
		principal := members["principal"].(map[string]any)["properties"].(map[string]any)
		for _, name := range []string{"tenant", "act_as", "operator"} { // of an authz question only
			delete(principal, name)
		}
		return s
	}()
	authzShape = shape(reflect.TypeFor[AuthzInput]())
)

// shape renders a type: objects are closed, and what holds raw JSON (the arguments, the caller's context) may be anything.
func shape(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string"}
	case t == reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return shape(t.Elem())
	case reflect.Struct:
		members := map[string]any{}
		for f := range t.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.IsExported() && name != "" && name != "-" {
				members[name] = shape(f.Type)
			}
		}
		return map[string]any{"type": "object", "properties": members, "additionalProperties": false}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": shape(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "number"}
	}
	return map[string]any{}
}

// checkInputs refuses a reference to a member that the input never has: to Rego it is undefined and no error, and the rule would stop
// nothing for ever. The compiler finds it also behind a variable or an import. Only such references are refused; that types differ
// may be meant.
func checkInputs(peoples map[string]module) error {
	if len(peoples) == 0 {
		return nil
	}
	gate := wrongRefs(peoples, gateShape)
	if len(gate) == 0 && !slices.ContainsFunc(slices.Collect(maps.Values(peoples)), func(m module) bool { return isAuthz(m.parsed) }) {
		return nil // the usual folder; the other question need not be asked
	}
	authz := wrongRefs(peoples, authzShape)
	reads := map[string]bool{} // the packages from which the host reads
	var gateUsesAuthz, authzUsesGate bool
	for _, m := range peoples {
		for _, r := range m.parsed.Rules {
			if slices.Contains(collected, string(r.Head.Ref()[0].Value.(ast.Var))) {
				reads[packageName(m.parsed)] = true
			}
		}
		ast.WalkRefs(m.parsed, func(r ast.Ref) bool {
			if r.HasPrefix(rulesPackage) && !r.Equal(m.parsed.Package.Path) {
				if r.HasPrefix(authzPackage) {
					gateUsesAuthz = gateUsesAuthz || !isAuthz(m.parsed)
				} else {
					authzUsesGate = authzUsesGate || isAuthz(m.parsed)
				}
			}
			return false
		})
	}
	var problems []error
	for _, name := range sortedKeys(peoples) {
		m := peoples[name].parsed
		// A package that only helps others, or from which both sides take, may be asked with either input.
		wrong, other, both := gate[name], authz[name], !reads[packageName(m)] || authzUsesGate
		if isAuthz(m) {
			wrong, other, both = authz[name], gate[name], !reads[packageName(m)] || gateUsesAuthz
		}
		for _, at := range sortedKeys(wrong) {
			if _, also := other[at]; also || !both {
				problems = append(problems, errors.New(wrong[at]))
			}
		}
	}
	return errors.Join(problems...)
}

// wrongRefs type-checks the modules against a shape of the input. It returns what is wrong by file and by place; what else does not compile
// is not its business.
func wrongRefs(peoples map[string]module, input map[string]any) map[string]map[string]string {
	schemas := ast.NewSchemaSet()
	schemas.Put(ast.SchemaRootRef, input)
	c := newCompiler().WithSchemas(schemas).WithStageAfter("CheckTypes", ast.CompilerStageDefinition{
		Name: "Enough", MetricName: "enough", Stage: func(*ast.Compiler) *ast.Error { return &ast.Error{Message: "enough"} },
	})
	c.SetErrorLimit(0)
	parsed := make(map[string]*ast.Module, len(peoples))
	hint := ""
	for name, m := range peoples {
		ast.WalkWiths(m.parsed, func(w *ast.With) bool {
			if w.Target.String() == "input" {
				hint = " (another input that `with input as` gives is not known here: give it to a function, as an argument)"
			}
			return false
		})
		plain := *m.parsed
		plain.Annotations = nil // schemas that people name are not the host's
		parsed[name] = &plain
	}
	c.Compile(parsed)
	wrong := map[string]map[string]string{}
	for _, e := range c.Errors {
		text := wrongRef(e)
		if text == "" || e.Location == nil {
			continue
		}
		if wrong[e.Location.File] == nil {
			wrong[e.Location.File] = map[string]string{}
		}
		at := fmt.Sprintf("%08d %08d %s", e.Location.Row, e.Location.Col, e.Message)
		wrong[e.Location.File][at] = fmt.Sprintf("%s:%d: %s%s", e.Location.File, e.Location.Row, text, hint)
	}
	return wrong
}

// wrongRef tells what is wrong with a reference, "" for any other error.
func wrongRef(e *ast.Error) string {
	switch d := e.Details.(type) {
	case *ast.RefErrUnsupportedDetail:
		return fmt.Sprintf("%s has no members: %s is undefined, and the rule would never hold", d.Ref[:d.Pos+1], d.Ref)
	case *ast.RefErrInvalidDetail:
		name, ok := d.Ref[d.Pos].Value.(ast.String)
		if !ok || len(d.OneOf) == 0 {
			return ""
		}
		var names []string
		for _, v := range d.OneOf {
			if s, ok := v.(ast.String); ok {
				names = append(names, string(s))
			}
		}
		slices.Sort(names)
		hint := "there are " + strings.Join(names, ", ")
		if near := nearest(string(name), names); near != "" {
			hint = fmt.Sprintf("did you mean %q? (%s)", near, hint)
		}
		return fmt.Sprintf("%s has no member %q, and the rule would never hold: %s", d.Ref[:d.Pos], string(name), hint)
	}
	return ""
}

// nearest is the name that differs in the fewest letters, "" if none is near.
func nearest(name string, names []string) string {
	best, far := "", len(name)/2+1
	for _, n := range names {
		if d := levenshtein.ComputeDistance(name, n); d < far {
			best, far = n, d
		}
	}
	return best
}
