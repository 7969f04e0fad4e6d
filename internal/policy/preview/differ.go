// SPDX-License-Identifier: Apache-2.0

package preview

import (
	"reflect"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/past"
)

// difference is what two clusters differ in: whose verdicts may change at all.
type difference struct {
	everybody bool // tiers or network sets differ
	policies  []changed
	hosts     map[string]bool // nodes with a host endpoint whose policies may differ
	known     map[concern]bool
	now       *model.Cluster
}

// changed is a policy that is in one cluster as it is not in the other.
type changed struct {
	*model.Policy
	selects             func(*model.Pod) bool
	byAccount, byLabels bool // it selects by service accounts, by labels of namespaces
}

// concern is whether a pod in a direction is concerned.
type concern struct {
	pod     *past.Pod
	ingress bool
}

// differ compares the policies of two clusters.
func differ(before, after *model.Cluster) *difference {
	d := &difference{known: map[concern]bool{}, hosts: map[string]bool{}, now: before}
	d.everybody = !reflect.DeepEqual(before.Tiers, after.Tiers) || !reflect.DeepEqual(before.NetworkSets, after.NetworkSets)
	for _, of := range [][2]*model.Cluster{{before, after}, {after, before}} {
		view, index := cluster.ViewOf(of[0]), subject.NewIndex(of[0].Policies, nil)
		for id, p := range of[0].Policies {
			if other := of[1].Policies[id]; other != nil && reflect.DeepEqual(p, other) {
				continue
			}
			selects := index.Policy(view, p)
			if selects == nil {
				continue
			}
			expr := peer.ParseExpression(p.Subject.Expression)
			d.policies = append(d.policies, changed{p, selects, looksAtAccounts(p.Subject.Expression),
				p.Subject.Namespaces != nil || p.Subject.Expression != "" && peer.LooksAt(expr, model.PrefixNamespace)})
		}
	}
	d.findHosts(before, after)
	return d
}

// findHosts finds the nodes whose host endpoints may decide otherwise.
func (d *difference) findHosts(before, after *model.Cluster) {
	a, b := cluster.ViewOf(before), cluster.ViewOf(after)
	was, is := subject.NewIndex(before.Policies, nil), subject.NewIndex(after.Policies, nil)
	for _, h := range before.HostEndpoints {
		now, then := was.OfHost(a, h), is.OfHost(b, h)
		if !reflect.DeepEqual(now, then) || d.everybody && len(now)+len(then) > 0 {
			d.hosts[h.Node] = true
		}
	}
}

// nothing reports whether the clusters decide the same about everything.
func (d *difference) nothing() bool { return !d.everybody && len(d.policies)+len(d.hosts) == 0 }

// concerns reports whether the verdict about one end may change: by a policy that selects it, or
// may have.
func (d *difference) concerns(e past.End, ingress bool) bool {
	if e.Pod == nil || d.everybody {
		return e.Pod != nil
	}
	k := concern{e.Pod, ingress}
	is, known := d.known[k]
	if !known {
		is = slices.ContainsFunc(d.policies, func(p changed) bool { return p.mayBind(d.now, e, ingress) })
		d.known[k] = is
	}
	return is
}

// mayBind reports whether a policy decides about an end, or may by what is not known of it.
func (p *changed) mayBind(now *model.Cluster, e past.End, ingress bool) bool {
	if ingress && !p.AppliesIngress || !ingress && !p.AppliesEgress {
		return false
	}
	name := e.Pod.Name.Namespace
	if p.Subject.Namespace != "" && p.Subject.Namespace != name {
		return false
	}
	return !e.Pod.Known || p.byLabels && now.Namespaces[name] == nil || p.byAccount && present(now, e) == nil || p.selects(podOf(now, e))
}

// byHosts reports whether a host endpoint may decide otherwise about a flow: packets between pods
// of one node pass none.
func (d *difference) byHosts(q *past.Question) bool {
	if len(d.hosts) == 0 || q.From.Pod != nil && q.To.Pod != nil && q.From.Pod.Node == q.To.Pod.Node && q.From.Pod.Node != "" {
		return false
	}
	nodes := slices.Clone(q.Nodes)
	for _, e := range []past.End{q.From, q.To} {
		if e.Pod != nil {
			nodes = append(nodes, e.Pod.Node)
		}
	}
	return slices.ContainsFunc(nodes, func(n string) bool { return d.hosts[n] })
}

// looks is what policies of a cluster look at that records do not have.
type looks struct {
	accounts bool // service accounts
	services bool // the endpoints of Services
	sources  bool // source ports
}

// looksOf finds what the policies of clusters look at.
func looksOf(all ...*model.Cluster) (out looks) {
	for _, c := range all {
		for _, p := range c.Policies {
			out.accounts = out.accounts || looksAtAccounts(p.Subject.Expression)
			for _, r := range slices.Concat(p.Ingress, p.Egress) {
				out.sources = out.sources || len(r.SourcePorts)+len(r.NotSourcePorts) > 0
				for _, e := range []*model.Entity{r.Other, r.Own} {
					if e != nil {
						out.accounts = out.accounts || looksAtAccounts(e.Selector) || looksAtAccounts(e.NotSelector)
						out.services = out.services || e.Service != (model.Name{})
					}
				}
			}
		}
	}
	return out
}

// looksAtAccounts reports whether an expression looks at service accounts.
func looksAtAccounts(text string) bool {
	if text == "" {
		return false
	}
	return slices.ContainsFunc(peer.ParseExpression(text).Labels(), func(l string) bool {
		return l == model.LabelServiceAccount || strings.HasPrefix(l, model.PrefixAccount)
	})
}

// LooksAtSources reports whether a policy of the clusters asks for source ports.
func LooksAtSources(all ...*model.Cluster) bool { return looksOf(all...).sources }
