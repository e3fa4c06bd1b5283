# Outside office hours every tool that changes something waits for a person. The time is part of the input, so that a decision can
# be replayed; a rule has no other clock.
package pawl.rules.hours

pause contains {
	"rule": "hours/closed",
	"title": "Outside office hours",
	"message": "Monday to Friday, 8 to 18 in Berlin, this tool runs without a question.",
	"ttl": "72h",
} if {
	input.call.effects == "write"
	not open
}

open if {
	now := time.parse_rfc3339_ns(input.time)
	time.weekday([now, "Europe/Berlin"]) in {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday"}
	[hour, _, _] := time.clock([now, "Europe/Berlin"])
	hour >= 8
	hour < 18
}
