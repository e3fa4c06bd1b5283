# METADATA
# title: Must this tool call stop?
# description: |
#   data.pawl.gate.decision combines what three sources ask for: the agent's interrupt_on (already evaluated, in
#   input.interrupts), its presets, and the people's `pause` and `deny` in data.pawl.rules and below. All of them only add; the
#   strictest wins. Whatever cannot be read as a stop or a refusal refuses the call, so that a typing mistake never lets one through.
#   The usual answers, nothing asks and one rule asks, without a preset, come first since they cost a third of the rest.
package pawl.gate

# Reached when the input is not the host's, or by a defect of this module; then nothing runs.
default decision := {"effect": "deny", "code": "policy_undefined", "rules": [], "reasons": ["policy_undefined"]}

decision := {"effect": "allow", "rules": []} if {
	input.agent.permissions == []
	count(refused) == 0
	count(asked) == 0
	input.interrupts == []
} else := {
	"effect": "pause",
	"reason": stop.reason,
	"allowed_decisions": stop.allowed_decisions,
	"title": stop.title,
	"message": stop.message,
	"ttl": stop.ttl,
	"rules": [stop.rule],
} if {
	input.agent.permissions == []
	count(refused) == 0
	count(asked) == 0
	[stop] = input.interrupts
} else := {
	"effect": "pause",
	"reason": object.get(stop, "reason", "approval_required"),
	"allowed_decisions": sort({kind | some kind in object.get(stop, "allowed_decisions", decisions)}),
	"title": object.get(stop, "title", ""),
	"message": object.get(stop, "message", ""),
	"ttl": object.get(stop, "ttl", ""),
	"rules": [stop.rule],
} if {
	input.interrupts == []
	input.agent.permissions == []
	count(refused) == 0
	count(asked) == 1
	some stop in asked
	stop_ok(stop)
} else := combined if {
	is_array(input.interrupts)
}

# What people's rules ask and refuse. The engine adds one such rule for each package below pawl.rules that has some; it has
# made sure at load that they are sets.
asked contains opaque(stop) if some stop in data.pawl.rules.pause

refused contains opaque(refusal) if some refusal in data.pawl.rules.deny

# Through a function the compiler knows no type. Otherwise a folder whose every refusal is, say, a number would be an error in
# this file, and not an answer that says which rule is wrong.
opaque(value) := value

# The agent's presets, and those of the agents above it in the run. A set of rules that is tried without a host may leave them out.
presets := object.get(input, ["agent", "permissions"], [])

interactive := {
	"rule": "preset.interactive",
	"message": "This agent is interactive: every call waits for a decision.",
}

locked := {
	"rule": "preset.locked",
	"message": "this agent is locked: it runs only tools that declare to read and nothing else",
}

denied := refused | {locked | "locked" in presets; not reads}

reads if input.call.effects == "read"

known_presets if {
	is_array(presets)
	every preset in presets {
		preset in {"auto", "interactive", "locked"}
	}
}

combined := {"effect": "deny", "code": "policy_input", "rules": [], "reasons": ["the agent has a preset that is not known here"]} if {
	not known_presets
} else := {"effect": "deny", "code": "policy_shape", "rules": [], "reasons": sort(malformed)} if {
	count(malformed) > 0
} else := {"effect": "deny", "rules": sort(refusing_rules), "reasons": sort(refusals)} if {
	count(denied) > 0
} else := {"effect": "allow", "rules": []} if {
	count(stops) == 0
} else := {"effect": "deny", "rules": rules, "reasons": ["no_common_decision"]} if {
	common_decisions == set()
} else := {
	"effect": "pause",
	"reason": reason,
	"allowed_decisions": sort(common_decisions),
	"title": first(titles),
	"message": message_shown,
	"ttl": shortest_ttl,
	"rules": rules,
}

# Every stop with all its members, by id.
stops := sort({[stop.rule, object.union(unsaid, stop)] |
	some stop in array.concat(array.concat(input.interrupts, [stop | some stop in asked]), [interactive | "interactive" in presets])
})

# What people wrote about this very call is shown before what an agent's interrupt_on says of every such call, and that before the
# preset, which says nothing about the call. A conflict comes first.
conflicts := [s | some s in stops; s[1].reason == "constraints_conflict"]

written := [s | some s in stops; s[1].reason != "constraints_conflict"; some stop in asked; stop.rule == s[0]]

ranked := array.concat(
	array.concat(conflicts, written),
	array.concat([s | some s in stops; s[0] != interactive.rule], stops),
)

# Every limit that is exceeded is told, not only one of them.
spoken := array.concat(
	sort({text | some s in conflicts; text := s[1].message; text != ""}),
	sort({text | some s in written; text := s[1].message; text != ""}),
)

message_shown := concat("\n", spoken) if {
	count(spoken) > 0
} else := first(messages)

titles := [title | some s in ranked; title := s[1].title; title != ""]

messages := [text | some s in ranked; text := s[1].message; text != ""]

first(texts) := array.concat(texts, [""])[0]

unsaid := {
	"reason": "approval_required",
	"title": "",
	"message": "",
	"allowed_decisions": decisions,
	"ttl": "",
}

decisions := ["approve", "edit", "reject", "respond"]

rules := sort({stop[0] | some stop in stops})

# A conflict of constraints is news to the approver and not hidden by another rule that only asks.
default reason := "approval_required"

reason := "constraints_conflict" if {
	some stop in stops
	stop[1].reason == "constraints_conflict"
}

common_decisions := {kind |
	some kind in decisions
	every stop in stops {
		kind in stop[1].allowed_decisions
	}
}

default shortest_ttl := ""

shortest_ttl := min({[time.parse_duration_ns(stop[1].ttl), stop[1].ttl] |
	some stop in stops
	stop[1].ttl != ""
})[1]

refusing_rules := {refusal.rule | some refusal in denied}

refusals := {text |
	some refusal in denied
	text := message(refusal)
}

message(refusal) := refusal if is_string(refusal)

message(refusal) := refusal.message if is_object(refusal)

# Shapes. A message says what is wrong and never repeats a value, which may come from the arguments.
malformed contains message if {
	some stop in asked
	not stop_ok(stop)
	some message in stop_problems(stop)
}

malformed contains "deny: an element must be a text that is not empty, or {rule, message} of such texts and nothing else" if {
	some refusal in refused
	not refusal_ok(refusal)
}

stop_ok(stop) if {
	has_rule(stop)
	every name, value in stop {
		member_ok(name, value)
	}
}

member_ok("rule", value) if {
	is_string(value)
	value != ""
	not startswith(value, "interrupt_on/")
	not startswith(value, "default/")
	not startswith(value, "preset.")
}

member_ok("reason", value) if value in {"approval_required", "constraints_conflict"}

member_ok("title", value) if is_string(value)

member_ok("message", value) if is_string(value)

member_ok("allowed_decisions", value) if {
	type_name(value) in {"array", "set"}
	count(value) > 0
	every kind in value {
		kind in decisions
	}
}

member_ok("ttl", value) if {
	is_string(value)
	regex.match(`^([0-9]{1,6}(\.[0-9]{1,9})?(ns|us|µs|ms|s|m|h))+$`, value)
	time.parse_duration_ns(value) > 0
}

# A rule of its own, since `not is_string(stop.rule)` is undefined, and not true, when there is no stop.rule.
has_rule(stop) if is_string(stop.rule)

stop_problems(stop) := {"pause: an element must be an object with a rule"} if {
	not has_rule(stop)
} else := {object.get(requirement, name, "pause: an element has an unknown member") |
	some name, value in stop
	not member_ok(name, value)
}

requirement := {
	"rule": "pause: rule must be a text that is not empty and begins with none of interrupt_on/, default/ and preset.",
	"reason": "pause: reason must be approval_required or constraints_conflict",
	"title": "pause: title must be a text",
	"message": "pause: message must be a text",
	"allowed_decisions": "pause: allowed_decisions must be approve, edit, reject or respond, at least one",
	"ttl": "pause: ttl must be a positive duration such as 1h or 90m",
}

refusal_ok(refusal) if {
	is_string(refusal)
	refusal != ""
}

refusal_ok(refusal) if {
	is_object(refusal)
	object.keys(refusal) == {"rule", "message"}
	every value in refusal {
		is_string(value)
		value != ""
	}
}
