// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// podNetwork is the network of pods of every lab of IPv4.
const podNetwork = "10.244.0.0/16"

// otherLab is a lab whose pods have addresses and interfaces of the plugin ptp, without Weir.
func otherLab(t *testing.T) *lab {
	t.Helper()
	other = &lab{name: *otherFlag, bin: all.bin, traffic: all.traffic, tests: 1}
	other.inParallel(t)
	if other.name == "" {
		other.name, other.own = fmt.Sprintf("weir-on-%d", os.Getpid()%1000000), true
		if err := other.up(interrupted, "--on", "generic", "--no-install"); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return other
}

// mustWeir runs weir where the API server can be reached.
func (l *lab) mustWeir(t *testing.T, args ...string) {
	t.Helper()
	l.must(t, "cp", append([]string{filepath.Join(l.bin, "weir")}, args...)...)
}

// TestOnGeneric: where another CNI plugin gives pods their addresses, Weir takes pods that run
// over, carries Services with the client's address, and enforces policy; when it goes, that
// plugin's network goes on. Connections between pods are open all the time.
func TestOnGeneric(t *testing.T) {
	l := otherLab(t)
	s := l.newSpace(t, "other")
	p := s.start(t, s.server("srv1", "worker1", nil), s.server("srv2", "worker2", nil), s.idle("cli1", "worker1", nil), s.idle("cli2", "worker2", nil))
	srv1, srv2, cli1, cli2 := p[0], p[1], p[2], p[3]
	svc1 := s.service(t, "svc1", map[string]string{"pod": "srv1"}, nodePort1, nil)
	svc2 := s.service(t, "svc2", map[string]string{"pod": "srv2"}, nodePort2, nil)
	open := []*running{cli1.begin(t, "stream", at(srv2.addr, echoPort)), cli1.begin(t, "stream", at(srv1.addr, echoPort)), cli2.begin(t, "stream", at(srv1.addr, echoPort))}
	l.mustWeir(t, "install", "--image", "weir.local/weir:dev", "--on", "generic", "--pod-cidr", podNetwork, "--api-server", at(cpAddr, 6443))
	works := func(t *testing.T) {
		t.Helper()
		for _, from := range []*place{cli1, cli2, srv1} {
			for _, svc := range []*corev1.Service{svc1, svc2} {
				from.soon(t, at(svc.Spec.ClusterIP, whoPort), true)
			}
		}
		for _, way := range []struct {
			from, to *place
			svc      *corev1.Service
		}{{cli1, srv2, svc2}, {cli2, srv1, svc1}, {cli1, srv1, svc1}} {
			way.from.reaches(t, at(way.to.addr, whoPort), way.to.pod, way.from.addr)
			way.from.reaches(t, at(way.svc.Spec.ClusterIP, whoPort), way.to.pod, way.from.addr)
			way.from.reaches(t, at(way.svc.Spec.ClusterIP, udpPort), way.to.pod, way.from.addr, "--udp")
		}
		for _, mode := range []string{"Tunnel", "DSR"} {
			l.patchFelix(t, `{"bpfExternalServiceMode":"`+mode+`"}`, "bpfExternalServiceMode")
			l.client(1).awaitMode(t, mode, at(cpAddr, nodePort2+nodeEcho))
			l.client(1).reaches(t, at(cpAddr, nodePort2+nodeWho), "srv2", client1Addr)
			l.client(1).reaches(t, at(worker2Addr, nodePort1+nodeWho), "srv1", client1Addr)
			l.client(3).reaches(t, at(worker1Addr, nodePort1+nodeUDP), "srv1", client3Addr, "--udp")
		}
		l.host("worker1", worker1Addr).reaches(t, at(svc2.Spec.ClusterIP, whoPort), "srv2", "")
		l.host("worker1", worker1Addr).reaches(t, at(srv1.addr, whoPort), "srv1", "")
		s.policy(t, "only-cli1", `{podSelector: {matchLabels: {pod: srv2}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}]}]}`)
		srv1.soon(t, at(srv2.addr, whoPort), false)
		cli1.reaches(t, at(srv2.addr, whoPort), "srv2", cli1.addr)
		allRefused(t, srv1.to(at(svc2.Spec.ClusterIP, whoPort)), cli2.to(at(srv2.addr, whoPort)), l.client(1).to(at(cpAddr, nodePort2+nodeWho)))
		l.host("worker2", worker2Addr).reaches(t, at(srv2.addr, whoPort), "srv2", "") // as the kubelet's probes
		s.noPolicy(t, "only-cli1")
		srv1.soon(t, at(srv2.addr, whoPort), true)
	}
	t.Run("taken over", works)
	t.Run("nftables", func(t *testing.T) {
		for _, c := range []struct{ enabled, plane string }{{"false", "nftables"}, {"true", "eBPF"}} {
			l.patchFelix(t, `{"bpfEnabled":`+c.enabled+`}`, "bpfEnabled")
			l.awaitPlane(t, c.plane)
			l.agentsReady(t, 0, nil)
			works(t)
		}
	})
	t.Run("outside", func(t *testing.T) {
		// The other network's source NAT, here as its administrator would write it.
		nat := []string{"POSTROUTING", "-s", podNetwork, "!", "-d", podNetwork, "-o", "eth0", "-j", "MASQUERADE"}
		l.must(t, "worker1", append([]string{"iptables", "-t", "nat", "-A"}, nat...)...)
		defer l.must(t, "worker1", append([]string{"iptables", "-t", "nat", "-D"}, nat...)...)
		l.client(1).begin(t, "server", "--until-stdin-ends", fmt.Sprintf("--who=%d", whoPort), fmt.Sprintf("--udp=%d", udpPort))
		cli1.reaches(t, at(client1Addr, whoPort), "", worker1Addr)
		cli1.reaches(t, at(client1Addr, udpPort), "", worker1Addr, "--udp")
	})
	t.Run("new pods", func(t *testing.T) {
		began := time.Now()
		n := s.start(t, s.server("srv3", "worker1", nil))[0]
		note(t, "start of a pod on another plugin's network (s)", time.Since(began).Seconds())
		cli2.soon(t, at(n.addr, whoPort), true)
		cli2.reaches(t, at(n.addr, whoPort), "srv3", cli2.addr)
		n.reaches(t, at(svc2.Spec.ClusterIP, whoPort), "srv2", n.addr)
	})
	t.Run("agents start again", func(t *testing.T) {
		old, err := l.killAgent("worker1")
		if err != nil {
			t.Fatal(err)
		}
		l.agentsReady(t, 0, map[string]string{"worker1": old})
		cli1.reaches(t, at(svc2.Spec.ClusterIP, whoPort), "srv2", cli1.addr)
	})
	l.mustWeir(t, "uninstall")
	for _, from := range []*place{cli1, cli2} {
		for _, to := range []*place{srv1, srv2} {
			from.reaches(t, at(to.addr, whoPort), to.pod, from.addr)
		}
	}
	for _, node := range []string{"cp", "worker1", "worker2"} {
		if out := l.must(t, node, "sh", "-c", "ip -o link show | grep -c -e weir -e bpf || true"); out != "0\n" && out != "0" {
			t.Errorf("%s has devices of Weir: %s", node, out)
		}
	}
	for _, o := range open {
		unbroken(t, o)
	}
}
