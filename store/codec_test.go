package store

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the missing fixtures of this encoding")

var moment = time.Date(2026, 11, 29, 12, 34, 56, 789_000_000, time.UTC)

// records has one full value of every stored record.
func records() map[string]any {
	digest := DigestOf([]byte("x"))
	decision := &Decision{
		Kind: "edit", DecidedBy: "admin", DecidedAt: moment, Message: "less", Changed: true, Value: &Body{Inline: json.RawMessage(`{"a":"<&>"}`)}, Digest: "sha256:1",
	}
	return map[string]any{
		"run": &Run{
			Agent: "ops", AgentVersion: 3, Planner: "script", State: RunAwaitingApproval, CreatedBy: "member", Subject: "customer", SessionID: "s",
			Turn: 2, Batch: 1, CreatedAt: moment, UpdatedAt: moment.Add(time.Second), AwaitingSince: moment, PauseID: "pause_1", Boot: "boot_1", Begun: true, Resume: true,
			ActiveMS: 12, Messages: 4, Cursor: json.RawMessage("1"), FinalMessage: 5, Error: &Failure{Code: "limit", Message: "m"},
			History: History{Calls: 1, Approved: 2, Rejected: 3}, HasGrants: true,
			HasState: true, HasOutput: true, Unsettled: 1,
		},
		"grants": &Grants{List: []Grant{{Key: "k", Tool: "t", Digest: "d", ArgsDigest: "a"}}},
		"context": &RunContext{
			Input: Body{Inline: json.RawMessage(`"hi"`)}, ToolContext: Body{Blob: digest}, Tools: map[string]string{"write_file": "sha256:2"},
			Kind: "user", Roles: []string{"member"},
		},
		"call": &Call{
			ID: "call_1", ToolCallID: "c1", Frame: 0, Turn: 2, Index: 1, ParentCallID: "call_0", Tool: "write_file", Digest: "sha256:2", Effects: "write",
			State: CallFinished, Arguments: Body{Inline: json.RawMessage(`{"path":"/memories/a"}`)}, ArgsDigest: "sha256:3", Edited: Body{Blob: digest},
			EditedDigest: "sha256:4", Result: &Body{Inline: json.RawMessage("null")}, Approvals: []string{"apr_1"}, Passed: []string{"r"},
			Grants: []string{"write_line"}, StartedAt: moment, Observed: true, Decision: decision, AskMessage: 2, ResultMessage: 3,
		},
		"call_stopped": &Call{ID: "call_2", State: CallAwaiting, Error: &Failure{Code: "denied", Message: "no"}, Stop: &Stop{Reason: "await_input", Payload: json.RawMessage(`{"q":1}`)}},
		"call_asking": &Call{ID: "call_3", State: CallAwaiting, Stop: &Stop{
			Reason: "await_input", Payload: json.RawMessage(`{"question":"?"}`), Schema: json.RawMessage(`{"type":"boolean"}`),
		}},
		"approval_asking": &Approval{
			ID: "apr_2", PauseID: "pause_1", CallID: "call_3", Tool: "ask_user", Turn: 1, ArgsDigest: "sha256:3", Origin: "tool", Reason: "await_input",
			Payload: json.RawMessage(`{"question":"?"}`), Schema: json.RawMessage(`{"type":"boolean"}`), Allowed: []string{"reject", "respond"},
			State: ApprovalPending, CreatedAt: moment, ExpiresAt: moment.Add(time.Hour),
		},
		"pause": &Pause{ID: "pause_1", Generation: 2, State: PauseExpired, CreatedAt: moment, ExpiresAt: moment.Add(time.Hour), ClosedAt: moment, Approvals: []string{"apr_1"}},
		"approval": &Approval{
			ID: "apr_1", PauseID: "pause_1", CallID: "call_1", Tool: "write_file", Turn: 2, Index: 1, ArgsDigest: "sha256:3", Arguments: &Body{Inline: json.RawMessage("{}")},
			Origin: "gate", Reason: "approval_required", Rules: []string{"default/write_file"}, Title: "t", Message: "m", Payload: json.RawMessage(`[]`),
			Allowed: []string{"approve"}, Revision: "sha256:5", State: ApprovalDecided, CreatedAt: moment, ExpiresAt: moment.Add(time.Hour), Decision: decision,
		},
		"frame": &Frame{
			ID: 2, Parent: 1, Index: 3, Depth: 2, Subagent: "reviewer", Turn: 4, Batch: 5, Cursor: json.RawMessage(`7`), Before: History{Calls: 1},
		},
		"message":     &Message{Content: Body{Inline: json.RawMessage(`"hi"`)}},
		"run_frames":  &Run{Agent: "ops", AgentVersion: 1, Planner: "script", State: RunRunning, CreatedBy: "m", CreatedAt: moment, UpdatedAt: moment, Frames: 3, Live: []int{1, 3}},
		"run_rejects": &Run{Agent: "ops", AgentVersion: 1, Planner: "script", State: RunRunning, CreatedBy: "m", CreatedAt: moment, UpdatedAt: moment, Rejects: []Reject{{Call: "00ff", N: 2}}},
		"run_trace": &Run{
			Agent: "ops", AgentVersion: 1, Planner: "script", State: RunRunning, CreatedBy: "m", CreatedAt: moment, UpdatedAt: moment,
			Trace: &Trace{Span: []byte{1, 2}, Request: []byte{3}, Began: moment, From: []byte{4}, Pause: "pause_1", Waited: 5},
		},
		"call_gated": &Call{
			ID: "call_1", ToolCallID: "c1", Frame: 2, ParentCallID: "call_0", Tool: "task", State: CallAwaiting, Task: true, Opened: &Opened{Frame: 2, Subagent: "a/b", System: 3, Input: 4, Final: 5},
			Stop: &Stop{Origin: "gate", Reason: "approval_required", Rules: []string{"r"}, Title: "t", Message: "m", Allowed: []string{"approve"}, Revision: "v", TTL: time.Minute},
		},
		"approval_frame": &Approval{
			ID: "apr_1", PauseID: "pause_1", CallID: "call_1", Tool: "t", Frame: 2, Subagent: "a/b", Origin: "gate", Reason: "approval_required", Allowed: []string{"approve"},
			State: ApprovalPending, CreatedAt: moment, ExpiresAt: moment,
		},
		"agent": &Agent{Version: 3, Deleted: true, CreatedAt: moment, UpdatedAt: moment, UpdatedBy: "owner"},
		"key": &APIKey{
			ID: "k", Tenant: "demo", Principal: "admin", Kind: "user", Roles: []string{"admin"}, Hash: []byte{1, 2, 3}, CreatedAt: moment, CreatedBy: "owner",
			RevokedAt: moment, RevokedBy: "owner",
		},
		"principal": &Principal{
			Kind: "service", Roles: []string{"member"}, ActAs: true, Disabled: true, Removed: true, CreatedAt: moment, CreatedBy: "owner",
			UpdatedAt: moment.Add(time.Second), UpdatedBy: "admin",
		},
		"tenant":      &Tenant{SecondParty: true, Disabled: true, CreatedAt: moment, UpdatedAt: moment.Add(time.Second), UpdatedBy: "owner"},
		"kv":          &KV{Value: []byte{0, 255, 'a'}, Version: 7},
		"kv_deleted":  &KV{Version: 8, Deleted: true},
		"idempotency": &Idempotency{Request: "sha256:6", Status: 201, RunID: "run_1", Target: "t", At: moment},
	}
}

// What earlier versions wrote is read for ever: the fixtures are never rewritten, only added to.
func TestOldEncodingsAreRead(t *testing.T) {
	t.Parallel()
	for name, want := range records() {
		path := filepath.Join("testdata", "v1", name+".hex")
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(hex.EncodeToString(Encode(want))+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v (a new record: run go test ./store -update once)", err)
		}
		stored, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := Decode(stored, got); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s reads as\n%+v\nwant\n%+v", name, got, want)
		}
	}
}

func TestDecodeRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	good := Encode(records()["run"])
	for name, b := range map[string][]byte{
		"nothing":       nil,
		"a later one":   append([]byte{encodingCBOR + 1}, good[1:]...),
		"a cut one":     good[:len(good)-1],
		"trailing data": append(append([]byte{}, good...), 0),
		"another type":  Encode("a text"),
	} {
		var r Run
		if err := Decode(b, &r); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

// The head of a run stays within its budget of 4 KiB, whatever a client sends.
func TestHeadStaysSmall(t *testing.T) {
	t.Parallel()
	r := *records()["run"].(*Run)
	r.SessionID = strings.Repeat("s", 256)
	r.Agent = strings.Repeat("a", 128)
	r.Error = &Failure{Code: "tool_error", Message: strings.Repeat("m", 1024)}
	r.Frames = 1000
	for i := range 64 {
		r.Live = append(r.Live, 900+i)
	}
	for range 16 {
		r.Rejects = append(r.Rejects, Reject{Call: strings.Repeat("f", 24), N: 100})
	}
	r.Trace = &Trace{Span: bytes.Repeat([]byte{1}, 32), From: bytes.Repeat([]byte{1}, 32), Request: bytes.Repeat([]byte{1}, 32), Pause: strings.Repeat("p", 42), Began: moment}
	r.Cursor = json.RawMessage(`"` + strings.Repeat("c", 510) + `"`)
	if n := len(Encode(&r)); n > 4<<10 {
		t.Errorf("a head of %d bytes", n)
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range records() {
		f.Add(Encode(r))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, r := range records() {
			v := reflect.New(reflect.TypeOf(r).Elem()).Interface()
			if Decode(b, v) == nil {
				again := reflect.New(reflect.TypeOf(r).Elem()).Interface()
				if err := Decode(Encode(v), again); err != nil {
					t.Errorf("%T does not survive: %v", v, err)
				}
			}
		}
	})
}
