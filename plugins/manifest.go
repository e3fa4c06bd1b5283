package plugins

import (
	"encoding/json"
	"errors"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Manifest is what a plugin declares about itself: its tools and what it asks for. What it does not ask for, it does
// not get.
type Manifest struct {
	ABI         int            `json:"abi"`
	Name        string         `json:"name,omitempty"` // informative; a plugin is called as its file is
	Version     string         `json:"version,omitempty"`
	Level       int            `json:"level"` // abi.LevelCommand, LevelCalls or LevelCore; a Go function has none
	Tools       []ToolSpec     `json:"tools"`
	Permissions Permissions    `json:"permissions,omitzero"`
	Limits      ManifestLimits `json:"limits,omitzero"`
}

// ToolSpec declares one tool.
type ToolSpec struct {
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"`            // of type object
	OutputSchema json.RawMessage `json:"output_schema,omitempty"` // absent: any value
	Effects      string          `json:"effects,omitempty"`       // abi.EffectsRead or EffectsWrite, the default
}

// Permissions are what a plugin asks for.
type Permissions struct {
	KV string `json:"kv,omitempty"` // abi.KVNone (default), KVReadOnly or KVReadWrite
}

// ManifestLimits lower the operator's [Limits]. Zero leaves them.
type ManifestLimits struct {
	TimeoutMS   int64 `json:"timeout_ms,omitempty"`
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // rounded down to pages of 64 KiB
	ResultBytes int   `json:"result_bytes,omitempty"`
	Calls       int   `json:"calls,omitempty"`
	LogLines    int   `json:"log_lines,omitempty"`
}

const (
	maxTools       = 128
	maxDescription = 4096
)

// ParseManifest reads a manifest and refuses what it does not know, so that a misspelt permission or limit is an error
// and not a silent default. Errors name a JSON pointer.
func ParseManifest(raw []byte) (Manifest, error) {
	var m Manifest
	if len(raw) > abi.MaxManifest {
		return m, fmt.Errorf("it is %d bytes; the limit is %d", len(raw), abi.MaxManifest)
	}
	if err := unmarshal(raw, &m); err != nil {
		return m, err
	}
	return m, m.check()
}

// unmarshal decodes strictly: no unknown members, no duplicates, exact names, and errors with a pointer.
func unmarshal(raw []byte, into any) error {
	err := jsonv2.Unmarshal(raw, into, jsonv2.RejectUnknownMembers(true))
	var sem *jsonv2.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &sem) && errors.Is(err, jsonv2.ErrUnknownName):
		return fmt.Errorf("at %s: unknown member", sem.JSONPointer)
	case errors.As(err, &sem) && sem.Err != nil:
		return fmt.Errorf("at %q: %w", string(sem.JSONPointer), sem.Err)
	case errors.As(err, &sem):
		return fmt.Errorf("at %q: a value of the wrong type", string(sem.JSONPointer))
	}
	if ierr := checkIJSON(raw); ierr != nil {
		return ierr
	}
	return err
}

func (m *Manifest) check() error {
	if m.ABI != abi.Version {
		return fmt.Errorf("at /abi: %d is not an ABI of this host; it speaks %d", m.ABI, abi.Version)
	}
	if m.Level < abi.LevelCommand || m.Level > abi.LevelCore {
		return fmt.Errorf("at /level: %d is not a level of this host; it has 0, 1 and 2", m.Level)
	}
	if n := len(m.Tools); n == 0 || n > maxTools {
		return fmt.Errorf("at /tools: it has %d tools; a plugin has 1 to %d", n, maxTools)
	}
	seen := map[string]bool{}
	for i, t := range m.Tools {
		at := func(member string) string { return fmt.Sprintf("at /tools/%d/%s", i, member) }
		if !validName(t.Name) || !letter(t.Name[0]) {
			return fmt.Errorf("%s: %q is not a tool name; use a letter and up to 63 of A-Z a-z 0-9 _ -", at("name"), t.Name)
		}
		if n := len(t.Description); n == 0 || n > maxDescription {
			return fmt.Errorf("%s: it has %d bytes; say in 1 to %d what the tool does", at("description"), n, maxDescription)
		}
		if seen[t.Name] {
			return fmt.Errorf("%s: %q is declared twice", at("name"), t.Name)
		}
		seen[t.Name] = true
		switch t.Effects {
		case "":
			m.Tools[i].Effects = abi.EffectsWrite // doubt is a write: never run in parallel, never waved through
		case abi.EffectsRead, abi.EffectsWrite:
		default:
			return fmt.Errorf("%s: %q; use read or write", at("effects"), t.Effects)
		}
	}
	switch m.Permissions.KV {
	case "":
		m.Permissions.KV = abi.KVNone
	case abi.KVNone, abi.KVReadOnly, abi.KVReadWrite:
	default:
		return fmt.Errorf("at /permissions/kv: %q; use none, ro or rw", m.Permissions.KV)
	}
	for name, v := range map[string]int64{"timeout_ms": m.Limits.TimeoutMS, "memory_bytes": m.Limits.MemoryBytes,
		"result_bytes": int64(m.Limits.ResultBytes), "calls": int64(m.Limits.Calls), "log_lines": int64(m.Limits.LogLines)} {
		if v < 0 {
			return fmt.Errorf("at /limits/%s: it must not be negative", name)
		}
	}
	return nil
}

// validName tells names of tools and plugins: they become parts of URLs, policy and "plugin.tool".
func validName(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if !letter(c) && !(c >= '0' && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
