package policy

import (
	"context"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// AuthzInput asks whether a principal may do an act on a resource. The acts are the keys of missing_grant in authz.rego.
type AuthzInput struct {
	Act       string    `json:"act"`
	Principal Principal `json:"principal"`
	Resource  Resource  `json:"resource"`
}

// Resource is what the act is on. Tenant is always needed: of something that does not exist yet, where it will be. The
// other members are needed as far as the act has them; an empty one never equals anybody.
type Resource struct {
	Kind      string   `json:"kind"`
	Tenant    string   `json:"tenant"`
	ID        string   `json:"id"`
	CreatedBy string   `json:"created_by"`
	Subject   string   `json:"subject"`
	Agent     string   `json:"agent"`
	Tool      string   `json:"tool"`
	Reason    string   `json:"reason"`      // of an approval
	Origin    string   `json:"origin"`      // of an approval: "gate" or "tool"
	Roles     []string `json:"roles"`       // of a key or a principal, those that it has and those that it is to have
	KindOfKey string   `json:"kind_of_key"` // of a key or a principal: "user" or "service"
	// NewName tells, of a key or a principal to be made, that nothing is known of the name and that somebody may have it by token.
	NewName bool `json:"new_name"`
	// SecondParty tells, of an approval, that its tenant forbids to decide one's own.
	SecondParty bool `json:"second_party"`
}

// Verdict is the answer. The zero value refuses.
type Verdict struct {
	Allow   bool
	Reasons []string // of a refusal: stable words, sorted
	Code    string   // "" for a verdict of the rules; else why there is none, with Allow false
	Detail  string   // of a failure: for the operator's log
}

// Authz answers one question. Like Gate it has no error and never fails open.
func (e *Engine) Authz(ctx context.Context, in *AuthzInput) Verdict {
	if in == nil {
		return Verdict{Code: CodeInput, Reasons: []string{CodeInput}}
	}
	if e.verdicts == nil {
		return e.ask(ctx, in)
	}
	q := in.question()
	verdict, ok := e.verdicts.get(q)
	if !ok {
		if verdict = e.ask(ctx, in); verdict.Code == "" {
			e.verdicts.put(q, verdict)
		}
	}
	verdict.Reasons = slices.Clone(verdict.Reasons)
	return verdict
}

func (e *Engine) ask(ctx context.Context, in *AuthzInput) Verdict {
	doc := in.document()
	v, fail := e.asking.run(func(cancel topdown.Cancel) (ast.Value, *failure) {
		return e.asking.evaluate(ctx, &e.authz, doc, cancel)
	})
	if fail != nil {
		return Verdict{Code: fail.code, Reasons: []string{fail.code}, Detail: fail.detail}
	}
	verdict, ok := readVerdict(v)
	if !ok {
		return Verdict{Code: CodeShape, Reasons: []string{CodeShape}, Detail: "the verdict is not {allow, reasons}"}
	}
	return verdict
}

func (in *AuthzInput) document() ast.Value {
	principal := members(6).
		text("tenant", in.Principal.Tenant).
		text("id", in.Principal.ID).
		text("kind", in.Principal.Kind).
		texts("roles", in.Principal.Roles).
		truth("act_as", in.Principal.ActAs).
		truth("operator", in.Principal.Operator)
	resource := members(13).
		text("kind", in.Resource.Kind).
		text("tenant", in.Resource.Tenant).
		text("id", in.Resource.ID).
		text("created_by", in.Resource.CreatedBy).
		text("subject", in.Resource.Subject).
		text("agent", in.Resource.Agent).
		text("tool", in.Resource.Tool).
		text("reason", in.Resource.Reason).
		text("origin", in.Resource.Origin).
		texts("roles", in.Resource.Roles).
		text("kind_of_key", in.Resource.KindOfKey).
		truth("new_name", in.Resource.NewName).
		truth("second_party", in.Resource.SecondParty)
	return members(3).text("act", in.Act).set("principal", principal.term()).set("resource", resource.term()).term().Value
}

func readVerdict(v ast.Value) (Verdict, bool) {
	obj, ok := v.(ast.Object)
	if !ok {
		return Verdict{}, false
	}
	r := reader{obj: obj}
	verdict := Verdict{Code: r.optional("code"), Reasons: r.texts("reasons")}
	allow := obj.Get(ast.InternedTerm("allow"))
	if r.bad != "" || allow == nil {
		return Verdict{}, false
	}
	b, ok := allow.Value.(ast.Boolean)
	verdict.Allow = bool(b) && verdict.Code == "" && len(verdict.Reasons) == 0
	return verdict, ok && bool(b) == verdict.Allow
}
