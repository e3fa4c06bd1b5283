# METADATA
# title: Must this tool call stop?
# description: |
#   data.pawl.gate.decision combines what three sources ask for: the agent's interrupt_on (already evaluated, in
#   input.interrupts), and the people's rules in data.pawl.rules: `pause` and `deny`. All of them only add; the strictest
#   wins. Whatever cannot be read as a stop or a refusal refuses the call, so that a typing mistake never lets one through.
package pawl.gate

# Only reached when nothing below holds, which is a defect of this module; then nothing runs.
default decision := {"effect": "deny", "code": "policy_undefined", "rules": [], "reasons": ["policy_undefined"]}

decision := {"effect": "deny", "code": "policy_shape", "rules": [], "reasons": sort(malformed)} if {
	count(malformed) > 0
} else := {"effect": "deny", "rules": sort(refusing_rules), "reasons": sort(refusals)} if {
	count(refused) > 0
} else := {"effect": "allow", "rules": []} if {
	count(stops) == 0
} else := {"effect": "deny", "rules": stopping_rules, "reasons": ["no_common_decision"]} if {
	count(common_decisions) == 0
} else := {
	"effect": "pause",
	"reason": reason,
	"allowed_decisions": sort(common_decisions),
	"title": object.get(first_stop, "title", ""),
	"message": object.get(first_stop, "message", ""),
	"ttl": shortest_ttl,
	"rules": stopping_rules,
}

# What asks for a stop. The engine adds one such rule for each further package of the people's modules that has one.
stops contains stop if some stop in input.interrupts

stops contains stop if some stop in data.pawl.rules.pause

# What refuses. The same holds.
refused contains refusal if some refusal in data.pawl.rules.deny

all_decisions := {"approve", "edit", "reject", "respond"}

stopping_rules := sort({stop.rule | some stop in stops})

# Two rules may share an id; then the smaller object in Rego's order of values speaks, so that the text is stable.
first_stop := stops_in_order[0]

stops_in_order := [stop |
	some id in stopping_rules
	some stop in sort(stops)
	stop.rule == id
]

# A conflict of constraints is news to the approver and not hidden by another rule that only asks.
default reason := "approval_required"

reason := "constraints_conflict" if {
	some stop in stops
	stop.reason == "constraints_conflict"
}

common_decisions := intersection({allowed_decisions(stop) | some stop in stops})

allowed_decisions(stop) := {kind | some kind in stop.allowed_decisions} if stop.allowed_decisions

allowed_decisions(stop) := all_decisions if not stop.allowed_decisions

default shortest_ttl := ""

shortest_ttl := [stop.ttl |
	some stop in sort(stops)
	time.parse_duration_ns(stop.ttl) == min(ttls)
][0]

ttls contains time.parse_duration_ns(stop.ttl) if some stop in stops

refusing_rules contains refusal.rule if some refusal in refused

refusals contains refusal if {
	some refusal in refused
	is_string(refusal)
}

refusals contains refusal.message if some refusal in refused

# Shapes. Each message says which document is wrong and never repeats a value of it, which may come from the arguments.
malformed contains "interrupts: the host must pass an array" if not is_array(input.interrupts)

malformed contains "rules.pause: must be a set (pause contains …)" if {
	asked := data.pawl.rules.pause
	not is_set(asked)
}

malformed contains "rules.deny: must be a set (deny contains …)" if {
	asked := data.pawl.rules.deny
	not is_set(asked)
}

malformed contains message if {
	some stop in stops
	some message in stop_problems(stop)
}

malformed contains message if {
	some refusal in refused
	some message in refusal_problems(refusal)
}

stop_problems(stop) := {"pause: an element must be an object"} if not is_object(stop)

stop_problems(stop) := {problem |
	some name, problem in stop_members
	not member_ok(name, stop)
} | {"pause: an element has an unknown member" |
	some name, _ in stop
	not stop_members[name]
} if {
	is_object(stop)
}

stop_members := {
	"rule": "pause: rule must be a text that is not empty",
	"reason": "pause: reason must be approval_required or constraints_conflict",
	"title": "pause: title must be a text",
	"message": "pause: message must be a text",
	"allowed_decisions": "pause: allowed_decisions must be an array of approve, edit, reject and respond that is not empty",
	"ttl": "pause: ttl must be a positive duration such as 1h or 90m",
}

member_ok("rule", stop) if {
	is_string(stop.rule)
	stop.rule != ""
}

member_ok(name, stop) if {
	name != "rule"
	not has(stop, name)
}

member_ok("reason", stop) if stop.reason in {"approval_required", "constraints_conflict"}

member_ok("title", stop) if is_string(stop.title)

member_ok("message", stop) if is_string(stop.message)

member_ok("allowed_decisions", stop) if {
	is_array(stop.allowed_decisions)
	kinds := {kind | some kind in stop.allowed_decisions}
	count(kinds) > 0
	count(kinds - all_decisions) == 0
}

member_ok("allowed_decisions", stop) if {
	is_set(stop.allowed_decisions)
	count(stop.allowed_decisions) > 0
	count(stop.allowed_decisions - all_decisions) == 0
}

member_ok("ttl", stop) if {
	is_string(stop.ttl)
	regex.match(`^([0-9]{1,6}(\.[0-9]{1,9})?(ns|us|µs|ms|s|m|h))+$`, stop.ttl)
	time.parse_duration_ns(stop.ttl) > 0
}

refusal_problems(refusal) := {"deny: an element must be a text or an object {rule, message}"} if {
	not is_object(refusal)
	not is_string(refusal)
}

refusal_problems(refusal) := {"deny: an element that is a text must not be empty"} if refusal == ""

refusal_problems(refusal) := {"deny: rule and message must be texts that are not empty, and there is nothing else"} if {
	is_object(refusal)
	not refusal_ok(refusal)
}

refusal_ok(refusal) if {
	object.keys(refusal) == {"rule", "message"}
	is_string(refusal.rule)
	is_string(refusal.message)
	refusal.rule != ""
	refusal.message != ""
}

has(object, name) if _ = object[name]
