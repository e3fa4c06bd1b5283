package plugins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Tool is one tool of one plugin. It does not change and is safe for concurrent use.
type Tool struct {
	Name         string // unique in the set: Bare, or Plugin.Bare where two plugins export one
	Bare         string // as the manifest names it
	Plugin       string // as the operator's file is named
	Digest       string // sha256:… over the module and the manifest
	Description  string
	InputSchema  json.RawMessage
	OutputSchema json.RawMessage // nil: anything
	Effects      string          // abi.EffectsRead or abi.EffectsWrite
	Level        int             // 0, 1 or 2; -1 for a Go function
	Limits       Limits          // in force
	Permissions  Permissions

	plugin *plugin
	input  *Schema
	result *Schema
}

// LevelFunc is the Level of a Go function.
const LevelFunc = -1

// plugin is a module, or a Go function, with its manifest.
type plugin struct {
	name        string
	permissions Permissions
	limits      Limits
	config      map[string]string
	tools       []*Tool
	guest       *guest // nil for a Go function
	fn          func(ctx context.Context, c *Session) error
}

// Check validates args, a canonical JSON object, and fills in the schema's defaults. The result is JSON that the caller
// makes canonical again; it is args itself when nothing was missing. The error is a *[SchemaError].
func (t *Tool) Check(args []byte) ([]byte, error) { return t.input.Check(args) }

// newPlugin compiles the schemas of m's tools. module is what the digest covers besides the manifest.
func newPlugin(name string, m Manifest, module, manifest []byte, lim Limits, config map[string]string) (*plugin, error) {
	p := &plugin{name: name, permissions: m.Permissions, limits: lim.lowered(m.Limits), config: config}
	if p.limits.MemoryPages == 0 {
		return nil, fmt.Errorf("manifest: at /limits/memory_bytes: less than one page of 64 KiB")
	}
	digest := digestOf(module, manifest)
	for i, spec := range m.Tools {
		at := func(member string, err error) error {
			return fmt.Errorf("manifest: at /tools/%d/%s: %w", i, member, err)
		}
		t := &Tool{Bare: spec.Name, Plugin: name, Digest: digest, Description: spec.Description, Effects: spec.Effects,
			InputSchema: spec.InputSchema, OutputSchema: spec.OutputSchema, Level: m.Level, Limits: p.limits,
			Permissions: m.Permissions, plugin: p}
		var err error
		if t.input, err = CompileSchema(spec.InputSchema); err != nil {
			return nil, at("input_schema", err)
		}
		if !t.input.isObject() {
			return nil, at("input_schema", fmt.Errorf(`its type must be "object"`))
		}
		if spec.OutputSchema != nil {
			if t.result, err = CompileSchema(spec.OutputSchema); err != nil {
				return nil, at("output_schema", err)
			}
		}
		p.tools = append(p.tools, t)
	}
	return p, nil
}

// digestOf covers the module and the manifest, each with its length, so that no bytes can move between them.
func digestOf(module, manifest []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "pawl plugin %d %d\n", len(module), len(manifest))
	h.Write(module)
	h.Write(manifest)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// funcManifest completes the manifest of a Go function.
func funcManifest(m Manifest) (Manifest, []byte, error) {
	if m.ABI == 0 {
		m.ABI = abi.Version
	}
	m.Level = abi.LevelCommand
	raw, err := json.Marshal(m)
	if err != nil {
		return m, nil, err
	}
	if m, err = ParseManifest(raw); err != nil {
		return m, nil, err
	}
	m.Level = LevelFunc
	return m, raw, nil
}
