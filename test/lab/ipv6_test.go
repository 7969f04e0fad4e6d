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

// ipv6Lab is the lab of TestIPv6Alone.
func ipv6Lab() *lab {
	if alone == nil {
		alone = &lab{name: *ipv6Flag, bin: all.bin, traffic: all.traffic, tests: 1}
	}
	return alone
}

// TestIPv6Alone is a cluster whose nodes, pods and Services have no IPv4, on either data plane.
func TestIPv6Alone(t *testing.T) {
	l := ipv6Lab()
	l.inParallel(t)
	if l.name == "" {
		l.name, l.own = fmt.Sprintf("weir-six-%d", os.Getpid()%1000000), true
		if err := l.up(interrupted, "--ip-family", "ipv6"); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := l.newSpace(t, "six")
	p := s.start(t, s.server("srv1", "worker1", nil), s.server("srv2", "worker2", nil), s.idle("cli1", "worker1", nil))
	for _, p := range p {
		if a, err := netip.ParseAddr(p.addr); err != nil || !netip.MustParsePrefix("fd00:10:244::/56").Contains(a) || p.addr6 != "" {
			t.Fatalf("%v has the addresses %q and %q", p, p.addr, p.addr6)
		}
	}
	srv1, srv2, cli1 := p[0], p[1], p[2]
	svc2 := s.service(t, "svc2", map[string]string{"pod": "srv2"}, nodePort2, func(*corev1.Service) {})
	near, far := l.client6(1), l.client6(3)
	for _, plane := range []string{"eBPF", "nftables"} {
		t.Run(plane, func(t *testing.T) {
			if plane == "nftables" {
				s.patchFelix(t, `{"bpfEnabled":false}`, "bpfEnabled")
			}
			s.awaitPlane(t, plane)
			l.agentsReady(t, 0, nil)
			for _, from := range []*place{cli1, near, far} {
				from.soon(t, at(six(cpAddr), nodePort2+nodeWho), true)
			}
			for _, from := range []*place{cli1, srv1, l.node6("cp"), l.node6("worker2")} {
				for _, udp := range [][]string{nil, {"--udp"}} {
					port := map[bool]int32{true: whoPort, false: udpPort}[udp == nil]
					from.reaches(t, at(srv2.addr, port), "srv2", from.addr, udp...)
					from.reaches(t, at(svc2.Spec.ClusterIP, port), "srv2", from.addr, udp...)
				}
			}
			for _, from := range []*place{near, far} {
				for node := range nodes {
					from.reaches(t, at(six(nodes[node]), nodePort2+nodeWho), "srv2", from.addr)
					from.reaches(t, at(six(nodes[node]), nodePort2+nodeUDP), "srv2", from.addr, "--udp")
				}
				server := from.begin(t, "server", "--name", "out", "--who", "9301", "--udp", "9302", "--until-stdin-ends")
				cli1.reaches(t, at(from.addr, 9301), "out", six(worker1Addr))
				cli1.reaches(t, at(from.addr, 9302), "out", six(worker1Addr), "--udp")
				server.stop()
			}
			eventually(t, 0, "DNS", func() error {
				out, err := s.kubectl("", "exec", "-n", s.ns, "cli1", "--", "dig", "+short", "+tries=1", "AAAA", "svc2."+s.ns+".svc.cluster.local")
				if err == nil && strings.TrimSpace(out) != svc2.Spec.ClusterIP {
					err = fmt.Errorf("%q, want %s", out, svc2.Spec.ClusterIP)
				}
				return err
			})
			s.ipv6Policy(t, srv2, svc2, cli1, near)
			s.says(t, 0, plane, "healthy on 3 of 3")
			if out, _ := l.weir(t, "status"); strings.Contains(out, "Not in force") || strings.Contains(out, "IPv4") {
				t.Errorf("weir status complains about a cluster that is as it is to be:\n%s", out)
			}
		})
	}
}

// ipv6Policy: a policy by pods and by a network allows these alone, open connections included.
func (s *space) ipv6Policy(t *testing.T, server *place, svc *corev1.Service, denied, allowed *place) {
	t.Helper()
	open := denied.begin(t, "stream", at(svc.Spec.ClusterIP, echoPort))
	s.policy(t, "p", fmt.Sprintf(`{podSelector: {matchLabels: {pod: %s}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: %s/128}}, {podSelector: {matchLabels: {pod: srv1}}}]}]}`, server.pod, allowed.addr))
	denied.soon(t, at(server.addr, whoPort), false)
	allowed.reaches(t, at(six(worker1Addr), nodePort2+nodeWho), server.pod, allowed.addr)
	allRefused(t, denied.to(at(svc.Spec.ClusterIP, whoPort)))
	if res := stalled(t, open); res.GapMS < 0 {
		t.Errorf("an open connection goes on against a policy: %+v", res)
	}
	s.noPolicy(t, "p")
	denied.soon(t, at(server.addr, whoPort), true)
}
