package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pawlhost/pawl/plugins"
)

// scratch is the store behind a call without a host: a JSON file from key to value, or nothing but memory.
type scratch struct {
	file    string // "" for none
	records map[string]scratchRecord
}

// scratchRecord is a value as the operations of the ABI write it: text, or base64 of what is no UTF-8.
type scratchRecord struct {
	Value    *string `json:"value,omitempty"`
	ValueB64 []byte  `json:"value_b64,omitempty"`
	Version  uint64  `json:"version"` // survives a deletion, which leaves no value
}

// openScratch reads a store file. One that is not there is an empty store.
func openScratch(file string) (*scratch, error) {
	s := &scratch{file: file, records: map[string]scratchRecord{}}
	if file == "" {
		return s, nil
	}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&s.records); err != nil {
		return nil, usagef(`%s: %w: a store is {"KEY": {"value": "TEXT", "version": 1}}`, file, err)
	}
	return s, nil
}

func (s *scratch) kv() plugins.KV {
	return plugins.KV{
		Get: func(_ context.Context, key string) (plugins.KVItem, error) {
			r, ok := s.records[key]
			if !ok {
				return plugins.KVItem{}, nil
			}
			it := plugins.KVItem{Value: r.ValueB64, Version: r.Version, Token: 1, Found: r.Value != nil || r.ValueB64 != nil}
			if r.Value != nil {
				it.Value = []byte(*r.Value)
			}
			return it, nil
		},
		List: func(_ context.Context, prefix, after string, limit int) (keys []string, err error) {
			for _, key := range slices.Sorted(maps.Keys(s.records)) {
				r := s.records[key]
				if strings.HasPrefix(key, prefix) && key > after && (r.Value != nil || r.ValueB64 != nil) && len(keys) < limit {
					keys = append(keys, key)
				}
			}
			return keys, nil
		},
	}
}

// keep writes what a call has written, for the next one.
func (s *scratch) keep(writes []plugins.KVWrite) error {
	if s.file == "" || len(writes) == 0 {
		return nil
	}
	for _, w := range writes {
		r := scratchRecord{Version: w.Version}
		switch text := string(w.Value); {
		case w.Deleted:
		case utf8.ValidString(text):
			r.Value = &text
		default:
			r.ValueB64 = w.Value
		}
		s.records[w.Key] = r
	}
	text, err := json.MarshalIndent(s.records, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.file, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("the call's writes are not kept: %w", err)
	}
	return nil
}
