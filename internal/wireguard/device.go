// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// The implementations of a device, as a NodeStatus names them.
const (
	InKernel    = "kernel"
	InUserSpace = "wireguard-go"
)

// ErrNoDevice: the kernel has no WireGuard, and no process of wireguard-go has made the device.
var ErrNoDevice = errors.New("this kernel has no WireGuard (CONFIG_WIREGUARD, since Linux 5.6), and no weir-wireguard runs on this node that would have it in user space")

// ErrForeign: somebody else has what is needed.
var ErrForeign = errors.New("belongs to somebody else")

// find returns our device of a name; nil = there is none.
func find(name string) (netlink.Link, error) {
	l, err := kernel.FindDevice(name)
	if errors.Is(err, kernel.ErrForeignDevice) {
		return nil, fmt.Errorf("the device %s %w (it lacks the alias %q): rename or remove it, or set wireguardInterfaceName", name, ErrForeign, kernel.DeviceAlias)
	}
	return l, err
}

// ensureDevice makes the kernel's device, and returns it, or that of user space where there is one.
func ensureDevice(name string, mtu int) (netlink.Link, string, error) {
	l, err := find(name)
	if err != nil {
		return nil, "", err
	}
	if l == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, mtu
		err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			return nil, InUserSpace, ErrNoDevice
		case err != nil:
			return nil, "", fmt.Errorf("making the device %s: %w", name, err)
		}
		if err := kernel.DressDevice(name); err != nil {
			return nil, "", errors.Join(err, netlink.LinkDel(&netlink.Wireguard{LinkAttrs: attrs}))
		}
		if l, err = find(name); err != nil || l == nil {
			return nil, "", errors.Join(fmt.Errorf("the device %s went as soon as it was made", name), err)
		}
	}
	by := InUserSpace
	if l.Type() == "wireguard" {
		by = InKernel
	}
	if l.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return nil, "", fmt.Errorf("setting the MTU of %s to %d: %w", name, mtu, err)
		}
	}
	return l, by, nil
}

// open brings a device up and lets packets of peers in by it.
func open(l netlink.Link, six bool) error {
	name := l.Attrs().Name
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(l); err != nil {
			if errors.Is(err, unix.EADDRINUSE) {
				return fmt.Errorf("the UDP port of %s %w", name, ErrForeign)
			}
			return fmt.Errorf("bringing %s up: %w", name, err)
		}
	}
	if six {
		for setting, v := range map[string]int{"disable_ipv6": 0, "accept_ra": 0} {
			if _, err := kernel.SetSysctl(v, "net", "ipv6", "conf", name, setting); err != nil {
				return err
			}
		}
	}
	return kernel.TrustDevice(name)
}

// configure makes a device's key, port and peers equal to what is wanted, and leaves peers that are
// as they should be alone: their sessions go on. It returns the silent ones.
func configure(name string, key wgtypes.Key, w *nodestate.WireGuard) (silent []wgtypes.Key, err error) {
	c, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("opening WireGuard's interface: %w", err)
	}
	defer c.Close()
	have, err := c.Device(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the device %s is there, and nobody answers for it: %w", name, ErrNoDevice)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the device %s: %w", name, err)
	}
	var cfg wgtypes.Config
	if have.PrivateKey != key {
		cfg.PrivateKey = &key
	}
	if port := int(w.Port); have.ListenPort != port {
		if err := isFree(w.Port); err != nil {
			return nil, err
		}
		cfg.ListenPort = &port
	}
	p, err := planPeers(have, w)
	if err != nil {
		return nil, err
	}
	if cfg.PrivateKey != nil && have.PrivateKey != (wgtypes.Key{}) {
		p.beginAnew(have, time.Duration(w.KeepAlive)*time.Second)
	}
	cfg.Peers = p.peers
	if cfg.PrivateKey == nil && cfg.ListenPort == nil && len(cfg.Peers) == 0 {
		return p.silent, nil
	}
	// An address is one peer's: those that go give it up first.
	slices.SortStableFunc(cfg.Peers, func(x, y wgtypes.PeerConfig) int {
		switch {
		case x.Remove == y.Remove:
			return 0
		case x.Remove:
			return -1
		}
		return 1
	})
	if err := c.ConfigureDevice(name, cfg); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("UDP port %d of %s %w", w.Port, name, ErrForeign)
		}
		return nil, fmt.Errorf("configuring the device %s: %w", name, err)
	}
	if len(p.begin) == 0 {
		return p.silent, nil
	}
	// A keep-alive that is switched on is sent at once, and begins the handshake: of two nodes that
	// get to know each other the later one reaches the other. Without it a packet that came before
	// would be the last for five seconds.
	if err := c.ConfigureDevice(name, wgtypes.Config{Peers: p.begin}); err != nil {
		return nil, fmt.Errorf("configuring the device %s: %w", name, err)
	}
	return p.silent, nil
}

// isFree says whose a port is that a device is to have. wireguard-go reports nowhere that it could
// not have it.
func isFree(port uint16) error {
	for _, network := range []string{"udp4", "udp6"} {
		c, err := net.ListenUDP(network, &net.UDPAddr{Port: int(port)})
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("UDP port %d %w", port, ErrForeign)
		}
		if err == nil {
			c.Close()
		}
	}
	return nil
}

// remove deletes our device of a name, if it is there.
func remove(name string) error {
	l, err := find(name)
	if err != nil || l == nil {
		return nil // somebody else's is nobody's concern
	}
	if err := netlink.LinkDel(l); err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("removing the device %s: %w", name, err)
	}
	return nil
}
