// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/hubble/api/flow"
	"github.com/weir-net/weir/internal/reason"
)

// Reserved identities of ends that are no pods (Cilium: pkg/identity, numericidentity.go). Pods
// have 0: Weir knows no identities.
const (
	identityHost       = 1
	identityWorld      = 2
	identityRemoteNode = 6
)

// reserved are the labels of these.
var reserved = map[uint32]string{identityHost: "reserved:host", identityWorld: "reserved:world", identityRemoteNode: "reserved:remote-node"}

// Types of events (Cilium: pkg/monitor/api, types.go). The subtype of a drop is the reason.
const (
	typeDrop  = 1
	typeTrace = 4
)

// converter makes Flows of records. The zero value knows no nodes.
type converter struct {
	node  string                // that of the records
	nodes map[netip.Addr]string // the nodes by their addresses
}

// newConverter returns one for now: nodes come and go.
func (s *Server) newConverter() converter {
	return converterOf(s.Nodes()).at(s.Node)
}

func converterOf(nodes []Node) converter {
	c := converter{nodes: map[netip.Addr]string{}}
	for _, n := range nodes {
		for _, a := range n.Addrs {
			c.nodes[a] = n.Name
		}
	}
	return c
}

// at is the converter of records of a node.
func (c converter) at(node string) converter {
	c.node = node
	return c
}

// flowOf is a record as a Flow, without what extend adds.
func (c converter) flowOf(r *flows.Flow) *flow.Flow {
	out := &flow.Flow{
		Time: timestamppb.New(r.End), NodeName: r.Node, Verdict: flow.Verdict_FORWARDED, Type: flow.FlowType_L3_L4,
		IP: &flow.IP{Source: r.Source.Address.String(), Destination: r.Destination.Address.String(), IpVersion: flow.IPVersion_IPv4},
		L4: layer4(r), Source: c.endpoint(r.Source), Destination: c.endpoint(r.Destination), DestinationService: serviceOf(r.Service),
		IsReply: wrapperspb.Bool(false), TrafficDirection: direction(r), Emitter: &flow.Emitter{Name: "Weir"},
	}
	if r.Source.Address.Is6() {
		out.IP.IpVersion = flow.IPVersion_IPv6
	}
	if r.Egress != nil {
		if name := cmp.Or(r.Egress.Name, r.Egress.Domain); name != "" {
			out.DestinationNames = []string{name}
		}
	}
	out.EgressAllowedBy, out.EgressDeniedBy = policies(r, r.Egress, flow.TrafficDirection_EGRESS)
	out.IngressAllowedBy, out.IngressDeniedBy = policies(r, r.Ingress, flow.TrafficDirection_INGRESS)
	if r.Verdict == flows.Allowed {
		out.TraceObservationPoint = pointOf(r.Path)
		out.EventType = &flow.CiliumEventType{Type: typeTrace, SubType: int32(out.TraceObservationPoint)}
		if out.TraceObservationPoint == flow.TraceObservationPoint_TO_ENDPOINT {
			out.EventType.SubType = 0 // flow.proto says why the two differ
		}
	} else {
		out.Verdict, out.DropReasonDesc = flow.Verdict_DROPPED, dropReason(r)
		out.DropReason = uint32(out.DropReasonDesc) //nolint:staticcheck // older clients read it
		out.EventType = &flow.CiliumEventType{Type: typeDrop, SubType: int32(out.DropReasonDesc)}
	}
	out.Summary = summary(r) //nolint:staticcheck // older clients read it
	return out
}

// endpoint is one end.
func (c converter) endpoint(p flows.Peer) *flow.Endpoint {
	if p.Pod == "" {
		id := uint32(identityWorld)
		switch name, is := c.nodes[p.Address]; {
		case is && name == c.node:
			id = identityHost
		case is:
			id = identityRemoteNode
		}
		return &flow.Endpoint{Identity: id, Labels: []string{reserved[id]}}
	}
	out := &flow.Endpoint{Namespace: p.Namespace, PodName: p.Pod}
	for key, value := range p.Labels {
		out.Labels = append(out.Labels, "k8s:"+key+"="+value)
	}
	out.Labels = append(out.Labels, "k8s:io.kubernetes.pod.namespace="+p.Namespace)
	slices.Sort(out.Labels)
	if kind, name, ok := strings.Cut(p.Workload, " "); ok {
		out.Workloads = []*flow.Workload{{Kind: kind, Name: name}}
	}
	return out
}

func layer4(r *flows.Flow) *flow.Layer4 {
	from, to := uint32(r.Source.Port), uint32(r.Destination.Port)
	switch r.Protocol {
	case "tcp":
		flags := &flow.TCPFlags{}
		for f := range strings.FieldsSeq(r.TCPFlags) {
			switch f {
			case "SYN":
				flags.SYN = true
			case "ACK":
				flags.ACK = true
			case "FIN":
				flags.FIN = true
			case "RST":
				flags.RST = true
			}
		}
		return &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: from, DestinationPort: to, Flags: flags}}}
	case "udp":
		return &flow.Layer4{Protocol: &flow.Layer4_UDP{UDP: &flow.UDP{SourcePort: from, DestinationPort: to}}}
	case "sctp":
		return &flow.Layer4{Protocol: &flow.Layer4_SCTP{SCTP: &flow.SCTP{SourcePort: from, DestinationPort: to}}}
	case "icmp":
		kind, code := icmp(r.ICMP)
		return &flow.Layer4{Protocol: &flow.Layer4_ICMPv4{ICMPv4: &flow.ICMPv4{Type: kind, Code: code}}}
	case "icmpv6":
		kind, code := icmp(r.ICMP)
		return &flow.Layer4{Protocol: &flow.Layer4_ICMPv6{ICMPv6: &flow.ICMPv6{Type: kind, Code: code}}}
	}
	return nil
}

// icmp reads "type/code".
func icmp(text string) (kind, code uint32) {
	a, b, _ := strings.Cut(text, "/")
	k, _ := strconv.ParseUint(a, 10, 8)
	c, _ := strconv.ParseUint(b, 10, 8)
	return uint32(k), uint32(c)
}

func summary(r *flows.Flow) string {
	switch {
	case r.Protocol == "tcp" && r.TCPFlags != "":
		return "TCP Flags: " + strings.ReplaceAll(r.TCPFlags, " ", ", ")
	case r.ICMP != "":
		return strings.ToUpper(r.Protocol) + " " + r.ICMP
	}
	return strings.ToUpper(r.Protocol)
}

// serviceOf reads "namespace/name port http"; nil = no Service that has a name.
func serviceOf(text string) *flow.Service {
	name, _, _ := strings.Cut(text, " ")
	if namespace, name, ok := strings.Cut(name, "/"); ok {
		return &flow.Service{Namespace: namespace, Name: name}
	}
	return nil
}

// deniedAt says where what was denied or dropped was so; unknown = at neither.
func deniedAt(r *flows.Flow) flow.TrafficDirection {
	switch r.Reason {
	case reason.PolicyIngress.String(), reason.HostIngress.String(), reason.HostPreDNAT.String(), reason.UntrackedIngress.String():
		return flow.TrafficDirection_INGRESS
	case reason.PolicyEgress.String(), reason.HostEgress.String(), reason.UntrackedEgress.String():
		return flow.TrafficDirection_EGRESS
	}
	return flow.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN
}

// direction is where a packet was denied; else into a pod of this node, else out of one.
func direction(r *flows.Flow) flow.TrafficDirection {
	if d := deniedAt(r); d != flow.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN {
		return d
	}
	switch {
	case r.Ingress != nil:
		return flow.TrafficDirection_INGRESS
	case r.Egress != nil:
		return flow.TrafficDirection_EGRESS
	}
	return flow.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN
}

// policies are those that decided at one end. What was denied by a host endpoint has no end: the
// record's rule is that endpoint's.
func policies(r *flows.Flow, e *events.End, at flow.TrafficDirection) (allowed, denied []*flow.Policy) {
	var rule *events.Rule
	if e != nil {
		rule = e.Rule
	}
	if deniedAt(r) != at {
		return policiesOf(rule), nil
	}
	if rule == nil {
		rule = r.Rule
	}
	return nil, policiesOf(rule)
}

// policiesOf names a rule's policy; of what no rule allows all policies that isolate the end.
func policiesOf(rule *events.Rule) (out []*flow.Policy) {
	if rule == nil || rule.Name == "" || rule.Kind == "default-allow" || rule.Kind == "gone" {
		return nil
	}
	for full := range strings.SplitSeq(rule.Name, ",") {
		p := &flow.Policy{Name: strings.TrimSpace(full), Kind: rule.Kind}
		if namespace, name, ok := strings.Cut(p.Name, "/"); ok {
			p.Namespace, p.Name = namespace, name
		}
		out = append(out, p)
	}
	return out
}

// pointOf says where the client's packets go on to.
func pointOf(path string) flow.TraceObservationPoint {
	switch path {
	case "local":
		return flow.TraceObservationPoint_TO_ENDPOINT
	case "direct":
		return flow.TraceObservationPoint_TO_NETWORK
	case "vxlan", "ipip":
		return flow.TraceObservationPoint_TO_OVERLAY
	case "stack":
		return flow.TraceObservationPoint_TO_STACK
	}
	return flow.TraceObservationPoint_UNKNOWN_POINT
}

// dropReason is the reason that comes next to Weir's; extend says Weir's own.
func dropReason(r *flows.Flow) flow.DropReason {
	if r.Verdict == flows.Denied {
		if r.Rule == nil || r.Rule.Kind == "default-deny" {
			return flow.DropReason_POLICY_DENIED // no rule allows it
		}
		return flow.DropReason_POLICY_DENY // a rule denies it
	}
	return dropReasons[r.Reason] // 0 = unknown
}

var dropReasons = map[string]flow.DropReason{
	reason.Spoofed.String():         flow.DropReason_INVALID_SOURCE_IP,
	reason.NoBackend.String():       flow.DropReason_SERVICE_BACKEND_NOT_FOUND,
	reason.NoLocalBackend.String():  flow.DropReason_SERVICE_BACKEND_NOT_FOUND,
	reason.NoEndpoint.String():      flow.DropReason_STALE_OR_UNROUTABLE_IP,
	reason.NoRoute.String():         flow.DropReason_FIB_LOOKUP_FAILED,
	reason.NoPort.String():          flow.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
	reason.NoFlow.String():          flow.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE,
	reason.Malformed.String():       flow.DropReason_INVALID_PACKET_DROPPED,
	reason.Family.String():          flow.DropReason_UNSUPPORTED_L3_PROTOCOL,
	reason.TTL.String():             flow.DropReason_TTL_EXCEEDED,
	reason.TunnelSource.String():    flow.DropReason_UNKNOWN_SENDER,
	reason.TunnelFromPod.String():   flow.DropReason_ENCAPSULATION_TRAFFIC_IS_PROHIBITED,
	reason.Rewrite.String():         flow.DropReason_ERROR_WRITING_TO_PACKET,
	reason.SourceRange.String():     flow.DropReason_DENIED_BY_LB_SRC_RANGE_CHECK,
	reason.Fragment.String():        flow.DropReason_IP_FRAGMENTATION_NOT_SUPPORTED,
	reason.FragmentBad.String():     flow.DropReason_INVALID_PACKET_DROPPED,
	reason.FragmentNoFirst.String(): flow.DropReason_FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND,
	reason.ErrorNoFlow.String():     flow.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE,
	reason.Share.String():           flow.DropReason_CT_MAP_INSERTION_FAILED,
	reason.ToHost.String():          flow.DropReason_POLICY_DENIED,
	reason.VLAN.String():            flow.DropReason_VLAN_FILTERED,
	reason.Neighbours.String():      flow.DropReason_DROP_RATE_LIMITED,
}

// Decision is what a record says that a Flow has no field for, as JSON in Flow.extensions.
type Decision struct {
	Reason   string         `json:"reason,omitempty"`
	Rule     *events.Rule   `json:"rule,omitempty"` // kind, name, tier and rule that decided
	Egress   *events.End    `json:"egress,omitempty"`
	Ingress  *events.End    `json:"ingress,omitempty"`
	Start    time.Time      `json:"start"`
	Ended    string         `json:"ended,omitempty"`
	Asked    string         `json:"asked,omitempty"`
	Path     string         `json:"path,omitempty"`
	Return   string         `json:"return,omitempty"`
	Sent     flows.Counters `json:"sent"`
	Received flows.Counters `json:"received"`

	Retransmitted *flows.Retransmitted `json:"retransmitted,omitempty"`
}

// extend adds the extensions, which cost more than the rest. They are a google.protobuf.Struct and
// no message of Weir's: a client writes JSON only of what it knows the type of, and the hubble CLI
// knows this one.
func extend(f *flow.Flow, r *flows.Flow) error {
	text, err := json.Marshal(Decision{Reason: r.Reason, Rule: r.Rule, Egress: r.Egress, Ingress: r.Ingress, Start: r.Start.UTC(), Ended: r.Ended,
		Asked: r.Asked, Path: r.Path, Return: r.Return, Sent: r.Sent, Received: r.Received, Retransmitted: r.Retransmitted})
	if err != nil {
		return err
	}
	var fields structpb.Struct
	if err := fields.UnmarshalJSON(text); err != nil {
		return err
	}
	f.Extensions, err = anypb.New(&fields)
	return err
}
