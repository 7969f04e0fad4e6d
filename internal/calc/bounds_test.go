// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// A set of policies that takes more of a node than it may is refused: its pods are cut off in that
// direction, by a rule that names the policies; the others are as if it were not there.
func TestPolicyBeyondTheBoundIsRefused(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	big := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "big"}, Tier: model.TierDefault, AppliesIngress: true,
		Subject: model.Selector{Expression: "app == 'free'"}}
	var ports []model.PortRange
	for i := range 2000 {
		ports = append(ports, tcp(uint16(2*i+1), uint16(2*i+1)))
	}
	for i := range 40 {
		a := fmt.Sprint("peer", i)
		run(c, "other", a, "far", fmt.Sprintf("10.244.2.%d", 10+i), app(a))
		big.Ingress = append(big.Ingress, model.Rule{Action: model.Allow, Ports: ports, Other: &model.Entity{Selector: "app == '" + a + "'"}})
	}
	c.Policies[big.ID()] = big
	s := Calc(c)
	iso := s.Addrs[addr("10.244.1.3")].Ingress
	allow, rule := s.Verdict(iso, addr("10.244.2.10"), model.ProtocolTCP, nodestate.Ports{Dst: 1})
	if r := s.Rules.At(rule); allow || r.Kind != "policy-too-large" || r.Name != "big" {
		t.Errorf("allow=%t by %s", allow, r)
	}
	if s.Policy.Len() > 1000 {
		t.Errorf("%d entries", s.Policy.Len())
	}
	if allow, _ := s.Verdict(s.Addrs[addr("10.244.1.2")].Ingress, addr("172.31.1.162"), model.ProtocolTCP, nodestate.Ports{Dst: 80}); !allow {
		t.Error("another pod is cut off too")
	}
	big.Ingress = big.Ingress[:20]
	s = Calc(c)
	iso = s.Addrs[addr("10.244.1.3")].Ingress
	if allow, _ := s.Verdict(iso, addr("10.244.2.10"), model.ProtocolTCP, nodestate.Ports{Dst: 1}); !allow {
		t.Error("refused within the bound")
	}
	if strings.Contains(s.String(), "policy-too-large") {
		t.Error("a rule is left that decides nothing")
	}
}

// oddPorts are n single ports of TCP that no prefix joins.
func oddPorts(n int) (out []model.PortRange) {
	for i := range n {
		out = append(out, tcp(uint16(2*i+1), uint16(2*i+1)))
	}
	return out
}

// forFree is a policy about the pod that no policy of the fixture selects.
func forFree(kind, name string, rules ...model.Rule) model.Policy {
	return model.Policy{Kind: kind, Name: model.Name{Name: name}, Tier: model.TierDefault, AppliesIngress: true, Ingress: rules,
		Subject: model.Selector{Expression: "app == 'free'"}}
}

func stage(c *model.Cluster, p model.Policy) {
	s := &model.StagedPolicy{Policy: p}
	c.Staged[p.ID()] = s
}

// What staged policies take never costs a policy that is in force its place: a staged set that does
// not fit is left out.
func TestStagedPolicyBeyondTheBoundIsLeftOut(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	for i := range 3 {
		run(c, "other", fmt.Sprint("peer", i), "far", fmt.Sprintf("10.244.2.%d", 10+i), app(fmt.Sprint("peer", i)))
	}
	from := func(expr string, ports int) model.Rule {
		return model.Rule{Action: model.Allow, Ports: oddPorts(ports), Other: &model.Entity{Selector: expr}}
	}
	peers := []model.Rule{from("app == 'peer0'", 1), from("app == 'peer1'", 1), from("app == 'peer2'", 1)}
	for _, x := range []struct {
		name          string
		inForce, then []model.Rule
	}{
		{"too large itself", nil, []model.Rule{from("app == 'peer0'", 25000), from("app == 'peer1'", 25000), from("app == 'peer2'", 25000)}},
		{"makes one in force too large", []model.Rule{from("app starts with 'peer'", 25000)}, peers},
	} {
		bare := policyFixture()
		*bare = *c
		bare.Staged, bare.Policies = nil, maps.Clone(c.Policies)
		if x.inForce != nil {
			p := forFree(model.KindGlobalNetworkPolicy, "in-force", x.inForce...)
			bare.Policies[p.ID()] = &p
		}
		all := *bare
		all.Staged = map[model.PolicyID]*model.StagedPolicy{}
		stage(&all, forFree(model.KindStagedGlobalNetworkPolicy, "would", x.then...))
		got, want := Calc(&all), Calc(bare)
		name := "would (staged)"
		if x.inForce != nil {
			name = "in-force," + name
		}
		if len(got.Unfit) != 1 || got.Unfit[0] != (nodestate.Rule{Kind: "staged-policy-too-large", Name: name, Detail: "ingress"}) {
			t.Errorf("%s: reported %v", x.name, got.Unfit)
		}
		if len(got.Staged) > 0 {
			t.Errorf("%s: in the tables all the same: %v", x.name, got.Staged)
		}
		if len(want.Unfit) > 0 || !maps.Equal(got.Addrs, want.Addrs) {
			t.Errorf("%s: what is in force became another:\n%s", x.name, nodestate.Diff(want, got))
		}
		peer, ports := addr("10.244.2.10"), nodestate.Ports{Dst: 1}
		iso := got.Addrs[addr("10.244.1.3")].Ingress
		if allow, _ := got.Verdict(iso, peer, model.ProtocolTCP, ports); !allow {
			t.Errorf("%s: the pod is cut off", x.name)
		}
	}
}

// What staged policies would do is found in the tables of policy alongside what is in force, by the
// endpoints' second pair of sets.
func TestStagedPolicy(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	free, peer := addr("10.244.1.3"), addr("172.31.1.162")
	p := forFree(model.KindGlobalNetworkPolicy, "gate", model.Rule{Action: model.Allow, Ports: []model.PortRange{tcp(80, 80)}})
	c.Policies[p.ID()] = &p
	before := Calc(c)
	verdict := func(s *nodestate.State, iso nodestate.Isolation, port uint16) string {
		allow, rule := s.Verdict(iso, peer, model.ProtocolTCP, nodestate.Ports{Dst: port})
		return fmt.Sprint(allow, " ", s.Rules.At(rule))
	}
	stage(c, forFree(model.KindStagedGlobalNetworkPolicy, "gate", model.Rule{Action: model.Allow, Ports: []model.PortRange{tcp(81, 81)}}))
	s := Calc(c)
	if !maps.Equal(s.Addrs, before.Addrs) {
		t.Errorf("a staged policy is in force:\n%s", nodestate.Diff(before, s))
	}
	if len(s.Staged) != 1 {
		t.Fatalf("staged: %v", s.Staged)
	}
	would := s.Staged[free].Ingress
	for port, want := range map[uint16]string{80: "false default-deny gate (staged) ingress", 81: "true StagedGlobalNetworkPolicy gate ingress[0]"} {
		if got := verdict(s, would, port); got != want {
			t.Errorf("port %d: %s, want %s", port, got, want)
		}
	}
	if got, want := verdict(s, s.Addrs[free].Ingress, 80), "true GlobalNetworkPolicy gate ingress[0]"; got != want {
		t.Errorf("in force: %s, want %s", got, want)
	}
	c.Staged[model.PolicyID{Kind: model.KindStagedGlobalNetworkPolicy, Name: p.Name}].Delete = true
	if s = Calc(c); len(s.Staged) != 1 || s.Staged[free] != (nodestate.StagedIsolation{}) {
		t.Errorf("without the policy the pod is isolated: %v", s.Staged)
	}
	if s.Policy.Len() != before.Policy.Len() {
		t.Error("a set more, for an endpoint that would have none")
	}
	other := forFree(model.KindGlobalNetworkPolicy, "other")
	c.Policies[other.ID()] = &other
	s = Calc(c)
	alone := Calc(&model.Cluster{Namespaces: c.Namespaces, Pods: c.Pods, Nodes: c.Nodes, Policies: map[model.PolicyID]*model.Policy{other.ID(): &other},
		Settings: c.Settings, Local: c.Local})
	if got, want := s.Staged[free].Ingress, alone.Addrs[free].Ingress; got != want {
		t.Errorf("the same policies, another set: %v, %v", got, want)
	}
}

// Of more networks than the table holds none is written: the sets that ask for networks are cut
// off, the others are not.
func TestMoreNetworksThanFitCutOff(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	maps.DeleteFunc(c.Policies, func(id model.PolicyID, _ *model.Policy) bool { return id.Name.Name == "from-outside" }) // requiredAtoms for one too
	set := &model.NetworkSet{Name: model.Name{Name: "feed"}, Labels: map[string]string{"feed": "threat"}}
	c.Settings.MaxNetworks = 1000
	for i := range c.Settings.MaxNetworks + 1 {
		set.Nets = append(set.Nets, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32))
	}
	c.NetworkSets = map[model.Name]*model.NetworkSet{set.Name: set}
	before := Calc(c)
	p := forFree(model.KindGlobalNetworkPolicy, "feed", model.Rule{Action: model.Deny, Other: &model.Entity{Selector: "feed == 'threat'"}}, model.Rule{Action: model.Allow})
	c.Policies[p.ID()] = &p
	s := Calc(c)
	if len(s.PeerCIDRs) > c.Settings.MaxNetworks || len(s.Unfit) != 1 || s.Unfit[0].Name != "feed" {
		t.Fatalf("%d networks, unfit: %v", len(s.PeerCIDRs), s.Unfit)
	}
	for a, v := range s.Addrs {
		if a != addr("10.244.1.3") && v != before.Addrs[a] {
			t.Errorf("%s became %+v", a, v)
		}
	}
	if allow, rule := s.Verdict(s.Addrs[addr("10.244.1.3")].Ingress, addr("9.9.9.9"), model.ProtocolTCP, nodestate.Ports{Dst: 1}); allow || s.Rules.At(rule).Kind != "policy-too-large" {
		t.Errorf("allowed %t by %v", allow, s.Rules.At(rule))
	}
	k := New()
	k.Update(c, model.AllDirty())
	c.Settings.MaxNetworks++ // whoever asks for more gets it
	var dirty Dirty
	dirty.Add(model.KindSettings)
	if s, _ = k.Update(c, dirty); len(s.Unfit) > 0 || len(s.PeerCIDRs) != c.Settings.MaxNetworks {
		t.Errorf("with room for one more: unfit %v, %d networks", s.Unfit, len(s.PeerCIDRs))
	}
	c.Settings.MaxNetworks--
	set.Nets = set.Nets[:10]
	if s = Calc(c); len(s.Unfit) > 0 || len(s.PeerCIDRs) != 10 {
		t.Errorf("fits: %v, %d networks", s.Unfit, len(s.PeerCIDRs))
	}
}
