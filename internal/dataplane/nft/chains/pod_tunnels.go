package chains

import (
	"github.com/weir-net/weir/internal/nodestate"
)

// podTunnelChain is for what a pod sends with its own address that is not TCP: it drops the packets
// of tunnels, in which policy sees nothing. It comes before connection tracking, which has put
// fragments together, so that answers meet it too.
const podTunnelChain = "pod-tunnels"

// trusts are the rules by which what comes by a pod's interface, from its own address, is let in.
func acceptFrom(s *nodestate.State, from string) []string {
	if s.Settings.VXLANFromPods && s.Settings.IPIPFromPods {
		return []string{from + "accept"}
	}
	return []string{from + "meta l4proto tcp accept", from + "goto " + podTunnelChain}
}

// podTunnelRules drop VXLAN, for any address: nodes have such that nobody listed, and source NAT
// makes the packet one of this node's; and IP in IP.
func podTunnelRules(s *nodestate.State) []string {
	var rules []string
	if !s.Settings.VXLANFromPods {
		rules = append(rules, "udp dport $vxlan drop")
	}
	if !s.Settings.IPIPFromPods {
		rules = append(rules, "meta l4proto { 4, 41 } drop")
	}
	return append(rules, "accept")
}
