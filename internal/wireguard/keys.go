// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/model"
)

// keyFile is where the private key of a family is.
func keyFile(dir string, six bool) string {
	name := "private.key"
	if six {
		name = "private-ipv6.key"
	}
	return filepath.Join(dir, name)
}

// loadKey reads the private key of a family and makes one where there is none. One that cannot be
// read is an error: another one in its place would be another identity.
func loadKey(dir string, six bool) (wgtypes.Key, error) {
	key, err := readKey(dir, six)
	if errors.Is(err, fs.ErrNotExist) {
		return newKey(keyFile(dir, six))
	}
	return key, err
}

func readKey(dir string, six bool) (wgtypes.Key, error) {
	return readKeyFile(keyFile(dir, six))
}

func readKeyFile(path string) (wgtypes.Key, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("reading the private key of WireGuard: %w", err)
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("%s holds no private key of WireGuard; remove it, and the node gets another one: %w", path, err)
	}
	return key, os.Chmod(path, 0o600)
}

// nextKeyFile is where the private key is that a family is about to have.
func nextKeyFile(dir string, six bool) string { return keyFile(dir, six) + ".next" }

// nextKeys returns the public keys that this node was about to have when the agent ended.
func nextKeys(stateDir string) (out model.WireGuardKeys) {
	for _, six := range []bool{false, true} {
		if key, err := readKeyFile(nextKeyFile(Folder(stateDir), six)); err == nil {
			out = out.With(six, publicKey(key))
		}
	}
	return out
}

// newKey makes a private key and stores it in the place of the one before.
func newKey(path string) (wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("making a private key of WireGuard: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return wgtypes.Key{}, fmt.Errorf("making the folder of the private key of WireGuard: %w", err)
	}
	return key, statefile.Write(path, []byte(key.String()+"\n"), 0o600)
}

// RemoveKeys removes the private keys of a node: it gets others.
func RemoveKeys(stateDir string) error {
	var errs []error
	for _, six := range []bool{false, true} {
		for _, path := range []string{keyFile(Folder(stateDir), six), nextKeyFile(Folder(stateDir), six)} {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Folder is where keys are below the folder that survives a reboot.
func Folder(stateDir string) string { return filepath.Join(stateDir, "wireguard") }

func publicKey(k wgtypes.Key) model.WireGuardKey { return model.WireGuardKey(k.PublicKey()) }
