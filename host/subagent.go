package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/store"
)

// The tool with which an agent gives work to one of its subagents. It is listed, gated and decided like any other; but instead of
// running a guest the host opens a frame, and what the subagent answers is the result.
const (
	hostPlugin = "pawl"
	taskTool   = "task"
)

var taskSchema = json.RawMessage(`{
  "type": "object",
  "properties": {
    "subagent": {"type": "string", "minLength": 1, "maxLength": 128, "description": "the name of one of the agent's subagents"},
    "input": {"type": "string", "description": "what the subagent is told"}
  },
  "required": ["subagent", "input"],
  "additionalProperties": false
}`)

// addTask lists the task tool among the plugins, once in a set. Its effects are "read": opening a frame changes nothing, and each call
// in it passes the gate by itself.
func addTask(set *plugins.Set) error {
	if slices.ContainsFunc(set.Tools(), isTask) {
		return nil
	}
	m := plugins.Manifest{ABI: abi.Version, Name: hostPlugin, Tools: []plugins.ToolSpec{{
		Name: taskTool, Description: "Give a task to a subagent and get its answer.", InputSchema: taskSchema, Effects: abi.EffectsRead,
	}}}
	return set.AddFunc(m, func(context.Context, *plugins.Session) error {
		return errors.New("a task is run by a host, as a frame of a run")
	})
}

func isTask(t *plugins.Tool) bool {
	return t.Plugin == hostPlugin && t.Bare == taskTool && t.Level == plugins.LevelFunc
}

// task reads the arguments of a task call that passed the schema. The error tells a planner, or the person who edits, which names
// there are.
func (f *frame) task(args json.RawMessage) (name string, err error) {
	var t struct{ Subagent string }
	if err := json.Unmarshal(args, &t); err != nil {
		return "", err
	}
	if f.agent.subagents[t.Subagent] == nil {
		names := slices.Sorted(maps.Keys(f.agent.subagents))
		if len(names) == 0 {
			return "", errors.New("the agent has no subagents")
		}
		return "", fmt.Errorf("the agent has no subagent %q; it has: %s", clip(t.Subagent, 128), strings.Join(names, ", "))
	}
	return t.Subagent, nil
}

// openFrame starts a task call: its subagent gets a frame, and the input as its first message.
func (h *Host) openFrame(ctx context.Context, s *step, c *store.Call) error {
	r := s.r
	s.start(c)
	if len(r.frames) >= maxLiveFrames || r.Frames >= maxFrames {
		s.fail(c, codeLimit, fmt.Sprintf("a run has at most %d subagents at work at the same time, and %d in all", maxLiveFrames-1, maxFrames))
		return nil
	}
	args, err := h.callArguments(ctx, r.Tenant, c)
	if err != nil {
		return err
	}
	parent := r.frame(c.Frame)
	name, err := parent.task(args)
	if err != nil {
		s.fail(c, codeInvalidArguments, err.Error())
		return nil
	}
	s.open(parent, c, name)
	return nil
}

// The parts of a task call that are messages of its frame.
const (
	partSystem = "system" // the subagent's system text
	partInput  = "input"  // the call's input
	partResult = "result" // the call's result
)

// part is the text of a message of a task call's frame.
func (h *Host) part(ctx context.Context, root *agentVersion, tenant string, c *store.Call, part string) (json.RawMessage, error) {
	switch part {
	case partSystem:
		agent := root
		for name := range strings.SplitSeq(c.Opened.Subagent, "/") {
			if agent = agent.subagents[name]; agent == nil {
				return nil, fmt.Errorf("%w: a frame of %s, which the agent has not", store.ErrCorrupt, c.Opened.Subagent)
			}
		}
		return mustJSON(agent.doc.System), nil
	case partInput:
		args, err := h.callArguments(ctx, tenant, c)
		if err != nil {
			return nil, err
		}
		var t struct{ Input json.RawMessage }
		return t.Input, json.Unmarshal(args, &t)
	default:
		return h.text(ctx, tenant, *c.Result)
	}
}
