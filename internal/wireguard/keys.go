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
		return newKey(dir, six)
	}
	return key, err
}

func readKey(dir string, six bool) (wgtypes.Key, error) {
	path := keyFile(dir, six)
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

// newKey makes a private key and stores it in the place of the one before.
func newKey(dir string, six bool) (wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("making a private key of WireGuard: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return wgtypes.Key{}, fmt.Errorf("making the folder of the private key of WireGuard: %w", err)
	}
	return key, statefile.Write(keyFile(dir, six), []byte(key.String()+"\n"), 0o600)
}

// RemoveKeys removes the private keys of a node: it gets others.
func RemoveKeys(stateDir string) error {
	var errs []error
	for _, six := range []bool{false, true} {
		if err := os.Remove(keyFile(Folder(stateDir), six)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Folder is where keys are below the folder that survives a reboot.
func Folder(stateDir string) string { return filepath.Join(stateDir, "wireguard") }

func publicKey(k wgtypes.Key) model.WireGuardKey { return model.WireGuardKey(k.PublicKey()) }
