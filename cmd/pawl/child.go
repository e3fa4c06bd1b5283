package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a host in a process of its own: this program again, with "serve --dev".
type child struct {
	data   string
	listen string
	extra  []string // further arguments
	exe    string   // the program, "" for this one
	env    []string // added to the environment

	base string // its address
	keys map[string]string

	cmd   *exec.Cmd
	log   tail
	ended chan error // has the outcome once the process is gone
}

// start starts the process and returns when it is ready. A second start serves the same folder on the same address.
func (c *child) start(ctx context.Context) error {
	exe := c.exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return err
		}
	}
	c.cmd = exec.Command(exe, append([]string{"serve", "--dev", "--data", c.data, "--listen", c.listen, "--end-with-stdin"}, c.extra...)...)
	c.cmd.Env = append(append(os.Environ(), "PAWL_LOG_LEVEL=warn"), c.env...)
	c.cmd.Stderr = &c.log
	if _, err := c.cmd.StdinPipe(); err != nil { // closed when this process ends, however it ends
		return err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	first := make(chan string, 1)
	c.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan error) {
		line, _ := bufio.NewReader(out).ReadString('\n')
		first <- line
		_, _ = io.Copy(io.Discard, out)
		ended <- cmd.Wait()
	}(c.cmd, c.ended)
	select {
	case line := <-first:
		_, rest, ok := strings.Cut(line, "http://")
		addr, _, _ := strings.Cut(strings.TrimSpace(rest), ";")
		if !ok {
			return fmt.Errorf("the host did not start: %s", c.log.text())
		}
		c.base, c.listen = "http://"+addr, addr
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(60 * time.Second): // a first start compiles the bundled tools
		return fmt.Errorf("the host was not up after a minute: %s", c.log.text())
	}
	ready := eventually(ctx, time.Minute, func() bool {
		resp, err := http.Get(c.base + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	if !ready {
		return fmt.Errorf("the host is not ready: %s", c.log.text())
	}
	raw, err := os.ReadFile(filepath.Join(c.data, devKeysFile))
	if err != nil {
		return err
	}
	c.keys = nil
	return json.Unmarshal(raw, &c.keys)
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the process the hard way, and returns when it is gone.
func (c *child) kill() {
	if c.cmd == nil || c.cmd.Process == nil || c.ended == nil {
		return
	}
	_ = c.cmd.Process.Kill()
	<-c.ended //nolint:errcheck // killed: how it ended is known
	c.ended = nil
}

// stop asks the process to end and returns when it has; an error when it ended badly or not within ten seconds.
func (c *child) stop(ctx context.Context) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-c.ended:
		c.ended = nil
		if err != nil {
			return fmt.Errorf("the host ended with %w: %s", err, c.log.text())
		}
		return nil
	case <-time.After(10 * time.Second):
		return errors.New("the host did not stop within ten seconds")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tail keeps the end of a log.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - 64<<10; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return visibleLines(string(bytes.TrimSpace(t.buf)))
}
