package plugins

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// maxGap is how many zeros may join two data segments.
const maxGap = 4 << 10

// data joins neighbouring segments where nobody can tell. Go's linker leaves thousands of them in a 3 MB module, and the
// runtime evaluates each one's offset anew in every instance: two thirds of the cost of a call.
func (s *scanner) data(r *reader, body []byte) ([]byte, error) {
	type segment struct {
		at    uint64
		bytes []byte
	}
	var joined []segment
	join := !s.indexed
	for range r.count() {
		kind := r.u32()
		var at uint32
		switch kind {
		case 0, 2:
			if kind == 2 {
				r.u32()
			}
			var constant bool
			at, constant = r.offset()
			join = join && kind == 0 && constant
		case 1:
			join = false
		default:
			r.fail("a data segment of an unknown kind")
		}
		b := r.take(r.u32())
		if !join || r.err != nil {
			continue
		}
		var end uint64
		if n := len(joined); n > 0 {
			end = joined[n-1].at + uint64(len(joined[n-1].bytes))
		}
		if gap := uint64(at) - end; len(joined) > 0 && uint64(at) >= end && gap <= maxGap {
			last := &joined[len(joined)-1]
			last.bytes = append(append(last.bytes, make([]byte, gap)...), b...)
		} else {
			joined = append(joined, segment{uint64(at), append(make([]byte, 0, 2*len(b)), b...)})
		}
	}
	// Where two of them overlap, zeros between could be another's bytes.
	byPlace := slices.SortedFunc(slices.Values(joined), func(a, b segment) int { return cmp.Compare(a.at, b.at) })
	for i := 1; i < len(byPlace); i++ {
		join = join && byPlace[i].at >= byPlace[i-1].at+uint64(len(byPlace[i-1].bytes))
	}
	if !join || r.err != nil {
		return body, nil
	}
	out := binary.AppendUvarint(make([]byte, 0, len(body)), uint64(len(joined)))
	for _, seg := range joined {
		out = append(out, 0, 0x41)
		out = appendSigned(out, int32(uint32(seg.at)))
		out = append(out, 0x0b)
		out = binary.AppendUvarint(out, uint64(len(seg.bytes)))
		out = append(out, seg.bytes...)
	}
	return out, nil
}

func appendSigned(b []byte, v int32) []byte {
	for {
		c := byte(v & 0x7f)
		if v >>= 7; v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
