// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/kernel"
)

// disablePrograms lets the programs of some hooks pass everything, in this order.
func (g *exporters) disablePrograms(hooks ...attach.Hook) error {
	pins, err := os.ReadDir(bpffs.LinksDir(g.root))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for pinned links: %w", err)
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	var errs []error
	for _, h := range hooks {
		for _, pin := range pins {
			index, name, ok := strings.Cut(pin.Name(), "-")
			if _, err := strconv.Atoi(index); ok && err == nil && name == h.Name {
				errs = append(errs, g.disableLink(filepath.Join(bpffs.LinksDir(g.root), pin.Name())))
			}
		}
		for _, l := range links {
			errs = append(errs, attach.RemoveFilter(l.Attrs().Index, h))
		}
	}
	return errors.Join(errs...)
}

// disableLink replaces the program of a pinned link. To detach it would wait for a grace period of
// RCU.
func (g *exporters) disableLink(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the link %s: %w", path, err)
	}
	defer l.Close()
	if err := l.Update(g.passAll); err != nil && !errors.Is(err, unix.ENOLINK) {
		return fmt.Errorf("taking the program out of the link %s: %w", path, err)
	}
	return nil
}
