// Package exercises_test plays the exercises as a reader does.
package exercises_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func play(t *testing.T, pawl string) (string, error) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("skipped: bash is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "play.sh", pawl)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it can end its host
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// What the play prints, in this order: the seed's exercises, and what each command must have answered.
var printed = []string{
	`owner\$ pawl agents save garden garden.yaml\n    agent garden saved as version 1`,
	`member\$ pawl run garden`, `run\.paused +waits: approval_required`,
	`pending\n.*\n.*\n +tool +write_file`, `path: "/memories/plan.md"`, `pending\n.*\n.*\n +tool +write_file`, `path: "/memories/tone.md"`, `\(exit code 6\)`,
	// A member sees the pending list, tries to approve the own run, and reads why not.
	`member\$ pawl approvals list`, `garden +member +write_file .*Plant beans`, `garden +member +write_file .*Shout`,
	`member\$ pawl approvals approve run_\S+\n    pawl: .*ask an owner or admin.* \[forbidden: approver_required\]\n    \(exit code 4\)`,
	`member2\$ pawl approvals list\n    no approvals`,
	`member2\$ pawl approvals approve run_\S+\n    pawl: no such run.* \[not_found\]\n    \(exit code 3\)`,
	// One approved, the other edited, in one request.
	`admin\$ pawl approvals approve apr_\S+\n    pawl: .*still missing: 1 \[incomplete\]\n      also decide apr_\S+\n    so that it covers all:\n        pawl approvals approve run_\S+\n        pawl approvals decide run_\S+ apr_\S+=approve apr_\S+=approve\n    \(exit code 5\)`,
	`decide run_\S+ @decisions.json\n    pawl: the edited call is outside what stopped it .* \[out_of_scope\]\n    \(exit code 2\)`,
	`decide run_\S+ @decisions.json\n    decided; run run_\S+ is `,
	`reject apr_\S+\n    pawl: nothing was changed:\n      apr_\S+ is already decided: edit by admin`,
	// The third waits, over the death of the host.
	`member\$ pawl run --attach`, `call\.finished +beans write_file: .*plan\.md`, `call\.finished +tone write_file: .*tone\.md`, `content: "Plant nothing."`,
	`admin\$ pawl approvals list`, `write_file .*Plant nothing`,
	// Rejected, and the run recovers.
	`reject run_\S+ --message 'beans were agreed'`, `decided; run`,
	`call\.finished +nothing write_file: rejected \(beans were agreed\)`, `call\.finished +draft write_file: .*drafts/plan\.md`,
	eitherRead, eitherRead, // they run at the same time
	`run\.paused +waits: await_input`, `answer +must match \{"maximum":12,"minimum":1,"type":"integer"\}`,
	// A question, answered in its shape.
	`approve run_\S+\n    pawl: approve is not among the allowed decisions.*\n    \(exit code 2\)`,
	`--value '"May"'\n    pawl: .*want integer \(at --value\) \[invalid\]`, `--value 13\n    pawl: .*maximum.* \[invalid\]`,
	`--value 5\n    respond apr_`, `"user_input":5`, `run\.finished +succeeded: "planted"`,
	// What the model was told, and who did what.
	`tool beans: .*\(approve by admin\)`, `tool tone: .*\(edit by admin, arguments \{"content":"Be kind\.","path":"/memories/tone\.md"\}\)`,
	`tool nothing: rejected \(beans were agreed\)  \(reject by admin\)`, `tool when: .*\(respond by member\)`,
	`member +approval\.decide +apr_\S+ +denied +forbidden`, `admin +approval\.decide +apr_\S+ +error +incomplete`,
	`admin +approval\.decide +apr_\S+ +ok +decision=approve`, `admin +approval\.decide +apr_\S+ +ok +decision=edit`,
	`admin +approval\.decide +apr_\S+ +ok +decision=reject`, `member +approval\.decide +apr_\S+ +ok +decision=respond`,
	`admin\$ pawl audit verify\n    rows 1 to \d+ of tenant demo are as they were written`,
}

const eitherRead = `call\.finished +(plan read_file: \{"content":"Plant beans\."\}|mood read_file: \{"content":"Be kind\."\})`

func TestTheExercisesGoAsTheyAreTold(t *testing.T) {
	t.Parallel()
	pawl := filepath.Join(t.TempDir(), "pawl")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", pawl, "github.com/pawlhost/pawl/cmd/pawl").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := play(t, pawl)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rest := out
	for _, want := range printed {
		at := regexp.MustCompile(want).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("no %q after\n%s", want, out[:len(out)-len(rest)])
		}
		rest = rest[at[1]:]
	}
	if audit := out[strings.LastIndex(out, "admin$ pawl audit"):]; strings.Contains(audit, "beans.") || strings.Contains(audit, "memories/plan") {
		t.Errorf("an audit row has arguments:\n%s", audit)
	}
}

// The play says so when something does not go as the page says.
func TestThePlayFailsWhereTheHostDoes(t *testing.T) {
	t.Parallel()
	none, err := exec.LookPath("false")
	if err != nil {
		t.Skip("skipped: there is no program called false")
	}
	if out, err := play(t, none); err == nil || !strings.Contains(out, "the host did not start") {
		t.Errorf("%v\n%s", err, out)
	}
}
