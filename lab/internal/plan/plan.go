// Package plan is the address plan of a lab: which machines it has, what they
// are called, and which addresses they carry. It is pure: it reads nothing and
// changes nothing.
package plan

import (
	"fmt"
	"net/netip"
	"regexp"
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
	Name    string
	Role    Role
	Addr    netip.Prefix // address and length on Uplink
	Gateway netip.Addr
	// PodCIDR is the node's own part of the pod network. It is used only where
	// the lab itself routes pods, that is not with Weir. Zero for clients.
	PodCIDR netip.Prefix
	// Far says that the machine is behind the router, not on the switch.
	Far bool
}

// IsNode says whether the machine runs a kubelet.
func (m Machine) IsNode() bool { return m.Role != RoleClient }

// Lab is the whole plan.
type Lab struct {
	Name     string
	Machines []Machine
}

var nameRE = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$`)

// New plans a lab of the given name with a control-plane node, the given number
// of workers, two clients on the switch and one behind the router.
func New(name string, workers int) (*Lab, error) {
	if !nameRE.MatchString(name) {
		return nil, fmt.Errorf("lab name %q: want 1 to 20 lower-case letters, digits and '-', beginning with a letter", name)
	}
	if workers < 0 || workers > MaxWorkers {
		return nil, fmt.Errorf("%d workers: want 0 to %d", workers, MaxWorkers)
	}
	l := &Lab{Name: name}
	l.Machines = append(l.Machines, machine(ControlPlane, RoleControlPlane, LAN, 8, 0))
	for i := 1; i <= workers; i++ {
		l.Machines = append(l.Machines, machine(fmt.Sprintf("worker%d", i), RoleWorker, LAN, 206+i, i))
	}
	l.Machines = append(l.Machines,
		machine("client1", RoleClient, LAN, 55, 0),
		machine("client2", RoleClient, LAN, 162, 0),
		machine("client3", RoleClient, FarLAN, 55, 0),
	)
	return l, nil
}

func machine(name string, role Role, lan netip.Prefix, host, index int) Machine {
	b := lan.Addr().As4()
	b[3] = byte(host)
	m := Machine{
		Name: name, Role: role, Gateway: Gateway,
		Addr: netip.PrefixFrom(netip.AddrFrom4(b), lan.Bits()),
	}
	if lan == FarLAN {
		m.Far, m.Gateway = true, FarGateway
	}
	if role != RoleClient {
		p := PodCIDR.Addr().As4()
		p[2] = byte(index)
		m.PodCIDR = netip.PrefixFrom(netip.AddrFrom4(p), 24)
	}
	return m
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
func APIServer() string { return "https://" + APIServerAddress() }

// APIServerAddress is its address and port.
func APIServerAddress() string { return netip.AddrPortFrom(APIServerIP(), 6443).String() }

// APIServerIP is the control-plane node's address.
func APIServerIP() netip.Addr { return machine(ControlPlane, RoleControlPlane, LAN, 8, 0).Addr.Addr() }

// Proxy is who carries Service traffic.
type Proxy string

const (
	// ProxyWeir leaves pods and Services to Weir: the lab sets up neither.
	ProxyWeir Proxy = "weir"
	// ProxyIPTables is kube-proxy in iptables mode, beside routed pods.
	ProxyIPTables Proxy = "kube-proxy-iptables"
	// ProxyNFTables is kube-proxy in nftables mode, beside routed pods.
	ProxyNFTables Proxy = "kube-proxy-nftables"
	// ProxyNone routes pods and carries no Service traffic.
	ProxyNone Proxy = "none"
)

// ParseProxy checks a --proxy value.
func ParseProxy(s string) (Proxy, error) {
	switch p := Proxy(s); p {
	case ProxyWeir, ProxyIPTables, ProxyNFTables, ProxyNone:
		return p, nil
	}
	return "", fmt.Errorf("proxy %q: want %s, %s, %s or %s", s, ProxyWeir, ProxyIPTables, ProxyNFTables, ProxyNone)
}

// KubeProxyMode is the mode of kube-proxy, or empty when there is none.
func (p Proxy) KubeProxyMode() string {
	m, _ := strings.CutPrefix(string(p), "kube-proxy-")
	if p == ProxyIPTables || p == ProxyNFTables {
		return m
	}
	return ""
}

// RoutesPods says whether the lab itself sets up pod networking.
func (p Proxy) RoutesPods() bool { return p != ProxyWeir }
