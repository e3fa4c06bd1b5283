package api

import (
	"reflect"
	"slices"
	"testing"

	"github.com/pawlhost/pawl/store"
)

// The wire's words for states are written out here, since a transport does not know the store; this holds them together.
func TestStatesAreTheStores(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		typ  reflect.Type
		want []string
	}{
		{reflect.TypeFor[store.RunState](), texts(store.RunQueued, store.RunRunning, store.RunAwaitingApproval, store.RunAwaitingInput, store.RunAwaitingEvent, store.RunAwaitingPlanner, store.RunSucceeded, store.RunFailed, store.RunCancelled)},
		{reflect.TypeFor[store.CallState](), texts(store.CallPlanned, store.CallAwaiting, store.CallStarted, store.CallFinished)},
		{reflect.TypeFor[store.ApprovalState](), texts(store.ApprovalPending, store.ApprovalDecided, store.ApprovalExpired, store.ApprovalCancelled, store.ApprovalSuperseded)},
	} {
		if !slices.Equal(enums[tt.typ], tt.want) {
			t.Errorf("%v: %v, want %v", tt.typ, enums[tt.typ], tt.want)
		}
	}
}

func texts[T ~string](vs ...T) (out []string) {
	for _, v := range vs {
		out = append(out, string(v))
	}
	return out
}
