// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kernel"
)

// routed says what has an address by the kernel's routes, "" when it is no interface of a pod and
// not this machine.
func (s *Server) routed(a netip.Addr) (string, error) {
	routes, err := s.host.RouteGet(a.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return "", nil // there is no route, or one that refuses
	case err != nil:
		return "", fmt.Errorf("ask the kernel for the route to %s: %w", a, err)
	}
	for _, r := range routes {
		switch r.Type {
		case unix.RTN_LOCAL, unix.RTN_ANYCAST:
			return "it is an address of this machine", nil
		case unix.RTN_BROADCAST:
			return "it is the broadcast address of a network of this machine", nil
		}
		l, err := s.host.LinkByIndex(r.LinkIndex)
		if err != nil {
			return "", fmt.Errorf("look up interface %d, to which %s is routed: %w", r.LinkIndex, a, err)
		}
		if strings.HasPrefix(l.Attrs().Alias, "weir:") {
			return "the kernel sends it to interface " + l.Attrs().Name + " of a pod", nil
		}
	}
	return "", nil
}

// refuseMAC refuses a MAC address that a pod asks for and that somebody else has, as far as this
// machine knows: another pod, one of its own interfaces, or a machine on one of its links, such as
// a gateway or another node.
func (s *Server) refuseMAC(req ipam.Request) *wire.Error {
	mac, err := net.ParseMAC(req.MAC)
	if err != nil {
		return refusal(wire.CodeAnnotation, "pod %s: %v", req.PodName(), err)
	}
	refused := func(format string, args ...any) *wire.Error {
		return refusal(wire.CodeAnnotation, "pod %s: annotation %s: %s is the MAC address of "+format,
			append([]any{req.PodName(), annotationMAC, req.MAC}, args...)...)
	}
	for _, r := range s.IPAM.Records() {
		if strings.EqualFold(r.MAC, req.MAC) && r.PodName() != req.PodName() {
			return refused("pod %s", r.PodName())
		}
	}
	links, err := kernel.Dump(s.host.LinkList)
	if err != nil {
		return refusal(wire.CodeTryAgain, "read the interfaces of the host: %v", err)
	}
	pods := map[int]bool{}
	for _, l := range links {
		at := l.Attrs()
		if pods[at.Index] = strings.HasPrefix(at.Alias, "weir:"); !pods[at.Index] && bytes.Equal(at.HardwareAddr, mac) {
			return refused("interface %s of the node", at.Name)
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		neighs, err := kernel.Dump(func() ([]netlink.Neigh, error) { return s.host.NeighList(0, family) })
		if err != nil {
			return refusal(wire.CodeTryAgain, "read the neighbours of the host: %v", err)
		}
		for _, n := range neighs {
			if !pods[n.LinkIndex] && bytes.Equal(n.HardwareAddr, mac) {
				return refused("%s, a machine on a link of the node", n.IP)
			}
		}
	}
	return nil
}
