// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"testing"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// What no encoding makes small: as many rules as networks, each with ports of its own.
func TestHostilePoliciesOfOneNamespace(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a namespace's policies take all of the policy table", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := shared(30, "attacker", "beside")
	greedy(c, "attacker", 14, 40)
	fill(c, "beside", 0) // so that what is left is less than the victim's two entries
	s := Calc(c)
	keepsPolicy(t, s)
	if n := s.Policy.Len(); n < 1<<17 || n > policy.MaxEntries {
		t.Errorf("%d entries: what nobody else asks for is the attacker's to use", n)
	}
}

// greedy gives each of the pods of a namespace a policy of rules with about 500 entries each.
func greedy(c *model.Cluster, ns string, pods, rules int) {
	for i := range pods {
		name := fmt.Sprint("pod-", i)
		p := tenantPolicy(ns, name, model.Selector{Namespace: ns, Pods: equals("app", name)})
		p.AppliesEgress = false
		for j := range rules {
			p.Ingress = append(p.Ingress, model.Rule{Peers: []model.Peer{{CIDR: network(i*rules + j)}}, Ports: oddPorts(500)})
		}
		c.Policies[p.ID()] = p
	}
}

// Policies that take few entries and much work: what each of 4,000 networks gets is what everybody
// gets, of 4,000 ports. The time is bounded by refusing them before they are looked at.
func TestHostileWorkOfOneNamespace(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a namespace's policies take minutes of an agent's processor", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := shared(20, "attacker")
	for i := range 20 {
		name := fmt.Sprint("pod-", i)
		p := tenantPolicy("attacker", name, model.Selector{Namespace: "attacker", Pods: equals("app", name)})
		p.AppliesEgress, p.Ingress = false, []model.Rule{{Ports: oddPorts(4000)}}
		for j := range 4000 {
			p.Ingress = append(p.Ingress, model.Rule{Peers: []model.Peer{{CIDR: network(j)}}, Ports: oddPorts(1)})
		}
		c.Policies[p.ID()] = p
	}
	s := Calc(c)
	keepsPolicy(t, s)
	for i := range 20 {
		iso := s.Addrs[addr(fmt.Sprint("10.244.20.", 1+i))].Ingress
		if _, rule := s.Verdict(iso, addr("10.244.2.1"), model.ProtocolTCP, nodestate.Ports{Dst: 3}); s.Rules.At(rule).Kind != "policy-too-large" {
			t.Fatalf("pod-%d has %s: somebody looked at 16,000,000 ranges of ports for it", i, s.Rules.At(rule))
		}
	}
}

// A namespace with more policies, all of them about all of its pods, than anybody can read.
func TestHostileThousandsOfPolicies(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "thousands of policies that each select all pods of a namespace", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := shared(50, "attacker")
	for i := range 2000 {
		p := tenantPolicy("attacker", fmt.Sprintf("p-%04d", i), model.Selector{Namespace: "attacker"})
		p.Ingress = []model.Rule{{Peers: []model.Peer{{CIDR: network(i)}}, Ports: oddPorts(20)}}
		p.Egress = p.Ingress
		c.Policies[p.ID()] = p
	}
	for i := range 50 { // so that each pod has a set of its own
		name := fmt.Sprint("pod-", i)
		p := tenantPolicy("attacker", "own-"+name, model.Selector{Namespace: "attacker", Pods: equals("app", name)})
		c.Policies[p.ID()] = p
	}
	k := New()
	s, _ := k.Update(c, model.AllDirty())
	keepsPolicy(t, s)
	if n := s.Policy.Len(); n > policy.MaxEntries {
		t.Errorf("%d entries", n)
	}
	if n := k.policy.Load().Sets; n > 12 {
		t.Errorf("%d sets of 42,000 entries were looked at, of which six fit", n)
	}
}

// Namespaces that are refused something are named, with the figures.
func TestOverdrawnNamespaceIsNamed(t *testing.T) {
	t.Parallel()
	c := shared(30, "attacker")
	greedy(c, "attacker", 14, 40)
	fill(c, "attacker", 14)
	s := Calc(c)
	if len(s.Overdrawn) != 1 {
		t.Fatalf("overdrawn: %v", s.Overdrawn)
	}
	o := s.Overdrawn[0]
	if o.Namespace != "attacker" || o.Granted < 1<<17 || o.Granted > policy.MaxEntries || o.Asked <= policy.MaxEntries || o.Refused != len(s.Unfit) || o.Reserved != 1024 || o.Share != 32768 {
		t.Errorf("%+v, with %d unfit", o, len(s.Unfit))
	}
}

// What a tenant has within its share stays when a newcomer comes, whatever that one asks for and
// whatever its name is; and the same sets are refused when the agent starts with all of it there.
func TestNewcomerDisplacesNothing(t *testing.T) {
	t.Parallel()
	c := shared(10, "middle")
	greedy(c, "middle", 1, 40) // 20,000 entries
	for _, p := range c.Policies {
		p.Created = 1000
	}
	k := New()
	before, _ := k.Update(c, model.AllDirty())
	for i := range 20 {
		run(c, "a-newcomer", fmt.Sprint("pod-", i), "worker", fmt.Sprint("10.244.30.", 1+i), app(fmt.Sprint("pod-", i)))
	}
	greedy(c, "a-newcomer", 20, 50)
	for _, p := range c.Policies {
		if p.Name.Namespace == "a-newcomer" {
			p.Created = 2000
		}
	}
	after, _ := k.Update(c, model.AllDirty())
	keepsPolicy(t, after)
	for a, v := range before.Addrs {
		if after.Addrs[a].Ingress != v.Ingress || after.Addrs[a].Egress != v.Egress {
			t.Errorf("%s had %v, %v and has %v, %v", a, v.Ingress, v.Egress, after.Addrs[a].Ingress, after.Addrs[a].Egress)
		}
	}
	if len(after.Unfit) == 0 {
		t.Error("the newcomer got everything: the test is too plain")
	}
	if started := Calc(c); !nodestate.Equal(started, after) {
		t.Errorf("started with all of it there:\n%s", nodestate.Diff(after, started))
	}
}
