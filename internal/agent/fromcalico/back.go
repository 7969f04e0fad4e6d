// SPDX-License-Identifier: Apache-2.0

package fromcalico

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
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

// HandBack makes Weir's routes to what is on other nodes those of BIRD, where Calico's runs by now.
// It could not write what another program routes. At its next look at the kernel's table it keeps
// those that it knows itself, and removes others; nothing goes another way meanwhile.
func HandBack() error {
	found, err := birdRoutes()
	if err != nil || len(found) == 0 {
		return err
	}
	ways, err := hostnet.Ways()
	if err != nil {
		return err
	}
	tunnel, err := netlink.LinkByName(ipipDevice)
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("look at device %s: %w", ipipDevice, err)
	}
	var errs []error
	if tunnel != nil && tunnel.Attrs().Alias == ipipKept {
		errs = append(errs, netlink.LinkSetAlias(tunnel, ""))
	}
	for _, w := range ways {
		link := w.Link
		if w.IPIP {
			if tunnel == nil || tunnel.Attrs().Flags&net.FlagUp == 0 {
				continue // Calico sends another way
			}
			link = tunnel.Attrs().Index
		}
		to := &net.IPNet{IP: w.Prefix.Addr().AsSlice(), Mask: net.CIDRMask(w.Prefix.Bits(), 32)}
		errs = append(errs, replace(to, link, w.Via.AsSlice(), 0, birdProtocol))
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
