// SPDX-License-Identifier: Apache-2.0

package heal

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/kernel"
)

const (
	namespace = "default"
	apiName   = "kubernetes" // the Service that the API server makes for itself
	apiPort   = 6443
	thiefPort = 8080
)

// family is what of addresses differs between IPv4 and IPv6.
type family struct {
	name       string
	six        bool
	api        netip.Addr // of the API server, on the link of the nodes
	link, pods netip.Prefix
	services   netip.Prefix
	thief      netip.Addr // of the pod that takes connections
	aside      netip.Addr // cluster IP of the wrong frontends' Service
}

func familyOf(name, api, link, pods, services, thief, aside string) family {
	return family{name: name, six: name == "IPv6", api: netip.MustParseAddr(api), link: netip.MustParsePrefix(link), pods: netip.MustParsePrefix(pods),
		services: netip.MustParsePrefix(services), thief: netip.MustParseAddr(thief), aside: netip.MustParseAddr(aside)}
}

var families = []family{
	familyOf("IPv4", "172.31.0.70", "172.31.0.0/24", "10.244.0.0/16", "10.96.0.0/16", "10.244.1.9", "10.96.0.66"),
	familyOf("IPv6", "fd00:31::70", "fd00:31::/64", "fd00:244::/48", "fd00:96::/112", "fd00:244::1:9", "fd00:96::66"),
}

// host returns the n-th address of the nodes' link.
func (f family) host(n int) netip.Addr {
	b := f.link.Addr().AsSlice()
	b[len(b)-1] = byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// bits is the length of an address.
func (f family) bits() int { return f.api.BitLen() }

// world is a real API server on a switch in the test's network namespace, to which nodes are
// connected.
type world struct {
	t         *testing.T
	server    *apitest.Server
	agent     string                // the program
	clusterIP map[string]netip.Addr // of the API server, by family
	nodes     int
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	// ip complains of each namespace that another test has in /run/netns, which is mounted
	// elsewhere.
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, complaints.Bytes())
	}
	return string(out)
}

// shell runs a script in the test's own network namespace.
func shell(t *testing.T, format string, args ...any) string {
	t.Helper()
	return run(t, exec.Command("sh", "-ec", fmt.Sprintf(format, args...)))
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, clusterIP: map[string]netip.Addr{}}
	shell(t, "ip link add br0 type bridge; ip link set br0 up")
	for _, f := range families {
		shell(t, "ip addr add %s dev br0 nodad", netip.PrefixFrom(f.api, f.link.Bits()))
	}
	began := time.Now()
	// Who is behind the Service "kubernetes" is up to the test: the server itself would take its
	// addresses of one family only.
	w.server = apitest.Start(t, "--bind-address=::", "--advertise-address="+families[0].api.String(), "--endpoint-reconciler-type=none",
		fmt.Sprintf("--service-cluster-ip-range=%s,%s", families[0].services, families[1].services))
	t.Logf("the API server was ready after %s", time.Since(began).Round(time.Millisecond))
	w.install()
	w.buildAgent()
	return w
}

// buildAgent compiles the agent.
func (w *world) buildAgent() {
	w.agent = filepath.Join(w.t.TempDir(), "weir-agent")
	run(w.t, exec.Command("go", "build", "-trimpath", "-o", w.agent, "github.com/weir-net/weir/cmd/weir-agent"))
}

// install makes the kinds that agents watch, pools, and a cluster IP of each family for the API
// server.
func (w *world) install() {
	objects, err := deploy.Objects(deploy.Defaults())
	must(w.t, err)
	for _, u := range objects {
		if u.GetKind() == "CustomResourceDefinition" {
			w.server.Create(u)
		}
	}
	for _, f := range families {
		w.server.Create(apitest.Object("projectcalico.org/v3", "IPPool", "pods-"+strings.ToLower(f.name),
			map[string]any{"cidr": f.pods.String(), "vxlanMode": "Never", "ipipMode": "Never"}))
	}
	services := w.server.Clients.Kube.CoreV1().Services(namespace)
	apitest.Eventually(w.t, time.Minute, "a cluster IP of each family for the API server", func() error {
		s, err := services.Get(w.t.Context(), apiName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(s.Spec.ClusterIPs) < len(families) {
			both := corev1.IPFamilyPolicyRequireDualStack
			s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &both, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
			if s, err = services.Update(w.t.Context(), s, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		for i, f := range families {
			if w.clusterIP[f.name], err = netip.ParseAddr(s.Spec.ClusterIPs[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// serve says that the API server is at its address of a family, and at no other.
func (w *world) serve(f family) {
	w.t.Helper()
	slices := w.server.Clients.Kube.DiscoveryV1().EndpointSlices(namespace)
	must(w.t, slices.DeleteCollection(w.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + apiName}))
	name, proto, port, yes := "https", corev1.ProtocolTCP, int32(apiPort), true
	kind := discoveryv1.AddressTypeIPv4
	if f.six {
		kind = discoveryv1.AddressTypeIPv6
	}
	_, err := slices.Create(w.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: apiName, Labels: map[string]string{discoveryv1.LabelServiceName: apiName}},
		AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &proto, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{f.api.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}}},
	}, metav1.CreateOptions{})
	must(w.t, err)
}

// space is a network namespace, held by a process.
type space struct {
	t      *testing.T
	pid    int
	cgroup string // of the processes in it; empty = the test's
}

// newSpace makes a network namespace; the process in it is the thief.
func newSpace(t *testing.T) *space {
	t.Helper()
	cmd := task{Op: "stay"}.in(&space{})
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	n := &space{t: t, pid: cmd.Process.Pid}
	n.shell("ip link set lo up; sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.default.router_solicitations=0")
	return n
}

// command is one that runs in the namespace, and in the control group when there is one.
func (n *space) command(args ...string) *exec.Cmd {
	if n.pid == 0 {
		return exec.Command(args[0], args[1:]...)
	}
	enter := append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", n.pid)}, args...)
	if n.cgroup == "" {
		return exec.Command("nsenter", enter...)
	}
	return exec.Command("sh", append([]string{"-c", `echo $$ > "$0/cgroup.procs" && exec nsenter "$@"`, n.cgroup}, enter...)...)
}

func (n *space) shell(format string, args ...any) string {
	n.t.Helper()
	return run(n.t, n.command("sh", "-ec", fmt.Sprintf(format, args...)))
}

// outside is the namespace for processes that are not in the node's control group.
func (n *space) outside() *space { return &space{t: n.t, pid: n.pid} }

// node is a machine of the cluster.
type node struct {
	*space
	world *world
	fam   family
	name  string
	index int
	nft   bool
	dir   string
	bpffs string
	pod   *space // the thief
	// ports are those that the node's processes connect from, first and last.
	ports [2]uint16

	process *exec.Cmd
	log     string
}

// otherPorts are some that have no flow to the thief.
var otherPorts = [2]uint16{41000, 41001}

func (w *world) newNode(t *testing.T, f family, nft bool) *node {
	w.nodes++
	n := &node{space: newSpace(t), world: w, fam: f, name: fmt.Sprintf("node%d", w.nodes), index: w.nodes, nft: nft, dir: t.TempDir()}
	n.pod = newSpace(t)
	shell(t, "ip link add eth0 netns /proc/%d/ns/net type veth peer name p%d; ip link set p%d master br0; ip link set p%d up", n.pid, n.index, n.index, n.index)
	n.shell("ip link set eth0 up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	var addrs []corev1.NodeAddress
	for _, f := range families {
		a := f.host(100 + n.index)
		n.shell("ip addr add %s dev eth0 nodad; ip route add default via %s", netip.PrefixFrom(a, f.link.Bits()), f.host(1))
		addrs = append(addrs, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	n.makeCgroup()
	n.bpffs = filepath.Join(n.dir, "bpffs")
	must(t, os.Mkdir(n.bpffs, 0o700))
	must(t, unix.Mount("bpf", n.bpffs, "bpf", 0, "mode=0700"))
	t.Cleanup(func() {
		n.kill()
		if err := unix.Unmount(n.bpffs, unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting %s: %v", n.bpffs, err)
		}
	})
	nodes := w.server.Clients.Kube.CoreV1().Nodes()
	object, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{})
	must(t, err)
	object.Status.Addresses = addrs
	_, err = nodes.UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := nodes.Delete(context.Background(), n.name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("deleting node %s: %v", n.name, err)
		}
	})
	return n
}

func (n *node) makeCgroup() {
	root, err := kernel.CgroupV2()
	must(n.t, err)
	cgroup := filepath.Join(root, "weir-heal-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	must(n.t, os.Mkdir(cgroup, 0o755))
	n.cgroup = cgroup
	n.t.Cleanup(func() {
		var err error
		for end := time.Now().Add(await.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if err = os.Remove(cgroup); err == nil { // its processes are just ending
				return
			}
		}
		n.t.Errorf("removing %s: %v", cgroup, err)
	})
}

// narrow has the node's processes connect from 16 ports that no flow has yet.
func (n *node) narrow() {
	n.t.Helper()
	first := uint16(40000)
	if n.ports[0] != 0 {
		first = n.ports[0] + 100
	}
	n.ports = [2]uint16{first, first + 15}
	n.shell("sysctl -qw net.ipv4.ip_local_port_range='%d %d'", n.ports[0], n.ports[1])
}

// addr is the node's address of its family.
func (n *node) addr() netip.Addr { return n.fam.host(100 + n.index) }

// api is where the API server is: at its own address, or at its cluster IP, which the node's tables
// translate.
func (n *node) api(clusterIP bool) netip.AddrPort {
	if clusterIP {
		return netip.AddrPortFrom(n.world.clusterIP[n.fam.name], 443)
	}
	return netip.AddrPortFrom(n.fam.api, apiPort)
}

// start starts the agent, which is configured with the API server's address.
func (n *node) start(clusterIP bool) {
	n.t.Helper()
	n.log = filepath.Join(n.dir, fmt.Sprintf("agent-%d.log", time.Now().UnixNano()))
	log, err := os.Create(n.log)
	must(n.t, err)
	defer log.Close()
	n.process = n.command(n.world.agent, "--node-name", n.name, "--kubeconfig", n.world.server.KubeconfigFor("https://"+n.api(clusterIP).String()), "--state-dir", filepath.Join(n.dir, "state"),
		"--run-dir", filepath.Join(n.dir, "run"), "--bpffs", filepath.Join(n.bpffs, "weir"), "--bpffs-mount", n.bpffs, "--cgroup", n.cgroup,
		"--cni-conf-dir", filepath.Join(n.dir, "net.d"), "--peers-dir", filepath.Join(n.dir, "peers"))
	n.process.Stdout, n.process.Stderr = log, log
	n.process.Env = append(os.Environ(), fmt.Sprintf("FELIX_BPFENABLED=%t", !n.nft))
	n.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(n.t, n.process.Start())
}

// kill ends the agent without any warning, and waits until the API server has no connection of it.
func (n *node) kill() {
	if n.process == nil {
		return
	}
	n.process.Process.Signal(syscall.SIGKILL)
	n.process.Wait()
	n.process = nil
}

// ended reports whether the agent's process has ended by itself.
func (n *node) ended() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.process.Process.Pid))
	_, state, found := strings.Cut(string(stat), ") ")
	return err != nil || found && strings.HasPrefix(state, "Z")
}

// logs is what the agent wrote since it started.
func (n *node) logs() string {
	b, err := os.ReadFile(n.log)
	must(n.t, err)
	return string(bytes.TrimSpace(b))
}

// connections counts the connections that the API server has from the node.
func (n *node) connections() int {
	n.t.Helper()
	all, err := netlink.SocketDiagTCP(unix.AF_INET6) // the server listens at :: for both families
	must(n.t, err)
	count := 0
	for _, s := range all {
		from, ok := netip.AddrFromSlice(s.ID.Destination)
		if ok && from.Unmap() == n.addr() && s.ID.SourcePort == apiPort && s.State == netlink.TCP_ESTABLISHED {
			count++
		}
	}
	return count
}
