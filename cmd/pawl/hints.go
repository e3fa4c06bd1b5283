package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

// A hint is a command that works as it stands, or once its '…' is filled in. A request decides all open approvals of a run or none,
// so what one may type depends on how many there are: an approval is named alone only where it is alone.

// pending returns those of a run's approvals that are open.
func pending(all []host.Approval) (open []host.Approval) {
	for _, p := range all {
		if p.State == store.ApprovalPending {
			open = append(open, p)
		}
	}
	return open
}

// howToSee tells how to see what was cut, because all of it is what is approved.
func howToSee(w io.Writer, p host.Approval, full bool) {
	if full {
		return
	}
	var short, long strings.Builder
	showApproval(&short, p, false)
	showApproval(&long, p, true)
	if short.String() != long.String() {
		fmt.Fprintf(w, "    pawl approvals show %s --full     (not all of it is shown here)\n", visible(p.ID))
	}
}

// howToDecide tells what to type next; open are the open approvals of one run.
func howToDecide(w io.Writer, open []host.Approval) {
	if len(open) == 0 {
		return
	}
	if len(open) == 1 {
		id := visible(open[0].ID)
		for _, kind := range open[0].Allowed {
			switch kind {
			case "approve":
				fmt.Fprintf(w, "    pawl approvals approve %s\n", id)
			case "edit":
				fmt.Fprintf(w, "    pawl approvals edit %s --arguments '{…}'\n", id)
			case "reject":
				fmt.Fprintf(w, "    pawl approvals reject %s --message 'why not'\n", id)
			case "respond":
				fmt.Fprintf(w, "    pawl approvals respond %s --value '…'\n", id)
			}
		}
		return
	}
	run := visible(open[0].RunID)
	fmt.Fprintf(w, "the %d are decided together:\n", len(open))
	if allAllow(open, "approve") {
		fmt.Fprintf(w, "    pawl approvals approve %s\n", run)
	}
	if allAllow(open, "reject") {
		fmt.Fprintf(w, "    pawl approvals reject %s --message 'why not'\n", run)
	}
	answers := make([]string, len(open))
	for i, p := range open {
		kinds := p.Allowed
		if i > 0 && slices.Contains(kinds, "reject") { // so that it can be seen that they may differ
			kinds = []string{"reject"}
		}
		answers[i] = answer(p.ID, kinds)
	}
	fmt.Fprintf(w, "    %s\n", decideCommand(run, answers))
	if slices.ContainsFunc(open, func(p host.Approval) bool {
		return slices.Contains(p.Allowed, "edit") || slices.Contains(p.Allowed, "respond")
	}) {
		fmt.Fprintln(w, "    (each also edit='{…}', reject:'why not', respond:'a text' or respond='…' where it is allowed)")
	}
}

func allAllow(open []host.Approval, kind string) bool {
	return !slices.ContainsFunc(open, func(p host.Approval) bool { return !slices.Contains(p.Allowed, kind) })
}

// answer is what decide takes for one approval, of the first kind that may be.
func answer(id string, kinds []string) string {
	kind := "reject"
	if len(kinds) > 0 {
		kind = kinds[0]
	}
	switch kind {
	case "edit", "respond":
		kind += "='…'"
	}
	return visible(id) + "=" + visible(kind)
}

func decideCommand(run string, answers []string) string {
	sep := " "
	if len(answers) > 2 {
		sep = " \\\n        "
	}
	return "pawl approvals decide " + run + sep + strings.Join(answers, sep)
}

// completed tells what to type in place of a request that left approvals out. The host has named them; what else is to be known of
// them is asked for, and if that fails there is still a command that shows them.
func (p *problem) completed(ctx context.Context, r *remote, run string, given []host.Decision) {
	if p.Code != string(host.CodeIncomplete) {
		return
	}
	p.try = "pawl approvals show " + visible(run)
	var all struct{ Approvals []host.Approval }
	if r.call(ctx, http.MethodGet, runPath(run)+"/approvals", nil, &all) != nil {
		return
	}
	var left []host.Approval
	for _, a := range pending(all.Approvals) {
		if slices.Contains(p.Outstanding, a.ID) {
			left = append(left, a)
		}
	}
	if len(left) == 0 {
		return
	}
	var answers []string
	same := given != nil && allAllow(left, given[0].Kind) && slices.Contains([]string{"approve", "reject"}, given[0].Kind)
	for _, d := range given {
		same = same && d.Kind == given[0].Kind && d.Message == given[0].Message
		answers = append(answers, visible(d.ApprovalID)+"="+asAnswer(d))
	}
	for _, a := range left {
		answers = append(answers, answer(a.ID, a.Allowed))
	}
	p.try = decideCommand(visible(run), answers)
	if same {
		command := "pawl approvals " + given[0].Kind + " " + visible(run)
		if given[0].Message != "" {
			command += " --message " + quoted(given[0].Message)
		}
		p.try = command + "\n    " + p.try
	}
}

// asAnswer writes a decision as decide takes it.
func asAnswer(d host.Decision) string {
	text := visible(d.Kind)
	switch {
	case len(d.Arguments) > 0 || len(d.Value) > 0:
		return text + "='…'"
	case d.Message != "":
		return text + ":" + quoted(d.Message)
	}
	return text
}

// quoted is a text as a shell takes it, or '…' where what is seen would not be what is typed.
func quoted(s string) string {
	if len(s) > 200 || visible(s) != s || strings.Contains(s, "'") {
		return "'…'"
	}
	return "'" + s + "'"
}

// parseAnswer reads APPROVAL=KIND, with :MESSAGE, or with =JSON for what an edit or a respond takes.
func (a *app) parseAnswer(arg string) (d host.Decision, err error) {
	id, text, ok := strings.Cut(arg, "=")
	kind, rest := text, ""
	if i := strings.IndexAny(text, ":="); i >= 0 {
		kind, rest = text[:i], text[i:]
	}
	if !ok || id == "" || !slices.Contains([]string{"approve", "edit", "reject", "respond"}, kind) {
		return d, usagef("%q is not APPROVAL=approve, =edit=JSON, =reject, =respond:TEXT or =respond=JSON; approve and reject take :MESSAGE, too", arg)
	}
	d = host.Decision{ApprovalID: id, Kind: kind}
	if message, ok := strings.CutPrefix(rest, ":"); ok {
		d.Message = message
	} else if value, ok := strings.CutPrefix(rest, "="); ok {
		var v json.RawMessage
		if v, err = a.jsonValue(value); err != nil {
			return d, usagef("%s=%s: %w", id, kind, err)
		}
		switch kind {
		case "edit":
			d.Arguments = v
		case "respond":
			d.Value = v
		default:
			return d, usagef("%q: %s takes a message, after a colon", arg, kind)
		}
	}
	switch {
	case kind == "edit" && d.Arguments == nil:
		return d, usagef("%q: edit needs the whole new arguments: %s=edit='{…}', or =edit=@FILE", arg, id)
	case kind == "respond" && d.Value == nil && d.Message == "":
		return d, usagef("%q: respond needs an answer: %s=respond:TEXT, or =respond=JSON", arg, id)
	}
	return d, nil
}
