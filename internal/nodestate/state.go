// SPDX-License-Identifier: Apache-2.0

// Package nodestate is the desired state of one node as plain tables. calc writes it, a data plane
// makes the kernel equal to it, sim answers packets from it. Equal clusters give equal states,
// whatever happened before: identifiers are made from content, never counted up.
package nodestate

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// State is the whole desired state of a node. A State that was handed on is never changed. The
// tables that follow the size of the cluster are Maps: a copy of a State shares them, and a change
// of the copy costs what changed.
type State struct {
	Settings  Settings
	Addrs     map[netip.Addr]Addr
	Routes    map[netip.Prefix]Route
	Frontends Map[Frontend, Service]
	// Backends are the backends of a service port that are not gone, by its id, sorted by address
	// and port. Backend says which of them new flows may choose. The order carries no meaning: a
	// driver keeps its own slots.
	Backends Map[Frontend, []Backend]
	// SourceRanges are whom the Restricted frontends of a service port are for, by its id, sorted.
	SourceRanges Map[Frontend, []netip.Prefix]
	// HealthChecks are the Services whose health on this node is asked for (healthCheckNodePort).
	// They are no driver's concern: the agent answers.
	HealthChecks Map[model.Name, HealthCheck]
	// Refused says what of Services and of pods' host ports is not in force, and why. It is no
	// driver's concern.
	Refused   Map[Object, []Refusal]
	Peers     Map[netip.Addr, Class]
	PeerCIDRs map[netip.Prefix]Class
	// Policy is look-up 2. A set keeps its number when the rules of its policies change, so what
	// is under a set and a class may become something else. A driver should add to Policy
	// first, then write Peers, PeerCIDRs and Addrs, move the epoch on, and remove from Policy last:
	// open flows are evaluated by complete tables only. A new flow between these steps may meet a
	// new class with an old set, for which there are no entries: it must not get the verdict of
	// class 0. Nor may it meet half of what a set becomes.
	Policy Map[PolicyKey, PolicyValue]
	// Staged are the isolations that endpoints would have if the staged policies were in force: of
	// the endpoints for which that differs. Nothing is decided by them.
	Staged map[netip.Addr]StagedIsolation
	// Unfit names the sets of policies that take too much of the node, sorted: Kind
	// policy-too-large, whose endpoints are cut off, and staged-policy-too-large, which are not
	// looked at. They are no driver's concern.
	Unfit []Rule
	// Overdrawn says which namespaces ask for more of a table than they get, sorted. It is no
	// driver's concern either.
	Overdrawn []Overdrawn
	// Rules names every number that appears elsewhere in the state.
	Rules Map[RuleID, Rule]
	// Clients are the addresses of the pods behind network namespaces, by netns cookie.
	Clients map[uint64]Client
	// Held are the interfaces of pods of which nothing is known yet, by index: names. What comes by
	// them, or is for them, is dropped. There are some where Settings.Chained alone.
	Held map[int]string
	// Announced are the addresses that this node answers neighbours for on its uplinks: load
	// balancers' and, where asked for, pods'. Watched are the nodes whose silence on the link would
	// change that, with the MAC addresses that they publish: the agent looks whether they are there
	// (model.Local.Silent).
	Announced map[netip.Addr]bool
	Watched   map[netip.Addr][6]byte
	// HostEndpoints are what host endpoints evaluate, by interface. Without any, what the node's
	// own processes exchange is not looked at.
	HostEndpoints map[HostInterface]HostEndpoint
	// HostStaged are what they would evaluate if the staged policies were in force: those for which
	// that differs. Nothing is decided by it.
	HostStaged map[HostInterface]HostEndpoint
	// WireGuard4 and WireGuard6 are what is encrypted of each family. They are no driver's concern:
	// a driver that is told that something goes through the tunnel finds it encrypted.
	WireGuard4, WireGuard6 WireGuard
	// BGP is what the node's BGP process should do; nil = nothing.
	BGP *BGP
	// QoS is how much pods of this node may send and get, by the host side of their interfaces.
	// Most pods have no entry.
	QoS map[string]QoS
	// Gateways are the egress gateways of pods, by the addresses of these and where to: of the
	// node's own (Addr.Gateways) those that are ready, wherever they are, and of other nodes' pods
	// those of them that are on this node. At most GatewaysMost, sorted, of the address's family.
	// Lists that are there are not empty.
	Gateways map[GatewayKey][]netip.Addr
	// Egress is which of these lists counts, for pods that leave by an EgressGatewayPolicy.
	Egress Egress
	// Names is policy by domain name.
	Names Names
	// Sources are the prefixes that endpoints of this node may send from beside their own
	// addresses, by these: sorted, of the address's family. See SendsAs.
	Sources map[netip.Addr][]netip.Prefix
	// Floating are the pods' own addresses that floating ones lead to. What begins at a pod or at
	// the node itself is translated, what comes from outside where the pod is on this node; that of
	// another node's pod is of AddrPod, too.
	Floating map[netip.Addr]netip.Addr
	// Probed are the addresses of other nodes that have gateways of the node's own pods, and
	// whether they are taken as down (model.Local.Down): then others have their place, where there
	// are any.
	Probed map[netip.Addr]bool
}

// QoS is how much a pod may send and get by an interface.
type QoS struct {
	IfIndex int
	Owner   model.Name
	model.QoS
}

// LimitsSent reports whether a program or rules of its own see what the pod sends.
func (q QoS) LimitsSent() bool {
	return q.Egress != (model.Limits{}) || q.CountsConnections() || q.DSCP > 0
}

// LimitsGot reports whether what the pod gets is counted at its interface.
func (q QoS) LimitsGot() bool { return q.Ingress.PacketRate > 0 || q.CountsConnections() }

// Queued reports whether an endpoint gets its packets by the host side of its interface, where they
// wait or are counted.
func (s *State) Queued(a Addr) bool {
	if a.Kind != AddrEndpoint || len(s.QoS) == 0 {
		return false
	}
	q := s.QoS[a.Interface]
	return q.Ingress.Bandwidth > 0 || q.LimitsGot()
}

// Overdrawn is a namespace that asks for more of a table of the node than it gets. Figures are
// entries of the table.
type Overdrawn struct {
	Namespace string // empty: what pods of several namespaces share, by policies of the cluster
	Table     string
	Refused   int // sets of policies, or Services
	Asked     int // at least
	Granted   int
	Reserved  int // what a namespace has in any case
	Share     int // what it has before younger claims of others
	Total     int
}

func (o Overdrawn) String() string {
	return fmt.Sprintf("%q: %d of %d %s, %d refused (reserved %d, share %d, all %d)", o.Namespace, o.Granted, o.Asked, o.Table, o.Refused, o.Reserved, o.Share, o.Total)
}

// HostInterface is an interface in one family. IfIndex 0 represents all that have no entry of their
// own.
type HostInterface struct {
	IfIndex int
	IPv6    bool
}

// HostEndpoint is what is evaluated on an interface. Sets of an Isolation of 0 evaluate nothing.
type HostEndpoint struct {
	Name string
	// HostIngress and HostEgress are of the traffic of the node's own processes, ForwardIngress and
	// ForwardEgress of what the node hands on: to and from pods, and to other nodes.
	HostIngress, HostEgress, ForwardIngress, ForwardEgress Isolation
	PreDNAT                                                Isolation // of what comes in, before Services
	UntrackedIngress, UntrackedEgress                      Isolation // of each packet, before everything else
	// DSCP is that of what the node's own processes send out of the cluster, plus 1; 0 = theirs.
	DSCP uint8
}

// HostEndpointAt returns what is evaluated on an interface in the family of an address.
func (s *State) HostEndpointAt(ifindex int, like netip.Addr) HostEndpoint {
	if h, ok := s.HostEndpoints[HostInterface{ifindex, like.Is6()}]; ok {
		return h
	}
	return s.HostEndpoints[HostInterface{0, like.Is6()}]
}

// EvaluatesUntracked reports whether a host endpoint of the node evaluates each packet by itself
// (doNotTrack).
func (s *State) EvaluatesUntracked() bool {
	for _, h := range s.HostEndpoints {
		if h.UntrackedIngress.Set != 0 || h.UntrackedEgress.Set != 0 {
			return true
		}
	}
	return false
}

// HostStagedAt returns what would be evaluated there if the staged policies were in force; ok is
// false where they change nothing.
func (s *State) HostStagedAt(ifindex int, like netip.Addr) (h HostEndpoint, ok bool) {
	at := HostInterface{ifindex, like.Is6()}
	if _, own := s.HostEndpoints[at]; !own {
		at.IfIndex = 0
	}
	h, ok = s.HostStaged[at]
	return h, ok
}

// Settings are the node's scalars.
type Settings struct {
	Node     netip.Addr // its primary IPv4 address, invalid when it has none
	Node6    netip.Addr // its primary IPv6 address
	IPv6     bool       // the node carries IPv6
	DSR      bool
	DSRTimes model.DSRTimes
	// DSROptOut are the clients whose answers never go directly to them: sorted, each once.
	DSROptOut           []netip.Prefix
	ConnectTime         model.ConnectTimeLB
	SNATFirst, SNATLast uint16 // ports, inclusive
	Tunnel              Tunnel
	DataIfaces          string // regular expression of uplinks
	// InterfacePrefix begins the names of pods' interfaces on the node.
	InterfacePrefix string
	// PoolRoutes are prefixes that host processes reach by Weir's host device, with the MTU of the
	// way: the pools, and the ranges of cluster IPs where they are known.
	PoolRoutes map[netip.Prefix]int
	// NodeRoutes are other nodes' primary addresses that host processes reach through the tunnel,
	// with the MTU of the way.
	NodeRoutes map[netip.Prefix]int
	PodMTU     int // of new pod interfaces, bytes
	// HostNAT says that what host processes send is balanced in the packet path, not in the sockets
	// alone.
	HostNAT  bool
	MaxFlows int
	// KubeProxy: a kube-proxy carries Services on this node. A driver that can run alongside one
	// leaves all frontends but host ports (LocalOnly) to it, and what other nodes hand on to this
	// one.
	KubeProxy bool
	// ProxyRules: rules of a kube-proxy are there, be it gone or not: they translate what nobody
	// translated before them.
	ProxyRules bool
	// HandOver: another data plane of this node has what has no flow in this one, while one takes
	// the place of the other. Only a driver that has flows of its own looks at it.
	HandOver bool
	// ToHost is what becomes of what pods send to the node.
	ToHost model.ToHostAction
	// VXLANFromPods and IPIPFromPods: pods may send to VXLAN's port of addresses that are no
	// node's, and IP in IP.
	VXLANFromPods, IPIPFromPods bool
	IPIP                        IPIP
	// RPFStrict: what comes in by an uplink begins nothing where the route to its source leads out
	// by another interface.
	RPFStrict bool
	// Gateways: pods may leave the cluster by egress gateways (State.Gateways). What comes by the
	// tunnel from a pod of another node and is for somebody outside is for a gateway here, or
	// nobody's.
	Gateways bool
	// Floating: pods may have floating addresses (State.Floating).
	Floating bool
	// Chained: another CNI plugin gives pods their addresses and interfaces. What pods send out of
	// the node, but to pods, is left to the kernel's stack, so that its network's routing rules and
	// source NAT apply.
	Chained  bool
	Timeouts model.Timeouts
}

// Tunnel is the VXLAN overlay.
type Tunnel struct {
	Port uint16
	VNI  uint32
	MTU  int // bytes of an inner IP packet
}

// IPIP is the overlay of IP in IP, of IPv4 alone.
type IPIP struct {
	Accept bool // what other nodes send by it is taken
	HandOn bool // what nodes hand on to each other goes by it rather than by VXLAN
	// Replaced: this node takes none, and other nodes send VXLAN in its place.
	Replaced bool
	MTU      int // bytes of an inner IP packet
}

// Client is a pod as its sockets' programs see it: its address in each family, invalid where it has
// none.
type Client struct{ IPv4, IPv6 netip.Addr }

// Of returns the client's address in the family of an address.
func (c Client) Of(like netip.Addr) netip.Addr {
	if like.Is4() {
		return c.IPv4
	}
	return c.IPv6
}

// With returns c with an address in the place of its family.
func (c Client) With(a netip.Addr) Client {
	if a.Is4() {
		c.IPv4 = a
	} else {
		c.IPv6 = a
	}
	return c
}

// String returns the addresses that there are.
func (c Client) String() string {
	switch {
	case !c.IPv6.IsValid():
		return c.IPv4.String()
	case !c.IPv4.IsValid():
		return c.IPv6.String()
	}
	return c.IPv4.String() + " " + c.IPv6.String()
}

// AddrKind says whose an address is.
type AddrKind uint8

// The kinds, equal to enum addr_kind of the programs.
const (
	AddrHost     AddrKind = 1
	AddrEndpoint AddrKind = 2
	AddrNode     AddrKind = 3
	AddrPod      AddrKind = 4
)

// Addr is what the node knows of one address.
type Addr struct {
	Kind            AddrKind
	Primary         bool // host: the node's own address
	NodePorts       bool // host, node: node ports answer here
	KeepSource      bool // node: pods reach it with their own addresses, also those that others reach with the node's
	NATOutgoing     bool // endpoint
	Gateways        bool // endpoint: what it sends out of the cluster leaves by State.Gateways alone
	SameLink        bool // node, pod
	Tunnel          bool // pod; node: what goes to the address itself, too
	IPIP            bool // pod, with Tunnel: by IP in IP, not by VXLAN
	NoIPIP          bool // node: it cannot take IP in IP; what is handed on to it goes by VXLAN
	Learned         bool // pod: as Route.Learned
	MAC             [6]byte
	Interface       string // endpoint: host side name; a driver that needs the index uses IfIndex
	IfIndex         int
	Node            netip.Addr // node: its primary address; pod: that of its node
	Ingress, Egress Isolation  // endpoint
	Owner           model.Name // endpoint, pod; node: Name only
}

// Isolation is a policy set and the rule that decides where none of its entries matches. The zero
// value is no isolation.
type Isolation struct {
	Set  SetID
	Rule RuleID
}

// StagedIsolation is what an endpoint's two isolations would be. Their sets are of the table
// Policy.
type StagedIsolation struct{ Ingress, Egress Isolation }

// Route is what the node knows of a prefix.
type Route struct {
	Pool, Local, Tunnel, SameLink bool
	IPIP                          bool       // with Tunnel: by IP in IP, not by VXLAN
	Learned                       bool       // the kernel's route to an address, which BGP may have brought, comes before that to the node
	Node                          netip.Addr // valid: the prefix lives on this other node
}

// InPool reports whether an address is one that pods get.
func (s *State) InPool(a netip.Addr) bool {
	for p, r := range s.Routes {
		if r.Pool && p.Contains(a) {
			return true
		}
	}
	return false
}

// Frontend is an address, port and protocol that a service answers on; Addr is the zero
// (unspecified, 0.0.0.0) address for node ports. The frontend of the cluster IP is also the id of
// the service port.
type Frontend struct {
	Addr  netip.Addr
	Port  uint16
	Proto model.Protocol
}

// Service is what is behind a frontend.
type Service struct {
	ID        Frontend
	Affinity  uint32 // seconds
	LocalOnly bool   // frontend exists on this node only (host ports)
	External  bool   // for clients outside: node port, load balancer's address, external IP
	// LocalPolicy is the traffic policy Local, external or internal as the frontend is.
	LocalPolicy bool
	HostBackend bool // a backend is one of this node's own addresses
	Restricted  bool // for clients of its SourceRanges alone
	// Maglev says that new flows choose by consistent hashing: see package maglev.
	Maglev bool
	// Mode overrides Settings.DSR for the answers to outside clients; empty = it does not.
	Mode model.ExternalMode
	Rule RuleID
}

// Backend is one endpoint of a service port that is not gone: it is ready, or serves while it
// terminates. Flows that have it keep it. New ones choose from the cluster list or, where only this
// node may answer, from the local list; which endpoints are in them is KEP-1669 (calc).
type Backend struct {
	Addr  netip.Addr
	Port  uint16
	Local bool // in the local list; then it is on this node
	Spare bool // not in the cluster list
}

// InList reports whether a backend is in the local list or, with local false, in the cluster list.
func (b Backend) InList(local bool) bool {
	if local {
		return b.Local
	}
	return !b.Spare
}

// HealthCheck is what the agent says of a Service to load balancers.
type HealthCheck struct {
	Port  uint16
	Local int // ready endpoints on this node
}

// Object names an object of the API.
type Object struct {
	Kind string
	Name model.Name
}

// Refusal says in words what of an object is not in force; with Allowed it is, and is pointed at.
type Refusal struct {
	Field, Value, Message, Action string
	Allowed                       bool
}

// Class, SetID: content-made identifiers (the first 8 bytes of a SHA-256 of a canonical text: of a
// class what it is, of a set the names of its policies, and what distinguishes endpoints of the
// same policies). Class 0 is "matched by nothing in use here"; SetID 0 is "not isolated".
type (
	Class  uint64
	SetID  uint64
	RuleID uint32
)

// PolicyKey is a key of look-up 2; see struct policy_key in bpf/abi.h for how entries are found.
type PolicyKey struct {
	Set     SetID
	Peer    Class
	Sources uint16 // 0, or the number of a table of source ports
	Head    bool
	Proto   model.Protocol // 0 in heads and in tables of source ports
	Port    uint16         // low bits zero beyond Len
	Len     uint8
}

// PolicyValue is a verdict.
type PolicyValue struct {
	Allow bool
	Log   bool // a rule with action Log matched before this verdict
	// Undecided is said alongside Allow in sets that evaluate each packet by itself: no rule is
	// about it, and it goes on to be tracked.
	Undecided bool
	Rule      RuleID
	Protos    uint8  // heads: 1 TCP, 2 UDP, 4 SCTP, 8 ICMP, 16 any other have entries of their own
	Lens      uint32 // heads: bit n set = entries with Len n exist
	Sources   uint16 // not 0: the source port decides, by the table of this number of the same set and class
}

// Rule says in words what a rule number means.
type Rule struct {
	Kind   string // that of a policy, "Service"; "default-deny", "default-allow", "policy-too-large", in Unfit also "staged-policy-too-large"
	Name   string // "namespace/name"; for default-deny the policies that isolate, comma-separated
	Detail string // "ingress[0]", "port http"
	Tier   string // of a policy
}

// New returns an empty state.
func New() *State {
	return &State{
		Addrs: map[netip.Addr]Addr{}, Routes: map[netip.Prefix]Route{}, PeerCIDRs: map[netip.Prefix]Class{},
		Clients:   map[uint64]Client{},
		Held:      map[int]string{},
		Staged:    map[netip.Addr]StagedIsolation{},
		Announced: map[netip.Addr]bool{}, Watched: map[netip.Addr][6]byte{},
		HostEndpoints: map[HostInterface]HostEndpoint{},
		HostStaged:    map[HostInterface]HostEndpoint{},
		QoS:           map[string]QoS{},
		Gateways:      map[GatewayKey][]netip.Addr{},
		Egress:        NewEgress(),
		Names:         NewNames(),
		Sources:       map[netip.Addr][]netip.Prefix{},
		Floating:      map[netip.Addr]netip.Addr{},
		Probed:        map[netip.Addr]bool{},
	}
}
