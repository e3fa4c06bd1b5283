package main

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"
)

// A host that takes the connection and then says nothing holds up no key press: there is an answer, an empty one.
func TestCompletionOfASilentHost(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, complaints bytes.Buffer
	env := []string{"PAWL_URL=http://" + silent.Addr().String(), "PAWL_KEY=x"}
	code := run(ctx, []string{"__complete", "runs", "show", ""}, env, nil, &out, &complaints)
	if code != exitOK || out.String() != ":4\n" || ctx.Err() != nil {
		t.Errorf("exit %d, %q, %q, %v", code, out.String(), complaints.String(), ctx.Err())
	}
}
