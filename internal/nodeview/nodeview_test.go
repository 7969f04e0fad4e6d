// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/model/modeltest"
)

func name(namespace, n string) model.Name { return model.Name{Namespace: namespace, Name: n} }

// follow makes an index of a cluster with all of its nodes, which have taken everything.
func follow(c *model.Cluster) (*Index, map[string]*Node) {
	x, nodes := NewIndex(), map[string]*Node{}
	x.Update(c.Everything())
	for n := range c.Nodes {
		nodes[n] = x.Add(n)
		nodes[n].Take()
	}
	return x, nodes
}

// reached returns the nodes whose part changed.
func reached(nodes map[string]*Node) (out []string) {
	for n, of := range nodes {
		if !of.Take().Empty() {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// TestChangeReachesTheNodesConcerned holds that a change reaches the nodes whose state may depend
// on it, and no others.
func TestChangeReachesTheNodesConcerned(t *testing.T) {
	t.Parallel()
	c := modeltest.Fleet(40, 10, 20)
	x, nodes := follow(c)
	victim := c.Pods.Get(name("ns3", "pod3")) // of node0
	allow := &model.Policy{Kind: model.KindNetworkPolicy, Name: name("ns3", "one"), Tier: model.TierDefault, AppliesIngress: true,
		Subject: model.Selector{Namespace: "ns3", Pods: modeltest.Requires("pod-template-hash", victim.Labels["pod-template-hash"])},
		Ingress: []model.Rule{{Peers: []model.Peer{{Pods: &model.Selector{Namespace: "ns5", Pods: modeltest.Requires("app", "app1")}}}}}}
	others := slices.DeleteFunc(selected(c, allow), func(n string) bool { return n == victim.Node })
	x.Update(&model.Changes{Policies: map[model.PolicyID]*model.Policy{allow.ID(): allow}})
	if got := reached(nodes); !slices.Contains(got, victim.Node) || len(got) != 1+len(others) {
		t.Errorf("a policy of %s and %v reached %v", victim.Node, others, got)
	}
	peer := func(i int) *model.Pod {
		for p := range c.Pods.All() {
			if p.Name.Namespace == "ns5" && p.Labels["app"] == "app1" {
				out := *p
				out.UID = fmt.Sprint("again ", i)
				return &out
			}
		}
		t.Fatal("there is no such pod")
		return nil
	}
	now := peer(1)
	x.Update(&model.Changes{Pods: map[model.Name]*model.Pod{now.Name: now}})
	want := append([]string{victim.Node, now.Node}, others...)
	slices.Sort(want)
	if got := reached(nodes); !slices.Equal(got, slices.Compact(want)) {
		t.Errorf("a peer on %s reached %v, want %v", now.Node, got, want)
	}
	stranger := *c.Pods.Get(name("ns4", "pod4"))
	stranger.UID = "again"
	x.Update(&model.Changes{Pods: map[model.Name]*model.Pod{stranger.Name: &stranger}})
	if got := reached(nodes); !slices.Equal(got, []string{stranger.Node}) {
		t.Errorf("a pod of no rule reached %v, want its node %s alone", got, stranger.Node)
	}
	x.Update(&model.Changes{Policies: map[model.PolicyID]*model.Policy{allow.ID(): nil}})
	if got := reached(nodes); len(got) != 1+len(others) {
		t.Errorf("the end of the policy reached %v", got)
	}
	if len(x.questions)+len(x.keys)+len(x.asks) > 0 {
		t.Errorf("without policies the index keeps %d questions, %d labels, %d policies", len(x.questions), len(x.keys), len(x.asks))
	}
	if most := 20; len(x.groups) > most {
		t.Errorf("%d groups of pods in 20 namespaces without rules, at most %d wanted", len(x.groups), most)
	}
}

// selected returns the nodes with pods that a policy of one namespace selects.
func selected(c *model.Cluster, p *model.Policy) (out []string) {
	for pod := range c.Pods.All() {
		r := p.Subject.Pods.Requirements[0]
		if pod.Name.Namespace == p.Subject.Namespace && pod.Labels[r.Key] == r.Values[0] && !slices.Contains(out, pod.Node) {
			out = append(out, pod.Node)
		}
	}
	return out
}

// TestLabelsNotLookedAtAreNotSent holds that other nodes' pods come with the labels and ports that
// rules look at, and the node's own with all.
func TestLabelsNotLookedAtAreNotSent(t *testing.T) {
	t.Parallel()
	c := modeltest.Fleet(2, 4, 2)
	all := &model.Policy{Kind: model.KindNetworkPolicy, Name: name("ns0", "all"), Tier: model.TierDefault, AppliesIngress: true, Subject: model.Selector{Namespace: "ns0"},
		Ingress: []model.Rule{{Peers: []model.Peer{{Pods: &model.Selector{Namespaces: &model.LabelSelector{}, Pods: &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.Exists}}}}}}}}}
	c.Policies[all.ID()] = all
	c.Local.Node = "node0"
	of := Of(c)
	if of.Pods.Len() != c.Pods.Len() {
		t.Fatalf("%d pods of %d, all of which are peers", of.Pods.Len(), c.Pods.Len())
	}
	for n, p := range of.Pods.ByName() {
		if own := p.Node == "node0"; own != p.Equal(c.Pods.Get(n)) {
			t.Errorf("pod %s of %s: whole is %v: %+v, %+v", n, p.Node, !own, p, c.Pods.Get(n))
		} else if !own && (len(p.Labels) != 1 || p.Labels["app"] == "" || len(p.Ports) > 0) {
			t.Errorf("pod %s of another node has labels %v and ports %v", n, p.Labels, p.Ports)
		}
	}
}

// TestNodesComeAndGo holds that a node that asks again gets everything, and that nothing is kept
// for one that went.
func TestNodesComeAndGo(t *testing.T) {
	t.Parallel()
	c := modeltest.Fleet(3, 4, 2)
	deny := &model.Policy{Kind: model.KindNetworkPolicy, Name: name("ns0", "own"), Tier: model.TierDefault, AppliesIngress: true, Subject: model.Selector{Namespace: "ns0"},
		Ingress: []model.Rule{{Peers: []model.Peer{{Pods: &model.Selector{Namespace: "ns0"}}}}}}
	c.Policies[deny.ID()] = deny
	x, nodes := follow(c)
	x.Remove(nodes["node1"])
	if p := nodes["node1"].pending.Pods; len(p) > 0 {
		t.Errorf("%d pods were marked for a node that went; in a large cluster that takes longer than all else", len(p))
	}
	for _, q := range x.questions {
		if q.nodes.has(nodes["node1"].slot) {
			t.Errorf("a question is still asked for a node that went: %s", q.text)
		}
	}
	if left := x.localsIn["ns0"]; len(left) != 2 {
		t.Errorf("%d nodes have pods of the namespace, want 2", len(left))
	}
	again := x.Add("node1")
	first := again.Take()
	if len(first.Policies) != 1 || len(first.Nodes) != 3 || len(first.Pods) < 4 {
		t.Errorf("a node that asks again got %d policies, %d nodes, %d pods", len(first.Policies), len(first.Nodes), len(first.Pods))
	}
}

// TestBGPIsEveryNodes holds that what configures BGP reaches all nodes with its value: that it is
// gone would end their sessions.
func TestBGPIsEveryNodes(t *testing.T) {
	t.Parallel()
	c := modeltest.Fleet(2, 1, 1)
	conf, peer := &model.BGPConfig{Name: "default", ASN: 65001}, &model.BGPPeer{Name: "tor", ASN: 65002}
	c.BGPConfigs[conf.Name] = conf
	x, nodes := follow(c)
	if got := x.Add("node0").Take(); got.BGPConfigs["default"] != conf {
		t.Errorf("at first %v", got.BGPConfigs)
	}
	other := &model.BGPConfig{Name: "default", ASN: 65009}
	filter := &model.BGPFilter{Name: "ours"}
	out := &model.EgressPolicy{Name: "out"}
	x.Update(&model.Changes{BGPConfigs: map[string]*model.BGPConfig{"default": other}, BGPPeers: map[string]*model.BGPPeer{"tor": peer}, BGPFilters: map[string]*model.BGPFilter{"ours": filter}, EgressPolicies: map[string]*model.EgressPolicy{"out": out}})
	for name, n := range nodes {
		if got := n.Take(); got.BGPConfigs["default"] != other || got.BGPPeers["tor"] != peer || got.BGPFilters["ours"] != filter || got.EgressPolicies["out"] != out {
			t.Errorf("%s got %v, %v, %v and %v", name, got.BGPConfigs, got.BGPPeers, got.BGPFilters, got.EgressPolicies)
		}
	}
	x.Update(&model.Changes{BGPPeers: map[string]*model.BGPPeer{"tor": nil}})
	for name, n := range nodes {
		got := n.Take()
		if v, gone := got.BGPPeers["tor"]; !gone || v != nil || len(got.BGPConfigs) > 0 {
			t.Errorf("%s: after the peer went %v and %v", name, got.BGPConfigs, got.BGPPeers)
		}
	}
	if got := x.Add("late").Take(); got.BGPFilters["ours"] != filter || got.EgressPolicies["out"] != out {
		t.Errorf("a node that comes later got %v and %v", got.BGPFilters, got.EgressPolicies)
	}
}
