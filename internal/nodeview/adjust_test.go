// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/model/modeltest"
)

// TestPoliciesThatComeOneByOne holds that an index which followed policies that come, change and go
// knows of each node what one that is made at once knows, with pods of which not everything is
// known, and that what nodes took is that too.
func TestPoliciesThatComeOneByOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := modeltest.Fleet(5, 8, 4)
		for _, p := range c.Pods.ByName() {
			if r.IntN(2) == 0 {
				now := *p
				now.ServiceAccount = fmt.Sprint("sa", r.IntN(2)) // sa1 is known in one namespace only
				c.Pods.Put(&now)
			}
		}
		for ns := range 4 {
			for _, sa := range []string{"sa0", "sa1"}[:1+ns/3] {
				c.ServiceAccounts[name(fmt.Sprint("ns", ns), sa)] = &model.ServiceAccount{Name: name(fmt.Sprint("ns", ns), sa), Labels: map[string]string{"team": sa}}
			}
		}
		delete(c.Namespaces, "ns2")
		x, nodes := follow(c)
		mirrors := map[string]*model.Cluster{}
		for n := range nodes {
			mirrors[n] = model.NewCluster()
			again := *c
			again.Local.Node = n
			mirrors[n] = Of(&again)
		}
		for step := range 40 {
			ch := &model.Changes{Policies: map[model.PolicyID]*model.Policy{}}
			for range 1 + r.IntN(4) {
				p := policyOf(r)
				if ch.Policies[p.ID()] = p; r.IntN(3) == 0 {
					ch.Policies[p.ID()] = nil
				}
			}
			switch r.IntN(6) {
			case 0: // something else in the same update
				ns := fmt.Sprint("ns", r.IntN(4))
				ch.Namespaces = map[string]*model.Namespace{ns: {Name: ns, Labels: map[string]string{"team": fmt.Sprint("t", r.IntN(3))}}}
			case 1:
				all := slices.SortedFunc(c.Pods.All(), func(a, b *model.Pod) int { return strings.Compare(a.UID, b.UID) })
				was := all[r.IntN(len(all))]
				now := *was
				now.Labels = map[string]string{"app": fmt.Sprint("app", r.IntN(5))}
				ch.Pods = map[model.Name]*model.Pod{now.Name: &now}
			case 2:
				s := policyOf(r)
				s.Kind = model.KindStagedNetworkPolicy
				if ch.Staged = map[model.PolicyID]*model.StagedPolicy{s.ID(): {Policy: *s}}; r.IntN(2) == 0 {
					ch.Staged[s.ID()] = nil
				}
			}
			ch.Apply(c)
			x.Update(ch)
			fresh, _ := follow(c)
			for n, of := range nodes {
				want := fresh.byName[n]
				if !maps.Equal(of.policies, want.policies) {
					t.Fatalf("seed %d step %d: node %s has %d policies, want %d", seed, step, n, len(of.policies), len(want.policies))
				}
				if got, want := groupsOf(x, of), groupsOf(fresh, want); !slices.Equal(got, want) {
					t.Fatalf("seed %d step %d: rules of node %s can be about %v, want %v", seed, step, n, got, want)
				}
				for name, b := range of.pods {
					if b.entry != x.pods[name] {
						t.Fatalf("seed %d step %d: pod %s of node %s is an old one", seed, step, name, n)
					}
				}
				again := *c
				again.Local = model.Local{Node: n}
				of.Take().Apply(mirrors[n])
				if !sameCluster(mirrors[n], Of(&again)) {
					t.Fatalf("seed %d step %d: what node %s took is not its part", seed, step, n)
				}
			}
		}
	}
}

// groupsOf are the groups that a node's rules can be about.
func groupsOf(x *Index, n *Node) (out []string) {
	for slot := range n.groups.all() {
		out = append(out, x.groupAt[slot].key)
	}
	slices.Sort(out)
	return out
}

// sameCluster reports whether two clusters have the same pods and policies.
func sameCluster(a, b *model.Cluster) bool {
	return maps.EqualFunc(a.Pods.ByName(), b.Pods.ByName(), (*model.Pod).Equal) && maps.Equal(a.Policies, b.Policies) && maps.Equal(a.Staged, b.Staged)
}

// policyOf is one of some policies, as it is at some time.
func policyOf(r *rand.Rand) *model.Policy {
	i := r.IntN(12)
	ns := fmt.Sprint("ns", i%4)
	p := &model.Policy{Kind: model.KindNetworkPolicy, Name: name(ns, fmt.Sprint("p", i)), Tier: model.TierDefault, AppliesIngress: true,
		Subject: model.Selector{Namespace: ns, Pods: modeltest.Requires("app", fmt.Sprint("app", r.IntN(5)))}}
	switch i {
	case 9: // of the cluster
		p.Kind, p.Name.Namespace, p.Subject = model.KindGlobalNetworkPolicy, "", model.Selector{Expression: fmt.Sprintf("app == 'app%d'", r.IntN(5))}
	case 10:
		p.Subject.Pods, p.Subject.Expression = nil, "pcsa.team == 'sa0'"
	case 11:
		p.Kind, p.Name.Namespace, p.Subject = model.KindGlobalNetworkPolicy, "", model.Selector{Expression: fmt.Sprintf("pcns.team == 't%d'", r.IntN(3))}
	}
	for range 1 + r.IntN(2) {
		peer := model.Selector{Namespace: fmt.Sprint("ns", r.IntN(4)), Pods: modeltest.Requires("app", fmt.Sprint("app", r.IntN(5)))}
		if r.IntN(3) == 0 {
			peer = model.Selector{Namespaces: modeltest.Requires("team", fmt.Sprint("t", r.IntN(3)))}
		}
		p.Ingress = append(p.Ingress, model.Rule{Peers: []model.Peer{{Pods: &peer}}})
	}
	return p
}

// TestRelabelledNamespaceIsSentAlone holds that pods of a namespace that gets other labels are not
// sent to nodes that have them and still need them, and to those that come to need them, or no
// longer do, are.
func TestRelabelledNamespaceIsSentAlone(t *testing.T) {
	t.Parallel()
	c := modeltest.Fleet(3, 4, 12) // a pod of a namespace is on one node
	of := func(ns, team string) *model.Policy {
		return &model.Policy{Kind: model.KindNetworkPolicy, Name: name(ns, "from"), Tier: model.TierDefault, AppliesIngress: true, Subject: model.Selector{Namespace: ns},
			Ingress: []model.Rule{{Peers: []model.Peer{{Pods: &model.Selector{Namespaces: &model.LabelSelector{Requirements: []model.Requirement{{Key: team, Op: model.Exists}}}}}}}}}
	}
	one, two := of("ns0", "team"), of("ns4", "other") // of node0, and of node1
	c.Policies[one.ID()], c.Policies[two.ID()] = one, two
	x, nodes := follow(c)
	relabel := func(labels map[string]string) map[string]*model.Changes {
		x.Update(&model.Changes{Namespaces: map[string]*model.Namespace{"ns8": {Name: "ns8", Labels: labels}}})
		out := map[string]*model.Changes{}
		for n, of := range nodes {
			if out[n] = of.Take(); out[n].Namespaces["ns8"] == nil {
				t.Errorf("%s did not get the namespace", n)
			}
		}
		return out
	}
	pod := name("ns8", "pod8")
	got := relabel(map[string]string{"team": "t99"})
	for n, ch := range got {
		if len(ch.Pods) > 0 {
			t.Errorf("%s got %d pods that it has already", n, len(ch.Pods))
		}
	}
	got = relabel(map[string]string{"other": "x"})
	if p, gone := got["node0"].Pods[pod]; !gone || p != nil || len(got["node0"].Pods) != 1 {
		t.Errorf("the node whose rules are no longer about the pod got %v", got["node0"].Pods)
	}
	if got["node1"].Pods[pod] == nil || len(got["node1"].Pods) != 1 {
		t.Errorf("the node whose rules come to be about the pod got %v", got["node1"].Pods)
	}
	if len(got["node2"].Pods) > 0 {
		t.Errorf("the node that has the pod itself got %v", got["node2"].Pods)
	}
}
