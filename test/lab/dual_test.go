// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// six is the IPv6 address of a machine of a lab of both families, by its IPv4 address: it has the
// same number.
func six(addr string) string {
	net, number, _ := strings.Cut(strings.TrimPrefix(addr, "172.31."), ".")
	return "fd00:172:31:" + net + "::" + number
}

// dual is a lab of both families with a server and a client on each worker, and a Service of both
// families for each server.
type dual struct {
	*space
	srv1, srv2, cli1, cli2 *place // by their IPv6 addresses
	svc1, svc2             *corev1.Service
}

// dualLab is the lab of both families, which startDual starts. Its agents have the cluster from a
// fan-out.
func dualLab() *lab {
	if both == nil {
		both = &lab{name: *dualFlag, bin: all.bin, traffic: all.traffic, tests: 2}
	}
	return both
}

func startDual(t *testing.T) {
	t.Helper()
	if both.name == "" {
		both.name, both.own = fmt.Sprintf("weir-dual-%d", os.Getpid()%1000000), true
		if err := both.up(interrupted, "--ip-family", "dual", "--install-arg=--fanout=always"); err != nil {
			t.Fatal(err)
		}
	}
	if err := both.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func newDual(t *testing.T) *dual {
	t.Helper()
	startDual(t)
	d := &dual{space: both.newSpace(t, "dual")}
	p := d.start(t, d.server("srv1", "worker1", nil), d.server("srv2", "worker2", nil), d.idle("cli1", "worker1", nil), d.idle("cli2", "worker2", nil))
	for _, p := range p {
		a, err := netip.ParseAddr(p.addr6)
		if err != nil || !netip.MustParsePrefix("fd00:10:244::/56").Contains(a) || !netip.MustParsePrefix("10.244.0.0/16").Contains(netip.MustParseAddr(p.addr)) {
			t.Fatalf("%v has the addresses %q and %q", p, p.addr, p.addr6)
		}
	}
	d.srv1, d.srv2, d.cli1, d.cli2 = p[0].six(), p[1].six(), p[2].six(), p[3].six()
	twice := func(s *corev1.Service) {
		policy := corev1.IPFamilyPolicyRequireDualStack
		s.Spec.IPFamilyPolicy = &policy
	}
	d.svc1 = d.service(t, "svc1", map[string]string{"pod": "srv1"}, nodePort1, twice)
	d.svc2 = d.service(t, "svc2", map[string]string{"pod": "srv2"}, nodePort2, twice)
	for _, from := range []*place{d.cli1, d.cli2, d.client6(1)} {
		for port, svc := range map[int32]*corev1.Service{nodePort1: d.svc1, nodePort2: d.svc2} {
			from.soon(t, at(six(cpAddr), port+nodeWho), true)
			from.soon(t, at(cpAddr, port+nodeWho), true)
			if from.pod != "" {
				from.soon(t, at(svc.Spec.ClusterIPs[1], whoPort), true)
			}
		}
	}
	return d
}

func (l *lab) node6(name string) *place { return l.host(name, six(nodes[name])) }

func (l *lab) client6(i int) *place {
	c := l.client(i)
	c.addr = six(c.addr)
	return c
}

// TestDualStack is what the lab of both families shows of IPv6; what is the same for both is tested
// with IPv4 and, packet by packet, in the scenarios.
func TestDualStack(t *testing.T) {
	dualLab().inParallel(t)
	d := newDual(t)
	inside := []*place{d.cli1, d.cli2, d.srv1, d.node6("cp"), d.node6("worker1"), d.node6("worker2")}
	t.Run("pods and nodes", func(t *testing.T) {
		for _, srv := range []*place{d.srv1, d.srv2} {
			for _, from := range inside {
				from.reaches(t, at(srv.addr, whoPort), srv.pod, from.addr)
				from.reaches(t, at(srv.addr, udpPort), srv.pod, from.addr, "--udp")
			}
		}
	})
	t.Run("cluster IPs", func(t *testing.T) {
		for name, svc := range map[string]*corev1.Service{"srv1": d.svc1, "srv2": d.svc2} {
			for _, from := range inside {
				seen := from.addr
				if from.pod == name {
					seen = "" // itself
				}
				from.reaches(t, at(svc.Spec.ClusterIPs[0], whoPort), name, "")
				from.reaches(t, at(svc.Spec.ClusterIPs[1], whoPort), name, seen)
				from.reaches(t, at(svc.Spec.ClusterIPs[1], udpPort), name, seen, "--udp")
			}
		}
	})
	t.Run("DNS", func(t *testing.T) {
		const dns6 = "fd00:10:96::a"
		for kind, want := range map[string]string{"A": d.svc1.Spec.ClusterIPs[0], "AAAA": d.svc1.Spec.ClusterIPs[1]} {
			eventually(t, 0, kind+" of svc1", func() error {
				out, err := d.kubectl("", "exec", "-n", d.ns, "cli1", "--", "dig", "+short", "+tries=1", "@"+dns6, kind, "svc1."+d.ns+".svc.cluster.local")
				if err == nil && strings.TrimSpace(out) != want {
					err = fmt.Errorf("%q, want %s", out, want)
				}
				return err
			})
		}
	})
	t.Run("node ports", d.testNodePorts)
	t.Run("outside", func(t *testing.T) {
		for _, i := range []int{1, 3} {
			client := d.client6(i)
			server := client.begin(t, "server", "--name", "out", "--who", "9301", "--udp", "9302", "--until-stdin-ends")
			d.cli1.reaches(t, at(client.addr, 9301), "out", six(worker1Addr))
			d.cli1.reaches(t, at(client.addr, 9302), "out", six(worker1Addr), "--udp")
			if out, err := d.cli1.do("ping", "-c2", "-W30", client.addr); err != nil {
				t.Errorf("ping of %s: %v", client.addr, out)
			}
			server.stop()
		}
	})
	t.Run("policy", d.testPolicy)
	t.Run("agents end", d.testAgentsEnd)
	t.Run("why on nftables", d.testWhy)
	d.says(t, 0) // agents begin anew after a switch, and are ready once their programs are loaded
}

func (d *dual) testNodePorts(t *testing.T) {
	for _, mode := range []string{"DSR", "Tunnel"} {
		d.patchFelix(t, `{"bpfExternalServiceMode":"`+mode+`"}`, "bpfExternalServiceMode")
		d.client6(1).awaitMode(t, mode, at(six(cpAddr), nodePort2+nodeEcho))
		for _, i := range []int{1, 3} {
			c := d.client6(i)
			for _, node := range nodes {
				c.reaches(t, at(six(node), nodePort1+nodeWho), "srv1", c.addr)
				c.reaches(t, at(six(node), nodePort2+nodeWho), "srv2", c.addr)
				c.reaches(t, at(six(node), nodePort2+nodeUDP), "srv2", c.addr, "--udp")
			}
		}
	}
}

// testPolicy: a rule about IPv6 addresses allows one of two outside clients, on open connections
// too, and says nothing about IPv4.
func (d *dual) testPolicy(t *testing.T) {
	np := at(six(cpAddr), nodePort1+nodeWho)
	open := d.client6(2).begin(t, "stream", at(six(cpAddr), nodePort1+nodeEcho))
	d.policy(t, "p", fmt.Sprintf(`{podSelector: {matchLabels: {pod: srv1}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: %s/128}}, {podSelector: {matchLabels: {pod: cli2}}}]}]}`, six(client1Addr)))
	d.client6(2).soon(t, np, false)
	d.client6(1).reaches(t, np, "srv1", six(client1Addr))
	d.cli2.reaches(t, at(d.srv1.addr, whoPort), "srv1", d.cli2.addr)
	allRefused(t, d.cli1.to(at(d.srv1.addr, whoPort)), d.cli1.to(at(d.svc1.Spec.ClusterIPs[1], whoPort)), d.client(1).to(at(cpAddr, nodePort1+nodeWho)))
	if res := stalled(t, open); res.GapMS < 0 {
		t.Errorf("an open connection goes on against a policy: %+v", res)
	}
	d.noPolicy(t, "p")
	d.client6(2).soon(t, np, true)
}

// testAgentsEnd: connections that are open last while all agents are killed and start again, and
// new ones work meanwhile.
func (d *dual) testAgentsEnd(t *testing.T) {
	streams := []*running{
		d.client6(1).begin(t, "stream", at(six(cpAddr), nodePort2+nodeEcho)),
		d.client6(3).begin(t, "stream", at(six(worker1Addr), nodePort2+nodeEcho)),
		d.cli1.begin(t, "stream", at(d.svc2.Spec.ClusterIPs[1], echoPort)),
		d.node6("cp").begin(t, "stream", at(d.srv1.addr, echoPort)),
	}
	old := map[string]string{}
	for node := range nodes {
		pid, err := d.killAgent(node)
		if err != nil {
			t.Fatal(err)
		}
		old[node] = pid
	}
	d.cli2.reaches(t, at(d.svc1.Spec.ClusterIPs[1], whoPort), "srv1", d.cli2.addr)
	d.agentsReady(t, 0, old)
	d.client6(1).reaches(t, at(six(worker1Addr), nodePort2+nodeWho), "srv2", six(client1Addr))
	for _, s := range streams {
		unbroken(t, s)
	}
	p := d.start(t, d.server("late", "worker1", nil))[0]
	d.cli2.reaches(t, at(p.addr6, whoPort), "late", d.cli2.addr)
}

// testWhy: on nodes with nftables, weir why says of IPv6 what connections show.
func (d *dual) testWhy(t *testing.T) {
	d.patchFelix(t, `{"bpfEnabled":false}`, "bpfEnabled")
	t.Cleanup(func() {
		d.patchFelix(t, `{"bpfEnabled":null}`)
		d.awaitPlane(t, "eBPF")
		d.agentsReady(t, 0, nil)
	})
	d.awaitPlane(t, "nftables")
	d.agentsReady(t, 0, nil)
	const there = "worker1 sent on direct, worker2 delivered local"
	who := at(d.srv2.addr, whoPort)
	d.goes(t, d.cli1, who, "srv2", d.cli1.addr, there)
	d.goes(t, d.cli1, at(d.svc2.Spec.ClusterIPs[1], whoPort), "srv2", d.cli1.addr, there)
	d.goes(t, d.node6("worker1"), who, "srv2", d.node6("worker1").addr, there)
	d.goes(t, d.client6(1), at(six(worker1Addr), nodePort2+nodeWho), "srv2", six(client1Addr), there)
	d.policy(t, "closed", `{podSelector: {matchLabels: {pod: srv2}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli2}}}]}]}`)
	closed := fmt.Sprintf("worker1 sent on direct, worker2 dropped POLICY_INGRESS by default-deny %s/closed ingress", d.ns)
	d.denied(t, d.cli1, who, closed)
	d.denied(t, d.client6(1), at(six(worker1Addr), nodePort2+nodeWho), closed)
	d.noPolicy(t, "closed")
	d.cli1.soon(t, who, true)
}
