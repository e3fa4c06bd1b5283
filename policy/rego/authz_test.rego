package pawl.authz_test

import data.pawl.authz

principal(id, kind, roles) := {"tenant": "t", "id": id, "kind": kind, "roles": roles}

own := {"tenant": "t", "created_by": "me", "subject": "me"}

test_an_empty_question_is_refused if {
	every doc in [{}, null, {"act": "run.create"}, {"act": "run.create", "principal": {}, "resource": {}}] {
		d := authz.decision with input as doc
		d.allow == false
		count(d.reasons) > 0
	}
}

test_an_unlisted_act_is_refused_even_to_the_owner if {
	d := authz.decision with input as {"act": "host.stop", "principal": principal("me", "user", ["owner"]), "resource": own}
	d == {"allow": false, "reasons": ["unlisted_act"]}
}

test_people_only_add_refusals if {
	d := authz.decision with input as {"act": "run.create", "principal": principal("me", "user", ["owner"]), "resource": own}
		with data.pawl.rules.authz.deny as {"holiday"}
	d == {"allow": false, "reasons": ["holiday"]}
}

test_a_wrong_refusal_refuses_with_policy_shape if {
	every wrong in [1, "", null, true, {}, {"message": "x"}, []] {
		d := authz.decision with input as {"act": "run.create", "principal": principal("me", "user", ["owner"]), "resource": own}
			with data.pawl.rules.authz.deny as {wrong}
		d == {"allow": false, "code": "policy_shape", "reasons": ["policy_shape"]}
	}
}

test_a_member_answers_only_what_a_tool_asked_them if {
	question := {"tenant": "t", "created_by": "me", "subject": "me", "reason": "await_input", "origin": "tool"}
	me := principal("me", "user", ["member"])
	yes := authz.decision with input as {"act": "approval.decide", "principal": me, "resource": question}
	yes.allow
	every change in [{"reason": "approval_required"}, {"reason": "external_event"}, {"origin": "gate"}, {"subject": "you"}, {"subject": ""}, {"tenant": "u"}] {
		no := authz.decision with input as {"act": "approval.decide", "principal": me, "resource": object.union(question, change)}
		not no.allow
	}
}

test_empty_ids_are_nobody if {
	d := authz.decision with input as {"act": "run.read", "principal": principal("", "user", ["member"]), "resource": {"tenant": "t", "created_by": "", "subject": ""}}
	not d.allow
}

test_an_owners_key_is_revoked_by_an_owner_only if {
	key := {"tenant": "t", "roles": ["owner"], "kind_of_key": "user"}
	yes := authz.decision with input as {"act": "key.revoke", "principal": principal("o", "user", ["owner"]), "resource": key}
	yes.allow
	no := authz.decision with input as {"act": "key.revoke", "principal": principal("a", "user", ["admin"]), "resource": key}
	no == {"allow": false, "reasons": ["owner_revokes_owner"]}
	other := authz.decision with input as {"act": "key.revoke", "principal": principal("a", "user", ["admin"]), "resource": object.union(key, {"roles": ["admin"]})}
	other.allow
}
