package policy

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/types"

	"github.com/pawlhost/pawl/sdk/abi/pathform"
)

// allowedBuiltins is the whole vocabulary of a policy. It is a list of what is allowed and not of what is forbidden:
// `with` once reached functions of a forbidding list (CVE-2022-36085), and a new OPA may bring new functions.
// What is missing on purpose: everything that leaves the process or reads it (http.send, net.*, opa.runtime), everything
// that makes a decision impossible to replay (time.now_ns, rand.intn, uuid.rfc4122; the time is input.time), keys and
// signatures (io.jwt.*, crypto.x509.*, providers.*), and parsers of other languages that no gate needs.
var allowedBuiltins = []string{
	"abs", "all", "and", "any", "array.concat", "array.flatten", "array.reverse", "array.slice", "assign",
	"base64.decode", "base64.encode", "base64.is_valid", "base64url.decode", "base64url.encode", "base64url.encode_no_pad",
	"bits.and", "bits.lsh", "bits.negate", "bits.or", "bits.rsh", "bits.xor", "ceil", "concat", "contains", "count",
	"crypto.hmac.equal", "crypto.sha256", "div", "endswith", "eq", "equal", "floor", "format_int", "glob.match",
	"glob.quote_meta", "graph.reachable", "graph.reachable_paths", "gt", "gte", "hex.decode", "hex.encode", "indexof",
	"indexof_n", "internal.member_2", "internal.member_3", "internal.print", "internal.template_string",
	"internal.test_case", "intersection", "is_array", "is_boolean", "is_null", "is_number", "is_object", "is_set",
	"is_string", "json.filter", "json.is_valid", "json.marshal", "json.patch", "json.remove", "json.unmarshal", "lower",
	"lt", "lte", "max", "min", "minus", "mul", "neq", "numbers.range", "numbers.range_step", "object.filter", "object.get",
	"object.keys", "object.remove", "object.subset", "object.union", "object.union_n", "or", "plus", "print", "product",
	"regex.find_all_string_submatch_n", "regex.find_n", "regex.is_valid", "regex.match", "regex.replace", "regex.split",
	"rego.metadata.chain", "rego.metadata.rule", "rem", "replace", "round", "semver.compare", "semver.is_valid", "sort",
	"split", "sprintf", "startswith", "strings.any_prefix_match", "strings.any_suffix_match", "strings.count",
	"strings.replace_n", "strings.reverse", "strings.split_n", "substring", "sum", "time.add_date", "time.clock",
	"time.date", "time.diff", "time.format", "time.parse_duration_ns", "time.parse_ns", "time.parse_rfc3339_ns",
	"time.weekday", "to_number", "trim", "trim_left", "trim_prefix", "trim_right", "trim_space", "trim_suffix",
	"type_name", "union", "units.parse", "units.parse_bytes", "upper", "uri.is_valid", "uri.parse", "urlquery.decode",
	"urlquery.decode_object", "walk",
}

// capabilities returns what a module may use, our own builtins included. The result is shared; nobody changes it.
var capabilities = sync.OnceValue(func() *ast.Capabilities {
	all := ast.CapabilitiesForThisVersion(ast.CapabilitiesRegoVersion(ast.RegoV1))
	all.Builtins = slices.DeleteFunc(all.Builtins, func(b *ast.Builtin) bool { return !slices.Contains(allowedBuiltins, b.Name) })
	for _, own := range ownBuiltins {
		all.Builtins = append(all.Builtins, &ast.Builtin{Name: own.decl.Name, Decl: own.decl.Decl})
	}
	slices.SortFunc(all.Builtins, func(a, b *ast.Builtin) int { return strings.Compare(a.Name, b.Name) })
	all.AllowNet = []string{} // nil would mean every host for a remote schema, empty means none
	return all
})

// ownBuiltin is a function that Rego cannot express exactly or cheaply. Each is pure.
type ownBuiltin struct {
	decl *rego.Function
	eval func(ctx rego.BuiltinContext, terms []*ast.Term) (*ast.Term, error)
}

var ownBuiltins = []ownBuiltin{
	// pawl.path.canonical(p): p is the one canonical spelling of a path (pathform.Canonical).
	{
		&rego.Function{Name: "pawl.path.canonical", Decl: types.NewFunction(types.Args(types.S), types.B)},
		func(_ rego.BuiltinContext, terms []*ast.Term) (*ast.Term, error) {
			p, ok := terms[0].Value.(ast.String)
			if !ok {
				return nil, errNotText
			}
			_, ok = pathform.Canonical(string(p))
			return ast.InternedTerm(ok), nil
		},
	},
	// pawl.path.under(p, dirs): p is one of dirs or below one, or p is not canonical: then nobody can tell, and doubt stops.
	// dirs are canonical, with or without a slash at the end.
	{
		&rego.Function{Name: "pawl.path.under", Decl: types.NewFunction(types.Args(types.S, types.NewArray(nil, types.S)), types.B)},
		func(_ rego.BuiltinContext, terms []*ast.Term) (*ast.Term, error) {
			p, ok := terms[0].Value.(ast.String)
			dirs, ok2 := terms[1].Value.(*ast.Array)
			if !ok || !ok2 {
				return nil, errNotText
			}
			if _, ok := pathform.Canonical(string(p)); !ok {
				return ast.InternedTerm(true), nil
			}
			for i := range dirs.Len() {
				dir, ok := dirs.Elem(i).Value.(ast.String)
				if !ok {
					return nil, errNotText
				}
				if pathform.Under(string(p), string(dir)) {
					return ast.InternedTerm(true), nil
				}
			}
			return ast.InternedTerm(false), nil
		},
	},
	// pawl.byte_size(x): the bytes of a text in UTF-8; of any other value the bytes of its canonical JSON (RFC 8785).
	{
		&rego.Function{Name: "pawl.byte_size", Decl: types.NewFunction(types.Args(types.A), types.N)},
		func(_ rego.BuiltinContext, terms []*ast.Term) (*ast.Term, error) {
			if s, ok := terms[0].Value.(ast.String); ok {
				return ast.InternedTerm(len(s)), nil
			}
			n, err := canonicalSize(terms[0].Value)
			return ast.InternedTerm(n), err
		},
	},
	// pawl.lookup(doc, path): [v] for the value at path, [] when the last object or array on the way lacks the name or
	// index, undefined when a value on the way is neither, so that nobody can tell.
	{
		&rego.Function{Name: "pawl.lookup", Decl: types.NewFunction(types.Args(types.A, types.NewArray(nil, types.S)), types.NewArray(nil, types.A))},
		func(_ rego.BuiltinContext, terms []*ast.Term) (*ast.Term, error) {
			path, ok := terms[1].Value.(*ast.Array)
			if !ok {
				return nil, errNotText
			}
			return lookup(terms[0], path)
		},
	},
}

var errNotText = errors.New("the argument must be a text")

func lookup(doc *ast.Term, path *ast.Array) (*ast.Term, error) {
	for i := range path.Len() {
		name, ok := path.Elem(i).Value.(ast.String)
		if !ok {
			return nil, errNotText
		}
		var next *ast.Term
		switch v := doc.Value.(type) {
		case ast.Object:
			next = v.Get(path.Elem(i))
		case *ast.Array:
			n, isIndex := arrayIndex(string(name))
			if !isIndex {
				return nil, nil // RFC 6901: an error, not an absence
			}
			if n < v.Len() {
				next = v.Elem(n)
			}
		default:
			return nil, nil
		}
		if next == nil {
			return ast.ArrayTerm(), nil
		}
		doc = next
	}
	return ast.ArrayTerm(doc), nil
}

// arrayIndex reads an array index of a JSON pointer (RFC 6901 section 4: digits without a leading zero).
func arrayIndex(s string) (int, bool) {
	if s == "" || len(s) > 9 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// canonicalSize returns the length of v in canonical JSON. Numbers keep the text that they came with, which is canonical
// already; the order of names does not change a length.
func canonicalSize(v ast.Value) (int, error) {
	switch v := v.(type) {
	case ast.Null:
		return 4, nil
	case ast.Boolean:
		if v {
			return 4, nil
		}
		return 5, nil
	case ast.Number:
		return len(json.Number(v)), nil
	case ast.String:
		return stringSize(string(v)), nil
	case *ast.Array:
		n := 2 + max(0, v.Len()-1)
		for i := range v.Len() {
			m, err := canonicalSize(v.Elem(i).Value)
			if err != nil {
				return 0, err
			}
			n += m
		}
		return n, nil
	case ast.Object:
		n := 2 + max(0, v.Len()-1)
		err := v.Iter(func(k, x *ast.Term) error {
			a, err := canonicalSize(k.Value)
			if err != nil {
				return err
			}
			b, err := canonicalSize(x.Value)
			n += a + 1 + b
			return err
		})
		return n, err
	}
	return 0, errors.New("the argument must be a JSON value")
}

// stringSize is the length of s as a JSON string of RFC 8785 section 3.2.2.2.
func stringSize(s string) int {
	n := 2 + len(s)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"', c == '\\', c == '\b', c == '\t', c == '\n', c == '\f', c == '\r':
			n++
		case c < 0x20:
			n += len(`\u0000`) - 1
		case c >= utf8.RuneSelf: // written as it is
		}
	}
	return n
}

// regoOptions gives a Rego object our builtins.
func regoOptions() []func(*rego.Rego) {
	var options []func(*rego.Rego)
	for _, own := range ownBuiltins {
		options = append(options, rego.FunctionDyn(own.decl, own.eval))
	}
	return options
}

// builtinDecls is the same for a compiler.
func builtinDecls() map[string]*ast.Builtin {
	decls := make(map[string]*ast.Builtin, len(ownBuiltins))
	for _, own := range ownBuiltins {
		decls[own.decl.Name] = &ast.Builtin{Name: own.decl.Name, Decl: own.decl.Decl}
	}
	return decls
}
