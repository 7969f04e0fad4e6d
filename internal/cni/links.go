// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

const netlinkTimeout = 10 * time.Second

// Numbers of linux/ip.h (IPV4_DEVCONF_*), linux/if_link.h and linux/in6.h.
const (
	devconfForwarding = 1
	devconfProxyARP   = 3
	devconfRPFilter   = 8
	inetConf          = 1 // IFLA_INET_CONF
	inet6AddrGenMode  = 8 // IFLA_INET6_ADDR_GEN_MODE
	genModeNone       = 1 // IN6_ADDR_GEN_MODE_NONE
	maxAlias          = 255
)

// hostName is the name of a pod's interface on the host, as the field has it: the prefix and the
// first 11 hexadecimal digits of the SHA-1 of "namespace.name". Interfaces of another name than
// eth0 hash theirs too.
func hostName(prefix string, pod model.Name, ifname string) string {
	text := pod.Namespace + "." + pod.Name
	if ifname != "eth0" {
		text += "." + ifname
	}
	sum := sha1.Sum([]byte(text))
	return prefix + hex.EncodeToString(sum[:])[:11]
}

// alias says on the interface itself whose it is: "weir:namespace/pod/container", with "/ifname"
// when that is not eth0. Names too long for the kernel are replaced by their hash.
func alias(pod model.Name, container, ifname string) string {
	text := "weir:" + pod.Namespace + "/" + pod.Name + "/" + container
	if ifname != "eth0" {
		text += "/" + ifname
	}
	if len(text) > maxAlias {
		sum := sha1.Sum([]byte(text))
		text = "weir:#" + hex.EncodeToString(sum[:])
	}
	return text
}

// parseAlias is alias backwards. ok is false for interfaces that are not ours, or whose alias is a
// hash.
func parseAlias(text string) (pod model.Name, container, ifname string, ok bool) {
	rest, found := strings.CutPrefix(text, "weir:")
	parts := strings.Split(rest, "/")
	if !found || len(parts) < 3 || len(parts) > 4 {
		return model.Name{}, "", "", false
	}
	ifname = "eth0"
	if len(parts) == 4 {
		ifname = parts[3]
	}
	return model.Name{Namespace: parts[0], Name: parts[1]}, parts[2], ifname, true
}

func parseMAC(text string) (mac [6]byte) {
	if hw, err := net.ParseMAC(text); err == nil && len(hw) == 6 {
		copy(mac[:], hw)
	}
	return mac
}

// newMAC returns a random locally administered unicast address.
func newMAC() string {
	var b [6]byte
	rand.Read(b[:])
	b[0] = b[0]&^1 | 2
	return net.HardwareAddr(b[:]).String()
}

// hostLinks are netlink sockets in the host's network namespace.
type hostLinks struct {
	*netlink.Handle
	raw *nl.SocketHandle
	ns  *netns.NsHandle // nil: the process's own
}

func openHost(ns *netns.NsHandle) (*hostLinks, error) {
	at := netns.None()
	if ns != nil {
		at = *ns
	}
	h, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := h.SetSocketTimeout(netlinkTimeout); err != nil {
		h.Close()
		return nil, err
	}
	raw, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, err
	}
	return &hostLinks{Handle: h, raw: &nl.SocketHandle{Socket: raw}, ns: ns}, nil
}

func (h *hostLinks) close() {
	h.Handle.Close()
	h.raw.Socket.Close()
}

// byName returns a link, or nil when there is none.
func (h *hostLinks) byName(name string) (netlink.Link, error) {
	l, err := h.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", name, err)
	}
	return l, nil
}

// remove deletes an interface; one that is gone is fine.
func (h *hostLinks) remove(l netlink.Link) error {
	if err := h.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// silence shuts an interface: nothing comes by it any more, what had come has been evaluated.
func (h *hostLinks) silence(l netlink.Link) error {
	if err := h.LinkSetDown(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("set interface %s down: %w", l.Attrs().Name, err)
	}
	return nil
}

// label sets the alias and settings of a host side in one message: forwarding, loose reverse path
// (the programs check the source; answers come from Service addresses before they are translated),
// no proxy ARP. With v6 it gets no link-local address, so it announces nothing to the pod.
func (h *hostLinks) label(ifindex int, text string, v6 bool) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: h.raw}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(ifindex)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(text)))
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil)
	for id, v := range map[int]uint32{devconfForwarding: 1, devconfProxyARP: 0, devconfRPFilter: 2} {
		conf.AddRtAttr(id, nl.Uint32Attr(v))
	}
	if v6 {
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(inet6AddrGenMode, nl.Uint8Attr(genModeNone))
	}
	req.AddData(spec)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// ipv6 sets the kernel's own IPv6 on a host side: off where the pod has no address of that family
// (a kernel without IPv6 is fine then); else as of a router that takes no advertisements from the
// pod.
func (h *hostLinks) ipv6(name string, wanted bool) error {
	return h.inside(func() error {
		if !wanted {
			_, err := kernel.DisableIPv6(name)
			return err
		}
		return setIPv6(name, sysctl{"accept_ra", 0}, sysctl{"forwarding", 1}, sysctl{"disable_ipv6", 0})
	})
}

// sysctl is a setting below net/ipv6/conf/<interface>.
type sysctl struct {
	name  string
	value int
}

// setIPv6 sets them in the network namespace of this thread.
func setIPv6(ifname string, settings ...sysctl) error {
	for _, s := range settings {
		if _, err := kernel.SetSysctl(s.value, "net", "ipv6", "conf", ifname, s.name); err != nil {
			return fmt.Errorf("IPv6 of %s: %w", ifname, err)
		}
	}
	return nil
}

func (h *hostLinks) inside(f func() error) error {
	if h.ns == nil {
		return f()
	}
	return kernel.InNetns(int(*h.ns), f)
}

// awaitCarrier waits until the kernel sends by a link that was set up. It notices the carrier of a
// veth pair in a worker of its own, and drops what is sent earlier; since Linux 6.8 asking for the
// link is enough.
func awaitCarrier(ctx context.Context, h *netlink.Handle, ifindex int) error {
	for {
		l, err := h.LinkByIndex(ifindex)
		if err != nil {
			return err
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("no carrier on %s: %w", l.Attrs().Name, ctx.Err())
		}
	}
}

// route makes a pod's address reachable from the host: a route to the interface, and a permanent
// neighbour entry so that nothing has to ask the pod.
func (h *hostLinks) route(ifindex int, a netip.Addr, mac string, protocol int) error {
	dst := hostNet(a)
	err := h.RouteReplace(&netlink.Route{LinkIndex: ifindex, Dst: &dst, Scope: netlink.SCOPE_LINK, Protocol: netlink.RouteProtocol(protocol)})
	if err != nil {
		return fmt.Errorf("route to %s: %w", a, err)
	}
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	if err := h.NeighSet(&netlink.Neigh{LinkIndex: ifindex, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: hw}); err != nil {
		return fmt.Errorf("neighbour entry of %s: %w", a, err)
	}
	return nil
}

func hostNet(a netip.Addr) net.IPNet {
	return net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
