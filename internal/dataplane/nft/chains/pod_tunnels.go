// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// podTunnelChain is for what a pod sends with its own address that is not plainly TCP: it drops the
// packets of tunnels, in which policy sees nothing; those that name who else is to get them; and
// what is said to routers of the link alone. It comes before connection tracking, which has put
// fragments together, so that answers meet it too.
const podTunnelChain = "pod-tunnels"

// podLinkChain drops what pods say to the routers of a link.
const podLinkChain = "pod-link"

// listeners are the messages about multicast listeners (RFC 2710, 3810).
const listeners = "mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report"

// acceptFrom lets a pod's packets pass that come from its interface with its own address, but for
// what podTunnelChain drops.
func acceptFrom(f table.Family, from string) []string {
	plain := "meta l4proto tcp accept"
	if f.Six {
		plain = "ip6 nexthdr tcp accept" // no header between
	}
	return []string{from + plain, from + "goto " + podTunnelChain}
}

// podTunnelRules drop VXLAN, for any address: nodes have such that nobody listed, and source NAT
// makes the packet one of this node's; and IP in IP. A routing header would lead a packet on that
// was evaluated by where it went first, where a node's kernel follows such (seg6_enabled). Of
// groups that somebody listens to, what is sent to one machine would be taken for the node's word
// by the routers of its link.
func podTunnelRules(f table.Family, s *nodestate.State) []string {
	rules := []string{"meta l4proto 2 goto " + podLinkChain}
	if f.Six {
		rules = []string{"exthdr rt exists drop",
			"icmpv6 type { " + listeners + " } ip6 daddr != { fe80::/10, ff00::/8 } goto " + podLinkChain}
	}
	if !s.Settings.VXLANFromPods {
		rules = append(rules, "udp dport $vxlan drop")
	}
	if !s.Settings.IPIPFromPods {
		rules = append(rules, "meta l4proto { 4, 41 } drop")
	} else if len(ipipRules(f, s)) > 0 { // nodes would take it for one of their own
		rules = append(rules, "meta l4proto 4 $ip daddr @"+expr.SetOwn+" drop", "meta l4proto 4 $ip daddr @"+expr.SetNodes+" drop")
	}
	return append(rules, "accept")
}

// grantedPrefix begins the name of the chain of an interface by which a pod may send with sources
// that are not its own.
const grantedPrefix = "granted-"

// renderSources makes the chains by which pods may send with sources that are not their own: not
// with one that somebody has, nor with one of a pool or of a Service.
func renderSources(f table.Family, t *table.Table, s *nodestate.State) {
	var all table.Prefixes
	for own, prefixes := range s.Sources {
		v := s.Addrs[own]
		if !f.Has(own) || v.Kind != nodestate.AddrEndpoint || v.Gateways || v.Interface == "" {
			continue
		}
		rules := []string{"$ip saddr @" + expr.SetKnown + " drop"}
		for _, p := range prefixes {
			without, whole := s.SourceParts(p)
			if whole {
				continue
			}
			for _, n := range without {
				rules = append(rules, "$ip saddr "+table.PrefixText(n)+" drop")
			}
			to := " goto " + podTunnelChain
			if p.Bits() == 0 { // nft has no such prefix
				rules = append(rules, strings.TrimSpace(to))
			} else {
				rules = append(rules, "$ip saddr "+table.PrefixText(p)+to)
			}
			all.Add(p)
		}
		name := grantedPrefix + strings.TrimPrefix(SenderChain(v.Interface), SenderPrefix)
		t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, append(rules, "drop")...)}
		t.Add(expr.MapGrants, v.Interface, "goto "+name)
	}
	for _, p := range all.Disjoint() {
		t.Add(expr.SetGranted, table.PrefixText(p), "")
	}
}
