// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"iter"
	"maps"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// View is a cluster as its node sees it.
type View struct {
	*model.Cluster
	Ipv6   bool // this node carries IPv6; IPv4 it always does
	Owners *Ownership
	// Covered is what no pool may cover.
	Covered *Covered
	// Floating are pods' floating addresses; nil = none.
	Floating *Floating
	// StandBy are the interfaces of pods with the address of a virtual machine that is on another
	// node, by index: names. They are no endpoints; nil = none.
	StandBy map[int]string
}

// ViewOf returns a cluster with those claims of nodes that count.
func ViewOf(c *model.Cluster) *View {
	all := model.AllDirty()
	return NewView(c, new(OwnershipIndex).Update(c, &all))
}

// EachFloating yields the floating addresses.
func (c *View) EachFloating() iter.Seq2[netip.Addr, FloatingIP] {
	if c.Floating == nil {
		return func(func(netip.Addr, FloatingIP) bool) {}
	}
	return maps.All(c.Floating.By)
}

func NewView(c *model.Cluster, held *Ownership) *View {
	of := *c
	of.Blocks, of.Nodes = held.blocks, held.nodes
	standBy := held.standBy(&of.Local)
	return &View{Cluster: &of, Ipv6: of.CarriesIPv6(), Owners: held, StandBy: standBy}
}

// Carried reports whether addresses of this family go into tables: the one place that says so.
// Addresses that mean something else on every link are nobody's.
func (c *View) Carried(a netip.Addr) bool {
	return a.Is4() || c.Ipv6 && a.Is6() && !a.IsLinkLocalUnicast()
}

// CarriedPrefix is carried for prefixes.
func (c *View) CarriedPrefix(p netip.Prefix) bool { return p.IsValid() && c.Carried(p.Addr()) }

// CarriedOf returns the addresses of one family that go into tables.
func (c *View) CarriedOf(all []netip.Addr, fam int) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		if a.IsValid() && c.Carried(a) && Family(a) == fam {
			out = append(out, a)
		}
	}
	return out
}

// Family numbers the families.
func Family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func Unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// AdvertisedRanges are the ranges of Services' addresses that nodes advertise by BGP.
func (c *View) AdvertisedRanges() []netip.Prefix {
	conf := c.BGPConfigs["default"]
	if conf == nil {
		return nil
	}
	var out []netip.Prefix
	for _, list := range [][]netip.Prefix{conf.ClusterIPs, conf.ExternalIPs, conf.BalancerIPs} {
		for _, p := range list {
			if c.CarriedPrefix(p) {
				out = append(out, p.Masked())
			}
		}
	}
	return out
}
