// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// hostFixture has an endpoint of all interfaces, whose policy has these rules in both directions.
func hostFixture(rules ...model.Rule) *model.Cluster {
	c := policyFixture()
	c.HostEndpoints = map[string]*model.HostEndpoint{"all": {Name: "all", Node: c.Local.Node, Interface: model.AllInterfaces, Labels: map[string]string{"host": "yes"}}}
	p := model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "hosts"}, Tier: model.TierDefault, AppliesIngress: true, AppliesEgress: true,
		Ingress: rules, Egress: rules, Subject: model.Selector{Expression: "host == 'yes'"}}
	c.Policies[p.ID()] = &p
	return c
}

func hostVerdict(s *nodestate.State, iso func(nodestate.HostEndpoint) nodestate.Isolation, other string, port uint16) string {
	allow, rule := s.Verdict(iso(s.HostEndpoints[nodestate.HostInterface{}]), addr(other), model.ProtocolTCP, nodestate.Ports{Dst: port})
	return fmt.Sprint(allow, " ", s.Rules.At(rule).Kind)
}

func hostIn(h nodestate.HostEndpoint) nodestate.Isolation  { return h.HostIngress }
func hostOut(h nodestate.HostEndpoint) nodestate.Isolation { return h.HostEgress }

// More networks than fit in policies of pods take nothing from those that host endpoints ask for.
func TestNetworksOfPodsLeaveThoseOfHostEndpoints(t *testing.T) {
	t.Parallel()
	c := hostFixture(model.Rule{Action: model.Allow, Ports: []model.PortRange{tcp(10250, 10250)},
		Other: &model.Entity{InNets: true, Nets: []netip.Prefix{netip.MustParsePrefix("20.0.0.0/9")}}})
	set := &model.NetworkSet{Name: model.Name{Name: "feed"}, Labels: map[string]string{"feed": "threat"}}
	c.Settings.MaxNetworks = 1000
	for i := range c.Settings.MaxNetworks + 1 {
		set.Nets = append(set.Nets, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32))
	}
	c.NetworkSets = map[model.Name]*model.NetworkSet{set.Name: set}
	p := forFree(model.KindGlobalNetworkPolicy, "feed", model.Rule{Action: model.Deny, Other: &model.Entity{Selector: "feed == 'threat'"}}, model.Rule{Action: model.Allow})
	c.Policies[p.ID()] = &p
	s := Calc(c)
	pods := false
	for _, r := range s.Unfit {
		pods = pods || r.Name == "feed"
	}
	if !pods || len(s.PeerCIDRs) == 0 || len(s.PeerCIDRs) > 16 {
		t.Fatalf("unfit %v, %d networks", s.Unfit, len(s.PeerCIDRs))
	}
	for other, want := range map[string]string{"20.0.0.2": "true GlobalNetworkPolicy", "20.1.2.3": "true GlobalNetworkPolicy", "20.128.0.1": "false default-deny", "9.9.9.9": "false default-deny"} {
		for name, iso := range map[string]func(nodestate.HostEndpoint) nodestate.Isolation{"in": hostIn, "out": hostOut} {
			if got := hostVerdict(s, iso, other, 10250); got != want {
				t.Errorf("%s, %s: %s, want %s", name, other, got, want)
			}
		}
	}
}

// The path to the API servers is open on whichever port they are, to them alone, and follows them.
func TestWayToAPIServersIsOpen(t *testing.T) {
	t.Parallel()
	c := hostFixture()
	k, d := New(), model.AllDirty()
	s, _ := k.Update(c, d)
	check := func(server, stranger string) {
		t.Helper()
		if got := hostVerdict(s, hostOut, "192.0.2.7", 8443); got != server {
			t.Errorf("to the API server: %s, want %s", got, server)
		}
		if got := hostVerdict(s, hostOut, "192.0.2.8", 8443); got != stranger {
			t.Errorf("to another: %s, want %s", got, stranger)
		}
		if got := hostVerdict(s, hostIn, "192.0.2.7", 8443); got != "false default-deny" {
			t.Errorf("from the API server: %s", got)
		}
	}
	check("false default-deny", "false default-deny")
	sl := &model.EndpointSlice{Name: model.Name{Namespace: "default", Name: "kubernetes"}, Service: cluster.APIService, NotCarried: true,
		Ports: []model.EndpointPort{{Name: "https", Protocol: model.ProtocolTCP, Port: 8443}}, Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{addr("192.0.2.7")}, Ready: true}}}
	c.Slices = map[model.Name]*model.EndpointSlice{sl.Name: sl}
	d = model.Dirty{Slices: map[model.Name]struct{}{sl.Name: {}}}
	s, _ = k.Update(c, d)
	check("true failsafe", "false default-deny")
	c.Slices = map[model.Name]*model.EndpointSlice{}
	s, _ = k.Update(c, d)
	check("false default-deny", "false default-deny")
}

// An address that the node has for itself alone, such as that of NodeLocal DNSCache, takes nothing
// from a rule that allows what comes to the node's network; a rule that denies counts it.
func TestLinkLocalAddressLeavesRulesOfTheNodesNetwork(t *testing.T) {
	t.Parallel()
	own := func(nets ...netip.Prefix) *model.Entity { return &model.Entity{InNets: true, Nets: nets} }
	mine := netip.MustParsePrefix("172.16.0.0/12")
	for _, at := range []struct {
		name  string
		addrs []netip.Addr
		want  string
	}{
		{"one network", []netip.Addr{addr("172.31.1.207")}, "true GlobalNetworkPolicy"},
		{"with a link-local one", []netip.Addr{addr("172.31.1.207"), addr("169.254.20.10")}, "true GlobalNetworkPolicy"},
		{"with another network", []netip.Addr{addr("172.31.1.207"), addr("192.168.50.1")}, "false default-deny"},
	} {
		c := hostFixture(model.Rule{Action: model.Allow, Ports: []model.PortRange{tcp(10250, 10250)}, Own: own(mine)})
		c.Local.HostAddrs = at.addrs
		if got := hostVerdict(Calc(c), hostIn, "192.0.2.8", 10250); got != at.want {
			t.Errorf("%s: %s, want %s", at.name, got, at.want)
		}
	}
	c := hostFixture(model.Rule{Action: model.Deny, Ports: []model.PortRange{tcp(22, 22)}, Own: own(netip.MustParsePrefix("169.254.0.0/16"))}, model.Rule{Action: model.Allow})
	c.Local.HostAddrs = []netip.Addr{addr("172.31.1.207"), addr("169.254.20.10")}
	if got := hostVerdict(Calc(c), hostIn, "192.0.2.8", 23); got != "true GlobalNetworkPolicy" {
		t.Errorf("another port: %s", got)
	}
	c.Policies[model.PolicyID{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "hosts"}}].Ingress[0].Ports = []model.PortRange{tcp(8081, 8081)}
	if got := hostVerdict(Calc(c), hostIn, "192.0.2.8", 8081); got != "false GlobalNetworkPolicy" {
		t.Errorf("what is denied to the link-local one: %s", got)
	}
}

// A rule that logs decides nothing, also where it is not known whether it is about the node's end
// of a packet.
func TestLogOfAnUnknownOwnEndDeniesNothing(t *testing.T) {
	t.Parallel()
	about := model.Entity{InNets: true, Nets: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}}
	for action, want := range map[model.Action]string{model.Log: "true default-allow", model.Allow: "true default-allow", model.Deny: "false GlobalNetworkPolicy",
		model.Pass: "false GlobalNetworkPolicy"} {
		c := hostFixture(model.Rule{Action: action, Own: &about})
		p := c.Policies[model.PolicyID{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "hosts"}}]
		p.ApplyOnForward, p.DoNotTrack = true, true
		if got := hostVerdict(Calc(c), func(h nodestate.HostEndpoint) nodestate.Isolation { return h.UntrackedIngress }, "192.0.2.8", 80); got != want {
			t.Errorf("action %d: %s, want %s", action, got, want)
		}
	}
}

// A policy with doNotTrack is about packets by themselves, and about nothing else: what no rule of
// it is about goes on, and so do the failsafe ports, their answers, and those of the API servers.
func TestUntrackedSetsHandOn(t *testing.T) {
	t.Parallel()
	c := hostFixture(model.Rule{Action: model.Allow, Ports: []model.PortRange{tcp(53, 53)}}, model.Rule{Action: model.Deny, Ports: []model.PortRange{tcp(1, 9000)}})
	for _, p := range c.Policies {
		p.ApplyOnForward, p.DoNotTrack = true, p.Name.Name == "hosts"
	}
	c.Settings.FailsafeIn, c.Settings.FailsafeOut = model.DefaultFailsafes()
	sl := &model.EndpointSlice{Name: model.Name{Namespace: "default", Name: "kubernetes"}, Service: cluster.APIService, NotCarried: true,
		Ports: []model.EndpointPort{{Name: "https", Protocol: model.ProtocolTCP, Port: 8443}}, Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{addr("192.0.2.7")}, Ready: true}}}
	c.Slices = map[model.Name]*model.EndpointSlice{sl.Name: sl}
	s := Calc(c)
	h := s.HostEndpoints[nodestate.HostInterface{}]
	if h.UntrackedIngress.Set == 0 || h.UntrackedEgress.Set == 0 || h.PreDNAT.Set != 0 || h.ForwardIngress.Set != 0 || !s.EvaluatesUntracked() {
		t.Fatalf("%+v", h)
	}
	if allow, _ := s.Verdict(h.HostIngress, addr("9.9.9.9"), model.ProtocolTCP, nodestate.Ports{Dst: 53}); allow {
		t.Error("the policy counts among those of the node's own traffic")
	}
	for _, x := range []struct {
		iso       nodestate.Isolation
		peer      string
		ports     nodestate.Ports
		allow, on bool
		kind      string
	}{
		{h.UntrackedIngress, "9.9.9.9", nodestate.Ports{Dst: 53}, true, false, model.KindGlobalNetworkPolicy},
		{h.UntrackedIngress, "9.9.9.9", nodestate.Ports{Dst: 54}, false, false, model.KindGlobalNetworkPolicy},
		{h.UntrackedIngress, "9.9.9.9", nodestate.Ports{Dst: 9001}, true, true, "default-allow"},
		{h.UntrackedIngress, "9.9.9.9", nodestate.Ports{Dst: 22}, true, true, "failsafe"},
		{h.UntrackedIngress, "9.9.9.9", nodestate.Ports{Src: 6443, Dst: 5000}, true, true, "failsafe"},
		{h.UntrackedIngress, "9.9.9.9", nodestate.Ports{Src: 8443, Dst: 5000}, false, false, model.KindGlobalNetworkPolicy},
		{h.UntrackedIngress, "192.0.2.7", nodestate.Ports{Src: 8443, Dst: 5000}, true, true, "failsafe"},
		{h.UntrackedEgress, "192.0.2.7", nodestate.Ports{Src: 5000, Dst: 8443}, true, true, "failsafe"},
		{h.UntrackedEgress, "9.9.9.9", nodestate.Ports{Src: 22, Dst: 5000}, true, true, "failsafe"},
		{h.UntrackedEgress, "9.9.9.9", nodestate.Ports{Src: 23, Dst: 5000}, false, false, model.KindGlobalNetworkPolicy},
	} {
		v := s.Decide(x.iso, addr(x.peer), model.ProtocolTCP, x.ports)
		if v.Allow != x.allow || v.Undecided != x.on || s.Rules.At(v.Rule).Kind != x.kind {
			t.Errorf("%s %+v: %+v by %s", x.peer, x.ports, v, s.Rules.At(v.Rule))
		}
	}
}

// Staged policies say what host endpoints would evaluate by, under sets of their own, and leave
// what they evaluate by as it is.
func TestStagedPoliciesLeaveHostEndpointsAlone(t *testing.T) {
	t.Parallel()
	at := nodestate.HostInterface{}
	allow := func(port uint16) model.Rule {
		return model.Rule{Action: model.Allow, Ports: []model.PortRange{tcp(port, port)}}
	}
	stage := func(c *model.Cluster, name string, remove bool, rules ...model.Rule) {
		p := model.Policy{Kind: model.KindStagedGlobalNetworkPolicy, Name: model.Name{Name: name}, Tier: model.TierDefault, AppliesIngress: true,
			Ingress: rules, Subject: model.Selector{Expression: "host == 'yes'"}}
		c.Staged[p.ID()] = &model.StagedPolicy{Policy: p, Delete: remove}
	}
	verdict := func(s *nodestate.State, h nodestate.HostEndpoint, port uint16) string {
		ok, rule := s.Verdict(h.HostIngress, addr("192.0.2.8"), model.ProtocolTCP, nodestate.Ports{Dst: port})
		return fmt.Sprint(ok, " ", s.Rules.At(rule).Kind)
	}
	for _, x := range []struct {
		name   string
		policy bool // one is in force, which allows 10250
		stage  func(c *model.Cluster)
		is     [2]string // of ports 10250 and 9100
		would  [2]string // "" = staged policies change nothing
	}{
		{"beside one in force", true, func(c *model.Cluster) { stage(c, "more", false, allow(9100)) },
			[2]string{"true GlobalNetworkPolicy", "false default-deny"}, [2]string{"true GlobalNetworkPolicy", "true StagedGlobalNetworkPolicy"}},
		{"in the place of one in force", true, func(c *model.Cluster) { stage(c, "hosts", false, allow(9100)) },
			[2]string{"true GlobalNetworkPolicy", "false default-deny"}, [2]string{"false default-deny", "true StagedGlobalNetworkPolicy"}},
		{"the end of one in force", true, func(c *model.Cluster) { stage(c, "hosts", true) },
			[2]string{"true GlobalNetworkPolicy", "false default-deny"}, [2]string{"true default-allow", "true default-allow"}},
		{"the first one", false, func(c *model.Cluster) { stage(c, "hosts", false, allow(9100)) },
			[2]string{"true default-allow", "true default-allow"}, [2]string{"false default-deny", "true StagedGlobalNetworkPolicy"}},
		{"about another endpoint", true, func(c *model.Cluster) {
			stage(c, "hosts2", false, allow(9100))
			for _, p := range c.Staged {
				p.Policy.Subject.Expression = "host == 'no'"
			}
		}, [2]string{"true GlobalNetworkPolicy", "false default-deny"}, [2]string{}},
	} {
		c := hostFixture(allow(10250))
		c.HostEndpoints["all"].Profiles = []string{model.ProfileDefaultAllow}
		c.Staged = map[model.PolicyID]*model.StagedPolicy{}
		if !x.policy {
			delete(c.Policies, model.PolicyID{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "hosts"}})
		}
		bare := Calc(c)
		x.stage(c)
		s := Calc(c)
		if s.HostEndpoints[at] != bare.HostEndpoints[at] {
			t.Errorf("%s: %+v is in force, without staged policies %+v", x.name, s.HostEndpoints[at], bare.HostEndpoints[at])
		}
		would, staged := s.HostStaged[at]
		if staged != (x.would[0] != "") {
			t.Errorf("%s: staged is %t", x.name, staged)
		}
		for i, port := range []uint16{10250, 9100} {
			if got := verdict(s, s.HostEndpoints[at], port); got != x.is[i] {
				t.Errorf("%s, port %d: %s, want %s", x.name, port, got, x.is[i])
			}
			if got := verdict(s, would, port); staged && got != x.would[i] {
				t.Errorf("%s, port %d: would be %s, want %s", x.name, port, got, x.would[i])
			}
		}
	}
}
