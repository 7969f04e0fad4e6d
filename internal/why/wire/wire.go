// SPDX-License-Identifier: Apache-2.0

// Package wire is what `weir why` asks an agent (POST /why) and what the agent answers: the request
// with its check, and the answer of one node, as JSON. The engine that answers is internal/why.
package wire

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Path is where agents are asked.
const Path = "/why"

// Busy is in the error of an agent that answers somebody else at the moment.
const Busy = "another question of this kind"

// Where a packet meets a node, as in docs/design/datapath.md.
const (
	FromWorkload = "from_workload" // sent by a pod of the node
	ToUplink     = "to_uplink"     // sent by the node itself
	FromUplink   = "from_uplink"   // from the network
	FromTunnel   = "from_tunnel"   // from another node, decapsulated
)

// Request asks what becomes of the first packet of a connection, or of one packet that another node
// sent on.
type Request struct {
	Hook        string         `json:"hook"`
	Source      netip.Addr     `json:"source"`
	Destination netip.Addr     `json:"destination"`
	Protocol    model.Protocol `json:"protocol"` // TCP, UDP, SCTP, or ICMP of the family: an echo request
	SourcePort  uint16         `json:"sourcePort"`
	Port        uint16         `json:"port"`
	Backend     netip.AddrPort `json:"backend"` // of a Service: this one; invalid = any
	Received    *Handover      `json:"received,omitempty"`
	// Sender is the pod's own address, of from_workload, where Source is another one that it sends
	// with; invalid = Source is its own.
	Sender netip.Addr `json:"sender,omitzero"`
}

// Handover is a packet that goes to another node.
type Handover struct {
	Hook  string     `json:"hook"`          // where it comes in: FromTunnel, FromUplink
	From  netip.Addr `json:"from"`          // the node that sends it: the tunnel's outer source
	MAC   string     `json:"mac,omitempty"` // of that node's uplink
	Frame []byte     `json:"frame"`         // Ethernet
	// IPIP: it comes by IP in IP, what is in Frame inside; from_tunnel of IPv4 alone. Encrypted: by
	// a device of WireGuard. What an agent sends leaves out what is not so, which one that does not
	// know these takes.
	IPIP      bool `json:"ipip,omitempty"`
	Encrypted bool `json:"encrypted,omitempty"`
}

// maxFrame bounds a frame, bytes: what the first packet of a connection takes, and more.
const maxFrame = 512

// Check says what in a request cannot be asked.
func (q *Request) Check() error {
	switch {
	case !q.Source.IsValid() || !q.Destination.IsValid() || q.Source.Is4() != q.Destination.Is4() || q.Source.Is4In6() || q.Destination.Is4In6():
		return fmt.Errorf("%v and %v are not two addresses of one family", q.Source, q.Destination)
	case q.Source.Zone() != "" || q.Destination.Zone() != "":
		return errors.New("an address with a zone is one link's alone")
	case q.Destination.IsMulticast() || q.Destination.IsUnspecified() || q.Source.IsMulticast() || q.Source.IsUnspecified():
		return fmt.Errorf("nobody has the address %v or %v alone", q.Source, q.Destination)
	}
	if s := q.Sender; s.IsValid() && (q.Hook != FromWorkload || s == q.Source || s.Is4() != q.Source.Is4() || s.Is4In6() || s.Zone() != "") {
		return fmt.Errorf("%v is not the own address, of the same family, of a pod that sends with %v", s, q.Source)
	}
	switch q.Protocol {
	case model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP:
	case model.ProtocolICMP, model.ProtocolICMPv6:
		if (q.Protocol == model.ProtocolICMP) != q.Source.Is4() {
			return errors.New("ICMP is not that of the addresses' family")
		}
	default:
		return fmt.Errorf("protocol %s: want tcp, udp, sctp or icmp", q.Protocol)
	}
	switch q.Hook {
	case FromWorkload, ToUplink, FromUplink:
		if q.Received != nil {
			return fmt.Errorf("a packet of another node does not come by %s", q.Hook)
		}
	case FromTunnel:
		return errors.New("what comes by the tunnel was sent on by another node")
	case "":
		h := q.Received
		if h == nil || h.Hook != FromTunnel && h.Hook != FromUplink || len(h.Frame) == 0 || len(h.Frame) > maxFrame || !h.From.IsValid() {
			return errors.New("neither a hook nor a packet of another node")
		}
		if h.IPIP && (h.Hook != FromTunnel || h.Encrypted || !h.From.Is4() || !q.Source.Is4()) {
			return errors.New("such a packet does not come by IP in IP")
		}
	default:
		return fmt.Errorf("no such hook: %q", q.Hook)
	}
	return nil
}

// Answer is what one node does with the packet.
type Answer struct {
	Node     string   `json:"node"`
	Version  string   `json:"version"`
	Plane    string   `json:"plane"`            // the data plane that decided
	Epoch    uint32   `json:"epoch"`            // of flows
	Behind   string   `json:"behind,omitempty"` // what of the desired state is not in the kernel
	Packet   string   `json:"packet"`           // as it comes in
	Flow     string   `json:"flow,omitempty"`   // what the node remembers of such a packet
	Service  *Service `json:"service,omitempty"`
	Policies []End    `json:"policies,omitempty"`
	Program  Program  `json:"program"`          // of eBPF
	Tables   *Tables  `json:"tables,omitempty"` // of nftables
	Outcome  Outcome  `json:"outcome"`
	Next     *Next    `json:"next,omitempty"`
	Notes    []string `json:"notes,omitempty"`    // what else counts, and is not explained
	Warnings []string `json:"warnings,omitempty"` // where what was found does not fit together
}

// Service is that of the address that was asked for.
type Service struct {
	Name     string    `json:"name"` // "Service default/web port http"
	Frontend string    `json:"frontend"`
	Where    string    `json:"where"` // AtConnect, InPath
	Backends []Backend `json:"backends"`
	Chosen   string    `json:"chosen,omitempty"`   // of this answer; any other of those that may be chosen could be, in a real connection
	Affinity uint32    `json:"affinity,omitempty"` // seconds
}

// Where a Service is translated.
const (
	AtConnect = "in the socket, when it connects"
	InPath    = "in the packet path"
)

// Backend is an endpoint of a Service.
type Backend struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Node    string `json:"node,omitempty"`
	Usable  bool   `json:"usable"` // new connections like this one may get it
}

// End is what policy says at one end of the connection.
type End struct {
	Direction   string             `json:"direction"`           // ingress, egress
	Host        string             `json:"host,omitempty"`      // of a host endpoint: host, forward, preDNAT, doNotTrack
	Interface   string             `json:"interface,omitempty"` // of a host endpoint: by which the packet comes in, or leaves
	Peer        netip.Addr         `json:"peer"`
	Explanation policy.Explanation `json:"explanation"`
	// Table is what the tables that the programs look up say; it must be the same.
	TableAllow bool           `json:"tableAllow"`
	TableRule  nodestate.Rule `json:"tableRule"`
	Agrees     bool           `json:"agrees"`
	Undecided  bool           `json:"undecided,omitempty"` // doNotTrack: allowed to go on, and be evaluated by all else
}

// Program is the program that was run; of nftables the interface and the number of runs alone.
type Program struct {
	Name      string `json:"name"`
	Interface string `json:"interface"`
	Tag       string `json:"tag"`  // the kernel's digest of the instructions that were run
	Live      string `json:"live"` // of those that the node's packets meet
	ID        uint32 `json:"id"`   // of the program that these meet
	Same      bool   `json:"same"`
	Why       string `json:"why,omitempty"` // not the same
	Runs      int    `json:"runs"`          // how often, until the backend was the one that was asked for
}

// Tables are the rules in the kernel that the packet was led through.
type Tables struct {
	Table      string   `json:"table"`           // "ip weir"
	Generation uint32   `json:"generation"`      // of the node's nftables
	Rules      int      `json:"rules"`           // in the table; each was compared with what the agent wrote
	Met        int      `json:"met"`             // by the packet
	Chains     []string `json:"chains"`          // in the order in which the packet met them
	Chain      string   `json:"chain,omitempty"` // that dropped it
	Lookups    []Lookup `json:"lookups"`         // what the kernel was asked, each compared with what the agent wrote
	Same       bool     `json:"same"`            // all is as the agent wrote it
}

// Lookup is a question to a set in the kernel, with the answer.
type Lookup struct {
	Set   string `json:"set"`
	Key   string `json:"key"`
	Found bool   `json:"found"`
	Value string `json:"value,omitempty"` // of a map
}

// Outcome is what the program, or the rules, decided.
type Outcome struct {
	Verdict string `json:"verdict"`
	Text    string `json:"text"`             // in words
	Packet  string `json:"packet,omitempty"` // as it goes on
	Reason  string `json:"reason,omitempty"` // of a drop
	Rule    string `json:"rule,omitempty"`   // that allowed last, or denied
	Path    string `json:"way,omitempty"`    // local, direct, tunnel, stack
	// Tunnel is how a packet in the tunnel is encapsulated, and Encrypted the device of WireGuard
	// by which it leaves. Route is the kernel's by which it goes on, in the tunnel that of the
	// outer packet; absent where none leads there: the data plane found the neighbour otherwise.
	Tunnel    string `json:"tunnel,omitempty"` // VXLAN, IPIP
	Encrypted string `json:"encrypted,omitempty"`
	Route     *Route `json:"route,omitempty"`
	// Gateway is the egress gateway by which the packet leaves the cluster: its address, on its own
	// node with the pod's name.
	Gateway string `json:"gateway,omitempty"`
	// EgressRule is the rule of an EgressGatewayPolicy by which the packet leaves the cluster, by a
	// gateway or without one, or is dropped.
	EgressRule string `json:"egressRule,omitempty"`
}

// Encapsulations.
const (
	VXLAN = "VXLAN"
	IPIP  = "IP in IP"
)

// Route is one of the kernel's.
type Route struct {
	Prefix    string `json:"prefix"`
	Via       string `json:"via,omitempty"` // a gateway
	Interface string `json:"interface"`
	By        string `json:"by"` // who wrote it, by its protocol as ip(8) names it; weir and weir-bgp are Weir's
	Learned   bool   `json:"learned,omitempty"`
}

// String is the route as ip(8) writes it.
func (r *Route) String() string {
	s := r.Prefix
	if r.Via != "" {
		s += " via " + r.Via
	}
	s += " dev " + r.Interface + " proto " + r.By
	if r.Learned {
		s += " (learned by BGP)"
	}
	return s
}

// Verdicts.
const (
	Delivered = "delivered" // to the pod, or to the node itself
	SentOn    = "sent on"   // to another node of the cluster
	Left      = "left"      // the cluster, or to the kernel's stack, which routes it
	Dropped   = "dropped"
)

// Next is where to ask on.
type Next struct {
	Node     string   `json:"node"`
	Handover Handover `json:"handover"`
}
