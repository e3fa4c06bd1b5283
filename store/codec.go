package store

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// encodingJSON is the first byte of every record: JSON with the short names of records.go. A later encoding takes the next
// number, and Decode keeps reading this one (testdata/v1 holds records written by it).
const encodingJSON = 1

// Encode returns the stored form of a record. It panics on a value that JSON cannot express, which is a mistake in the program.
func Encode(record any) []byte {
	var b bytes.Buffer
	b.WriteByte(encodingJSON)
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // canonical arguments are stored byte for byte, with their < and &
	if err := enc.Encode(record); err != nil {
		panic(fmt.Sprintf("store: encode %T: %v", record, err))
	}
	return b.Bytes()[:b.Len()-1]
}

// Decode reads a stored record, in any encoding that was ever written. Anything else is ErrCorrupt.
func Decode(b []byte, record any) error {
	if len(b) == 0 || b[0] != encodingJSON {
		return fmt.Errorf("%w: unknown encoding", ErrCorrupt)
	}
	if err := json.Unmarshal(b[1:], record); err != nil {
		return fmt.Errorf("%w: %T: %w", ErrCorrupt, record, err)
	}
	return nil
}
