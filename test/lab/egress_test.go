// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/model"
)

// egressPods is how many pods send from their first moment on in TestEgressGateways.
const egressPods = 24

// TestEgressGateways: pods that are to leave the cluster by a gateway leave with the address of its
// node and no other: from their first packet on, while the gateway goes and comes, while an agent
// is killed. What switches gateways on exchanges the programs, under open connections.
func TestEgressGateways(t *testing.T) {
	all.inParallel(t)
	b := sharedBase(t)
	open := []*running{b.cli2.begin(t, "stream", at(b.srv1.addr, echoPort)), b.client(1).begin(t, "stream", at(cpAddr, nodePort2+nodeEcho))}
	b.patchFelix(t, `{"egressIPSupport":"EnabledPerNamespaceOrPerPod"}`, "egressIPSupport")
	b.mustKubectl(t, "", "annotate", "namespace", b.ns, model.AnnotationEgressClients+"=projectcalico.org/name == '"+b.ns+"'")
	t.Cleanup(func() { b.mustKubectl(t, "", "annotate", "namespace", b.ns, model.AnnotationEgressClients+"-") })
	leaves := func(p *corev1.Pod) *corev1.Pod {
		p.Annotations[model.AnnotationEgressSelector] = "egress == 'red'"
		return p
	}
	// They are on worker1 and worker2, the gateway is on cp.
	clients := b.start(t, leaves(b.idle("leaver1", "worker1", nil)), leaves(b.idle("leaver2", "worker2", nil)))
	const port, udp, seen = 9311, 9312, 9313
	outside := b.client(1)
	listens := func() *running {
		return outside.begin(t, "server", "--until-stdin-ends", "--name", "out", fmt.Sprintf("--who=%d", port), fmt.Sprintf("--udp=%d", udp), fmt.Sprintf("--http=%d", seen))
	}
	before := listens()
	to := at(outside.addr, port)
	all := func(works bool) {
		t.Helper()
		for _, c := range clients {
			c.soon(t, to, works)
		}
	}
	all(false) // the agents have other programs now, and there is no gateway
	before.stop()
	listens() // this one sees nothing that left before
	sources := func() map[string]bool {
		t.Helper()
		out, err := outside.do(b.traffic, "get", fmt.Sprintf("http://127.0.0.1:%d/seen", seen))
		if err != nil {
			t.Fatal(err)
		}
		by := map[string]bool{}
		for line := range strings.Lines(out) {
			if addr, _, _ := strings.Cut(line, " "); addr != "127.0.0.1" {
				by[addr] = true
			}
		}
		return by
	}
	gateway := func() *corev1.Pod {
		p := b.server("gateway", "cp", map[string]string{"egress": "red"})
		p.Annotations[model.AnnotationEgressGateway] = "true"
		return p
	}
	b.start(t, gateway())
	all(true)
	for _, c := range clients {
		c.reaches(t, to, "out", cpAddr)
		c.reaches(t, at(outside.addr, udp), "out", cpAddr, "--udp")
		c.reaches(t, at(b.svc1, whoPort), "srv1", c.addr) // inside nothing changes
	}
	if out, code := b.weir(t, "why", b.ns+"/leaver2", to); code != 0 || !strings.Contains(out, b.ns+"/gateway") {
		t.Errorf("weir why (%d) does not name the gateway:\n%s", code, out)
	}
	eventually(t, 0, "weir status names the gateway", func() error {
		if out, _ := b.weir(t, "status"); !strings.Contains(out, b.ns+"/gateway") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})

	for i := range egressPods {
		b.create(t, leaves(b.podSpec(fmt.Sprintf("early%d", i), []string{"worker1", "worker2"}[i%2],
			[]string{"/t/traffic", "escape", "--for", "60s", "--tcp", to, "--udp", at(outside.addr, udp)}, nil)))
	}
	for name, code := range b.exitCodes(t, egressPods, "early") {
		if code != 3 {
			t.Errorf("pod %s did not get out by the gateway: code %d", name, code)
		}
	}

	busy := clients[1].begin(t, "stream", at(b.srv1.addr, echoPort))
	for range 2 {
		b.mustKubectl(t, "", "delete", "pod", "-n", b.ns, "gateway", "--grace-period=0", "--force")
		all(false)
		b.start(t, gateway())
		all(true)
	}
	if _, err := b.killAgent("worker2"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		clients[1].reaches(t, to, "out", cpAddr)
		time.Sleep(100 * time.Millisecond)
	}
	unbroken(t, busy)
	if by := sources(); len(by) != 1 || !by[cpAddr] {
		t.Errorf("packets left with the addresses %v, the gateway's is %s", by, cpAddr)
	}

	b.patchFelix(t, `{"egressIPSupport":null}`)
	for _, c := range clients {
		eventually(t, 0, "with gateways switched off it leaves as ever", func() error {
			r, err := c.tryDial(to, 1, "--timeout", "1s")
			if err == nil && !slices.Equal(r.Seen, []string{map[string]string{"worker1": worker1Addr, "worker2": worker2Addr}[c.machine]}) {
				err = fmt.Errorf("%v", r)
			}
			return err
		})
	}
	b.agentsReady(t, 0, nil)
	for _, r := range open {
		unbroken(t, r)
	}
}
