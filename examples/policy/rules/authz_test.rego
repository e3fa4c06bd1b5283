package pawl.rules.authz_test

import data.pawl.authz

decide(id, tool) := {
	"act": "approval.decide",
	"principal": {"tenant": "demo", "id": id, "kind": "user", "roles": ["admin"]},
	"resource": {"tenant": "demo", "created_by": "ann", "subject": "ann", "tool": tool, "reason": "approval_required", "origin": "gate", "second_party": false},
}

test_an_admin_decides if {
	authz.decision.allow with input as decide("bob", "transfer")
}

test_a_contractor_does_not if {
	d := authz.decision with input as decide("ext-carl", "write_file")
	d == {"allow": false, "reasons": ["contractors_never_decide"]}
}

test_the_requester_does_not_approve_own_money if {
	d := authz.decision with input as decide("ann", "transfer")
	d == {"allow": false, "reasons": ["second_person_for_money"]}
	authz.decision.allow with input as decide("ann", "write_file")
}
