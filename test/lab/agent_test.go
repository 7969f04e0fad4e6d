// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const weirNamespace = "kube-system"

// agentPod is the pod of a node's agent, the newest when there are two.
func (l *lab) agentPod(node string) (*corev1.Pod, error) {
	list, err := l.kube.CoreV1().Pods(weirNamespace).List(context.Background(), metav1.ListOptions{
		LabelSelector: "k8s-app=weir-node", FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	var newest *corev1.Pod
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil && (newest == nil || newest.CreationTimestamp.Before(&p.CreationTimestamp)) {
			newest = p
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("node %s has no agent", node)
	}
	return newest, nil
}

// agentPID is the agent's process on a node.
func (l *lab) agentPID(node string) (string, error) {
	p, err := l.agentPod(node)
	if err != nil {
		return "", err
	}
	if len(p.Status.ContainerStatuses) == 0 {
		return "", fmt.Errorf("the agent of %s was not started", node)
	}
	return l.containerPID(node, p.Status.ContainerStatuses[0].ContainerID)
}

// killAgent kills the agent's process and returns its number.
func (l *lab) killAgent(node string) (string, error) {
	pid, err := l.agentPID(node)
	if err != nil {
		return "", err
	}
	_, err = l.exec(node, "kill", "-KILL", pid)
	return pid, err
}

// fresh replaces an agent's pod: kubelet waits longer each time that a container ends.
func (l *lab) fresh(node string) error {
	p, err := l.agentPod(node)
	if err != nil {
		return err
	}
	now := int64(0)
	return l.kube.CoreV1().Pods(weirNamespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

// agentsReady waits until every node has an agent that is ready and not among the given processes.
func (l *lab) agentsReady(t *testing.T, limit time.Duration, old map[string]string) {
	t.Helper()
	eventually(t, limit, "agents ready", func() error {
		for node := range nodes {
			p, err := l.agentPod(node)
			if err != nil {
				return err
			}
			if !isReady(p) {
				return fmt.Errorf("the agent of %s is not ready", node)
			}
			pid, err := l.agentPID(node)
			if err != nil {
				return err
			}
			if pid == old[node] {
				return fmt.Errorf("the agent of %s is still process %s", node, pid)
			}
			if out, err := l.exec(node, l.traffic, "get", "http://127.0.0.1:9099/readiness"); err != nil {
				return fmt.Errorf("the agent of %s: %w %s", node, err, out)
			}
		}
		return nil
	})
}

// metrics reads the agent's metrics of a node: name{labels} → value.
func (l *lab) metrics(t *testing.T, node string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for s := bufio.NewScanner(strings.NewReader(l.must(t, node, l.traffic, "get", "http://127.0.0.1:9091/metrics"))); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), "} "); ok {
			name += "}"
			out[name], _ = strconv.ParseFloat(value, 64)
		} else if name, value, ok := strings.Cut(s.Text(), " "); ok && !strings.HasPrefix(name, "#") {
			out[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return out
}

// enableMetrics switches metrics on for the whole run.
var enableMetrics = sync.OnceFunc(func() {
	_, _ = all.kubectl("", "patch", "felixconfiguration", "default", "--type=merge", "-p", `{"spec":{"prometheusMetricsEnabled":true}}`)
})

// drops counts packets that a node dropped for a reason, by rules whose words contain rule.
func (l *lab) drops(t *testing.T, node, reason, rule string) float64 {
	t.Helper()
	l.metricsOn(t, node)
	sum := 0.0
	for name, v := range l.metrics(t, node) {
		if strings.HasPrefix(name, "weir_dropped_packets_total") && strings.Contains(name, `reason="`+reason+`"`) && strings.Contains(name, rule) {
			sum += v
		}
	}
	return sum
}

func (l *lab) metricsOn(t *testing.T, node string) {
	t.Helper()
	enableMetrics()
	eventually(t, 10*time.Second, "metrics of "+node, func() error {
		_, err := l.exec(node, l.traffic, "get", "http://127.0.0.1:9091/metrics")
		return err
	})
}

// load is traffic of all kinds that must not notice anything.
type load struct {
	*base
	began                     time.Time
	full                      int // packets that the machine had dropped before
	streams, dials, datagrams []*running
}

func (b *base) load(t *testing.T) *load {
	t.Helper()
	np := func(port int32) string { return at(cpAddr, nodePort2+port) }
	l := b.beginLoad(t)
	l.streams = []*running{
		b.client(1).begin(t, "stream", np(nodeEcho)),
		b.cli1.begin(t, "stream", at(b.svc2, echoPort)),
		b.cli1.begin(t, "stream", at(b.srv1.addr, echoPort)),
	}
	l.dials = []*running{
		b.client(1).begin(t, "dial", np(nodeWho)),
		b.cli1.begin(t, "dial", at(b.svc2, whoPort)),
	}
	l.datagrams = []*running{
		b.client(1).begin(t, "datagrams", np(nodeUDP)),
		b.cli1.begin(t, "datagrams", at(b.svc2, udpPort)),
	}
	return l
}

// beginLoad is a load of nothing yet: what is begun after it is held against what the machine
// drops.
func (b *base) beginLoad(t *testing.T) *load {
	t.Helper()
	return &load{base: b, began: time.Now(), full: b.machineDrops(t, b.pods()...)}
}

// unnoticed ends the load and fails the test for everything that was lost. Where the machine has
// other work (no -judge), what it dropped itself, and a share of all, are not counted: it holds
// everything up for a second, which sends a SYN again whose answer is in flight.
func (l *load) unnoticed(t *testing.T) {
	t.Helper()
	gap, attempts, slowest, datagrams := 0.0, 0, 0.0, 0
	late := control.since(l.began, 1)
	stopAll(l.streams, l.dials, l.datagrams)
	full := l.machineDrops(t, l.pods()...) - l.full
	note(t, "lateness of the machine: max (ms)", late)
	note(t, "packets dropped by full queues and buffers of the machine", float64(full))
	excused := func(n, of int) bool { return !*strictTiming && n <= full+int(busyShare*float64(of)) }
	for _, r := range l.streams {
		gap = max(gap, unbroken(t, r).GapMS)
	}
	for _, r := range l.dials {
		res := result[dialResult](t, r)
		attempts += res.Attempts
		slowest = max(slowest, res.MaxMS)
		slow := res.Slow > 0 && !excused(res.Slow, res.Attempts) && (late < 200 || !*strictTiming)
		if res.Failed > 0 || slow || res.Attempts < 20 {
			t.Errorf("%s: %v", r.what, res)
		}
	}
	for _, r := range l.datagrams {
		res := result[dialResult](t, r)
		datagrams += res.Attempts
		if res.Failed > 0 && !excused(res.Failed, res.Attempts) || res.Attempts < 20 {
			t.Errorf("%s: %v", r.what, res)
		}
	}
	note(t, "connections", float64(attempts))
	note(t, "datagrams", float64(datagrams))
	note(t, "slowest connection (ms)", slowest)
	note(t, "longest gap of a stream (ms)", gap)
}

func TestAgentKilledUnderTraffic(t *testing.T) {
	b := sharedBase(t)
	for node := range nodes {
		b.metricsOn(t, node)
	}
	l := b.load(t)
	time.Sleep(time.Second)
	old := map[string]string{}
	var before, after string
	// On a busy machine a probe of some pod may fail meanwhile, and then there is something to
	// write: once more.
	for tries := 0; tries == 0 || before != after && tries < 4; tries++ {
		before = b.endpointVersions(t)
		for node := range nodes {
			pid, err := b.killAgent(node)
			if err != nil {
				t.Fatalf("kill the agent of %s: %v", node, err)
			}
			old[node] = pid
		}
		b.agentsReady(t, 60*time.Second, old)
		time.Sleep(2 * time.Second)
		after = b.endpointVersions(t)
	}
	l.unnoticed(t)
	if before != after {
		t.Fatalf("endpoints change all the time: %s, then %s", before, after)
	}
	for node := range nodes {
		b.metricsOn(t, node)
		n := b.metrics(t, node)["weir_dataplane_writes_total"]
		note(t, "writes of the new agent of "+node, n)
		if n != 0 && b.endpointVersions(t) == after {
			t.Errorf("the new agent of %s wrote %v entries, and nothing had changed", node, n)
		}
	}
}

// endpointVersions is other text when any EndpointSlice has changed.
func (l *lab) endpointVersions(t *testing.T) string {
	t.Helper()
	list, err := l.kube.DiscoveryV1().EndpointSlices("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range list.Items {
		all = append(all, s.Namespace+"/"+s.Name+" "+s.ResourceVersion)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// rolledOut waits until every agent is of the DaemonSet's present template. Where that does not
// happen, it says what the DaemonSet, its pods and the events are.
func (l *lab) rolledOut(t *testing.T) {
	t.Helper()
	out, err := l.kubectl("", "rollout", "status", "-n", weirNamespace, "daemonset/weir-node", "--timeout=300s")
	if err == nil {
		return
	}
	for _, args := range [][]string{
		{"get", "ds", "weir-node", "-o", "yaml"},
		{"get", "pods", "-l", "k8s-app=weir-node", "-o", "wide"},
		{"describe", "pods", "-l", "k8s-app=weir-node"},
		{"get", "events", "--sort-by=.lastTimestamp"},
	} {
		state, err := l.kubectl("", append(args, "-n", weirNamespace)...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, state)
	}
	t.Fatalf("the DaemonSet is not rolled out: %v: %s", err, out)
}

// TestRolloutUnderTraffic rolls the DaemonSet out right after an agent became ready again: a
// rollout that waits for a time after that (minReadySeconds) can then stop for ever.
func TestRolloutUnderTraffic(t *testing.T) {
	b := sharedBase(t)
	pid, err := b.killAgent("worker1")
	if err != nil {
		t.Fatal(err)
	}
	b.agentsReady(t, 60*time.Second, map[string]string{"worker1": pid})
	l := b.load(t)
	began := time.Now()
	b.mustKubectl(t, "", "rollout", "restart", "-n", weirNamespace, "daemonset/weir-node")
	b.rolledOut(t)
	note(t, "rollout (s)", time.Since(began).Seconds())
	l.unnoticed(t)
}

// TestModeChange changes the path of the answers under open connections, by the resource and by the
// DaemonSet's environment.
func TestModeChange(t *testing.T) {
	b := sharedBase(t)
	b.awaitMode(t, "Tunnel")
	first := b.client(1).begin(t, "stream", at(cpAddr, nodePort2+nodeEcho))
	udp := b.client(2).begin(t, "datagrams", at(cpAddr, nodePort2+nodeUDP))
	b.patchFelix(t, `{"bpfExternalServiceMode":"DSR"}`, "bpfExternalServiceMode")
	b.awaitMode(t, "DSR")
	second := b.client(2).begin(t, "stream", at(cpAddr, nodePort2+nodeEcho))
	b.patchFelix(t, `{"bpfExternalServiceMode":"Tunnel"}`)
	b.awaitMode(t, "Tunnel")
	set := func(value string) {
		b.mustKubectl(t, "", "set", "env", "-n", weirNamespace, "ds/weir-node", "FELIX_BPFExternalServiceMode"+value)
		b.rolledOut(t)
	}
	t.Cleanup(func() {
		_, _ = b.kubectl("", "set", "env", "-n", weirNamespace, "ds/weir-node", "FELIX_BPFExternalServiceMode-")
		b.rolledOut(t)
	})
	set("=dsr")
	b.awaitMode(t, "DSR")
	unbroken(t, first)
	unbroken(t, second)
	if r := result[dialResult](t, udp); *strictTiming && r.Failed > 0 || r.Failed > r.Attempts/50 {
		t.Errorf("datagrams were lost: %v", r)
	}
}

func TestStatus(t *testing.T) {
	figures.begin(t)
	eventually(t, 60*time.Second, "weir status is content", func() error {
		if out, code := all.weir(t, "status"); code != 0 || !strings.Contains(out, "healthy on 3 of 3") {
			return fmt.Errorf("code %d: %s", code, out)
		}
		return nil
	})
	// The agent of one node is away: the DaemonSet passes the node by.
	all.mustKubectl(t, "", "patch", "-n", weirNamespace, "ds/weir-node", "--type=merge", "-p",
		`{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"NotIn","values":["worker2"]}]}]}}}}}}}`)
	t.Cleanup(func() {
		all.mustKubectl(t, "", "patch", "-n", weirNamespace, "ds/weir-node", "--type=json", "-p", `[{"op":"remove","path":"/spec/template/spec/affinity"}]`)
		all.rolledOut(t)
		all.agentsReady(t, 60*time.Second, nil)
	})
	eventually(t, 60*time.Second, "weir status names the node without agent", func() error {
		out, code := all.weir(t, "status")
		if code != 1 || !strings.Contains(out, "node worker2 is") {
			return fmt.Errorf("code %d: %s", code, out)
		}
		return nil
	})
}
