# METADATA
# title: May this principal do this?
# description: |
#   data.pawl.authz.decision is asked by every route. An act is allowed when a rule here grants it and nothing refuses it;
#   an act that is not listed is refused. The people's data.pawl.rules.authz.deny only adds refusals.
#   The reasons are stable words: clients may branch on them.
package pawl.authz

default decision := {"allow": false, "reasons": ["policy_undefined"]}

decision := {"allow": false, "code": "policy_shape", "reasons": ["policy_shape"]} if {
	count(malformed) > 0
} else := {"allow": false, "reasons": sort(refusals)} if {
	count(refusals) > 0
} else := {"allow": true, "reasons": []} if {
	granted
}

# The acts, each with the reason that a refusal gives when no grant below holds.
missing_grant := {
	"run.create": "not_authenticated",
	"tool.call": "not_authenticated",
	"tool.list": "not_authenticated",
	"agent.list": "not_authenticated",
	"agent.read": "not_authenticated",
	"ws.connect": "not_authenticated",
	"run.list": "not_authenticated",
	"approval.list": "not_authenticated",
	"queue.read": "not_authenticated",
	"run.read": "not_own_run",
	"run.drive": "not_own_run",
	"run.cancel": "not_own_run",
	"approval.decide": "approver_required",
	"token.rotate": "not_own_run",
	"agent.save": "role_required",
	"agent.delete": "role_required",
	"audit.read": "role_required",
	"key.list": "role_required",
	"key.create": "role_required",
	"key.revoke": "role_required",
	"principal.list": "role_required",
	"principal.read": "role_required",
	"principal.save": "role_required",
	"principal.remove": "role_required",
	"policy.evaluate": "role_required",
	"policy.read": "role_required",
	"metrics.read": "role_required",
	"run.act_as": "act_as_required",
	"tenant.read": "not_authenticated",
	"tenant.change": "owner_required",
	"tenants.list": "operator_required",
	"tenants.create": "operator_required",
	"tenants.change": "operator_required",
}

default granted := false

granted if missing_grant[input.act] == "not_authenticated"

granted if {
	missing_grant[input.act] == "role_required"
	manager
}

granted if {
	input.act in {"run.read", "run.drive", "run.cancel", "token.rotate"}
	own_run
}

granted if {
	input.act in {"run.read", "run.drive", "run.cancel"}
	manager
}

granted if {
	input.act in {"approval.decide", "token.rotate"}
	decider
}

# A run for another user is made by a service whose principal says so, and by nobody else.
granted if {
	input.act == "run.act_as"
	input.principal.kind == "service"
	input.principal.act_as == true
}

granted if {
	missing_grant[input.act] == "owner_required"
	owner
}

granted if {
	missing_grant[input.act] == "operator_required"
	owner
	input.principal.operator == true
}

# The owner and the admins decide; a member answers only what a tool asked them and nobody else. A tool's question with
# another reason, and any stop of the gate, is not for the requester: the stop exists so that a second party looks.
decider if {
	person
	manager
}

decider if {
	person
	own_question
}

own_question if {
	input.resource.reason == "await_input"
	input.resource.origin == "tool"
	input.resource.subject == input.principal.id
}

# Unless the question says that one party is enough, two are needed.
second_party if not one_party

one_party if input.resource.second_party == false

manager if {
	some role in input.principal.roles
	role in {"owner", "admin"}
}

owner if "owner" in input.principal.roles

person if input.principal.kind == "user"

own_run if input.resource.created_by == input.principal.id

own_run if input.resource.subject == input.principal.id

# Refusals come before any grant. What is negated here is always a rule and never an expression on the input: `not f(input.x)`
# is undefined when there is no input.x, and then it would not refuse.
refusals contains "not_authenticated" if not authenticated

refusals contains "tenant_mismatch" if not same_tenant

refusals contains "unlisted_act" if not missing_grant[input.act]

refusals contains missing_grant[input.act] if not granted

refusals contains "service_never_decides" if {
	input.act == "approval.decide"
	not person
}

# Where a tenant wants two parties, nobody decides what they asked for themselves or what is done for them, not as the owner either.
# What a tool asks its own user is no stop of this kind.
refusals contains "second_party_required" if {
	input.act == "approval.decide"
	own_run
	second_party
	not own_question
}

# A key is a principal that can be used later: a service that makes keys could make a person's key and decide with it.
refusals contains "service_never_grants" if {
	input.act in {"key.create", "principal.save", "tenant.change", "tenants.create", "tenants.change"}
	not person
}

refusals contains "owner_grants_owner" if {
	input.act in {"key.create", "principal.save"}
	"owner" in input.resource.roles
	not owner
}

# Who has a name by token may be an owner: a record or a key of the name would narrow them, or be them.
refusals contains "owner_names_new" if {
	input.act in {"key.create", "principal.save"}
	input.resource.new_name == true
	not owner
}

# Nor is an owner locked out by anybody else.
refusals contains "owner_revokes_owner" if {
	input.act in {"key.revoke", "principal.remove"}
	"owner" in input.resource.roles
	not owner
}

refusals contains "unknown_role" if {
	input.act in {"key.create", "principal.save"}
	not known_roles
}

refusals contains "unknown_kind" if {
	input.act in {"key.create", "principal.save"}
	not known_kind
}

refusals contains opaque(refusal) if some refusal in data.pawl.rules.authz.deny

# See gate.rego.
opaque(value) := value

authenticated if {
	input.principal.kind in {"user", "service"}
	is_string(input.principal.id)
	input.principal.id != ""
}

same_tenant if {
	is_string(input.principal.tenant)
	input.principal.tenant != ""
	input.resource.tenant == input.principal.tenant
}

known_kind if input.resource.kind_of_key in {"user", "service"}

known_roles if {
	is_array(input.resource.roles)
	every role in input.resource.roles {
		role in {"owner", "admin", "member"}
	}
}

malformed contains "rules.authz.deny: an element must be a text that is not empty" if {
	some refusal in refusals
	not text(refusal)
}

text(refusal) if {
	is_string(refusal)
	refusal != ""
}
