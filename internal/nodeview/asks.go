// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// asks is what the rules of policies ask about others than the pods that they select.
type asks struct {
	pods     []*model.Selector             // which pods are peers
	exprs    map[string]*selector.Selector // which pods, network sets and host endpoints are
	own      map[string]*selector.Selector // which network sets hold the policies' own end
	ports    map[portName]struct{}         // what ports of peers are called
	services map[model.Name]struct{}       // whose endpoints are peers
	accounts bool                          // some of it depends on labels of service accounts
}

// portName is a port of the other end as rules name it; ProtocolAny asks for the name only.
type portName struct {
	proto model.Protocol
	name  string
}

func newAsks() *asks {
	return &asks{exprs: map[string]*selector.Selector{}, own: map[string]*selector.Selector{}, ports: map[portName]struct{}{}, services: map[model.Name]struct{}{}}
}

// add adds what a policy asks.
func (a *asks) add(p *model.Policy) {
	if text := p.Subject.Expression; text != "" && peer.LooksAt(peer.ParseExpression(text), model.PrefixAccount) {
		a.accounts = true
	}
	if p.AppliesIngress {
		for i := range p.Ingress {
			r := &p.Ingress[i]
			a.addRule(r, r.SourcePorts, r.NotSourcePorts)
		}
	}
	if p.AppliesEgress {
		for i := range p.Egress {
			r := &p.Egress[i]
			a.addRule(r, r.Ports, r.NotPorts)
		}
	}
}

// addRule adds what a rule asks; ports are those of the other end.
func (a *asks) addRule(r *model.Rule, ports ...[]model.PortRange) {
	for i := range r.Peers {
		if s := r.Peers[i].Pods; s != nil {
			a.pods = append(a.pods, s)
		}
	}
	for _, list := range ports {
		for _, p := range list {
			switch {
			case p.Service != (model.Name{}):
				a.services[p.Service] = struct{}{}
			case p.Named != "":
				a.ports[portName{p.Protocol, p.Named}] = struct{}{}
			}
		}
	}
	// A Service at the own end matches no address.
	if e := r.Other; e != nil {
		a.addExpressions(a.exprs, e)
		if e.Service != (model.Name{}) {
			a.services[e.Service] = struct{}{}
		}
	}
	if e := r.Own; e != nil {
		a.addExpressions(a.own, e)
	}
}

func (a *asks) addExpressions(to map[string]*selector.Selector, e *model.Entity) {
	for _, text := range []string{e.Selector, e.NotSelector} {
		if text == "" || to[text] != nil {
			continue
		}
		to[text] = peer.ParseExpression(text)
		a.accounts = a.accounts || peer.LooksAt(to[text], model.PrefixAccount)
	}
}

// picks reports whether an expression is true of some labels.
func (a *asks) picks(labels peer.Labels) bool {
	for _, of := range []map[string]*selector.Selector{a.exprs, a.own} {
		for _, e := range of {
			if e.MatchesFunc(labels) {
				return true
			}
		}
	}
	return false
}

// asksPort reports whether a pod has a port that rules call by its name.
func (a *asks) asksPort(p *model.Pod) bool {
	if len(a.ports) == 0 {
		return false
	}
	return slices.ContainsFunc(p.Ports, func(pp model.PodPort) bool {
		if pp.Name == "" {
			return false
		}
		_, any := a.ports[portName{model.ProtocolAny, pp.Name}]
		_, own := a.ports[portName{pp.Protocol, pp.Name}]
		return any || own
	})
}

// labelKeys are the labels of pods at which rules look that are about other ends: of all policies
// of a cluster, so that what is sent of a pod is the same for all nodes.
type labelKeys map[string]struct{}

func labelKeysOf(a *asks) labelKeys {
	out := labelKeys{}
	for _, s := range a.pods {
		if s.Pods != nil {
			for i := range s.Pods.Requirements {
				out[s.Pods.Requirements[i].Key] = struct{}{}
			}
		}
	}
	for _, e := range a.exprs {
		for _, key := range e.Labels() {
			if !strings.HasPrefix(key, model.PrefixNamespace) && !strings.HasPrefix(key, model.PrefixAccount) {
				out[key] = struct{}{}
			}
		}
	}
	return out
}

// asPeer returns of a pod what others' states may depend on: the pod itself where that is all.
func (k labelKeys) asPeer(p *model.Pod) *model.Pod {
	drop := 0
	for key := range p.Labels {
		if _, is := k[key]; !is {
			drop++
		}
	}
	unused := func(pp model.PodPort) bool { return pp.Name == "" && pp.HostPort == 0 && !p.HostNetwork }
	if drop == 0 && !slices.ContainsFunc(p.Ports, unused) {
		return p
	}
	out := *p
	if drop > 0 {
		out.Labels = nil
		if drop < len(p.Labels) {
			out.Labels = make(map[string]string, len(p.Labels)-drop)
			for key, v := range p.Labels {
				if _, is := k[key]; is {
					out.Labels[key] = v
				}
			}
		}
	}
	out.Ports = slices.DeleteFunc(slices.Clone(p.Ports), unused)
	return &out
}
