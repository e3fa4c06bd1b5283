package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a real host in a process of its own, on a new folder.
type server struct {
	dir  string
	addr string
	keys map[string]string
	cmd  *exec.Cmd
	log  bytes.Buffer
	web  *http.Client
}

// serve builds pawl and starts it.
func (b *bench) serve(ctx context.Context) (*server, error) {
	dir, err := os.MkdirTemp("", "pawl-bench-")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, web: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DialContext: (&net.Dialer{}).DialContext}}}
	bin := filepath.Join(dir, "pawl")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/pawl")
	build.Dir = b.root
	if out, err := build.CombinedOutput(); err != nil {
		s.close()
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	s.cmd = exec.Command(bin, "serve", "--dev", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--log-level", "warn")
	if b.profile != "" {
		s.cmd.Args = append(s.cmd.Args, "--cpu-profile", b.profile)
	}
	s.cmd.Stderr = &s.log
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	_, rest, ok := strings.Cut(line, "http://")
	if !ok {
		s.close()
		return nil, fmt.Errorf("the host did not start: %s", s.log.String())
	}
	s.addr, _, _ = strings.Cut(rest, ";")
	raw, err := os.ReadFile(filepath.Join(dir, "data", "dev-keys.json"))
	if err == nil {
		err = json.Unmarshal(raw, &s.keys)
	}
	if err != nil {
		s.close()
	}
	return s, err
}

func (s *server) close() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
	}
	_ = os.RemoveAll(s.dir)
}

// call is one request of a principal.
func (s *server) call(ctx context.Context, who, method, path string, body, out any) error {
	var rd io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		rd = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, rd)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.keys[who])
	resp, err := s.web.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode > 299 {
		return fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, raw)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// commits reads the host's own count of durable commits.
func (s *server) commits(ctx context.Context) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := s.web.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^pawl_commits_total (\S+)$`).FindSubmatch(raw)
	if m == nil {
		return 0, fmt.Errorf("/metrics has no pawl_commits_total")
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// syncs counts the calls that force data to the disk while fn runs; ok is false where strace cannot be used.
func (s *server) syncs(ctx context.Context, fn func() error) (n float64, ok bool, err error) {
	path, lookErr := exec.LookPath("strace")
	if lookErr != nil {
		return 0, false, fn()
	}
	trace := exec.CommandContext(ctx, path, "-f", "-c", "-e", "trace=fsync,fdatasync,msync", "-p", strconv.Itoa(s.cmd.Process.Pid))
	pipe, perr := trace.StderrPipe()
	if perr != nil || trace.Start() != nil {
		return 0, false, fn()
	}
	in := bufio.NewReader(pipe)
	if line, _ := in.ReadString('\n'); !strings.Contains(line, "attached") {
		_ = trace.Wait()
		return 0, false, fn()
	}
	err = fn()
	_ = trace.Process.Signal(os.Interrupt) // it detaches and prints its table
	table, _ := io.ReadAll(in)
	_ = trace.Wait()
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line) // % time, seconds, usecs/call, calls, [errors,] syscall
		if len(f) >= 5 && (strings.HasSuffix(f[len(f)-1], "sync")) {
			if calls, perr := strconv.ParseFloat(f[3], 64); perr == nil {
				n += calls
			}
		}
	}
	return n, true, err
}

// until waits for a condition of the host.
func until(ctx context.Context, within time.Duration, ok func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}
