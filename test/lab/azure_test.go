// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// onAzure is a lab with Azure CNI.
type onAzure struct {
	*onCloud
	overlay bool
}

// TestOnAzure: with the real plugin of Azure CNI, whose pods have addresses of a subnet, see
// takenOver.
func TestOnAzure(t *testing.T) {
	l := newCloudLab(t, *azureFlag, "weir-az", "azure-cni")
	figures.begin(t)
	takenOver(t, &onAzure{newOnCloud(t, l, "azure"), false}, "azure-cni", "172.31.0.0/24")
}

// TestOnAzureOverlay is the same with addresses of an overlay, which nodes alone reach.
func TestOnAzureOverlay(t *testing.T) {
	l := newCloudLab(t, *overlayFlag, "weir-azov", "azure-cni-overlay")
	figures.begin(t)
	takenOver(t, &onAzure{newOnCloud(t, l, "azure"), true}, "azure-cni-overlay", podNetwork)
}

// ofAzure is what Azure CNI has written on a node, apart from what is a pod's.
func (l *lab) ofAzure(t *testing.T, node string) string {
	t.Helper()
	return l.must(t, node, "sh", "-ec", `sha256sum /etc/cni/net.d/*; ls /opt/cni/bin; ip rule; ip route | grep -v -e azv -e weir
iptables-save | grep -e 'IP-MASQ-AGENT' -e SWIFT | sed 's/ \[.*//' | sort`)
}

// takenOver: Weir takes pods that run over without a restart, alongside a kube-proxy and in its
// place, carries Services with the client's address and enforces policy; when it goes, that network
// and a kube-proxy go on as before. Connections are open all the time, those that the kube-proxy
// translates until Weir goes.
func takenOver(t *testing.T, o *onAzure, on, pods string) {
	l := o.lab
	o.proxied(t)
	open := []*running{
		o.cli1.begin(t, "stream", at(o.srv2.addr, echoPort)), o.cli2.begin(t, "stream", at(o.srv1.addr, echoPort)),
		o.cli1.begin(t, "stream", at(o.srv1.addr, echoPort)), l.host("worker1", worker1Addr).begin(t, "stream", at(o.srv2.addr, echoPort)),
	}
	if !o.overlay {
		open = append(open, l.client(1).begin(t, "stream", at(o.srv1.addr, echoPort)))
	}
	proxied := []*running{
		o.cli1.begin(t, "stream", at(o.svc2.Spec.ClusterIP, echoPort)), o.cli2.begin(t, "stream", at(o.svc2.Spec.ClusterIP, echoPort)),
		l.client(1).begin(t, "stream", at(worker2Addr, nodePort2+nodeEcho)), l.client(3).begin(t, "stream", at(worker1Addr, nodePort2+nodeEcho)),
		l.host("worker1", worker1Addr).begin(t, "stream", at(o.svc2.Spec.ClusterIP, echoPort)),
	}
	before, written := o.stays(t, o.pods()...), map[string]string{}
	for node := range nodes {
		written[node] = l.ofAzure(t, node)
	}
	same := func(when string) {
		t.Helper()
		for node, was := range written {
			if is := l.ofAzure(t, node); is != was {
				t.Errorf("%s, %s: what Azure CNI wrote is other than before:\n%s\nbefore:\n%s", node, when, is, was)
			}
		}
	}
	o.network(t)
	o.startTime(t, "srv0", "start of a pod until it is ready, without Weir: median (s)")
	began := time.Now()
	l.mustWeir(t, "install", "--image", "weir.local/weir:dev", "--on", on, "--pod-cidr", pods, "--api-server", at(cpAddr, 6443))
	note(t, "installation until all agents are ready (s)", time.Since(began).Seconds())
	same("with Weir")
	t.Run("alongside a kube-proxy", func(t *testing.T) {
		l.proxyRuns(t, "iptables")
		o.carried(t)
	})
	began = time.Now()
	l.withoutProxy(t)
	l.awaitNoRules(t)
	note(t, "until nothing of kube-proxy is left (s)", time.Since(began).Seconds())
	same("without kube-proxy")
	t.Run("pods and Services", o.services)
	t.Run("network", o.network)
	t.Run("node ports", o.nodePorts)
	t.Run("DSR", o.direct)
	t.Run("policy", o.policies)
	t.Run("why", o.reasons)
	t.Run("new pods", o.newPods)
	lost := 0
	for _, r := range proxied {
		if res := unbroken(t, r); res.Error != "" {
			lost++
		}
	}
	note(t, "open connections lost that kube-proxy translated", float64(lost))
	l.withProxy(t)
	l.proxyRulesThere(t)
	l.mustWeir(t, "uninstall")
	l.proxyRuns(t, "iptables")
	t.Run("network without Weir", func(t *testing.T) {
		o.network(t)
		o.proxied(t)
	})
	same("without Weir")
	for node := range nodes {
		l.nothingOfWeir(t, node)
	}
	o.kept(t, before, open)
}

// proxyRulesThere waits until a kube-proxy has written its rules on all nodes. Its port is Weir's
// while that carries Services.
func (l *lab) proxyRulesThere(t *testing.T) {
	t.Helper()
	eventually(t, 0, "rules of kube-proxy are there", func() error {
		for node := range nodes {
			if rules, err := l.proxyRules(node); err != nil || !slices.Contains(rules, "chain KUBE-SERVICES") {
				return fmt.Errorf("%s: rules %q %w", node, rules, err)
			}
		}
		return nil
	})
}

// proxied is that Services work, whoever carries them.
func (o *onAzure) proxied(t *testing.T) {
	t.Helper()
	for _, from := range []*place{o.cli1, o.cli2, o.host("worker1", worker1Addr)} {
		from.soon(t, at(o.svc2.Spec.ClusterIP, whoPort), true)
		from.reaches(t, at(o.svc2.Spec.ClusterIP, whoPort), "srv2", "")
		from.reaches(t, at(o.svc2.Spec.ClusterIP, udpPort), "srv2", "", "--udp")
	}
	for _, node := range nodes {
		o.client(1).soon(t, at(node, nodePort2+nodeWho), true)
		o.client(3).soon(t, at(node, nodePort2+nodeWho), true)
	}
}

// carried is that Weir carries Services, whose pods see clients' own addresses, and the network is
// what it was.
func (o *onAzure) carried(t *testing.T) {
	o.network(t)
	o.services(t)
	o.nodePorts(t)
}

// network is what Azure CNI does, with Weir and without.
func (o *onAzure) network(t *testing.T) {
	for _, from := range []*place{o.cli1, o.cli2} {
		for _, to := range []*place{o.srv1, o.srv2} {
			from.reaches(t, at(to.addr, whoPort), to.pod, from.addr)
			from.reaches(t, at(to.addr, udpPort), to.pod, from.addr, "--udp")
		}
		// Within the virtual network a pod of a subnet has its own address, otherwise its node's.
		seen := from.addr
		if o.overlay {
			seen = nodes[from.machine]
		}
		from.reaches(t, at(client1Addr, whoPort), "", seen)
		from.reaches(t, at(client3Addr, whoPort), "", nodes[from.machine])
		from.reaches(t, at(client3Addr, udpPort), "", nodes[from.machine], "--udp")
		if gateway := o.must(t, from.machine, "ip", "neigh", "show", "169.254.1.1"); strings.TrimSpace(gateway) != "" {
			t.Errorf("%s knows the pods' gateway itself: %s", from.machine, gateway)
		}
	}
	for _, to := range []*place{o.srv1, o.srv2} {
		o.host("worker1", worker1Addr).reaches(t, at(to.addr, whoPort), to.pod, "")
		if o.overlay {
			allRefused(t, o.client(1).to(at(to.addr, whoPort)), o.client(3).to(at(to.addr, whoPort)))
		} else {
			o.client(1).reaches(t, at(to.addr, whoPort), to.pod, client1Addr)
		}
	}
}
