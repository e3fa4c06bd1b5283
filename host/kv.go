package host

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

// kvGet reads one committed value of a plugin's space.
func (h *Host) kvGet(ctx context.Context, space store.Key, key string) (item plugins.KVItem, err error) {
	err = h.store.View(ctx, func(rd store.Reader) error {
		it, err := rd.Get(space.With(key))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		var v store.KV
		if err := store.Decode(it.Value, &v); err != nil {
			return err
		}
		item = plugins.KVItem{Value: v.Value, Version: v.Version, Found: !v.Deleted, Token: it.Version}
		return nil
	})
	return item, err
}

// kvList lists committed keys with a prefix, in order.
func (h *Host) kvList(ctx context.Context, space store.Key, prefix, after string, limit int) (keys []string, err error) {
	err = h.store.View(ctx, func(rd store.Reader) error {
		rg := store.Range{Prefix: space}
		if after >= prefix && after != "" {
			rg.After = space.With(after)
		} else if prefix != "" {
			first := space.With(prefix)
			rg.After = first[:len(first)-1] // without its terminator: just before every key that begins with prefix
		}
		var derr error
		err := rd.Scan(rg, func(it store.Item) bool {
			k := it.Key.Last()
			if !strings.HasPrefix(k, prefix) {
				return false
			}
			var v store.KV
			if derr = store.Decode(it.Value, &v); derr != nil {
				return false
			}
			if !v.Deleted {
				keys = append(keys, k)
			}
			return len(keys) < limit
		})
		return errors.Join(err, derr)
	})
	return keys, err
}

// putKV adds the buffered writes of a call, conditional on every value it had read.
func (h *Host) putKV(ch *store.Change, tenant string, c *store.Call, res *plugins.Result) {
	if len(res.Writes) == 0 {
		return // a call that only read is as right as any moment of its reading
	}
	tool, ok := h.plugins.Lookup(c.Tool)
	if !ok {
		return
	}
	space := kvKey(tenant, tool.Plugin)
	for _, k := range slices.Sorted(maps.Keys(res.Reads)) {
		ch.Require(space.With(k), res.Reads[k])
	}
	for _, w := range res.Writes {
		ch.Put(space.With(w.Key), store.Encode(store.KV{Value: w.Value, Version: w.Version, Deleted: w.Deleted}))
	}
}
