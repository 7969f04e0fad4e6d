// SPDX-License-Identifier: Apache-2.0

// Package model holds the cluster as plain values: what calc reads. It knows no API machinery and
// no kernel; watch fills it from API objects, the agent fills Node.Local from the machine.
package model

import (
	"net/netip"
)

// Name is a namespaced name. Namespace is empty for cluster-wide objects.
type Name struct{ Namespace, Name string }

func (n Name) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// Cluster is everything that calc may look at. Maps are keyed by what names the object in the API.
// A Cluster is owned by one goroutine; values reachable from it are never changed in place, only
// replaced, so that an earlier reader may go on with what it holds.
type Cluster struct {
	Namespaces map[string]*Namespace
	Pods       *PodTable
	Nodes      map[string]*Node
	Services   map[Name]*Service
	Slices     map[Name]*EndpointSlice
	Policies   map[PolicyID]*Policy
	// Staged are the policies that are looked at and not in force. Their changes are marked by
	// KindPolicies.
	Staged map[PolicyID]*StagedPolicy
	Tiers  map[string]*Tier
	// NetworkSets are the NetworkSets and, without a namespace, the GlobalNetworkSets.
	NetworkSets     map[Name]*NetworkSet
	ServiceAccounts map[Name]*ServiceAccount
	HostEndpoints   map[string]*HostEndpoint
	Pools           map[string]*Pool
	Blocks          map[netip.Prefix]*Block
	BGPConfigs      map[string]*BGPConfig
	// BGPPeers are, as BGPConfigs, marked by KindBGP.
	BGPPeers map[string]*BGPPeer
	// BGPFilters are, as BGPConfigs, marked by KindBGP.
	BGPFilters map[string]*BGPFilter
	// EgressPolicies are the EgressGatewayPolicies.
	EgressPolicies map[string]*EgressPolicy
	// ServiceCIDRs are the ranges of cluster IPs (networking.k8s.io/v1 ServiceCIDR), where the API
	// has them. Their changes are marked by KindSettings.
	ServiceCIDRs []netip.Prefix
	// Reservations are the ranges of the IPReservations, sorted. Their changes are marked by
	// KindReservations.
	Reservations []netip.Prefix
	Settings     Settings
	Local        Local
}

// NewCluster returns an empty cluster with default settings.
func NewCluster() *Cluster {
	return &Cluster{
		Namespaces: map[string]*Namespace{}, Pods: &PodTable{}, Nodes: map[string]*Node{},
		Services: map[Name]*Service{}, Slices: map[Name]*EndpointSlice{}, Policies: map[PolicyID]*Policy{}, Staged: map[PolicyID]*StagedPolicy{}, Tiers: map[string]*Tier{},
		NetworkSets: map[Name]*NetworkSet{}, ServiceAccounts: map[Name]*ServiceAccount{}, HostEndpoints: map[string]*HostEndpoint{},
		Pools: map[string]*Pool{}, Blocks: map[netip.Prefix]*Block{}, BGPConfigs: map[string]*BGPConfig{}, BGPPeers: map[string]*BGPPeer{}, BGPFilters: map[string]*BGPFilter{}, EgressPolicies: map[string]*EgressPolicy{}, Settings: DefaultSettings(),
	}
}

// Namespace is a v1 Namespace.
type Namespace struct {
	Name   string
	Labels map[string]string
	Egress *EgressClient // what its pods say of gateways that say nothing themselves; nil = nothing
	// EgressClients selects the namespaces whose pods may leave by its gateways; empty = none.
	EgressClients string
	// SourceGrants are the prefixes that its pods may ask to send from (AnnotationSourceGrants).
	SourceGrants []netip.Prefix
	// FloatingGrants are where the addresses lie that its pods may ask for
	// (AnnotationFloatingGrants).
	FloatingGrants []netip.Prefix
}

// Pod is a v1 Pod as far as networking cares.
type Pod struct {
	Name           Name
	Labels         map[string]string
	Node           string // spec.nodeName
	ServiceAccount string
	HostNetwork    bool
	Finished       bool         // phase Succeeded or Failed: its addresses may be someone else's by now
	Addrs          []netip.Addr // status.podIPs
	Ports          []PodPort
	Created        int64        // Unix seconds
	UID            string       // decides between pods of one second
	Asked          []netip.Addr // annotation ipAddrs, of a pod that no kubelet made by itself
	QoS            *QoS         // nil = no limit
	Egress         *EgressClient
	Gateway        *EgressGateway
	Sources        []netip.Prefix // AnnotationSources; it is never changed once it is made
	Floating       []netip.Addr   // AnnotationFloating, likewise
}

// PodPort is a container port; Name and HostPort may be empty.
type PodPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
	HostPort uint16     // 0 = none
	HostIP   netip.Addr // invalid = every address of the node
}

// Node is a v1 Node together with what its agent published about it.
type Node struct {
	Name        string
	Labels      map[string]string
	Addrs       []netip.Addr   // InternalIP first, then ExternalIP
	Leaving     bool           // being deleted, or tainted by the cluster autoscaler to be
	LinkAddress [6]byte        // MAC address of the uplink, zero when not published
	Subnets     []netip.Prefix // of its uplinks, as published; empty when not
	NotReady    bool           // its condition Ready is False or Unknown
	Cordoned    bool           // spec.unschedulable: it is drained, or about to be
	Created     int64          // Unix seconds
	UID         string
	// Since is when an address came that the node did not have when it was first seen, Unix
	// seconds; nil = none did.
	Since map[netip.Addr]int64
	// WireGuard are the public keys that the node published.
	WireGuard WireGuardKeys
	// WireGuardNext are those that the node is about to have, while it changes its keys.
	WireGuardNext WireGuardKeys
	// NoIPIP: the node published that it cannot take IP in IP; it is sent VXLAN in its place.
	NoIPIP bool
	// Gateways: the node published that it leads pods out by the egress gateways on it.
	Gateways bool
	ASN      uint32 // annotation AnnotationASN, 0 = the cluster's
	// ClusterID is annotation AnnotationClusterID: the node reflects BGP routes. Invalid = it does
	// not.
	ClusterID netip.Addr
}

// LabelNoBalancers is the label of nodes that load balancers leave out (kubernetes/api
// WellKnownLabels).
const LabelNoBalancers = "node.kubernetes.io/exclude-from-external-load-balancers"

// What Nodes say about BGP.
const (
	AnnotationASN       = "projectcalico.org/ASNumber"
	AnnotationClusterID = "projectcalico.org/RouteReflectorClusterID"
)

// ClaimedAt returns since when the node claims an address, as far as is known: at the earliest
// since it exists.
func (n *Node) ClaimedAt(a netip.Addr) int64 { return max(n.Created, n.Since[a]) }

// Protocol is an IP protocol number (IANA).
type Protocol uint8

// The protocols that Services and policy name.
const (
	ProtocolAny    Protocol = 0
	ProtocolICMP   Protocol = 1
	ProtocolTCP    Protocol = 6
	ProtocolUDP    Protocol = 17
	ProtocolICMPv6 Protocol = 58
	ProtocolSCTP   Protocol = 132
)

func (p Protocol) String() string {
	switch p {
	case ProtocolAny:
		return "any"
	case ProtocolICMP:
		return "icmp"
	case ProtocolICMPv6:
		return "icmpv6"
	case ProtocolTCP:
		return "tcp"
	case ProtocolUDP:
		return "udp"
	case ProtocolSCTP:
		return "sctp"
	}
	return "proto" + itoa(uint8(p))
}

func itoa(v uint8) string {
	if v < 10 {
		return string(rune('0' + v))
	}
	return itoa(v/10) + string(rune('0'+v%10))
}

// Service is a v1 Service that has a cluster IP; headless and ExternalName Services are not
// carried.
type Service struct {
	Name Name
	// Created is metadata.creationTimestamp, Unix seconds, and UID metadata.uid: of two Services
	// that claim one address and port, the older one has it.
	Created     int64
	UID         string
	Annotations map[string]string
	ClusterIPs  []netip.Addr
	ExternalIPs []netip.Addr
	LBIPs       []netip.Addr // status.loadBalancer.ingress, as given
	Ports       []ServicePort
	Affinity    uint32 // seconds of sessionAffinity ClientIP, 0 = None
	// HealthPort is spec.healthCheckNodePort where it counts: type LoadBalancer,
	// externalTrafficPolicy Local. 0 = none.
	HealthPort uint16
	// SourceRanges are spec.loadBalancerSourceRanges; Restricted says that there are any, good or
	// bad.
	SourceRanges []netip.Prefix
	Restricted   bool
	// PublishNotReady is spec.publishNotReadyAddresses.
	PublishNotReady bool
	// Maglev says that external frontends, and cluster IPs without InternalLocal, choose backends
	// by consistent hashing (annotation AnnotationStrategy).
	Maglev bool
	// ExternalMode overrides bpfExternalServiceMode (annotation AnnotationExternalMode).
	ExternalMode ExternalMode
	// ExternalLocal and InternalLocal are the traffic policies "Local".
	ExternalLocal, InternalLocal bool
}

// ExternalMode is the return path to clients outside of the cluster whose packets another node
// handed on.
type ExternalMode string

// The values of AnnotationExternalMode; the zero value leaves it to bpfExternalServiceMode.
const (
	ExternalModeTunnel ExternalMode = "tunnel"
	ExternalModeDSR    ExternalMode = "dsr"
)

// AnnotationStrategy on a Service says how its frontends choose backends: "maglev", or at
// random.
const AnnotationStrategy = "lb.projectcalico.org/external-traffic-strategy"

// AnnotationExternalMode on a Service overrides bpfExternalServiceMode for it.
const AnnotationExternalMode = "weir.dev/external-service-mode"

// ServicePort is one port of a Service.
type ServicePort struct {
	Name     string // key into the EndpointSlices' ports
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0 = none
}

// EndpointSlice is a discovery.k8s.io/v1 EndpointSlice.
type EndpointSlice struct {
	Name    Name
	Service Name // label kubernetes.io/service-name
	// NotCarried says that it is of a headless Service or for another proxy: rules of policies that
	// name the Service mean its endpoints, nothing else looks at them.
	NotCarried bool
	// ChangedAt is when what led to the slice's last change happened, in nanoseconds
	// since 1970; 0 = not known (annotation endpoints.kubernetes.io/last-change-trigger-time).
	ChangedAt int64
	Ports     []EndpointPort
	Endpoints []ServiceEndpoint
}

// EndpointPort is a port of all endpoints of a slice.
type EndpointPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// ServiceEndpoint is one endpoint of a slice with its conditions (KEP-1672).
type ServiceEndpoint struct {
	Addrs                       []netip.Addr
	Node                        string
	Ready, Serving, Terminating bool
	Hints                       *EndpointHints // nil = none, as most have none
}

// EndpointHints are whom an endpoint is meant for (KEP-2433, KEP-4444).
type EndpointHints struct{ Zones, Nodes []string }

// HintsFor returns the hints of an endpoint that is meant for zones and nodes.
func HintsFor(zones, nodes []string) *EndpointHints {
	if len(zones)+len(nodes) == 0 {
		return nil
	}
	return &EndpointHints{zones, nodes}
}

// ForZones are the zones that the endpoint is meant for.
func (e *ServiceEndpoint) ForZones() []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Zones
}

// ForNodes are the nodes that the endpoint is meant for.
func (e *ServiceEndpoint) ForNodes() []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Nodes
}

// Block is a range of a pool that belongs to one node.
type Block struct {
	CIDR    netip.Prefix
	Node    string
	Created int64  // Unix seconds
	UID     string // decides between blocks of one second
	// VM says that the block is one address of a virtual machine; nil = it is a node's. It is never
	// changed once it is made.
	VM *BlockVM
}

// Labels that KubeVirt gives to the pods in which virtual machines run. Who makes a pod can write
// them.
const (
	LabelKubeVirt          = "kubevirt.io" // KubeVirtLauncher
	LabelKubeVirtMigration = "kubevirt.io/migrationJobUID"
	LabelKubeVirtInstance  = "kubevirt.io/created-by" // UID of the VirtualMachineInstance
	LabelKubeVirtName      = "vm.kubevirt.io/name"

	KubeVirtLauncher = "virt-launcher"
)

// BlockVM says whose address a block is that belongs to a virtual machine in place of a node.
// Block.Node is the node to which packets for the address go.
type BlockVM struct {
	Name Name    // of the VirtualMachineInstance
	Pod  string  // UID of the pod in which the machine runs
	MAC  [6]byte // of its interface; zero = not known
	// TargetNode and TargetPod are where a live migration leads to; empty = there is none. That
	// node may make itself Block.Node.
	TargetNode, TargetPod string
}

// IsFor reports whether a pod, by its UID, may have the address.
func (v *BlockVM) IsFor(uid string) bool {
	return v != nil && uid != "" && (uid == v.Pod || uid == v.TargetPod)
}

// EncapMode says when pod traffic between nodes is encapsulated.
type EncapMode string

// The values of IPPool.spec.vxlanMode and ipipMode.
const (
	EncapNever       EncapMode = "Never"
	EncapAlways      EncapMode = "Always"
	EncapCrossSubnet EncapMode = "CrossSubnet"
)

// Encapsulates reports whether traffic to some nodes at least is encapsulated.
func (m EncapMode) Encapsulates() bool { return m == EncapAlways || m == EncapCrossSubnet }

// To reports whether traffic to a node is encapsulated, which may be on the link.
func (m EncapMode) To(sameLink bool) bool {
	return m == EncapAlways || m == EncapCrossSubnet && !sameLink
}

// Pool is an IPPool.
type Pool struct {
	Name         string
	CIDR         netip.Prefix
	VXLAN, IPIP  EncapMode // one of them at most; IPIP of IPv4 alone
	NATOutgoing  bool
	Disabled     bool
	BlockBits    int    // prefix length of a block
	NodeSelector string // selector language; "all()" or empty = every node
	Manual       bool   // assignmentMode Manual: only by annotation
	Workload     bool   // allowedUses has Workload
	LoadBalancer bool   // allowedUses has LoadBalancer
	// NamespaceSelector limits the namespaces whose pods and Services get addresses of the pool;
	// empty = every namespace.
	NamespaceSelector string
	// NoBGPExport is disableBGPExport: its addresses are not advertised.
	NoBGPExport bool
	// Deleted is when the pool was deleted, Unix seconds; 0 = it was not. It stays while it has
	// blocks: these count, and nothing more is given of it.
	Deleted int64
}

// Gives reports whether addresses of the pool are given.
func (p *Pool) Gives() bool { return !p.Disabled && p.Deleted == 0 }

// Local is what the agent knows of its own machine.
type Local struct {
	Node       string
	Endpoints  map[netip.Addr]*LocalEndpoint
	Held       map[int]string   // interfaces of pods of which nothing is known yet, by index: names (Settings.Chained)
	HostAddrs  []netip.Addr     // every unicast address of the node, loopback, tunnel and the link-local ones of IPv6 aside
	Subnets    []netip.Prefix   // on-link subnets of the uplinks
	LinkMTU    int              // of the uplink that holds the node's address, bytes
	Interfaces []LocalInterface // that are no pods', by index
	// Neighbours are the link addresses of nodes and gateways on the links of the uplinks, as the
	// kernel found them.
	Neighbours map[netip.Addr][6]byte
	Gateways   []netip.Addr // next hops of the machine's routes, sorted
	// Silent says of nodes that states asked to watch whether they do not answer on the link; of
	// one that is not in it nothing is known yet.
	Silent map[netip.Addr]bool
	// Down are nodes that answered echo requests and do so no longer, of those that states asked to
	// probe.
	Down       map[netip.Addr]bool
	KubeProxy  bool // a kube-proxy carries Services on this node, and Weir leaves them to it
	ProxyRules bool // rules of a kube-proxy are there, whoever carries Services
	// APIServers are where the agent reached API servers, sorted: the cluster may not know of these
	// addresses.
	APIServers []netip.AddrPort
	HandOver   bool // another data plane of this node has what has no flow, while one takes the place of the other
	WireGuard  LocalWireGuard
}

// LocalEndpoint is a pod's interface on this node, as the CNI plugin made it. NetnsCookie is 0, and
// ContainerID empty, where that is another CNI plugin (Settings.Chained).
type LocalEndpoint struct {
	Pod         Name
	ContainerID string
	Interface   string // host side
	IfIndex     int
	MAC         [6]byte // of the pod's side
	Addrs       []netip.Addr
	NetnsCookie uint64
}
