// SPDX-License-Identifier: Apache-2.0

// Package plan is the address plan of a lab: which machines it has, what they
// are called, and which addresses they carry. It is pure: it reads nothing and
// changes nothing.
package plan

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Fixed parts of every lab. The addresses are the same in all labs, because each
// lab lives in network namespaces of its own.
const (
	DefaultName = "weir"

	ControlPlane = "cp"
	Router       = "router"
	Switch       = "switch"

	// Uplink is the interface of every machine towards its network.
	Uplink = "eth0"
	// MTU of the underlay in bytes.
	MTU = 1500
	// MaxWorkers is bounded by the addresses left after 172.31.1.206.
	MaxWorkers = 40

	ClusterDomain = "cluster.local"
)

// Networks of the lab.
var (
	LAN        = netip.MustParsePrefix("172.31.1.0/24")
	FarLAN     = netip.MustParsePrefix("172.31.2.0/24")
	PodCIDR    = netip.MustParsePrefix("10.244.0.0/16")
	ServiceIPs = netip.MustParsePrefix("10.96.0.0/16")

	Gateway           = netip.MustParseAddr("172.31.1.1")
	FarGateway        = netip.MustParseAddr("172.31.2.1")
	KubernetesService = netip.MustParseAddr("10.96.0.1")
	DNS               = netip.MustParseAddr("10.96.0.10")
)

// The same in IPv6, for labs that have it. A machine's number is written in IPv6 as in IPv4:
// 172.31.1.207 and fd00:172:31:1::207.
var (
	LAN6        = netip.MustParsePrefix("fd00:172:31:1::/64")
	FarLAN6     = netip.MustParsePrefix("fd00:172:31:2::/64")
	PodCIDR6    = netip.MustParsePrefix("fd00:10:244::/56")
	ServiceIPs6 = netip.MustParsePrefix("fd00:10:96::/112")

	Gateway6    = netip.MustParseAddr("fd00:172:31:1::1")
	FarGateway6 = netip.MustParseAddr("fd00:172:31:2::1")

	KubernetesService6 = netip.MustParseAddr("fd00:10:96::1")
	DNS6               = netip.MustParseAddr("fd00:10:96::a")
)

// Family says which IP families a lab has.
type Family string

const (
	// IPv4 is IPv4 alone. The kernel's link-local IPv6 addresses are there, and nothing else of it.
	IPv4 Family = "ipv4"
	// Dual is both families, IPv4 the primary one.
	Dual Family = "dual"
	// IPv6 is IPv6 alone. Of IPv4 there is the loopback device's.
	IPv6 Family = "ipv6"
)

// Has4 reports whether it has IPv4.
func (f Family) Has4() bool { return f != IPv6 }

// Has6 reports whether it has IPv6.
func (f Family) Has6() bool { return f != IPv4 }

// ParseFamily checks an --ip-family value.
func ParseFamily(s string) (Family, error) {
	switch f := Family(s); f {
	case IPv4, Dual, IPv6:
		return f, nil
	}
	return "", fmt.Errorf("IP family %q: want %s, %s or %s", s, IPv4, Dual, IPv6)
}

// Role of a machine.
type Role int

const (
	// RoleControlPlane runs etcd, the API server and its controllers, and is a node.
	RoleControlPlane Role = iota
	// RoleWorker is a node.
	RoleWorker
	// RoleClient is a network namespace outside the cluster.
	RoleClient
)

// Machine is one host of the lab.
type Machine struct {
	Name string
	Role Role
	// Addr is the address and length on Uplink of the lab's first family.
	Addr netip.Prefix
	// Far says that the machine is behind the router, on a switch of its own.
	Far bool
	// Families has what the machine has of each family, IPv4 first.
	Families []Network
	// Interfaces are those of a machine in a VPC, the one of Addr first; none elsewhere.
	Interfaces []Interface
}

// Network is what a machine has of one IP family.
type Network struct {
	Addr    netip.Prefix // address and length on Uplink
	Gateway netip.Addr
	// PodCIDR is the node's own part of the pod network. It is used only where
	// the lab itself routes pods, that is not with Weir. Zero for clients, and in a VPC.
	PodCIDR netip.Prefix
}

// IsNode says whether the machine runs a kubelet.
func (m Machine) IsNode() bool { return m.Role != RoleClient }

// Addrs are the machine's addresses, IPv4 first.
func (m Machine) Addrs() []netip.Addr {
	var out []netip.Addr
	for _, n := range m.Families {
		out = append(out, n.Addr.Addr())
	}
	return out
}

// PodCIDRs are the node's parts of the pod network, IPv4 first.
func (m Machine) PodCIDRs() []string {
	var out []string
	for _, n := range m.Families {
		out = append(out, n.PodCIDR.String())
	}
	return out
}

// Lab is the whole plan.
type Lab struct {
	Name     string
	Family   Family
	Machines []Machine
	// Racks says that workers with an even number are behind the router.
	Racks bool
	// VPC says that the switch is a network like those of clouds: it knows which addresses each
	// interface has.
	VPC bool
	// Pods are the addresses of pods where that network gives them. With Overlay they are none of
	// the network's own: it leads them to nodes, and nobody else knows them.
	Pods    netip.Prefix
	Overlay bool
}

// The AS numbers of a lab with racks.
const (
	NodesASN  = 64512
	RouterASN = 64999
)

var nameRE = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$`)

// New plans a lab of the given name with a control-plane node, the given number
// of workers, two clients on the switch and one behind the router. With racks every second worker
// is behind the router, too.
func New(name string, workers int, family Family, racks bool) (*Lab, error) {
	if !nameRE.MatchString(name) {
		return nil, fmt.Errorf("lab name %q: want 1 to 20 lower-case letters, digits and '-', beginning with a letter", name)
	}
	if workers < 0 || workers > MaxWorkers {
		return nil, fmt.Errorf("%d workers: want 0 to %d", workers, MaxWorkers)
	}
	l := &Lab{Name: name, Family: family, Racks: racks}
	add := func(name string, role Role, far bool, host, index int) {
		m := Machine{Name: name, Role: role, Far: far}
		for _, n := range l.networks(far) {
			n.Addr = netip.PrefixFrom(hostAddr(n.Addr, host), n.Addr.Bits())
			if role != RoleClient {
				n.PodCIDR = podCIDR(n.Addr.Addr(), index)
			}
			m.Families = append(m.Families, n)
		}
		m.Addr = m.Families[0].Addr
		l.Machines = append(l.Machines, m)
	}
	add(ControlPlane, RoleControlPlane, false, controlPlaneHost, 0)
	for i := 1; i <= workers; i++ {
		add(fmt.Sprintf("worker%d", i), RoleWorker, racks && i%2 == 0, 206+i, i)
	}
	add("client1", RoleClient, false, 55, 0)
	add("client2", RoleClient, false, 162, 0)
	add("client3", RoleClient, true, 55, 0)
	return l, nil
}

const controlPlaneHost = 8

// networks are the lab's networks on the switch, or behind the router: their addresses and the
// router's in them.
func (l *Lab) networks(far bool) []Network {
	out := []Network{{Addr: LAN, Gateway: Gateway}, {Addr: LAN6, Gateway: Gateway6}}
	if far {
		out = []Network{{Addr: FarLAN, Gateway: FarGateway}, {Addr: FarLAN6, Gateway: FarGateway6}}
	}
	return ofFamily(l, out[0], out[1])
}

// Gateways are the router's addresses on the switch, or behind itself.
func (l *Lab) Gateways(far bool) []netip.Prefix {
	if l.VPC && !far {
		if l.Family == IPv6 {
			return []netip.Prefix{netip.PrefixFrom(Gateway6, 128)}
		}
		return []netip.Prefix{netip.PrefixFrom(Gateway, VPC.Bits())}
	}
	var out []netip.Prefix
	for _, n := range l.networks(far) {
		out = append(out, netip.PrefixFrom(n.Gateway, n.Addr.Bits()))
	}
	return out
}

// PodCIDRs are the addresses of pods, as --cluster-cidr has them.
func (l *Lab) PodCIDRs() string {
	if l.VPC {
		return l.Pods.String()
	}
	return l.join(PodCIDR, PodCIDR6)
}

// ServiceCIDRs are the addresses of Services, as --service-cluster-ip-range has them.
func (l *Lab) ServiceCIDRs() string { return l.join(ServiceIPs, ServiceIPs6) }

// DNS are the addresses of the cluster's DNS Service.
func (l *Lab) DNS() []netip.Addr { return ofFamily(l, DNS, DNS6) }

// KubernetesService are the addresses that Service kubernetes may have.
func (l *Lab) KubernetesService() []netip.Addr {
	return ofFamily(l, KubernetesService, KubernetesService6)
}

func (l *Lab) join(p4, p6 netip.Prefix) string {
	var out []string
	for _, p := range ofFamily(l, p4, p6) {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// ofFamily leaves those of the families that the lab has, IPv4's first.
func ofFamily[T any](l *Lab, four, six T) []T {
	switch l.Family {
	case Dual:
		return []T{four, six}
	case IPv6:
		return []T{six}
	}
	return []T{four}
}

// hostAddr is the address of a number in a network, in decimal digits in both families.
func hostAddr(lan netip.Prefix, host int) netip.Addr {
	if lan.Addr().Is4() {
		b := lan.Addr().As4()
		b[3] = byte(host)
		return netip.AddrFrom4(b)
	}
	b := lan.Addr().As16()
	b[14], b[15] = byte(host/100), byte(host/10%10<<4|host%10)
	return netip.AddrFrom16(b)
}

// podCIDR is a node's part of the pod network of the family of addr: a /24, or a /64.
func podCIDR(addr netip.Addr, index int) netip.Prefix {
	if addr.Is4() {
		b := PodCIDR.Addr().As4()
		b[2] = byte(index)
		return netip.PrefixFrom(netip.AddrFrom4(b), 24)
	}
	b := PodCIDR6.Addr().As16()
	b[7] = byte(index)
	return netip.PrefixFrom(netip.AddrFrom16(b), 64)
}

// Nodes returns the machines that run a kubelet, the control plane first.
func (l *Lab) Nodes() []Machine {
	var out []Machine
	for _, m := range l.Machines {
		if m.IsNode() {
			out = append(out, m)
		}
	}
	return out
}

// Machine returns the machine of that name.
func (l *Lab) Machine(name string) (Machine, bool) {
	for _, m := range l.Machines {
		if m.Name == name {
			return m, true
		}
	}
	return Machine{}, false
}

// Scoped is the name under which something of a lab is known to the machine: its
// network namespace and its control group.
func Scoped(lab, what string) string { return lab + "-" + what }

// Namespaces lists the network namespaces of the lab by their scoped names.
func (l *Lab) Namespaces() []string {
	out := []string{Scoped(l.Name, Switch), Scoped(l.Name, Router)}
	for _, m := range l.Machines {
		out = append(out, Scoped(l.Name, m.Name))
	}
	return out
}

var ownRE = regexp.MustCompile(`^(cp|worker[0-9]{1,2}|client[0-9]|router|switch)$`)

// Owns says whether a scoped name belongs to the lab. Labs whose names are
// prefixes of each other do not own each other's names.
func Owns(lab, scoped string) bool {
	what, ok := strings.CutPrefix(scoped, lab+"-")
	return ok && ownRE.MatchString(what)
}

// APIServer is the URL of the Kubernetes API as nodes and clients see it.
func (l *Lab) APIServer() string { return "https://" + l.APIServerAddress() }

// APIServerAddress is its address and port.
func (l *Lab) APIServerAddress() string { return netip.AddrPortFrom(l.APIServerIP(), 6443).String() }

// APIServerIP is the control-plane node's address.
func (l *Lab) APIServerIP() netip.Addr { return l.Nodes()[0].Addr.Addr() }

// Proxy is who carries Service traffic.
type Proxy string

const (
	// ProxyWeir leaves pods and Services to Weir: the lab sets up neither.
	ProxyWeir Proxy = "weir"
	// ProxyIPTables is kube-proxy in iptables mode, alongside routed pods.
	ProxyIPTables Proxy = "kube-proxy-iptables"
	// ProxyNFTables is kube-proxy in nftables mode, alongside routed pods.
	ProxyNFTables Proxy = "kube-proxy-nftables"
	// ProxyNone routes pods and carries no Service traffic.
	ProxyNone Proxy = "none"
	// ProxyWeirOnGeneric is Weir for Services and policy, where the lab itself routes pods.
	ProxyWeirOnGeneric Proxy = "weir on generic"
	// ProxyWeirOnAWS is the same with Amazon's VPC CNI. A kube-proxy is there, as on EKS.
	ProxyWeirOnAWS Proxy = "weir on aws-vpc-cni"
	// ProxyWeirOnAzure is the same with Azure CNI, pods having addresses of a subnet, and
	// ProxyWeirOnAzureOverlay with those of an overlay. A kube-proxy is there, as on AKS.
	ProxyWeirOnAzure        Proxy = "weir on azure-cni"
	ProxyWeirOnAzureOverlay Proxy = "weir on azure-cni-overlay"
	// ProxyAlongsideIPTables is kube-proxy in iptables mode for Services and Weir, with its
	// nftables data plane, for pods and policy.
	ProxyAlongsideIPTables Proxy = "weir+kube-proxy-iptables"
	// ProxyAlongsideNFTables is the same with kube-proxy in nftables mode.
	ProxyAlongsideNFTables Proxy = "weir+kube-proxy-nftables"
	// ProxyCalico is kube-proxy in iptables mode for Services and Calico for pods and policy.
	ProxyCalico Proxy = "calico+kube-proxy-iptables"
	// ProxyFlannel is the same with flannel.
	ProxyFlannel Proxy = "flannel+kube-proxy-iptables"
)

var proxies = []Proxy{ProxyWeir, ProxyIPTables, ProxyNFTables, ProxyNone, ProxyAlongsideIPTables, ProxyAlongsideNFTables, ProxyCalico, ProxyFlannel}

// ParseProxy checks a --proxy value.
func ParseProxy(s string) (Proxy, error) {
	if slices.Contains(proxies, Proxy(s)) {
		return Proxy(s), nil
	}
	return "", fmt.Errorf("proxy %q: want one of %v", s, proxies)
}

// ParseOn checks an --on value: the CNI plugin that Weir works with.
func ParseOn(s string) (Proxy, error) {
	if s == "" {
		return ProxyWeir, nil
	}
	var want []string
	for _, p := range []Proxy{ProxyWeirOnGeneric, ProxyWeirOnAWS, ProxyWeirOnAzure, ProxyWeirOnAzureOverlay} {
		if p.On() == s {
			return p, nil
		}
		want = append(want, p.On())
	}
	return "", fmt.Errorf("CNI plugin %q: want one of %s", s, strings.Join(want, ", "))
}

// KubeProxyMode is the mode of kube-proxy, or empty when there is none.
func (p Proxy) KubeProxyMode() string {
	if p.VPC() || p.VNet() {
		return "iptables"
	}
	_, mode, _ := strings.Cut(string(p), "kube-proxy-")
	return mode
}

// Weir says whether Weir is there.
func (p Proxy) Weir() bool { return p == ProxyWeir || p.On() != "" || p.Alongside() }

// On is the CNI plugin that gives pods their addresses in the place of Weir's, as weir install has
// it, or empty.
func (p Proxy) On() string {
	on, _ := strings.CutPrefix(string(p), "weir on ")
	if on == string(p) {
		return ""
	}
	return on
}

// VPC says whether the lab is a VPC, with Amazon's CNI plugin.
func (p Proxy) VPC() bool { return p == ProxyWeirOnAWS }

// VNet says whether the lab is a virtual network of Azure, with Azure CNI.
func (p Proxy) VNet() bool { return p == ProxyWeirOnAzure || p == ProxyWeirOnAzureOverlay }

// Alongside reports whether Weir leaves Services to a kube-proxy.
func (p Proxy) Alongside() bool { return p == ProxyAlongsideIPTables || p == ProxyAlongsideNFTables }

// Other is the network plugin that pods have in the place of Weir, or empty: calico, flannel.
func (p Proxy) Other() string {
	if p != ProxyCalico && p != ProxyFlannel {
		return ""
	}
	other, _, _ := strings.Cut(string(p), "+")
	return other
}

// RoutesPods says whether the lab itself sets up pod networking.
func (p Proxy) RoutesPods() bool { return !p.Weir() && p.Other() == "" || p == ProxyWeirOnGeneric }
