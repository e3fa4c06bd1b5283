package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pawlhost/pawl/host"
)

// devKeysFile holds the keys of a --dev host: one flat object from principal to key.
const devKeysFile = "dev-keys.json"

// devHostKeyFile is the host key of a --dev host. It is made before the database.
const devHostKeyFile = "host.key"

// devPeople are the principals of a --dev host.
var devPeople = []struct{ tenant, name, role string }{
	{"demo", "owner", host.RoleOwner},
	{"demo", "admin", host.RoleAdmin},
	{"demo", "member", host.RoleMember},
	{"demo", "member2", host.RoleMember},
	{"other", "other_admin", host.RoleAdmin},
	{"other", "other_member", host.RoleMember},
}

// devKeys makes sure that file holds a good key for each principal. Keys survive restarts: one that still works is
// kept. A process that dies between making a key and writing the file leaves a key that nobody knows, which is harmless.
func devKeys(ctx context.Context, h *host.Host, file string) error {
	keys := map[string]string{}
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		if err := json.Unmarshal(raw, &keys); err != nil {
			return fmt.Errorf("%s is damaged (%w): delete it, and new keys are made", file, err)
		}
	}
	changed := false
	for _, p := range devPeople {
		// Whoever was demoted or disabled meanwhile stays so: the key is there, and that is all that is asked.
		kept, err := h.HasKey(ctx, keys[p.name], p.tenant, p.name)
		if err != nil {
			return err
		}
		if kept {
			continue
		}
		k, err := h.EnsureKey(ctx, p.tenant, host.NewKey{Principal: p.name, Roles: []string{p.role}, Kind: host.KindUser})
		if err != nil {
			return err
		}
		keys[p.name] = k.Key
		changed = true
	}
	if !changed {
		return os.Chmod(file, 0o600)
	}
	text, err := json.MarshalIndent(keys, "", "  ")
	if err != nil {
		return err
	}
	return writeSecret(file, append(text, '\n'))
}

// devHostKey reads the host key of a --dev host, or makes it. It lies outside the database: who copies that has no tokens.
func devHostKey(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err == nil {
		if err := os.Chmod(file, 0o600); err != nil {
			return "", err
		}
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	key := randomHostKey()
	return key, writeSecret(file, []byte(key+"\n"))
}

func randomHostKey() string {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails: it ends the program instead
	return hex.EncodeToString(secret)
}

// writeSecret replaces file with data that only its owner can read. A reader sees the old or the new bytes, and a crash leaves
// one of them: the new ones are on the disk before they get the name.
func writeSecret(file string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.tmp") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, werr := f.Write(data)
	if err := errors.Join(werr, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
