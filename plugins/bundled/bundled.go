// Package bundled carries the tools that every pawl host has. The modules are
// compiled and checked in, each with its manifest; ask/ and files/ have their
// sources, and build.sh compiles them to the same bytes again.
package bundled

import "embed"

// FS is a plugin folder as an operator's: NAME.wasm and NAME.json in its root.
//
//go:embed ask.wasm ask.json files.wasm files.json
var FS embed.FS
