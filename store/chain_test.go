package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The encoding is kept for ever: an auditor computes these hashes with a program of its own.
func TestChainHashIsFixed(t *testing.T) {
	t.Parallel()
	log := K("t", "demo", "audit")
	first := ChainHash(log, 1, Hash{}, []byte(`{"a":1}`))
	if got, want := first.String(), "sha256:7fadefd21902085162f040dfa78f957d8d1d83bb881f0d7742b0230c8c106a09"; got != want {
		t.Errorf("the first entry: %s, want %s", got, want)
	}
	if got, want := ChainHash(log, 2, first, nil).String(), "sha256:92de0478b8172e61c163c54407cc550b5fff8bfbb5dc03490619cd74eab4c7f1"; got != want {
		t.Errorf("the second entry: %s, want %s", got, want)
	}
	seen := map[Hash]string{}
	for _, c := range []struct {
		log  Key
		seq  uint64
		prev Hash
		data string
	}{
		{"", 0, Hash{}, ""}, {"a", 0, Hash{}, ""}, {"", 0, Hash{}, "a"}, {"", 1, Hash{}, ""}, {"", 0, Hash{1}, ""}, {"\x00", 0, Hash{}, ""},
		{K("t", "a", "audit"), 1, Hash{}, "x"}, {K("t", "ab", "audit"), 1, Hash{}, "x"},
	} {
		h := ChainHash(c.log, c.seq, c.prev, []byte(c.data))
		if other, ok := seen[h]; ok {
			t.Errorf("%+v has the hash of %s", c, other)
		}
		seen[h] = fmt.Sprintf("%+v", c)
	}
}

func TestParseHash(t *testing.T) {
	t.Parallel()
	h := ChainHash("", 1, Hash{}, nil)
	if got, err := ParseHash(h.String()); err != nil || got != h {
		t.Errorf("%s reads as %s, %v", h, got, err)
	}
	for _, bad := range []string{"", "sha256:", h.String()[7:], h.String() + "0", h.String()[:70], "sha256:" + strings.Repeat("g", 64), strings.ToUpper(h.String())} {
		if got, err := ParseHash(bad); err == nil || !got.IsZero() {
			t.Errorf("%q reads as %s", bad, got)
		}
	}
}

// chainOf is a log of n entries, the first of which are not chained.
func chainOf(log Key, n, plain int) []Entry {
	var es []Entry
	var prev Hash
	for i := range n {
		e := Entry{Seq: uint64(i) + 1, Data: fmt.Append(nil, "entry ", i+1)}
		if i >= plain {
			e.Prev, e.Hash = prev, ChainHash(log, e.Seq, prev, e.Data)
			prev = e.Hash
		}
		es = append(es, e)
	}
	return es
}

func TestChainTellsWhatWasDone(t *testing.T) {
	t.Parallel()
	log := K("log")
	rehash := func(es []Entry, from int) { // as somebody would who can write the store
		for i := from; i < len(es); i++ {
			if i > 0 {
				es[i].Prev = es[i-1].Hash
			}
			es[i].Hash = ChainHash(log, es[i].Seq, es[i].Prev, es[i].Data)
		}
	}
	for name, c := range map[string]struct {
		plain   int
		segment bool
		do      func([]Entry) []Entry
		want    string
	}{
		"nothing":               {do: func(es []Entry) []Entry { return es }},
		"nothing, begun late":   {plain: 4, do: func(es []Entry) []Entry { return es }},
		"nothing, all before":   {plain: 9, do: func(es []Entry) []Entry { return es }},
		"a segment":             {segment: true, do: func(es []Entry) []Entry { return es[3:] }},
		"a segment, begun late": {segment: true, plain: 4, do: func(es []Entry) []Entry { return es[2:] }},
		"changed":               {do: func(es []Entry) []Entry { es[4].Data = []byte("other"); return es }, want: "row 5 was changed"},
		"changed in place":      {do: func(es []Entry) []Entry { es[4].Data[6] ^= 1; return es }, want: "row 5 was changed"},
		"the first changed":     {do: func(es []Entry) []Entry { es[0].Data = nil; return es }, want: "row 1 was changed"},
		"the last changed":      {do: func(es []Entry) []Entry { es[8].Data = nil; return es }, want: "row 9 was changed"},
		"changed and rehashed": {do: func(es []Entry) []Entry {
			es[4].Data = nil
			es[4].Hash = ChainHash(log, 5, es[4].Prev, nil)
			return es
		}, want: "row 6 does not follow row 5"},
		"removed":           {do: func(es []Entry) []Entry { return slices.Delete(es, 4, 5) }, want: "row 5 is missing"},
		"several removed":   {do: func(es []Entry) []Entry { return slices.Delete(es, 4, 7) }, want: "row 5 and those up to row 7 are missing"},
		"the first removed": {do: func(es []Entry) []Entry { return es[1:] }, want: "row 1 is missing"},
		"a plain one gone":  {plain: 4, do: func(es []Entry) []Entry { return slices.Delete(es, 1, 2) }, want: "row 2 is missing"},
		"removed, renumbered": {do: func(es []Entry) []Entry {
			es = slices.Delete(es, 7, 8)
			es[7].Seq = 8
			return es
		}, want: "row 8 was changed"},
		"swapped":         {do: func(es []Entry) []Entry { es[3], es[4] = es[4], es[3]; return es }, want: "row 4 is missing; row 4 comes after row 5"},
		"swapped by data": {do: func(es []Entry) []Entry { es[3].Data, es[4].Data = es[4].Data, es[3].Data; return es }, want: "row 4 was changed; row 5 was changed"},
		"repeated":        {do: func(es []Entry) []Entry { return slices.Insert(es, 5, es[3]) }, want: "row 4 comes after row 5"},
		"inserted without a hash": {do: func(es []Entry) []Entry {
			return append(es, Entry{Seq: 10, Data: []byte("forged")})
		}, want: "row 10 has no hash"},
		"the hashes of the beginning taken off": {do: func(es []Entry) []Entry {
			es[0].Hash, es[0].Prev, es[1].Hash, es[1].Prev = Hash{}, Hash{}, Hash{}, Hash{}
			return es
		}, want: "row 3 does not follow row 2"},
		"from another log": {do: func(es []Entry) []Entry {
			es[2] = chainOf(K("other"), 9, 0)[2]
			return es
		}, want: "row 3 was changed"},
		"all written anew": {do: func(es []Entry) []Entry { es[2].Data = nil; rehash(es, 2); return es }}, // only a kept head tells
	} {
		chain := Chain{Log: log, Segment: c.segment}
		var got []string
		for _, e := range c.do(chainOf(log, 9, c.plain)) {
			if fault := chain.Next(e); fault != nil {
				got = append(got, fault.Error())
			}
		}
		want := strings.Split(c.want, "; ")
		if c.want == "" {
			want = nil
		}
		ok := len(got) == len(want)
		for i := range min(len(got), len(want)) {
			ok = ok && strings.HasPrefix(got[i], want[i])
		}
		if !ok {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestChainAgainstAKeptHead(t *testing.T) {
	t.Parallel()
	log := K("log")
	es := chainOf(log, 9, 2)
	anew := chainOf(log, 9, 2)
	anew[4].Data = []byte("other")
	for i := 4; i < 9; i++ {
		anew[i].Prev = anew[i-1].Hash
		anew[i].Hash = ChainHash(log, anew[i].Seq, anew[i].Prev, anew[i].Data)
	}
	for name, c := range map[string]struct {
		shown []Entry
		seq   uint64
		hash  Hash
		want  string
	}{
		"as it was":             {es, 9, es[8].Hash, ""},
		"grown since":           {es, 6, es[5].Hash, ""},
		"kept before the chain": {es, 2, Hash{}, ""},
		"cut":                   {es[:6], 9, es[8].Hash, "row 9 is gone: the log ends at row 6"},
		"empty":                 {nil, 9, es[8].Hash, "row 9 is gone: the log ends at row 0"},
		"written anew":          {anew, 9, es[8].Hash, "row 9 has another hash"},
		"changed after":         {anew, 4, es[3].Hash, ""},
		"begins later":          {es[6:], 4, es[3].Hash, "row 4 is not among"},
	} {
		chain := Chain{Log: log, Segment: true, Kept: []uint64{c.seq}}
		for _, e := range c.shown {
			if fault := chain.Next(e); fault != nil {
				t.Errorf("%s: %v", name, fault)
			}
		}
		got := ""
		if fault := chain.At(c.seq, c.hash); fault != nil {
			got = fault.Error()
		}
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
