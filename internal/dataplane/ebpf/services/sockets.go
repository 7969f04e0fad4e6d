// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// A UDP socket of a host process that connected to a Service was given a backend for good: no
// program sees what it sends. When its backend goes, the socket is ended (SOCK_DESTROY of
// sock_diag): its next call fails, and whoever owns it connects again. Sockets of pods are never
// given a backend that way.

// lostBackend is a UDP backend that is going from a service port.
type lostBackend[A abi.Address] struct {
	svc     abi.SvcKey[A]
	backend abi.Backend[A]
}

// Lost are UDP backends that are going from service ports.
type Lost[A abi.Address] map[lostBackend[A]]bool

// Lost returns the UDP backends that the pending deletes take away.
func (s *Tables[A]) Lost() Lost[A] {
	var out Lost[A]
	for k := range s.live.Tracker.Deletes() {
		if k.Svc.Proto != uint8(model.ProtocolUDP) {
			continue
		}
		if out == nil {
			out = Lost[A]{}
		}
		out[lostBackend[A]{k.Svc, k.Backend}] = true
	}
	return out
}

// EndSockets ends the connected UDP sockets of this network namespace that were given one of these
// backends, by weir_sockets (SOCK_DESTROY of sock_diag), and returns how many. What cannot be ended
// does not keep the others from it.
func (lost Lost[A]) EndSockets(sockets *ebpf.Map) (int, error) {
	if len(lost) == 0 {
		return 0, nil
	}
	gone := map[netip.AddrPort]bool{}
	for l := range lost {
		gone[netip.AddrPortFrom(abi.FromAddr(l.backend.Addr), abi.Be16(l.backend.Port))] = true
	}
	ended := 0
	var errs []error
	kinds := []uint8{unix.AF_INET6} // a socket of IPv6 may carry IPv4
	if abi.Carries[A](netip.IPv4Unspecified()) {
		kinds = append(kinds, unix.AF_INET)
	}
	for _, family := range kinds {
		all, err := kernel.Dump(func() ([]*netlink.Socket, error) { return netlink.SocketDiagUDP(family) })
		if err != nil {
			errs = append(errs, fmt.Errorf("listing UDP sockets: %w", err))
			continue
		}
		for _, s := range all {
			to, ok := netip.AddrFromSlice(s.ID.Destination)
			if !ok || !gone[netip.AddrPortFrom(to.Unmap(), s.ID.DestinationPort)] {
				continue
			}
			key := abi.SockKey[A]{Cookie: s.ID.Cookie, Addr: abi.ToAddr[A](to.Unmap()), Port: abi.Be16(s.ID.DestinationPort), Proto: uint16(model.ProtocolUDP)}
			var v abi.SockValue[A]
			if sockets.Lookup(&key, &v) != nil || !lost[lostBackend[A]{v.Svc, abi.Backend[A]{Addr: key.Addr, Port: key.Port}}] {
				continue // it has the backend's address, but not from us
			}
			switch err := destroySocket(family, s); {
			case err == nil:
				ended++
			case !errors.Is(err, unix.ENOENT): // else closed meanwhile
				errs = append(errs, fmt.Errorf("ending a UDP socket whose backend is gone: %w", err))
			}
		}
	}
	return ended, errors.Join(errs...)
}

// diagRequest is struct inet_diag_req_v2 of linux/inet_diag.h.
type diagRequest struct {
	family uint8
	id     netlink.SocketID
}

// Len is the size of struct inet_diag_req_v2, bytes.
func (r *diagRequest) Len() int { return 56 }

// Serialize returns the struct as the kernel takes it.
func (r *diagRequest) Serialize() []byte {
	b := make([]byte, 0, r.Len())
	b = append(b, r.family, unix.IPPROTO_UDP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 0xffffffff) // any state
	b = binary.BigEndian.AppendUint16(b, r.id.SourcePort)
	b = binary.BigEndian.AppendUint16(b, r.id.DestinationPort)
	b = append(b, r.address(r.id.Source)...)
	b = append(b, r.address(r.id.Destination)...)
	b = binary.NativeEndian.AppendUint32(b, r.id.Interface)
	b = binary.NativeEndian.AppendUint32(b, r.id.Cookie[0])
	return binary.NativeEndian.AppendUint32(b, r.id.Cookie[1])
}

// address returns the 16 bytes of an address, of which IPv4 uses the first four.
func (r *diagRequest) address(ip net.IP) []byte {
	out := make([]byte, 16)
	if r.family == unix.AF_INET {
		copy(out, ip.To4())
	} else {
		copy(out, ip.To16())
	}
	return out
}

func destroySocket(family uint8, s *netlink.Socket) error {
	req := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	req.AddData(&diagRequest{family: family, id: s.ID})
	_, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	return err
}
