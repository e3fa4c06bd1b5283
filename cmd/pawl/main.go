// Command pawl is a tool host for AI agents: it runs tools as WebAssembly guests, stops the calls that policy wants a
// person to see, keeps each stopped run as a durable record, and continues it when somebody decides.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The first signal asks to stop, in two phases. AfterFunc then gives the signal back to its default, so that a second
	// one ends a process that does not get there.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
