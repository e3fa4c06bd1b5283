package plugins

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The limit of table elements is for all tables of a module together.
func TestInvariant11_ManyTablesShareOneLimit(t *testing.T) {
	t.Parallel()
	lim := Limits{TableElements: 1000}.withDefaults()
	m, err := scan(assemble(section{4, []byte{3, 0x70, 0, 100, 0x70, 0, 0, 0x70, 1, 1, 5}}), lim)
	// 899 elements are left by the least sizes 100, 0 and 1: a third of them for each, and no more than was declared.
	want := []byte{3, 0x70, 1, 100, 0x8f, 3, 0x70, 1, 0, 0xab, 2, 0x70, 1, 1, 5}
	if err != nil || !bytes.Equal(m.binary, assemble(section{4, want})) {
		t.Errorf("%x %v", m.binary, err)
	}
	_, err = scan(assemble(section{4, []byte{2, 0x70, 0, 0xd8, 4, 0x70, 0, 0xd8, 4}}), lim) // 600 each
	if err == nil || !strings.Contains(err.Error(), "together") {
		t.Errorf("two tables of 600: %v", err)
	}
}

// However many calls a batch has, no more guests than there are slots run at the same time; the others wait for their turn, and
// a call that is cancelled while it waits never begins.
func TestInvariant11_GuestsWaitForASlot(t *testing.T) {
	t.Parallel()
	s := openGuest(t, "core", manifestOf(2, coreTools, `"permissions":{"kv":"ro"}`), Limits{Guests: 3})
	var running, most atomic.Int32
	full, release := make(chan struct{}), make(chan struct{})
	kv := KV{Get: func(context.Context, string) (KVItem, error) {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer running.Add(-1)
		select {
		case full <- struct{}{}:
		case <-release:
		}
		<-release
		return KVItem{}, nil
	}}
	get := func(ctx context.Context) *Result {
		return s.Call(ctx, Call{Tool: tool(t, s, "op"), Arguments: json.RawMessage(`{"op":"kv.get","req":"{'key':'k'}"}`), KV: kv})
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if r := get(context.Background()); r.Failure != nil {
				t.Errorf("%+v", r.Failure)
			}
		})
	}
	<-full
	<-full
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r := get(ctx); r.Failure == nil || r.Failure.Code != CodeCancelled {
		t.Errorf("a cancelled call that waits: %+v", r)
	}
	close(release)
	wg.Wait()
	if n := most.Load(); n != 2 { // one of three is kept for others
		t.Errorf("%d guests of one owner ran at the same time, want 2", n)
	}
}

// An owner whose calls take all it may have keeps nobody else from beginning, and leaves nothing behind.
func TestSlotsAreSharedAmongOwners(t *testing.T) {
	t.Parallel()
	s := newSlots(8)
	var held []func()
	for range 6 {
		release, err := s.acquire(t.Context(), "greedy")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, release)
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.acquire(short, "greedy"); err == nil {
		t.Error("one owner has more than six of eight slots")
	}
	for range 2 {
		release, err := s.acquire(t.Context(), "other")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, release)
	}
	if _, err := s.acquire(short, "third"); err == nil {
		t.Error("more than eight slots")
	}
	for _, release := range held {
		release()
	}
	if len(s.owners) != 0 || len(s.all) != 0 {
		t.Errorf("%d owners and %d slots are left", len(s.owners), len(s.all))
	}
}

// A pipe in the folder is skipped: opening it would wait for its writer for ever.
func TestAPipeInTheFolderIsSkipped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.wasm"), 0o600); err != nil {
		t.Skipf("needs a system with pipes in the file system: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "core.wasm"), guestBytes(t, "core"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "core.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan *Set, 1)
	go func() {
		s, err := Open(context.Background(), Options{Dir: dir})
		if err != nil {
			t.Error(err)
		}
		opened <- s
	}()
	select {
	case s := <-opened:
		defer s.Close(context.Background())
		if sk := s.Skipped(); len(sk) != 2 || !strings.Contains(sk[0].Reason+sk[1].Reason, "not a regular file") {
			t.Errorf("skipped: %v", sk)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the folder is never read")
	}
}

// A small schema that asks for 2^30 evaluations, or a pattern for minutes, ends in a moment with an error of the value or of the
// schema; the lock is free afterwards.
func TestInvariant11_SchemasAreBounded(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"anyOf", "allOf"} {
		var defs []string
		for i := range 30 {
			defs = append(defs, fmt.Sprintf(`"d%d":{"%s":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, word, i+1, i+1))
		}
		last := `"d30":{"type":"object","properties":{"b":{"default":1}}}`
		if word == "anyOf" {
			last = `"d30":{"type":"string"}`
		}
		s, err := CompileSchema(json.RawMessage(`{"$ref":"#/$defs/d0","$defs":{` + strings.Join(append(defs, last), ",") + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range 2 {
			_, err := s.Check([]byte(`{"a":1}`))
			if err == nil || !strings.Contains(err.Error(), "too many evaluations") {
				t.Errorf("%s: %v", word, err)
			}
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%s: it took %v", word, took)
		}
	}
	if _, err := CompileSchema(json.RawMessage(`{"type":"string","pattern":"(x{0,1000}){0,1}(x{0,1000}y)z"}`)); err == nil {
		t.Error("a pattern of thousands of steps was taken")
	}
	s, err := CompileSchema(json.RawMessage(`{"type":"array","items":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	honest := "[" + strings.Repeat(`{"n":1},`, 100_000) + `{"n":1}]`
	if _, err := s.Check([]byte(honest)); err != nil {
		t.Errorf("a large and honest value: %v", err)
	}
}
