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

test_nobody_decides_their_own_where_two_parties_are_wanted if {
	mine := {"tenant": "t", "created_by": "me", "subject": "you", "reason": "approval_required", "origin": "gate", "second_party": true}
	every who in ["me", "you"] {
		every role in ["owner", "admin"] {
			d := authz.decision with input as {"act": "approval.decide", "principal": principal(who, "user", [role]), "resource": mine}
			d == {"allow": false, "reasons": ["second_party_required"]}
		}
	}
	third := authz.decision with input as {"act": "approval.decide", "principal": principal("she", "user", ["admin"]), "resource": mine}
	third.allow
	off := authz.decision with input as {"act": "approval.decide", "principal": principal("me", "user", ["admin"]), "resource": object.union(mine, {"second_party": false})}
	off.allow
	every doubt in [null, 0, "false", []] {
		d := authz.decision with input as {"act": "approval.decide", "principal": principal("me", "user", ["admin"]), "resource": object.union(mine, {"second_party": doubt})}
		not d.allow
	}
	question := object.union(mine, {"subject": "me", "reason": "await_input", "origin": "tool"})
	every role in ["owner", "member"] {
		d := authz.decision with input as {"act": "approval.decide", "principal": principal("me", "user", [role]), "resource": question}
		d.allow
	}
	creator := authz.decision with input as {"act": "approval.decide", "principal": principal("me", "user", ["admin"]), "resource": object.union(question, {"subject": "you"})}
	creator == {"allow": false, "reasons": ["second_party_required"]}
}

test_only_a_service_that_may_acts_for_others if {
	ask := {"act": "run.act_as", "resource": {"tenant": "t", "created_by": "bot", "subject": "you"}}
	yes := authz.decision with input as object.union(ask, {"principal": object.union(principal("bot", "service", ["member"]), {"act_as": true})})
	yes.allow
	every no in [["user", true], ["service", false], ["service", "true"], ["service", 1]] {
		d := authz.decision with input as object.union(ask, {"principal": object.union(principal("bot", no[0], ["owner"]), {"act_as": no[1]})})
		d == {"allow": false, "reasons": ["act_as_required"]}
	}
}

test_principals_are_granted_as_keys_are if {
	owner := {"tenant": "t", "roles": ["owner"], "kind_of_key": "user"}
	every act in ["key.create", "principal.save"] {
		no := authz.decision with input as {"act": act, "principal": principal("a", "user", ["admin"]), "resource": owner}
		no == {"allow": false, "reasons": ["owner_grants_owner"]}
		bot := authz.decision with input as {"act": act, "principal": principal("b", "service", ["owner"]), "resource": owner}
		bot == {"allow": false, "reasons": ["service_never_grants"]}
		yes := authz.decision with input as {"act": act, "principal": principal("o", "user", ["owner"]), "resource": owner}
		yes.allow
	}
	no := authz.decision with input as {"act": "principal.remove", "principal": principal("a", "user", ["admin"]), "resource": owner}
	no == {"allow": false, "reasons": ["owner_revokes_owner"]}
}

test_a_new_name_that_a_token_may_have_is_the_owners if {
	new := {"tenant": "t", "roles": ["member"], "kind_of_key": "service", "new_name": true}
	every act in ["key.create", "principal.save"] {
		no := authz.decision with input as {"act": act, "principal": principal("a", "user", ["admin"]), "resource": new}
		no == {"allow": false, "reasons": ["owner_names_new"]}
		yes := authz.decision with input as {"act": act, "principal": principal("o", "user", ["owner"]), "resource": new}
		yes.allow
		known := authz.decision with input as {"act": act, "principal": principal("a", "user", ["admin"]), "resource": object.union(new, {"new_name": false})}
		known.allow
	}
}

test_tenants_are_the_operators if {
	host := {"tenant": "t", "kind": "host"}
	every act in ["tenants.list", "tenants.create", "tenants.change"] {
		yes := authz.decision with input as {"act": act, "principal": object.union(principal("o", "user", ["owner"]), {"operator": true}), "resource": host}
		yes.allow
		every who in [principal("o", "user", ["owner"]), object.union(principal("a", "user", ["admin"]), {"operator": true}), object.union(principal("o", "user", ["owner"]), {"operator": false})] {
			d := authz.decision with input as {"act": act, "principal": who, "resource": host}
			d == {"allow": false, "reasons": ["operator_required"]}
		}
	}
	own := authz.decision with input as {"act": "tenant.change", "principal": principal("o", "user", ["owner"]), "resource": host}
	own.allow
	every who in [principal("a", "user", ["admin"]), principal("m", "user", ["member"]), principal("b", "service", ["owner"])] {
		d := authz.decision with input as {"act": "tenant.change", "principal": who, "resource": host}
		not d.allow
	}
}
