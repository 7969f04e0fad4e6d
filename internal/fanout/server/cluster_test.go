// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// fleet returns a cluster of some nodes with pods of two namespaces, those of a allowed to those of
// b.
func fleet(nodes, podsEach int) *model.Cluster {
	c := model.NewCluster()
	c.Pools["pool"] = &model.Pool{Name: "pool", CIDR: netip.MustParsePrefix("10.0.0.0/8"), BlockBits: 24, Workload: true}
	for _, ns := range []string{"a", "b"} {
		c.Namespaces[ns] = &model.Namespace{Name: ns, Labels: map[string]string{"name": ns}}
	}
	for i := range nodes {
		n := &model.Node{Name: fmt.Sprint("n", i), UID: fmt.Sprint("node-", i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}}
		c.Nodes[n.Name] = n
		at := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		c.Blocks[netip.PrefixFrom(at, 24)] = &model.Block{CIDR: netip.PrefixFrom(at, 24), Node: n.Name}
		for j := range podsEach {
			at = at.Next()
			p := &model.Pod{Name: model.Name{Namespace: []string{"a", "b"}[j%2], Name: fmt.Sprintf("pod-%d-%d", i, j)}, Node: n.Name, Addrs: []netip.Addr{at},
				UID: fmt.Sprintf("uid-%d-%d", i, j), Labels: map[string]string{"app": fmt.Sprint("app", j%3)}}
			c.Pods.Put(p)
		}
		agent := &model.Pod{Name: model.Name{Namespace: "kube-system", Name: "weir-" + n.Name}, Node: n.Name, UID: "agent-" + n.Name, HostNetwork: true}
		c.Pods.Put(agent)
	}
	p := allow("b", "a", 80)
	c.Policies[p.ID()] = p
	s := &model.Service{Name: model.Name{Namespace: "b", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")},
		Ports: []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80}}}
	c.Services[s.Name] = s
	return c
}

// allow is a policy that lets one namespace's pods reach another's.
func allow(to, from string, port uint16) *model.Policy {
	return &model.Policy{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: to, Name: "allow"}, Tier: model.TierDefault, AppliesIngress: true,
		Subject: model.Selector{Namespace: to}, Ingress: []model.Rule{{Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: port, Last: port}},
			Peers: []model.Peer{{Pods: &model.Selector{Namespace: from}}}}}}
}

// tokenOf is the token of a node's agent.
func tokenOf(node string) string { return node + " agent-" + node }

// fill has a fan-out read a cluster.
func (p *place) fill(c *model.Cluster) {
	ch := model.Changes{}
	ch.Merge(clone(c).Everything())
	p.server.Update(context.Background(), &watch.Batch{Full: true, Changes: ch, PoolOrder: []string{"pool"},
		Configs: map[string]*watch.FelixConfig{"default": {Name: "default", Spec: map[string]any{"logSeverityScreen": "Info"}}, "node.n1": {Name: "node.n1", Spec: map[string]any{"x": "y"}}}})
}

func clone(c *model.Cluster) *model.Cluster {
	out := model.NewCluster()
	c.Everything().Apply(out)
	return out
}

// change changes a cluster and has fan-outs read of it.
func change(c *model.Cluster, ch *model.Changes, places ...*place) {
	ch.Apply(c)
	for _, p := range places {
		p.server.Update(context.Background(), &watch.Batch{Changes: *ch})
	}
}

func pods(list ...*model.Pod) *model.Changes {
	ch := &model.Changes{Pods: map[model.Name]*model.Pod{}}
	for _, p := range list {
		ch.Pods[p.Name] = p
	}
	return ch
}

// TestAgentHasItsPart holds that an agent is fed its node's part, and then what changes of it.
func TestAgentHasItsPart(t *testing.T) {
	t.Parallel()
	c := fleet(6, 8)
	p := newPlace(t, nil)
	a := newAgent(t, "n1", tokenOf("n1"), p)
	time.Sleep(50 * time.Millisecond)
	if a.Status().Synced {
		t.Fatal("the agent was fed a cluster that was not read yet")
	}
	p.fill(c)
	eventually(t, "the snapshot", func() bool { return a.has(t, c, "n1") })
	a.mu.Lock()
	if b := a.last; !b.Full || len(b.Configs) != 2 || b.Configs["node.n1"].Spec["x"] != "y" || b.PoolOrder[0] != "pool" || b.IPAM == nil || !b.ProblemsChanged {
		t.Errorf("the first batch is %+v", b)
	}
	a.mu.Unlock()
	for i := range 30 {
		was := c.Pods.Get(model.Name{Namespace: "a", Name: fmt.Sprintf("pod-%d-%d", i%6, i%4*2)})
		switch {
		case i%7 == 3:
			other := allow("b", "a", uint16(80+i))
			change(c, &model.Changes{Policies: map[model.PolicyID]*model.Policy{other.ID(): other}}, p)
		case was == nil:
			continue
		case i%5 == 4:
			change(c, &model.Changes{Pods: map[model.Name]*model.Pod{was.Name: nil}}, p)
		default:
			now := *was
			now.UID = fmt.Sprint("again-", i)
			change(c, pods(&now), p)
		}
	}
	eventually(t, "all changes", func() bool { return a.has(t, c, "n1") })
	eventually(t, "the size of the node's view", func() bool {
		got := p.server.Followers()
		return len(got) == 1 && got[0].View > 100
	})
	if a.fulls != 1 {
		t.Errorf("%d snapshots", a.fulls)
	}
}

// TestOwners holds that an agent learns whose an address is that its part does not name.
func TestOwners(t *testing.T) {
	t.Parallel()
	c := fleet(3, 4)
	p := newPlace(t, nil)
	p.fill(c)
	a := newAgent(t, "n1", tokenOf("n1"), p)
	eventually(t, "the snapshot", func() bool { return a.has(t, c, "n1") })
	far := c.Pods.Get(model.Name{Namespace: "b", Name: "pod-0-1"})
	if a.mirror.Pods.Get(far.Name) != nil {
		t.Fatal("the node has the pod anyway")
	}
	for addr, want := range map[netip.Addr]model.Name{far.Addrs[0]: far.Name, netip.MustParseAddr("10.0.0.250"): {}} {
		eventually(t, "the owner of "+addr.String(), func() bool {
			name, ok := a.Owner(addr)
			if ok != (want != model.Name{}) || name != want {
				return false
			}
			again, _ := a.Owner(addr)
			return again == want
		})
	}
}
