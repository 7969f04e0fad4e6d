// SPDX-License-Identifier: Apache-2.0

package route

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// InputsNames are the kinds that NameServers is made from.
const InputsNames = model.KindServices | model.KindSlices | model.KindSettings | model.KindLocal

// nodeLocalDNS is the address of NodeLocal DNSCache: its answers count where the node has it.
var nodeLocalDNS = netip.AddrFrom4([4]byte{169, 254, 20, 10})

// ChangesNames reports whether a change may concern NameServers.
func ChangesNames(c *cluster.View, dirty *model.Dirty) bool {
	if dirty.Has(InputsNames) {
		return true
	}
	for name := range dirty.Services {
		if slices.Contains(c.Settings.DNS.Services, name) {
			return true
		}
	}
	return len(dirty.Slices) > 0
}

// NameServers returns the DNS servers whose answers count for policy by domain name, sorted.
func NameServers(c *cluster.View) []netip.Addr {
	out := slices.Clone(c.Settings.DNS.Servers)
	for _, name := range c.Settings.DNS.Services {
		if s := c.Services[name]; s != nil {
			out = append(out, s.ClusterIPs...)
		}
	}
	for _, sl := range c.Slices {
		if !slices.Contains(c.Settings.DNS.Services, sl.Service) {
			continue
		}
		for i := range sl.Endpoints {
			out = append(out, sl.Endpoints[i].Addrs...)
		}
	}
	if slices.Contains(c.Local.HostAddrs, nodeLocalDNS) {
		out = append(out, nodeLocalDNS)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
