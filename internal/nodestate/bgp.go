// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// BGP is what the node's BGP process should do. It is no driver's concern.
type BGP struct {
	ASN      uint32
	RouterID netip.Addr // of IPv4
	// ListenPort is where sessions of others are taken; on ListenAddrs, or on all addresses.
	ListenPort  uint16
	ListenAddrs []netip.Addr `json:",omitempty"`
	// Peers are sorted by address; there is one for each.
	Peers []BGPPeer `json:",omitempty"`
	// Self and Unchanged are peers to which this node sends itself as the next hop of every route,
	// and the next hops that it was told, sorted. To others it does as BGP does: itself to another
	// AS, and of its own routes.
	Self      []netip.Addr `json:",omitempty"`
	Unchanged []netip.Addr `json:",omitempty"`
	// Gateways are by which router a peer is reached, sorted by peer.
	Gateways []BGPGateway `json:",omitempty"`
	// Priorities: routes have priorities (model.MaxBGPPriority), because a filter of the cluster
	// is about them.
	Priorities bool `json:",omitempty"`
	// Filters say what is let through to and from some peers, before everything else; a peer is in
	// one of them at most.
	Filters []BGPFilter `json:",omitempty"`
	// MissingFilters are names of filters that BGPPeers of this node name and that are not there,
	// each with the peer's, sorted.
	MissingFilters []string `json:",omitempty"`
	// Advertise are the prefixes of this node, sorted.
	Advertise []netip.Prefix `json:",omitempty"`
	// Pass are prefixes within which routes of others are handed on, sorted: nothing else is.
	Pass []netip.Prefix `json:",omitempty"`
	// Reflect are prefixes within which routes of others are handed on within the AS alone: whoever
	// they lead to serves them itself.
	Reflect []netip.Prefix `json:",omitempty"`
	// Tags are communities of what is advertised, sorted.
	Tags []BGPTag `json:",omitempty"`
	// UnknownCommunities are names that are used and that nobody gave a value, sorted.
	UnknownCommunities []string `json:",omitempty"`
	// Keep are prefixes within which no learned route is put into the kernel, sorted: what the node
	// has itself, and what the data plane carries in a tunnel.
	Keep []netip.Prefix `json:",omitempty"`
	// Sources are the preferred sources of what this node sends by learned routes, at most one of
	// each family.
	Sources []netip.Addr `json:",omitempty"`
}

// BGPPeer is whom the node has a session with.
type BGPPeer struct {
	Addr netip.Addr
	Name string // of the object, or that of the mesh, and the node
	Port uint16
	ASN  uint32
	// LocalASN is what the node calls itself, Source the address that it sends from: invalid = as
	// the kernel chooses.
	LocalASN uint32     `json:",omitempty"`
	Source   netip.Addr `json:",omitzero"`
	// Passive: the other end begins.
	Passive   bool            `json:",omitempty"`
	BFD       bool            `json:",omitempty"` // its failure is detected by BFD (RFC 5881)
	Password  model.SecretKey `json:",omitzero"`
	Restart   uint32          // seconds of graceful restart
	LongLived uint32          `json:",omitempty"` // seconds of long-lived graceful restart after that, 0 = none
	Keepalive uint32          `json:",omitempty"` // seconds, 0 = the default
	TTLHops   uint8           `json:",omitempty"` // 0 = not checked
	AllowedAS uint8           `json:",omitempty"`
	// ClusterID: routes are reflected to it. Invalid = they are not.
	ClusterID netip.Addr `json:",omitzero"`
}

// BGPGateway says that a peer is reached by a router.
type BGPGateway struct{ Peer, Via netip.Addr }

// BGPTag says which communities a prefix of Advertise has.
type BGPTag struct {
	Prefix      netip.Prefix
	Communities []string // aa:nn or aa:nn:mm, sorted
}

// BGPFilter is what is let through to and from peers of one family: of the rules of a direction the
// first one that matches decides.
type BGPFilter struct {
	Peers          []netip.Addr    // sorted
	Export, Import []model.BGPRule `json:",omitempty"`
	// FrontASN is what this node puts in front of paths that it sends to the peers; 0 = nothing.
	FrontASN uint32 `json:",omitempty"`
}

func (d *dumper) bgp(b *BGP) {
	if b == nil {
		return
	}
	d.line("bgp", fmt.Sprintf("as=%d router=%s port=%d", b.ASN, b.RouterID, b.ListenPort), "listen="+addrs(b.ListenAddrs), "source="+addrs(b.Sources), flag(b.Priorities, "priorities"))
	if len(b.Self)+len(b.Unchanged) > 0 {
		d.line("bgp-next-hop", "self="+addrs(b.Self), "unchanged="+addrs(b.Unchanged))
	}
	for _, g := range b.Gateways {
		d.line("bgp-gateway", g.Peer.String(), g.Via.String())
	}
	for _, p := range b.Peers {
		d.line("bgp-peer", p.Addr.String(), fmt.Sprintf("as=%d port=%d restart=%d+%d keepalive=%d ttl=%d allowed-as=%d local-as=%d", p.ASN, p.Port, p.Restart, p.LongLived, p.Keepalive, p.TTLHops, p.AllowedAS, p.LocalASN),
			"source="+addrs([]netip.Addr{p.Source}), flag(p.Passive, "passive"), flag(p.BFD, "bfd"), flag(p.Password != (model.SecretKey{}), "password="+p.Password.Name+"/"+p.Password.Key),
			flag(p.ClusterID.IsValid(), "cluster="+p.ClusterID.String()), p.Name)
	}
	for _, f := range b.Filters {
		for _, of := range []struct {
			what string
			list []model.BGPRule
		}{{"export", f.Export}, {"import", f.Import}} {
			for i, r := range of.list {
				d.line("bgp-filter", addrs(f.Peers), fmt.Sprintf("%s %d %+v", of.what, i, r))
			}
		}
	}
	for _, t := range b.Tags {
		d.line("bgp-tag", t.Prefix.String(), fmt.Sprint(t.Communities))
	}
	for _, of := range []struct {
		what string
		list []netip.Prefix
	}{{"advertise", b.Advertise}, {"pass", b.Pass}, {"reflect", b.Reflect}, {"keep", b.Keep}} {
		for _, p := range of.list {
			d.line("bgp-"+of.what, p.String())
		}
	}
}

func addrs(list []netip.Addr) string {
	out := ""
	for _, a := range list {
		if a.IsValid() {
			out += "," + a.String()
		}
	}
	if out == "" {
		return "any"
	}
	return out[1:]
}
