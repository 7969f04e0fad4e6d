// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestPodNetwork(t *testing.T) {
	b := sharedBase(t)
	t.Run("pod to pod", func(t *testing.T) {
		b.cli1.reaches(t, at(b.srv1.addr, whoPort), "srv1", b.cli1.addr)
		b.cli1.reaches(t, at(b.srv2.addr, whoPort), "srv2", b.cli1.addr)
		b.cli1.reaches(t, at(b.srv2.addr, udpPort), "srv2", b.cli1.addr, "--udp")
		b.srv1.reaches(t, at(b.srv1.addr, whoPort), "srv1", b.srv1.addr)
	})
	t.Run("own node and others", func(t *testing.T) {
		for node, addr := range nodes {
			server := b.host(node, addr).begin(t, "server", "--name", node, "--who", "9301", "--udp", "9302", "--until-stdin-ends")
			seen := worker1Addr // another node sees the pod's node: the pod's address leaves the pools
			if node == "worker1" {
				seen = b.cli1.addr
			}
			b.cli1.reaches(t, at(addr, 9301), node, seen)
			b.cli1.reaches(t, at(addr, 9302), node, seen, "--udp")
			server.stop()
		}
	})
	t.Run("host to pod", func(t *testing.T) {
		for node, addr := range nodes {
			for _, srv := range []*place{b.srv1, b.srv2} {
				b.host(node, addr).reaches(t, at(srv.addr, whoPort), srv.pod, addr)
				b.host(node, addr).reaches(t, at(srv.addr, udpPort), srv.pod, addr, "--udp")
			}
		}
	})
	t.Run("API server", func(t *testing.T) {
		for _, url := range []string{"https://10.96.0.1/livez", "https://kubernetes.default/livez", "https://kubernetes.default.svc.cluster.local/livez"} {
			eventually(t, 0, "pod fetches "+url, func() error {
				if out, err := b.kubectl("", "exec", "-n", b.ns, "cli1", "--", "/t/traffic", "get", url); err != nil || strings.TrimSpace(out) != "ok" {
					return fmt.Errorf("%q %w", out, err)
				}
				return nil
			})
		}
	})
	t.Run("outside", func(t *testing.T) {
		for i := 1; i <= 3; i += 2 {
			client := b.client(i)
			server := client.begin(t, "server", "--name", "out", "--who", "9301", "--udp", "9302", "--until-stdin-ends")
			b.cli1.reaches(t, at(client.addr, 9301), "out", worker1Addr)
			b.cli1.reaches(t, at(client.addr, 9302), "out", worker1Addr, "--udp")
			if out, err := b.cli1.do("ping", "-c2", "-W30", client.addr); err != nil {
				t.Errorf("ping of %s: %v", client.addr, out)
			}
			server.stop()
		}
	})
	t.Run("spoofed source", func(t *testing.T) {
		before := b.drops(t, "worker1", "SPOOFED", "")
		if out, err := b.cli1.do("ip", "address", "add", "10.244.99.99/32", "dev", "eth0"); err != nil {
			t.Fatalf("add an address: %v %s", err, out)
		}
		if out, err := b.cli1.do("ping", "-c3", "-i0.2", "-W1", "-I", "10.244.99.99", b.srv2.addr); err == nil {
			t.Errorf("a pod reaches others with a foreign address: %s", out)
		}
		_, _ = b.cli1.do("ip", "address", "delete", "10.244.99.99/32", "dev", "eth0")
		if n := b.drops(t, "worker1", "SPOOFED", "") - before; n < 3 {
			t.Errorf("%v packets are counted as spoofed, want 3", n)
		}
	})
}

// TestProbes: with a policy that denies all, kubelet's probes pass and others do not.
func TestProbes(t *testing.T) {
	all.inParallel(t)
	figures.begin(t)
	s := all.newSpace(t, "probes")
	s.mustKubectl(t, denyAll, "apply", "-n", s.ns, "-f", "-")
	tcp := s.server("tcp", "worker1", nil)
	// A busy machine answers late; a probe that is dropped is never answered.
	tcp.Spec.Containers[0].ReadinessProbe.TimeoutSeconds = 5
	tcp.Spec.Containers[0].ReadinessProbe.ProbeHandler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(whoPort)}}
	tcp.Spec.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3, TimeoutSeconds: 5,
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(httpPort)}}}
	p := s.start(t, s.server("web", "worker2", nil), tcp, s.idle("cli", "worker1", nil))
	cp := s.host("cp", cpAddr)
	allRefused(t, p[2].to(at(p[0].addr, whoPort)), p[2].to(at(p[1].addr, whoPort)), cp.to(at(p[0].addr, whoPort)), cp.to(at(p[1].addr, whoPort)))
	time.Sleep(20 * time.Second) // several probes, and their time-outs if they had any
	for _, name := range []string{"web", "tcp"} {
		out := s.mustKubectl(t, "", "get", "pod", "-n", s.ns, name, "-o", "jsonpath={.status.containerStatuses[0].ready} {.status.containerStatuses[0].restartCount}")
		if out != "true 0" {
			t.Errorf("pod %s: ready and restarts are %q: %v", name, out, s.events(name))
		}
	}
}

const denyAll = `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"deny-all"},"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`

func TestServices(t *testing.T) {
	b := sharedBase(t)
	inside := []*place{b.cli1, b.cli2, b.srv1, b.host("cp", cpAddr), b.host("worker1", worker1Addr), b.host("worker2", worker2Addr)}
	clusterIPs := func(t *testing.T) {
		for _, from := range inside {
			for _, svc := range []struct{ ip, name string }{{b.svc1, "srv1"}, {b.svc2, "srv2"}} {
				seen := from.addr
				if from.pod == svc.name {
					seen = "" // itself, or its node where a packet of its own could not come back in
				}
				from.reaches(t, at(svc.ip, whoPort), svc.name, seen)
				from.reaches(t, at(svc.ip, udpPort), svc.name, seen, "--udp")
			}
		}
	}
	t.Run("connect-time load balancing", func(t *testing.T) {
		for _, mode := range []string{"Enabled", "Disabled", "TCP"} {
			t.Run(mode, func(t *testing.T) {
				b.patchFelix(t, `{"bpfConnectTimeLoadBalancing":"`+mode+`"}`, "bpfConnectTimeLoadBalancing")
				want := at(b.srv2.addr, whoPort)
				if mode == "Disabled" {
					want = at(b.svc2, whoPort)
				}
				eventually(t, 10*time.Second, "the mode", func() error {
					for _, from := range inside[:2] {
						if r := from.dial(t, at(b.svc2, whoPort), 1); len(r.Peers) != 1 || r.Peers[0] != want {
							return fmt.Errorf("the kernel connects %v to %v, want %s: %v", from, r.Peers, want, r)
						}
					}
					return nil
				})
				clusterIPs(t)
			})
		}
	})
	t.Run("node ports", func(t *testing.T) {
		for _, mode := range []string{"DSR", "Tunnel"} {
			t.Run(mode, func(t *testing.T) {
				b.patchFelix(t, `{"bpfExternalServiceMode":"`+mode+`"}`, "bpfExternalServiceMode")
				b.awaitMode(t, mode)
				for i := 1; i <= 3; i++ {
					c := b.client(i)
					for _, node := range nodes {
						c.reaches(t, at(node, nodePort1+nodeWho), "srv1", c.addr)
						c.reaches(t, at(node, nodePort2+nodeWho), "srv2", c.addr)
						c.reaches(t, at(node, nodePort2+nodeUDP), "srv2", c.addr, "--udp")
					}
				}
				for _, from := range inside {
					from.reaches(t, at(cpAddr, nodePort2+nodeWho), "srv2", "")
					from.reaches(t, at(worker2Addr, nodePort1+nodeUDP), "srv1", "", "--udp")
				}
			})
		}
	})
	t.Run("load balancer", func(t *testing.T) {
		const vip = "192.0.2.10"
		s := b.service(t, "lb", map[string]string{"pod": "srv2"}, 0, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
		b.mustKubectl(t, "", "patch", "service", "-n", b.ns, s.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"`+vip+`"}]}}}`)
		b.must(t, "client1", "ip", "route", "replace", vip+"/32", "via", cpAddr)
		t.Cleanup(func() { _, _ = b.exec("client1", "ip", "route", "delete", vip+"/32") })
		c := b.client(1)
		eventually(t, 5*time.Second, "the address", func() error {
			if r := c.dial(t, at(vip, whoPort), 1); r.Failed > 0 {
				return fmt.Errorf("%v", r)
			}
			return nil
		})
		c.reaches(t, at(vip, whoPort), "srv2", client1Addr)
		c.reaches(t, at(vip, udpPort), "srv2", client1Addr, "--udp")
		b.cli1.reaches(t, at(vip, whoPort), "srv2", b.cli1.addr)
	})
}

// awaitMode waits until new connections of client1 by the control-plane node take the path of a
// mode: in tunnel mode what the server answers goes out of that node too.
func (b *base) awaitMode(t *testing.T, mode string) {
	t.Helper()
	b.client(1).awaitMode(t, mode, at(cpAddr, nodePort2+nodeEcho))
}

// awaitMode is that for the place's connections to an address and port of the control-plane node.
func (p *place) awaitMode(t *testing.T, mode, to string) {
	t.Helper()
	const blocks = 400
	eventually(t, 30*time.Second, "mode "+mode, func() error {
		before := p.counter(t, "cp", "tx_bytes")
		p.burst(t, to, blocks)
		ratio := (p.counter(t, "cp", "tx_bytes") - before) / (blocks * 1024)
		if (ratio > 1.6) != (mode == "Tunnel") {
			return fmt.Errorf("the node sends out %.2f times what the client sends", ratio)
		}
		return nil
	})
}

// counter reads a statistic of a machine's uplink.
func (l *lab) counter(t *testing.T, machine, name string) float64 {
	t.Helper()
	var n float64
	if _, err := fmt.Sscan(l.must(t, machine, "cat", "/sys/class/net/eth0/statistics/"+name), &n); err != nil {
		t.Fatal(err)
	}
	return n
}
