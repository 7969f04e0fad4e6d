// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-net/weir/internal/agent/chain"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// vpc is a network as Amazon's: each interface is a link of its own with a router, which answers
// for all other addresses, knows by which interface each is, and takes from an interface only what
// has an address of that interface (the source/destination check).
type vpc struct {
	*lan
	router   string
	programs string // folder with aws-cni and awsvpc
	links    int
}

// vpcNetwork is the VPC, and the subnet of all its interfaces.
const vpcNetwork, vpcGateway = "10.0.0.0/24", "10.0.0.1"

// buildVPC builds Amazon's CNI plugin and the stand-in for its address daemon (test/awsvpc).
func buildVPC(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("WEIR_CACHE")
	if cache == "" {
		home, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, "weir")
	}
	dir := filepath.Join(cache, "awsvpc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, pkg := range map[string]string{"aws-cni": "github.com/aws/amazon-vpc-cni-k8s/cmd/routed-eni-cni-plugin", "awsvpc": "."} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg)
		cmd.Dir = "../awsvpc"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", name, err, out)
		}
	}
	return dir
}

// newVPC is one of a family. With IPv6 nodes and pods have addresses of that alone, as in clusters
// of IPv6 of Amazon's.
func newVPC(t *testing.T, fam family) *vpc {
	t.Helper()
	v := &vpc{lan: newLAN(t, fam), programs: buildVPC(t)}
	v.router = v.newNetns("vpc")
	run(t, "ip netns exec %s sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1 "+
		"net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0; ip -n %s addr add %s/32 dev lo", v.router, v.router, vpcGateway)
	pool := &model.Pool{Name: "default", CIDR: fam.prefix(vpcNetwork), VXLAN: model.EncapNever, Disabled: true, BlockBits: 26, Workload: true}
	if fam == ipv6 {
		pool.BlockBits = 122
		run(t, `ip netns exec %s sysctl -qw net.ipv6.conf.all.forwarding=1
ip netns exec %s nft 'table ip6 vpc { chain sources { type filter hook prerouting priority raw; ip6 saddr fe80::/10 accept; fib saddr . iif oif 0 drop; }; }'`, v.router, v.router)
	}
	v.cluster.Pools = map[string]*model.Pool{"default": pool}
	v.cluster.Settings.Chained, v.cluster.Settings.WorkloadRoutes, v.cluster.Settings.InterfacePrefix = true, true, "eni"
	return v
}

// attach gives a namespace an interface of the VPC, with the addresses that the network has there,
// and returns its MAC address.
func (v *vpc) attach(ns, iface string, addrs ...string) string {
	v.links++
	end := fmt.Sprintf("eni%d", v.links)
	run(v.t, "ip link add %s netns %s type veth peer name %s netns %s; ip -n %s link set %s up; ip -n %s link set %s up; ip netns exec %s sysctl -qw net.ipv4.conf.%s.proxy_arp=1 net.ipv4.neigh.%s.proxy_delay=0",
		iface, ns, end, v.router, v.router, end, ns, iface, v.router, end, end)
	mac := run(v.t, "ip netns exec %s cat /sys/class/net/%s/address", ns, iface)
	for _, a := range addrs {
		for _, a := range v.pairOf(netip.MustParseAddr(a)) {
			run(v.t, "ip -n %s route add %s dev %s; ip -n %s neigh replace %s lladdr %s dev %s nud permanent", v.router, a, end, v.router, a, mac, end)
		}
	}
	return mac
}

// reach gives an interface, which attach made last, the family's counterpart of an address, and the
// router as its gateway.
func (v *vpc) reach(ns, iface, addr string) {
	if v.family == ipv6 {
		gateway := run(v.t, "ip -n %s -6 -br addr show dev eni%d scope link | awk '{ print $3 }' | cut -d/ -f1", v.router, v.links)
		run(v.t, "ip -n %s addr add %s/128 dev %s nodad; ip -n %s route add default via %s dev %s", ns, sixOf(addr), iface, ns, gateway, iface)
	}
}

// machine is one of the VPC, or of outside where it has another network's address, that is no node.
func (v *vpc) machine(name, addr string) *host {
	ns := v.newNetns(name)
	v.attach(ns, "eth0", addr)
	run(v.t, "ip -n %s addr add %s/32 dev eth0; ip -n %s route add %s dev eth0; ip -n %s route add default via %s dev eth0", ns, addr, ns, vpcGateway, ns, vpcGateway)
	v.reach(ns, "eth0", addr)
	return &host{worker: v.startWorker(name, ns, ""), lan: v.lan, netns: ns, addr: netip.MustParseAddr(addr)}
}

// eni is what the stand-in is told of an interface.
type eni struct {
	MAC, Address, Subnet string
	Pods                 []string
}

// vpcNode is a node with two interfaces.
type vpcNode struct {
	*node
	vpc     *vpc
	run     string // folder with the socket of the stand-in
	enter   *nettest.Namespace
	results map[string][]byte // what the plugin said of pods
}

// newNode makes a node whose interfaces have the primary addresses 10.0.0.<n>0 and 10.0.0.<n>1, and
// starts the stand-in for the address daemon on it.
func (v *vpc) newNode(name string, number int) *vpcNode {
	t := v.t
	ns := v.newNetns(name)
	run(t, "ip netns exec %s sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1", ns)
	var all []eni
	for i := range 2 {
		e := eni{Address: fmt.Sprintf("10.0.0.%d%d", number, i), Subnet: vpcNetwork}
		for p := 2; p < 6; p++ {
			e.Pods = append(e.Pods, fmt.Sprintf("10.0.0.%d", 100+10*number+4*i+p-2))
		}
		e.MAC = v.attach(ns, fmt.Sprintf("eth%d", i), append([]string{e.Address}, e.Pods...)...)
		if i == 0 {
			v.reach(ns, "eth0", e.Address)
		}
		e.Address = v.family.addr(e.Address)
		for p := range e.Pods {
			e.Pods[p] = v.family.addr(e.Pods[p])
		}
		all = append(all, e)
	}
	addr := netip.MustParseAddr(fmt.Sprintf("10.0.0.%d0", number))
	run(t, "ip -n %s addr add %s/24 dev eth0; ip -n %s route add default via %s dev eth0", ns, addr, ns, vpcGateway)
	dir := t.TempDir()
	config, err := json.Marshal(map[string]any{"Socket": filepath.Join(dir, "run", "ipamd.sock"), "VPC": []string{vpcNetwork}, "IPv6": v.family == ipv6, "Interfaces": all})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	v.startDaemon(ns, filepath.Join(dir, "config.json"))
	cg := v.newCgroup(name)
	n := &node{host: host{worker: v.startWorker(name, ns, cg), lan: v.lan, netns: ns, addr: addr, mac: parseMAC(all[0].MAC)}, cgroup: cg}
	out := &vpcNode{node: n, vpc: v, run: filepath.Join(dir, "run"), enter: nettest.Open(t, "/run/netns/"+ns), results: map[string][]byte{}}
	n.local = out.find
	v.nodes = append(v.nodes, n)
	v.cluster.Nodes[name] = &model.Node{Name: name, Addrs: []netip.Addr{netip.MustParseAddr(all[0].Address)}, LinkAddress: n.mac, Subnets: []netip.Prefix{v.family.prefix(vpcNetwork)}}
	fmt.Sscan(run(t, "ip netns exec %s cat /sys/class/net/eth0/ifindex", ns), &n.uplink)
	n.driver = startDriver(t, n)
	return out
}

func (v *vpc) startDaemon(ns, config string) {
	t := v.t
	cmd := exec.Command("nsenter", "--net=/run/netns/"+ns, filepath.Join(v.programs, "awsvpc"), "--config", config)
	// The nodes' interfaces carry 1,500 bytes, as all of this test's.
	cmd.Env = append(os.Environ(), "AWS_VPC_ENI_MTU=1500", "AWS_VPC_K8S_CNI_LOG_FILE=stderr", "AWS_VPC_K8S_CNI_LOGLEVEL=ERROR")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Signal(syscall.SIGKILL); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		cmd.Wait()
		t.Fatalf("the stand-in for the address daemon: %q, %v\n%s", line, err, said.String())
	}
}

// find tells what an agent finds on the node.
func (n *vpcNode) find(l *model.Local) {
	l.HostAddrs = append(l.HostAddrs, netip.MustParseAddr(strings.TrimSuffix(n.addr.String(), "0")+"1"))
	l.Subnets = []netip.Prefix{n.vpc.family.prefix(vpcNetwork)}
	l.Gateways = []netip.Addr{netip.MustParseAddr(vpcGateway)}
	pods := map[netip.Addr]model.Name{}
	for p := range n.vpc.cluster.Pods.All() {
		if p.Node == n.name {
			pods[p.Addrs[0]] = p.Name
		}
	}
	n.enter.Do(n.vpc.t, "looking for pods' interfaces", func() error {
		w, err := chain.New(slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		found := w.Find("eni", pods)
		l.Endpoints, l.Held = found.Endpoints, found.Held
		return nil
	})
}

// plugin calls the CNI plugin, which asks the daemon of its own node: it knows but one socket.
func (n *vpcNode) plugin(command, pod, ns string, previous []byte) []byte {
	t := n.vpc.t
	t.Helper()
	conf := map[string]any{"cniVersion": "0.4.0", "name": "aws-cni", "type": "aws-cni", "vethPrefix": "eni", "mtu": "1500", "podSGEnforcingMode": "strict",
		"pluginLogFile": "stderr", "pluginLogLevel": "ERROR"}
	if previous != nil {
		conf["prevResult"] = json.RawMessage(previous)
	}
	raw, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf("mkdir %[1]s/n; mount --rbind /run/netns %[1]s/n; mount -t tmpfs none /run; mkdir /run/netns /run/aws-node; mount --rbind %[1]s/n /run/netns; "+
		"mount --bind %[2]s /run/aws-node; exec nsenter --net=/run/netns/%[3]s %[4]s/aws-cni", dir, n.run, n.netns, n.vpc.programs)
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec", script)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+pod, "CNI_NETNS=/run/netns/"+ns, "CNI_IFNAME=eth0", "CNI_PATH="+n.vpc.programs,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod+";K8S_POD_INFRA_CONTAINER_ID="+pod)
	cmd.Stdin = bytes.NewReader(raw)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("aws-cni %s %s: %v\n%s%s", command, pod, err, out.String(), said.String())
	}
	return out.Bytes()
}

// newPod has the plugin make a pod's interface. Pods get addresses of the primary and of the
// secondary interface in turn.
func (n *vpcNode) newPod(name string) *pod {
	t := n.vpc.t
	t.Helper()
	ns := n.vpc.newNetns(name)
	raw := n.plugin("ADD", name, ns, nil)
	n.results[name] = raw
	var result struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal(raw, &result); err != nil || len(result.IPs) != 1 {
		t.Fatalf("aws-cni said %s, %v", raw, err)
	}
	addr := netip.MustParsePrefix(result.IPs[0].Address).Addr()
	// Tests name it by IPv4.
	p := &pod{worker: n.vpc.startWorker(name, ns, n.cgroup), local: &model.LocalEndpoint{Addrs: []netip.Addr{netip.MustParseAddr(four(addr.String()))}}}
	p.obj = &model.Pod{Name: model.Name{Namespace: "default", Name: name}, Labels: map[string]string{"app": name}, Node: n.name, Addrs: []netip.Addr{addr}, Created: 1000}
	n.vpc.cluster.Pods.Put(p.obj)
	for _, nw := range networks {
		p.listen(nw, ":8080")
	}
	return p
}

// clean takes Weir away from the node, as weir-agent clean-up does.
func (n *vpcNode) clean(t *testing.T) {
	n.driver.kill()
	n.enter.Do(n.vpc.t, "removing Weir", func() error {
		return errors.Join(ebpf.Remove(filepath.Join(n.driver.bpffs, "weir")), nft.Remove(t.Context()))
	})
}
