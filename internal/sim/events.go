// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Event is what policy said of a flow: in its original direction, after translation of the
// destination, before that of the source. docs/design/datapath.md says of which flows there is one.
type Event struct {
	Src, Dst     netip.Addr
	Sport, Dport uint16 // of ICMP 0, and type * 256 + code
	Proto        model.Protocol
	Hook         Hook
	IfIndex      int
	Service      nodestate.Frontend // id, zero when none
	Allowed      bool               // by policy
	Log          bool               // a rule with action Log matched
	Again        bool               // a flow that was there is evaluated again
	Reason       reason.Reason      // why the packet was dropped
	// Egress is what was said at the source, Ingress at the destination.
	Egress, Ingress End
	// In is what a host endpoint said where the flow comes into the node, Out where it leaves it.
	In, Out HostEnd
}

// HostEnd is what a host endpoint said of a flow.
type HostEnd struct {
	Evaluated bool             // there is a set, or staged policies would make one
	Rule      nodestate.RuleID // that decided, 0 = none did
	Staged    bool             // staged policies would change the policy here
	// StagedDenied is what they would have said, StagedRule by which rule.
	StagedDenied bool
	StagedRule   nodestate.RuleID
}

// End is what policy said at one end of a flow.
type End struct {
	Local  bool             // a pod of this node
	Rule   nodestate.RuleID // that decided, 0 = none did
	Staged bool             // staged policies select it
	// StagedDenied is what they would have said, StagedRule by which rule.
	StagedDenied bool
	StagedRule   nodestate.RuleID
}

// String writes all of it, rules by number.
func (e Event) String() string {
	return e.Text(func(id nodestate.RuleID) string { return fmt.Sprintf("%08x", uint32(id)) })
}

// Text writes all of it, rules as rule does.
func (e Event) Text(rule func(nodestate.RuleID) string) string {
	s := fmt.Sprintf("%s if%d %s %s > %s", e.Hook, e.IfIndex, e.Proto, netip.AddrPortFrom(e.Src, e.Sport), netip.AddrPortFrom(e.Dst, e.Dport))
	for _, w := range []struct {
		on   bool
		word string
	}{{e.Allowed, "allowed"}, {!e.Allowed, "denied"}, {e.Log, "log"}, {e.Again, "again"}} {
		if w.on {
			s += " " + w.word
		}
	}
	if e.Reason != 0 {
		s += " " + e.Reason.String()
	}
	if e.Service != (nodestate.Frontend{}) {
		s += " service " + e.Service.String()
	}
	for _, end := range []struct {
		name string
		End
	}{{"egress", e.Egress}, {"ingress", e.Ingress}} {
		if !end.Local {
			continue
		}
		s += fmt.Sprintf(" %s=[%s]", end.name, rule(end.Rule))
		if end.Staged {
			verdict := map[bool]string{true: "denied", false: "allowed"}[end.StagedDenied]
			s += fmt.Sprintf(" staged-%s=%s by [%s]", end.name, verdict, rule(end.StagedRule))
		}
	}
	for _, end := range []struct {
		name string
		HostEnd
	}{{"host-in", e.In}, {"host-out", e.Out}} {
		if end.Evaluated {
			s += fmt.Sprintf(" %s=[%s]", end.name, rule(end.Rule))
		}
		if end.Staged {
			verdict := map[bool]string{true: "denied", false: "allowed"}[end.StagedDenied]
			s += fmt.Sprintf(" staged-%s=%s by [%s]", end.name, verdict, rule(end.StagedRule))
		}
	}
	return s
}

// denies reports whether policy drops for a reason.
func denies(r reason.Reason) bool {
	switch r {
	case reason.PolicyEgress, reason.PolicyIngress, reason.HostIngress, reason.HostEgress, reason.HostPreDNAT, reason.ToHost, reason.UntrackedIngress, reason.UntrackedEgress:
		return true
	}
	return false
}

// about notes what is evaluated. What was evaluated of the packet before stays noted.
func (n *Node) about(k flowKey) *Event {
	if n.evaluated == nil {
		n.evaluated = &Event{}
	}
	ports := portsOf(k.src, k.proto, k.sport, k.dport)
	e := n.evaluated
	e.Src, e.Dst, e.Sport, e.Dport, e.Proto = k.src, k.dst, ports.Src, ports.Dst, k.proto
	return e
}

// reportEvent adds the event of what was evaluated last, when somebody wants to know: d is why the
// packet was dropped.
func (n *Node) reportEvent(in In, d *dropped) {
	e := n.evaluated
	if e == nil || !e.Egress.Local && !e.Ingress.Local && !e.In.Evaluated && !e.Out.Evaluated {
		return
	}
	e.Hook, e.IfIndex, e.Allowed = in.Hook, in.IfIndex, true
	e.Again, e.Service = n.again, n.service
	if d != nil {
		e.Reason = d.reason
		e.Allowed = !denies(d.reason)
	}
	if e.Allowed && !e.Log && !n.opts.Listening() {
		return
	}
	n.events = append(n.events, *e)
	n.evaluated = nil
}

// stage adds what the staged policies of both ends would say of a flow.
func (n *Node) stage(e *Event, ports nodestate.Ports) {
	would := func(end *End, iso nodestate.Isolation, names []nodestate.NameID, peer netip.Addr) {
		v, _ := n.state.DecideNamed(iso, names, peer, e.Proto, ports)
		end.Staged, end.StagedDenied, end.StagedRule = true, !v.Allow, v.Rule
	}
	if s, ok := n.state.Staged[e.Src]; ok && e.Egress.Local {
		would(&e.Egress, s.Egress, n.told[told{n.state.Addrs[n.sender].IfIndex, e.Dst}], e.Dst)
	}
	if s, ok := n.state.Staged[e.Dst]; ok && e.Ingress.Local && n.kind(e.Src) != nodestate.AddrHost {
		would(&e.Ingress, s.Ingress, nil, e.Src)
	}
}
