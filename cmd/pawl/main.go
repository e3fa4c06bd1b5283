// Command pawl is a tool host for AI agents: it runs tools as WebAssembly guests, stops the calls that policy wants a
// person to see, keeps each stopped run as a durable record, and continues it when somebody decides.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	// The first signal asks to stop, in two phases. AfterFunc then gives the signal back to its default, so that a second
	// one ends a process that does not get there; but not at once, since timeout(1) and many a supervisor signal the process
	// and then its group, and mean one stop.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
