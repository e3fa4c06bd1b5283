package pawl.gate_test

import data.pawl.gate

stop(id) := {
	"rule": id,
	"reason": "approval_required",
	"allowed_decisions": ["approve", "edit", "reject", "respond"],
	"title": concat(" ", ["title", id]),
	"message": "m",
	"ttl": "",
}

test_nothing_asks_allows if {
	gate.decision == {"effect": "allow", "rules": []} with input as {"interrupts": []}
}

test_no_interrupts_denies if {
	every doc in [{}, {"interrupts": null}, {"interrupts": "x"}, {"interrupts": {}}, {"interrupts": {"a": stop("a")}}, null, []] {
		d := gate.decision with input as doc
		d.effect == "deny"
		d.code == "policy_undefined"
	}
}

test_one_stop_pauses if {
	d := gate.decision with input as {"interrupts": [stop("a")]}
	d == {
		"effect": "pause",
		"reason": "approval_required",
		"allowed_decisions": ["approve", "edit", "reject", "respond"],
		"title": "title a",
		"message": "m",
		"ttl": "",
		"rules": ["a"],
	}
}

# The two ways to one pause, the short one and the combination, give the same.
test_one_stop_of_people_gives_the_same_as_one_of_the_agent if {
	short := gate.decision with input as {"interrupts": [stop("a")]}
	long := gate.decision with input as {"interrupts": []} with data.pawl.rules.pause as {object.remove(stop("a"), ["ttl"])}
	short == long
}

test_stops_combine if {
	d := gate.decision with input as {"interrupts": [
			object.union(stop("b"), {"ttl": "2h"}),
			object.union(stop("c"), {"ttl": "90m", "allowed_decisions": ["reject", "approve"]}),
		]}
		with data.pawl.rules.pause as {{"rule": "a", "allowed_decisions": {"approve", "edit"}, "title": "first"}}
	d == {
		"effect": "pause",
		"reason": "approval_required",
		"allowed_decisions": ["approve"],
		"title": "first",
		"message": "m",
		"ttl": "90m",
		"rules": ["a", "b", "c"],
	}
}

test_the_smallest_ttl_is_by_time_not_by_text if {
	d := gate.decision with input as {"interrupts": [object.union(stop("b"), {"ttl": "10m"}), object.union(stop("c"), {"ttl": "9m"}), stop("d")]}
	d.ttl == "9m"
}

test_a_conflict_of_constraints_is_not_hidden if {
	d := gate.decision with input as {"interrupts": [stop("a")]}
		with data.pawl.rules.pause as {{"rule": "z", "reason": "constraints_conflict"}}
	d.reason == "constraints_conflict"
	d.title == "title a"
}

# What people wrote about the call is shown, and not hidden by what an agent's interrupt_on says of every such call.
test_the_texts_of_people_come_first if {
	d := gate.decision with input as {"interrupts": [stop("a")]}
		with data.pawl.rules.pause as {
			{"rule": "y", "message": "twice today"},
			{"rule": "z", "reason": "constraints_conflict", "message": "above 1000", "title": "Too much"},
			{"rule": "x", "message": "twice today"},
		}
	d.title == "Too much"
	d.message == "above 1000\ntwice today"
}

test_no_common_decision_denies if {
	d := gate.decision with input as {"interrupts": [
		object.union(stop("a"), {"allowed_decisions": ["approve"]}),
		object.union(stop("b"), {"allowed_decisions": ["reject"]}),
	]}
	d == {"effect": "deny", "rules": ["a", "b"], "reasons": ["no_common_decision"]}
}

test_a_deny_beats_every_stop if {
	d := gate.decision with input as {"interrupts": [stop("a")]}
		with data.pawl.rules.pause as {{"rule": "b"}}
		with data.pawl.rules.deny as {"no", {"rule": "r", "message": "never"}}
	d == {"effect": "deny", "rules": ["r"], "reasons": ["never", "no"]}
}

test_a_deny_alone_denies if {
	d := gate.decision with input as {"interrupts": []} with data.pawl.rules.deny as {"no"}
	d == {"effect": "deny", "rules": [], "reasons": ["no"]}
}

test_a_single_stop_of_people_is_complete_and_sorted if {
	d := gate.decision with input as {"interrupts": []}
		with data.pawl.rules.pause as {{"rule": "a", "allowed_decisions": ["reject", "approve", "reject"], "ttl": "1h", "reason": "constraints_conflict"}}
	d == {
		"effect": "pause",
		"reason": "constraints_conflict",
		"allowed_decisions": ["approve", "reject"],
		"title": "",
		"message": "",
		"ttl": "1h",
		"rules": ["a"],
	}
}

wrong_pauses := [
	"stop", 1, null, true, false, [], ["a"], {}, {"title": "t"}, {"rule": ""}, {"rule": 1}, {"rule": null},
	{"rule": "interrupt_on/transfer"}, {"rule": "default/write_file"},
	{"rule": "a", "reason": "because"}, {"rule": "a", "reason": "await_input"}, {"rule": "a", "reason": null},
	{"rule": "a", "allowed_decisions": []}, {"rule": "a", "allowed_decisions": set()}, {"rule": "a", "allowed_decisions": "approve"},
	{"rule": "a", "allowed_decisions": ["approve", "maybe"]}, {"rule": "a", "allowed_decisions": {"maybe"}},
	{"rule": "a", "allowed_decisions": {"approve": "approve"}}, {"rule": "a", "allowed_decisions": [["approve"]]},
	{"rule": "a", "allowed_decisions": null},
	{"rule": "a", "ttl": ""}, {"rule": "a", "ttl": "soon"}, {"rule": "a", "ttl": "-1h"}, {"rule": "a", "ttl": "0s"}, {"rule": "a", "ttl": 60},
	{"rule": "a", "ttl": "1d"}, {"rule": "a", "ttl": null}, {"rule": "a", "title": 1}, {"rule": "a", "message": {}}, {"rule": "a", "typo": true},
	{"rule": "a", "allowed_decision": ["approve"]}, {"rule": "a", 1: 2},
]

test_a_wrong_pause_denies_with_policy_shape if {
	every wrong in wrong_pauses {
		d := gate.decision with input as {"interrupts": []} with data.pawl.rules.pause as {wrong}
		d.effect == "deny"
		d.code == "policy_shape"
		count(d.reasons) > 0
		also := gate.decision with input as {"interrupts": [stop("a")]} with data.pawl.rules.pause as {wrong, {"rule": "good"}}
		also.code == "policy_shape"
	}
}

wrong_refusals := [
	"", 1, null, true, false, [], ["a"], {}, {"message": "m"}, {"rule": "a"}, {"rule": "a", "message": ""}, {"rule": "", "message": "m"},
	{"rule": "a", "message": 1}, {"rule": "a", "message": "m", "more": 1},
]

test_a_wrong_refusal_denies_with_policy_shape if {
	every wrong in wrong_refusals {
		d := gate.decision with input as {"interrupts": []} with data.pawl.rules.deny as {wrong}
		d.effect == "deny"
		d.code == "policy_shape"
	}
}

test_good_durations if {
	every ttl in ["1h", "90m", "1h30m", "1.5h", "500ms", "1s"] {
		d := gate.decision with input as {"interrupts": []} with data.pawl.rules.pause as {{"rule": "a", "ttl": ttl}}
		d.effect == "pause"
		d.ttl == ttl
	}
}

test_stops_with_one_id_are_one_rule_with_the_decisions_of_both if {
	d := gate.decision with input as {"interrupts": []} with data.pawl.rules.pause as {
		{"rule": "a", "title": "x", "allowed_decisions": ["approve", "reject"]},
		{"rule": "a", "title": "y", "allowed_decisions": ["edit", "reject"]},
	}
	d.rules == ["a"]
	d.allowed_decisions == ["reject"]
}

preset_input(permissions, effects, interrupts) := {
	"agent": {"permissions": permissions},
	"call": {"tool": "t", "effects": effects},
	"interrupts": interrupts,
}

# With and without the word, in the short answers and in the combination.
test_auto_adds_nothing if {
	every interrupts in [[], [stop("a")], [stop("a"), stop("b")]] {
		plain := gate.decision with input as preset_input([], "write", interrupts)
		every doc in [
			preset_input(["auto"], "write", interrupts),
			preset_input(["auto", "auto"], "write", interrupts),
			{"interrupts": interrupts},
		] {
			d := gate.decision with input as doc
			d == plain
		}
	}
}

test_interactive_asks_for_what_nothing_asks_for if {
	every effects in ["read", "write", ""] {
		d := gate.decision with input as preset_input(["interactive"], effects, [])
		d == {
			"effect": "pause",
			"reason": "approval_required",
			"allowed_decisions": ["approve", "edit", "reject", "respond"],
			"title": "",
			"message": "This agent is interactive: every call waits for a decision.",
			"ttl": "",
			"rules": ["preset.interactive"],
		}
	}
}

# What another rule says of the call is worth more than that every call asks.
test_interactive_is_one_more_rule_and_hides_no_text if {
	d := gate.decision with input as preset_input(["interactive"], "write", [object.union(stop("z"), {"ttl": "1h", "allowed_decisions": ["approve", "reject"]})])
	d == {
		"effect": "pause",
		"reason": "approval_required",
		"allowed_decisions": ["approve", "reject"],
		"title": "title z",
		"message": "m",
		"ttl": "1h",
		"rules": ["preset.interactive", "z"],
	}
	conflict := gate.decision with input as preset_input(["interactive"], "read", [])
		with data.pawl.rules.pause as {{"rule": "z", "reason": "constraints_conflict"}}
	conflict.reason == "constraints_conflict"
	conflict.rules == ["preset.interactive", "z"]
}

test_a_deny_beats_interactive if {
	d := gate.decision with input as preset_input(["interactive"], "read", []) with data.pawl.rules.deny as {"no"}
	d == {"effect": "deny", "rules": [], "reasons": ["no"]}
}

test_locked_denies_all_that_does_not_declare_to_read if {
	every effects in ["write", "", "READ", "read ", null, 1, ["read"], {"read": true}] {
		every permissions in [["locked"], ["auto", "locked"], ["locked", "interactive"]] {
			d := gate.decision with input as preset_input(permissions, effects, [stop("a")])
			d.effect == "deny"
			d.rules == ["preset.locked"]
		}
	}
	undeclared := gate.decision with input as {"agent": {"permissions": ["locked"]}, "call": {"tool": "t"}, "interrupts": []}
	undeclared.effect == "deny"
}

test_locked_lets_reads_pass_and_keeps_every_stop if {
	free := gate.decision with input as preset_input(["locked"], "read", [])
	free == {"effect": "allow", "rules": []}
	stopped := gate.decision with input as preset_input(["locked"], "read", [stop("a")])
	stopped == gate.decision with input as preset_input([], "read", [stop("a")])
	asked := gate.decision with input as preset_input(["locked", "interactive"], "read", [])
	asked.rules == ["preset.interactive"]
}

test_an_unknown_preset_denies if {
	every permissions in [["unlocked"], ["interactive", ""], [null], [1], "locked", "auto", null, {"auto": "auto"}, {"auto"}, 0, false] {
		every effects in ["read", "write"] {
			d := gate.decision with input as preset_input(permissions, effects, [stop("a")])
			d.effect == "deny"
			d.code == "policy_input"
		}
	}
}

# Nor do people's rules pass for a preset.
test_the_ids_of_presets_are_the_hosts if {
	d := gate.decision with input as preset_input([], "read", []) with data.pawl.rules.pause as {{"rule": "preset.interactive"}}
	d.code == "policy_shape"
}
