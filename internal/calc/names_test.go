// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

var namesPod = netip.MustParseAddr("10.244.0.2")

// namesCluster has one pod, on this node.
func namesCluster(policies ...*model.Policy) *model.Cluster {
	c := model.NewCluster()
	name := model.Name{Namespace: "default", Name: "a"}
	c.Namespaces["default"] = &model.Namespace{Name: "default"}
	c.Nodes["n"] = &model.Node{Name: "n", Addrs: []netip.Addr{netip.MustParseAddr("172.30.0.8")}}
	c.Pods.Put(&model.Pod{Name: name, Node: "n", Addrs: []netip.Addr{namesPod}})
	c.Local = model.Local{Node: "n", Endpoints: map[netip.Addr]*model.LocalEndpoint{
		namesPod: {Pod: name, Interface: "cali0", IfIndex: 5, Addrs: []netip.Addr{namesPod}}}}
	for _, p := range policies {
		c.Policies[p.ID()] = p
	}
	return c
}

func namesPolicy(name, tier string, rules ...model.Rule) *model.Policy {
	return &model.Policy{Kind: model.KindClusterNetworkPolicy, Name: model.Name{Name: name}, Tier: tier, AppliesEgress: true, Egress: rules}
}

// The tables of names are there while policy has names, with the servers that settings trust.
func TestNameTables(t *testing.T) {
	t.Parallel()
	rules := []model.Rule{{Action: model.Allow, Peers: []model.Peer{{Domains: []string{"*.example.com", "example.org"}}}}, {Action: model.Deny}}
	c := namesCluster(namesPolicy("p", model.TierAdmin, rules...))
	dns := netip.MustParseAddr("10.96.0.10")
	c.Services[model.ClusterDNS] = &model.Service{Name: model.ClusterDNS, ClusterIPs: []netip.Addr{dns}}
	c.Slices[model.ClusterDNS] = &model.EndpointSlice{Name: model.ClusterDNS, Service: model.ClusterDNS, Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.9")}}}}
	c.Settings.DNS.Servers, c.Settings.DNS.ExtraTTL = []netip.Addr{netip.MustParseAddr("192.0.2.53")}, time.Minute
	c.Local.HostAddrs = []netip.Addr{netip.MustParseAddr("169.254.20.10")}
	k := New()
	s, _ := k.Update(c, model.AllDirty())
	if len(s.Names.Patterns) != 2 || len(s.Names.Sets) != 2 || s.Names.ExtraTTL != 60 {
		t.Errorf("%+v", s.Names)
	}
	want := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("192.0.2.53")}
	slices.SortFunc(want, netip.Addr.Compare)
	if !slices.Equal(s.Names.Servers, want) {
		t.Errorf("servers %v, want %v", s.Names.Servers, want)
	}
	// One list of patterns is one set more, which stays what it is when another rule comes.
	sets := map[nodestate.SetID]bool{}
	for _, id := range s.Names.Sets {
		sets[id] = true
	}
	if len(sets) != 1 {
		t.Errorf("%d sets of names", len(sets))
	}
	c.Policies[namesPolicy("p", "").ID()] = namesPolicy("p", model.TierAdmin, append([]model.Rule{{Action: model.Deny, Peers: []model.Peer{{CIDR: netip.MustParsePrefix("10.0.0.0/8")}}}}, rules...)...)
	dirty := model.Dirty{Kinds: model.KindPolicies}
	next, keys := k.Update(c, dirty)
	if keys.Has(nodestate.TableNames) || !next.Names.Equal(&s.Names) {
		t.Errorf("names changed with another rule: %+v", next.Names)
	}
	clear(c.Policies)
	if s, _ = k.Update(c, dirty); len(s.Names.Patterns)+len(s.Names.Sets)+len(s.Names.Servers) > 0 {
		t.Errorf("without policy: %+v", s.Names)
	}
}

// Names of staged policies have sets of their own, which bind no pod until they are in force.
func TestStagedNameTables(t *testing.T) {
	t.Parallel()
	c := namesCluster()
	p := &model.Policy{Kind: model.KindCalicoNetworkPolicy, Name: model.Name{Namespace: "default", Name: "p"}, Tier: model.TierDefault, AppliesEgress: true,
		Subject: model.Selector{Namespace: "default"}, Egress: []model.Rule{{Action: model.Allow, Peers: []model.Peer{{Domains: []string{"a.test"}}}}}}
	s := &model.StagedPolicy{Policy: *p}
	s.Policy.Kind = model.KindStagedNetworkPolicy
	c.Staged = map[model.PolicyID]*model.StagedPolicy{s.Policy.ID(): s}
	k := New()
	state, _ := k.Update(c, model.AllDirty())
	would := state.Staged[namesPod].Egress
	if set := state.Addrs[namesPod].Egress.Set; set != 0 || len(state.Names.Patterns) != 1 || !state.Names.SetsWithNames()[would.Set] {
		t.Fatalf("bound by %x, names %+v, staged %+v", set, state.Names, would)
	}
	ids, to := []nodestate.NameID{state.Names.Patterns["a.test"]}, netip.MustParseAddr("198.18.0.1")
	if v, by := state.DecideNamed(would, ids, to, model.ProtocolTCP, nodestate.Ports{Dst: 443}); !v.Allow || by != ids[0] {
		t.Errorf("%+v by %d", v, by)
	}
	// In force it is the same set, so what pods were told meanwhile counts.
	c.Staged = nil
	c.Policies[p.ID()] = p
	next, _ := k.Update(c, model.Dirty{Kinds: model.KindPolicies})
	if next.Addrs[namesPod].Egress.Set == 0 || len(next.Staged) > 0 || next.Names.Patterns["a.test"] != ids[0] {
		t.Errorf("in force: %+v, names %+v", next.Addrs[namesPod].Egress, next.Names)
	}
}

// Of random policies the tables say of addresses with names what a walk through the rules says, in
// which a rule is about all addresses that one of its names led to.
func TestNamesAsRulesSay(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	patterns := []string{"a.test", "b.test", "c.test", "*.d.test"}
	some := func() (out []string) {
		for _, p := range patterns {
			if r.IntN(3) == 0 {
				out = append(out, p)
			}
		}
		return out
	}
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(r.IntN(8))}) }
	allowed, denied := 0, 0
	for range 400 {
		var policies []*model.Policy
		for i := range 1 + r.IntN(3) {
			var rules []model.Rule
			for range 1 + r.IntN(4) {
				m := model.Rule{Action: []model.Action{model.Allow, model.Allow, model.Deny, model.Pass}[r.IntN(4)]}
				switch names := some(); {
				case m.Action == model.Allow && len(names) > 0 && r.IntN(3) > 0:
					m.Peers = []model.Peer{{Domains: names}}
					if r.IntN(4) == 0 {
						m.Peers = append(m.Peers, model.Peer{CIDR: netip.PrefixFrom(addr(), 32)})
					}
				case r.IntN(2) == 0:
					m.Peers = []model.Peer{{CIDR: netip.PrefixFrom(addr(), 30).Masked()}}
				}
				if r.IntN(2) == 0 {
					port := uint16(80 + r.IntN(3))
					m.Ports = []model.PortRange{{Protocol: model.ProtocolTCP, First: port, Last: port}}
				}
				rules = append(rules, m)
			}
			p := namesPolicy(fmt.Sprint("p", i), []string{model.TierAdmin, model.TierDefault}[r.IntN(2)], rules...)
			p.Order = float64(i)
			policies = append(policies, p)
		}
		c := namesCluster(policies...)
		s := Calc(c)
		iso := s.Addrs[namesPod].Egress
		for range 30 {
			peer, names, ports := addr(), some(), nodestate.Ports{Src: 1, Dst: uint16(80 + r.IntN(3))}
			var ids []nodestate.NameID
			for _, n := range names {
				if id, has := s.Names.Patterns[n]; has {
					ids = append(ids, id)
				}
			}
			r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
			v, _ := s.DecideNamed(iso, ids, peer, model.ProtocolTCP, ports)
			x, _ := policy.Explain(c, policy.Question{Endpoint: namesPod, Peer: peer, Proto: model.ProtocolTCP, Ports: ports, Names: names})
			if v.Allow != x.Allow {
				t.Fatalf("%s with names %v, port %d: the tables allow %v, the rules %v by %v\n%s", peer, names, ports.Dst, v.Allow, x.Allow, x.Rule, s)
			}
			if without, _ := s.Verdict(iso, peer, model.ProtocolTCP, ports); !without && v.Allow {
				allowed++
			} else if !v.Allow {
				denied++
			}
		}
	}
	if allowed < 100 || denied < 100 {
		t.Errorf("%d allowed by a name, %d denied: too few to tell", allowed, denied)
	}
}
