// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// A lan is a switch with nodes and clients on it, all in namespaces of this test, or several that a
// test's routers connect. Nothing in it has a route out.
type lan struct {
	t       *testing.T
	prefix  string
	cluster *model.Cluster // what all nodes see; Local differs
	nodes   []*node
	hosts   int
	links   map[string]bool // switches, of which each is a link
	family  family
	routed  bool         // nodes are not on one link, as far as they know
	lost    atomic.Int32 // datagrams that were not answered
}

type host struct {
	*worker
	lan   *lan
	netns string
	addr  netip.Addr
	mac   [6]byte
}

type node struct {
	host
	pods      []*pod
	driver    *driverProcess
	cgroup    string
	uplink    int  // index of eth0
	alongside bool // a kube-proxy carries Services on it
	rules     bool // rules of a kube-proxy are there
	keys      model.WireGuardKeys
	speaks    *feed.Agent        // to its BGP process; nil = it has none
	local     func(*model.Local) // what else the node finds on itself; nil = nothing
}

type pod struct {
	*worker
	local *model.LocalEndpoint
	obj   *model.Pod
}

func run(t *testing.T, format string, args ...any) string {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	cmd := exec.Command("sh", "-ec", line)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// dataplane names the driver that this test is played by; a mixed one has both.
func (l *lan) dataplane() string {
	switch {
	case strings.Contains(l.t.Name(), "/nft-"):
		return "nft"
	case strings.Contains(l.t.Name(), "/mixed-"):
		return "mixed"
	case strings.Contains(l.t.Name(), "/crossed-"):
		return "crossed"
	}
	return "ebpf"
}

// dataplane names the node's driver. In a mixed test n1 has eBPF, all others nftables; in a
// crossed one it is the other way round.
func (n *node) dataplane() string {
	d := n.lan.dataplane()
	switch {
	case d == "mixed" && n.name == "n1", d == "crossed" && n.name != "n1":
		return "ebpf"
	case d == "mixed", d == "crossed":
		return "nft"
	}
	return d
}

var lans atomic.Int32 // tests run in parallel

func newLAN(t *testing.T, fam family) *lan {
	t.Helper()
	skipInShort(t)
	if os.Getuid() != 0 {
		t.Fatal("namespace tests need root")
	}
	l := &lan{t: t, family: fam, prefix: fmt.Sprintf("wn%d-%d", os.Getpid(), lans.Add(1)), cluster: model.NewCluster()}
	t.TempDir() // so that it is removed last, after the processes that write to folders in it
	t.Cleanup(func() {
		if n := l.lost.Load(); n > mostLost {
			t.Errorf("%d datagrams were not answered, and asked again", n)
		} else if n > 0 {
			t.Logf("%d datagrams were not answered, and asked again", n)
		}
	})
	l.newNetns("sw")
	l.links = map[string]bool{}
	l.cluster.Namespaces["default"] = &model.Namespace{Name: "default", Labels: map[string]string{"kubernetes.io/metadata.name": "default"}}
	l.cluster.Pools["default"] = &model.Pool{Name: "default", CIDR: netip.MustParsePrefix("10.244.0.0/16"),
		VXLAN: model.EncapNever, NATOutgoing: true, BlockBits: 26, Workload: true}
	l.cluster.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	if fam == ipv6 {
		l.addIPv6()
	}
	return l
}

func (l *lan) newNetns(name string) string {
	ns := l.prefix + "-" + name
	run(l.t, "ip netns add %s", ns)
	l.t.Cleanup(func() { run(l.t, "ip netns del %s", ns) })
	// Nobody else has our addresses: they count at once.
	run(l.t, "ip -n %s link set lo up; ip netns exec %s sysctl -qw net.ipv4.tcp_congestion_control=reno "+
		"net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.default.router_solicitations=0", ns, ns)
	return ns
}

func parseMAC(s string) (m [6]byte) {
	fmt.Sscanf(s, "%02x:%02x:%02x:%02x:%02x:%02x", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5])
	return m
}

// linkUp connects a namespace, by an interface, with the switch of an address, which is 172.30.n.
func (l *lan) linkUp(ns, iface, addr string) {
	l.hosts++
	link := fmt.Sprintf("br%d", netip.MustParseAddr(addr).As4()[2])
	if !l.links[link] {
		run(l.t, "ip -n %s-sw link add %s type bridge; ip -n %s-sw link set %s up", l.prefix, link, l.prefix, link)
		l.links[link] = true
	}
	run(l.t, "ip link add %s netns %s type veth peer name p%d netns %s-sw; ip -n %s-sw link set p%d master %s up; "+
		"ip -n %s addr add %s/24 dev %s; ip -n %s link set %s up",
		iface, ns, l.hosts, l.prefix, l.prefix, l.hosts, link, ns, addr, iface, ns, iface)
	if l.family == ipv6 {
		run(l.t, "ip -n %s addr add %s/120 dev %s nodad", ns, sixOf(addr), iface)
	}
}

// gateway is the first address of a host's link, where a test may have a router.
func gateway(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("%d.%d.%d.1", b[0], b[1], b[2])
}

func (l *lan) newHost(name, addr, cgroup string) host {
	ns := l.newNetns(name)
	l.linkUp(ns, "eth0", addr)
	mac := parseMAC(run(l.t, "ip netns exec %s cat /sys/class/net/eth0/address", ns))
	return host{worker: l.startWorker(name, ns, cgroup), lan: l, netns: ns, addr: netip.MustParseAddr(addr), mac: mac}
}

// newClient makes a host outside of the cluster; 172.30.0.1 is nobody.
func (l *lan) newClient(name, addr string) *host {
	h := l.newHost(name, addr, "")
	return &h
}

// newCgroup makes the cgroup of a node.
func (l *lan) newCgroup(name string) string {
	cg := filepath.Join("/sys/fs/cgroup/unified", l.prefix+"-"+name)
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err != nil {
		cg = filepath.Join("/sys/fs/cgroup", l.prefix+"-"+name)
	}
	if err := os.Mkdir(cg, 0o755); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := removeCgroup(cg); err != nil {
			l.t.Errorf("removing %s: %v", cg, err)
		}
	})
	return cg
}

// newNode makes a node with a block 10.244.<n>.0/26.
func (l *lan) newNode(name, addr string) *node {
	cg := l.newCgroup(name)
	n := &node{host: l.newHost(name, addr, cg), cgroup: cg}
	run(l.t, "ip netns exec %s sysctl -qw net.ipv4.ip_forward=1", n.netns)
	l.nodes = append(l.nodes, n)
	l.cluster.Nodes[name] = &model.Node{Name: name, Addrs: l.pairOf(n.addr), LinkAddress: n.mac, Subnets: l.subnets(n.addr)}
	block := netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/26", len(l.nodes)))
	l.cluster.Blocks[block] = &model.Block{CIDR: block, Node: name}
	if l.family == ipv6 {
		l.cluster.Blocks[sixPrefix(block)] = &model.Block{CIDR: sixPrefix(block), Node: name}
	}
	fmt.Sscan(run(l.t, "ip netns exec %s cat /sys/class/net/eth0/ifindex", n.netns), &n.uplink)
	n.driver = startDriver(l.t, n)
	return n
}

// newPod makes a pod's namespace and interface as the CNI plugin does, and the Pod object.
func (n *node) newPod(name string, labels map[string]string) *pod {
	t := n.lan.t
	index := 0
	for i, other := range n.lan.nodes {
		if other == n {
			index = i + 1
		}
	}
	addr := netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", index, 2+len(n.pods)))
	ns := n.lan.newNetns(name)
	iface := fmt.Sprintf("cali%07d", len(n.pods))
	run(t, "ip link add %s netns %s address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns %s; ip -n %s link set %s up; "+
		"ip -n %s addr add %s/32 dev eth0; ip -n %s link set eth0 up; ip -n %s route add 169.254.1.1 dev eth0 scope link; "+
		"ip -n %s route add default via 169.254.1.1; ip -n %s neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent; "+
		"ip -n %s route add %s/32 dev %s scope link; ip netns exec %s sysctl -qw net.ipv4.conf.%s.rp_filter=2",
		iface, n.netns, ns, n.netns, iface, ns, addr, ns, ns, ns, ns, n.netns, addr, iface, n.netns, iface)
	if n.lan.family == ipv6 {
		run(t, "ip -n %s addr add %s/128 dev eth0 nodad; ip -n %s route add default via fe80::ecee:eeff:feee:eeee dev eth0; "+
			"ip -n %s neigh add fe80::ecee:eeff:feee:eeee lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent; ip -n %s route add %s/128 dev %s; "+
			"ip netns exec %s sysctl -qw net.ipv6.conf.%s.forwarding=1", // as the CNI plugin sets it
			ns, six(addr), ns, ns, n.netns, six(addr), iface, n.netns, iface)
	}
	var ifindex int
	fmt.Sscan(run(t, "ip netns exec %s cat /sys/class/net/%s/ifindex", n.netns, iface), &ifindex)
	mac := parseMAC(run(t, "ip netns exec %s cat /sys/class/net/eth0/address", ns))
	p := &pod{worker: n.lan.startWorker(name, ns, n.cgroup)}
	p.local = &model.LocalEndpoint{Pod: model.Name{Namespace: "default", Name: name}, ContainerID: name, Interface: iface,
		IfIndex: ifindex, MAC: mac, Addrs: n.lan.pairOf(addr)}
	p.obj = &model.Pod{Name: p.local.Pod, Labels: labels, Node: n.name, Addrs: n.lan.pairOf(addr)}
	n.pods = append(n.pods, p)
	n.lan.cluster.Pods.Put(p.obj)
	return p
}

// service makes a Service with one port 80 -> 8080 for tcp and udp, and its endpoints.
func (l *lan) service(name, clusterIP string, nodePort uint16, backends ...*pod) *model.Service {
	full := model.Name{Namespace: "default", Name: name}
	s := &model.Service{Name: full, ClusterIPs: l.pairOf(netip.MustParseAddr(clusterIP)), Ports: []model.ServicePort{
		{Name: "tcp", Protocol: model.ProtocolTCP, Port: 80, NodePort: nodePort},
		{Name: "udp", Protocol: model.ProtocolUDP, Port: 80, NodePort: nodePort}}}
	l.cluster.Services[full] = s
	l.endpoints(name, backends...)
	return s
}

func (l *lan) endpoints(name string, backends ...*pod) {
	var list []model.ServiceEndpoint
	for _, b := range backends {
		list = append(list, model.ServiceEndpoint{Addrs: b.local.Addrs[:1], Node: b.obj.Node, Ready: true, Serving: true})
	}
	l.slices(name, 8080, list)
}

// slices makes the endpoints of a Service, a slice for each family. They are given by IPv4
// addresses.
func (l *lan) slices(name string, port uint16, list []model.ServiceEndpoint) {
	full := model.Name{Namespace: "default", Name: name}
	slice := &model.EndpointSlice{Name: full, Service: full, Endpoints: list, Ports: []model.EndpointPort{
		{Name: "tcp", Protocol: model.ProtocolTCP, Port: port}, {Name: "udp", Protocol: model.ProtocolUDP, Port: port}}}
	l.cluster.Slices[full] = slice
	if l.family != ipv6 {
		return
	}
	other := *slice
	other.Name.Name, other.Endpoints = name+"-ipv6", nil
	for _, e := range list {
		e.Addrs = []netip.Addr{six(e.Addrs[0])}
		other.Endpoints = append(other.Endpoints, e)
	}
	l.cluster.Slices[other.Name] = &other
}

// apply gives every node its state.
func (l *lan) apply() {
	l.t.Helper()
	for _, n := range l.nodes {
		n.apply()
	}
}

func (n *node) apply() {
	n.lan.t.Helper()
	s := n.state()
	n.driver.apply(s)
	if n.speaks != nil {
		n.speaks.Set(s.BGP)
	}
}

// state is what calc makes of the cluster for the node.
func (n *node) state() *nodestate.State {
	c := *n.lan.cluster
	c.Local = model.Local{Node: n.name, Endpoints: map[netip.Addr]*model.LocalEndpoint{}, HostAddrs: n.lan.pairOf(n.addr),
		Subnets: n.lan.subnets(n.addr), LinkMTU: 1500, KubeProxy: n.alongside, ProxyRules: n.rules,
		Interfaces: []model.LocalInterface{{Name: "eth0", IfIndex: n.uplink, Addrs: n.lan.pairOf(n.addr)}}}
	if n.lan.routed {
		c.Local.Subnets = nil
	}
	c.Local.WireGuard.Own = n.keys
	c.Settings.WireGuard.IPv4.Interface, c.Settings.WireGuard.IPv6.Interface = n.cryptDevice(false), n.cryptDevice(true)
	for _, p := range n.pods {
		for _, a := range p.local.Addrs {
			c.Local.Endpoints[a] = p.local
		}
	}
	if n.local != nil {
		n.local(&c.Local)
	}
	return calc.Calc(&c)
}
