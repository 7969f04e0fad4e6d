// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// taken is a cluster of a cloud with a kube-proxy, as clouds have one, whose nodes Weir takes over.
type taken struct {
	*onCloud
	on, podCIDR string
	network     func(*testing.T)                // what the CNI plugin does, with Weir and without
	wrote       func(*testing.T, string) string // what it has written on a node, apart from what is a pod's
	// before is done before Weir is installed, and begins with its agents running; nil = nothing.
	before, begins func(*testing.T)
}

// over: Weir takes pods that run over without a restart, alongside a kube-proxy and in its place,
// carries Services with the client's address and enforces policy; when it goes, that network and a
// kube-proxy go on as before. Connections are open all the time, of pods and nodes, those of more,
// and those that the kube-proxy translates until Weir goes.
func (o *taken) over(t *testing.T, more ...*running) {
	l := o.lab
	o.proxied(t)
	worker1 := o.host("worker1", o.in(worker1Addr))
	open := append(more, o.cli1.begin(t, "stream", at(o.srv2.addr, echoPort)), o.cli2.begin(t, "stream", at(o.srv1.addr, echoPort)),
		o.cli1.begin(t, "stream", at(o.srv1.addr, echoPort)), worker1.begin(t, "stream", at(o.srv2.addr, echoPort)))
	proxied := []*running{
		o.cli1.begin(t, "stream", at(o.svc2.Spec.ClusterIP, echoPort)), o.cli2.begin(t, "stream", at(o.svc2.Spec.ClusterIP, echoPort)),
		o.client(1).begin(t, "stream", at(o.in(worker2Addr), nodePort2+nodeEcho)), o.client(3).begin(t, "stream", at(o.in(worker1Addr), nodePort2+nodeEcho)),
		worker1.begin(t, "stream", at(o.svc2.Spec.ClusterIP, echoPort)),
	}
	before, written := o.stays(t, o.pods()...), map[string]string{}
	for node := range nodes {
		written[node] = o.wrote(t, node)
	}
	same := func(when string) {
		t.Helper()
		for node, was := range written {
			if is := o.wrote(t, node); is != was {
				t.Errorf("%s, %s: what the CNI plugin wrote is other than before:\n%s\nbefore:\n%s", node, when, is, was)
			}
		}
	}
	o.network(t)
	o.startTime(t, "srv0", "start of a pod until it is ready, without Weir: median (s)")
	if o.before != nil {
		o.before(t)
	}
	began := time.Now()
	l.mustWeir(t, "install", "--image", "weir.local/weir:dev", "--on", o.on, "--pod-cidr", o.podCIDR, "--api-server", at(o.in(cpAddr), 6443))
	note(t, "installation until all agents are ready (s)", time.Since(began).Seconds())
	if o.begins != nil {
		o.begins(t)
	}
	same("with Weir")
	t.Run("alongside a kube-proxy", func(t *testing.T) {
		l.proxyRuns(t, "iptables")
		o.carried(t)
	})
	if *cloudsAll {
		t.Run("nftables alongside a kube-proxy", o.nftablesAlongside)
	}
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
	if *cloudsAll {
		t.Run("nftables", func(t *testing.T) { o.onNFTables(t, o.network) })
	}
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
func (o *taken) proxied(t *testing.T) {
	t.Helper()
	for _, from := range []*place{o.cli1, o.cli2, o.host("worker1", worker1Addr)} {
		from.soon(t, at(o.svc2.Spec.ClusterIP, whoPort), true)
		from.reaches(t, at(o.svc2.Spec.ClusterIP, whoPort), "srv2", "")
		from.reaches(t, at(o.svc2.Spec.ClusterIP, udpPort), "srv2", "", "--udp")
	}
	for _, node := range nodes {
		o.client(1).soon(t, at(o.in(node), nodePort2+nodeWho), true)
		o.client(3).soon(t, at(o.in(node), nodePort2+nodeWho), true)
	}
}

// carried is that Weir carries Services, whose pods see clients' own addresses, and the network is
// what it was.
func (o *taken) carried(t *testing.T) {
	o.network(t)
	o.services(t)
	o.nodePorts(t)
}

// nftablesAlongside: on nftables Services are the kube-proxy's, and policy is Weir's.
func (o *taken) nftablesAlongside(t *testing.T) {
	o.patchFelix(t, `{"bpfEnabled":false}`, "bpfEnabled")
	o.awaitPlane(t, "nftables")
	o.agentsReady(t, 0, nil)
	o.awaitServices(t, "kube-proxy")
	o.proxyRuns(t, "iptables")
	o.network(t)
	o.proxied(t)
	closed := at(o.closed.addr, whoPort)
	o.policy(t, "only-cli1", `{podSelector: {matchLabels: {pod: closed}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}]}]}`)
	o.srv1.soon(t, closed, false)
	o.cli1.reaches(t, closed, "closed", o.cli1.addr)
	o.cli1.reaches(t, at(o.svc3.Spec.ClusterIP, whoPort), "closed", o.cli1.addr)
	allRefused(t, o.srv1.to(at(o.svc3.Spec.ClusterIP, whoPort)), o.cli2.to(closed), o.client(1).to(closed))
	o.noPolicy(t, "only-cli1")
	o.srv1.soon(t, closed, true)
	o.patchFelix(t, `{"bpfEnabled":true}`, "bpfEnabled")
	o.awaitPlane(t, "eBPF")
	o.agentsReady(t, 0, nil)
	o.awaitServices(t, "Weir")
	o.carried(t)
}
