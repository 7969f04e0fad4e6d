// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/shape"
	"github.com/weir-net/weir/internal/kernel"
)

// Remove takes away what drivers left in the kernel below a folder of pins: links, whose programs
// are detached with them, maps, and filters of interfaces in this network namespace. Devices and
// routes stay, which another data plane uses. No driver may be open.
func Remove(root string) error {
	var errs []error
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	for _, l := range links {
		errs = append(errs, attach.RemoveFilters(l.Attrs().Index))
	}
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("looking for pins: %w", err))
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
			errs = append(errs, fmt.Errorf("removing pins: %w", err))
		}
	}
	return errors.Join(append(errs, shape.Remove(shape.Pair), conntrack.Release())...) // as long as programs translate, what they mark is led
}
