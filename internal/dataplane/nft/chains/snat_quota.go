// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/egress"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Ports for source NAT are chosen by the kernel, out of the node's range. So that one pod does not
// take them all towards one destination, each has a share: so many connections that connection
// tracking knows of it with that destination.
const (
	asNodePod       = "as-node-pod"     // gives a pod's flow the node's address, while the pod has less than its share of the ports
	asNodeOutside   = "as-node-outside" // gives the flow of somebody outside the node's address, with the ports that pods do not have for themselves
	portShareChain  = "port-share"
	queryShareChain = "query-share" // the same for the identifiers of echo requests
	setPortShares   = "port-shares" // pod . destination . protocol . port, with its connections
	setQueryShares  = "query-shares"
	// portShare is the part of the range that a pod may have: 1 in portShare.
	portShare = 4
	// outsideWindow is how many ports in a row those outside may have, and are not theirs then, by
	// turns. The kernel looks for a free port among 128 in a row, from a random one on, and after
	// four more tries with fewer it drops the packet: so it always comes to one that is not theirs.
	outsideWindow = 125
	// minSharedPorts is the least size of a range of which pods have shares.
	minSharedPorts = 1936
	// portSharesSize is for how many destinations of all pods connections are counted.
	portSharesSize = 65536

	// SetSpent are the pods' addresses that had used up their share of the ports for source NAT,
	// with what was dropped therefore. An element is there for SpentKept after its last packet.
	SetSpent  = "spent"
	SpentKept = time.Hour
	spentSize = 1024
)

// podShare is how many ports a pod may have towards one destination; 0 = any number.
func podShare(s *nodestate.State) int {
	set := s.Settings
	n := int(set.SNATLast) - int(set.SNATFirst) + 1
	if set.SNATFirst == 0 || n < minSharedPorts {
		return 0
	}
	return n / portShare
}

// outsideChains give what comes from outside for a Service, and goes on with the node's address, a
// port of one half of the range, which is spread over it: the other half is left to pods and the
// node's processes.
func outsideChains(f table.Family, t *table.Table, s *nodestate.State) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	first, last := s.Settings.SNATFirst, s.Settings.SNATLast
	n := int(last) - int(first) + 1
	rules := asNodeRules(f, s, first, last)
	if first == 0 || n < minSharedPorts || rules == nil {
		chain(asNodeOutside, rules...)
		return
	}
	var choices []string
	for i := range n / (2 * outsideWindow) {
		begin, name := first+uint16(i*2*outsideWindow), fmt.Sprintf("%s-%d", asNodeOutside, i)
		chain(name, asNodeRules(f, s, begin, begin+outsideWindow-1)[0])
		choices = append(choices, fmt.Sprintf("%d : goto %s", i, name))
	}
	rules[0] = fmt.Sprintf("$ports jhash $ip saddr . th sport mod %d seed 0x1 vmap { %s }", len(choices), strings.Join(choices, ", "))
	chain(asNodeOutside, rules...)
}

// portShareChains make the chains and the sets by which pods are held to their shares.
func portShareChains(f table.Family, t *table.Table, s *nodestate.State) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	const own, ports, queries = "goto " + asNodeChain, "$ip saddr . $ip daddr . meta l4proto . th dport", "$ip saddr . $ip daddr"
	table.AddSet(f, t, setPortShares, table.Set{Key: "$addr . $addr . inet_proto . inet_service", Learned: true, Lasting: true, Size: portSharesSize})
	table.AddSet(f, t, setQueryShares, table.Set{Key: "$addr . $addr", Learned: true, Lasting: true, Size: portSharesSize})
	table.AddSet(f, t, SetSpent, table.Set{Key: "$addr", Learned: true, Size: spentSize})
	share := podShare(s)
	if share == 0 {
		chain(asNodePod, own)
		return
	}
	chain(asNodePod, "$ports goto "+portShareChain, "$icmp type echo-request goto "+queryShareChain, own)
	counted := func(name, set, key string) {
		chain(name, append([]string{
			fmt.Sprintf("add @%s { %s ct count %d } %s", set, key, share, own),
			key + " != @" + set + " " + own}, // there is no room to count it
			noteSpent()...)...)
	}
	counted(portShareChain, setPortShares, ports)
	counted(queryShareChain, setQueryShares, queries)
	t.Chains[expr.DenyName(reason.NoPort, 0)] = table.Chain{Rules: []string{"counter", "drop"}}
}

// asGatewayRules give what leaves by an egress gateway its address, which all clients of it share.
// Each has as many ports of it towards one destination as of the node's.
func asGatewayRules(f table.Family, s *nodestate.State, to netip.Addr) []string {
	if to == f.Node(s) {
		return []string{"goto " + asNodePod}
	}
	own := asAddrRules(to, s.Settings.SNATFirst, s.Settings.SNATLast)
	share := podShare(s)
	if share == 0 {
		return own
	}
	const ports, queries = "$ip saddr . $ip daddr . meta l4proto . th dport", "$ip saddr . $ip daddr"
	var rules []string
	for i, of := range [][2]string{{setPortShares, ports}, {setQueryShares, queries}} {
		set, key := of[0], of[1]
		which, as, _ := strings.Cut(own[i], "snat")
		rules = append(rules,
			fmt.Sprintf("%sadd @%s { %s ct count %d } snat%s", which, set, key, share, as),
			which+key+" != @"+set+" snat"+as)
		for _, r := range noteSpent() {
			rules = append(rules, which+r)
		}
	}
	return append(rules, own[2])
}

// noteSpent are the rules that drop what goes beyond a pod's share, and note whose it was while
// there is room.
func noteSpent() []string {
	refuse := expr.DenyName(reason.NoPort, 0)
	note := fmt.Sprintf("update @%s { $ip saddr timeout %ds counter } goto %s", SetSpent, int(SpentKept.Seconds()), refuse)
	return []string{note, "goto " + refuse}
}

// WithoutPortShares takes the shares out of a table: the kernel does not count connections.
func WithoutPortShares(t *table.Table) {
	for name, rules := range map[string][]string{asNodePod: {"goto " + asNodeChain}, portShareChain: nil, queryShareChain: nil} {
		if _, ok := t.Chains[name]; ok {
			t.Chains[name] = table.Chain{Rules: rules}
		}
	}
	for name, c := range t.Chains {
		if egress.Translates(name) {
			t.Chains[name] = table.Chain{Rules: c.Rules[len(c.Rules)-1:]} // any port of the gateway's
		}
	}
}

// CountsConnections asks the kernel whether it counts connections for elements of sets. Nothing is
// written.
func CountsConnections(f table.Family) error {
	n, err := knftables.New(f.NFT(), table.Name+"-try")
	if err != nil {
		return err
	}
	tx := n.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(table.Set{Key: f.Words().Addr, Learned: true, Lasting: true, Size: 16}.Object("tried"))
	tx.Add(&knftables.Chain{Name: "tried"})
	tx.Add(&knftables.Rule{Chain: "tried", Rule: "add @tried { " + f.Words().IP + " saddr ct count 1 } accept"})
	return n.Check(context.Background(), tx)
}
