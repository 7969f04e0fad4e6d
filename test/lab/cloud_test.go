// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newCloudLab is a lab whose pods have addresses and interfaces of a cloud's CNI plugin, without
// Weir: that of the name given, or one of its own, which is started with args.
func newCloudLab(t *testing.T, name, own, on string, args ...string) *lab {
	t.Helper()
	l := &lab{name: name, bin: all.bin, traffic: all.traffic, tests: 1}
	clouds = append(clouds, l)
	l.inParallel(t)
	if l.name == "" {
		l.name, l.own = fmt.Sprintf("%s-%d", own, os.Getpid()%1000000), true
		if err := l.up(interrupted, append(args, "--on", on, "--no-install")...); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// stays is what the API says of a container that was not started again.
type stays struct {
	uid, container string
	restarts       int32
}

func (s *space) stays(t *testing.T, pods ...*place) map[string]stays {
	t.Helper()
	out := map[string]stays{}
	for _, p := range pods {
		pod, err := s.kube.CoreV1().Pods(s.ns).Get(context.Background(), p.pod, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c := pod.Status.ContainerStatuses[0]
		out[p.pod] = stays{string(pod.UID), c.ContainerID, c.RestartCount}
	}
	return out
}

// onCloud is a lab with the CNI plugin of a cloud and what runs in it. Policies are those of closed
// and cli3: they count for connections that are open, too.
type onCloud struct {
	*space
	srv1, srv2, cli1, cli2, closed, cli3 *place
	svc1, svc2, svc3                     *corev1.Service
	nri                                  bool   // the nodes' container runtime holds pods until their policy is in force
	ipv6                                 bool   // pods, Services and nodes are reached by IPv6; pods have IPv4 for what they send alone
	prefix                               string // of the names of pods that start while Weir runs, and of their figures
}

// nodePort3 is that of svc3.
const nodePort3 = nodePort2 + 10

// newOnCloud starts pods and Services in such a lab of IPv4, newOnCloudOf in one of either family.
func newOnCloud(t *testing.T, l *lab, namespace string) *onCloud {
	t.Helper()
	return newOnCloudOf(t, l, namespace, false)
}

func newOnCloudOf(t *testing.T, l *lab, namespace string, ipv6 bool) *onCloud {
	t.Helper()
	s := l.newSpace(t, namespace)
	p := s.start(t, s.server("srv1", "worker1", nil), s.server("srv2", "worker2", nil), s.idle("cli1", "worker1", nil), s.idle("cli2", "worker2", nil),
		s.server("closed", "worker2", nil), s.idle("cli3", "worker2", nil))
	o := &onCloud{space: s, srv1: p[0], srv2: p[1], cli1: p[2], cli2: p[3], closed: p[4], cli3: p[5], ipv6: ipv6}
	o.svc1 = s.service(t, "svc1", map[string]string{"pod": "srv1"}, nodePort1, nil)
	o.svc2 = s.service(t, "svc2", map[string]string{"pod": "srv2"}, nodePort2, nil)
	o.svc3 = s.service(t, "svc3", map[string]string{"pod": "closed"}, nodePort3, nil)
	for _, client := range []int{1, 3} {
		l.client(client).begin(t, "server", "--until-stdin-ends", fmt.Sprintf("--who=%d", whoPort), fmt.Sprintf("--udp=%d", udpPort), fmt.Sprintf("--echo=%d", echoPort))
	}
	return o
}

// in is an address of a machine in the family of the cluster.
func (o *onCloud) in(addr string) string {
	if o.ipv6 {
		return six(addr)
	}
	return addr
}

func (o *onCloud) client(i int) *place {
	c := o.lab.client(i)
	c.addr = o.in(c.addr)
	return c
}

func (o *onCloud) pods() []*place {
	return []*place{o.srv1, o.srv2, o.cli1, o.cli2, o.closed, o.cli3}
}

// kept ends connections that are open since before, and looks whether pods are what they were.
func (o *onCloud) kept(t *testing.T, before map[string]stays, open []*running) {
	t.Helper()
	restarted, lost := 0, 0
	for name, is := range o.stays(t, o.pods()...) {
		if is != before[name] {
			restarted++
			t.Errorf("pod %s is %+v, was %+v", name, is, before[name])
		}
	}
	for _, r := range open {
		if res := unbroken(t, r); res.Error != "" {
			lost++
		}
	}
	note(t, "pods restarted", float64(restarted))
	note(t, "open connections lost", float64(lost))
}

// nothingOfWeir is left on a node.
func (l *lab) nothingOfWeir(t *testing.T, node string) {
	t.Helper()
	if out := l.must(t, node, "sh", "-c", "ip -o link show | grep -c -e weir -e bpf || true"); strings.TrimSpace(out) != "0" {
		t.Errorf("%s has devices of Weir: %s", node, out)
	}
}

func (o *onCloud) services(t *testing.T) {
	for _, from := range []*place{o.cli1, o.cli2, o.srv1, o.srv2} {
		for svc, to := range map[*corev1.Service]*place{o.svc1: o.srv1, o.svc2: o.srv2} {
			from.soon(t, at(svc.Spec.ClusterIP, whoPort), true)
			seen := from.addr
			if from == to {
				seen = "" // a Service that leads back to its client has an address of Weir's choice
			}
			from.reaches(t, at(svc.Spec.ClusterIP, whoPort), to.pod, seen)
			from.reaches(t, at(svc.Spec.ClusterIP, udpPort), to.pod, seen, "--udp")
		}
	}
	o.host("worker1", worker1Addr).reaches(t, at(o.svc2.Spec.ClusterIP, whoPort), "srv2", "")
}

// nodePorts of all nodes, for a machine of the VPC and one outside: backends have addresses of both
// interfaces, and answers leave by the interface whose address they bear.
func (o *onCloud) nodePorts(t *testing.T) {
	for _, from := range []*place{o.client(1), o.client(3)} {
		for _, node := range nodes {
			from.soon(t, at(o.in(node), nodePort1+nodeWho), true)
			from.reaches(t, at(o.in(node), nodePort1+nodeWho), "srv1", from.addr)
			from.reaches(t, at(o.in(node), nodePort2+nodeWho), "srv2", from.addr)
			from.reaches(t, at(o.in(node), nodePort1+nodeUDP), "srv1", from.addr, "--udp")
			from.reaches(t, at(o.in(node), nodePort2+nodeUDP), "srv2", from.addr, "--udp")
		}
	}
}

// check switches the source/destination check of all nodes' primary interfaces.
func (o *onCloud) check(t *testing.T, on int) {
	t.Helper()
	if o.ipv6 {
		o.must(t, "switch", "nft", map[int]string{0: "flush chain ip6 vpc sources", 1: "add rule ip6 vpc sources iifname != br1 ip6 saddr != fe80::/10 fib saddr . iif oif 0 drop"}[on])
		return
	}
	for node := range nodes {
		o.must(t, "switch", "sh", "-ec", fmt.Sprintf("echo %d > /proc/sys/net/ipv4/conf/%s/rp_filter", on, node))
	}
}

// direct: where the source/destination check is off, nodes answer clients of other nodes' ports
// directly; where it is on, the network drops these answers.
func (o *onCloud) direct(t *testing.T) {
	o.check(t, 0)
	defer o.check(t, 1)
	o.patchFelix(t, `{"bpfExternalServiceMode":"DSR"}`, "bpfExternalServiceMode")
	o.client(1).awaitMode(t, "DSR", at(o.in(cpAddr), nodePort2+nodeEcho))
	o.nodePorts(t)
	o.check(t, 1)
	allRefused(t, o.client(1).to(at(o.in(cpAddr), nodePort2+nodeWho)), o.client(3).to(at(o.in(worker2Addr), nodePort1+nodeWho)))
	o.client(1).reaches(t, at(o.in(worker2Addr), nodePort2+nodeWho), "srv2", o.in(client1Addr)) // on its own node
	if out, code := o.weir(t, "patch", "felixconfiguration", "default", "--patch", `{"spec":{"bpfExternalServiceMode":"Tunnel"}}`); code != 0 {
		t.Fatal(out)
	}
	o.client(1).soon(t, at(o.in(cpAddr), nodePort2+nodeWho), true)
}

func (o *onCloud) policies(t *testing.T) {
	closed := at(o.closed.addr, whoPort)
	o.policy(t, "only-cli1", `{podSelector: {matchLabels: {pod: closed}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}]}]}`)
	o.srv1.soon(t, closed, false)
	o.cli1.reaches(t, closed, "closed", o.cli1.addr)
	o.cli1.reaches(t, at(o.svc3.Spec.ClusterIP, whoPort), "closed", o.cli1.addr)
	allRefused(t, o.srv1.to(at(o.svc3.Spec.ClusterIP, whoPort)), o.cli2.to(closed), o.client(1).to(closed),
		o.client(1).to(at(o.in(cpAddr), nodePort3+nodeWho)), o.client(3).to(at(o.in(worker2Addr), nodePort3+nodeWho)))
	o.host("worker2", worker2Addr).reaches(t, closed, "closed", "") // as the kubelet's probes
	o.policy(t, "no-way-out", `{podSelector: {matchLabels: {pod: cli3}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: srv1}}}]}]}`)
	o.cli3.soon(t, at(o.in(client3Addr), whoPort), false)
	allRefused(t, o.cli3.to(at(o.in(client1Addr), whoPort)), o.cli3.to(at(o.in(client3Addr), whoPort)))
	o.cli3.reaches(t, at(o.srv1.addr, whoPort), "srv1", o.cli3.addr)
	if o.ipv6 {
		o.egressIPv4(t)
	}
}

// egressIPv4: policy binds what pods send by IPv4, too, for which they have an interface of their
// own.
func (o *onCloud) egressIPv4(t *testing.T) {
	one := at(client1Addr, whoPort)
	allRefused(t, o.cli3.to(one), o.cli3.to(at(client1Addr, udpPort), "--udp"))
	o.policy(t, "no-way-out", `{podSelector: {matchLabels: {pod: cli3}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: srv1}}}]}, {to: [{ipBlock: {cidr: `+client1Addr+`/32}}]}]}`)
	o.cli3.soon(t, one, true)
	o.cli3.reaches(t, one, "", worker2Addr)
	o.cli3.reaches(t, at(client1Addr, udpPort), "", worker2Addr, "--udp")
	open := o.cli3.begin(t, "stream", at(client1Addr, echoPort))
	o.policy(t, "no-way-out", `{podSelector: {matchLabels: {pod: cli3}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: srv1}}}]}]}`)
	o.cli3.soon(t, one, false)
	if res := stalled(t, open); res.GapMS < 0 {
		t.Errorf("an open connection by IPv4 goes on against a policy: %+v", res)
	}
}

// reasons: weir why agrees with the policies of the test before, and takes them away.
func (o *onCloud) reasons(t *testing.T) {
	closed := at(o.closed.addr, whoPort)
	for _, q := range []struct {
		code int
		from *place
		to   string
	}{
		{0, o.cli1, closed}, {1, o.srv1, closed}, {1, o.cli3, at(o.in(client3Addr), whoPort)},
		{0, o.cli1, at(o.in(client3Addr), whoPort)}, {0, o.client(1), at(o.in(worker1Addr), nodePort1+nodeWho)}, {1, o.client(1), at(o.in(cpAddr), nodePort3+nodeWho)},
	} {
		o.why(t, q.code, q.from, q.to)
	}
	o.noPolicy(t, "only-cli1")
	o.noPolicy(t, "no-way-out")
	o.srv1.soon(t, closed, true)
	o.cli3.soon(t, at(o.in(client3Addr), whoPort), true)
}

// startTime starts some pods one after the other, notes how long that takes, and returns the last
// one.
func (o *onCloud) startTime(t *testing.T, name, what string) (last *place) {
	t.Helper()
	const times = 5
	var took []float64
	for i := range times {
		began := time.Now()
		last = o.start(t, o.server(fmt.Sprintf("%s-%d", name, i), "worker1", nil))[0]
		took = append(took, time.Since(began).Seconds())
	}
	note(t, what, percentile(took, 0.5))
	return last
}

// newPods start while Weir runs. Those that a policy isolates ask from their first moment on for
// what they may not have.
func (o *onCloud) newPods(t *testing.T) {
	n := o.startTime(t, o.prefix+"srv3", o.prefix+"start of a pod until it is ready: median (s)")
	o.cli2.reaches(t, at(n.addr, whoPort), n.pod, o.cli2.addr)
	n.reaches(t, at(o.svc2.Spec.ClusterIP, whoPort), "srv2", n.addr)

	o.policy(t, "isolated", `{podSelector: {matchLabels: {isolated: "yes"}}, policyTypes: [Egress]}`)
	const each, every = 200, 20 * time.Millisecond
	const count = 20
	var names []string
	byIPv4 := map[string]bool{}
	for i := range count + 2 {
		name, labels := fmt.Sprintf("%sasks-%d", o.prefix, i), map[string]string{"isolated": "yes"}
		if i >= count { // which show that there is an answer to be had
			name, labels = fmt.Sprintf("%sasks-free-%d", o.prefix, i), nil
		}
		names = append(names, name)
		to := at(o.srv2.addr, whoPort)
		if o.ipv6 && i%4 >= 2 {
			to, byIPv4[name] = at(client1Addr, whoPort), true
		}
		o.create(t, o.podSpec(name, []string{"worker1", "worker2"}[i%2], []string{"/t/" + filepath.Base(o.traffic), "dial", to,
			"--count", fmt.Sprint(each), "--every", every.String(), "--timeout", "1s"}, labels))
	}
	o.exitCodes(t, len(names), o.prefix+"asks-")
	var without, isolated, four []float64
	for _, name := range names {
		var r dialResult
		raw := o.mustKubectl(t, "", "logs", "-n", o.ns, name)
		if err := json.Unmarshal([]byte(raw), &r); err != nil || r.Attempts != each {
			t.Fatalf("%s says %s: %v", name, raw, err)
		}
		had := float64(r.Attempts-r.Failed) * float64(every.Milliseconds())
		if strings.HasPrefix(name, o.prefix+"asks-free-") {
			isolated = append(isolated, float64(r.Failed)*float64(every.Milliseconds()))
			if had == 0 {
				t.Errorf("%s, which no policy isolates, has no answer: %v", name, r)
			}
			continue
		}
		if byIPv4[name] && o.prefix == "" { // eBPF has no rule for interfaces that it does not know yet
			four = append(four, had)
			continue
		}
		without = append(without, had)
		if had > 0 {
			t.Errorf("%s had %d answers before its policy was in force", name, r.Attempts-r.Failed)
		}
	}
	o.noPolicy(t, "isolated")
	note(t, o.prefix+"time without policy of a new pod: p99 (ms)", percentile(without, 0.99))
	if len(four) > 0 {
		note(t, "time without policy of a new pod by egress-cni: max (ms)", percentile(four, 1))
	}
	note(t, o.prefix+"time until a new pod without policy has a network: max (ms)", percentile(isolated, 1))
	if o.nri {
		o.held(t, percentile(isolated, 1))
	}
}

// onNFTables is all of that on the nftables data plane. Connections that translation and the
// network's source NAT are about are open when nodes go over to it, and back.
func (o *onCloud) onNFTables(t *testing.T, network func(*testing.T)) {
	open := []*running{o.client(3).begin(t, "stream", at(o.in(cpAddr), nodePort1+nodeEcho)), o.client(3).begin(t, "stream", at(o.in(worker1Addr), nodePort1+nodeEcho)),
		o.client(1).begin(t, "stream", at(o.in(worker2Addr), nodePort2+nodeEcho)), o.cli1.begin(t, "stream", at(o.svc2.Spec.ClusterIP, echoPort)),
		o.cli2.begin(t, "stream", at(o.svc2.Spec.ClusterIP, echoPort))}
	o.patchFelix(t, `{"bpfEnabled":false}`, "bpfEnabled")
	o.awaitPlane(t, "nftables")
	o.agentsReady(t, 0, nil)
	o.prefix = "nft-"
	defer func() { o.prefix = "" }()
	t.Run("pods and Services", o.services)
	t.Run("network", network)
	t.Run("node ports", o.nodePorts)
	t.Run("DSR", o.direct)
	t.Run("policy", o.policies)
	t.Run("why", o.reasons)
	t.Run("new pods", o.newPods)
	o.patchFelix(t, `{"bpfEnabled":true}`, "bpfEnabled")
	o.awaitPlane(t, "eBPF")
	o.agentsReady(t, 0, nil)
	network(t)
	o.nodePorts(t)
	for _, s := range open {
		unbroken(t, s)
	}
}

// held checks that the container runtime held these pods until their policy was in force: if it
// held each, none began without a network.
func (o *onCloud) held(t *testing.T, without float64) {
	o.mustKubectl(t, "", "patch", "felixconfiguration", "default", "--type=merge", "-p", `{"spec":{"prometheusMetricsEnabled":true}}`)
	var ready, late float64
	for _, node := range []string{"worker1", "worker2"} {
		eventually(t, 10*time.Second, "metrics of "+node, func() error {
			_, err := o.exec(node, o.traffic, "get", "http://127.0.0.1:9091/metrics")
			return err
		})
		all := o.metrics(t, node)
		if all["weir_nri_connected"] != 1 {
			t.Errorf("%s: the agent does not hold the start of pods", node)
		}
		ready += all[`weir_nri_pod_held_seconds_count{result="ready"}`]
		late += all[`weir_nri_pod_held_seconds_count{result="late"}`]
	}
	note(t, o.prefix+"pods that were held until their policy was in force", ready)
	note(t, o.prefix+"pods that were held, and started before it was", late)
	if ready == 0 || late == 0 && without > 0 {
		t.Errorf("%v pods were held until they had a network, %v were not; one was without for %v ms", ready, late, without)
	}
}
