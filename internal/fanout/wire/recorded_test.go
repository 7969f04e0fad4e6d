// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// recorded is what testdata/version1 says. It does not follow the model: fields that come later are
// not in it.
func recorded() *model.Changes {
	addr, net := netip.MustParseAddr, netip.MustParsePrefix
	name := func(n string) model.Name { return model.Name{Namespace: "shop", Name: n} }
	v4, v6 := addr("10.1.2.3"), addr("fd00::1:2:3")
	labels := map[string]string{"app": "web", "tier": "front"}
	ports := []model.PodPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080, HostPort: 80, HostIP: addr("192.0.2.1")}}
	sel := &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{"api", "web"}}, {Key: "old", Op: model.DoesNotExist},
		{Key: "tier", Op: model.NotIn, Values: []string{"back"}}, {Key: "x", Op: model.Exists}}}
	policy := func(kind string) *model.Policy {
		return &model.Policy{Kind: kind, Name: name("p"), Tier: "default", Created: 1_790_000_001, Order: math.Inf(1), AppliesIngress: true, AppliesEgress: true,
			ApplyOnForward: true, PreDNAT: true, DoNotTrack: true, Invalid: "spec",
			Subject: model.Selector{Namespace: "shop", Namespaces: sel, Pods: sel, Expression: "has(app)"},
			Ingress: []model.Rule{{Name: "in", Action: model.Allow, IPVersion: 4, NotProtocol: model.ProtocolUDP,
				Peers: []model.Peer{{Pods: &model.Selector{Pods: sel}}, {CIDR: net("10.0.0.0/8"), Except: []netip.Prefix{net("10.9.0.0/16")}}, {Nodes: sel}, {}},
				Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 80, Last: 90}, {Named: "http"}, {Service: name("s")}},
				Other: &model.Entity{InNets: true, Nets: []netip.Prefix{net("fd00::/8")}, NotNets: []netip.Prefix{net("fd01::/16")}, Selector: "a == 'b'", NotSelector: "has(c)", Service: name("s")},
				Own:   &model.Entity{Selector: "all()"}}, {Action: model.Pass}},
			Egress: []model.Rule{{Action: model.Deny, IPVersion: 6, NotPorts: []model.PortRange{{First: 1, Last: 2}}, SourcePorts: []model.PortRange{{First: 3, Last: 4}},
				NotSourcePorts: []model.PortRange{{First: 5, Last: 6}}}, {Action: model.Log}}}
	}
	inForce, staged := policy(model.KindCalicoNetworkPolicy), policy(model.KindStagedNetworkPolicy)
	return &model.Changes{
		Namespaces: map[string]*model.Namespace{"shop": {Name: "shop", Labels: labels}, "gone": nil},
		Pods: map[model.Name]*model.Pod{
			name("web-1"): {Name: name("web-1"), Labels: labels, Node: "n1", ServiceAccount: "default", Addrs: []netip.Addr{v4, v6}, Ports: ports,
				Created: 1_790_000_010, UID: "0d5e2c51-94a5-4a0e-a0f8-0123456789ab", Asked: []netip.Addr{v6}},
			name("web-2"): {Name: name("web-2"), Labels: labels, Node: "n2", ServiceAccount: "default", Ports: ports, Created: 1_790_000_000, UID: "other",
				HostNetwork: true, Finished: true},
			name("gone"): nil,
		},
		Nodes: map[string]*model.Node{"gone": nil, "n1": {Name: "n1", Labels: labels, Addrs: []netip.Addr{v4}, Leaving: true, LinkAddress: [6]byte{2, 0, 0, 0, 0, 1},
			Subnets: []netip.Prefix{net("192.0.2.0/24")}, NotReady: true, Created: 7, UID: "u", Since: map[netip.Addr]int64{v4: 8, v6: 9}}},
		Services: map[model.Name]*model.Service{name("gone"): nil,
			name("s"): {Name: name("s"), Created: 5, UID: "u", Annotations: labels, ClusterIPs: []netip.Addr{v4}, ExternalIPs: []netip.Addr{v6}, LBIPs: []netip.Addr{v4, v6},
				Ports:    []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80, NodePort: 30080}},
				Affinity: 10800, HealthPort: 30081, SourceRanges: []netip.Prefix{net("198.51.100.0/24")}, Restricted: true, PublishNotReady: true, Maglev: true,
				ExternalMode: model.ExternalModeDSR, ExternalLocal: true, InternalLocal: true},
			name("s2"): {Name: name("s2")}},
		Slices: map[model.Name]*model.EndpointSlice{name("gone"): nil,
			name("s-x"): {Name: name("s-x"), Service: name("s"), NotCarried: true, Ports: []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}},
				Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{v4}, Node: "n1", Ready: true, Serving: true, Hints: model.HintsFor([]string{"z"}, []string{"n1"})},
					{Addrs: []netip.Addr{v6}, Terminating: true}}}},
		Policies: map[model.PolicyID]*model.Policy{inForce.ID(): inForce, {Kind: "K", Name: name("gone")}: nil},
		Staged: map[model.PolicyID]*model.StagedPolicy{staged.ID(): {Policy: *staged, Delete: true},
			{Kind: "K", Name: name("gone")}: nil},
		Tiers:           map[string]*model.Tier{"gone": nil, "t": {Name: "t", Order: -1.5, Pass: true}},
		NetworkSets:     map[model.Name]*model.NetworkSet{name("gone"): nil, name("ns"): {Name: name("ns"), Labels: labels, Nets: []netip.Prefix{net("0.0.0.0/0")}}},
		ServiceAccounts: map[model.Name]*model.ServiceAccount{name("gone"): nil, name("sa"): {Name: name("sa"), Labels: labels}},
		HostEndpoints: map[string]*model.HostEndpoint{"gone": nil,
			"h": {Name: "h", Labels: labels, Node: "n1", Interface: "eth0", ExpectedIPs: []netip.Addr{v4}, Profiles: []string{"p"}, Ports: ports}},
		Pools: map[string]*model.Pool{"gone": nil, "pool": {Name: "pool", CIDR: net("10.0.0.0/8"), VXLAN: model.EncapCrossSubnet, NATOutgoing: true, Disabled: true, BlockBits: 26,
			NodeSelector: "all()", Manual: true, Workload: true, LoadBalancer: true, NamespaceSelector: "has(x)", Deleted: 3}},
		Blocks:       map[netip.Prefix]*model.Block{net("10.2.0.0/26"): nil, net("10.1.0.0/26"): {CIDR: net("10.1.0.0/26"), Node: "n1", Created: 4, UID: "u"}},
		ServiceCIDRs: []netip.Prefix{net("10.96.0.0/12")}, ServiceCIDRsChanged: true,
		Reserved: []netip.Prefix{net("10.1.0.0/30")}, ReservedChanged: true,
	}
}
