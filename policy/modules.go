package policy

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

type module struct {
	text   []byte
	parsed *ast.Module
}

// basePrefix begins the names of our own modules. No path of an fs.FS begins with a slash, so that no file of people can
// stand in for one of ours.
const basePrefix = "/pawl/"

// baseModules are our own, parsed once: a compiler works on copies.
var baseModules = sync.OnceValues(func() (map[string]module, error) {
	modules := make(map[string]module)
	for _, name := range []string{"rego/gate.rego", "rego/authz.rego"} {
		text, err := base.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
		m, err := parse(basePrefix+path.Base(name), text)
		if err != nil {
			return nil, err
		}
		modules[basePrefix+path.Base(name)] = m
	}
	return modules, nil
})

// load parses the people's modules, and generated modules that collect from their packages, and adds the base.
func load(c contents) (map[string]module, error) {
	own, err := baseModules()
	if err != nil {
		return nil, err
	}
	modules := maps.Clone(own)
	problems := c.problems
	peoples := map[string]module{}
	for _, f := range c.files {
		m, err := parse(f.name, f.text)
		if err == nil {
			err = checkPeoples(m.parsed)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		modules[f.name], peoples[f.name] = m, m
	}
	if len(problems) == 0 {
		for _, check := range []func(map[string]module) error{checkUnused, checkInputs} {
			if err := check(peoples); err != nil {
				problems = append(problems, err)
			}
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("policy rules: %w", errors.Join(problems...))
	}
	return modules, collect(modules)
}

func parse(name string, text []byte) (module, error) {
	parsed, err := ast.ParseModuleWithOpts(name, string(text), ast.ParserOptions{
		RegoVersion: ast.RegoV1, Capabilities: capabilities(), ProcessAnnotation: true,
	})
	if err != nil {
		return module{}, moduleErrors(err)
	}
	if parsed == nil {
		return module{}, fmt.Errorf("%s:1: the file is empty: write a package, or remove it", name)
	}
	return module{text, parsed}, nil
}

// moduleErrors renders OPA's errors as file:line: text, each on a line, with a hint for those that need one.
func moduleErrors(err error) error {
	var list ast.Errors
	if one, ok := errors.AsType[*ast.Error](err); ok {
		list = ast.Errors{one}
	} else if !errors.As(err, &list) {
		return err
	}
	lines := make([]string, 0, len(list))
	for _, e := range list {
		line := e.Message
		if e.Location != nil {
			line = fmt.Sprintf("%s:%d: %s", e.Location.File, max(e.Location.Row, 1), e.Message)
		}
		if name, ok := strings.CutPrefix(e.Message, "undefined function "); ok {
			line += fmt.Sprintf(" (policies are pure: if %s is a builtin of OPA, it is switched off here; the time is input.time)", name)
		}
		lines = append(lines, line)
	}
	return errors.New(strings.Join(lines, "\n"))
}

// collected are the rules that the gate reads from people's packages; in pawl.rules.authz only deny has a meaning.
var collected = []string{"pause", "deny"}

var (
	rulesPackage = ast.MustParseRef("data.pawl.rules")
	authzPackage = ast.MustParseRef("data.pawl.rules.authz")
)

// checkPeoples refuses what could weaken the base or would be ignored silently: another package, and a `pause` or `deny` that
// is not a set, so that its value would never be looked at.
func checkPeoples(m *ast.Module) error {
	pkg := packageName(m)
	at := func(l *ast.Location, text string) error { return fmt.Errorf("%s:%d: %s", l.File, l.Row, text) }
	if !m.Package.Path.HasPrefix(rulesPackage) {
		return at(m.Package.Location, fmt.Sprintf("package %s: your rules live in package pawl.rules or below it (authorization: pawl.rules.authz); the rest is the host's", pkg))
	}
	for _, part := range m.Package.Path[3:] {
		if name, ok := part.Value.(ast.String); !ok || slices.Contains(collected, string(name)) {
			return at(m.Package.Location, fmt.Sprintf("package %s: %s is the name of a rule that the host reads; name the package otherwise", pkg, part))
		}
	}
	for _, r := range m.Rules {
		name := string(r.Head.Ref()[0].Value.(ast.Var))
		if hidden := hiddenName(m, r.Head.Ref()); hidden != "" {
			return at(r.Location, fmt.Sprintf("%s: what the host reads is called %s in a package of its own; write that package and not a path in a rule's name", r.Head.Ref(), hidden))
		}
		if !slices.Contains(collected, name) {
			continue
		}
		if isAuthz(m) && name == "pause" {
			return at(r.Location, "pause has no meaning in pawl.rules.authz: an act is allowed or refused; use deny, or move the rule to pawl.rules")
		}
		if r.Head.RuleKind() != ast.MultiValue || len(r.Head.Ref()) != 1 {
			return at(r.Location, fmt.Sprintf("%s must be a set: write `%s contains … if { … }`", name, name))
		}
	}
	return nil
}

// hiddenName returns the name that the host reads where a rule's dotted name leads to it: `team.deny` in pawl.rules would be another
// package's deny that nobody collects, and `authz.deny` one of pawl.rules.authz that nobody takes for such.
func hiddenName(m *ast.Module, head ast.Ref) string {
	if string(head[0].Value.(ast.Var)) == "authz" && m.Package.Path.Equal(rulesPackage) {
		return "authz"
	}
	for _, part := range head[1:] {
		if name, ok := part.Value.(ast.String); ok && (slices.Contains(collected, string(name)) || name == "authz") && !slices.Contains(collected, string(head[0].Value.(ast.Var))) {
			return string(name)
		}
	}
	return ""
}

// checkUnused refuses a set that nothing reads: beside `pause` and `deny`, the host reads none, and `pauses contains …` would stop
// nothing for ever.
func checkUnused(peoples map[string]module) error {
	reached, whole := map[string]bool{}, map[string]bool{} // paths on the way to what is read; paths that are read with all below them
	for _, m := range peoples {
		walkReads(m.parsed, func(path ast.Ref, local bool) {
			for n := range path {
				reached[path[:n+1].String()] = true
			}
			// A variable may have the name of a package below; only by its path is that read.
			if whole[path.String()] = whole[path.String()] || !local; local {
				whole[packageName(m.parsed)+" "+path.String()] = true
			}
		})
	}
	for _, name := range sortedKeys(peoples) {
		m := peoples[name].parsed
		for _, r := range m.Rules {
			if r.Head.RuleKind() != ast.MultiValue || slices.Contains(collected, string(r.Head.Ref()[0].Value.(ast.Var))) {
				continue
			}
			path := m.Package.Path.Extend(r.Head.Ref().GroundPrefix())
			used := reached[path.String()]
			for n := range path {
				part := path[:n+1].String()
				used = used || whole[part] || n >= len(m.Package.Path) && whole[packageName(m)+" "+part]
			}
			if !used {
				return fmt.Errorf("%s:%d: nothing reads the set %s; only pause and deny stop a call: is it misspelt?", r.Location.File, r.Location.Row, r.Head.Ref().GroundPrefix())
			}
		}
	}
	return nil
}

// walkReads visits what a module's rules read below data, as far as the path is constant: what follows a variable may be anything. local tells
// that it was read by a name of the module's own package, which may as well be a variable.
func walkReads(m *ast.Module, visit func(path ast.Ref, local bool)) {
	imported := map[ast.Var]ast.Ref{}
	for _, i := range m.Imports {
		if path, ok := i.Path.Value.(ast.Ref); ok {
			imported[i.Name()] = path
		}
	}
	read := func(r ast.Ref) {
		path, known := imported[r[0].Value.(ast.Var)]
		switch {
		case known:
			r = path.Concat(r[1:])
		case !r.HasPrefix(ast.DefaultRootRef):
			visit(m.Package.Path.Extend(r).GroundPrefix(), true)
			return
		}
		visit(r.GroundPrefix(), false)
	}
	var walk func(x any)
	walk = func(x any) {
		ast.WalkTerms(x, func(t *ast.Term) (stop bool) {
			switch v := t.Value.(type) {
			case ast.Var:
				read(ast.Ref{t})
			case ast.Ref:
				if _, ok := v[0].Value.(ast.Var); ok {
					read(v)
				} else {
					walk(v[0])
				}
				for _, part := range v[1:] {
					if _, plain := part.Value.(ast.Var); !plain { // another path, or a constant
						walk(part)
					}
				}
				return true
			}
			return false
		})
	}
	for _, r := range m.Rules {
		ast.WalkRules(r, func(r *ast.Rule) bool {
			walk(r.Body)
			for _, t := range append(slices.Clone(r.Head.Ref()[1:]), r.Head.Key, r.Head.Value) {
				if t != nil {
					walk(t)
				}
			}
			return false
		})
	}
}

func packageName(m *ast.Module) string { return strings.TrimPrefix(m.Package.Path.String(), "data.") }

func isAuthz(m *ast.Module) bool { return m.Package.Path.HasPrefix(authzPackage) }

// collect adds the rules by which the base reads `pause` and `deny` of packages below pawl.rules, so that a team's own
// package counts without a word in the root package.
func collect(modules map[string]module) error {
	gate, authz := map[string]bool{}, map[string]bool{}
	for name, m := range modules {
		if strings.HasPrefix(name, basePrefix) {
			continue
		}
		pkg := packageName(m.parsed)
		if pkg == "pawl.rules" || pkg == "pawl.rules.authz" {
			continue // the base reads these
		}
		for _, r := range m.parsed.Rules {
			source := r.Head.Name.String()
			line := fmt.Sprintf("some x in data.%s.%s\n", pkg, source)
			switch {
			case !slices.Contains(collected, source):
			case isAuthz(m.parsed):
				authz["refusals contains opaque(x) if "+line] = true
			case source == "pause":
				gate["asked contains opaque(x) if "+line] = true
			default:
				gate["refused contains opaque(x) if "+line] = true
			}
		}
	}
	for pkg, lines := range map[string]map[string]bool{"gate": gate, "authz": authz} {
		if len(lines) == 0 {
			continue
		}
		text := "package pawl." + pkg + "\n"
		for _, line := range sortedKeys(lines) {
			text += line
		}
		m, err := parse(basePrefix+"collected_"+pkg+".rego", []byte(text))
		if err != nil {
			return err
		}
		modules[basePrefix+"collected_"+pkg+".rego"] = m
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
