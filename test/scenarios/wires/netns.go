// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// uplinkName is that of the uplink, as config finds it by default.
const uplinkName = "eth0"

// place is a node's namespace and the one with the other ends of its interfaces. Neither has a
// name; both end with the test.
type place struct {
	node, far netns.NsHandle
	port      *port
	farOf     map[int]int // the other end's index, by the index in the node
	nodeOf    map[int]int
	names     map[int]string
	mtus      map[int]int
	waiting   map[int]bool      // interfaces, by the index in the node, that may not carry anything yet
	arrived   *kernel.PacketLog // what the node's own stack would take
}

// newPlace makes the namespaces, and nothing in them but the path for markers.
func newPlace() (_ *place, err error) {
	p := &place{node: netns.None(), far: netns.None(), farOf: map[int]int{}, nodeOf: map[int]int{}, names: map[int]string{}, mtus: map[int]int{}, waiting: map[int]bool{}}
	defer func() {
		if err != nil {
			_ = p.close()
		}
	}()
	err = aside(func() error {
		if p.far, err = netns.New(); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		// Nobody lives at the other ends: they must not speak by themselves.
		for _, path := range [][]string{{"net", "ipv6", "conf", "all", "disable_ipv6"}, {"net", "ipv6", "conf", "default", "disable_ipv6"}} {
			if _, err := kernel.SetSysctl(1, path...); err != nil {
				return err
			}
		}
		fence, err := pair("fence0", "fence1")
		if err != nil {
			return err
		}
		if p.port, err = newPort(fence); err != nil {
			return err
		}
		if p.node, err = netns.New(); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		// No interface of it says anything at random times: no duplicate address detection, no
		// solicitation of routers.
		for _, path := range [][]string{{"net", "ipv6", "conf", "default", "accept_dad"}, {"net", "ipv6", "conf", "default", "router_solicitations"},
			{"net", "ipv6", "conf", "default", "autoconf"}} {
			if _, err := kernel.SetSysctl(0, path...); err != nil {
				return err
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return err
		}
		if err := stopArrivals(); err != nil {
			return err
		}
		p.arrived, err = kernel.OpenPacketLog(arrivalGroup, 0xffff)
		return err
	})
	return p, err
}

// pair makes two ends in the calling thread's namespace.
func pair(a, b string) (index [2]int, _ error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: b}); err != nil {
		return index, fmt.Errorf("make a pair of interfaces: %w", err)
	}
	for i, name := range []string{a, b} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return index, fmt.Errorf("set interface %s up: %w", name, err)
		}
		index[i] = l.Attrs().Index
	}
	return index, errors.Join(awaitUp(index[0]), awaitUp(index[1]))
}

// awaitUp waits until the kernel has made an interface ready to send: it does that some time after
// both ends were set up, and drops what is sent before. Call it inside of the interface's
// namespace.
func awaitUp(index int) error {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		l, err := netlink.LinkByIndex(index)
		switch {
		case err != nil:
			return fmt.Errorf("interface %d: %w", index, err)
		case l.Attrs().OperState == netlink.OperUp:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("interface %s is not ready to send", l.Attrs().Name)
		}
	}
}

// aside runs do on a thread of its own that may change its namespace and stays on one CPU, and
// comes back.
func aside(do func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find the own network namespace: %w", err)
	}
	defer home.Close()
	var cpus, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find the own CPUs: %w", err)
	}
	for i := range 1024 {
		if cpus.IsSet(i) {
			one.Set(i)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("stay on one CPU: %w", err)
	}
	err = do()
	if back := errors.Join(unix.SchedSetaffinity(0, &cpus), netns.Set(home)); back != nil {
		// The thread stays locked, and ends with its goroutine: nobody else runs in a foreign
		// namespace.
		return errors.Join(err, fmt.Errorf("return to the own network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// in runs do inside of the node's namespace.
func (p *place) in(do func() error) error { return inside(p.node, do) }

func inside(ns netns.NsHandle, do func() error) error {
	return aside(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return do()
	})
}

func (p *place) close() error {
	var errs []error
	if p.port != nil {
		errs = append(errs, p.port.close())
	}
	if p.arrived != nil {
		errs = append(errs, p.arrived.Close())
	}
	for _, ns := range []*netns.NsHandle{&p.node, &p.far} {
		if ns.IsOpen() {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}

// link makes sure that an interface of that index and name is there, with its other end in the far
// namespace. Call it inside.
func (p *place) link(index int, name string, mac net.HardwareAddr) error {
	if p.farOf[index] != 0 {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index, attrs.HardwareAddr = name, index, mac
	other := fmt.Sprintf("far%d", index)
	v := &netlink.Veth{LinkAttrs: attrs, PeerName: other, PeerNamespace: netlink.NsFd(p.far)}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("make interface %s: %w", name, err)
	}
	if err := wholeChecksums(name); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(v); err != nil {
		return fmt.Errorf("set interface %s up: %w", name, err)
	}
	err := inside(p.far, func() error {
		l, err := netlink.LinkByName(other)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err == nil {
			p.farOf[index], p.nodeOf[l.Attrs().Index] = l.Attrs().Index, index
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the other end of interface %s: %w", name, err)
	}
	p.names[index], p.waiting[index] = name, true
	return nil
}

// ready waits until both ends of the new interfaces can send. Call it inside.
func (p *place) ready() error {
	for index := range p.waiting {
		if err := awaitUp(index); err != nil {
			return err
		}
		if err := inside(p.far, func() error { return awaitUp(p.farOf[index]) }); err != nil {
			return err
		}
		delete(p.waiting, index)
	}
	return nil
}

// wholeChecksums makes the kernel compute the checksums of what leaves an interface, as a real
// device does. Call it inside.
func wholeChecksums(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return fmt.Errorf("interface %s: compute checksums: %w", name, errno)
	}
	return nil
}

// unlink removes an interface. Call it inside.
func (p *place) unlink(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err == nil {
		err = netlink.LinkDel(l)
	}
	delete(p.nodeOf, p.farOf[index])
	delete(p.farOf, index)
	delete(p.names, index)
	delete(p.mtus, index)
	delete(p.waiting, index)
	return err
}

// uplink makes the uplink with a machine's addresses in its subnets, and the default routes. Call
// it inside.
func (p *place) uplink(m *scenario.Machine) error {
	if p.farOf[scenario.Uplink] != 0 {
		return nil
	}
	if err := p.link(scenario.Uplink, uplinkName, m.MAC[:]); err != nil {
		return err
	}
	l, err := netlink.LinkByIndex(scenario.Uplink)
	if err != nil {
		return err
	}
	for _, s := range m.Subnets {
		addr := m.Like(s.Addr())
		ip := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(s.Bits(), addr.BitLen())}
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s: %w", ip, err)
		}
	}
	for _, addr := range []netip.Addr{m.Addr, m.Addr6} {
		if !addr.IsValid() {
			continue
		}
		gateway := m.Gateway(addr)
		if !gateway.IsValid() {
			continue
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: scenario.Uplink, Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("add the default route by %s: %w", gateway, err)
		}
	}
	return nil
}

// pod leads to a pod by its interface, as the CNI plugin does: no IPv6 of the kernel's own to speak
// of, forwarding, reverse-path checks that Service addresses pass, the route and the neighbour.
// Call it inside.
func (p *place) pod(index int, a netip.Addr, mac [6]byte) error {
	name := p.names[index]
	set := func(value int, path ...string) error {
		_, err := kernel.SetSysctl(value, append([]string{"net"}, path...)...)
		return err
	}
	errs := []error{set(2, "ipv4", "conf", name, "rp_filter"), set(1, "ipv4", "conf", name, "forwarding")}
	if a.Is6() {
		errs = append(errs, set(0, "ipv6", "conf", name, "accept_ra"), set(1, "ipv6", "conf", name, "forwarding"))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	dst := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: index, Dst: dst, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add a route to pod %s: %w", a, err)
	}
	return p.neighbour(index, a, mac)
}

// mtu sets the MTU of an interface, at both ends. Call it inside.
func (p *place) mtu(index, mtu int) error {
	if p.mtus[index] == mtu || p.mtus[index] == 0 && mtu == scenario.DefaultMTU {
		return nil
	}
	set := func(index int) error {
		l, err := netlink.LinkByIndex(index)
		if err == nil {
			err = netlink.LinkSetMTU(l, mtu)
		}
		return err
	}
	if err := errors.Join(set(index), inside(p.far, func() error { return set(p.farOf[index]) })); err != nil {
		return fmt.Errorf("set the MTU of interface %d to %d: %w", index, mtu, err)
	}
	p.mtus[index] = mtu
	return nil
}

// neighbour announces to the node who has an address on one of its links, for good; what waited for
// it goes out. Call it inside.
func (p *place) neighbour(index int, a netip.Addr, mac [6]byte) error {
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	err := netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: net.HardwareAddr(mac[:])})
	if err != nil {
		return fmt.Errorf("announce who %s is: %w", a, err)
	}
	return nil
}
