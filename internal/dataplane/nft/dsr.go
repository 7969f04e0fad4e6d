package nft

import (
	"fmt"

	"github.com/weir-net/weir/internal/nodestate"
)

// Straight flows: TCP that is handed on, and answered straight to the client. Connection tracking sees its first packets alone, and
// takes the second for invalid, or for the beginning of something once it has forgotten the first. So such flows are remembered in a
// map of their own, which is looked at for what connection tracking does not know.
const (
	mapStraight   = "straight" // flow → mark of the node that it is handed on to
	straightChain = "straight"

	// straightSize bounds how many flows are remembered. Further ones are translated here.
	straightSize = 65536

	straightOpening = 60   // seconds after the first packet
	straightOpen    = 3600 // after any other; of TCP that is what eBPF has
	straightEnding  = 120  // after FIN or RST

	straightOver = 1 // of a mark in the map: FIN or RST was seen
)

// toStraight looks for the flow of what no pod sends and connection tracking does not know: it is new or invalid to it. Of the first packet that
// it takes for new translate asks, of all others admit.
const toStraight = "tcp flags & syn == 0 jump " + straightChain

// straightFlow is what a flow of TCP is known by. Addresses of IPv6 are hashed twice: see client.
func (f family) straightFlow() string {
	if f.six {
		const hash = "jhash ip6 saddr . ip6 daddr mod 4294967295 seed "
		return hash + "0x57656972 . " + hash + "0x72696557 . tcp sport . tcp dport"
	}
	return "ip saddr . ip daddr . tcp sport . tcp dport"
}

func (f family) straightSet() Set {
	s := Set{Key: "ipv4_addr . ipv4_addr . inet_service . inet_service", Value: "mark", Learned: true, Size: straightSize}
	if f.six {
		s.Key, s.Value, s.TypeOf = "numgen random mod 65536 . numgen random mod 65536 . tcp sport . tcp dport", "meta mark", true
	}
	return s
}

// straightChains remember flows and find them again.
func (f family) straightChains(t *Table, s *nodestate.State) {
	chain := func(name string, rules ...string) { t.Chains[name] = Chain{Rules: f.rules(s, rules...)} }
	flow := f.straightFlow()
	remember := func(seconds int) string {
		return fmt.Sprintf("add @%s { %s timeout %ds : meta mark }", mapStraight, flow, seconds)
	}
	forget := fmt.Sprintf("delete @%s { %s : meta mark }", mapStraight, flow)
	const away = "meta mark set meta mark and $mask or $way"
	chain(straightChain, "meta mark set "+flow+" map @"+mapStraight+" goto straight-on")
	chain("straight-on",
		fmt.Sprintf("meta mark and %#x != 0 ", straightOver)+away+" return",
		"tcp flags & (fin | rst) != 0 goto straight-over",
		fmt.Sprintf("update @%s { %s timeout %ds : meta mark }", mapStraight, flow, straightOpen),
		away)
	chain("straight-over",
		forget,
		fmt.Sprintf("meta mark set meta mark or %#x", straightOver),
		remember(straightEnding),
		away)
	// A map that is full ends the last rule.
	chain("remember-straight",
		forget,
		remember(straightOpening)+" ct mark set meta mark accept")
	f.set(t, mapStraight, f.straightSet())
}

// handOnChains end the choice of a backend on another node, whose mark the packet has.
func (f family) handOnChains(t *Table, s *nodestate.State) {
	chain := func(name string, rules ...string) { t.Chains[name] = Chain{Rules: f.rules(s, rules...)} }
	chain(handOnChain,
		"meta l4proto sctp meta priority @"+setDirect+" return",
		"meta mark set meta priority . ct mark map @"+mapHomes+" jump remember",
		"meta mark and $handed != 0 meta mark set 0x0")
	chain("remember",
		"meta l4proto tcp meta priority @"+setDirect+" goto remember-straight",
		"ct mark set meta mark accept")
	f.straightChains(t, s)
}
