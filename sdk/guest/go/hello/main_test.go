package main

import (
	"encoding/json"
	"testing"

	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/sdk/guest/go/tooltest"
)

func TestGreetSpeaksTheLanguageAskedFor(t *testing.T) {
	for _, tt := range []struct {
		in   greet
		want string
		code string
	}{
		{greet{Name: "Ada"}, "Hello, Ada!", ""},
		{greet{Name: "Ada", Lang: "pl"}, "Cześć, Ada!", ""},
		{greet{Name: "Ada", Lang: "xx"}, "", "unknown_language"},
	} {
		r := new(tooltest.Host).Call("greet", tt.in)
		if tt.code != "" {
			if r.Error == nil || r.Error.Code != tt.code {
				t.Errorf("%+v: error %v; want code %s", tt.in, r.Error, tt.code)
			}
			continue
		}
		var got greeting
		if err := r.Decode(&got); err != nil || got.Text != tt.want {
			t.Errorf("%+v: %q, %v; want %q", tt.in, got.Text, err, tt.want)
		}
	}
}

func TestResetAsksFirstAndCountsAgainFromOneOnceApproved(t *testing.T) {
	h := &tooltest.Host{KV: map[string][]byte{"visits": []byte("41")}}
	counted := func(want int) {
		t.Helper()
		var got total
		if err := h.Call("count", count{"visits"}).Decode(&got); err != nil || got.Total != want {
			t.Errorf("count: %d, %v; want %d", got.Total, err, want)
		}
	}
	counted(42)

	r := h.Call("reset", count{"visits"})
	if r.Paused == nil || r.Paused.Reason != abi.ReasonApprovalRequired {
		t.Fatalf("reset: %+v; want a pause", r)
	}
	var payload struct {
		ApprovalKey string `json:"approval_key"`
	}
	if err := json.Unmarshal(r.Paused.Payload, &payload); err != nil {
		t.Fatal(err)
	}
	counted(43) // nothing was reset while nobody has answered

	h.Approvals = map[string]bool{payload.ApprovalKey: true}
	if err := h.Call("reset", count{"visits"}).Decode(new(total)); err != nil {
		t.Fatal(err)
	}
	counted(1)
}
