// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// question is what rules ask about the other end: which pods are peers, by a selector, by an
// expression, or by what they call a port. Of equal ones there is one.
type question struct {
	text  string
	by    []*model.Policy // that ask it
	nodes slotSet         // that have such a policy

	pods *model.Selector
	expr *selector.Selector // of network sets and host endpoints, too
	port portName

	groups slotSet // of which it is true
}

// portName is a port of the other end as rules name it; ProtocolAny asks for the name only.
type portName struct {
	proto model.Protocol
	name  string
}

// isTrueOf reports whether a question is true of pods like one.
func (q *question) isTrueOf(c *cluster.View, like *model.Pod) bool {
	switch {
	case q.pods != nil:
		return peer.Selects(c, q.pods, like)
	case q.expr != nil:
		return q.expr.MatchesFunc(peer.PodLabels(c, like))
	}
	return slices.ContainsFunc(like.Ports, func(p model.PodPort) bool {
		return p.Name == q.port.name && (q.port.proto == model.ProtocolAny || q.port.proto == p.Protocol)
	})
}

// namespace returns the one namespace whose pods the question is about, "" for several.
func (q *question) namespace() string {
	if q.pods != nil {
		return q.pods.Namespace
	}
	return ""
}

// asks is what the rules of a policy ask about others than the pods that it selects.
type asks struct {
	questions []*question
	own       map[string]*selector.Selector // which network sets hold the policy's own end
	services  map[model.Name]struct{}       // whose endpoints are peers
	keys      map[string]struct{}           // labels of other pods that are looked at
	accounts  bool                          // some of it depends on labels of service accounts
}

// asksOf reads a policy, and interns its questions.
func (x *Index) asksOf(p *model.Policy) *asks {
	a := &asks{own: map[string]*selector.Selector{}, services: map[model.Name]struct{}{}, keys: map[string]struct{}{}}
	if text := p.Subject.Expression; text != "" {
		a.accounts = peer.LooksAt(peer.ParseExpression(text), model.PrefixAccount)
	}
	ask := func(q question) {
		if have := x.intern(q); !slices.Contains(a.questions, have) {
			a.questions = append(a.questions, have)
		}
	}
	if p.AppliesIngress {
		for i := range p.Ingress {
			r := &p.Ingress[i]
			a.addRule(ask, r, r.SourcePorts, r.NotSourcePorts)
		}
	}
	if p.AppliesEgress {
		for i := range p.Egress {
			r := &p.Egress[i]
			a.addRule(ask, r, r.Ports, r.NotPorts)
		}
	}
	for _, q := range a.questions {
		q.by = append(q.by, p)
		a.addKeys(q)
	}
	return a
}

// addRule adds what a rule asks; ports are those of the other end.
func (a *asks) addRule(ask func(question), r *model.Rule, ports ...[]model.PortRange) {
	for i := range r.Peers {
		if s := r.Peers[i].Pods; s != nil {
			ask(question{text: peer.SelectorText(s), pods: s})
		}
	}
	for _, list := range ports {
		for _, p := range list {
			switch {
			case p.Service != (model.Name{}):
				a.services[p.Service] = struct{}{}
			case p.Named != "":
				ask(question{text: "port " + p.Protocol.String() + " " + strconv.Quote(p.Named), port: portName{p.Protocol, p.Named}})
			}
		}
	}
	if e := r.Other; e != nil {
		for _, text := range []string{e.Selector, e.NotSelector} {
			if text != "" {
				ask(question{text: "all of " + text, expr: peer.ParseExpression(text)})
			}
		}
		if e.Service != (model.Name{}) {
			a.services[e.Service] = struct{}{}
		}
	}
	if e := r.Own; e != nil { // a Service there matches no address
		for _, text := range []string{e.Selector, e.NotSelector} {
			if text != "" {
				a.own[text] = peer.ParseExpression(text)
				a.accounts = a.accounts || peer.LooksAt(a.own[text], model.PrefixAccount)
			}
		}
	}
}

// addKeys adds the labels at which a question looks.
func (a *asks) addKeys(q *question) {
	if q.pods != nil && q.pods.Pods != nil {
		for i := range q.pods.Pods.Requirements {
			a.keys[q.pods.Pods.Requirements[i].Key] = struct{}{}
		}
	}
	if q.expr == nil {
		return
	}
	for _, key := range q.expr.Labels() {
		switch {
		case strings.HasPrefix(key, model.PrefixAccount):
			a.accounts = true
		case !strings.HasPrefix(key, model.PrefixNamespace):
			a.keys[key] = struct{}{}
		}
	}
}

// intern returns the question of a text; it has no user yet where it is new.
func (x *Index) intern(q question) *question {
	if have := x.questions[q.text]; have != nil {
		return have
	}
	now := &q
	x.questions[q.text] = now
	ask := func(ns string) {
		x.asking[ns][now] = struct{}{}
		for g := range x.byNamespace[ns] {
			x.evaluate(now, g) // no node has the question yet
		}
	}
	if ns := now.namespace(); ns != "" {
		put(x.exact, ns, now)
		if x.asking[ns] != nil {
			ask(ns)
		}
		return now
	}
	x.wide[now] = struct{}{}
	for ns := range x.asking {
		if x.mayBeIn(now, ns) {
			ask(ns)
		}
	}
	return now
}

// release ends the use of the questions of a policy that no node has any more.
func (x *Index) release(p *model.Policy) {
	for _, q := range x.asks[p].questions {
		last := len(q.by) - 1
		q.by[slices.Index(q.by, p)] = q.by[last]
		q.by[last] = nil
		if q.by = q.by[:last]; last > 0 {
			continue
		}
		delete(x.questions, q.text)
		if ns := q.namespace(); ns != "" {
			drop(x.exact, ns, q)
			delete(x.asking[ns], q)
		} else {
			delete(x.wide, q)
			for _, asked := range x.asking {
				delete(asked, q)
			}
		}
		for slot := range q.groups.all() {
			delete(x.groupAt[slot].questions, q)
		}
	}
	delete(x.asks, p)
}

// mayBeIn reports whether a question can be true of pods of a namespace.
func (x *Index) mayBeIn(q *question, namespace string) bool {
	if q.pods == nil {
		return true
	}
	if ns := q.pods.Namespace; ns != "" {
		return ns == namespace
	}
	return peer.NamespaceMatches(x.view, q.pods.Namespaces, namespace)
}

// askedIn returns the questions that can be true of pods of a namespace.
func (x *Index) askedIn(namespace string) map[*question]struct{} {
	asked := x.asking[namespace]
	if asked != nil {
		return asked
	}
	asked = map[*question]struct{}{}
	for _, of := range []map[*question]struct{}{x.exact[namespace], x.wide} {
		for q := range of {
			if x.mayBeIn(q, namespace) {
				asked[q] = struct{}{}
			}
		}
	}
	x.asking[namespace] = asked
	return asked
}

// put and drop keep a set in an index.
func put[K, V comparable](index map[K]map[V]struct{}, k K, v V) {
	if index[k] == nil {
		index[k] = map[V]struct{}{}
	}
	index[k][v] = struct{}{}
}

func drop[K, V comparable, W any](index map[K]map[V]W, k K, v V) {
	if delete(index[k], v); len(index[k]) == 0 {
		delete(index, k)
	}
}
