// SPDX-License-Identifier: Apache-2.0

// Package table is one nftables table as text and as it is in the kernel. A Table says which
// chains, sets and elements there should be; a State remembers what the kernel has, and writes the
// difference as one transaction, so that no packet meets a half of a change. Rules are recognized
// by a hash in their comment, because nft does not give their text back as it was written. The
// package knows nothing of what the rules mean.
package table

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/nodestate"
)

// Words are what of a rule depends on the family.
type Words struct {
	IP          string // "ip", "ip6"
	Addr        string // type
	ICMP        string // of reject
	Unreachable string // host
	Loopback    string // addresses
}

// Words are those of the family.
func (f Family) Words() Words {
	if f.Six {
		return Words{IP: "ip6", Addr: "ipv6_addr", ICMP: "icmpv6", Unreachable: "addr-unreachable", Loopback: "::1"}
	}
	return Words{IP: "ip", Addr: "ipv4_addr", ICMP: "icmp", Unreachable: "host-unreachable", Loopback: "127.0.0.0/8"}
}

// Family is one of the two that a node carries; with Inet a table is of both.
type Family struct{ Six, Inet bool }

// Families are all of them.
var Families = []Family{{}, {Six: true}}

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) Family { return Family{Six: a.Is6()} }

// NFT is the family in knftables.
func (f Family) NFT() knftables.Family {
	if f.Inet {
		return knftables.InetFamily
	}
	if f.Six {
		return knftables.IPv6Family
	}
	return knftables.IPv4Family
}

// netfilter is the kernel's number of the family (NFPROTO_…).
func (f Family) netfilter() uint8 {
	switch {
	case f.Inet:
		return unix.NFPROTO_INET
	case f.Six:
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// String names the family in messages.
func (f Family) String() string {
	if f.Six {
		return "IPv6"
	}
	return "IPv4"
}

// Has reports whether an address is of the family.
func (f Family) Has(a netip.Addr) bool { return a.IsValid() && a.Is4() != f.Six }

// Number is netlink's of the family.
func (f Family) Number() int {
	if f.Six {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// Zero is the unspecified address.
func (f Family) Zero() netip.Addr {
	if f.Six {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Node is the node's primary address of the family; invalid when it has none.
func (f Family) Node(s *nodestate.State) netip.Addr {
	if f.Six {
		return s.Settings.Node6
	}
	return s.Settings.Node
}

// TakesIPIP reports whether the node takes IP in IP, which is IPv4's alone.
func (f Family) TakesIPIP(s *nodestate.State) bool { return !f.Six && s.Settings.IPIP.Accept }

// Carried reports whether the node carries the family.
func (f Family) Carried(s *nodestate.State) bool { return !f.Six || s.Settings.IPv6 }
