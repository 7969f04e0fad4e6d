// SPDX-License-Identifier: Apache-2.0

package bpffs

import (
	"errors"
	"io/fs"
	"os"
)

// PinOver pins an object in the place of what is pinned there.
func PinOver(o interface {
	Pin(string) error
	Unpin() error
}, path string) error {
	// The object believes that it is pinned where it was pinned first; here that is never true any
	// more.
	if err := o.Unpin(); err != nil {
		return err
	}
	next := path + "-next" // no map's name, and bpffs takes no dots
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := o.Pin(next); err != nil {
		return err
	}
	return os.Rename(next, path)
}
