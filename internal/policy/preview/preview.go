// SPDX-License-Identifier: Apache-2.0

// Package preview says which flows of the past would be decided otherwise if the policies of a
// cluster were others. Both verdicts, by the policies as they are and as they would be, are
// computed by the rules that nodes enforce and with the same labels, so that nothing but the
// policies makes the difference. Where a verdict depends on what nobody recorded the flow counts as
// unknown. It reads no cluster and no records.
package preview

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/policy/past"
)

// Why a verdict is not known, in addition to what questions lack.
const (
	LackPod       = "the pod that had an address"
	LackNamespace = "the labels of a namespace, or of a service account, that is gone"
	LackAccount   = "the service account of a pod that is gone"
	LackNames     = "the ports by name of a pod that is gone"
	LackServices  = "of which Services a pod that is gone was an endpoint"
	LackSource    = "the source port"
	LackDomains   = "the domain names that led the pod to the address"
	LackHost      = "whether the source is an address of the pod's own node, which no policy holds up"
	LackEndpoints = "what host endpoints say: they are not computed"
)

// Verdict is what policy says of a flow.
type Verdict struct {
	Allow bool
	End   string         // where it was decided, egress or ingress; empty = no policy selects an end
	Rule  nodestate.Rule // that decided
}

// Changed is a question whose verdict changes, or that is not known.
type Changed struct {
	*past.Question
	Before, After Verdict
	// Recorded is what the records say; where they say nothing of an end, that is as Before.
	Recorded bool
	Unknown  string // why nothing is known; empty = it is
}

// Outcome is what a change of policies does.
type Outcome struct {
	Denied, Allowed, Unknown []*Changed
	Unchanged                []*past.Question
	// Otherwise are those that policy decides otherwise now than records say, before any change;
	// those of them that the change concerns are in the lists above, too.
	Otherwise []*Changed

	nodes map[netip.Addr]string // by their addresses
}

// Run compares what is said by the policies of two clusters, which differ in nothing else.
func Run(before, after *model.Cluster, questions []*past.Question) *Outcome {
	r := &run{before: before, after: after, differ: differ(before, after), looks: looksOf(before, after), nodes: map[netip.Addr]string{}, domains: domainsOf(before, after)}
	for _, n := range before.Nodes {
		for _, a := range n.Addrs {
			r.nodes[a] = n.Name
		}
	}
	r.out = &Outcome{nodes: r.nodes}
	var known []*past.Question
	for _, q := range questions {
		why := r.lacking(q)
		switch {
		case why == "" || q.From.Addr == q.To.Addr:
			known = append(known, q)
		case r.concerned(q):
			r.out.Unknown = append(r.out.Unknown, &Changed{Question: q, Unknown: why})
		default:
			r.out.Unchanged = append(r.out.Unchanged, q)
		}
	}
	for _, w := range worlds(known) {
		before, after := w.explainer(r.before), w.explainer(r.after)
		for _, q := range w.questions {
			r.compare(before, after, q)
		}
	}
	return r.out
}

// run is one comparison.
type run struct {
	before, after *model.Cluster
	differ        *difference
	looks         looks
	nodes         map[netip.Addr]string // by their addresses
	domains       []string              // of policies
	out           *Outcome
}

// concerned reports whether the verdict about a flow may change.
func (r *run) concerned(q *past.Question) bool {
	if r.unknownPod(q.From) || r.unknownPod(q.To) {
		return !r.differ.nothing()
	}
	return r.differ.concerns(q.From, false) || r.differ.concerns(q.To, true) || r.differ.byHosts(q)
}

// unknownPod reports whether an address is that of a pod that no record names.
func (r *run) unknownPod(e past.End) bool {
	if e.Pod != nil || r.nodes[e.Addr] != "" {
		return false
	}
	for _, p := range r.before.Pools {
		if p.Workload && p.CIDR.Contains(e.Addr) {
			return true
		}
	}
	return false
}

// lacking says what is not known of a flow whatever rules ask.
func (r *run) lacking(q *past.Question) string {
	switch {
	case q.Lacking != "":
		return q.Lacking
	case r.unknownPod(q.From) || r.unknownPod(q.To):
		return LackPod
	case r.differ.byHosts(q):
		return LackEndpoints
	}
	for _, e := range []past.End{q.From, q.To} {
		if e.Pod == nil {
			continue
		}
		gone := present(r.before, e) == nil
		switch {
		case r.before.Namespaces[e.Pod.Name.Namespace] == nil:
			return LackNamespace
		case gone && r.looks.accounts:
			return LackAccount
		case gone && r.looks.services:
			return LackServices
		}
	}
	return ""
}

// compare finds both verdicts about a flow.
func (r *run) compare(before, after *policy.Explainer, q *past.Question) {
	own, sure := r.ownNode(q)
	now, then := r.evaluate(before, q, own), r.evaluate(after, q, own)
	c := &Changed{Question: q, Before: now.Verdict, After: then.Verdict, Unknown: cmp.Or(now.unknown, then.unknown)}
	if !sure {
		a, b := r.evaluate(before, q, !own), r.evaluate(after, q, !own)
		if a.Allow != now.Allow || b.Allow != then.Allow {
			c.Unknown = cmp.Or(c.Unknown, LackHost)
		}
	}
	if c.Unknown != "" {
		if r.concerned(q) {
			r.out.Unknown = append(r.out.Unknown, c)
		} else {
			r.out.Unchanged = append(r.out.Unchanged, q)
		}
		return
	}
	said := func(by past.Said, otherwise bool) bool {
		if by == past.Nothing {
			return otherwise
		}
		return by == past.Allowed
	}
	egress, ingress := said(q.Egress, now.egress), said(q.Ingress, now.ingress)
	c.Recorded = egress && ingress
	if egress != now.egress || ingress != now.ingress {
		r.out.Otherwise = append(r.out.Otherwise, c)
	}
	switch {
	case c.Before.Allow && !c.After.Allow:
		r.out.Denied = append(r.out.Denied, c)
	case !c.Before.Allow && c.After.Allow:
		r.out.Allowed = append(r.out.Allowed, c)
	default:
		r.out.Unchanged = append(r.out.Unchanged, q)
	}
}

// ownNode reports whether the source is the node of the destination; sure is false where that is
// not known.
func (r *run) ownNode(q *past.Question) (own, sure bool) {
	if q.From.Pod != nil || q.To.Pod == nil {
		return false, true
	}
	switch node := r.nodes[q.From.Addr]; {
	case node != "" && q.To.Pod.Node != "":
		return node == q.To.Pod.Node, true
	case node != "":
		return false, false
	}
	return false, !q.FromHost
}

// evaluated is a verdict with what it was made of.
type evaluated struct {
	Verdict
	egress, ingress bool // what each end allows by itself
	unknown         string
}

// evaluate asks policy at both ends, as a node does (sim.Node). own: the source is the
// destination's node.
func (r *run) evaluate(by *policy.Explainer, q *past.Question, own bool) evaluated {
	out := evaluated{Verdict: Verdict{Allow: true}, egress: true, ingress: true}
	if q.From.Addr == q.To.Addr {
		return out
	}
	ports := nodestate.Ports{Src: q.SourcePort, Dst: q.Port}
	if q.Protocol == model.ProtocolICMP || q.Protocol == model.ProtocolICMPv6 {
		ports.Src = 0
	}
	if q.From.Pod != nil {
		x := r.askEgress(by, q, policy.Question{Endpoint: q.From.Addr, Peer: q.To.Addr, Proto: q.Protocol, Ports: ports}, &out)
		out.egress = r.take(&out, q, x, "egress")
	}
	if q.To.Pod != nil && !own {
		x, _ := by.Explain(policy.Question{Endpoint: q.To.Addr, Peer: q.From.Addr, Ingress: true, Proto: q.Protocol, Ports: ports})
		out.ingress = r.take(&out, q, &x, "ingress")
	}
	return out
}

// take adds what is said at one end: the first that denies decides, else the last.
func (r *run) take(out *evaluated, q *past.Question, x *policy.Explanation, end string) bool {
	if !x.Isolated {
		return true
	}
	if out.Allow {
		out.Verdict = Verdict{x.Allow, end, x.Rule}
		out.unknown = cmp.Or(out.unknown, r.dependsOn(q, x))
	}
	return x.Allow
}

// dependsOn says on what an answer depends that is not known.
func (r *run) dependsOn(q *past.Question, x *policy.Explanation) string {
	if !x.Known {
		return LackNamespace
	}
	gone := func(e past.End) bool { return e.Pod != nil && present(r.before, e) == nil }
	for _, t := range x.Tiers {
		for _, p := range t.Policies {
			switch {
			case slices.ContainsFunc(p.Rules, func(r policy.ExplainedRule) bool { return r.ByName }) && (gone(q.From) || gone(q.To)):
				return LackNames
			case slices.ContainsFunc(p.Rules, func(r policy.ExplainedRule) bool { return r.BySource }) && !q.HasSource:
				return LackSource
			}
		}
	}
	return ""
}

// ruleOf names a rule as records do; nil for none.
func ruleOf(r nodestate.Rule) *events.Rule {
	if r == (nodestate.Rule{}) {
		return nil
	}
	return &events.Rule{Kind: r.Kind, Name: r.Name, Tier: r.Tier, Detail: r.Detail}
}
