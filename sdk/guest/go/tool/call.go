package tool

import (
	"encoding/base64"
	"encoding/json"
	"unicode/utf8"

	"github.com/pawlhost/pawl/sdk/abi"
)

// Call is one call of a tool, and the way to its host. It is valid until the
// handler returns, and must be used by one goroutine at a time.
type Call struct {
	host    Host
	request request
}

type request struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Context   struct {
		RunID       string                     `json:"run_id"`
		CallID      string                     `json:"call_id"`
		ToolContext json.RawMessage            `json:"tool_context"`
		Approvals   map[string]json.RawMessage `json:"approvals"`
	} `json:"context"`
}

// Tool is the name that was called.
func (c *Call) Tool() string { return c.request.Tool }

// RunID and CallID are the same when a call is run again after a crash, so a
// CallID is an idempotency key.
func (c *Call) RunID() string  { return c.request.Context.RunID }
func (c *Call) CallID() string { return c.request.Context.CallID }

// ToolContext decodes what the caller of the run said. It is untrusted: never
// decide with it whether something is allowed.
func (c *Call) ToolContext(into any) error {
	if len(c.request.Context.ToolContext) == 0 {
		return nil
	}
	return json.Unmarshal(c.request.Context.ToolContext, into)
}

// Approved says whether a person approved key for this call, after an earlier
// call with the same arguments had paused for it. An empty key means the tool's
// name, as in [Call.Pause].
func (c *Call) Approved(key string) bool {
	if key == "" {
		key = c.request.Tool
	}
	return string(c.request.Context.Approvals[key]) == "true"
}

// Pause ends the call and waits, for days if need be, for a person. It does not
// return, unless the host refuses; then the error says why. reason is one of
// abi.Reason…; payload must encode to a JSON object of at most 64 KiB, which
// the person sees. Its member "approval_key" names what [Call.Approved] will
// then be true for.
func (c *Call) Pause(reason string, payload any) error {
	return c.PauseFor(reason, payload, nil)
}

// PauseFor is [Call.Pause] for an answer of a certain shape: only one that
// matches schema, a JSON Schema object of at most 16 KiB, is taken.
func (c *Call) PauseFor(reason string, payload any, schema json.RawMessage) error {
	return c.do(abi.OpPause, struct {
		Reason  string          `json:"reason"`
		Payload any             `json:"payload"`
		Schema  json.RawMessage `json:"schema,omitempty"`
	}{reason, payload, schema}, nil)
}

// Log adds a line to the run. level is one of abi.Log…. What the host refuses,
// it counts; a tool need not care.
func (c *Call) Log(level, message string) {
	_ = c.do(abi.OpLog, map[string]string{"level": level, "message": message}, nil)
}

// Progress tells those who watch how far the call has come. total 0: unknown.
func (c *Call) Progress(done, total float64, message string) {
	_ = c.do(abi.OpProgress, struct {
		Done    float64 `json:"done"`
		Total   float64 `json:"total,omitempty"`
		Message string  `json:"message,omitempty"`
	}{done, total, message}, nil)
}

// Config returns what the operator set for this plugin, and whether it is set.
func (c *Call) Config(key string) (value string, found bool, err error) {
	var ok struct {
		Value *string `json:"value"`
	}
	if err := c.do(abi.OpConfig, map[string]string{"key": key}, &ok); err != nil || ok.Value == nil {
		return "", false, err
	}
	return *ok.Value, true, nil
}

// do carries out one operation. A refusal is an *Error.
func (c *Call) do(op string, req, into any) error {
	raw, err := json.Marshal(req)
	if err != nil {
		return err
	}
	answer, n := c.host(op, raw)
	switch {
	case n == abi.ErrTooLarge:
		return Fail(abi.CodeTooLarge, "the request of %s is %d bytes; the limit is %d", op, len(raw), abi.MaxRequest)
	case n < 0:
		return Fail(abi.CodeInvalid, "the host cannot read the request of %s", op)
	}
	var a struct {
		OK    json.RawMessage `json:"ok"`
		Error *Error          `json:"error"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return Fail(abi.CodeInvalid, "the answer to %s: %v", op, err)
	}
	if a.Error != nil {
		return a.Error
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(a.OK, into)
}

// KV is the plugin's store: one per tenant, shared by the tenant's members.
// Writes are kept back until the call succeeds and are committed with its
// result; the call itself reads its own writes. A key that was read must be
// unchanged at that moment, or the host runs the call again.
type KV struct{ c *Call }

// KV returns the store. It needs [Info.KV].
func (c *Call) KV() KV { return KV{c} }

// Entry is a value and its version, which is 0 if there is none.
type Entry struct {
	Value   []byte
	Version int64
}

// Found says whether the key has a value.
func (e Entry) Found() bool { return e.Version > 0 }

// Get reads a key. That it has no value is not an error.
func (kv KV) Get(key string) (Entry, error) {
	var ok struct {
		Value    *string `json:"value"`
		ValueB64 []byte  `json:"value_b64"`
		Version  int64   `json:"version"`
	}
	if err := kv.c.do(abi.OpKVGet, map[string]string{"key": key}, &ok); err != nil {
		return Entry{}, err
	}
	if ok.Value != nil {
		return Entry{[]byte(*ok.Value), ok.Version}, nil
	}
	return Entry{ok.ValueB64, ok.Version}, nil
}

type change struct {
	Key       string  `json:"key"`
	Value     *string `json:"value,omitempty"`
	ValueB64  *string `json:"value_b64,omitempty"`
	IfVersion *int64  `json:"if_version,omitempty"`
}

// Put writes a key and returns the version that it will have.
func (kv KV) Put(key string, value []byte) (int64, error) { return kv.put(key, value, nil) }

// PutIf writes a key if it still is at version; 0 means that it has no value.
// Otherwise the error is an *Error with abi.CodeConflict.
func (kv KV) PutIf(key string, value []byte, version int64) (int64, error) {
	return kv.put(key, value, &version)
}

func (kv KV) put(key string, value []byte, version *int64) (int64, error) {
	ch := change{Key: key, IfVersion: version}
	text := string(value)
	if utf8.ValidString(text) {
		ch.Value = &text
	} else {
		text = base64.StdEncoding.EncodeToString(value)
		ch.ValueB64 = &text
	}
	var ok struct {
		Version int64 `json:"version"`
	}
	err := kv.c.do(abi.OpKVPut, ch, &ok)
	return ok.Version, err
}

// Delete removes a key; that there is none is not an error.
func (kv KV) Delete(key string) error {
	return kv.c.do(abi.OpKVDelete, change{Key: key}, nil)
}

// DeleteIf removes a key if it still is at version.
func (kv KV) DeleteIf(key string, version int64) error {
	return kv.c.do(abi.OpKVDelete, change{Key: key, IfVersion: &version}, nil)
}

// List yields the keys that begin with prefix, in the order of their bytes. An
// error is the last thing that it yields.
func (kv KV) List(prefix string) func(yield func(key string, err error) bool) {
	return func(yield func(string, error) bool) {
		for after := ""; ; {
			var page struct {
				Keys []string `json:"keys"`
				Next string   `json:"next"`
			}
			req := map[string]any{"prefix": prefix, "limit": abi.MaxListKeys}
			if after != "" {
				req["after"] = after
			}
			if err := kv.c.do(abi.OpKVList, req, &page); err != nil {
				yield("", err)
				return
			}
			for _, key := range page.Keys {
				if !yield(key, nil) {
					return
				}
			}
			if after = page.Next; after == "" {
				return
			}
		}
	}
}
