// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// policyCluster is egressCluster, where the client's gateways are said by a policy of three rules:
// red gateways for all, blue ones for 192.0.2.0/24 and none for 198.51.100.0/24. A blue one is on
// n2, and so is a second red one.
func policyCluster(local string) *model.Cluster {
	c := egressCluster(local)
	egressPod(c, "apps/client", "n1", "10.0.1.1", &model.EgressClient{Policy: "out"}, nil)
	egressPod(c, "out/blue", "n2", "10.0.2.3", nil, &model.EgressGateway{Ready: true, Labels: map[string]string{"egress": "blue"}})
	c.EgressPolicies["out"] = &model.EgressPolicy{Name: "out", Rules: []model.EgressRule{
		{CIDR: prefix("0.0.0.0/0"), Selector: "egress == 'red'", Namespaces: "all()"},
		{CIDR: prefix("192.0.2.0/24"), Selector: "egress == 'blue'", Namespaces: "all()"},
		{CIDR: prefix("198.51.100.0/24"), Direct: true},
	}}
	return c
}

// leavesTo says by which gateways a state leads a client to some destinations.
func leavesTo(s *nodestate.State, client string) string {
	var out []string
	for _, to := range []string{"203.0.113.1", "192.0.2.1", "198.51.100.1"} {
		group, _ := s.Egress.Group(addr(client), addr(to))
		text := fmt.Sprint(s.GatewaysOf(addr(client), addr(to)))
		if group == nodestate.GroupDirect || group == nodestate.GroupNone {
			text = group.String()
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// TestEgressPolicy: each destination has the gateways of its rule, on the client's node and on
// those of the gateways, which take nothing else.
func TestEgressPolicy(t *testing.T) {
	t.Parallel()
	set := func(i int, change func(*model.EgressRule)) func(*model.Cluster) {
		return func(c *model.Cluster) {
			p := model.EgressPolicy{Name: "out", Rules: slices.Clone(c.EgressPolicies["out"].Rules)}
			change(&p.Rules[i])
			c.EgressPolicies["out"] = &p
		}
	}
	local := set(0, func(r *model.EgressRule) { r.PreferLocal = true })
	unready := func(c *model.Cluster) { egressPod(c, "out/one", "n1", "10.0.1.2", nil, nil) }
	all := "[10.0.1.2 10.0.2.2] [10.0.2.3] direct"
	nothing := "[] [] []"
	for _, test := range []struct {
		name, node string
		change     func(*model.Cluster)
		want       string
	}{
		{"all is there", "n1", func(*model.Cluster) {}, all},
		{"the other node", "n2", func(*model.Cluster) {}, "[10.0.2.2] [10.0.2.3] direct"},
		{"a node without gateways", "n3", func(*model.Cluster) {}, nothing},
		{"no such policy", "n1", func(c *model.Cluster) { delete(c.EgressPolicies, "out") }, nothing},
		{"a policy that cannot be read", "n1", func(c *model.Cluster) { c.EgressPolicies["out"] = &model.EgressPolicy{Name: "out"} }, "none none none"},
		{"no rule for all", "n1", set(0, func(r *model.EgressRule) { r.CIDR = prefix("9.0.0.0/8") }), "none [10.0.2.3] direct"},
		{"nobody granted it", "n1", func(c *model.Cluster) { c.Namespaces["out"].EgressClients = "" }, "[] [] direct"},
		{"nobody granted it, the other node", "n2", func(c *model.Cluster) { c.Namespaces["out"].EgressClients = "" }, nothing},
		{"the client's own namespace", "n1", set(0, func(r *model.EgressRule) { r.Namespaces = "" }), "[] [10.0.2.3] direct"},
		{"the pod's annotation comes before its namespace's", "n1", func(c *model.Cluster) { c.Namespaces["apps"].Egress = &model.EgressClient{Policy: "other"} }, all},
		{"the namespace's annotation", "n1", func(c *model.Cluster) {
			egressPod(c, "apps/client", "n1", "10.0.1.1", nil, nil)
			c.Namespaces["apps"].Egress = &model.EgressClient{Policy: "out"}
		}, all},
		{"pods' annotations do not count", "n1", func(c *model.Cluster) { c.Settings.Egress = model.EgressPerNamespace }, nothing},
		{"a policy comes before a selector", "n1", func(c *model.Cluster) {
			egressPod(c, "apps/client", "n1", "10.0.1.1", &model.EgressClient{Policy: "out", Selector: "none()"}, nil)
		}, all},
		{"the client's node is preferred", "n1", local, "[10.0.1.2] [10.0.2.3] direct"},
		{"and has none that is ready", "n1", func(c *model.Cluster) { local(c); unready(c) }, "[10.0.2.2] [10.0.2.3] direct"},
		{"the other node, then", "n2", func(c *model.Cluster) { local(c); unready(c) }, "[10.0.2.2] [10.0.2.3] direct"},
		{"one gateway is enough, of a node that is down", "n1", func(c *model.Cluster) {
			set(0, func(r *model.EgressRule) { r.Most = 1 })(c)
			c.Local.Down = map[netip.Addr]bool{addr("192.0.2.2"): true}
		}, "[10.0.1.2] [10.0.2.3] direct"},
	} {
		c := policyCluster(test.node)
		test.change(c)
		s := Calc(c)
		if got := leavesTo(s, "10.0.1.1"); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if missing := test.name == "no such policy"; missing != (len(s.Egress.Missing) > 0) {
			t.Errorf("%s: missing policies: %v", test.name, s.Egress.Missing)
		}
	}
}

// With maxNextHops each client has as many gateways, clients have others, and one that goes changes
// nothing for those that do not use it. The nodes of gateways take what clients' nodes send there.
func TestEgressPolicyMaxNextHops(t *testing.T) {
	t.Parallel()
	const clients, gateways, most = 40, 6, 2
	cluster := func(local string) *model.Cluster {
		c := policyCluster(local)
		c.EgressPolicies["out"] = &model.EgressPolicy{Name: "out", Rules: []model.EgressRule{{CIDR: prefix("0.0.0.0/0"), Selector: "egress == 'green'", Namespaces: "all()", Most: most}}}
		for i := range clients {
			egressPod(c, fmt.Sprintf("apps/client%d", i), "n1", fmt.Sprintf("10.0.1.%d", 10+i), &model.EgressClient{Policy: "out"}, nil)
		}
		for i := range gateways {
			node := 2 + i%2
			egressPod(c, fmt.Sprintf("out/green%d", i), fmt.Sprint("n", node), fmt.Sprintf("10.0.%d.%d", node, 20+i), nil, &model.EgressGateway{Ready: true, Labels: map[string]string{"egress": "green"}})
		}
		return c
	}
	lists := func(c *model.Cluster) map[netip.Addr][]netip.Addr {
		out, s := map[netip.Addr][]netip.Addr{}, Calc(c)
		for i := range clients {
			a := addr(fmt.Sprintf("10.0.1.%d", 10+i))
			out[a] = s.GatewaysOf(a, addr("203.0.113.1"))
		}
		return out
	}
	before, used := lists(cluster("n1")), map[netip.Addr]int{}
	gone := addr("10.0.2.20")
	c := cluster("n1")
	egressPod(c, "out/green0", "n2", gone.String(), nil, nil)
	after := lists(c)
	there := map[string]map[netip.Addr][]netip.Addr{"n2": lists(cluster("n2")), "n3": lists(cluster("n3"))}
	for client, list := range before {
		if len(list) != most || len(after[client]) != most {
			t.Errorf("%s has %v, then %v", client, list, after[client])
		}
		if !slices.Contains(list, gone) && !slices.Equal(list, after[client]) {
			t.Errorf("%s has %v, and when %s goes %v", client, list, gone, after[client])
		}
		for _, g := range list {
			used[g]++
			node := fmt.Sprint("n", g.As4()[2])
			if !slices.Contains(there[node][client], g) {
				t.Errorf("%s uses %s, and %s takes what comes for %v", client, g, node, there[node][client])
			}
		}
		for node, takes := range there {
			if taken := takes[client]; len(taken) > most {
				t.Errorf("%s takes what %s sends by %v", node, client, taken)
			}
		}
	}
	if len(used) != gateways {
		t.Errorf("%d clients use %d of %d gateways: %v", clients, len(used), gateways, used)
	}
}

// A policy that changes has another number, and what it shares with the earlier one keeps its own.
func TestEgressPolicyNumbers(t *testing.T) {
	t.Parallel()
	a := addr("10.0.1.1")
	before := Calc(policyCluster("n1"))
	c := policyCluster("n1")
	c.EgressPolicies["out"].Rules[1].Selector = "egress == 'red'"
	after := Calc(c)
	if before.Egress.Policies[a] == after.Egress.Policies[a] {
		t.Error("the policy has the same number after a change")
	}
	same, _ := before.Egress.Group(a, addr("203.0.113.1"))
	for _, to := range []string{"203.0.113.1", "192.0.2.1"} {
		if group, _ := after.Egress.Group(a, addr(to)); group != same {
			t.Errorf("%s: group %s, and the same gateways had %s", to, group, same)
		}
	}
	if len(after.Egress.Rules) != 3 || after.Egress.Names[after.Egress.Policies[a]] != "out" {
		t.Errorf("%+v", after.Egress)
	}
}
