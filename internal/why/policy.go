// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/why/wire"
)

// explain looks at policy at the ends that are on this node, and at host endpoints, in the order in
// which they are evaluated.
func (i *inquiry) explain(ctx context.Context) error {
	arrival, settled, err := i.earlyEnds(ctx)
	if err != nil {
		return err
	}
	if settled {
		i.answer.Policies = arrival
		return nil
	}
	if err := i.explainPods(ctx); err != nil {
		return err
	}
	pods := i.answer.Policies
	var hosts []wire.End
	if _, _, denied := denial(pods); !denied {
		hosts, err = i.hostEnds(ctx)
	}
	i.answer.Policies = slices.Concat(arrival, pods, hosts)
	return err
}

// explainPods looks at policy of the pods of this node.
func (i *inquiry) explainPods(ctx context.Context) error {
	src, dst := i.in.Packet, i.result.Packet
	if i.refusedBy() {
		dst = i.in.Packet
	}
	from, to := src.IP.Src, dst.IP.Dst
	if granted, err := i.noteSource(ctx); err != nil || !granted {
		return err // it is dropped before policy
	}
	if i.handedOn() {
		return nil // the other node evaluates policy
	}
	if from == to {
		i.answer.Notes = append(i.answer.Notes, "traffic of a pod to itself is always allowed: no policy is asked")
		return nil
	}
	ports := policyPorts(src, dst)
	if s := i.answer.Service; i.refusedBy() && s != nil && s.Where == wire.InPath {
		return i.explainBackends(ctx, from, ports)
	}
	ends, err := i.ends(ctx, from, to, ports)
	i.answer.Policies = ends
	return err
}

// policyPorts are what policy looks at of a connection's first packet, before and after its
// destination is translated.
func policyPorts(src, dst *packet.Packet) nodestate.Ports {
	if src.Kind == packet.Echo {
		return nodestate.Ports{Dst: uint16(src.ICMPType)<<8 | uint16(src.ICMPCode)}
	}
	return nodestate.Ports{Src: src.SrcPort, Dst: dst.DstPort}
}

// explainBackends finds the backend that was chosen when the packet was dropped: the first whose
// policies say so.
func (i *inquiry) explainBackends(ctx context.Context, from netip.Addr, ports nodestate.Ports) error {
	if i.result.Reason != reason.PolicyEgress && i.result.Reason != reason.PolicyIngress {
		return nil // policy was not reached
	}
	s := i.answer.Service
	for n, b := range s.Backends {
		to, err := netip.ParseAddrPort(b.Address)
		if err != nil || i.chosen == "" && (!b.Usable || n >= 16) || i.chosen != "" && b.Address != i.chosen {
			continue
		}
		ports.Dst = to.Port()
		ends, err := i.ends(ctx, from, to.Addr(), ports)
		if err != nil {
			return err
		}
		if i.answer.Policies == nil {
			i.answer.Policies = ends
		}
		if rule, _, denied := denial(ends); denied && rule == i.answer.Outcome.Rule {
			i.answer.Policies, s.Chosen = ends, b.Address
			return nil
		}
	}
	return nil
}

// ends explains what policy says at the ends of a connection that are pods of this node, as the
// programs evaluate them.
func (i *inquiry) ends(ctx context.Context, from, to netip.Addr, ports nodestate.Ports) ([]wire.End, error) {
	sender := i.sender()
	a, b := i.state.Addrs[sender], i.state.Addrs[to]
	var out []wire.End
	var err error
	look := func(endpoint, peer netip.Addr, iso nodestate.Isolation, in bool) {
		var e wire.End
		q := policy.Question{Endpoint: endpoint, Peer: peer, Ingress: in, Proto: i.ask.Protocol, Ports: ports}
		if q.Names, err = i.namesOf(endpoint, peer, in); err != nil {
			return
		}
		e, err = i.end(ctx, q, iso, func(c *model.Cluster) (policy.Explanation, bool) { return policy.Explain(c, q) })
		out = append(out, e)
	}
	if a.Kind == nodestate.AddrEndpoint {
		look(sender, to, a.Egress, false)
	}
	if err == nil && b.Kind == nodestate.AddrEndpoint && a.Kind != nodestate.AddrHost {
		look(to, from, b.Ingress, true)
	}
	return out, err
}

// end is what policy says at one end, as calc explains it and as the tables have it.
func (i *inquiry) end(ctx context.Context, q policy.Question, iso nodestate.Isolation, explain func(*model.Cluster) (policy.Explanation, bool)) (e wire.End, err error) {
	e = wire.End{Direction: "egress", Peer: q.Peer}
	if q.Ingress {
		e.Direction = "ingress"
	}
	var found bool
	if e.Explanation, found, err = i.agent.Explain(ctx, i.state, explain); err != nil {
		return e, err
	}
	if !found {
		return e, fmt.Errorf("%s is the address of no pod of this node, or no host endpoint applies there", q.Endpoint)
	}
	var ids []nodestate.NameID
	for _, name := range q.Names {
		ids = append(ids, i.state.Names.Patterns[name])
	}
	v, _ := i.state.DecideNamed(iso, ids, q.Peer, q.Proto, q.Ports)
	e.TableAllow = v.Allow
	if r, ok := i.state.Rules.Get(v.Rule); ok && v.Rule != 0 {
		e.TableRule = r
	}
	// Of several names each may be allowed by a rule of its own, and the tables do not know which
	// is the first.
	e.Agrees = e.TableAllow == e.Explanation.Allow && (e.TableRule == e.Explanation.Rule || e.TableAllow && len(q.Names) > 1)
	return e, nil
}

// namesOf returns the patterns of domain names that led a pod of this node to an address, and notes
// them.
func (i *inquiry) namesOf(endpoint, peer netip.Addr, in bool) (out []string, err error) {
	known, ok := i.plane.(Names)
	if !ok || in || len(i.state.Names.Sets) == 0 {
		return nil, nil
	}
	named, err := known.NamesOf(i.plane.IfIndex(i.state.Addrs[endpoint]), peer)
	for _, n := range named {
		for pattern, id := range i.state.Names.Patterns {
			if id == n.Name {
				out = append(out, pattern)
				i.answer.Notes = append(i.answer.Notes, fmt.Sprintf("DNS told the pod that a name of %s has the address %s, which counts for another %v", pattern, peer, n.Left))
			}
		}
	}
	slices.Sort(out)
	return out, err
}

// denial is the first end that denies.
func denial(ends []wire.End) (rule, direction string, denied bool) {
	for _, e := range ends {
		if !e.Explanation.Allow {
			return e.Explanation.Rule.String(), e.Direction, true
		}
	}
	return "", "", false
}

// compare says where the explanation, the tables and the program do not say the same.
func (i *inquiry) compare() {
	for _, e := range i.answer.Policies {
		if !e.Agrees && e.TableRule.Kind == "policy-too-large" && e.Host != "" {
			i.warn("the %s policies of host endpoint %s are too large for the node's tables, which leave its failsafe ports open", e.Direction, e.Explanation.HostEndpoint)
		} else if !e.Agrees && e.TableRule.Kind == "policy-too-large" {
			i.warn("the %s policies of pod %s are too large for the node's tables, which cut it off", e.Direction, e.Explanation.Pod)
		} else if !e.Agrees {
			i.warn("policy as explained (%s by %s) is not what the node's tables say (%s by %s) at %s", verdictWord(e.Explanation.Allow), e.Explanation.Rule, verdictWord(e.TableAllow), e.TableRule, e.Direction)
		}
	}
	if i.answer.Policies == nil {
		return
	}
	rule, direction, denied := denial(i.answer.Policies)
	byPolicy := slices.Contains([]reason.Reason{reason.PolicyEgress, reason.PolicyIngress, reason.HostIngress, reason.HostEgress, reason.HostPreDNAT, reason.UntrackedIngress, reason.UntrackedEgress}, i.result.Reason)
	evaluator, hint := "program", fmt.Sprintf("; the agent has epoch %d", i.answer.Epoch)
	if i.nftables {
		evaluator = "table of rules"
	}
	if i.answer.Behind != "" {
		hint += " and is behind: " + i.answer.Behind
	} else {
		hint += " and is not behind: please report this"
	}
	switch {
	case denied && !i.refusedBy():
		i.warn("policy denies this at %s by %s, and the %s lets it through%s", direction, rule, evaluator, hint)
	case byPolicy && i.refusedBy() && !denied:
		i.warn("policy allows this, and the %s drops it by %s%s", evaluator, i.answer.Outcome.Rule, hint)
	case byPolicy && i.refusedBy() && rule != i.answer.Outcome.Rule:
		i.warn("policy denies this by %s, and the %s by %s%s", rule, evaluator, i.answer.Outcome.Rule, hint)
	}
}

func verdictWord(allow bool) string {
	if allow {
		return "allowed"
	}
	return "denied"
}
