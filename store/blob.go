package store

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Digest names bytes by their content: "sha256:" and 64 lower-case hexadecimal digits.
type Digest string

// DigestOf returns the digest of data.
func DigestOf(data []byte) Digest {
	sum := sha256.Sum256(data)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// Valid reports whether d has the one form that DigestOf makes. Digests that arrive from outside are checked before they
// become part of a key.
func (d Digest) Valid() bool {
	h, ok := strings.CutPrefix(string(d), "sha256:")
	if !ok || len(h) != 2*sha256.Size || strings.ToLower(h) != h {
		return false
	}
	_, err := hex.DecodeString(h)
	return err == nil
}
