// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// victim is a pod of a namespace of its own whose policy lets TCP 80 of anybody in, and TCP 443 out
// to all addresses. Its name comes after those of the attackers' namespaces.
const victim = "10.244.1.200"

// shared is a node with the victim's pod and pods of other tenants, n in each of their namespaces.
func shared(n int, tenants ...string) *model.Cluster {
	c := base()
	run(c, "victim", "web", "worker", victim, app("web"))
	p := tenantPolicy("victim", "web", model.Selector{Namespace: "victim"})
	p.Ingress = []model.Rule{{Ports: []model.PortRange{tcp(80, 80)}}}
	p.Egress = []model.Rule{{Ports: []model.PortRange{tcp(443, 443)}, Peers: []model.Peer{{CIDR: prefix("0.0.0.0/0")}}}}
	c.Policies[p.ID()] = p
	for i, ns := range tenants {
		for j := range n {
			run(c, ns, fmt.Sprint("pod-", j), "worker", fmt.Sprintf("10.244.%d.%d", 20+i, 1+j), app(fmt.Sprint("pod-", j)))
		}
	}
	return c
}

// tenantPolicy is a NetworkPolicy for both directions without rules.
func tenantPolicy(ns, name string, subject model.Selector) *model.Policy {
	return &model.Policy{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: ns, Name: name}, Tier: model.TierDefault,
		Order: model.NetworkPolicyOrder, Subject: subject, AppliesIngress: true, AppliesEgress: true}
}

// network is the i-th of many networks of one address each that no two of are joined.
func network(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(18 + i>>15), byte(i >> 7), byte(i << 1)}), 32)
}

// networks are peers of n networks, of which each second leaves something out.
func networkPeers(n int) (out []model.Peer) {
	for i := range n {
		out = append(out, model.Peer{CIDR: network(i)})
		if i%2 == 1 {
			out[i] = model.Peer{CIDR: netip.PrefixFrom(network(i).Addr(), 30).Masked(), Except: []netip.Prefix{network(i)}}
		}
	}
	return out
}

// keepsPolicy fails unless the victim's pod has what its policy says: no more, and no less.
func keepsPolicy(t *testing.T, s *nodestate.State) {
	t.Helper()
	at := s.Addrs[addr(victim)]
	for _, x := range []struct {
		iso   nodestate.Isolation
		peer  string
		port  uint16
		allow bool
	}{{at.Ingress, "10.244.20.1", 80, true}, {at.Ingress, "10.244.20.1", 81, false}, {at.Egress, "198.18.0.0", 443, true},
		{at.Egress, "8.8.8.8", 443, true}, {at.Egress, "8.8.8.8", 444, false}} {
		allow, rule := s.Verdict(x.iso, addr(x.peer), model.ProtocolTCP, nodestate.Ports{Src: 40000, Dst: x.port})
		if r := s.Rules.At(rule); allow != x.allow || r.Kind == "policy-too-large" {
			t.Errorf("the victim with %s, port %d: allowed %t by %s", x.peer, x.port, allow, r)
		}
	}
}

// cost is how many entries the sets of one pod have.
func cost(s *nodestate.State, pod string) (n int) {
	at := s.Addrs[addr(pod)]
	for k := range s.Policy.All() {
		if k.Set == at.Ingress.Set || k.Set == at.Egress.Set {
			n++
		}
	}
	return n
}

// 95 KB of NetworkPolicies: five of 250 peers and 250 ports each.
func TestHostilePeersTimesPorts(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "policies of 250 peers and 250 ports fill the policy table", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := shared(21, "attacker")
	fill(c, "attacker", 5)
	for i := range 5 {
		name := fmt.Sprint("pod-", i)
		p := tenantPolicy("attacker", name, model.Selector{Namespace: "attacker", Pods: equals("app", name)})
		p.AppliesEgress, p.Ingress = false, []model.Rule{{Peers: networkPeers(250), Ports: oddPorts(250)}}
		c.Policies[p.ID()] = p
	}
	s := Calc(c)
	keepsPolicy(t, s)
	t.Logf("one pod's policy of 250 peers and 250 ports: %d entries", cost(s, "10.244.20.1"))
	if n := cost(s, "10.244.20.1"); n > 500 {
		t.Errorf("a policy of 250 peers and 250 ports takes %d entries", n)
	}
	for i := range 5 { // which is still what the policy says
		iso := s.Addrs[addr(fmt.Sprint("10.244.20.", 1+i))].Ingress
		for _, x := range []struct {
			peer  netip.Addr
			port  uint16
			allow bool
		}{{network(8).Addr(), 3, true}, {network(8).Addr(), 4, false}, {network(9).Addr(), 3, false}, {network(9).Addr().Next(), 3, true}, {network(600).Addr(), 3, false}} {
			if allow, rule := s.Verdict(iso, x.peer, model.ProtocolTCP, nodestate.Ports{Dst: x.port}); allow != x.allow {
				t.Errorf("%s to port %d: allowed %t by %s", x.peer, x.port, allow, s.Rules.At(rule))
			}
		}
	}
}

// 250 source ports and 250 destination ports.
func TestHostileSourceTimesDestinationPorts(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a policy of 250 source ports and 250 destination ports takes 62,500 entries, or is refused", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := shared(1, "attacker")
	p := tenantPolicy("attacker", "ports", model.Selector{Namespace: "attacker"})
	p.Kind, p.AppliesEgress = model.KindCalicoNetworkPolicy, false
	p.Ingress = []model.Rule{{Ports: oddPorts(250), SourcePorts: oddPorts(250)}}
	c.Policies[p.ID()] = p
	s := Calc(c)
	keepsPolicy(t, s)
	iso := s.Addrs[addr("10.244.20.1")].Ingress
	for src := range uint16(8) {
		for dst := range uint16(8) {
			allow, rule := s.Verdict(iso, addr("10.244.2.1"), model.ProtocolTCP, nodestate.Ports{Src: 400 + src, Dst: 400 + dst})
			if want := src%2 == 1 && dst%2 == 1; allow != want {
				t.Errorf("from port %d to %d: allowed %t by %s", 400+src, 400+dst, allow, s.Rules.At(rule))
			}
		}
	}
	t.Logf("%d entries", cost(s, "10.244.20.1"))
	if n := cost(s, "10.244.20.1"); n > 510 {
		t.Errorf("%d entries", n)
	}
}

// fill has the pods of a namespace from the first on take what room there is left, by policies of
// 32,768, 16,384, and so on, entries.
func fill(c *model.Cluster, ns string, first int) {
	for i := range 16 {
		name := fmt.Sprint("pod-", first+i)
		p := tenantPolicy(ns, fmt.Sprintf("z%02d", i), model.Selector{Namespace: ns, Pods: equals("app", name)})
		p.AppliesEgress, p.Ingress = false, []model.Rule{{Ports: oddPorts(1 << (15 - i))}}
		c.Policies[p.ID()] = p
	}
}
