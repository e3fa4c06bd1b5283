package planner

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/ijson"
)

// script plays the turns written in the agent. A call's error does not end the run: the next turn follows. After an approved
// pause the same call is proposed again. Its cursor is the index of the next turn.
type script struct{}

type scriptConfig struct {
	Kind  string       `json:"kind"`
	Turns []scriptTurn `json:"turns"`
}

type scriptTurn struct {
	Calls []host.ProposedCall `json:"calls"`
	Final json.RawMessage     `json:"final"`
}

func (script) Check(config json.RawMessage) error {
	var c scriptConfig
	if err := ijson.Decode(config, &c); err != nil {
		return err
	}
	bad := func(pointer, detail string) error {
		return &host.Error{Code: host.CodeInvalid, Pointer: pointer, Detail: detail}
	}
	if len(c.Turns) == 0 {
		return bad("/turns", "a script needs at least one turn")
	}
	for i, t := range c.Turns {
		at := fmt.Sprintf("/turns/%d", i)
		if (t.Calls != nil) == (t.Final != nil) || t.Calls != nil && len(t.Calls) == 0 {
			return bad(at, "a turn has either calls (at least one) or final")
		}
		if err := host.CheckBatch(t.Calls); err != nil {
			err.Pointer = at + err.Pointer
			return err
		}
	}
	return nil
}

func (script) Next(config json.RawMessage, f host.Frame) (host.Proposal, error) {
	var again []host.ProposedCall
	for _, o := range f.Last {
		if o.Again {
			again = append(again, o.Call)
		}
	}
	if len(again) > 0 {
		return host.Proposal{Calls: again, Cursor: f.Cursor}, nil
	}
	var c scriptConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return host.Proposal{}, fmt.Errorf("script: %w", err)
	}
	next := 0
	if f.Cursor != nil {
		n, err := strconv.Atoi(string(f.Cursor))
		if err != nil {
			return host.Proposal{}, fmt.Errorf("script cursor: %w", err)
		}
		next = n
	}
	if next >= len(c.Turns) {
		return host.Proposal{Failure: &host.Failure{Code: "script_exhausted", Message: "the script has no further turn and no final"}}, nil
	}
	turn := c.Turns[next]
	if turn.Final != nil {
		return host.Proposal{Done: true, Output: turn.Final}, nil
	}
	return host.Proposal{Calls: turn.Calls, Cursor: json.RawMessage(strconv.Itoa(next + 1))}, nil
}
