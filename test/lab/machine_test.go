// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// The kinds of KubeVirt that Weir reads, as the API server is told of them here: without a schema.
const kubeVirtKind = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "%[1]s.kubevirt.io"},
 "spec": {"group": "kubevirt.io", "scope": "Namespaced", "names": {"plural": "%[1]s", "singular": "%[2]s", "kind": "%[3]s", "listKind": "%[3]sList"},
  "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}
`

var kubeVirtKinds = []string{"VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceMigration"}

func kubeVirtResource(kind string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: strings.ToLower(kind) + "s"}
}

// guest is a virtual machine: a network namespace whose interface is behind a bridge in that of its
// pod, as KubeVirt's binding "bridge" has it. To move it, the bridge's port goes to another pod.
type guest struct {
	*place
	space *space
	uid   string // of its VirtualMachineInstance
	mac   string
	host  string // of a process in its namespace, as this machine numbers it
	home  string // likewise of the pod in which it runs; empty = none yet
}

// TestMachineMoves: a virtual machine that policy isolates is moved between two nodes, with objects
// of KubeVirt's kinds; its address and its connections stay, to a pod, to a Service and from pods
// of all nodes.
func TestMachineMoves(t *testing.T) {
	b := sharedBase(t)
	for _, plane := range []struct{ name, enabled string }{{"eBPF", "true"}, {"nftables", "false"}} {
		t.Run(plane.name, func(t *testing.T) {
			b.patchFelix(t, `{"bpfEnabled":`+plane.enabled+`}`, "bpfEnabled")
			b.awaitPlane(t, plane.name)
			testMachineMoves(t, b)
		})
	}
}

func testMachineMoves(t *testing.T, b *base) {
	s := b.newSpace(t, "machine")
	s.keepAddresses(t)
	peer := func(name, node string) *corev1.Pod { return s.server(name, node, map[string]string{"peer": "yes"}) }
	peers := s.start(t, peer("near", "worker1"), peer("far", "worker2"), peer("third", "cp"))
	s.mustKubectl(t, `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "vm"}, "spec": {"podSelector": {"matchLabels": {"app": "vm"}}, "policyTypes": ["Ingress", "Egress"],
 "ingress": [{"from": [{"podSelector": {"matchLabels": {"peer": "yes"}}}]}], "egress": [{"to": [{"podSelector": {"matchLabels": {"peer": "yes"}}}]}]}}`, "-n", s.ns, "apply", "-f", "-")
	s.mustKubectl(t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"}, "spec": {"selector": {"pod": "far"}, "ports": [{"port": %d}]}}`, echoPort), "-n", s.ns, "apply", "-f", "-")
	svc, err := s.kube.CoreV1().Services(s.ns).Get(context.Background(), "far", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g := s.newGuest(t)
	first := g.launcher(t, "launcher-1", "worker1", "")
	g.runs(t, first)
	g.begin(t, "server", "--until-stdin-ends", "--name", "vm", fmt.Sprintf("--echo=%d", echoPort), fmt.Sprintf("--who=%d", whoPort))
	for _, p := range peers {
		eventually(t, time.Minute, p.pod+" reaches the machine", func() error {
			r, err := p.tryDial(at(g.addr, whoPort), 1, "--timeout", "1s")
			if err == nil && (len(r.Names) != 1 || r.Names[0] != "vm") {
				err = errors.New(r.String())
			}
			return err
		})
	}
	open := []*running{g.begin(t, "stream", at(svc.Spec.ClusterIP, echoPort))}
	for _, p := range peers {
		open = append(open, p.begin(t, "stream", at(g.addr, echoPort)), g.begin(t, "stream", at(p.addr, echoPort)))
	}

	migration := g.object(t, "VirtualMachineInstanceMigration", "move", `"spec": {"vmiName": "vm"}, "status": {"phase": "Running"}`)
	second := g.launcher(t, "launcher-2", "worker2", migration)
	g.says(t, fmt.Sprintf(`{"status": {"activePods": {%q: "worker2"}}}`, second.UID))
	target, err := s.ready(second.Name, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if target.addr != g.addr {
		t.Fatalf("the target has %s, the machine %s", target.addr, g.addr)
	}
	g.plugInto(t, second.Name)
	g.announces(t)
	eventually(t, time.Minute, "the target's node has the address", func() error { return g.isAt("worker2") })
	g.says(t, fmt.Sprintf(`{"status": {"nodeName": "worker2", "activePods": {%q: null}}}`, first.UID))
	g.object(t, "VirtualMachineInstanceMigration", "move", `"spec": {"vmiName": "vm"}, "status": {"phase": "Succeeded"}`)
	s.mustKubectl(t, "", "-n", s.ns, "delete", "pod", first.Name, "--grace-period=0", "--force")
	for _, p := range peers {
		if r := p.dial(t, at(g.addr, whoPort), 3); r.Failed > 0 {
			t.Errorf("%v reaches the machine no longer: %v", p, r)
		}
	}
	b.cli1.refused(t, at(g.addr, whoPort))
	for _, r := range open {
		res := unbroken(t, r)
		t.Logf("%s: %d KiB, longest pause %.0f ms", r.what, res.Received, res.GapMS)
	}
}

// keepAddresses has virtual machines keep their addresses, and tells the API server of KubeVirt.
func (s *space) keepAddresses(t *testing.T) {
	t.Helper()
	var kinds strings.Builder
	for _, kind := range kubeVirtKinds {
		fmt.Fprintf(&kinds, kubeVirtKind, kubeVirtResource(kind).Resource, strings.ToLower(kind), kind)
	}
	s.mustKubectl(t, kinds.String(), "apply", "-f", "-")
	set := func(value string) {
		s.mustKubectl(t, "", "patch", "ipamconfigurations.projectcalico.org", "default", "--type", "merge", "-p", `{"spec": {"kubeVirtVMAddressPersistence": `+value+`}}`)
	}
	set(`"Enabled"`)
	t.Cleanup(func() { set("null") })
	for _, kind := range kubeVirtKinds {
		eventually(t, time.Minute, kind, func() error {
			_, err := s.dynamic.Resource(kubeVirtResource(kind)).List(context.Background(), metav1.ListOptions{})
			return err
		})
	}
}

// newGuest makes a machine that runs nowhere yet. A process of worker1 holds its namespace.
func (s *space) newGuest(t *testing.T) *guest {
	t.Helper()
	g := &guest{space: s}
	hold := fmt.Sprintf("3600.%09d", time.Now().UnixNano()%1e9) // seconds, by which it is found
	pid := strings.TrimSpace(s.must(t, "worker1", "sh", "-c", "unshare --net sleep "+hold+" >/dev/null 2>&1 </dev/null & echo $!"))
	t.Cleanup(func() {
		if _, err := s.exec("worker1", "kill", pid); err != nil {
			t.Error(err)
		}
	})
	g.place = &place{lab: s.lab, machine: "worker1", pod: "vm", ns: s.ns, pid: pid}
	g.host = processWith(t, "cmdline", "sleep\x00"+hold)
	owner := g.object(t, "VirtualMachine", "vm", `"spec": {}`)
	g.uid = g.object(t, "VirtualMachineInstance", "vm", `"spec": {"networks": [{"name": "default", "pod": {}}], "domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}}}`)
	g.says(t, fmt.Sprintf(`{"metadata": {"ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": %q, "controller": true}]}}`, owner))
	return g
}

// object makes an object of KubeVirt's, or changes it, and returns its UID.
func (g *guest) object(t *testing.T, kind, name, rest string) (uid string) {
	t.Helper()
	g.mustKubectl(t, fmt.Sprintf(`{"apiVersion": "kubevirt.io/v1", "kind": %q, "metadata": {"name": %q}, %s}`, kind, name, rest), "-n", g.ns, "apply", "-f", "-")
	u, err := g.dynamic.Resource(kubeVirtResource(kind)).Namespace(g.ns).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(u.GetUID())
}

// says changes the VirtualMachineInstance.
func (g *guest) says(t *testing.T, patch string) {
	t.Helper()
	if _, err := g.dynamic.Resource(kubeVirtResource("VirtualMachineInstance")).Namespace(g.ns).Patch(context.Background(), "vm", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// launcher makes a pod of the machine's, which a migration may be the reason for.
func (g *guest) launcher(t *testing.T, name, node, migration string) *corev1.Pod {
	t.Helper()
	labels := map[string]string{"app": "vm", model.LabelKubeVirt: model.KubeVirtLauncher, model.LabelKubeVirtInstance: g.uid, model.LabelKubeVirtName: "vm"}
	if migration != "" {
		labels[model.LabelKubeVirtMigration] = migration
	}
	p := g.space.idle(name, node, labels)
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm", UID: types.UID(g.uid), Controller: ptr.To(true)}}
	p, err := g.kube.CoreV1().Pods(g.ns).Create(context.Background(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// runs has the machine run in its first pod, with the pod's address and MAC address.
func (g *guest) runs(t *testing.T, in *corev1.Pod) {
	t.Helper()
	at, err := g.space.ready(in.Name, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	g.addr = at.addr
	g.mac = strings.TrimSpace(onHost(t, g.podProcess(t, in.Name), "ip -o link show eth0 | sed 's/.*link.ether \\([0-9a-f:]*\\).*/\\1/'"))
	g.says(t, fmt.Sprintf(`{"status": {"nodeName": %[1]q, "activePods": {%[2]q: %[1]q}, "interfaces": [{"name": "default", "mac": %[3]q}]}}`, in.Spec.NodeName, in.UID, g.mac))
	eventually(t, 2*time.Minute, "the address is the machine's", func() error { return g.isAt(in.Spec.NodeName) })
	g.plugInto(t, in.Name)
	onHost(t, g.host, "ip addr add %s/32 dev eth0; ip link set lo up; ip route add 169.254.1.1 dev eth0; ip route add default via 169.254.1.1 dev eth0; "+
		"ip neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent; sysctl -qw net.ipv4.conf.eth0.arp_notify=1", g.addr)
}

// isAt says why the machine's address is not at a node.
func (g *guest) isAt(node string) error {
	cidr := netip.PrefixFrom(netip.MustParseAddr(g.addr), 32)
	b, err := client.Blocks(g.dynamic).Get(context.Background(), weirv1.BlockName(cidr))
	if err != nil {
		return err
	}
	if b.Spec.Node != node || b.Spec.VirtualMachine == nil || b.Spec.VirtualMachine.MAC != g.mac {
		return fmt.Errorf("%+v %+v", b.Spec, b.Spec.VirtualMachine)
	}
	return nil
}

// plugInto takes the machine to a pod.
func (g *guest) plugInto(t *testing.T, pod string) {
	t.Helper()
	to := g.podProcess(t, pod)
	onHost(t, to, "ip addr flush dev eth0; ip link set eth0 address 02:00:00:00:77:01; ip link add k6t type bridge; ip link set eth0 master k6t; ip link set k6t up")
	if g.home == "" {
		onHost(t, g.host, "ip link add eth0 address %s type veth peer name tap0 netns %s; ip link set eth0 up", g.mac, to)
	} else {
		onHost(t, g.home, "ip link set tap0 nomaster; ip link set tap0 netns %s", to)
	}
	onHost(t, to, "ip link set tap0 master k6t; ip link set tap0 up")
	g.home = to
}

// announces has the machine send a gratuitous ARP: its kernel does when its MAC address is set.
func (g *guest) announces(t *testing.T) {
	t.Helper()
	onHost(t, g.host, "ip link set eth0 address %s", g.mac)
}

// podProcess is a process of a pod, as this machine numbers it.
func (g *guest) podProcess(t *testing.T, name string) string {
	t.Helper()
	p, err := g.kube.CoreV1().Pods(g.ns).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return processWith(t, "cgroup", strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://"))
}

// processWith finds a process of this machine by what a file of it in /proc contains.
func processWith(t *testing.T, file, text string) (pid string) {
	t.Helper()
	eventually(t, 10*time.Second, "a process with "+text, func() error {
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return err
		}
		for _, dir := range all {
			// A process that has ended has no such file.
			if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil && strings.Contains(string(b), text) {
				pid = filepath.Base(dir)
				return nil
			}
		}
		return errors.New("there is none")
	})
	return pid
}

// onHost runs commands of this machine in the network namespace of one of its processes.
func onHost(t *testing.T, pid, commands string, args ...any) string {
	t.Helper()
	out, err := exec.Command("nsenter", "--net=/proc/"+pid+"/ns/net", "sh", "-ec", fmt.Sprintf(commands, args...)).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", commands, err, out)
	}
	return string(out)
}
