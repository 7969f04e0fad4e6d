// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
	"time"
)

// ConnectTimeLB says which sockets are balanced when they connect.
type ConnectTimeLB string

// The values of bpfConnectTimeLoadBalancing.
const (
	ConnectTimeTCP      ConnectTimeLB = "TCP"
	ConnectTimeEnabled  ConnectTimeLB = "Enabled"
	ConnectTimeDisabled ConnectTimeLB = "Disabled"
)

// Settings are the effective values of this node: environment over FelixConfiguration node.<name>
// over FelixConfiguration default, validated. Only what calc and the drivers use is here.
type Settings struct {
	ConnectTime     ConnectTimeLB
	DSR             bool // bpfExternalServiceMode DSR
	DSRTimes        DSRTimes
	DSROptOut       []netip.Prefix // clients that never get answers directly: bpfDSROptoutCIDRs; sorted, each once
	VXLANPort       uint16
	VXLANVNI        uint32
	VXLANMTU        int // 0 = derive
	SNATPortFirst   uint16
	SNATPortLast    uint16
	DataIfaces      string // regular expression of uplinks: bpfDataIfacePattern
	InterfacePrefix string // of pod interfaces on the host side
	// L2Reachability is localSubnetL2Reachability PodsAndLoadBalancers.
	L2Reachability    bool
	NATExcludeHostIPs bool          // natOutgoingExclusions IPPoolsAndHostIPs
	Egress            EgressSupport // egressIPSupport
	// SourceSpoofing is workloadSourceSpoofing Any: pods may send from prefixes that they ask for
	// and their namespaces grant.
	SourceSpoofing bool
	// FloatingIPs: pods may have floating addresses that they ask for and their namespaces grant.
	FloatingIPs bool
	// DNS is whose answers policy by domain name is made from.
	DNS DNSSettings
	// WorkloadRoutes is routeSource WorkloadIPs: an address of a pool that no block holds is the
	// oldest pod's that has it.
	WorkloadRoutes bool
	// NodePorts says on which of the nodes' addresses node ports answer.
	NodePorts NodePortAddresses
	// ExcludeFromNAT are bpfExcludeCIDRsFromNAT: what is addressed in them is no Service's.
	ExcludeFromNAT []netip.Prefix
	// HostNAT is bpfHostNetworkedNATWithoutCTLB: what host processes send is balanced in the packet
	// path too.
	HostNAT bool
	// IPv6Support is ipv6Support: nodes carry IPv6 where the cluster has it.
	IPv6Support bool
	MaxFlows    int // bpfMapSizeConntrack
	// MaxNetworks is bpfMapSizeIPSets: how many networks, of both families together, policy may
	// distinguish on a node.
	MaxNetworks int
	// MaxFrontends and MaxBackends are bpfMapSizeNATFrontend and bpfMapSizeNATBackend: how many of
	// each Services may have on a node, in each family. 0 = the default.
	MaxFrontends, MaxBackends int
	// ToHost is defaultEndpointToHostAction.
	ToHost ToHostAction
	// VXLANFromPods and IPIPFromPods are allowVXLANPacketsFromWorkloads and
	// allowIPIPPacketsFromWorkloads.
	VXLANFromPods, IPIPFromPods bool
	// IPIP is ipipEnabled: where it is unset, nodes use IP in IP while a pool asks for it. IPIPMTU
	// is ipipMTU; 0 = what the uplink leaves.
	IPIP    Toggle
	IPIPMTU int
	// RPFStrict is bpfEnforceRPF Strict.
	RPFStrict bool
	// FailsafeIn and FailsafeOut are failsafeInboundHostPorts and failsafeOutboundHostPorts.
	FailsafeIn, FailsafeOut []Failsafe
	Timeouts                Timeouts
	// AgentPorts are the TCP ports on which the agent, the controller or the fan-out listens: no
	// Service takes them on a node. Sorted, each once.
	AgentPorts []uint16
	// ServiceExternalIPs are what spec.externalIPs of Services may name, sorted, each once; nil =
	// every address that is nobody's, empty = none.
	ServiceExternalIPs []netip.Prefix
	WireGuard          WireGuardSettings
	// Chained is cniChaining: another CNI plugin gives pods their addresses and interfaces, and its
	// network carries what they send out of the node.
	Chained bool
}

// DefaultAgentPorts are those of the fan-out, of the controller, of the store of flow records, of
// metrics, health, the proxy mode, and the health of the node.
func DefaultAgentPorts() []uint16 {
	return []uint16{FanOutPort, ControllerPort, FlowStorePort, 9091, 9099, 10249, 10256}
}

// FanOutPort is where replicas of the fan-out listen on their nodes, for agents. It is a failsafe
// port by default, as Typha's, which has the same number.
const FanOutPort = 5473

// ControllerPort is where instances of the controller listen on their nodes, for agents and API
// servers.
const ControllerPort = 5474

// FlowStorePort is where the store of flow records listens on its node, for agents.
const FlowStorePort = 5475

// ControllerHealthAddr is where an instance of the controller answers the probes of its node's
// kubelet, and serves its metrics.
const ControllerHealthAddr = "127.0.0.1:9094"

// NodePortAddresses is kube-proxy's option of that name. The zero value is every address.
type NodePortAddresses struct {
	Primary bool // the address alone by which other nodes know a node, of each family
	CIDRs   []netip.Prefix
}

// Has reports whether node ports answer on an address; primary says that it is its node's own.
// CIDRs of one family say nothing about the other.
func (n NodePortAddresses) Has(a netip.Addr, primary bool) bool {
	if n.Primary {
		return primary
	}
	ofFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() }
	return !slices.ContainsFunc(n.CIDRs, ofFamily) || Within(n.CIDRs, a)
}

// Within reports whether one of the prefixes holds an address.
func Within(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Toggle is a truth value that may be unset.
type Toggle uint8

// The values of a Toggle.
const (
	Unset Toggle = iota
	On
	Off
)

// DSRTimes say when an outside client that is answered directly falls back to the tunnel.
type DSRTimes struct {
	// Patience after the backend's answer: a SYN that is repeated later says that the answer was
	// lost.
	Patience time.Duration
	// Tries is how long handshakes that were left unanswered count, after the last answer.
	Tries time.Duration
	// Retry is how long a client that fell back stays so.
	Retry time.Duration
}

// Timeouts of idle flows (bpfConntrackTimeouts).
type Timeouts struct {
	TCPSynSent, TCPEstablished, UDP, ICMP, Generic time.Duration
	// TCPFins is for what was closed from both sides, TCPReset for what was reset.
	TCPFins, TCPReset time.Duration
	// Fragment is how long an IP packet's fragments wait for each other (bpfIPFragTimeout); 0 =
	// fragments are not carried (bpfIPFragmentReassemblyEnabled false).
	Fragment time.Duration
}

// DefaultSettings returns the documented defaults.
func DefaultSettings() Settings {
	in, out := DefaultFailsafes()
	return Settings{
		ToHost: ToHostAccept, FailsafeIn: in, FailsafeOut: out, AgentPorts: DefaultAgentPorts(),
		ConnectTime: ConnectTimeTCP, VXLANPort: 4789, VXLANVNI: 4096,
		SNATPortFirst: 20000, SNATPortLast: 29999, HostNAT: true, IPv6Support: true,
		DSRTimes:        DSRTimes{Patience: 750 * time.Millisecond, Tries: 2 * time.Minute, Retry: time.Hour},
		DataIfaces:      `^((en|wl|ww|sl|ib)[Popsx].*|(eth|wlan|wwan|bond).*)`,
		WireGuard:       DefaultWireGuard(),
		DNS:             DNSSettings{Services: []Name{ClusterDNS}},
		InterfacePrefix: "cali", MaxFlows: 512000, MaxNetworks: 1048576, MaxFrontends: 65536, MaxBackends: 262144,
		Timeouts: Timeouts{TCPSynSent: 20 * time.Second, TCPEstablished: time.Hour, TCPFins: 30 * time.Second, TCPReset: 40 * time.Second,
			UDP: 60 * time.Second, ICMP: 5 * time.Second, Generic: 10 * time.Minute, Fragment: 30 * time.Second},
	}
}

// NodeAddr returns the address by which other nodes know n for IPv4: its first one; invalid when it
// has none.
func (n *Node) NodeAddr() netip.Addr { return n.AddrLike(netip.IPv4Unspecified()) }

// NodeAddr6 is NodeAddr for IPv6.
func (n *Node) NodeAddr6() netip.Addr { return n.AddrLike(netip.IPv6Unspecified()) }

// AddrLike is NodeAddr for the family of an address.
func (n *Node) AddrLike(like netip.Addr) netip.Addr {
	for _, a := range n.Addrs {
		if a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// CarriesIPv6 reports whether the node Local.Node carries IPv6: ipv6Support, and a pool of IPv6, an
// IPv6 address of its own in the API, or a host endpoint.
func (c *Cluster) CarriesIPv6() bool {
	if !c.Settings.IPv6Support {
		return false
	}
	if own := c.Nodes[c.Local.Node]; own != nil && own.NodeAddr6().IsValid() {
		return true
	}
	for _, p := range c.Pools {
		if p.CIDR.IsValid() && p.CIDR.Addr().Is6() {
			return true
		}
	}
	for _, h := range c.HostEndpoints { // they evaluate what the node exchanges by IPv6 too
		if h.Node == c.Local.Node {
			return true
		}
	}
	return false
}
