package plugins

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pawlhost/pawl/sdk/abi"
)

// KV is the committed state of one tenant and plugin, given by the host for one call. The functions must serve one
// snapshot or bear Tokens that the commit checks. They are called by the call's goroutine only.
type KV struct {
	Get  func(ctx context.Context, key string) (KVItem, error)
	List func(ctx context.Context, prefix, after string, limit int) (keys []string, err error) // sorted by bytes, live keys only
}

// KVItem is a key's committed record.
type KVItem struct {
	Value   []byte
	Version uint64 // per key, from 1; survives deletion
	Found   bool   // false: there never was one, or it is deleted
	Token   uint64 // the store's version of the record, for the commit's precondition; 0: there is no record
}

// KVWrite is a write to commit with the call's result.
type KVWrite struct {
	Key     string
	Value   []byte
	Version uint64 // the key's version after the commit
	Deleted bool
}

// kvBuffer holds a call's reads and its writes, which nobody else sees before the commit.
type kvBuffer struct {
	read    map[string]KVItem // the committed record of each key that was touched, read once
	written map[string]*KVWrite
	bytes   int // keys and values in written
}

// current is the key's record as this call sees it.
func (s *Session) current(ctx context.Context, key string) (KVItem, error) {
	if w, ok := s.kv.written[key]; ok {
		return KVItem{Value: w.Value, Version: w.Version, Found: !w.Deleted}, nil
	}
	if it, ok := s.kv.read[key]; ok {
		return it, nil
	}
	if s.call.KV.Get == nil {
		return KVItem{}, &refusal{abi.CodeUnavailable, "there is no store behind this call", true}
	}
	it, err := s.call.KV.Get(ctx, key)
	if err != nil {
		// The store's own words stay in the host.
		return KVItem{}, &refusal{abi.CodeUnavailable, "the store did not answer", true}
	}
	if s.kv.read == nil {
		s.kv.read = map[string]KVItem{}
	}
	s.kv.read[key] = it
	return it, nil
}

// mayKV checks the manifest's permission. A tool that declares effects: read may not write, whatever is granted.
func (s *Session) mayKV(write bool) error {
	t := s.call.Tool
	switch granted := t.plugin.permissions.KV; {
	case granted == abi.KVReadWrite && write && t.Effects != abi.EffectsWrite:
		return refuse(abi.CodeDenied, "%s declares effects: read, so it cannot write", t.Bare)
	case granted == abi.KVReadWrite, granted == abi.KVReadOnly && !write:
		return nil
	case granted == abi.KVReadOnly:
		return refuse(abi.CodeDenied, `the manifest asks for permissions.kv "ro"; writing needs "rw"`)
	}
	return refuse(abi.CodeDenied, `the manifest does not ask for permissions.kv; it needs "ro" or "rw"`)
}

func checkKey(key string) error {
	if key == "" {
		return refuse(abi.CodeInvalid, "a key has at least one byte")
	}
	return checkKeyPart("a key", key)
}

func checkKeyPart(what, key string) error {
	if len(key) > abi.MaxKey {
		return refuse(abi.CodeTooLarge, "%s is at most %d bytes", what, abi.MaxKey)
	}
	for _, r := range key {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return refuse(abi.CodeInvalid, "%s has no control characters", what)
		}
	}
	return nil
}

func checkVersion(key string, it KVItem, want *uint64) error {
	if want == nil {
		return nil
	}
	have := it.Version
	if !it.Found {
		have = 0
	}
	if have == *want {
		return nil
	}
	if have == 0 {
		return &refusal{abi.CodeConflict, fmt.Sprintf("%s does not exist", cut(key, 128)), true}
	}
	return &refusal{abi.CodeConflict, fmt.Sprintf("%s is at version %d", cut(key, 128), have), true}
}

func (s *Session) kvGet(ctx context.Context, req []byte) ([]byte, error) {
	var r struct {
		Key string `json:"key"`
	}
	if err := decode(req, &r); err != nil {
		return nil, err
	}
	if err := s.mayKV(false); err != nil {
		return nil, err
	}
	if err := checkKey(r.Key); err != nil {
		return nil, err
	}
	it, err := s.current(ctx, r.Key)
	if err != nil {
		return nil, err
	}
	if !it.Found {
		return []byte(`{"found":false}`), nil
	}
	var b []byte
	if utf8.Valid(it.Value) {
		b = appendString([]byte(`{"value":`), string(it.Value))
	} else {
		b = append([]byte(`{"value_b64":"`), base64.StdEncoding.EncodeToString(it.Value)...)
		b = append(b, '"')
	}
	return append(strconv.AppendUint(append(b, `,"version":`...), it.Version, 10), '}'), nil
}

func (s *Session) kvPut(ctx context.Context, req []byte) ([]byte, error) {
	var r struct {
		Key       string  `json:"key"`
		Value     *string `json:"value"`
		ValueB64  *string `json:"value_b64"`
		IfVersion *uint64 `json:"if_version"`
	}
	if err := decode(req, &r); err != nil {
		return nil, err
	}
	if err := s.mayKV(true); err != nil {
		return nil, err
	}
	if err := checkKey(r.Key); err != nil {
		return nil, err
	}
	var value []byte
	switch {
	case r.Value != nil && r.ValueB64 == nil:
		value = []byte(*r.Value)
	case r.Value == nil && r.ValueB64 != nil:
		var err error
		if value, err = base64.StdEncoding.Strict().DecodeString(*r.ValueB64); err != nil {
			return nil, refuse(abi.CodeInvalid, "value_b64 is not padded standard base64")
		}
	default:
		return nil, refuse(abi.CodeInvalid, "give either value or value_b64")
	}
	if len(value) > abi.MaxValue {
		return nil, refuse(abi.CodeTooLarge, "a value is at most %d bytes", abi.MaxValue)
	}
	it, err := s.current(ctx, r.Key)
	if err != nil {
		return nil, err
	}
	if err := checkVersion(r.Key, it, r.IfVersion); err != nil {
		return nil, err
	}
	w := KVWrite{Key: r.Key, Value: value, Version: it.Version + 1}
	if err := s.buffer(w); err != nil {
		return nil, err
	}
	return append(strconv.AppendUint([]byte(`{"version":`), w.Version, 10), '}'), nil
}

func (s *Session) kvDelete(ctx context.Context, req []byte) error {
	var r struct {
		Key       string  `json:"key"`
		IfVersion *uint64 `json:"if_version"`
	}
	if err := decode(req, &r); err != nil {
		return err
	}
	if err := s.mayKV(true); err != nil {
		return err
	}
	if err := checkKey(r.Key); err != nil {
		return err
	}
	it, err := s.current(ctx, r.Key)
	if err != nil {
		return err
	}
	if err := checkVersion(r.Key, it, r.IfVersion); err != nil {
		return err
	}
	if !it.Found {
		return nil
	}
	return s.buffer(KVWrite{Key: r.Key, Version: it.Version + 1, Deleted: true})
}

// buffer takes w, or refuses it when the call has written enough.
func (s *Session) buffer(w KVWrite) error {
	bytes := s.kv.bytes + len(w.Key) + len(w.Value)
	before, rewrite := s.kv.written[w.Key]
	if rewrite {
		bytes -= len(before.Key) + len(before.Value)
	}
	if bytes > s.lim.KVBytes {
		return refuse(abi.CodeLimit, "a call writes at most %d bytes", s.lim.KVBytes)
	}
	if !rewrite && len(s.kv.written) >= s.lim.KVWrites {
		return refuse(abi.CodeLimit, "a call writes at most %d keys", s.lim.KVWrites)
	}
	if s.kv.written == nil {
		s.kv.written = map[string]*KVWrite{}
	}
	s.kv.written[w.Key] = &w
	s.kv.bytes = bytes
	return nil
}

func (s *Session) kvList(ctx context.Context, req []byte) ([]byte, error) {
	r := struct {
		Prefix *string `json:"prefix"`
		After  string  `json:"after"`
		Limit  *int    `json:"limit"`
	}{}
	if err := decode(req, &r); err != nil {
		return nil, err
	}
	limit := abi.DefaultList
	if r.Limit != nil {
		limit = *r.Limit
	}
	if r.Prefix == nil || limit < 1 || limit > abi.MaxListKeys {
		return nil, refuse(abi.CodeInvalid, "kv.list needs a prefix, and a limit of 1 to %d", abi.MaxListKeys)
	}
	if err := s.mayKV(false); err != nil {
		return nil, err
	}
	if err := checkKeyPart("a prefix", *r.Prefix); err != nil {
		return nil, err
	}
	if err := checkKeyPart("after", r.After); err != nil {
		return nil, err
	}
	keys, err := s.list(ctx, *r.Prefix, r.After, limit+1)
	if err != nil {
		return nil, err
	}
	more := len(keys) > limit
	if more {
		keys = keys[:limit]
	}
	b := []byte(`{"keys":[`)
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, k)
	}
	b = append(b, ']')
	if more {
		b = appendString(append(b, `,"next":`...), keys[limit-1])
	}
	return append(b, '}'), nil
}

// list merges the first limit keys after `after` of the store with this call's own writes.
func (s *Session) list(ctx context.Context, prefix, after string, limit int) ([]string, error) {
	if s.call.KV.List == nil {
		return nil, &refusal{abi.CodeUnavailable, "there is no store behind this call", true}
	}
	var own []string // new keys of this call, in order
	for k, w := range s.kv.written {
		if !w.Deleted && strings.HasPrefix(k, prefix) && k > after {
			own = append(own, k)
		}
	}
	slices.Sort(own)
	var keys []string
	for from := after; len(keys) < limit; {
		page, err := s.call.KV.List(ctx, prefix, from, limit)
		if err != nil {
			return nil, &refusal{abi.CodeUnavailable, "the store did not answer", true}
		}
		for _, k := range page {
			if w, ok := s.kv.written[k]; !ok || !w.Deleted {
				keys = append(keys, k)
			}
		}
		if len(page) < limit {
			break
		}
		from = page[len(page)-1]
	}
	keys = append(keys, own...)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	return keys[:min(limit, len(keys))], nil
}

// preconditions are the Tokens of everything that was read.
func (b *kvBuffer) preconditions() map[string]uint64 {
	if len(b.read) == 0 {
		return nil
	}
	m := make(map[string]uint64, len(b.read))
	for k, it := range b.read {
		m[k] = it.Token
	}
	return m
}

func (b *kvBuffer) writes() []KVWrite {
	if len(b.written) == 0 {
		return nil
	}
	ws := make([]KVWrite, 0, len(b.written))
	for _, w := range b.written {
		ws = append(ws, *w)
	}
	sort.Slice(ws, func(i, j int) bool { return ws[i].Key < ws[j].Key })
	return ws
}
