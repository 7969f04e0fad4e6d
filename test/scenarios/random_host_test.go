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
	r.c.Local.Interfaces = []model.LocalInterface{{Name: "eth0", IfIndex: scenario.Uplink, Addrs: []netip.Addr{ownAddr}}}
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
}

// forHosts makes a policy one that has more to say to host endpoints.
func (r *crowd) forHosts(p *model.Policy) {
	switch r.IntN(5) {
	case 0, 1:
		p.ApplyOnForward = true
	case 2:
		p.ApplyOnForward, p.PreDNAT = true, true
		p.AppliesIngress, p.AppliesEgress, p.Egress = true, false, nil
	}
}
