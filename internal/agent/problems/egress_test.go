// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// A node names its gateways with their clients, and its pods of which nothing leaves; one with
// nftables does so, too, and lacks nothing.
func TestEgressGateways(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	pod := func(name string, client bool) nodestate.Addr {
		return nodestate.Addr{Kind: nodestate.AddrEndpoint, Gateways: client, Owner: model.Name{Namespace: "ns", Name: name}}
	}
	s := nodestate.New()
	if EgressGateways(s) != nil || EgressGateways(nil) != nil {
		t.Error("a node where they are not in force says something")
	}
	s.Settings.Gateways = true
	lacks := (*nft.Driver)(nil).Lacks()
	if e := EgressGateways(s); e == nil || len(nftablesNotInForce("n1", s, lacks)) != 0 {
		t.Errorf("without clients: %+v", e)
	}
	s.Addrs[addr("10.0.0.1")], s.Addrs[addr("10.0.0.2")], s.Addrs[addr("10.0.0.3")] = pod("a", true), pod("b", true), pod("gateway", false)
	s.Gateways[nodestate.GatewayKey{Client: addr("10.0.0.1")}] = []netip.Addr{addr("10.0.0.3"), addr("10.0.1.9")}
	s.Gateways[nodestate.GatewayKey{Client: addr("10.0.1.1")}] = []netip.Addr{addr("10.0.0.3")}
	s.Gateways[nodestate.GatewayKey{Client: addr("10.0.1.1"), Group: 7}] = []netip.Addr{addr("10.0.0.3")}
	s.Probed = map[netip.Addr]bool{addr("192.0.2.1"): true, addr("192.0.2.2"): false}
	e := EgressGateways(s)
	if !slices.Equal(e.Down, []string{"192.0.2.1"}) || !slices.Equal(e.Gateways, []string{"ns/gateway 10.0.0.3, for 2 addresses of pods"}) || e.Clients != 2 || !slices.Equal(e.Without, []string{"ns/b 10.0.0.2"}) {
		t.Errorf("%+v", e)
	}
	if got := nftablesNotInForce("n1", s, lacks); len(got) != 0 {
		t.Errorf("nftables: %v", got)
	}
}

// A client of an EgressGatewayPolicy is without a gateway by rule; those without are not. A policy
// that is not there is named.
func TestEgressPolicies(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	s := nodestate.New()
	s.Settings.Gateways = true
	a := addr("10.0.0.1")
	s.Addrs[a] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Gateways: true, Owner: model.Name{Namespace: "ns", Name: "a"}}
	s.Egress.Policies[a], s.Egress.Names[5] = 5, "out"
	for cidr, group := range map[string]nodestate.GatewayGroup{"0.0.0.0/0": 8, "192.0.2.0/24": 9, "198.51.100.0/24": nodestate.GroupDirect, "::/0": 9} {
		s.Egress.Rules[nodestate.EgressDestination{Policy: 5, CIDR: netip.MustParsePrefix(cidr)}] = group
	}
	s.Gateways[nodestate.GatewayKey{Client: a, Group: 8}] = []netip.Addr{addr("10.0.1.9")}
	if e := EgressGateways(s); e.Clients != 1 || !slices.Equal(e.Without, []string{"ns/a 10.0.0.1, to 192.0.2.0/24 by EgressGatewayPolicy out"}) {
		t.Errorf("%+v", e)
	}
	s.Egress.Missing = []string{"gone"}
	if got := MissingEgressPolicies(Node{Name: "n1", State: s}); len(got) != 1 || got[0].Value != "gone" || !strings.Contains(got[0].Message, "nothing of theirs leaves") {
		t.Errorf("a policy is missing: %v", got)
	}
}

// Annotations that the settings leave out of force are named, those of this node's pods.
func TestIdleEgress(t *testing.T) {
	t.Parallel()
	c := model.NewCluster()
	c.Local.Node = "n1"
	c.Namespaces["shop"] = &model.Namespace{Name: "shop", Egress: &model.EgressClient{Policy: "out"}}
	c.Namespaces["plain"] = &model.Namespace{Name: "plain"}
	for i, node := range []string{"n1", "n2", "n1"} {
		p := &model.Pod{Name: model.Name{Namespace: "ns", Name: []string{"a", "b", "c"}[i]}, Node: node, Egress: &model.EgressClient{Selector: "all()"}}
		if i == 2 {
			p.Egress, p.Gateway = nil, &model.EgressGateway{Ready: true}
		}
		c.Pods.Put(p)
	}
	for support, want := range map[model.EgressSupport]string{
		model.EgressDisabled:             "Namespace shop metadata.annotations[egress.projectcalico.org/egressGatewayPolicy] out, Pod ns/a metadata.annotations[egress.projectcalico.org/selector] all(), ",
		model.EgressPerNamespace:         "Pod ns/a metadata.annotations[egress.projectcalico.org/selector] all(), ",
		model.EgressPerNamespaceOrPerPod: "",
	} {
		c.Settings.Egress = support
		got := ""
		for _, p := range IdleEgress(c) {
			got += p.Object + " " + p.Field + " " + p.Value + ", "
		}
		if got != want {
			t.Errorf("%d: %s, want %s", support, got, want)
		}
	}
}
