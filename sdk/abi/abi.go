// Package abi holds the words that a pawl host and its guests agree on. ABI.md
// beside this file is the law; this file is its vocabulary for Go programs.
//
// Guests import it, so it imports nothing and declares constants only.
package abi

// Version is the value of "abi" in a manifest and names this edition of ABI.md.
const Version = 1

// Levels of integration, the value of "level" in a manifest.
const (
	LevelCommand = 0 // WASI command: request on stdin, result on stdout
	LevelCalls   = 1 // the same, and stdout lines with the nonce are calls
	LevelCore    = 2 // core module: imports "pawl", exports pawl_call
)

// Names that a core module imports and exports, and the manifest's section.
const (
	ImportModule   = "pawl"
	ImportCall     = "call" // (op_ptr, op_len, req_ptr, req_len i32) -> i32
	ImportRead     = "read" // (dst, cap i32) -> i32
	ExportMemory   = "memory"
	ExportCall     = "pawl_call"     // () -> i32, 0 is success
	ExportDescribe = "pawl_describe" // () -> i32, 0 is success
	ExportInit     = "_initialize"
	ExportStart    = "_start"

	ManifestSection = "pawl.manifest"
)

// LinePrefix begins a call line of level 1; the nonce follows without a space.
const LinePrefix = "@pawl:"

// Operations. The second group is reserved: today a host answers them with
// CodeUnsupported.
const (
	OpInput    = "input"
	OpOutput   = "output"
	OpFail     = "fail"
	OpLog      = "log"
	OpProgress = "progress"
	OpConfig   = "config"
	OpKVGet    = "kv.get"
	OpKVPut    = "kv.put"
	OpKVDelete = "kv.delete"
	OpKVList   = "kv.list"
	OpPause    = "pause"

	OpHTTP        = "http"
	OpArtifactPut = "artifact.put"
	OpArtifactGet = "artifact.get"
	OpInterrupt   = "interrupt"
	OpCall        = "call"
	OpSleep       = "sleep"
)

// What the import "call" returns below zero: the request never reached the
// operation, and no answer is ready.
const (
	ErrRange     = -1 // a pointer and length outside the guest's memory
	ErrMalformed = -2 // the operation's name or the request is not UTF-8, or the request is not one JSON value
	ErrTooLarge  = -3 // the operation's name or the request is longer than its limit
)

// Codes of an answer's error.
const (
	CodeUnsupported = "unsupported" // this host does not know the operation
	CodeInvalid     = "invalid"     // a member is missing, unknown, or of the wrong type
	CodeDenied      = "denied"      // the manifest did not ask for it, or the operator refuses it
	CodeConflict    = "conflict"    // if_version does not hold
	CodeTooLarge    = "too_large"   // a key, value, message or payload is over its limit
	CodeLimit       = "limit"       // the call has used up its calls, log lines or writes
	CodeUnavailable = "unavailable" // the host could not do it now; retryable
	CodeRejected    = "rejected"    // a person said no (interrupt)
)

// Reasons of pause.
const (
	ReasonApprovalRequired    = "approval_required"
	ReasonAwaitInput          = "await_input"
	ReasonExternalEvent       = "external_event"
	ReasonConstraintsConflict = "constraints_conflict"
)

// Levels of log.
const (
	LogDebug = "debug"
	LogInfo  = "info"
	LogWarn  = "warn"
	LogError = "error"
)

// Effects of a tool and grants of the "kv" permission.
const (
	EffectsRead  = "read"
	EffectsWrite = "write"

	KVNone      = "none"
	KVReadOnly  = "ro"
	KVReadWrite = "rw"
)

// Limits, in bytes unless said. A host may lower MaxCalls and MaxLogLines, and
// time and memory are its own; the others are part of the ABI, so that a tool
// behaves alike on every host.
const (
	MaxOp          = 64
	MaxRequest     = 2 << 20  // request of one call, also one call line of level 1
	MaxAnswer      = 2 << 20  // answer to one call, also the request document
	MaxResult      = 1 << 20  // a result: the value of output, or stdout of level 0
	MaxKey         = 1024     // a KV key, UTF-8
	MaxValue       = 64 << 10 // a KV value
	MaxPayload     = 64 << 10 // the payload of pause
	MaxSchema      = 16 << 10 // the schema of pause
	MaxApprovalKey = 256      // bytes of payload.approval_key
	MaxMessage     = 8 << 10  // the message of log, progress and fail; longer ones are cut
	MaxErrorCode   = 64       // the code of fail
	MaxCalls       = 10_000   // calls of one tool call, in number
	MaxLogLines    = 1_000    // kept log lines of one tool call, in number
	MaxKVWrites    = 1_000    // distinct keys written by one tool call, in number
	MaxKVBytes     = 4 << 20  // keys and values written by one tool call
	MaxListKeys    = 1_000    // limit of kv.list, in number
	DefaultList    = 100      // keys of kv.list without a limit, in number
	MaxStderrTail  = 4 << 10  // of stderr that a failed command's error carries
	MaxManifest    = 256 << 10
	MinNonce       = 16
	MaxNonce       = 64
)
