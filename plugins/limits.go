package plugins

import (
	"runtime"
	"time"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Limits bound one plugin. In [Options] they are the operator's: the default of every plugin and its ceiling, since a
// manifest can lower a limit and never raise it. A zero field means the default that [Limits.withDefaults] names.
type Limits struct {
	Guests        int           // that run at the same time, of all plugins; further calls wait for their turn
	MemoryPages   uint32        // linear memory of one instance, in pages of 64 KiB
	TableElements uint32        // elements of all tables of one instance together
	WallTime      time.Duration // of one call, waiting for the host included
	Output        int           // bytes of a result, and of all that a command writes to stdout
	Calls         int           // operations of one call, in number (input, output, fail and log are free)
	LogLines      int           // kept log lines of one call, in number
	LogBytes      int           // kept log messages of one call, in bytes
	KVWrites      int           // keys that one call writes, in number
	KVBytes       int           // keys and values that one call writes, in bytes
	ModuleBytes   int           // size of a module file
	CompileTime   time.Duration // of one module at load
	LoadTime      time.Duration // of running start, _initialize and pawl_describe at load
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Guests:        or(l.Guests, max(8, 2*runtime.GOMAXPROCS(0))),
		MemoryPages:   or(l.MemoryPages, 1024), // 64 MiB
		TableElements: or(l.TableElements, 1<<20),
		WallTime:      or(l.WallTime, 10*time.Second),
		Output:        or(l.Output, abi.MaxResult),
		Calls:         or(l.Calls, abi.MaxCalls),
		LogLines:      or(l.LogLines, abi.MaxLogLines),
		LogBytes:      or(l.LogBytes, 256<<10),
		KVWrites:      or(l.KVWrites, abi.MaxKVWrites),
		KVBytes:       or(l.KVBytes, abi.MaxKVBytes),
		ModuleBytes:   or(l.ModuleBytes, 32<<20),
		CompileTime:   or(l.CompileTime, 2*time.Minute),
		LoadTime:      or(l.LoadTime, 2*time.Second),
	}
}

// lowered returns l with what the manifest asks to be smaller.
func (l Limits) lowered(m ManifestLimits) Limits {
	if pages := m.MemoryBytes >> 16; m.MemoryBytes > 0 && pages < int64(l.MemoryPages) {
		l.MemoryPages = uint32(pages)
	}
	l.WallTime = lower(l.WallTime, time.Duration(m.TimeoutMS)*time.Millisecond)
	l.Output = lower(l.Output, m.ResultBytes)
	l.Calls = lower(l.Calls, m.Calls)
	l.LogLines = lower(l.LogLines, m.LogLines)
	return l
}

type limit interface{ ~int | ~int64 | ~uint32 }

func or[T limit](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

func lower[T limit](ceiling, asked T) T {
	if asked > 0 && asked < ceiling {
		return asked
	}
	return ceiling
}
