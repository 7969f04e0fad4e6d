// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// DSR flows: TCP that is handed on, and answered directly to the client. Connection tracking
// sees its first packets alone, and takes the second for invalid, or for the beginning of something
// once it has forgotten the first. So such flows are remembered in a map of their own, which is
// looked at for what connection tracking does not know.
const (
	MapDSRFlows = "straight" // flow → mark of the node that it is handed on to
	dsrChain    = "straight"

	// dsrFlowsSize bounds how many flows are remembered. Further ones are translated here.
	dsrFlowsSize = 65536

	dsrOpening = 60   // seconds after the first packet
	dsrOpen    = 3600 // after any other; of TCP that is what eBPF has
	dsrClosing = 120  // after FIN or RST

	DsrClosed = 1 // of a mark in the map: FIN or RST was seen
)

// toDSR looks for the flow of what no pod sends and connection tracking does not know: it is new or
// invalid to it. Of the first packet that it takes for new translate asks, of all others admit.
const toDSR = "tcp flags & syn == 0 jump " + dsrChain

// dsrFlowKey is what a flow of TCP is known by. Addresses of IPv6 are hashed twice: see client.
func dsrFlowKey(f table.Family) string {
	if f.Six {
		const hash = "jhash ip6 saddr . ip6 daddr mod 4294967295 seed "
		return hash + "0x57656972 . " + hash + "0x72696557 . tcp sport . tcp dport"
	}
	return "ip saddr . ip daddr . tcp sport . tcp dport"
}

func dsrFlowSet(f table.Family) table.Set {
	s := table.Set{Key: "ipv4_addr . ipv4_addr . inet_service . inet_service", Value: "mark", Learned: true, Size: dsrFlowsSize}
	if f.Six {
		s.Key, s.Value, s.TypeOf = "numgen random mod 65536 . numgen random mod 65536 . tcp sport . tcp dport", "meta mark", true
	}
	return s
}

// dsrChains remember flows and find them again.
func dsrChains(f table.Family, t *table.Table, s *nodestate.State) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	flow := dsrFlowKey(f)
	remember := func(seconds int) string {
		return fmt.Sprintf("add @%s { %s timeout %ds : meta mark }", MapDSRFlows, flow, seconds)
	}
	forget := fmt.Sprintf("delete @%s { %s : meta mark }", MapDSRFlows, flow)
	const away = "meta mark set meta mark and $mask or $routed"
	chain(dsrChain, "meta mark set "+flow+" map @"+MapDSRFlows+" goto straight-on")
	chain("straight-on",
		fmt.Sprintf("meta mark and %#x != 0 ", DsrClosed)+away+" return",
		"tcp flags & (fin | rst) != 0 goto straight-over",
		fmt.Sprintf("update @%s { %s timeout %ds : meta mark }", MapDSRFlows, flow, dsrOpen),
		away)
	chain("straight-over",
		forget,
		fmt.Sprintf("meta mark set meta mark or %#x", DsrClosed),
		remember(dsrClosing),
		away)
	// A map that is full ends the last rule.
	chain("remember-straight",
		forget,
		remember(dsrOpening)+" ct mark set meta mark accept")
	table.AddSet(f, t, MapDSRFlows, dsrFlowSet(f))
}

// handOnChains end the choice of a backend on another node, whose mark the packet has.
func handOnChains(f table.Family, t *table.Table, s *nodestate.State) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	chain(services.HandOnChain,
		"meta l4proto sctp meta priority @"+expr.SetDirect+" return",
		"meta mark set meta priority . ct mark map @"+services.MapRemote+" jump remember",
		"meta mark and $handed != 0 meta mark set 0x0")
	chain("remember",
		"meta l4proto tcp meta priority @"+expr.SetDirect+" goto remember-straight",
		"ct mark set meta mark accept")
	dsrChains(f, t, s)
}
