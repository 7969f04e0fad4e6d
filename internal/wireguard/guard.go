// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/kernel"
)

// Table is the nftables table (inet) of the guard.
const Table = "weir-wireguard"

// guard says which packets of the tunnel must be encrypted: those to and from these nodes.
type guard struct {
	port       uint16    // of the tunnel
	interfaces [2]string // "" = the family is not encrypted
	nodes      [2][]netip.Addr
}

func (g *guard) equal(o *guard) bool {
	return g.port == o.port && g.interfaces == o.interfaces && slices.Equal(g.nodes[0], o.nodes[0]) && slices.Equal(g.nodes[1], o.nodes[1])
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
	var sets, in, leave strings.Builder
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
	}
	return out + fmt.Sprintf(`table inet %s {
%s	chain arrives {
		type filter hook prerouting priority -310; policy accept;
%s	}
	chain leaves {
		type filter hook postrouting priority 310; policy accept;
%s	}
}
`, Table, sets.String(), in.String(), leave.String())
}

// patience bounds a transaction.
const patience = 30 * time.Second

func (g *guard) write() error {
	if err := kernel.NFT(context.Background(), g.rules(), patience); err != nil {
		return fmt.Errorf("writing the nftables table inet %s, without which packets could go in clear: %w", Table, err)
	}
	return nil
}
