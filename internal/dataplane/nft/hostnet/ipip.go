// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// IPIPDevice is the device of IP in IP, in external mode as that of VXLAN: routes say to which
// node. The eBPF data plane has none.
const IPIPDevice = "weir-ipip"

// ErrNoIPIP says that the kernel has no such device.
var ErrNoIPIP = errors.New("this kernel has no device of IP in IP (CONFIG_NET_IPIP, module ipip)")

// OpenIPIP makes the device for a state that takes IP in IP, down, where it is not there yet.
func (m *Network) OpenIPIP(s *nodestate.State) error {
	mtu := s.Settings.IPIP.MTU
	if mtu <= 0 {
		mtu = defaultMTU - ipipOverhead
	}
	d, err := ensureIPIP(mtu)
	if err != nil {
		return err
	}
	m.ipip = d
	if m.beside != nil {
		if m.ownBeside, err = addressBeside(d); err != nil {
			return err
		}
	}
	if d.mtu == mtu {
		return nil
	}
	return setMTU(IPIPDevice, mtu)
}

// TakeIPIP has the device take IP in IP before the first state does, in the place of another one
// that the machine has for it: of several that take it from anybody the kernel chooses the one that
// was made last. Rules that are in force already evaluate what comes out. own is the address by
// which nodes with the other plugin know this one inside of the tunnel.
func TakeIPIP(mtu int, own netip.Addr) error {
	d, err := ensureIPIP(mtu)
	if err != nil {
		return err
	}
	if err := haveBeside(d, own); err != nil {
		return err
	}
	return errors.Join(kernel.TrustDevice(IPIPDevice), setUp(IPIPDevice))
}

// ensureIPIP returns the device, which has the MTU if it is made now.
func ensureIPIP(mtu int) (*device, error) {
	d, err := findDevice(IPIPDevice)
	if err != nil || d != nil {
		return d, err
	}
	if err := addIPIP(mtu); err != nil {
		return nil, err
	}
	if err := kernel.DressDevice(IPIPDevice); err != nil {
		return nil, errors.Join(err, removeDevice(IPIPDevice))
	}
	if d, err = findDevice(IPIPDevice); err != nil || d == nil {
		return nil, errors.Join(err, fmt.Errorf("device %s is not there after it was made", IPIPDevice))
	}
	return d, nil
}

func addIPIP(mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = IPIPDevice, mtu
	err := netlink.LinkAdd(&netlink.Iptun{LinkAttrs: attrs, FlowBased: true})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoIPIP
	}
	if err != nil {
		return fmt.Errorf("making device %s: %w", IPIPDevice, err)
	}
	return nil
}

// ProbeIPIP asks the kernel for the device, in a network namespace that is made for that:
// ErrNoIPIP = it has none.
func ProbeIPIP() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err != nil {
			done <- fmt.Errorf("making a network namespace: %w", err)
			return
		}
		done <- addIPIP(defaultMTU - ipipOverhead)
	}()
	return <-done
}

const ipipOverhead = 20 // bytes: the outer header

// prepareIPIP is Prepare's part: the device is there while a state takes IP in IP.
func (m *Network) prepareIPIP(s *nodestate.State) error {
	if s.Settings.IPIP.Accept {
		return m.OpenIPIP(s)
	}
	m.ipip = nil
	return removeIfOurs(IPIPDevice)
}

// IPIPIndex is the index of the device of IP in IP; 0 = there is none.
func (m *Network) IPIPIndex() int {
	if m.ipip == nil {
		return 0
	}
	return m.ipip.index
}

// through is the route to a node by a tunnel: by IP in IP, where that is wanted and there, else by
// VXLAN. false = there is none.
func (m *Network) through(s *nodestate.State, node netip.Addr, ipip bool) (route, bool) {
	switch {
	case ipip && m.ipip != nil && node.Is4():
		return route{link: m.ipip.index, mtu: s.Settings.IPIP.MTU, src: table.Family{}.Node(s), remote: node, inner: m.sourceBeside(s, node)}, true
	case m.tunnel != nil:
		return m.tunnelRoute(s, node), true
	}
	return route{}, false
}

// handsOn is the route by which packets are handed on to a node through a tunnel: some nodes cannot
// take IP in IP.
func (m *Network) handsOn(s *nodestate.State, node netip.Addr) (route, bool) {
	return m.through(s, node, s.Settings.IPIP.HandOn && !s.Addrs[node].NoIPIP)
}

// RemoveIPIP takes away the device, which the other data plane does not use.
func RemoveIPIP() error {
	if err := removeIfOurs(IPIPDevice); err != nil {
		return &dataplane.KeyError{Table: "devices", Key: IPIPDevice, Err: err}
	}
	return nil
}
