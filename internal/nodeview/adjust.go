// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"slices"

	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
)

// adjust looks at the policies that have changed, for each pod that one of them may select: where
// thousands come one after the other, to look at all of a pod each time would cost as much as their
// number squared.
func (x *Index) adjust(swapped []swap) {
	in := map[string][]adjustment{}
	for _, s := range swapped {
		was, of := placeOf(s.was)
		now, and := placeOf(s.now)
		switch {
		case of && and && was == now:
			in[was] = append(in[was], adjustment{s, x.inForce.Policy(x.view, s.now)})
		default:
			if of {
				in[was] = append(in[was], adjustment{swap{was: s.was}, nil})
			}
			if and {
				in[now] = append(in[now], adjustment{swap{now: s.now}, x.inForce.Policy(x.view, s.now)})
			}
		}
	}
	for namespace, of := range in {
		if namespace != "" {
			for n, pods := range x.localsIn[namespace] {
				n.adjust(pods, of)
			}
			continue
		}
		for n := range x.all() {
			n.adjust(n.pods, of)
		}
	}
}

// adjustment is a swap, with whom the policy that comes selects; nil = nobody.
type adjustment struct {
	swap
	selects func(*model.Pod) bool
}

// placeOf returns the namespace whose pods a policy may select, "" = all; false = it selects none.
func placeOf(p *model.Policy) (namespace string, pods bool) {
	if p == nil || subject.ForHostsOnly(p) {
		return "", false
	}
	return p.Subject.Namespace, true
}

// adjust makes pods of the node have policies that have changed. Of a pod of which something is not
// known yet, or has changed too, all policies have to be looked at.
func (n *Node) adjust(pods locals, swapped []adjustment) {
	for name, b := range pods {
		if len(n.stale) > 0 {
			if _, later := n.stale[name]; later {
				continue
			}
		}
		if !n.x.known(b.entry) {
			n.bindLater(name)
			continue
		}
		var was, now []*model.Policy
		for i := range swapped {
			s := &swapped[i]
			if s.was != nil {
				if i := slices.Index(b.policies, s.was); i >= 0 {
					b.policies = slices.Delete(b.policies, i, i+1)
					was = append(was, s.was)
				}
			}
			if s.selects != nil && s.selects(b.entry.pod) {
				b.policies = append(b.policies, s.now)
				now = append(now, s.now)
			}
		}
		if len(was)+len(now) > 0 {
			n.swap(was, now)
		}
	}
}

// known reports whether all is known by which policies select a pod.
func (x *Index) known(e *entry) bool {
	if e == nil || x.c.Namespaces[e.pod.Name.Namespace] == nil {
		return false
	}
	account := e.pod.ServiceAccount
	return account == "" || x.accounts+x.accountsWere == 0 || x.c.ServiceAccounts[model.Name{Namespace: e.pod.Name.Namespace, Name: account}] != nil
}
