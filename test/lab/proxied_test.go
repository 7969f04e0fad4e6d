// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// proxied is a lab with a real kube-proxy and Weir, a server and a client on each worker, and
// Services: one of each server, one of both, and one of both with externalTrafficPolicy Local.
type proxied struct {
	*space
	srv1, srv2, cli1, cli2 *place
	ip1, ip2, ip12         string // cluster IPs
}

// Node ports of the Services of one server each begin at nodePort1 and nodePort2. nodePortSeen is
// of one that is asked only by whom its backend sees: a new flow of UDP that has the source port of
// one from before the data plane changed is carried on as that one was, with its address.
const (
	nodePortBoth  = 30730
	nodePortLocal = 30740
	nodePortSeen  = 30750
)

func newProxied(t *testing.T) *proxied {
	t.Helper()
	figures.begin(t)
	if alongside.name == "" {
		alongside.name, alongside.own = fmt.Sprintf("weir-proxy-%d", os.Getpid()%1000000), true
		if err := alongside.up(interrupted, "--proxy", "weir+kube-proxy-iptables"); err != nil {
			t.Fatal(err)
		}
	}
	if err := alongside.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := &proxied{space: alongside.newSpace(t, "proxied")}
	group := func() map[string]string { return map[string]string{"group": "both"} }
	pods := p.start(t, p.server("srv1", "worker1", group()), p.server("srv2", "worker2", group()), p.idle("cli1", "worker1", nil), p.idle("cli2", "worker2", nil))
	p.srv1, p.srv2, p.cli1, p.cli2 = pods[0], pods[1], pods[2], pods[3]
	p.ip1 = p.service(t, "svc1", map[string]string{"pod": "srv1"}, nodePort1, nil).Spec.ClusterIP
	p.ip2 = p.service(t, "svc2", map[string]string{"pod": "srv2"}, nodePort2, nil).Spec.ClusterIP
	p.ip12 = p.service(t, "both", group(), nodePortBoth, nil).Spec.ClusterIP
	p.service(t, "local", group(), nodePortLocal, func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	p.service(t, "seen", map[string]string{"pod": "srv2"}, nodePortSeen, nil)
	for _, np := range []int32{nodePort1, nodePort2, nodePortBoth, nodePortLocal, nodePortSeen} {
		for _, addr := range []string{worker1Addr, worker2Addr} {
			p.client(1).soon(t, at(addr, np+nodeWho), true)
		}
	}
	return p
}

// kubectlPatch is the command of the documentation.
func (l *lab) kubectlPatch(t *testing.T, args ...string) {
	t.Helper()
	l.mustKubectl(t, "", append([]string{"patch"}, args...)...)
}

// withoutProxy takes kube-proxy from all nodes, and withProxy gives it back.
func (l *lab) withoutProxy(t *testing.T) {
	t.Helper()
	l.kubectlPatch(t, "ds", "-n", "kube-system", "kube-proxy", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"non-calico": "true"}}}}}`)
}

func (l *lab) withProxy(t *testing.T) {
	t.Helper()
	l.kubectlPatch(t, "ds", "-n", "kube-system", "kube-proxy", "--type", "merge", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"non-calico": null}}}}}`)
}

func (l *lab) eBPF(t *testing.T, enabled bool) {
	t.Helper()
	l.kubectlPatch(t, "felixconfiguration", "default", "--type", "merge", "-p", fmt.Sprintf(`{"spec":{"bpfEnabled": %v}}`, enabled))
}

// awaitServices waits until every node's NodeStatus says who carries Services.
func (l *lab) awaitServices(t *testing.T, by string) {
	t.Helper()
	eventually(t, 0, "Services are carried by "+by, func() error {
		for node := range nodes {
			status, err := l.nodeStatus(node)
			if err != nil || status.ServiceHandling != by {
				return fmt.Errorf("%s: by %q %w", node, status.ServiceHandling, err)
			}
		}
		return nil
	})
}

// proxyRules are kube-proxy's tables, chains and ipsets on a node; the kubelet has chains with such
// names, too.
func (l *lab) proxyRules(node string) ([]string, error) {
	list, err := l.exec(node, "sh", "-c", "nft list chains; nft list tables; ip -o link show type dummy; if command -v ipset >/dev/null; then ipset list -n; fi")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(list) {
		line = strings.TrimSuffix(strings.TrimSpace(line), " {")
		kubelets := slices.ContainsFunc([]string{"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-MARK-DROP", "KUBE-IPTABLES-HINT"},
			func(name string) bool { return strings.HasSuffix(line, name) })
		if !kubelets && (strings.Contains(line, "KUBE-") || strings.Contains(line, "kube-proxy") || strings.Contains(line, "kube-ipvs0")) {
			out = append(out, line)
		}
	}
	return out, nil
}

// awaitNoRules waits until nothing of a kube-proxy is left on any node.
func (l *lab) awaitNoRules(t *testing.T) {
	t.Helper()
	eventually(t, 0, "kube-proxy's rules are gone", func() error {
		for node := range nodes {
			if left, err := l.proxyRules(node); err != nil || len(left) > 0 {
				return fmt.Errorf("%s has %q %w", node, left, err)
			}
		}
		return nil
	})
}

// proxyRuns waits until a kube-proxy runs on every node in a mode, and its rules are there and no
// others of its.
func (l *lab) proxyRuns(t *testing.T, mode string) {
	t.Helper()
	eventually(t, 0, "kube-proxy runs in mode "+mode, func() error {
		for node := range nodes {
			if out, err := l.exec(node, l.traffic, "get", "http://127.0.0.1:10249/proxyMode"); err != nil || strings.TrimSpace(out) != mode {
				return fmt.Errorf("%s: mode %q %w", node, out, err)
			}
			rules, err := l.proxyRules(node)
			if err != nil {
				return err
			}
			tables := slices.Contains(rules, "table ip kube-proxy")
			chains := slices.Contains(rules, "chain KUBE-SERVICES")
			if tables != (mode == "nftables") || chains != (mode == "iptables") {
				return fmt.Errorf("%s: rules %q", node, rules)
			}
			if out, err := l.exec(node, l.traffic, "get", "http://127.0.0.1:10256/healthz"); err != nil {
				return fmt.Errorf("%s: health %q %w", node, out, err)
			}
		}
		return nil
	})
}

// proxyMode gives the kube-proxies that run another mode.
func (l *lab) proxyMode(t *testing.T, mode string) {
	t.Helper()
	maps := l.kube.CoreV1().ConfigMaps("kube-system")
	c, err := maps.Get(context.Background(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(c.Data["config.conf"], "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "mode:") {
			lines[i] = "mode: " + mode
		}
	}
	if text := strings.Join(lines, "\n"); text != c.Data["config.conf"] {
		c.Data["config.conf"] = text
		if _, err := maps.Update(context.Background(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		l.mustKubectl(t, "", "rollout", "restart", "-n", "kube-system", "ds/kube-proxy")
	}
	l.mustKubectl(t, "", "rollout", "status", "-n", "kube-system", "ds/kube-proxy", "--timeout=120s")
	l.proxyRuns(t, mode)
}

// kind is who asks whom, by which address.
type kind struct {
	what string
	from *place
	addr string
	echo int32 // TCP
	udp  int32
}

// kinds are the kinds of connections; few leaves out most.
func (p *proxied) kinds(few bool) []kind {
	pod := func(what string, from *place, addr string) kind { return kind{what, from, addr, echoPort, udpPort} }
	np := func(what string, from *place, addr string, port int32) kind {
		return kind{what, from, addr, port + nodeEcho, port + nodeUDP}
	}
	cp, worker1 := p.host("cp", cpAddr), p.host("worker1", worker1Addr)
	out := []kind{
		pod("pod to a Service elsewhere", p.cli1, p.ip2),
		np("client to a node port, backend elsewhere", p.client(1), worker1Addr, nodePort2),
		pod("node to a Service elsewhere", worker1, p.ip2),
		np("pod to a node port of its node, backend elsewhere", p.cli1, worker1Addr, nodePort2),
		np("client to a node port of both", p.client(3), cpAddr, nodePortBoth),
		pod("masqueraded", p.cli1, client1Addr),
	}
	if few {
		return out
	}
	return append(out,
		pod("pod to a pod here", p.cli1, p.srv1.addr),
		pod("pod to a pod elsewhere", p.cli1, p.srv2.addr),
		pod("pod to a Service here", p.cli1, p.ip1),
		pod("pod to a Service of both", p.cli2, p.ip12),
		pod("pod to itself by its Service", p.srv1, p.ip1),
		np("pod to a node port of its node, backend here", p.cli1, worker1Addr, nodePort1),
		np("pod to a node port of another node", p.cli1, cpAddr, nodePort2),
		np("client to a node port, backend here", p.client(1), worker1Addr, nodePort1),
		np("client to a node port, policy Local", p.client(2), worker2Addr, nodePortLocal),
		pod("node to a Service here", worker1, p.ip1),
		pod("node without pods to a Service of both", cp, p.ip12),
		np("node to its own node port, backend elsewhere", worker1, worker1Addr, nodePort2),
	)
}

// opened are connections that are open since a certain time.
type opened struct {
	since          string
	kinds          []kind
	tcp, datagrams []*running
}

// open opens connections of the kinds, and flows of UDP.
func (p *proxied) open(t *testing.T, since string, kinds []kind) *opened {
	t.Helper()
	o := &opened{since: since, kinds: kinds, tcp: make([]*running, len(kinds)), datagrams: make([]*running, len(kinds))}
	for i, w := range kinds {
		o.tcp[i] = w.from.begin(t, "stream", at(w.addr, w.echo), "--every", "100ms")
		o.datagrams[i] = w.from.begin(t, "datagrams", at(w.addr, w.udp), "--every", "100ms")
	}
	return o
}

// alive fails the test for each connection that has ended already.
func (o *opened) alive(t *testing.T, when string) {
	t.Helper()
	for i, w := range o.kinds {
		select {
		case <-o.tcp[i].ended:
			t.Errorf("%s: open since %s, ended %s: %v", w.what, o.since, when, o.tcp[i].seen())
		default:
		}
	}
}

// end looks at them when they have ended: every byte has to be back, and every datagram; it returns
// how many of these are missing, and how many there were. Of one flow a tenth may be missing where
// servers had a processor (ran); else its server's buffer ran over, which round.end counts with all
// others.
func (o *opened) end(t *testing.T, ran bool) (gap float64, lost, sent int) {
	t.Helper()
	for i, w := range o.kinds {
		var s streamResult
		if err := json.Unmarshal([]byte(o.tcp[i].stop()), &s); err != nil || s.Error != "" || s.Received < 10 {
			t.Errorf("%s, TCP, open since %s: %+v %v", w.what, o.since, s, err)
		}
		gap = max(gap, s.GapMS)
		d := result[dialResult](t, o.datagrams[i])
		sent += d.Attempts
		if lost += d.Failed; d.Failed > 0 {
			fmt.Printf("    %s, UDP, open since %s: %d of %d lost: %v\n", w.what, o.since, d.Failed, d.Attempts, d.Errors)
		}
		if d.Attempts < 10 || ran && d.Failed > d.Attempts/10 || d.Failed == d.Attempts {
			t.Errorf("%s, UDP, open since %s: %v", w.what, o.since, d)
		}
	}
	return gap, lost, sent
}

// serversWaited is the longest time since the last call for which a server's process waited for a
// processor (see traffic's waited): the machine's speed, and what else it does.
func (p *proxied) serversWaited(t *testing.T) (longest time.Duration) {
	t.Helper()
	for _, srv := range []*place{p.srv1, p.srv2} {
		out, err := srv.do(srv.traffic, "get", fmt.Sprintf("http://127.0.0.1:%d/waited", httpPort))
		if err != nil {
			t.Fatal(err)
		}
		ms, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Duration(ms)*time.Millisecond)
	}
	return longest
}

// agentCPU is the processor time of a node's agent so far, also before it started again in its own
// place: clock ticks of /proc/PID/stat, of its own and of programs that it ran.
func (p *proxied) agentCPU(t *testing.T, node string) time.Duration {
	t.Helper()
	pid, err := p.agentPID(node)
	if err != nil {
		t.Fatal(err)
	}
	stat := p.must(t, node, "cat", "/proc/"+pid+"/stat")
	f := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	const utime, ticks = 11, 100 // the fields after the name begin with the third; USER_HZ
	sum := 0
	for _, text := range f[utime : utime+4] {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%q: %v", stat, err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}

func (p *proxied) pods() []*place { return []*place{p.srv1, p.srv2, p.cli1, p.cli2} }
