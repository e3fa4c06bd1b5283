package hosttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/pawlhost/pawl/plugins"
)

// builtins are the Go-function tools that every test host has.
func builtins() map[string]Func {
	return map[string]Func{
		"echo":        echo,
		"read_echo":   echo,
		"transfer":    echo,
		"write_file":  writeFile,
		"edit_file":   editFile,
		"read_file":   readFile,
		"fail":        func(context.Context, *plugins.Session) error { return errors.New("it does not work") },
		"ask":         ask,
		"gated_write": gatedWrite,
	}
}

func echo(ctx context.Context, s *plugins.Session) error {
	_, err := Op(ctx, s, "output", json.RawMessage(s.Arguments()))
	return err
}

// Op does one operation and returns what it was answered.
func Op(ctx context.Context, s *plugins.Session, op string, req any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // what is JSON already leaves as it came
	if err := enc.Encode(req); err != nil {
		return nil, err
	}
	var ans struct {
		OK    json.RawMessage
		Error *struct{ Code, Message string }
	}
	if err := json.Unmarshal(s.Dispatch(ctx, op, bytes.TrimSpace(b.Bytes())), &ans); err != nil {
		return nil, err
	}
	if ans.Error != nil {
		return nil, fmt.Errorf("%s: %s: %s", op, ans.Error.Code, ans.Error.Message)
	}
	return ans.OK, nil
}

type file struct{ Path, Content, Old, New string }

func args(s *plugins.Session) (f file, err error) {
	err = json.Unmarshal(s.Arguments(), &f)
	return f, err
}

func writeFile(ctx context.Context, s *plugins.Session) error {
	f, err := args(s)
	if err != nil {
		return err
	}
	out, err := Op(ctx, s, "kv.put", map[string]any{"key": f.Path, "value": f.Content})
	if err != nil {
		return err
	}
	_, err = Op(ctx, s, "output", out)
	return err
}

func get(ctx context.Context, s *plugins.Session, path string) (string, error) {
	out, err := Op(ctx, s, "kv.get", map[string]any{"key": path})
	if err != nil {
		return "", err
	}
	var v struct{ Value string }
	return v.Value, json.Unmarshal(out, &v)
}

func readFile(ctx context.Context, s *plugins.Session) error {
	f, err := args(s)
	if err != nil {
		return err
	}
	content, err := get(ctx, s, f.Path)
	if err != nil {
		return err
	}
	_, err = Op(ctx, s, "output", map[string]string{"content": content})
	return err
}

func editFile(ctx context.Context, s *plugins.Session) error {
	f, err := args(s)
	if err != nil {
		return err
	}
	content, err := get(ctx, s, f.Path)
	if err != nil {
		return err
	}
	if strings.Count(content, f.Old) != 1 {
		return fmt.Errorf("old occurs %d times", strings.Count(content, f.Old))
	}
	if _, err := Op(ctx, s, "kv.put", map[string]any{"key": f.Path, "value": strings.Replace(content, f.Old, f.New, 1)}); err != nil {
		return err
	}
	_, err = Op(ctx, s, "output", map[string]int{"replacements": 1})
	return err
}

func ask(ctx context.Context, s *plugins.Session) error {
	_, err := Op(ctx, s, "pause", json.RawMessage(s.Arguments()))
	return err
}

// gatedWrite is penguiflow's approval-gated tool: it pauses until the trusted flag is there.
func gatedWrite(ctx context.Context, s *plugins.Session) error {
	var req struct {
		Context struct {
			Approvals map[string]bool
		}
	}
	if err := json.Unmarshal(s.Request(), &req); err != nil {
		return err
	}
	if !req.Context.Approvals["gated_write"] {
		_, err := Op(ctx, s, "pause", map[string]any{
			"reason": "approval_required", "payload": map[string]any{"title": "Approve the write", "approval_key": "gated_write"},
		})
		return err
	}
	_, err := Op(ctx, s, "output", map[string]bool{"written": true})
	return err
}
