# Money: above the limit of its currency a transfer stops, and the approver is told which limit it conflicts with.
package pawl.rules.payments

limits := {"EUR": 1000, "USD": 1100, "CHF": 950}

# Written as "stop unless it is plainly fine": `not fine` also holds when the amount is missing, is a text, or the currency has no
# limit. The other way round, `input.call.arguments.amount > limit`, would let such a call pass.
pause contains {
	"rule": "payments/limit",
	"reason": "constraints_conflict",
	"title": "A transfer above its limit",
	"message": sprintf("Limits without a second person: %s.", [limits_text]),
	"allowed_decisions": ["approve", "edit", "reject"],
	"ttl": "4h",
} if {
	input.call.tool == "transfer"
	not fine
}

fine if {
	amount := input.call.arguments.amount
	is_number(amount)
	amount > 0
	amount <= limits[input.call.arguments.currency]
}

# Nothing leaves to an account that is not a text: there is nobody to ask about it.
deny contains {"rule": "payments/account", "message": "the account must be a text"} if {
	input.call.tool == "transfer"
	not named_account
}

named_account if is_string(input.call.arguments.account)

limits_text := concat(", ", [sprintf("%d %s", [limit, currency]) | some currency, limit in limits])
