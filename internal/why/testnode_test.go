// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"net/netip"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/watch"
)

// testNode is an Agent whose cluster a test fills in.
type testNode struct {
	cluster *model.Cluster
	calc    *calc.Calculator
	state   *nodestate.State
	plane   DataPlane
	mac     string
}

func newTestNode(name string) *testNode {
	n := &testNode{cluster: model.NewCluster(), calc: calc.New()}
	n.cluster.Local = model.Local{Node: name, Endpoints: map[netip.Addr]*model.LocalEndpoint{}}
	n.cluster.Settings = config.New(name, nil, nil).Resolve().Settings
	return n
}

// update computes the state anew with what a batch says.
func (n *testNode) update(b *watch.Batch, endpoints ...model.LocalEndpoint) {
	for _, ep := range endpoints {
		for _, a := range ep.Addrs {
			n.cluster.Local.Endpoints[a] = &ep
		}
	}
	b.Apply(n.cluster)
	n.state, _ = n.calc.Update(n.cluster, model.AllDirty())
}

func (n *testNode) AppliedState(context.Context) (*nodestate.State, string, error) {
	return n.state, "", nil
}
func (n *testNode) DataPlane() DataPlane { return n.plane }
func (n *testNode) LinkAddress() string  { return n.mac }

func (n *testNode) Explain(_ context.Context, s *nodestate.State, ask Explainer) (policy.Explanation, bool, error) {
	if s != n.state {
		return policy.Explanation{}, false, ErrMoved
	}
	x, found := ask(n.cluster)
	return x, found, nil
}

// nftPlane is the data plane of an nftables driver.
type nftPlane struct{ *nft.Driver }

func (nftPlane) Name() string { return "nftables" }

var (
	web     = model.Name{Namespace: "shop", Name: "web"}
	webAddr = netip.MustParseAddr("10.244.1.5")
	webEP   = model.LocalEndpoint{Pod: web, ContainerID: "c1", Interface: "cali1", IfIndex: 7, Addrs: []netip.Addr{webAddr}, NetnsCookie: 9}
)

// whole is a whole cluster: one node, one namespace, one policy that isolates pods with app=web.
func whole() *watch.Batch {
	deny := &model.Policy{
		Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: "shop", Name: "deny"}, Tier: "default", AppliesIngress: true,
		Subject: model.Selector{Namespace: "shop", Pods: &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{"web"}}}}},
	}
	return &watch.Batch{
		Full: true,
		Changes: model.Changes{Namespaces: map[string]*model.Namespace{"shop": {Name: "shop"}},
			Nodes:    map[string]*model.Node{"n1": {Name: "n1", Addrs: []netip.Addr{netip.MustParseAddr("172.31.1.8")}}},
			Policies: map[model.PolicyID]*model.Policy{deny.ID(): deny}},
	}
}
