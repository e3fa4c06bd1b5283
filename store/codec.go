package store

import (
	"bytes"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// encodingCBOR is the first byte of every record: CBOR (RFC 8949) with the short names of records.go. JSON texts inside a record
// are byte strings, so reading a head never parses arguments. A later encoding takes the next number, and Decode keeps reading
// this one (testdata/v1 holds records written by it).
const encodingCBOR = 1

var (
	encMode = must(cbor.EncOptions{Time: cbor.TimeRFC3339NanoUTC, Sort: cbor.SortNone}.UserBufferEncMode())
	decMode = must(cbor.DecOptions{DupMapKey: cbor.DupMapKeyEnforcedAPF, MaxArrayElements: 1 << 20, MaxMapPairs: 1 << 20}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Encode returns the stored form of a record. It panics on a value that CBOR cannot express, which is a mistake in the program.
func Encode(record any) []byte {
	var b bytes.Buffer
	b.WriteByte(encodingCBOR)
	if err := encMode.MarshalToBuffer(record, &b); err != nil {
		panic(fmt.Sprintf("store: encode %T: %v", record, err))
	}
	return b.Bytes()
}

// Decode reads a stored record, in any encoding that was ever written. Anything else is ErrCorrupt.
func Decode(b []byte, record any) error {
	if len(b) == 0 || b[0] != encodingCBOR {
		return fmt.Errorf("%w: unknown encoding", ErrCorrupt)
	}
	if err := decMode.Unmarshal(b[1:], record); err != nil {
		return fmt.Errorf("%w: %T: %w", ErrCorrupt, record, err)
	}
	return nil
}
