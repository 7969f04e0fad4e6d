package sim

import (
	"errors"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ErrRefused is what connect or sendmsg fails with for a service without a backend (ECONNREFUSED).
var ErrRefused = errors.New("connection refused: service has no usable backend")

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

// Connect is the hooks connect and sendmsg: where a socket that asks for dst is really sent.
// It fails with ErrRefused.
func (n *Node) Connect(s Socket, dst netip.AddrPort) (netip.AddrPort, error) {
	onHost := s.Netns == 0
	kind := n.kind(dst.Addr())
	own := kind == nodestate.AddrHost || dst.Addr().IsLoopback()
	mode := n.state.Settings.ConnectTime
	switch {
	case dst.Addr().IsLoopback() && !onHost:
		return dst, nil
	case s.Proto == model.ProtocolTCP && mode != model.ConnectTimeDisabled:
	case s.Proto == model.ProtocolUDP && mode == model.ConnectTimeEnabled:
	case s.Proto == model.ProtocolUDP && mode == model.ConnectTimeTCP && onHost && own:
	default:
		return dst, nil
	}
	svc, nodePort, ok := n.frontend(dst.Addr(), dst.Port(), s.Proto)
	if !ok {
		return dst, nil
	}
	localOnly, ok := n.insideScope(svc, nodePort, dst.Addr())
	if !ok {
		return dst, nil
	}
	client := affinityKey{svc: svc.ID, client: n.state.Settings.Node}
	if !onHost {
		client.client = n.state.Clients[s.Netns]
		if !client.client.IsValid() {
			client.cookie = s.Netns
		}
	}
	if !n.admits(svc, client.client) {
		return dst, nil // its packets will tell
	}
	b, ok := n.choose(svc, localOnly, client)
	if !ok {
		return dst, ErrRefused
	}
	to := netip.AddrPortFrom(b.Addr, b.Port)
	if to != dst {
		n.sockets[socketKey{s.Cookie, to, s.Proto}] = dst
	}
	return to, nil
}

// Peer is the hooks recvmsg and getpeername: what a socket is told that it talks to.
func (n *Node) Peer(s Socket, from netip.AddrPort) netip.AddrPort {
	if asked, ok := n.sockets[socketKey{s.Cookie, from, s.Proto}]; ok {
		return asked
	}
	return from
}
