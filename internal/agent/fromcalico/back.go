// SPDX-License-Identifier: Apache-2.0

package fromcalico

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/kernel"
)

// Leave gives the interfaces of pods back to Calico, whose daemon carries them already: their
// aliases say that they were Weir's.
func Leave() error {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if !strings.HasPrefix(l.Attrs().Alias, kernel.DeviceAlias+":") {
			continue
		}
		if err := netlink.LinkSetAlias(l, cni.AliasBefore+l.Attrs().Alias); err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
			errs = append(errs, fmt.Errorf("change the alias of %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// Forget removes what was set aside of other plugins' network configurations: their installers
// write it anew.
func Forget(confDir string) error {
	found, err := filepath.Glob(filepath.Join(confDir, "*"+Aside))
	errs := []error{err}
	for _, path := range found {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
