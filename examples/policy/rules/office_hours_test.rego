package pawl.rules.hours_test

import data.pawl.rules.hours

at(time, effects) := {"time": time, "call": {"tool": "write_file", "effects": effects}}

test_open if {
	every time in ["2026-11-30T07:00:00.000Z", "2026-11-30T16:59:59.999Z", "2026-07-01T06:00:00.000Z"] {
		count(hours.pause) == 0 with input as at(time, "write")
	}
}

# Winter and summer time differ by an hour; Saturday is closed.
test_closed if {
	every time in ["2026-11-30T06:59:59.999Z", "2026-11-30T17:00:00.000Z", "2026-07-01T16:00:00.000Z", "2026-11-28T10:00:00.000Z"] {
		count(hours.pause) == 1 with input as at(time, "write")
	}
}

test_reading_is_always_open if {
	count(hours.pause) == 0 with input as at("2026-11-28T10:00:00.000Z", "read")
}
