package plugins

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"

	"github.com/pawlhost/pawl/sdk/abi"
)

// bareConfig is for modules without WASI: nothing of it is ever asked for. Its random source only keeps wazero from
// seeding one of its own, which costs more than a small call.
var bareConfig = wazero.NewModuleConfig().WithName("").WithStartFunctions().WithRandSource(noRandom{})

type noRandom struct{}

func (noRandom) Read([]byte) (int, error) { return 0, io.EOF }

// coreConfig is the surroundings of a level 2 call; its standard output and error become log lines.
func (g *guest) coreConfig(ctx context.Context, s *Session) (wazero.ModuleConfig, func()) {
	if !g.wasi {
		return bareConfig, func() {}
	}
	out, err := &lineLog{s: s}, &lineLog{s: s}
	return g.wasiConfig(ctx, s).WithStdout(out).WithStderr(err), func() { out.flush(); err.flush() }
}

// wasiConfig gives a guest a clock and random numbers that are the call's own, the same when it is run again, and
// nothing else: no environment, no files, no network, no arguments but its name.
func (g *guest) wasiConfig(ctx context.Context, s *Session) wazero.ModuleConfig {
	c := &clock{ctx: ctx, now: s.call.Time.UnixNano()}
	if s.call.Time.IsZero() {
		c.now = time.Date(2022, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	}
	seed := sha256.Sum256([]byte("pawl guest random\n" + s.call.RunID + "\n" + s.call.CallID))
	return bareConfig.WithArgs(g.name).WithRandSource(mrand.NewChaCha8(seed)).
		WithWalltime(c.wall, sys.ClockResolution(time.Millisecond)).WithNanotime(c.mono, sys.ClockResolution(time.Millisecond)).
		WithNanosleep(c.sleep)
}

// clock is one call's time: it moves one millisecond with each look at it, and with each sleep by what was slept. So a
// run of the same call sees the same times, and a guest that waits for a moment gets there.
type clock struct {
	ctx context.Context
	now int64
}

func (c *clock) tick() int64 { c.now += int64(time.Millisecond); return c.now }

func (c *clock) wall() (sec int64, nsec int32) {
	now := c.tick()
	return now / 1e9, int32(now % 1e9)
}

func (c *clock) mono() int64 { return c.tick() }

// sleep waits in real time. When the call ends first it unwinds the guest: one that goes on would believe it had slept.
func (c *clock) sleep(ns int64) {
	if ns <= 0 {
		return
	}
	t := time.NewTimer(time.Duration(ns))
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
		panic(c.ctx.Err())
	}
	c.now += ns
}

// command runs a level 0 or 1 module. What it prints is its result; at level 1 its call lines are answered meanwhile.
func (g *guest) command(ctx context.Context, s *Session) error {
	out := &stdout{limit: s.lim.Output}
	errs := &lineLog{s: s, keep: abi.MaxStderrTail}
	in := &bytes.Buffer{}
	in.Write(s.request)
	in.WriteByte('\n')
	var w io.Writer = out
	if g.level == abi.LevelCalls {
		w = &callLines{ctx: ctx, s: s, in: in, out: out, prefix: []byte(abi.LinePrefix + s.nonce)}
	}
	cfg := g.wasiConfig(ctx, s).WithStdin(in).WithStdout(w).WithStderr(errs)
	err := g.instance(ctx, s, cfg, func(ctx context.Context, i api.Module) error {
		return i.ExportedFunction(abi.ExportStart).CallWithStack(ctx, nil)
	})
	if c, ok := w.(*callLines); ok && (err == nil || isExit0(err)) {
		c.flush()
	}
	errs.flush()
	s.stderr = errs.tail
	if s.output == nil {
		s.printed = bytes.TrimSpace(out.b)
	}
	return err
}

// newNonce marks one call's lines; 128 bits, so that no file that a tool prints can hold it.
func newNonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// stdout collects what a command prints. Beyond the limit it ends the guest.
type stdout struct {
	b     []byte
	limit int
}

func (o *stdout) Write(p []byte) (int, error) {
	if len(o.b)+len(p) > o.limit {
		panic(limitError(fmt.Sprintf("it printed more than %d bytes", o.limit)))
	}
	o.b = append(o.b, p...)
	return len(p), nil
}

// maxUnread bounds the answers that a guest leaves in its standard input: nobody who asks and never reads may grow the host. A
// guest that reads after each call never comes near.
const maxUnread = 64 << 10

// callLines finds the call lines of level 1: lines that begin with the prefix and this call's nonce. Everything else is
// output, byte for byte.
type callLines struct {
	ctx    context.Context
	s      *Session
	in     *bytes.Buffer // the guest's standard input
	out    *stdout
	prefix []byte // @pawl:NONCE
	line   []byte // of a line that may be a call
	plain  bool   // the current line is output
}

func (c *callLines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part, ended := p, false
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			part, ended = p[:i+1], true
		}
		p = p[len(part):]
		c.part(part, ended)
	}
	return n, nil
}

func (c *callLines) part(part []byte, ended bool) {
	if c.plain {
		_, _ = c.out.Write(part)
		c.plain = !ended
		return
	}
	c.line = append(c.line, part...)
	if n := min(len(c.line), len(abi.LinePrefix)); string(c.line[:n]) != abi.LinePrefix[:n] {
		c.flush()
		c.plain = !ended
		return
	}
	if len(c.line) > abi.MaxRequest {
		panic(limitError(fmt.Sprintf("it printed a line that begins with %s and is longer than %d bytes", abi.LinePrefix, abi.MaxRequest)))
	}
	if !ended {
		return
	}
	line := bytes.TrimSuffix(bytes.TrimSuffix(c.line, []byte("\n")), []byte("\r"))
	rest, ours := bytes.CutPrefix(line, c.prefix)
	if !ours || len(rest) > 0 && rest[0] != ' ' {
		c.flush()
		return
	}
	if c.in.Len() > maxUnread {
		panic(limitError(fmt.Sprintf("it has not read %d bytes of answers; read one line after each call", c.in.Len())))
	}
	answer := c.call(rest)
	c.line = c.line[:0]
	c.in.Write(answer)
	c.in.WriteByte('\n')
}

// call does what follows the nonce: " OP" or " OP JSON".
func (c *callLines) call(rest []byte) []byte {
	if len(rest) < 2 || rest[1] == ' ' {
		return answer(nil, refuse(abi.CodeInvalid, "a call line is %sNONCE OP JSON, with one space each", abi.LinePrefix))
	}
	op, req, _ := bytes.Cut(rest[1:], []byte(" "))
	return c.s.Dispatch(c.ctx, string(op), req)
}

// flush makes output of what was not a call after all.
func (c *callLines) flush() {
	_, _ = c.out.Write(c.line)
	c.line = c.line[:0]
}

// lineLog makes log lines of what a guest prints, and keeps the last bytes.
type lineLog struct {
	s    *Session
	line []byte
	keep int // bytes of the tail
	tail []byte
}

func (l *lineLog) Write(p []byte) (int, error) {
	n := len(p)
	if l.keep > 0 {
		l.tail = append(l.tail, p[max(0, len(p)-l.keep):]...)
		l.tail = l.tail[max(0, len(l.tail)-l.keep):]
	}
	for len(p) > 0 {
		part, ended := p, false
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			part, ended = p[:i], true
			p = p[i+1:]
		} else {
			p = nil
		}
		if room := abi.MaxMessage + 1 - len(l.line); room > 0 {
			l.line = append(l.line, part[:min(room, len(part))]...)
		}
		if ended {
			l.flush()
		}
	}
	return n, nil
}

func (l *lineLog) flush() {
	if len(l.line) > 0 {
		l.s.logs.add(&l.s.lim, abi.LogInfo, string(bytes.TrimSuffix(l.line, []byte("\r"))))
	}
	l.line = l.line[:0]
}
