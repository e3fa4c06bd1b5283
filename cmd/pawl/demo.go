package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/store"
)

// The demo tells the main job as a story, and checks every sentence of it: where the host does not behave as told, the
// demo fails. It is a client like any other; only its last look, at the version of the written file, opens the database of the
// host that has ended.

const demoPath = "/memories/AGENTS.md"

const demoAgent = `{
  "planner": {"kind": "script", "turns": [
    {"calls": [{"tool_call_id": "c1", "tool": "write_file",
                "arguments": {"path": "/memories/AGENTS.md", "content": "Ask before you deploy on a Friday."}}]},
    {"calls": [{"tool_call_id": "c2", "tool": "read_file", "arguments": {"path": "/memories/AGENTS.md"}}]},
    {"final": "done"}]},
  "tools": ["write_file", "read_file"]
}`

func (a *app) demoCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "See a tool call stop, survive a crash, be decided, and run exactly once",
		Long: `Starts a host in a temporary folder, lets an agent write to its own memory, shows how that call stops, kills the host the hard
way, starts it again, asks you to decide, and shows what happened. Everything is removed at the end.`,
		Example: "  pawl demo\n  pawl demo --yes      # without questions, for scripts",
		RunE: func(c *cobra.Command, _ []string) error {
			if a.json {
				return usagef("the demo is a story for people, there is no --json of it")
			}
			// A closed terminal, and a pipe that nobody reads any more, end it as an interrupt does: with everything removed.
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGHUP, syscall.SIGPIPE)
			defer stop()
			return a.demo(ctx, yes)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "approve without asking")
	return c
}

// story is the state of one telling.
type story struct {
	*app
	child *child
	yes   bool
	lines *bufio.Reader // what the person types

	member, admin *remote
	run           host.Run
	token         string // of the pause, once it was used
	kind          string // what was decided
	content       string // what the file must hold then; "" for no file
}

func (a *app) demo(ctx context.Context, yes bool) (err error) {
	dir, err := os.MkdirTemp("", "pawl-demo-")
	if err != nil {
		return err
	}
	s := &story{app: a, yes: yes, lines: bufio.NewReader(a.stdin), child: &child{data: filepath.Join(dir, "data"), listen: "127.0.0.1:0"}}
	defer func() {
		s.child.kill()
		err = errors.Join(err, os.RemoveAll(dir))
		if ctx.Err() != nil {
			err = errors.New("interrupted; everything is cleaned up")
		}
	}()
	for i, step := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"a host starts in a temporary folder", s.start},
		{"an agent wants to write to its own memory", s.ask},
		{"the host is killed: kill -9", s.crash},
		{"it starts again on the same folder, and the approval is still there", s.restart},
		{"an admin decides, over the wire", s.decide},
		{"the run goes on", s.result},
		{"what the record says", s.record},
		{"the same token again", s.again},
		{"the host stops (SIGTERM), and the database is looked into", s.once},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "\n%d. %s\n\n", i+1, step.title)
		if err := step.tell(ctx); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, step.title, err)
		}
	}
	fmt.Fprint(a.stdout, `
That is the main job: it stopped, survived, was decided by a person, and ran exactly once.

What to try next
  pawl serve --dev --data ./data               a host to play with; ./data/dev-keys.json has a key for each role
  PAWL_KEY=… pawl agents save ops agent.yaml   an agent of your own
  PAWL_KEY=… pawl run ops                      start it and watch
  PAWL_KEY=… pawl approvals list               what waits, on another terminal
In a checkout "go build ./cmd/pawl" makes ./pawl, and docs/tour.md has an agent to begin with.
`)
	return nil
}

// say prints a line of the story.
func (s *story) say(format string, args ...any) { fmt.Fprintf(s.stdout, "   "+format+"\n", args...) }

// must is an error when the host does not behave as the story tells.
func must(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("not as told: "+format, args...)
}

func (s *story) start(ctx context.Context) error {
	began := time.Now()
	if err := s.child.start(ctx); err != nil {
		return err
	}
	s.connect()
	s.say("$ pawl serve --dev --data %s", s.child.data)
	s.say("process %d listens on %s after %s; tenants, people and keys for trying are made", s.child.pid(), s.child.base, time.Since(began).Round(time.Millisecond))
	return nil
}

func (s *story) connect() {
	s.member = newRemote(s.child.base, s.child.keys["member"])
	s.admin = newRemote(s.child.base, s.child.keys["admin"])
}

func (s *story) ask(ctx context.Context) error {
	if err := s.admin.call(ctx, http.MethodPut, "/v1/agents/scribe", json.RawMessage(demoAgent), nil); err != nil {
		return err
	}
	s.say("The agent \"scribe\" may use write_file and read_file. No rule was written: writes below /memories/")
	s.say("stop by default, because what an agent remembers steers everything it does later.")
	if err := s.member.call(ctx, http.MethodPost, "/v1/runs", map[string]any{"agent": "scribe"}, &s.run); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := must(s.run.State == store.RunAwaitingApproval && s.run.Pause != nil && len(s.run.Pause.Approvals) == 1,
		"the run is %s", s.run.State); err != nil {
		return err
	}
	s.say("The member started run %s. It is now %s:\n", s.run.ID, s.run.State)
	s.show(s.run.Pause.Approvals[0])
	return nil
}

// settle reads the run as the admin sees it, until it waits or has ended.
func (s *story) settle(ctx context.Context) error {
	var err error
	ok := eventually(ctx, 10*time.Second, func() bool {
		var now host.Run
		if err = s.admin.call(ctx, http.MethodGet, runPath(s.run.ID), nil, &now); err != nil {
			return true
		}
		s.run = now
		return now.Pause != nil || now.State.Ended()
	})
	if err != nil {
		return err
	}
	return must(ok, "after 10 s the run is still %s", s.run.State)
}

func (s *story) show(p host.Approval) {
	var b strings.Builder
	showApproval(&b, p, false)
	for l := range strings.Lines(b.String()) {
		fmt.Fprint(s.stdout, "   "+l)
	}
}

func (s *story) crash(context.Context) error {
	pid := s.child.pid()
	s.child.kill()
	s.say("$ kill -9 %d", pid)
	s.say("No goodbye, no flush. What was announced was durable before it was announced.")
	return nil
}

func (s *story) restart(ctx context.Context) error {
	if err := s.child.start(ctx); err != nil {
		return err
	}
	before := *s.member
	s.connect()
	if err := must(before.Key == s.member.Key, "the keys did not survive"); err != nil {
		return err
	}
	s.say("process %d listens; the keys are the same. $ pawl approvals list", s.child.pid())
	var queue struct{ Approvals []host.Approval }
	if err := s.admin.call(ctx, http.MethodGet, "/v1/approvals?state=pending", nil, &queue); err != nil {
		return err
	}
	waiting := s.run.Pause.Approvals[0]
	if err := must(len(queue.Approvals) == 1 && queue.Approvals[0].ID == waiting.ID && queue.Approvals[0].ArgsDigest == waiting.ArgsDigest,
		"the queue holds %d approvals", len(queue.Approvals)); err != nil {
		return err
	}
	s.say("%s  %s  %s  asked by %s", waiting.ID, waiting.Tool, demoPath, waiting.CreatedBy)
	// The one who asked cannot let it through.
	err := s.member.call(ctx, http.MethodPost, runPath(s.run.ID)+"/approvals", map[string]any{
		"decisions": []any{map[string]any{"approval_id": waiting.ID, "kind": "approve"}}}, nil)
	p, refused := errors.AsType[*problem](err)
	if err := must(refused && p.Status == http.StatusForbidden, "the member's own approval got: %v", err); err != nil {
		return err
	}
	s.say("The member tries to approve the own call: 403 %s", p.Code)
	return s.settle(ctx) // a fresh look, with the token
}

func (s *story) decide(ctx context.Context) error {
	p := s.run.Pause.Approvals[0]
	d := map[string]any{"approval_id": p.ID, "kind": "approve", "args_digest": p.ArgsDigest}
	s.kind, s.content = "approve", "Ask before you deploy on a Friday."
	if s.yes {
		s.say("(--yes: approve)")
	} else if err := s.question(ctx, d); err != nil {
		return err
	}
	s.token = s.run.Pause.ResumeToken
	err := s.admin.call(ctx, http.MethodPost, "/v1/resume", map[string]any{"resume_token": s.token, "decisions": []any{d}}, nil)
	if err != nil {
		return err
	}
	s.say("POST /v1/resume with the pause's one-time token and {\"kind\": %q}: 200", s.kind)
	return nil
}

// question asks the person at the terminal and completes the decision.
func (s *story) question(ctx context.Context, d map[string]any) error {
	for {
		answer, err := s.read(ctx, "   Approve this write? [y]es, [n]o, [e]dit the text: ")
		if err != nil {
			return err
		}
		switch strings.ToLower(answer) {
		case "y", "yes":
			return nil
		case "n", "no":
			s.kind, s.content = "reject", ""
			d["kind"], d["message"] = "reject", "The person at the demo said no."
			return nil
		case "e", "edit":
			text, err := s.read(ctx, "   The new text: ")
			if err != nil {
				return err
			}
			s.kind, s.content = "edit", text
			d["kind"], d["arguments"] = "edit", map[string]any{"path": demoPath, "content": text}
			return nil
		}
	}
}

// read reads one line, or stops when the program is to end.
func (s *story) read(ctx context.Context, prompt string) (string, error) {
	fmt.Fprint(s.stdout, prompt)
	type line struct {
		text string
		err  error
	}
	got := make(chan line, 1)
	go func() {
		text, err := s.lines.ReadString('\n')
		got <- line{strings.TrimSpace(text), err}
	}()
	select {
	case l := <-got:
		if l.err != nil && l.text == "" {
			return "", fmt.Errorf("no answer (%w): use --yes where nobody can type", l.err)
		}
		return l.text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (s *story) result(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := must(s.run.State == store.RunSucceeded, "the run ended %s", s.run.State); err != nil {
		return err
	}
	for _, c := range s.run.Calls {
		text := showJSON(c.Result, 300)
		if c.Error != nil {
			text = failure(c.Error)
		}
		s.say("%s %-10s → %s", visible(c.ToolCallID), visible(c.Tool), text)
	}
	if err := must(len(s.run.Calls) == 2, "the run had %d calls", len(s.run.Calls)); err != nil {
		return err
	}
	write, read := s.run.Calls[0], s.run.Calls[1]
	var file struct{ Content string }
	_ = json.Unmarshal(read.Result, &file)
	if s.kind == "reject" {
		if err := must(write.Error != nil && write.Error.Code == "rejected" && read.Error != nil, "a rejected write left something"); err != nil {
			return err
		}
		s.say("The write never ran: there is nothing to read.")
	} else {
		if err := must(write.Error == nil && file.Content == s.content, "the file reads %q", file.Content); err != nil {
			return err
		}
		s.say("The agent reads back what was written.")
	}
	return nil
}

func (s *story) record(ctx context.Context) error {
	fmt.Fprintf(s.stdout, "   the events of the run, as GET /v1/runs/{run}/events streams them\n")
	finished, decided := 0, 0
	err := s.member.events(ctx, s.run.ID, func(e event) error {
		fmt.Fprint(s.stdout, "  ")
		showEvent(s.stdout, e)
		switch {
		case e.Type == "call.finished" && e.CallID == s.run.Calls[0].ID:
			finished++
		case e.Type == "approval.decided":
			decided++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := must(finished == 1 && decided == 1, "c1 finished %d times, decided %d times", finished, decided); err != nil {
		return err
	}
	var audit struct{ Rows []host.AuditRow }
	if err := s.admin.call(ctx, http.MethodGet, "/v1/audit?limit=200", nil, &audit); err != nil {
		return err
	}
	fmt.Fprintf(s.stdout, "\n   the audit log\n")
	ok, denied := 0, 0
	for _, row := range audit.Rows {
		cells := auditCells(row)
		s.say("%-24s %-8s %-22s %s", cell(cells[1]), cell(cells[2]), cell(cells[3]), cell(cells[5]))
		if row.Action == "approval.decide" {
			switch row.Outcome {
			case "ok":
				ok++
			case "denied":
				denied++
			}
		}
	}
	return must(ok == 1 && denied == 1, "the audit has %d decisions and %d refusals", ok, denied)
}

func (s *story) again(ctx context.Context) error {
	err := s.admin.call(ctx, http.MethodPost, "/v1/resume", map[string]any{"resume_token": s.token, "decisions": []any{}}, nil)
	p, conflict := errors.AsType[*problem](err)
	if err := must(conflict && p.Status == http.StatusConflict, "a used token got: %v", err); err != nil {
		return err
	}
	s.say("POST /v1/resume: %d %s. One decision, one result.", p.Status, p.Code)
	return nil
}

// once looks at the written record itself: its version counts every write there ever was.
func (s *story) once(ctx context.Context) error {
	if err := s.child.stop(ctx); err != nil {
		return err
	}
	db, err := openStore(s.child.data, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer db.Close()
	file, err := readKV(ctx, db, "demo", "files", "file"+demoPath)
	if s.kind == "reject" {
		s.say("There is no record of %s.", demoPath)
		return must(errors.Is(err, store.ErrNotFound), "there is a record: %v", err)
	}
	if err != nil {
		return err
	}
	s.say("%s is at version %d: written once.", demoPath, file.Version)
	return must(file.Version == 1, "the file was written %d times", file.Version)
}

// readKV reads a plugin's value from the store of a host that has stopped.
func readKV(ctx context.Context, db store.Store, tenant, plugin, key string) (kv store.KV, err error) {
	err = db.View(ctx, func(r store.Reader) error {
		item, err := r.Get(store.K("t", tenant, "kv", plugin, key))
		if err != nil {
			return err
		}
		return store.Decode(item.Value, &kv)
	})
	return kv, err
}
