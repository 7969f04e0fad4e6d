// SPDX-License-Identifier: Apache-2.0

//go:build lab

package migrate

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/nettest"
)

// calicoPolicy lets clients ask servers, and strangers nobody.
const calicoPolicy = `
apiVersion: crd.projectcalico.org/v1
kind: NetworkPolicy
metadata: {name: default.servers, namespace: shop}
spec:
  selector: app == 'server'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, source: {selector: role == 'client'}, destination: {ports: [7000, 7001]}}
`

// places are servers and clients on nodes of a lab, with a policy.
func places(policy, traffic string, nodes []string) string {
	var out strings.Builder
	out.WriteString(`
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---`)
	out.WriteString(policy)
	pod := func(name, node, labels, command string) {
		fmt.Fprintf(&out, `---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop, labels: {%s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "registry.k8s.io/e2e-test-images/agnhost:2.56", command: [%s], volumeMounts: [{name: t, mountPath: /t}]}
  volumes: [{name: t, hostPath: {path: %s}}]
`, name, labels, node, command, filepath.Dir(traffic))
	}
	for _, node := range nodes {
		pod("server-"+node, node, "app: server, at: "+node, "/t/traffic, server, --echo=7000, --who=7001")
		pod("client-"+node, node, "role: client", "sleep, infinity")
		pod("stranger-"+node, node, "role: stranger", "sleep, infinity")
		fmt.Fprintf(&out, `---
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {selector: {at: %s}, ports: [{name: echo, port: 7000}, {name: who, port: 7001}]}
`, node, node)
	}
	return out.String()
}

// session is a program in a pod that runs until its standard input ends.
type session struct {
	what  string
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

func (l *lab) begin(t *testing.T, what, pod string, args ...string) *session {
	t.Helper()
	s := &session{what: what}
	s.cmd = exec.Command(l.program, append([]string{"--name", l.name, "exec", "cp", "--", "kubectl", "-n", "shop", "exec", "-i", pod, "--", "/t/traffic"}, args...)...)
	in, err := s.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = os.Stderr
	s.stdin, s.lines = in, bufio.NewScanner(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = s.cmd.Wait()
	})
	return s
}

// first is the first line that the program writes.
func (s *session) first(t *testing.T) {
	t.Helper()
	if !s.lines.Scan() {
		t.Fatalf("%s: nothing was written", s.what)
	}
	if text := s.lines.Text(); text != "ready" {
		t.Fatalf("%s: %s", s.what, text)
	}
}

// end ends the program and returns what it has written since.
func (s *session) end() (out []string) {
	s.stdin.Close()
	for s.lines.Scan() {
		out = append(out, s.lines.Text())
	}
	return out
}

// traffic are connections and attempts that run through a change.
type traffic struct {
	streams, strangers []*session
	since              time.Time
}

// traffic opens connections within nodes, between them, and through Services, in both directions,
// and has the strangers try all servers.
func (l *lab) traffic(t *testing.T, addr map[string]string, nodes []string) *traffic {
	t.Helper()
	out := &traffic{since: time.Now()}
	for _, from := range nodes {
		for _, to := range nodes {
			server := addr["server-"+to]
			out.streams = append(out.streams, l.begin(t, from+" to a pod on "+to, "client-"+from, "stream", server+":7000"))
			out.streams = append(out.streams, l.begin(t, from+" to Service "+to, "client-"+from, "stream", addr["service-"+to]+":7000"))
			out.strangers = append(out.strangers, l.begin(t, "stranger on "+from+" to "+to, "stranger-"+from, "probe", "--every=10ms", "--timeout=200ms", server+":7001"))
		}
	}
	for _, s := range out.streams {
		s.first(t)
	}
	return out
}

// check ends everything, reports what was lost and what got through, and returns how many
// connections were lost.
func (tr *traffic) check(t *testing.T, what string) (lost int) {
	t.Helper()
	open, gap := 0, 0.0
	for _, s := range tr.streams {
		lines := s.end()
		var res struct {
			Sent, Received int
			GapMS          float64 `json:"gap_ms"`
			Error          string
		}
		if len(lines) == 0 || json.Unmarshal([]byte(lines[len(lines)-1]), &res) != nil || res.Error != "" || res.Received == 0 {
			t.Errorf("%s: connection %s is lost: %q", what, s.what, lines)
			lost++
		}
		gap = max(gap, res.GapMS)
		t.Logf("%s: %s: %d blocks, longest gap %.0f ms", what, s.what, res.Received, res.GapMS)
	}
	for _, s := range tr.strangers {
		lines := s.end()
		if len(lines) != 1 || !strings.HasSuffix(lines[0], " -") {
			t.Errorf("%s: %s got through: %q", what, s.what, lines)
			open++
		}
	}
	t.Logf("%s: %d of %d connections lost, longest gap %.0f ms, %d of %d strangers served, in %.0f s", what, lost, len(tr.streams), gap, open, len(tr.strangers), time.Since(tr.since).Seconds())
	return lost
}

// shop is what pods of a namespace are: their identity, address and starts.
func (l *lab) shop(t *testing.T) (addr map[string]string, state map[string]string) {
	t.Helper()
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(l.must(t, "", "kubectl", "get", "pods", "-A", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	addr, state = map[string]string{}, map[string]string{}
	seen := map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.HostNetwork || p.Status.PodIP == "" {
			continue
		}
		name := p.Namespace + "/" + p.Name
		if other := seen[p.Status.PodIP]; other != "" {
			t.Errorf("%s and %s have %s", name, other, p.Status.PodIP)
		}
		seen[p.Status.PodIP] = name
		restarts := int32(0)
		for _, s := range p.Status.ContainerStatuses {
			restarts += s.RestartCount
		}
		state[name] = fmt.Sprintf("%s %s %d", p.UID, p.Status.PodIP, restarts)
		if p.Namespace == "shop" {
			addr[p.Name] = p.Status.PodIP
		}
	}
	var services corev1.ServiceList
	if err := json.Unmarshal([]byte(l.must(t, "", "kubectl", "-n", "shop", "get", "services", "-o", "json")), &services); err != nil {
		t.Fatal(err)
	}
	for _, s := range services.Items {
		addr["service-"+s.Name] = s.Spec.ClusterIP
	}
	return addr, state
}

// anew starts a pod on a node and has it ask all servers.
func (l *lab) anew(t *testing.T, name, node string, addr map[string]string) {
	t.Helper()
	l.must(t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "shop", "labels": {"role": "client"}},
		"spec": {"nodeName": %q, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "registry.k8s.io/e2e-test-images/agnhost:2.56", "command": ["sleep", "infinity"]}]}}`, name, node),
		"kubectl", "apply", "-f", "-")
	l.must(t, "", "kubectl", "-n", "shop", "wait", "--for=condition=Ready", "pod/"+name, "--timeout=90s")
	for who, a := range addr {
		if strings.HasPrefix(who, "server-") || strings.HasPrefix(who, "service-") {
			if _, err := l.try("", "kubectl", "-n", "shop", "exec", name, "--", "/agnhost", "connect", a+":7001", "--timeout=5s"); err != nil {
				t.Errorf("the new pod %s on %s does not reach %s: %v", name, node, who, err)
			}
		}
	}
}

// left says what of Calico is left on a node that has Weir.
func (l *lab) left(t *testing.T, node string) {
	t.Helper()
	out, err := exec.Command(l.program, "--name", l.name, "exec", node, "--", "sh", "-c",
		"nft list ruleset 2>/dev/null | grep -c cali- ; ip route show proto 80; ip route show proto bird; ls /etc/cni/net.d; ip -d link show vxlan.calico").CombinedOutput()
	text := string(out)
	if err != nil || !strings.HasPrefix(text, "0\n10-calico.conflist.before-weir\n10-weir.conflist\ncalico-kubeconfig\n") || !strings.Contains(text, "external") {
		t.Errorf("on %s there is (%v):\n%s", node, err, text)
	}
}

// TestInPlace: nodes change from Calico to Weir and back while pods run, with connections open, and
// no one gets through whom policy denies.
func TestInPlace(t *testing.T) {
	l := newLab(t, "--workers", "1")
	l.must(t, "", "kubectl", "patch", "ippools.crd.projectcalico.org", "default-ipv4-ippool", "--type", "merge", "-p", `{"spec":{"vxlanMode":"Always"}}`)
	l.inPlace(t, "VXLAN", []string{"worker1", "cp"}, func() {})
}

// TestInPlaceCrossSubnet is the same with the pool as Calico's manifest makes it: two nodes are in
// one subnet and exchange packets of pods without encapsulation, a third one is behind a router.
// All check by strict reverse path filtering that packets come the way that answers go.
func TestInPlaceCrossSubnet(t *testing.T) {
	l := newLab(t, "--workers", "2", "--racks")
	nodes := []string{"worker1", "worker2", "cp"}
	for _, node := range nodes {
		if out, err := l.on(node, "sysctl", "-w", "net.ipv4.conf.all.rp_filter=1"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	l.inPlace(t, "VXLAN between subnets", nodes, func() { l.tunnelled(t, nodes) })
}

// tunnelled checks that packets to and from pods on worker2, and no others, go through the tunnel.
func (l *lab) tunnelled(t *testing.T, nodes []string) {
	t.Helper()
	addr, _ := l.shop(t)
	for _, from := range nodes {
		for _, to := range nodes {
			out, err := l.on(from, "ip", "route", "get", addr["server-"+to])
			if tunnel := (from == "worker2") != (to == "worker2"); err != nil || strings.Contains(out, "vxlan.calico") != tunnel {
				t.Errorf("%s sends to a pod on %s by %s (%v), through the tunnel: want %v", from, to, out, err, tunnel)
			}
		}
	}
}

// TestInPlaceBGP is the same where BIRD routes, by the configuration that Calico's confd writes for
// it: nodes have sessions with each other and with the router between their two subnets, which does
// without encapsulation. Nodes with BIRD and nodes with weir-bgp have sessions with each other
// meanwhile.
func TestInPlaceBGP(t *testing.T) {
	l := newLab(t, "--workers", "2", "--bgp")
	nodes := []string{"worker1", "worker2", "cp"}
	l.inPlace(t, "BGP", nodes, func() {
		addr, _ := l.shop(t)
		for _, from := range nodes {
			for _, to := range nodes {
				gateway := l.address(t, to)
				switch {
				case from == to:
					continue
				case from == "worker2":
					gateway = "172.31.2.1"
				case to == "worker2":
					gateway = "172.31.1.1"
				}
				if out, err := l.on(from, "ip", "route", "get", addr["server-"+to]); err != nil || !strings.Contains(out, " via "+gateway+" dev eth0 ") {
					t.Errorf("%s sends to a pod on %s by %s (%v), want by %s", from, to, out, err, gateway)
				}
			}
		}
		for _, node := range nodes {
			out, err := l.on(node, "ip", "route", "show", "proto", "bird")
			other, otherErr := l.on(node, "ip", "route", "show", "proto", "88")
			if err != nil || otherErr != nil || (out == "") == (other == "") {
				t.Errorf("%s has of BIRD (%v)\n%sand of weir-bgp (%v)\n%s", node, err, out, otherErr, other)
			}
		}
	})
}

// TestInPlaceVXLANAndBGP is the same where the pool has VXLAN between subnets, and BIRD tells the
// router alone of pods: Felix writes the routes.
func TestInPlaceVXLANAndBGP(t *testing.T) {
	l := newLab(t, "--workers", "2", "--bgp")
	nodes := []string{"worker1", "worker2", "cp"}
	l.must(t, "", "kubectl", "patch", "ippools.crd.projectcalico.org", "default-ipv4-ippool", "--type", "merge", "-p", `{"spec":{"vxlanMode":"CrossSubnet"}}`)
	for _, node := range nodes {
		l.must(t, "", "kubectl", "wait", "node", node, `--for=jsonpath={.metadata.annotations.projectcalico\.org/IPv4VXLANTunnelAddr}`, "--timeout=60s")
	}
	l.inPlace(t, "VXLAN and BGP", nodes, func() {
		l.tunnelled(t, nodes)
		for _, node := range nodes {
			if out, err := l.on(node, "ip", "route", "show", "root", "10.244.0.0/16", "proto", "bird"); err != nil || out != "" {
				t.Errorf("%s has of BIRD (%v)\n%s", node, err, out)
			}
		}
	})
}

// address is that of a node.
func (l *lab) address(t *testing.T, node string) string {
	t.Helper()
	return strings.TrimSpace(l.must(t, "", "kubectl", "get", "node", node, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`))
}

// on runs a program on a node.
func (l *lab) on(node string, args ...string) (string, error) {
	out, err := exec.Command(l.program, append([]string{"--name", l.name, "exec", node, "--"}, args...)...).CombinedOutput()
	return string(out), err
}

// trafficProgram builds what servers and clients run, in a folder that all nodes see.
func trafficProgram(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-migrate-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "traffic")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../lab/traffic")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the traffic program: %v\n%s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

// load gives all nodes Weir's image.
func (l *lab) load(t *testing.T) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "weir.tar")
	for _, args := range [][]string{{"image", "--output", archive}, {"--name", l.name, "load", archive}} {
		if out, err := exec.Command(l.program, args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
}

// inPlace changes the nodes in this order, takes the first one back, and changes it again. ways is
// called whenever a node was changed, and at first.
func (l *lab) inPlace(t *testing.T, mode string, nodes []string, ways func()) {
	t.Helper()
	program := trafficProgram(t)
	l.load(t)
	l.must(t, places(calicoPolicy, program, nodes), "kubectl", "apply", "-f", "-")
	l.must(t, "", "kubectl", "-n", "shop", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s")
	addr, before := l.shop(t)
	time.Sleep(2 * time.Second) // Felix has the policy
	t.Log("\n" + l.must(t, "", "weir", "install", "--from", "calico"))
	t.Log("\n" + l.must(t, "", "weir", "migrate", "--from", "calico", "--in-place"))
	calicos := blocksOf(t, l)
	ways()

	lost, restarted := 0, map[string]bool{}
	same := func(what string) {
		t.Helper()
		_, now := l.shop(t)
		for name, was := range before {
			if now[name] != was {
				restarted[name] = true
				t.Errorf("%s: pod %s was %s and is %s", what, name, was, now[name])
			}
		}
	}
	step := func(what string, args ...string) {
		t.Helper()
		tr := l.traffic(t, addr, nodes)
		out, err := l.try("", append([]string{"weir", "migrate", "--from", "calico", "--yes"}, args...)...)
		t.Logf("%s\n%s", what, out)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(5 * time.Second)
		lost += tr.check(t, what)
		same(what)
		ways()
	}
	for _, node := range nodes {
		step(node, "--apply", "--node", node)
		l.left(t, node)
		for _, on := range nodes {
			l.anew(t, "new-"+node+"-"+on, on, addr)
		}
	}
	if now := blocksOf(t, l); !slices.Equal(now, calicos) {
		t.Logf("Calico's blocks were %v and are %v", calicos, now)
	}
	if out, err := l.try("", "weir", "migrate", "--from", "calico", "--apply", "--yes"); err != nil || !strings.Contains(out, "No node is left") {
		t.Errorf("once more: %v\n%s", err, out)
	}
	first := nodes[0]
	step(first+" back", "--back", "--node", first)
	l.anew(t, "new-back", first, addr)
	step(first+" again", "--apply", "--node", first)
	tr := l.traffic(t, addr, nodes)
	t.Log("\n" + l.must(t, "", "weir", "install"))
	time.Sleep(5 * time.Second)
	lost += tr.check(t, "to Weir alone")
	same("without Calico")
	l.anew(t, "new-last", first, addr)
	nettest.Figure(t, "from Calico in place, "+mode+": "+podsRestarted, float64(len(restarted)))
	nettest.Figure(t, "from Calico in place, "+mode+": "+connectionsLost, float64(lost))
}

// Figures of a migration of all nodes.
const (
	podsRestarted   = "pods restarted by a migration"
	connectionsLost = "open connections lost by a migration"
)

// blocksOf are the blocks of Calico, by address.
func blocksOf(t *testing.T, l *lab) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for line := range strings.Lines(l.must(t, "", "kubectl", "get", "ipamblocks.crd.projectcalico.org", "-o", `jsonpath={range .items[*]}{.spec.cidr}{"\n"}{end}`)) {
		p, err := netip.ParsePrefix(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}
