// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outage is how long the API server is away.
const outage = 60 * time.Second

// apiServerPID is the API server's process as the control-plane node numbers it: the only one there
// whose command line begins with its name.
func (l *lab) apiServerPID(t *testing.T) string {
	t.Helper()
	out := l.must(t, "cp", "sh", "-c", `for p in /proc/[0-9]*; do if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q '^[^ ]*kube-apiserver '; then echo ${p#/proc/}; fi; done`)
	pids := strings.Fields(out)
	if len(pids) != 1 {
		t.Fatalf("processes of the API server: %q", out)
	}
	return pids[0]
}

// TestAPIServerAway stops the API server: traffic and policy go on, an agent that is killed
// meanwhile comes back, and changes are caught up.
func TestAPIServerAway(t *testing.T) {
	all.inParallel(t)
	b := sharedBase(t)
	ctx := context.Background()
	ip := b.service(t, "manual", nil, 30740, nil).Spec.ClusterIP
	if _, err := b.kube.DiscoveryV1().EndpointSlices(b.ns).Create(ctx, b.slice("manual", b.srv2.addr), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.policy(t, "only-client1", `{podSelector: {matchLabels: {pod: srv2}}, ingress: [{from: [{ipBlock: {cidr: 172.31.1.55/32}}, {podSelector: {matchLabels: {pod: cli1}}}]}]}`)
	np := at(cpAddr, 30740+nodeWho)
	b.client(1).soon(t, np, true)
	b.client(2).soon(t, np, false)
	l := b.beginLoad(t)
	l.streams = []*running{
		b.client(1).begin(t, "stream", at(cpAddr, 30740+nodeEcho)),
		b.cli1.begin(t, "stream", at(b.srv2.addr, echoPort)),
	}
	l.dials = []*running{
		b.client(1).begin(t, "dial", np),
		b.cli1.begin(t, "dial", at(ip, whoPort)),
	}
	l.datagrams = []*running{b.cli1.begin(t, "datagrams", at(ip, udpPort))}
	agent, err := b.agentPID("worker1")
	if err != nil {
		t.Fatal(err)
	}
	// Stopped it answers nobody, as a machine that hangs; killed it is started anew by the node.
	pid := b.apiServerPID(t)
	b.must(t, "cp", "kill", "-STOP", pid)
	stopped := time.Now()
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			_, _ = b.exec("cp", "kill", "-KILL", pid)
		}
	}
	t.Cleanup(resume)
	time.Sleep(15 * time.Second)
	b.must(t, "worker1", "kill", "-KILL", agent)
	time.Sleep(15 * time.Second)
	b.client(2).refused(t, np)
	b.cli2.refused(t, at(ip, whoPort))
	b.cli2.reaches(t, at(b.srv1.addr, whoPort), "srv1", b.cli2.addr)
	b.client(3).reaches(t, at(worker1Addr, nodePort1+nodeWho), "srv1", client3Addr)
	time.Sleep(time.Until(stopped.Add(outage)))
	b.client(2).refused(t, np)
	resume()
	// It answers reads before its admission is ready to take what is written.
	eventually(t, 60*time.Second, "the API server is back", func() error {
		if _, err := b.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
			return err
		}
		_, err := b.kubectl("", "annotate", "--dry-run=server", "--overwrite", "-n", b.ns, "networkpolicy", "only-client1", "tried=again")
		return err
	})
	back := time.Now()
	note(t, "API server away (s)", back.Sub(stopped).Seconds())
	b.policy(t, "only-client1", `{podSelector: {matchLabels: {pod: srv2}}, ingress: [{from: [{ipBlock: {cidr: 172.31.1.55/32}}, {ipBlock: {cidr: 172.31.1.162/32}}, {podSelector: {matchLabels: {pod: cli1}}}]}]}`)
	eventually(t, 40*time.Second, "the change is caught up", func() error {
		if r := b.client(2).dial(t, np, 1, "--timeout", "5s"); r.Failed > 0 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	note(t, "change in force after the return (s)", time.Since(back).Seconds())
	l.unnoticed(t)
	b.agentsReady(t, 90*time.Second, map[string]string{"worker1": agent})
	eventually(t, 90*time.Second, "nodes ready", func() error {
		out, err := b.kubectl("", "get", "nodes", "--no-headers")
		if err != nil || strings.Count(out, " Ready ") != 3 {
			return fmt.Errorf("%v %s", err, out)
		}
		return nil
	})
}
