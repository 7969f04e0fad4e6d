// SPDX-License-Identifier: Apache-2.0

// Package limits is the table of the family inet by which the nftables data plane holds limited
// pods to a number of packets and of connections, and gives what they, and host endpoints, send out
// of the cluster a DSCP. It is there only while the node has such a pod or endpoint. One rule of a
// pod counts both families, and is written anew only when what it says changes: so no other pod's
// change gives anybody more. Bandwidth is queues' (package shape).
package limits

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Maps from the names of pods' interfaces to chains, and sets of what is in the cluster.
const (
	mapSends     = "sends"
	mapGets      = "gets"
	mapOpens     = "opens"
	mapAccepts   = "accepts"
	setCluster4  = "cluster4"
	setCluster6  = "cluster6"
	beforePolicy = "filter-10"
	afterPolicy  = "filter+10"
)

var (
	overRate  = expr.DenyName(reason.PacketRate, 0)
	overCount = expr.DenyName(reason.Connections, 0)
)

// Render makes the table; nil when nothing of the node needs one. A rule lets through as many
// connections as allowed says, in a chain whose name ends so; without that they are not counted.
func Render(s *nodestate.State, allowed func(of side, most uint32) (uint32, string)) *table.Table {
	t := table.New(knftables.InetFamily)
	marks := false
	for name, q := range s.QoS {
		id := expr.InterfaceID(name)
		pod := func(set, chain, id string, rules ...string) {
			if len(rules) > 0 {
				t.Chains[chain+id] = table.Chain{Rules: rules}
				t.Add(set, name, "jump "+chain+id)
			}
		}
		sends := rate(q.Egress.PacketRate, q.Egress.PacketsAtOnce())
		if q.DSCP > 0 {
			marks = true
			dscp := (q.DSCP - 1) & 63 // a value that is none comes from no annotation, and keeps nothing else out
			sends = append(sends,
				fmt.Sprintf("ip daddr != @%s ip dscp set %d", setCluster4, dscp),
				fmt.Sprintf("ip6 daddr != @%s ip6 dscp set %d", setCluster6, dscp))
		}
		pod(mapSends, "sends-", id, sends...)
		pod(mapGets, "gets-", id, rate(q.Ingress.PacketRate, q.Ingress.PacketsAtOnce())...)
		for _, d := range []struct {
			set, chain string
			egress     bool
			most       uint32
		}{{mapOpens, "opens-", true, q.Egress.Connections}, {mapAccepts, "accepts-", false, q.Ingress.Connections}} {
			if d.most > 0 && allowed != nil {
				n, end := allowed(side{name, d.egress}, d.most)
				pod(d.set, d.chain, id+end, count(n))
			}
		}
	}
	own := hostRules(s)
	if len(t.Elements) == 0 && len(own) == 0 {
		return nil
	}
	marks = marks || len(own) > 0
	for _, name := range []string{mapSends, mapGets, mapOpens, mapAccepts} {
		t.Sets[name] = table.Set{Key: "ifname", Value: "verdict"}
	}
	t.Sets[setCluster4] = table.Set{Key: "ipv4_addr", Interval: true}
	t.Sets[setCluster6] = table.Set{Key: "ipv6_addr", Interval: true}
	if marks {
		addCluster(t, s)
	}
	t.Chains[overRate] = table.Chain{Rules: append(events.ShowRules(events.Deny, reason.PacketRate, 0), "counter", "drop")}
	t.Chains[overCount] = table.Chain{Rules: []string{events.ShowFirst(reason.Connections, 0), "counter", "reject with tcp reset"}}
	const opening = "meta l4proto tcp ct state new "
	base := func(name string, hook knftables.BaseChainHook, priority knftables.BaseChainPriority, rules ...string) {
		t.Chains[name] = table.Chain{Type: knftables.FilterType, Hook: hook, Priority: priority, Rules: rules}
	}
	// What a pod sends counts whatever becomes of it, and what it gets where it gets it: so the one
	// is before policy, the other behind it. What the node's own processes send passes neither.
	base("sent", knftables.ForwardHook, beforePolicy, "iifname vmap @"+mapSends)
	base("sent-here", knftables.InputHook, beforePolicy, "iifname vmap @"+mapSends)
	base("passed", knftables.ForwardHook, afterPolicy,
		opening+"iifname vmap @"+mapOpens, opening+"oifname vmap @"+mapAccepts, "oifname vmap @"+mapGets)
	base("passed-here", knftables.InputHook, afterPolicy, opening+"iifname vmap @"+mapOpens)
	base("own", knftables.OutputHook, afterPolicy, own...)
	return t
}

// hostRules give what the node's own processes send out of the cluster by an interface the DSCP of
// its host endpoint.
func hostRules(s *nodestate.State) (out []string) {
	some := false
	// Those of single interfaces come before those of all others, which have index 0.
	for _, at := range slices.Backward(slices.SortedFunc(maps.Keys(s.HostEndpoints), nodestate.HostInterface.Compare)) {
		family, set, nfproto := "ip", setCluster4, "ipv4"
		if at.IPv6 {
			family, set, nfproto = "ip6", setCluster6, "ipv6"
		}
		match := ""
		if at.IfIndex != 0 {
			match = fmt.Sprintf("meta oif %d ", at.IfIndex)
		}
		if dscp := s.HostEndpoints[at].DSCP; dscp > 0 {
			some = true
			out = append(out, fmt.Sprintf("%s%s daddr != @%s %s dscp set %d return", match, family, set, family, (dscp-1)&63))
		} else if at.IfIndex != 0 {
			out = append(out, match+"meta nfproto "+nfproto+" return")
		}
	}
	if !some {
		return nil
	}
	return out
}

func rate(packets, atOnce uint32) []string {
	if packets == 0 {
		return nil
	}
	return []string{fmt.Sprintf("limit rate over %d/second burst %d packets goto %s", packets, atOnce, overRate)}
}

func count(connections uint32) string {
	if connections == 0 {
		return "goto " + overCount
	}
	return fmt.Sprintf("ct count over %d goto %s", connections, overCount)
}

// addCluster adds what is no destination outside of the cluster: pools, nodes, and pods that have
// addresses of none.
func addCluster(t *table.Table, s *nodestate.State) {
	for _, f := range table.Families {
		var all table.Prefixes
		for p := range s.Routes {
			if f.Has(p.Addr()) {
				all.Add(p)
			}
		}
		for a := range s.Addrs {
			if f.Has(a) {
				all.Add(netip.PrefixFrom(a, a.BitLen()))
			}
		}
		set := setCluster4
		if f.Six {
			set = setCluster6
		}
		for _, p := range all.Disjoint() {
			t.Add(set, table.PrefixText(p), "")
		}
	}
}
