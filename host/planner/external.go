package planner

import (
	"encoding/json"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/ijson"
)

// external leaves every move to the client, which keeps its own model loop.
type external struct{}

func (external) Check(config json.RawMessage) error {
	var c struct {
		Kind string `json:"kind"`
	}
	return ijson.Decode(config, &c)
}

func (external) Next(json.RawMessage, host.Frame) (host.Proposal, error) {
	return host.Proposal{Wait: true}, nil
}
