package pawl.rules.payments_test

import data.pawl.gate
import data.pawl.rules.payments

transfer(arguments) := {
	"call": {"tool": "transfer", "effects": "write", "arguments": arguments},
	"time": "2026-11-30T10:00:00.000Z",
	"interrupts": [],
}

test_below_the_limit_passes if {
	every amount in [0.01, 1000] {
		count(payments.pause) == 0 with input as transfer({"amount": amount, "currency": "EUR", "account": "a"})
	}
}

test_doubt_stops if {
	every arguments in [
		{"amount": 1000.01, "currency": "EUR"},
		{"amount": 0, "currency": "EUR"},
		{"amount": -5, "currency": "EUR"},
		{"amount": "5", "currency": "EUR"},
		{"amount": null, "currency": "EUR"},
		{"amount": 5, "currency": "XXX"},
		{"amount": 5, "currency": ["EUR"]},
		{"amount": 5},
		{"currency": "EUR"},
		{},
	] {
		count(payments.pause) == 1 with input as transfer(arguments)
	}
}

test_other_tools_are_not_concerned if {
	count(payments.pause | payments.deny) == 0 with input as {"call": {"tool": "search", "arguments": {}}}
}

test_the_gate_stops_with_the_conflict if {
	d := gate.decision with input as transfer({"amount": 5000, "currency": "EUR", "account": "a"})
	d.effect == "pause"
	d.reason == "constraints_conflict"
	d.rules == ["payments/limit"]
	d.allowed_decisions == ["approve", "edit", "reject"]
	contains(d.message, "1000 EUR")
}

test_an_account_that_is_no_text_is_refused if {
	every account in [7, null, ["a"]] {
		d := gate.decision with input as transfer({"amount": 5, "currency": "EUR", "account": account})
		d.effect == "deny"
		d.reasons == ["the account must be a text"]
	}
}
