package host

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/pawlhost/pawl/store"
)

// TokenKey is a key that resume tokens are made with. It comes from the operator and never from the store, so that the store
// holds nothing a thief could use.
type TokenKey struct {
	id     [4]byte
	secret []byte
}

// ParseTokenKeys reads PAWL_HOST_KEY: one or more keys of 64 hex digits (32 bytes), separated by commas or white space.
// The first signs, all verify: to rotate, put a new key in front and drop the old one when its pauses have ended.
func ParseTokenKeys(s string) ([]TokenKey, error) {
	var keys []TokenKey
	for i, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }) {
		secret, err := hex.DecodeString(f)
		if err != nil || len(secret) != 32 {
			return nil, fmt.Errorf("host key %d is not 64 hex digits; make one with: openssl rand -hex 32", i+1)
		}
		k := TokenKey{secret: secret}
		sum := sha256.Sum256(append([]byte("pawl key id\x00"), secret...))
		copy(k.id[:], sum[:])
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("no host key; make one with: openssl rand -hex 32")
	}
	return keys, nil
}

// A token is strict base64url, without padding, of: pause id (16 bytes), key id (4), HMAC-SHA256 (32) over tenant, run,
// pause and generation. It holds no secret of the store, so a reconnecting client is given it again; the commit that closes
// the pause consumes it, and rotation raises the generation.
const (
	tokenBytes = 16 + 4 + sha256.Size
	pausePre   = "pause_"
)

var tokenEncoding = base64.RawURLEncoding.Strict()

func (k TokenKey) mac(tenant, run, pause string, generation int) []byte {
	m := hmac.New(sha256.New, k.secret)
	m.Write([]byte("pawl resume token 1\x00"))
	m.Write([]byte(store.K(tenant, run, pause, generation))) // tuples: no two inputs share an encoding
	return m.Sum(nil)
}

func (h *Host) token(tenant, run string, p *store.Pause) string {
	id, err := uuid.Parse(strings.TrimPrefix(p.ID, pausePre))
	if err != nil {
		return ""
	}
	k := h.keys[0]
	b := append(append(id[:], k.id[:]...), k.mac(tenant, run, p.ID, p.Generation)...)
	return tokenEncoding.EncodeToString(b)
}

// parseToken returns the pause a token names, without having verified it.
func parseToken(token string) (pause string, keyID [4]byte, mac []byte, ok bool) {
	b, err := tokenEncoding.DecodeString(token)
	// The decoder skips line breaks: a token has one spelling.
	if err != nil || len(b) != tokenBytes || strings.ContainsAny(token, "\r\n") {
		return "", keyID, nil, false
	}
	copy(keyID[:], b[16:20])
	return pausePre + uuid.UUID(b[:16]).String(), keyID, b[20:], true
}

// verify reports whether the token was made for this pause: current, or superseded by a rotation.
func (h *Host) verify(tenant, run string, p *store.Pause, keyID [4]byte, mac []byte) (current, superseded bool) {
	for _, k := range h.keys {
		if k.id != keyID {
			continue
		}
		if hmac.Equal(mac, k.mac(tenant, run, p.ID, p.Generation)) {
			return true, false
		}
		for g := p.Generation - 1; g >= 0; g-- {
			if hmac.Equal(mac, k.mac(tenant, run, p.ID, g)) {
				return false, true
			}
		}
	}
	return false, false
}
