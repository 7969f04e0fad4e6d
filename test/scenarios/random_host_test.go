// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// hostEndpoints makes the host endpoints, and what becomes of what pods send to their node, anew.
func (r *crowd) hostEndpoints() {
	r.c.HostEndpoints = map[string]*model.HostEndpoint{}
	r.c.Settings.ToHost = one(r, model.ToHostAccept, model.ToHostAccept, model.ToHostReturn, model.ToHostDrop)
	r.c.Local.Interfaces = []model.LocalInterface{{Name: "eth0", IfIndex: scenario.Uplink, Addrs: []netip.Addr{ownAddr}}, {Name: "eth1", IfIndex: scenario.Uplink2}}
	for i, name := range []string{"eth0", model.AllInterfaces, ""} {
		if !r.chance(35) {
			continue
		}
		h := &model.HostEndpoint{Name: fmt.Sprintf("h%d", i), Node: one(r, "n0", "n0", "n0", "n1"), Interface: name, Labels: r.labels(),
			ExpectedIPs: []netip.Addr{one(r, nodeAddrs...)}, Ports: []model.PodPort{{Name: "web", Protocol: model.ProtocolTCP, Port: 8080}}}
		if r.chance(60) {
			h.Profiles = []string{model.ProfileDefaultAllow}
		}
		r.c.HostEndpoints[h.Name] = h
	}
	r.c.Settings.FailsafeIn, r.c.Settings.FailsafeOut = model.DefaultFailsafes()
	if r.chance(40) {
		r.c.Settings.FailsafeIn = append(r.c.Settings.FailsafeIn,
			model.Failsafe{Protocol: model.ProtocolTCP, Port: 8080, Net: netip.MustParsePrefix("172.31.0.0/16")}, model.Failsafe{Protocol: model.ProtocolUDP, Port: 5353})
	}
	r.alone()
}

// alone makes, or takes away, a policy that evaluates each packet by itself.
func (r *crowd) alone() {
	r = &crowd{Rand: r.later, c: r.c} // all else is what it is without
	p := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "alone"}, Tier: one(r, "early", model.TierDefault), Order: 1,
		AppliesIngress: r.chance(75), AppliesEgress: r.chance(75), ApplyOnForward: true, DoNotTrack: true}
	p.Subject.Expression = one(r, "all()", "all()", r.expression())
	for range 1 + r.IntN(3) {
		p.Ingress = append(p.Ingress, r.tieredRule())
		p.Egress = append(p.Egress, r.tieredRule())
	}
	delete(r.c.Policies, p.ID())
	if r.chance(50) {
		r.c.Policies[p.ID()] = p
	}
}

// forHosts makes a policy one that has more to say to host endpoints.
func (r *crowd) forHosts(p *model.Policy) {
	switch r.IntN(5) {
	case 0, 1:
		p.ApplyOnForward = true
	case 2:
		p.ApplyOnForward, p.PreDNAT = true, true
		p.AppliesIngress, p.AppliesEgress, p.Egress = true, false, nil
	case 3:
		p.ApplyOnForward, p.DoNotTrack = true, true
	}
}

// Addresses that the kernel of node n0 may have: linkOwn is one that the node's tables know, the
// nobody announces others. linkAll is the broadcast address of its uplink's subnet, which it
// always has.
var (
	linkOwn   = netip.MustParseAddr("169.254.20.10")
	secretOwn = addrs("169.254.7.7", "198.51.100.7")
	linkAll   = netip.MustParseAddr("172.31.1.255")
	asideNet  = netip.MustParsePrefix("172.31.9.0/24")
)

// kernel makes what the kernel of node n0 has in addition to its uplink and its address.
func (r *crowd) kernel() {
	if r.chance(40) {
		r.c.Local.HostAddrs = append(r.c.Local.HostAddrs, linkOwn)
		r.own = append(r.own, linkOwn)
	}
	if r.chance(60) {
		r.own = append(r.own, secretOwn...)
	}
	if r.chance(40) {
		r.aside = []netip.Prefix{asideNet}
	}
}
