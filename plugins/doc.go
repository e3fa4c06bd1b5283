// Package plugins runs tools: WebAssembly modules that an operator installs, and Go functions. It is the only package
// that knows the runtime (wazero). What a guest may say and hear is sdk/abi/ABI.md.
//
// # Ownership
//
// A [Set] owns its plugins. Each module has a runtime of its own, with compiled code and host modules that all its calls
// share; a call owns its instance, its linear memory (from a pool, cleared) and its [Session], and they end with it. So
// no byte of one call is visible to the next. Committed state is the host's: a call reads it through [KV], its writes are
// kept back in the Session and returned in the [Result] with the preconditions that they rest on, and the host commits them with
// the result or not at all. A [Failure] returns no writes; a [Pause] does.
//
// # One dispatcher
//
// [Session.Dispatch] takes an operation's name and its request and gives its answer, all bytes. Core modules reach it through two
// imports (guest.go), commands through lines of standard output (stdio.go), Go functions directly. Permissions, limits and the
// buffer of writes live behind it and nowhere else. A refusal is an answer; only a broken protocol, a limit that an
// answer cannot tell and a pause end a guest, by a panic that unwinds it; no guest code runs meanwhile.
//
// # What bounds a guest
//
// Before the compiler sees a module, scan (wasm.go) checks that every count in it is backed by bytes, and gives each table a
// maximum, since table.grow heeds no other limit. Compiling is bounded by caps on functions, bodies and locals and by a guard on its
// time. At load one instance is made under a deadline, so that a module that loops when it starts is skipped. A running guest is bounded by its
// memory (linearMemory), its wall time (checked at loop back-edges; [Open] proves once per process that this works), its output, log lines, operations
// and writes ([Limits]). Sleeping ends with the call's context.
//
// # What does not
//
// wazero v1.12.0 looks at its deadline at loop back-edges only. A guest that recurses in a wide, bounded tree without any loop (forty functions
// that call the previous one twice, a naive Fibonacci of 70) is not stopped by its deadline, and since native code
// cannot be preempted, a garbage collection meanwhile stops every goroutine of the process until the guest ends. Endless recursion is
// no such case: the stack's limit ends it. Killable worker processes close this; until then install modules whose authors
// you trust not to do it on purpose. A guest's machine stack is not part of its memory limit: endless recursion holds up to 130 MiB
// before the runtime's fixed ceiling ends it. A schema can be written so that checking a small value against it takes exponential time
// (a chain of allOf that refer twice to the next); schemas come from the plugin's author. One long bulk-memory instruction is not interrupted either; the memory limit keeps it short. A Go function is trusted code:
// its context ends with its wall time, but only it can return. The compiler cannot be stopped within a function.
package plugins
