package tooltest_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/sdk/guest/go/tool"
	"github.com/pawlhost/pawl/sdk/guest/go/tooltest"
)

type ops struct {
	Ops []string `json:"ops"`
}

// The tool under test does what it is told and returns how each step went.
func init() {
	tool.Describe(tool.Info{Name: "ops", KV: abi.KVReadWrite})
	tool.Handle("ops", tool.Spec{Description: "Do operations."}, func(c *tool.Call, in ops) ([]string, error) {
		out := []string{}
		for _, op := range in.Ops {
			verb, arg, _ := strings.Cut(op, " ")
			var word string
			var err error
			switch verb {
			case "put":
				_, err = c.KV().Put(arg, []byte("v"))
			case "create":
				_, err = c.KV().PutIf(arg, []byte("v"), 0)
			case "get":
				var e tool.Entry
				if e, err = c.KV().Get(arg); e.Found() {
					word = hex.EncodeToString(e.Value)
				}
			case "delete":
				err = c.KV().Delete(arg)
			case "list":
				for key, e := range c.KV().List(arg) {
					word, err = word+key+";", e
				}
			case "config":
				word, _, err = c.Config(arg)
			case "pause":
				err = c.Pause(arg, map[string]string{"approval_key": "k"})
			case "approved":
				if c.Approved(arg) {
					word = "yes"
				}
			case "fail":
				return nil, tool.Fail(arg, "as told")
			}
			var refusal *tool.Error
			if errors.As(err, &refusal) {
				word = "!" + refusal.Code
			}
			out = append(out, word)
		}
		return out, nil
	})
}

func TestHostAnswersAsTheABISays(t *testing.T) {
	t.Parallel()
	h := &tooltest.Host{KV: map[string][]byte{"k/1": []byte("\xff")}, Config: map[string]string{"greeting": "hi"}}
	want := func(ops []string, words ...string) {
		t.Helper()
		var got []string
		if err := h.Call("ops", map[string]any{"ops": ops}).Decode(&got); err != nil || !slices.Equal(got, words) {
			t.Errorf("%q: %q, %v; want %q", ops, got, err, words)
		}
	}
	want([]string{"get k/1", "get a", "put a", "get a", "create a", "create b"}, "ff", "", "", "76", "!conflict", "")
	want([]string{"list ", "list k/", "delete a", "list ", "create a"}, "a;b;k/1;", "k/1;", "", "b;k/1;", "")
	want([]string{"config greeting", "config other"}, "hi", "")
	want([]string{"put " + strings.Repeat("k", abi.MaxKey+1), "get ", "pause bored"}, "!invalid", "!invalid", "!invalid")
	h.ReadOnly = true
	want([]string{"put a", "delete a", "get a"}, "!denied", "!denied", "76")
}

func TestAFailedCallLeavesNothingBehindAndAPausedOneDoes(t *testing.T) {
	t.Parallel()
	h := &tooltest.Host{}
	r := h.Call("ops", ops{[]string{"put a", "fail word"}})
	if r.Error == nil || r.Error.Code != "word" || r.Output != nil || len(h.KV) != 0 {
		t.Errorf("%+v, KV %q; want the error and an empty KV", r, h.KV)
	}
	r = h.Call("ops", ops{[]string{"put a", "pause await_input", "put b"}})
	if r.Paused == nil || r.Paused.Reason != abi.ReasonAwaitInput || string(r.Paused.Payload) != `{"approval_key":"k"}` || r.Error != nil {
		t.Errorf("%+v; want a pause", r)
	}
	if string(h.KV["a"]) != "v" || len(h.KV) != 1 {
		t.Errorf("KV %q; want what was written before the pause", h.KV)
	}
	if err := r.Decode(new([]string)); err == nil || !strings.Contains(err.Error(), "paused") {
		t.Errorf("Decode of a paused call: %v", err)
	}
}

func TestApprovalsServeOneCall(t *testing.T) {
	t.Parallel()
	h := &tooltest.Host{Approvals: map[string]bool{"k": true}}
	for _, want := range []string{"yes", ""} {
		var got []string
		if err := h.Call("ops", ops{[]string{"approved k"}}).Decode(&got); err != nil || got[0] != want {
			t.Errorf("approved: %q, %v; want %q", got, err, want)
		}
	}
}

func TestManifestIsWhatThePluginDescribes(t *testing.T) {
	t.Parallel()
	raw, err := tooltest.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		ABI, Level  int
		Permissions struct{ KV string }
		Tools       []struct{ Name string }
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	if m.ABI != 1 || m.Level != 2 || m.Permissions.KV != "rw" || len(m.Tools) != 1 || m.Tools[0].Name != "ops" {
		t.Errorf("%s", raw)
	}
}
