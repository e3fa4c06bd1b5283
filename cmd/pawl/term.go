package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

// The manners of this terminal: answers go to stdout, complaints and logs to stderr; no colours, no cursor movement,
// nothing that a pipe would not carry as well. Whatever a model, a tool or a stranger wrote goes through visible; what people need
// in order to decide is never left out without a word (missing). With --json stdout carries one JSON document a line and nothing else.

// shownChars is how much of one value is shown before the rest is only counted.
const shownChars = 2000

// printJSON prints v as one line of JSON.
func (a *app) printJSON(v any) error {
	raw, err := marshal(v)
	if err != nil {
		return err
	}
	return a.printRaw(raw)
}

// printRaw prints JSON of the host as it came, on one line, with what a terminal would hide escaped.
func (a *app) printRaw(raw json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return fmt.Errorf("the host did not answer JSON: %w", err)
	}
	_, err := fmt.Fprintln(a.stdout, visibleJSON(b.String()))
	return err
}

// printRun prints an answer of the host that is a run or holds one, without the resume token: the output of a command ends up in logs.
func (a *app) printRun(raw json.RawMessage) error {
	type paused struct{ Pause *host.Pause }
	var v struct {
		paused
		Run paused
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	for _, p := range []*host.Pause{v.Pause, v.Run.Pause} {
		if p != nil && p.ResumeToken != "" {
			// The token itself is what is looked for: a member of this name in somebody's arguments stays.
			member := []byte(`"resume_token":"` + p.ResumeToken + `"`)
			raw = bytes.ReplaceAll(bytes.ReplaceAll(raw, append([]byte(","), member...), nil), append(member, ','), nil)
		}
	}
	return a.printRaw(raw)
}

// marshal is json.Marshal without the escaping for HTML, which would make paths and queries unreadable.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// table prints rows under a heading, in columns. A cell is text, or JSON as a json.RawMessage: each is made visible here in its own
// way, and shortened, since a table is for finding, not for deciding.
func (a *app) table(heading []string, rows [][]any) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(heading, "\t"))
	for _, row := range rows {
		for i, c := range row {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, cell(c))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func cell(v any) string {
	if raw, ok := v.(json.RawMessage); ok {
		return clip(visibleJSON(compact(raw)), 40)
	}
	return visible(clip(fmt.Sprint(v), 80))
}

// compact returns JSON on one line, as text.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// clip shortens s to max characters for a table.
func clip(s string, max int) string {
	if utf8.RuneCountInString(s) <= max {
		return s
	}
	return firstRunes(s, max-1) + "…"
}

// within says how far away a time is, in one unit.
func within(d time.Duration) string {
	switch {
	case d <= 0:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("in %ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("in %dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("in %dh", int(d.Hours()))
	}
	return fmt.Sprintf("in %dd", int(d.Hours()/24))
}

// visibleLines makes text visible that has lines on purpose: our own messages, which quote what is foreign in them.
func visibleLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = visibleJSON(l)
	}
	return strings.Join(lines, "\n")
}

// showApproval prints what an approver has to know. With full nothing is cut.
func showApproval(w io.Writer, p host.Approval, full bool) {
	line := func(name, value string) { fmt.Fprintf(w, "  %-10s %s\n", name, value) }
	fmt.Fprintf(w, "approval %s  %s\n", visible(p.ID), visible(string(p.State)))
	agent := visible(p.Agent)
	if p.Subagent != "" {
		agent += ", subagent " + visible(p.Subagent)
	}
	line("run", fmt.Sprintf("%s  (agent %s, call %s)", visible(p.RunID), agent, visible(p.ToolCallID)))
	who := visible(p.CreatedBy)
	if p.Subject != "" && p.Subject != p.CreatedBy {
		who += ", for " + visible(p.Subject)
	}
	line("asked by", who)
	line("tool", visible(p.Tool)+"  "+visible(p.ToolDigest))
	why := visible(p.Reason)
	if len(p.Rules) > 0 {
		why += ": " + visible(strings.Join(p.Rules, ", "))
	}
	line("why", why)
	if p.Title != "" {
		line("title", cut(p.Title, 200))
	}
	var asked struct{ Message, Question string } // a tool's own words are in its payload
	_ = json.Unmarshal(p.Payload, &asked)
	if p.Message != "" && p.Message != asked.Message && p.Message != asked.Question {
		line("message", cut(p.Message, limit(full)))
	}
	showArguments(w, "arguments", p.Arguments, full)
	line("digest", visible(p.ArgsDigest))
	if len(p.Payload) > 0 && !bytes.Equal(p.Payload, p.Arguments) { // ask_user shows its arguments
		showArguments(w, "payload", p.Payload, full)
	}
	if len(p.Schema) > 0 && compact(p.Schema) != "{}" { // which everything matches
		line("answer", "must match "+visibleJSON(string(p.Schema)))
	}
	if d := p.Decision; d != nil {
		text := decided(d)
		if d.Changed {
			text += ", with changed arguments"
		}
		if d.Message != "" {
			text += ": " + cut(d.Message, limit(full))
		}
		line("decided", text)
		if len(d.Arguments) > 0 { // those above are what was asked for; these are what runs
			showArguments(w, "changed to", d.Arguments, full)
		}
		return
	}
	if p.State == store.ApprovalPending {
		line("allowed", visible(strings.Join(p.Allowed, ", ")))
	}
	line("expires", p.ExpiresAt.String())
}

func decided(d *host.Decided) string {
	return visible(d.Kind) + " by " + visible(d.DecidedBy) + " at " + d.DecidedAt.String()
}

func limit(full bool) int {
	if full {
		return 1 << 30
	}
	return shownChars
}

// showArguments prints a JSON object member by member: names and plain values on one line, text of several lines as a block
// whose margin it cannot leave.
func showArguments(w io.Writer, title string, raw json.RawMessage, full bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil || len(members) == 0 {
		fmt.Fprintf(w, "  %-10s %s\n", title, showJSON(raw, limit(full)))
		return
	}
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintf(w, "  %s\n", title)
	for _, name := range names {
		value := members[name]
		note := ""
		if lookalikes(name) || lookalikes(string(value)) {
			note = "   (mixes letters of scripts that look alike)"
		}
		var text string
		if json.Unmarshal(value, &text) == nil && strings.Contains(text, "\n") {
			fmt.Fprintf(w, "    %s:%s\n", cut(name, 80), note)
			shown, rest := text, ""
			if n := utf8.RuneCountInString(text); n > limit(full) {
				shown, rest = firstRunes(text, limit(full)), missing(n-limit(full), text)
			}
			for l := range strings.SplitSeq(shown, "\n") {
				fmt.Fprintf(w, "      | %s\n", visible(l))
			}
			if rest != "" {
				fmt.Fprintf(w, "     %s\n", rest)
			}
			continue
		}
		fmt.Fprintf(w, "    %s: %s%s\n", cut(name, 80), showJSON(value, limit(full)), note)
	}
}

// showJSON returns JSON on one line, at most max characters of it.
func showJSON(raw json.RawMessage, max int) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return cut(string(raw), max)
	}
	s := b.String()
	n := utf8.RuneCountInString(s)
	if n <= max {
		return visibleJSON(s)
	}
	return visibleJSON(firstRunes(s, max)) + missing(n-max, s)
}

// showEvent prints one event on one line.
func showEvent(w io.Writer, e event) {
	text := ""
	switch e.Type {
	case "run.started", "run.resumed":
	case "run.created":
		text = fmt.Sprintf("agent %s, version %d, by %s", visible(e.Agent), e.AgentVersion, visible(e.CreatedBy))
	case "run.paused":
		text = "waits: " + visible(e.Reason)
	case "run.finished":
		text = visible(e.State) + ended(e.Output, e.Error)
	case "call.started":
		text = visible(e.ToolCallID) + " " + visible(e.Tool)
	case "call.finished":
		text = visible(e.ToolCallID) + " " + visible(e.Tool) + ended(e.Result, e.Error)
	case "call.log":
		text = visible(e.ToolCallID) + " " + visible(e.Level) + ": " + showJSON(e.Message, 300)
	case "call.progress":
		text = visible(e.ToolCallID) + " " + showJSON(e.Progress, 300)
	case "message":
		var m host.Message
		if json.Unmarshal(e.Message, &m) != nil {
			text = showJSON(e.Message, 300)
			break
		}
		text = message(m, 300)
	case "approval.requested":
		if e.Approval != nil {
			text = visible(e.Approval.ID) + " " + visible(e.Approval.Tool) + " " + showJSON(e.Approval.Arguments, 200)
		}
	case "approval.decided":
		text = visible(e.ApprovalID)
		if e.Decision != nil {
			text += " " + visible(e.Decision.Kind) + " by " + visible(e.Decision.DecidedBy)
		}
	case "approval.expiring":
		text = visible(e.ApprovalID) + " expires at " + e.ExpiresAt.String()
	case "approval.expired":
		text = visible(e.ApprovalID) + " expired before anybody decided"
	default: // of a newer host
		text = showJSON(e.raw, 300)
	}
	when := ""
	if t := time.Time(e.Time); !t.IsZero() {
		when = t.UTC().Format("15:04:05.000")
	}
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%5s  %s  %-18s %s", number(e.Seq), when, visible(e.Type), text), " "))
}

// number is a sequence number; what is not stored has none.
func number(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

// ended is how a run or a call ended, if it did, after the name of what ended.
func ended(result json.RawMessage, f *store.Failure) string {
	switch {
	case f != nil:
		return ": " + failure(f)
	case len(result) > 0:
		return ": " + showJSON(result, 200)
	}
	return ""
}

// message is a message of a run's trajectory on one line, at most max characters of each part.
func message(m host.Message, max int) string {
	text := visible(m.Role)
	if m.Frame > 0 {
		text = fmt.Sprintf("[%d] %s", m.Frame, text)
	}
	if m.ToolCallID != "" {
		text += " " + visible(m.ToolCallID)
	}
	if len(m.Content) > 0 {
		text += ": " + showJSON(m.Content, max)
	}
	for i, c := range m.ToolCalls {
		text += []string{": ", "; "}[min(i, 1)] + visible(c.ToolCallID) + " " + visible(c.Tool) + " " + showJSON(c.Arguments, max)
	}
	if m.Error != nil {
		text += ": " + failure(m.Error)
	} else if len(m.Result) > 0 {
		text += ": " + showJSON(m.Result, max)
	}
	if d := m.Decision; d != nil {
		text += "  (" + visible(d.Kind) + " by " + visible(d.DecidedBy)
		if len(d.Edited) > 0 {
			text += ", arguments " + showJSON(d.Edited, max)
		}
		text += ")"
	}
	return text
}

func failure(f *store.Failure) string { return visible(f.Code) + " (" + cut(f.Message, 300) + ")" }

// event is an event as this program reads it; raw is the whole of it.
type event struct {
	Seq          uint64          `json:"seq"`
	Type         string          `json:"type"`
	Time         host.Time       `json:"time"`
	RunID        string          `json:"run_id"`
	Agent        string          `json:"agent"`
	AgentVersion uint64          `json:"agent_version"`
	CreatedBy    string          `json:"created_by"`
	Reason       string          `json:"reason"`
	State        string          `json:"state"`
	Tool         string          `json:"tool"`
	CallID       string          `json:"call_id"`
	ToolCallID   string          `json:"tool_call_id"`
	Level        string          `json:"level"`
	Message      json.RawMessage `json:"message"` // of a log line a text, of a message the message
	Progress     json.RawMessage `json:"progress"`
	Output       json.RawMessage `json:"output"`
	Result       json.RawMessage `json:"result"`
	Error        *store.Failure  `json:"error"`
	PauseID      string          `json:"pause_id"`
	ApprovalID   string          `json:"approval_id"`
	Approval     *host.Approval  `json:"approval"`
	Decision     *host.Decided   `json:"decision"`
	ExpiresAt    host.Time       `json:"expires_at"`
	raw          json.RawMessage
}
