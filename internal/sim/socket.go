// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ErrRefused is what connect or sendmsg fails with for a service without a backend (ECONNREFUSED).
var ErrRefused = errors.New("connection refused: service has no usable backend")

// chosen is the backend that a socket got.
type chosen struct {
	svc     nodestate.Frontend
	backend nodestate.Backend
}

// Socket is a socket of a process on the node or in one of its pods.
type Socket struct {
	Cookie uint64
	Netns  uint64 // cookie of its network namespace; 0 = the node's own
	Proto  model.Protocol
}

type socketKey struct {
	cookie uint64
	to     netip.AddrPort
	proto  model.Protocol
}

// Connect is the hook connect: where a socket that asks for dst is really connected to. It fails
// with ErrRefused.
func (n *Node) Connect(s Socket, dst netip.AddrPort) (netip.AddrPort, error) {
	return n.ask(s, dst, s.Proto == model.ProtocolTCP && n.state.Settings.ConnectTime != model.ConnectTimeDisabled)
}

// Send is the hook sendmsg of a socket that is not connected: where a datagram to dst is really
// sent. It fails with ErrRefused.
func (n *Node) Send(s Socket, dst netip.AddrPort) (netip.AddrPort, error) {
	return n.ask(s, dst, n.state.Settings.ConnectTime == model.ConnectTimeEnabled)
}

// ask: wanted says that the mode asks for it; what never leaves the node's loopback device is
// balanced anyway.
func (n *Node) ask(s Socket, dst netip.AddrPort, wanted bool) (netip.AddrPort, error) {
	onHost := s.Netns == 0
	if !onHost && (!wanted || dst.Addr().IsLoopback()) {
		return dst, nil
	}
	svc, nodePort, ok := n.frontend(dst.Addr(), dst.Port(), s.Proto)
	stays := dst.Addr().IsLoopback() || n.kind(dst.Addr()) == nodestate.AddrHost
	if !ok || !wanted && !svc.HostBackend && !stays {
		return dst, nil
	}
	localOnly, ok := n.insideScope(svc, nodePort, dst.Addr())
	if !ok {
		return dst, nil
	}
	client := affinityKey{svc: svc.ID, client: n.self(dst.Addr())}
	if !onHost {
		client.client = n.state.Clients[s.Netns].Of(dst.Addr())
		if !client.client.IsValid() {
			client.cookie = s.Netns
		}
	}
	if !n.admits(svc, client.client) {
		return dst, nil // its packets will show it
	}
	before := n.chosen[socketKey{s.Cookie, dst, s.Proto}]
	if s.Proto == model.ProtocolUDP && before.svc == svc.ID && n.live(svc.ID, before.backend) {
		return netip.AddrPortFrom(before.backend.Addr, before.backend.Port), nil
	}
	b, ok := n.choose(svc, localOnly, client, nil)
	if !ok {
		return dst, ErrRefused
	}
	to := netip.AddrPortFrom(b.Addr, b.Port)
	if to != dst {
		n.sockets[socketKey{s.Cookie, to, s.Proto}] = dst
		n.chosen[socketKey{s.Cookie, dst, s.Proto}] = chosen{svc.ID, b}
	}
	return to, nil
}

// Peer is the hooks recvmsg and getpeername: the address that a socket sees as its peer.
func (n *Node) Peer(s Socket, from netip.AddrPort) netip.AddrPort {
	if asked, ok := n.sockets[socketKey{s.Cookie, from, s.Proto}]; ok {
		return asked
	}
	return from
}
