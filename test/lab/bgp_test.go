// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/model"
)

// farWorker is worker2's address in the lab with racks.
const farWorker = "172.31.2.208"

// racksLab is the lab whose worker2 is behind a router that knows pods by BGP alone.
func racksLab(t *testing.T) *lab {
	t.Helper()
	racks = &lab{name: *bgpFlag, bin: all.bin, traffic: all.traffic, tests: 1}
	racks.inParallel(t)
	if racks.name == "" {
		racks.name, racks.own = fmt.Sprintf("weir-bgp-%d", os.Getpid()%1000000), true
		if err := racks.up(interrupted, "--bgp", "--ip-family", "dual"); err != nil {
			t.Fatal(err)
		}
	}
	if err := racks.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return racks
}

// TestBGPRacks: where routers learn from the nodes where pods are, and nothing else tells them,
// pods, Services, floating addresses, node ports and policy work between nodes in two racks, on
// both data planes, and open connections outlive the change of the data plane, and of the pool to
// VXLAN and back.
func TestBGPRacks(t *testing.T) {
	l := racksLab(t)
	s := l.newSpace(t, "racks")
	const floating4, floating6 = "10.244.200.7", "fd00:10:244:0:200::7" // in no block
	l.patchFelix(t, `{"floatingIPs":"Enabled"}`, "floatingIPs")
	l.mustKubectl(t, "", "annotate", "namespace", s.ns, model.AnnotationFloatingGrants+`=["`+floating4+`","`+floating6+`"]`)
	floats := s.server("srv2", "worker2", nil)
	floats.Annotations[model.AnnotationFloating] = `["` + floating4 + `","` + floating6 + `"]`
	p := s.start(t, s.server("srv1", "worker1", nil), floats, s.idle("cli1", "worker1", nil), s.idle("cli2", "worker2", nil))
	srv1, srv2, cli1, cli2 := p[0], p[1], p[2], p[3]
	twice := func(svc *corev1.Service) {
		policy := corev1.IPFamilyPolicyRequireDualStack
		svc.Spec.IPFamilyPolicy = &policy
	}
	svc1 := s.service(t, "svc1", map[string]string{"pod": "srv1"}, nodePort1, twice)
	svc2 := s.service(t, "svc2", map[string]string{"pod": "srv2"}, nodePort2, twice)
	for _, from := range []*place{cli1, cli2, cli1.six(), cli2.six()} {
		i := map[bool]int{true: 1}[strings.Contains(from.addr, ":")]
		for _, svc := range []*corev1.Service{svc1, svc2} {
			from.soon(t, at(svc.Spec.ClusterIPs[i], whoPort), true)
		}
	}
	l.client(1).soon(t, at(cpAddr, nodePort2+nodeWho), true)
	l.client(1).soon(t, at(farWorker, nodePort1+nodeWho), true)
	works := func(t *testing.T) {
		t.Helper()
		for i, family := range []func(*place) *place{func(p *place) *place { return p }, (*place).six} {
			for _, way := range []struct {
				from, to *place
				svc      *corev1.Service
			}{{cli1, srv2, svc2}, {cli2, srv1, svc1}, {cli1, srv1, svc1}} {
				from, to, ip := family(way.from), family(way.to), way.svc.Spec.ClusterIPs[i]
				from.reaches(t, at(to.addr, whoPort), to.pod, from.addr)
				from.reaches(t, at(to.addr, udpPort), to.pod, from.addr, "--udp")
				from.reaches(t, at(ip, whoPort), to.pod, from.addr)
				from.reaches(t, at(ip, udpPort), to.pod, from.addr, "--udp")
			}
		}
		// The floating addresses of srv2: from outside by the router, which learned them, from the
		// other rack, the same node and the pod itself.
		for i, to := range []string{floating4, floating6} {
			family := []func(*place) *place{func(p *place) *place { return p }, (*place).six}[i]
			seen := []string{client1Addr, six(client1Addr)}[i]
			l.client(1).soon(t, at(to, whoPort), true)
			l.client(1).reaches(t, at(to, whoPort), "srv2", seen)
			l.client(1).reaches(t, at(to, udpPort), "srv2", seen, "--udp")
			for _, from := range []*place{family(cli1), family(cli2)} {
				from.soon(t, at(to, whoPort), true)
				from.reaches(t, at(to, whoPort), "srv2", from.addr)
				from.reaches(t, at(to, udpPort), "srv2", from.addr, "--udp")
			}
			family(srv2).soon(t, at(to, whoPort), true)
		}
		for _, mode := range []string{"Tunnel", "DSR"} {
			l.patchFelix(t, `{"bpfExternalServiceMode":"`+mode+`"}`, "bpfExternalServiceMode")
			l.client(1).awaitMode(t, mode, at(cpAddr, nodePort2+nodeEcho))
			l.client(1).reaches(t, at(cpAddr, nodePort2+nodeWho), "srv2", client1Addr)
			l.client(1).reaches(t, at(farWorker, nodePort1+nodeWho), "srv1", client1Addr)
			l.client(3).reaches(t, at(farWorker, nodePort1+nodeUDP), "srv1", client3Addr, "--udp")
			l.client(1).reaches(t, at(six(cpAddr), nodePort2+nodeWho), "srv2", six(client1Addr))
		}
		s.policy(t, "only-cli1", `{podSelector: {matchLabels: {pod: srv2}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}]}]}`)
		srv1.soon(t, at(srv2.addr, whoPort), false)
		cli1.reaches(t, at(srv2.addr, whoPort), "srv2", cli1.addr)
		cli1.six().reaches(t, at(srv2.addr6, whoPort), "srv2", cli1.addr6)
		allRefused(t, srv1.to(at(svc2.Spec.ClusterIP, whoPort)), srv1.six().to(at(srv2.addr6, whoPort)), l.client(1).to(at(cpAddr, nodePort2+nodeWho)))
		s.noPolicy(t, "only-cli1")
		srv1.soon(t, at(srv2.addr, whoPort), true)
	}
	open := []*running{cli1.begin(t, "stream", at(srv2.addr, echoPort)), cli1.begin(t, "stream", at(floating4, echoPort)), cli1.six().begin(t, "stream", at(floating6, echoPort))}
	t.Run("eBPF", works)
	t.Run("router", func(t *testing.T) {
		out := l.must(t, "router", "ip", "route", "get", srv2.addr)
		if !strings.Contains(out, "via "+farWorker+" ") {
			t.Errorf("the router reaches %s by %s", srv2.addr, out)
		}
		if out := l.must(t, "worker1", "ip", "-o", "route", "show", "proto", "88"); !strings.Contains(out, "via 172.31.1.1 ") {
			t.Errorf("worker1 has learned %s", out)
		}
		if out, code := l.weir(t, "bgp", "peers"); code != 0 || !strings.Contains(out, "6 of 6 sessions are established") {
			t.Errorf("weir bgp peers: %d: %s", code, out)
		}
	})
	t.Run("nftables", func(t *testing.T) {
		l.patchFelix(t, `{"bpfEnabled":false}`, "bpfEnabled")
		l.awaitPlane(t, "nftables")
		works(t)
	})
	l.awaitPlane(t, "eBPF")
	t.Run("VXLAN and back", func(t *testing.T) {
		for _, mode := range []string{"Always", "Never"} {
			l.mustKubectl(t, "", "patch", "ippools.projectcalico.org", "--type=merge", "-p", `{"spec":{"vxlanMode":"`+mode+`"}}`, "default")
			eventually(t, 0, "learned routes of pods", func() error {
				out, err := l.exec("worker1", "ip", "-o", "route", "show", "proto", "88")
				if err != nil || strings.Contains(out, "10.244.") != (mode == "Never") {
					return fmt.Errorf("%s: %q %w", mode, out, err)
				}
				return nil
			})
			cli1.soon(t, at(srv2.addr, whoPort), true)
			cli1.reaches(t, at(srv2.addr, whoPort), "srv2", cli1.addr)
		}
	})
	for _, r := range open {
		unbroken(t, r)
	}
}
