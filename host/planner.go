package host

import (
	"encoding/json"

	"github.com/pawlhost/pawl/store"
)

// Planner proposes the next turn of a run. Implementations are pure: the same frame gives the same proposal, so that a
// proposal may be asked for again after a lost race. They are safe for concurrent use.
type Planner interface {
	// Check validates an agent's planner member when the agent is saved. Its error is an *Error whose pointer is
	// relative to that member.
	Check(config json.RawMessage) error
	// Next proposes what follows the frame. An error ends the run as failed with its text.
	Next(config json.RawMessage, f Frame) (Proposal, error)
}

// Frame is what a planner sees of its run.
type Frame struct {
	// Turn is the last turn begun, 0 before the first.
	Turn int
	// Cursor is what the last proposal left, nil before the first.
	Cursor json.RawMessage
	// Last are the outcomes of the last batch, in call order.
	Last []Outcome
}

// Outcome is how one call of the last batch ended.
type Outcome struct {
	Call   ProposedCall
	Result json.RawMessage // nil when Error is set
	Error  *store.Failure
	// Again is set when the tool stopped itself and a person approved: the observation invites the same call again
	// (raise and replay), which now carries the trusted flag.
	Again bool
}

// Proposal is a planner's move: exactly one of Calls, Done, Failure and Wait.
type Proposal struct {
	Calls []ProposedCall
	// Done ends the run with Output.
	Done   bool
	Output json.RawMessage
	// Failure ends the run as failed.
	Failure *store.Failure
	// Wait leaves the move to the client (external planner).
	Wait bool
	// Cursor is kept for the next proposal; at most 512 bytes.
	Cursor json.RawMessage
}

// direct plans a run of one call (POST /v1/tools/…/call): the call was proposed by the client, its outcome is the run's.
type direct struct{}

const plannerDirect = "direct"

func (direct) Check(json.RawMessage) error {
	return invalid("/kind", "the direct planner belongs to tool calls; choose script or external")
}

func (direct) Next(_ json.RawMessage, f Frame) (Proposal, error) {
	last := f.Last[0]
	switch {
	case last.Again:
		return Proposal{Calls: []ProposedCall{last.Call}}, nil
	case last.Error != nil:
		return Proposal{Failure: last.Error}, nil
	default:
		return Proposal{Done: true, Output: last.Result}, nil
	}
}
