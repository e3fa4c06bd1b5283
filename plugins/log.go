package plugins

import (
	"fmt"
	"unicode/utf8"

	"github.com/pawlhost/pawl/sdk/abi"
)

// LogLine is one line that a tool logged.
type LogLine struct {
	Level   string `json:"level"`
	Message string `json:"message"`
}

// logBook keeps a call's log lines within its limits.
type logBook struct {
	lines   []LogLine
	bytes   int
	dropped int
}

func (l *logBook) add(lim *Limits, level, message string) {
	if len(l.lines) >= lim.LogLines || l.bytes >= lim.LogBytes {
		l.dropped++
		return
	}
	message = cut(valid(message), abi.MaxMessage)
	l.bytes += len(message)
	l.lines = append(l.lines, LogLine{level, message})
}

// closed returns the lines, with one more that counts those that were dropped.
func (l *logBook) closed() []LogLine {
	if l.dropped > 0 {
		return append(l.lines, LogLine{abi.LogWarn, fmt.Sprintf("%d more log lines were not kept", l.dropped)})
	}
	return l.lines
}

// valid replaces what is not UTF-8.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}
