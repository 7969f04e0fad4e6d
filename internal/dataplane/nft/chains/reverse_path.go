// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// reversePathRules drop what comes in by an uplink that the route to its source does not lead out
// by (bpfEnforceRPF Strict; RFC 3704, section 2.2). Multicast and broadcast are of the link alone,
// as are link-local sources and, of IPv6, who has no address yet.
func reversePathRules(f table.Family, s *nodestate.State) []string {
	if !s.Settings.RPFStrict {
		return nil
	}
	uplink := `iifname != { "lo", $tunnels, $host } iifname != @` + expr.SetWorkloads + " "
	if f.Six {
		return []string{uplink + "ip6 saddr != { ::, fe80::/10 } ip6 daddr != ff00::/8 fib saddr . iif oif missing drop"}
	}
	return []string{uplink + "ip daddr < 224.0.0.0 fib saddr . iif oif missing drop"}
}
