// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// broad gives the victim's pod a policy that allows everybody on four ports in, and all addresses
// but one on four ports out; it is younger than what others wrote. A third tenant has a policy
// about a hundred networks.
func broad(c *model.Cluster) {
	except := []netip.Prefix{prefix("169.254.169.254/32")}
	ports := []model.PortRange{tcp(80, 80), tcp(443, 443), tcp(8080, 8080), tcp(8443, 8443)}
	p := c.Policies[policyID("victim", "web")]
	p.Created = 5000
	p.Ingress = []model.Rule{{Ports: ports, Peers: []model.Peer{{CIDR: prefix("0.0.0.0/0")}}}}
	p.Egress = []model.Rule{{Ports: ports, Peers: []model.Peer{{CIDR: prefix("0.0.0.0/0"), Except: except}}}}
	q := tenantPolicy("third", "list", model.Selector{Namespace: "third"})
	q.Created, q.AppliesEgress = 4000, false
	for i := range 100 {
		q.Ingress = append(q.Ingress, model.Rule{Ports: []model.PortRange{tcp(80, 80)}, Peers: []model.Peer{{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i), 0}), 24)}}})
	}
	c.Policies[q.ID()] = q
}

// keepsOthers fails unless the policies of the victim and of the third tenant are in force as they
// are written.
func keepsOthers(t *testing.T, s *nodestate.State, third netip.Addr) {
	t.Helper()
	keepsPolicy(t, s)
	at := s.Addrs[addr(victim)]
	for _, x := range []struct {
		iso   nodestate.Isolation
		peer  string
		port  uint16
		allow bool
	}{{at.Ingress, "198.18.0.2", 8443, true}, {at.Ingress, "198.18.0.2", 8444, false}, {at.Egress, "198.18.0.2", 8080, true},
		{at.Egress, "169.254.169.254", 80, false}, {at.Egress, "10.244.20.3", 80, true},
		{s.Addrs[third].Ingress, "203.0.77.9", 80, true}, {s.Addrs[third].Ingress, "203.0.177.9", 80, false}} {
		allow, rule := s.Verdict(x.iso, addr(x.peer), model.ProtocolTCP, nodestate.Ports{Src: 40000, Dst: x.port})
		if r := s.Rules.At(rule); allow != x.allow || r.Kind == "policy-too-large" {
			t.Errorf("with %s, port %d: allowed %t by %s", x.peer, x.port, allow, r)
		}
	}
	if n := s.Policy.Len(); n > policy.MaxEntries {
		t.Errorf("%d entries", n)
	}
}

// What a tenant distinguishes costs others an entry a port: single networks in one policy and in
// many, networks of which each is a pattern of few lists, and pods that a few labels distinguish.
func TestHostileClassesOfOneNamespace(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a namespace's rules tell so many peers apart that the policy sets of others are refused", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, tt := range []struct {
		name  string
		write func(c *model.Cluster)
	}{
		{"one policy", func(c *model.Cluster) {
			p := tenantPolicy("attacker", "many", model.Selector{Namespace: "attacker"})
			for i := range 16000 {
				p.Ingress = append(p.Ingress, model.Rule{Peers: []model.Peer{{CIDR: network(i)}}, Ports: []model.PortRange{tcp(1, 1)}})
			}
			p.AppliesEgress = false
			c.Policies[p.ID()] = p
		}},
		{"many policies", func(c *model.Cluster) {
			for i := range 1600 {
				p := tenantPolicy("attacker", fmt.Sprintf("p%04d", i), model.Selector{Namespace: "attacker", Pods: equals("app", fmt.Sprint("pod-", i%8))})
				for j := range 10 {
					p.Ingress = append(p.Ingress, model.Rule{Peers: []model.Peer{{CIDR: network(10*i + j)}}})
				}
				p.AppliesEgress = false
				c.Policies[p.ID()] = p
			}
		}},
		{"patterns", func(c *model.Cluster) {
			p := tenantPolicy("attacker", "patterns", model.Selector{Namespace: "attacker"})
			p.Kind, p.AppliesEgress, p.Ingress = model.KindCalicoNetworkPolicy, false, patterns(16000, 14)
			c.Policies[p.ID()] = p
		}},
		{"pods", func(c *model.Cluster) {
			p := tenantPolicy("attacker", "pods", model.Selector{Namespace: "attacker"})
			p.AppliesEgress = false
			of := func(i int) map[string]string { // by three labels, of which each has 25 values
				return map[string]string{"a": fmt.Sprint(i % 25), "b": fmt.Sprint(i / 25 % 25), "c": fmt.Sprint(i / 625)}
			}
			for i := range 14000 {
				if i%64 == 0 {
					b := prefix(fmt.Sprintf("10.244.%d.%d/26", 64+i>>8, i&255))
					c.Blocks[b] = &model.Block{CIDR: b, Node: "far"}
				}
				run(c, "far", fmt.Sprint("x", i), "far", fmt.Sprintf("10.244.%d.%d", 64+i>>8, i&255), of(i))
			}
			for _, label := range []string{"a", "b", "c"} {
				for value := range 25 {
					p.Ingress = append(p.Ingress, model.Rule{Peers: []model.Peer{{Pods: &model.Selector{Namespaces: &model.LabelSelector{}, Pods: equals(label, fmt.Sprint(value))}}}})
				}
			}
			c.Policies[p.ID()] = p
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := shared(8, "attacker", "third")
			tt.write(c)
			broad(c)
			k := New()
			s, _ := k.Update(c, model.AllDirty())
			keepsOthers(t, s, addr("10.244.21.1"))
			for _, o := range s.Overdrawn {
				if o.Namespace != "attacker" {
					t.Errorf("overdrawn: %v", o)
				}
			}
			if len(s.Overdrawn) == 0 {
				t.Error("nobody is named")
			}
			rejoins(t, k, c)
		})
	}
}

// Fourteen lists of 8,000 networks each make 16,000 classes, in the names of which each list would
// be written out: 144 KB by 7 by 16,000.
func TestHostileNamesOfClasses(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a few lists of thousands of networks make classes whose names take gigabytes", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := shared(1, "attacker")
	p := tenantPolicy("attacker", "patterns", model.Selector{Namespace: "attacker"})
	p.Kind, p.AppliesEgress, p.Ingress = model.KindCalicoNetworkPolicy, false, patterns(1000, 10)
	c.Policies[p.ID()] = p
	k := New()
	s, _ := k.Update(c, model.AllDirty())
	keepsPolicy(t, s)
	if l := k.policy.Load(); l.Classes < 1000 || l.Texts > 1000*l.Classes {
		t.Errorf("the names of %d classes take %d bytes", l.Classes, l.Texts)
	}
}

// patterns are rules about some lists of networks, of which each is in those that the bits of its
// number say.
func patterns(networks, lists int) (out []model.Rule) {
	for bit := range lists {
		r := model.Rule{Action: model.Allow, Other: &model.Entity{InNets: true}}
		for i := range networks {
			if i>>bit&1 == 1 {
				r.Other.Nets = append(r.Other.Nets, network(i))
			}
		}
		out = append(out, r)
	}
	return out
}

// rejoins goes on with a calculator: what the attack took back brings all of it into force, and
// what comes again is refused again.
func rejoins(t *testing.T, k *Calculator, c *model.Cluster) {
	t.Helper()
	var dirty Dirty
	dirty.Add(model.KindPolicies)
	gone := map[model.PolicyID]*model.Policy{}
	for id, p := range c.Policies {
		if id.Name.Namespace == "attacker" {
			gone[id] = p
		}
	}
	for id := range gone {
		delete(c.Policies, id)
	}
	s, _ := k.Update(c, dirty)
	if started := Calc(c); !nodestate.Equal(started, s) || len(s.Unfit)+len(s.Overdrawn) > 0 {
		t.Errorf("without the attack: unfit %v, overdrawn %v:\n%s", s.Unfit, s.Overdrawn, nodestate.Diff(s, started))
	}
	for id, p := range gone {
		c.Policies[id] = p
	}
	k.Update(c, dirty)
	run(c, "far", "newcomer", "far", "10.244.2.9", app("x1"))
	var more Dirty
	more.AddPod(model.Name{Namespace: "far", Name: "newcomer"}, nil)
	s, _ = k.Update(c, more)
	if started := Calc(c); !nodestate.Equal(started, s) {
		t.Errorf("with it again:\n%.2000s", nodestate.Diff(s, started))
	}
}

// A namespace that distinguishes no more peers than are reserved for each is not refused for that,
// however narrow the table gets; and who asks for more than a set may have by itself takes nothing
// from others by it.
func TestClassesAreLent(t *testing.T) {
	t.Parallel()
	c := shared(8, "attacker", "third")
	broad(c)
	greedy(c, "attacker", 8, 400) // more than the table by itself
	s := Calc(c)
	keepsOthers(t, s, addr("10.244.21.1"))
	if slices.ContainsFunc(s.Overdrawn, func(o nodestate.Overdrawn) bool { return o.Table != "policy entries" || o.Namespace != "attacker" }) {
		t.Errorf("overdrawn: %v", s.Overdrawn)
	}
}

// A tenant's policies name more networks than there is room for.
func TestHostileNetworksOfOneNamespace(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a namespace's policies name more networks than bpfMapSizeIPSets, so that the policies of all others are refused", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := shared(8, "attacker", "third")
	broad(c)
	c.Settings.MaxNetworks = 20000
	for i := range 8 {
		p := tenantPolicy("attacker", fmt.Sprint("p", i), model.Selector{Namespace: "attacker", Pods: equals("app", fmt.Sprint("pod-", i))})
		p.Kind, p.Created, p.AppliesEgress = model.KindCalicoNetworkPolicy, int64(i), false
		r := model.Rule{Action: model.Allow, Other: &model.Entity{InNets: true}}
		for j := range 4000 {
			r.Other.Nets = append(r.Other.Nets, network(4000*i+j))
		}
		p.Ingress = []model.Rule{r}
		c.Policies[p.ID()] = p
	}
	k := New()
	s, _ := k.Update(c, model.AllDirty())
	keepsOthers(t, s, addr("10.244.21.1"))
	if len(s.PeerCIDRs) > c.Settings.MaxNetworks || len(s.PeerCIDRs) < 16000 {
		t.Errorf("%d networks", len(s.PeerCIDRs))
	}
	if len(s.Overdrawn) != 1 || s.Overdrawn[0].Namespace != "attacker" || s.Overdrawn[0].Table != "networks" || s.Overdrawn[0].Asked != 32000 || s.Overdrawn[0].Refused != 4 {
		t.Errorf("overdrawn: %v", s.Overdrawn)
	}
	for i := range 8 { // the youngest are refused, whole
		_, rule := s.Verdict(s.Addrs[addr(fmt.Sprint("10.244.20.", 1+i))].Ingress, network(4000*i).Addr(), model.ProtocolTCP, nodestate.Ports{Dst: 1})
		if cut := s.Rules.At(rule).Kind == "policy-too-large"; cut != (i >= 4) {
			t.Errorf("pod-%d has %s", i, s.Rules.At(rule))
		}
	}
	rejoins(t, k, c)
}
