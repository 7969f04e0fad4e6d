// SPDX-License-Identifier: Apache-2.0

// Package events names what the programs report of flows, and hands it to who listens.
package events

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Path is the question to an agent: a stream of events, one JSON object a line, until who asked is
// gone.
const Path = "/events"

// Event is what policy said of a flow on one node: in the flow's original direction, after a
// Service chose the backend.
type Event struct {
	Time        time.Time `json:"time"`
	Node        string    `json:"node"`
	Verdict     string    `json:"verdict"`          // "allowed" or "denied", by policy or a limit of a pod
	Reason      string    `json:"reason,omitempty"` // why the packet was dropped: bpf/reasons.h
	Protocol    string    `json:"protocol"`
	Source      Peer      `json:"source"`
	Destination Peer      `json:"destination"`
	ICMP        string    `json:"icmp,omitempty"`        // "type/code"
	Service     string    `json:"service,omitempty"`     // "namespace/name port http"
	Egress      *End      `json:"egress,omitempty"`      // at the source, when it is a pod of this node
	Ingress     *End      `json:"ingress,omitempty"`     // at the destination
	HostIngress *HostEnd  `json:"hostIngress,omitempty"` // what a host endpoint said where the flow comes into the node
	HostEgress  *HostEnd  `json:"hostEgress,omitempty"`  // where it leaves it
	Log         bool      `json:"log,omitempty"`         // a rule with action Log matched
	Again       bool      `json:"again,omitempty"`       // an open flow, evaluated again after a change
	Hook        string    `json:"hook"`
	// Lost are the events before this one that this listener was too slow for.
	Lost uint64 `json:"lost,omitempty"`
}

// Peer is one end of a flow.
type Peer struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"`
	Pod     string     `json:"pod,omitempty"` // "namespace/name"
}

// End is what policy said at one end.
type End struct {
	Rule   *Rule   `json:"rule,omitempty"`   // that decided; absent = no policy selects the pod, or the other end denied before
	Domain string  `json:"domain,omitempty"` // the domain name, or the wildcard, by which that rule allows; of flow records, without a Service
	Name   string  `json:"name,omitempty"`   // the domain name that the pod asked for and that led to the address it sends to; of flow records
	Staged *Staged `json:"staged,omitempty"` // absent = no staged policy selects the pod
}

// HostEnd is what a host endpoint said.
type HostEnd struct {
	Endpoint string  `json:"endpoint,omitempty"` // its name, where the packet shows the interface
	Rule     *Rule   `json:"rule,omitempty"`
	Staged   *Staged `json:"staged,omitempty"` // absent = staged policies change nothing there
}

// Rule names a rule.
type Rule struct {
	Kind   string `json:"kind"` // that of a policy; "default-deny", "default-allow", "policy-too-large"
	Name   string `json:"name,omitempty"`
	Tier   string `json:"tier,omitempty"`
	Detail string `json:"detail,omitempty"` // "ingress[0]"
}

// Staged is what would have been said if the staged policies were in force.
type Staged struct {
	Verdict string `json:"verdict"`
	Rule    *Rule  `json:"rule,omitempty"`
}

// Namer knows what numbers and addresses mean.
type Namer interface {
	State() *nodestate.State // nil while it is not known
	Pod(netip.Addr) (model.Name, bool)
}

func verdict(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// name makes an Event of what the programs reported.
func name(d dataplane.Event, node string, by Namer, now time.Time) Event {
	s := by.State()
	e := Event{
		Time: now.UTC(), Node: node, Verdict: verdict(d.Allowed), Protocol: d.Proto.String(), Hook: d.Hook, Log: d.Log, Again: d.Again,
		Source: Peer{Address: d.Src, Port: d.Sport}, Destination: Peer{Address: d.Dst, Port: d.Dport},
	}
	if d.Reason != 0 {
		e.Reason = reason.Reason(d.Reason).String()
	}
	if d.Proto == model.ProtocolICMP || d.Proto == model.ProtocolICMPv6 {
		e.Source.Port, e.Destination.Port = 0, 0
		e.ICMP = fmt.Sprintf("%d/%d", d.Dport>>8, d.Dport&0xff)
	}
	for _, p := range []*Peer{&e.Source, &e.Destination} {
		if pod, ok := by.Pod(p.Address); ok {
			p.Pod = pod.String()
		}
	}
	e.Service = ServiceOf(s, d.Service)
	e.Egress, e.Ingress = EndOf(s, d.Egress), EndOf(s, d.Ingress)
	e.HostIngress, e.HostEgress = hostEndOf(s, d, d.In, true), hostEndOf(s, d, d.Out, false)
	return e
}

// ServiceOf names a Service by one of its frontends: "namespace/name port http", or the frontend
// where the state does not know it; empty for the zero value.
func ServiceOf(s *nodestate.State, f nodestate.Frontend) string {
	if f == (nodestate.Frontend{}) {
		return ""
	}
	if s != nil {
		if svc, ok := s.Frontends.Get(f); ok {
			if r := ruleOf(s, svc.Rule); r != nil {
				return strings.TrimSpace(r.Name + " " + r.Detail)
			}
		}
	}
	return f.String()
}

// EndOf names what policy said at one end; nil where that is no pod of this node.
func EndOf(s *nodestate.State, d dataplane.EventEnd) *End {
	if !d.Local {
		return nil
	}
	e := &End{Rule: ruleOf(s, d.Rule)}
	if d.Staged {
		e.Staged = &Staged{Verdict: verdict(!d.StagedDenied), Rule: ruleOf(s, d.StagedRule)}
	}
	return e
}

// hostEndOf is what was said where the flow comes in, or where it leaves.
func hostEndOf(s *nodestate.State, d dataplane.Event, h dataplane.EventHost, in bool) *HostEnd {
	if !h.Evaluated {
		return nil
	}
	e := &HostEnd{Rule: ruleOf(s, h.Rule)}
	if h.Staged {
		e.Staged = &Staged{Verdict: verdict(!h.StagedDenied), Rule: ruleOf(s, h.StagedRule)}
	}
	if s != nil {
		e.Endpoint = hostName(s, d, in)
	}
	return e
}

// hostName is the name of the host endpoint that was evaluated where the flow comes in, or where it
// leaves: the only one that there is, or that of the packet's interface, when it is known that this
// is the one.
func hostName(s *nodestate.State, d dataplane.Event, in bool) string {
	names := map[string]bool{}
	for _, h := range s.HostEndpoints {
		names[h.Name] = true
	}
	if len(names) == 1 {
		for name := range names {
			return name
		}
	}
	if d.In.Evaluated && d.Out.Evaluated && (d.Again || in != (d.Hook != "to_uplink")) { // a packet of either direction may be evaluated again
		return ""
	}
	switch d.Hook {
	case "from_uplink", "to_uplink", "from_tunnel", "prerouting", "input", "output", "postrouting": // with nftables a packet that is forwarded has two
		return s.HostEndpointAt(d.IfIndex, d.Src).Name
	}
	return ""
}

// ruleOf names a number; one that the state no longer has is of kind "gone".
func ruleOf(s *nodestate.State, id nodestate.RuleID) *Rule {
	if id == 0 {
		return nil
	}
	if s != nil {
		if r, ok := s.Rules.Get(id); ok {
			return &Rule{Kind: r.Kind, Name: r.Name, Tier: r.Tier, Detail: r.Detail}
		}
	}
	return &Rule{Kind: "gone", Detail: fmt.Sprintf("%08x", uint32(id))}
}

// Deciding is the rule that decided: of a denied flow the one that denied, else that of the
// destination, else of the source, else of a host endpoint.
func (e *Event) Deciding() *Rule {
	switch {
	case e.Reason == reason.HostEgress.String() && e.HostEgress != nil:
		return e.HostEgress.Rule
	case (e.Reason == reason.HostIngress.String() || e.Reason == reason.HostPreDNAT.String()) && e.HostIngress != nil:
		return e.HostIngress.Rule
	}
	for _, end := range []*End{e.Ingress, e.Egress} {
		if end != nil && end.Rule != nil {
			return end.Rule
		}
	}
	for _, end := range []*HostEnd{e.HostIngress, e.HostEgress} {
		if end != nil && end.Rule != nil {
			return end.Rule
		}
	}
	return nil
}

// stagedAt is what staged policies would have said somewhere.
type stagedAt struct {
	where string
	*Staged
}

// would lists what staged policies would have said.
func (e *Event) would() (out []stagedAt) {
	for i, end := range []*End{e.Egress, e.Ingress} {
		if end != nil && end.Staged != nil {
			out = append(out, stagedAt{[...]string{"egress", "ingress"}[i], end.Staged})
		}
	}
	for i, end := range []*HostEnd{e.HostIngress, e.HostEgress} {
		if end != nil && end.Staged != nil {
			out = append(out, stagedAt{[...]string{"host endpoint (in)", "host endpoint (out)"}[i], end.Staged})
		}
	}
	return out
}

// String is the line for people.
func (e *Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s → %s %s %s", e.Time.Format("15:04:05.000"), e.Node, e.Source, e.Destination, e.protocol(), strings.ToUpper(e.Verdict))
	if r := e.Deciding(); r != nil {
		b.WriteString(" by " + r.String())
	} else if e.Verdict == "allowed" {
		b.WriteString(" (no policy)")
	}
	for _, w := range []string{e.Reason, e.flags()} {
		if w != "" {
			b.WriteString(" " + w)
		}
	}
	if e.Service != "" {
		b.WriteString(" service " + e.Service)
	}
	for i, end := range []*HostEnd{e.HostIngress, e.HostEgress} {
		if end != nil && end.Endpoint != "" {
			fmt.Fprintf(&b, " host endpoint %s (%s)", end.Endpoint, [...]string{"in", "out"}[i])
		}
	}
	for _, would := range e.would() {
		fmt.Fprintf(&b, "; staged %s: would be %s", would.where, strings.ToUpper(would.Verdict))
		if would.Rule != nil {
			b.WriteString(" by " + would.Rule.String())
		}
	}
	if e.Lost > 0 {
		fmt.Fprintf(&b, " (%d events before it were lost)", e.Lost)
	}
	return b.String()
}

func (e *Event) protocol() string {
	switch {
	case e.ICMP != "":
		return e.Protocol + ":" + e.ICMP
	case e.Destination.Port != 0:
		return fmt.Sprintf("%s:%d", e.Protocol, e.Destination.Port)
	}
	return e.Protocol
}

func (e *Event) flags() string {
	var words []string
	if e.Again {
		words = append(words, "open flow")
	}
	if e.Log {
		words = append(words, "log")
	}
	return strings.Join(words, ", ")
}

// String is the pod, else the address, with the port of a source.
func (p Peer) String() string {
	if p.Pod != "" {
		return p.Pod
	}
	return p.Address.String()
}

// String is "kind name detail in tier x".
func (r *Rule) String() string {
	return nodestate.Rule{Kind: r.Kind, Name: r.Name, Detail: r.Detail, Tier: r.Tier}.String()
}
