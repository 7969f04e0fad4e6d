// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/kernel"
)

// Table is the nftables table (inet) of the guard.
const Table = "weir-wireguard"

// guard says which packets must be encrypted: those of the tunnel to and from these nodes, and what
// they and this one exchange themselves, where it says so.
type guard struct {
	port       uint16    // of the tunnel
	interfaces [2]string // "" = the family is not encrypted
	nodes      [2][]netip.Addr
	hosts      [2]hostGuard
}

// hostGuard is about what nodes themselves exchange in a family.
type hostGuard struct {
	own   netip.Addr // invalid: it goes in clear
	outer uint16     // WireGuard's port
	clear []uint16   // TCP ports of connections that go in clear
}

func (g *guard) equal(o *guard) bool {
	for i := range g.nodes {
		a, b := &g.hosts[i], &o.hosts[i]
		if !slices.Equal(g.nodes[i], o.nodes[i]) || a.own != b.own || a.outer != b.outer || !slices.Equal(a.clear, b.clear) {
			return false
		}
	}
	return g.port == o.port && g.interfaces == o.interfaces
}

func (g *guard) none() bool { return g.interfaces == [2]string{} }

// guarded returns nodes sorted.
func guarded[V any](nodes map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(nodes), netip.Addr.Compare)
}

// rules are the guard in the words of nft, as one transaction. It comes before everything that
// could let a packet pass, and after everything that could turn one around: an accept of another
// table ends nothing here.
func (g *guard) rules() string {
	out := fmt.Sprintf("table inet %s\ndelete table inet %[1]s\n", Table)
	if g.none() {
		return out
	}
	var sets, more, in, leave strings.Builder
	for i, family := range []struct{ word, kind string }{{"ip", "ipv4_addr"}, {"ip6", "ipv6_addr"}} {
		if g.interfaces[i] == "" || len(g.nodes[i]) == 0 {
			continue
		}
		elements := make([]string, len(g.nodes[i]))
		for j, a := range g.nodes[i] {
			elements[j] = a.String()
		}
		fmt.Fprintf(&sets, "\tset %s-nodes { type %s; elements = { %s } }\n", family.word, family.kind, strings.Join(elements, ", "))
		fmt.Fprintf(&in, "\t\tiifname != %q udp dport %d %s saddr @%[3]s-nodes counter drop\n", g.interfaces[i], g.port, family.word)
		fmt.Fprintf(&leave, "\t\toifname != %q udp dport %d %s daddr @%[3]s-nodes counter drop\n", g.interfaces[i], g.port, family.word)
		if h := &g.hosts[i]; h.own.IsValid() {
			h.rules(family.word, g.interfaces[i], &more, &in, &leave)
		}
	}
	return out + fmt.Sprintf(`table inet %s {
%s%s	chain arrives {
		type filter hook prerouting priority -310; policy accept;
%s	}
	chain leaves {
		type filter hook postrouting priority 310; policy accept;
%s	}
}
`, Table, sets.String(), more.String(), in.String(), leave.String())
}

// rules writes those about a family. By devices of ours what nodes exchange has come out of the
// tunnel, or is about to go into it. In clear go WireGuard's own packets, neighbour discovery, and
// connections to some ports, which nobody begins from these ports. A later fragment is of no use
// without the first one. What WireGuard carries is taken from nodes' addresses alone: a node that
// bears an address of somebody else's would otherwise have what is sent there follow it.
func (h *hostGuard) rules(ip, device string, chains, in, leave *strings.Builder) {
	ours := fmt.Sprintf("{ \"lo\", %q, %q, %q, %q }", kernel.HostDevice, kernel.HostPeer, kernel.TunnelDevice, device)
	fmt.Fprintf(in, "\t\tiifname != %s udp dport %d %s daddr %s %[3]s saddr != @%[3]s-nodes counter drop\n", ours, h.outer, ip, h.own)
	fmt.Fprintf(in, "\t\tiifname != %s %s daddr %s %[2]s saddr @%[2]s-nodes goto %[2]s-from-nodes\n", ours, ip, h.own)
	fmt.Fprintf(leave, "\t\toifname != %s %s daddr @%[2]s-nodes goto %[2]s-to-nodes\n", ours, ip)
	var both strings.Builder
	fragment := "ip frag-off & 0x1fff != 0"
	if ip == "ip6" {
		both.WriteString("\t\ticmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept\n")
		fragment = "frag frag-off != 0"
	}
	if len(h.clear) > 0 {
		ports := make([]string, len(h.clear))
		for i, p := range h.clear {
			ports[i] = strconv.Itoa(int(p))
		}
		list := strings.Join(ports, ", ")
		fmt.Fprintf(&both, "\t\ttcp dport { %s } accept\n\t\ttcp sport { %[1]s } tcp flags & (syn | ack) != syn accept\n", list)
	}
	both.WriteString("\t\tcounter drop\n")
	fmt.Fprintf(chains, "\tchain %s-from-nodes {\n\t\tudp dport %d accept\n\t\t%s accept\n%s\t}\n", ip, h.outer, fragment, both.String())
	fmt.Fprintf(chains, "\tchain %s-to-nodes {\n\t\tudp sport %d accept\n%s\t}\n", ip, h.outer, both.String())
}

// patience bounds a transaction.
const patience = 30 * time.Second

func (g *guard) write() error {
	if err := kernel.NFT(context.Background(), g.rules(), patience); err != nil {
		return fmt.Errorf("writing the nftables table inet %s, without which packets could go in clear: %w", Table, err)
	}
	return nil
}
