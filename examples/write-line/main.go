// Command write-line is a host application's side of a tool that asks before it writes: it starts a run, shows what the tool
// wants, and resumes the run by its one-time token, until the run ends.
//
//	PAWL_URL=… PAWL_KEY=(who starts) PAWL_APPROVER_KEY=(who decides) write-line TEXT…
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/pawlhost/pawl/sdk/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	app := app{
		starter:  client.New(os.Getenv("PAWL_URL"), os.Getenv("PAWL_KEY")),
		approver: client.New(os.Getenv("PAWL_URL"), os.Getenv("PAWL_APPROVER_KEY")),
		in:       bufio.NewScanner(os.Stdin),
		out:      os.Stdout,
	}
	if err := app.write(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "write-line:", err)
		os.Exit(1)
	}
}

type app struct {
	starter, approver *client.Client
	in                *bufio.Scanner
	out               io.Writer
}

// agent needs no model: it proposes one write after the other, then reads what is there.
func agent(texts []string) any {
	turns := []any{}
	for _, text := range texts {
		turns = append(turns, map[string]any{"calls": []any{map[string]any{"tool": "write_line", "arguments": map[string]string{"text": text}}}})
	}
	turns = append(turns,
		map[string]any{"calls": []any{map[string]any{"tool": "read_lines", "arguments": struct{}{}}}},
		map[string]any{"final": "done"})
	return map[string]any{
		"planner": map[string]any{"kind": "script", "turns": turns},
		"tools":   []string{"write_line", "read_lines"},
	}
}

func (a app) write(ctx context.Context, texts []string) error {
	if _, err := a.approver.SaveAgent(ctx, "writer", agent(texts)); err != nil {
		return err
	}
	run, err := a.starter.CreateRun(ctx, client.NewRun{Agent: "writer", Wait: 30 * time.Second})
	if err != nil {
		return err
	}
	for {
		if run, err = a.settled(ctx, run); err != nil {
			return err
		}
		if run.Pause == nil {
			break
		}
		if err := a.answer(ctx, run.Pause); err != nil {
			return err
		}
	}
	last := run.Calls[len(run.Calls)-1]
	fmt.Fprintf(a.out, "%s: %s\n", run.State, last.Result)
	return nil
}

// settled waits until the run has stopped or ended. Nothing has to stay alive for that: any process can come back later.
func (a app) settled(ctx context.Context, run client.Run) (client.Run, error) {
	for _, err := range a.starter.Events(ctx, run.ID, 0) {
		if err != nil {
			return run, err
		}
		if run, err = a.starter.Run(ctx, run.ID); err != nil || run.Pause != nil || run.Ended() {
			return run, err
		}
	}
	return a.starter.Run(ctx, run.ID)
}

// answer shows what the tool said and resumes the run. The token alone would not do: whose key it is decides, too.
func (a app) answer(ctx context.Context, p *client.Pause) error {
	var payload struct{ Title, Preview string }
	if err := json.Unmarshal(p.Payload, &payload); err != nil {
		return err
	}
	// %q: a model wrote the preview, and it must not paint over the question.
	fmt.Fprintf(a.out, "%s: %s %q\napprove or reject? ", p.Reason, payload.Title, payload.Preview)
	if !a.in.Scan() {
		return fmt.Errorf("nobody answered; run %s waits until %s", p.RunID, p.ExpiresAt.Format(time.RFC3339))
	}
	decisions := client.Reject(p, "not this one")
	if a.in.Text() == "approve" {
		decisions = client.Approve(p)
	}
	_, err := a.approver.Resume(ctx, p.ResumeToken, decisions...)
	return err
}
