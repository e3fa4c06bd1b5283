// Package bundled carries the tools that every pawl host has. The modules are
// compiled and checked in, each with its manifest; files/ has the source of
// files.wasm, and build.sh compiles it to the same bytes again.
package bundled

import "embed"

// FS is a plugin folder as an operator's: NAME.wasm and NAME.json in its root.
//
//go:embed files.wasm files.json
var FS embed.FS
