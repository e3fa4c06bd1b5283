# Who may decide, tightened: contractors see the queue and never decide, whatever their role.
package pawl.rules.authz

deny contains "contractors_never_decide" if {
	input.act == "approval.decide"
	startswith(input.principal.id, "ext-")
}

# Whoever made the run does not approve money, even as an admin.
deny contains "second_person_for_money" if {
	input.act == "approval.decide"
	input.resource.tool == "transfer"
	input.principal.id in {input.resource.created_by, input.resource.subject}
}
