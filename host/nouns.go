package host

import "github.com/pawlhost/pawl/store"

// The nouns of the leaves that the host's answers are made of, so that transports and planners need to know only the host.
type (
	// Failure is a coded error that a run or a call ended with.
	Failure = store.Failure
	// RunState is where a run stands.
	RunState = store.RunState
	// CallState is where a call stands.
	CallState = store.CallState
	// ApprovalState is where an approval stands.
	ApprovalState = store.ApprovalState
)

// The run states.
const (
	RunQueued           = store.RunQueued
	RunRunning          = store.RunRunning
	RunAwaitingApproval = store.RunAwaitingApproval
	RunAwaitingInput    = store.RunAwaitingInput
	RunAwaitingEvent    = store.RunAwaitingEvent
	RunAwaitingPlanner  = store.RunAwaitingPlanner
	RunSucceeded        = store.RunSucceeded
	RunFailed           = store.RunFailed
	RunCancelled        = store.RunCancelled
)
