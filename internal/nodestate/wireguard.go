// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// WireGuard is what a node encrypts in one family: the tunnel's packets to other nodes, whatever is
// in them. The zero value is nothing.
type WireGuard struct {
	Interface    string // "" = it is off
	Port         uint16 // UDP
	MTU          int    // bytes of a packet of the tunnel; 0 = the uplink's is not known
	RulePriority int
	KeepAlive    int // seconds, 0 = none
	// Peers are the nodes to which nothing of the tunnel goes in clear, and from which nothing is
	// taken in clear, by their primary address.
	Peers map[netip.Addr]WireGuardPeer
	// Clear are the other nodes, by address: what is sent to their pods is not encrypted.
	Clear map[netip.Addr]string
	Hosts WireGuardHosts
}

// WireGuardHosts says what of that which nodes themselves exchange with Peers, between their
// primary addresses, goes through the tunnel: all, but for connections to some ports. The zero
// value is nothing.
type WireGuardHosts struct {
	Own netip.Addr // this node's primary address; invalid: nothing
	// Clear are TCP ports, sorted, each once: who needs a connection to them needs it before a node
	// can encrypt. They are for the nodes' own processes alone: what is sent for pods by a port of
	// SNATFirst to SNATLast (inclusive) is encrypted.
	Clear               []uint16
	SNATFirst, SNATLast uint16
}

// On reports whether what nodes themselves exchange is encrypted.
func (h *WireGuardHosts) On() bool { return h.Own.IsValid() }

// Equal reports whether two are the same.
func (h *WireGuardHosts) Equal(o *WireGuardHosts) bool {
	return h.Own == o.Own && h.SNATFirst == o.SNATFirst && h.SNATLast == o.SNATLast && slices.Equal(h.Clear, o.Clear)
}

// WireGuardPeer is another node. Without a key it gets nothing.
type WireGuardPeer struct {
	Node, UID string
	Key       model.WireGuardKey
	// Next is the key that the node is about to have; none: it keeps Key.
	Next model.WireGuardKey
}

// On reports whether the family is encrypted.
func (w *WireGuard) On() bool { return w.Interface != "" }

// Equal reports whether two are the same.
func (w *WireGuard) Equal(o *WireGuard) bool {
	return w.Interface == o.Interface && w.Port == o.Port && w.MTU == o.MTU && w.RulePriority == o.RulePriority &&
		w.KeepAlive == o.KeepAlive && maps.Equal(w.Peers, o.Peers) && maps.Equal(w.Clear, o.Clear) && w.Hosts.Equal(&o.Hosts)
}

func (d *dumper) wireGuard(w *WireGuard) {
	if !w.On() {
		return
	}
	d.line("wireguard", w.Interface, fmt.Sprintf("port=%d mtu=%d rule=%d", w.Port, w.MTU, w.RulePriority), flag(w.KeepAlive != 0, fmt.Sprintf("keep-alive=%d", w.KeepAlive)))
	if h := &w.Hosts; h.On() {
		d.line("wireguard-hosts", w.Interface, h.Own.String(), fmt.Sprintf("snat=%d..%d clear=%v", h.SNATFirst, h.SNATLast, h.Clear))
	}
	for _, a := range sortedKeys(w.Peers, netip.Addr.Compare) {
		p := w.Peers[a]
		key := "key=" + p.Key.String()
		if p.Key == (model.WireGuardKey{}) {
			key = "blocked"
		}
		d.line("wireguard-peer", w.Interface, a.String(), "node="+p.Node, key, flag(p.Next != (model.WireGuardKey{}), "next="+p.Next.String()))
	}
	for _, a := range sortedKeys(w.Clear, netip.Addr.Compare) {
		d.line("wireguard-clear", w.Interface, a.String(), "node="+w.Clear[a])
	}
}
