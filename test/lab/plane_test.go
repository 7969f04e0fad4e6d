// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestStandardDataPlane: bpfEnabled: false takes the nodes over to nftables and true takes them
// back, live. Pods stay, Services and policy are the same before, on nftables and after, at no
// moment does a denied connection get through, and no open one ends.
func TestStandardDataPlane(t *testing.T) {
	b := sharedBase(t)
	open := b.start(t, b.server("open", "worker2", nil))[0]
	const nodePort = nodePort2 + 10
	ip := b.service(t, "open", map[string]string{"pod": "open"}, nodePort, nil).Spec.ClusterIP
	for _, srv := range []string{"srv1", "srv2"} {
		b.policy(t, "only-cli1-"+srv, `{podSelector: {matchLabels: {pod: `+srv+`}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}]}]}`)
		b.cli2.soon(t, at(map[string]string{"srv1": b.srv1.addr, "srv2": b.srv2.addr}[srv], whoPort), false)
	}
	b.client(1).soon(t, at(worker1Addr, nodePort1+nodeWho), false)
	works := func(t *testing.T, plane string) {
		t.Helper()
		for _, to := range []*place{b.srv1, b.srv2} { // on one node, and on two
			b.cli1.reaches(t, at(to.addr, whoPort), to.pod, b.cli1.addr)
			b.cli1.reaches(t, at(to.addr, udpPort), to.pod, b.cli1.addr, "--udp")
		}
		allRefused(t, b.cli2.to(at(b.srv1.addr, whoPort)), b.cli2.to(at(b.srv1.addr, udpPort), "--udp"),
			b.cli2.to(at(b.srv2.addr, whoPort)), b.cli2.to(at(b.srv2.addr, udpPort), "--udp"), b.cli2.to(at(b.svc1, whoPort)),
			b.client(1).to(at(worker1Addr, nodePort1+nodeWho)), b.client(1).to(at(cpAddr, nodePort1+nodeWho)))
		b.cli1.reaches(t, at(b.svc1, whoPort), "srv1", b.cli1.addr)
		b.cli1.reaches(t, at(b.svc2, udpPort), "srv2", b.cli1.addr, "--udp")
		for node, addr := range nodes {
			b.host(node, addr).reaches(t, at(ip, whoPort), "open", "")
			b.host(node, addr).reaches(t, at(ip, udpPort), "open", "", "--udp")
			b.client(1).reaches(t, at(addr, nodePort+nodeWho), "open", client1Addr)
			b.client(3).reaches(t, at(addr, nodePort+nodeUDP), "open", "", "--udp")
		}
		eventually(t, 0, "a pod fetches by name", func() error {
			out, err := b.kubectl("", "exec", "-n", b.ns, "cli1", "--", "/t/traffic", "get", "https://kubernetes.default.svc.cluster.local/livez")
			if err != nil || strings.TrimSpace(out) != "ok" {
				return fmt.Errorf("%q %w", out, err)
			}
			return nil
		})
		late := b.start(t, b.server("late-"+strings.ToLower(plane), "worker1", map[string]string{"late": "yes"}))[0]
		b.cli2.reaches(t, at(late.addr, whoPort), late.pod, b.cli2.addr)
		late.reaches(t, at(ip, whoPort), "open", late.addr)
		late.refused(t, at(b.srv2.addr, whoPort))
	}
	denied := []*trial{b.cli2.tries(t, at(b.srv1.addr, whoPort)), b.cli2.tries(t, at(b.srv2.addr, whoPort)),
		b.client(1).tries(t, at(worker1Addr, nodePort1+nodeWho)), open.tries(t, at(b.svc1, whoPort))}
	streams := []*running{b.cli1.begin(t, "stream", at(b.srv1.addr, echoPort)), b.cli1.begin(t, "stream", at(b.srv2.addr, echoPort)),
		b.cli1.begin(t, "stream", at(b.svc2, echoPort)), b.client(1).begin(t, "stream", at(nodes["worker2"], nodePort+nodeEcho)),
		b.client(3).begin(t, "stream", at(cpAddr, nodePort+nodeEcho))} // handed on
	for _, c := range []struct{ enabled, plane string }{{"false", "nftables"}, {"true", "eBPF"}} {
		began := time.Now()
		b.patchFelix(t, `{"bpfEnabled":`+c.enabled+`}`, "bpfEnabled")
		b.awaitPlane(t, c.plane)
		note(t, "until all nodes have "+c.plane+" alone (ms)", float64(time.Since(began).Milliseconds()))
		b.agentsReady(t, 0, nil)
		b.agentsNamed(t)
		works(t, c.plane)
		b.says(t, 0, c.plane, "healthy on 3 of 3")
	}
	gap := 0.0
	for _, s := range streams {
		gap = max(gap, unbroken(t, s).GapMS)
	}
	note(t, "longest gap of a stream (ms)", gap)
	for _, d := range denied {
		d.over()
	}
	for _, d := range denied {
		if r := d.end(t); r.Failed < r.Attempts || r.Attempts < 20 {
			t.Errorf("%s: is denied at any time: %v", d.what, r)
		}
	}
}

// TestMixedDataPlanes: one node has nftables, the others eBPF. Pods and cluster IPs work across,
// without a tunnel and in it, policy is in force on both sides. Whichever node is asked for a node
// port, the backend sees the client's address.
func TestMixedDataPlanes(t *testing.T) {
	b := sharedBase(t)
	b.mustKubectl(t, `{"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "node.worker2"}, "spec": {"bpfEnabled": false}}`, "apply", "-f", "-")
	t.Cleanup(func() {
		b.mustKubectl(t, "", "delete", "felixconfigurations.projectcalico.org", "node.worker2")
		b.awaitPlanes(t, map[string]string{"cp": "eBPF", "worker1": "eBPF", "worker2": "eBPF"})
		b.agentsReady(t, 0, nil)
	})
	b.awaitPlanes(t, map[string]string{"cp": "eBPF", "worker1": "eBPF", "worker2": "nftables"})
	b.agentsReady(t, 0, nil)
	all := func(t *testing.T) {
		for _, from := range []*place{b.cli1, b.cli2} {
			for _, to := range []*place{b.srv1, b.srv2} {
				ip := map[string]string{"srv1": b.svc1, "srv2": b.svc2}[to.pod]
				for _, args := range [][]string{nil, {"--udp"}} {
					port := whoPort
					if args != nil {
						port = udpPort
					}
					from.reaches(t, at(to.addr, int32(port)), to.pod, from.addr, args...)
					from.reaches(t, at(ip, int32(port)), to.pod, from.addr, args...)
				}
			}
		}
		for node, addr := range nodes {
			b.host(node, addr).reaches(t, at(b.srv1.addr, whoPort), "srv1", addr)
			b.host(node, addr).reaches(t, at(b.srv2.addr, whoPort), "srv2", addr)
			b.host(node, addr).reaches(t, at(b.svc2, whoPort), "srv2", addr)
		}
		c := b.client(1)
		for _, addr := range nodes {
			c.reaches(t, at(addr, nodePort1+nodeWho), "srv1", client1Addr)
			c.reaches(t, at(addr, nodePort2+nodeWho), "srv2", client1Addr)
			c.reaches(t, at(addr, nodePort2+nodeUDP), "srv2", client1Addr, "--udp")
		}
	}
	t.Run("without a tunnel", all)
	t.Run("limits of pods", b.limitsOfPods)
	for _, srv := range []*place{b.srv1, b.srv2} {
		b.policy(t, "only-cli1-"+srv.pod, `{podSelector: {matchLabels: {pod: `+srv.pod+`}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}]}]}`)
		b.cli2.soon(t, at(srv.addr, whoPort), false)
		b.cli1.reaches(t, at(srv.addr, whoPort), srv.pod, b.cli1.addr)
		b.noPolicy(t, "only-cli1-"+srv.pod)
		b.cli2.soon(t, at(srv.addr, whoPort), true)
	}
	b.poolMode(t, "Always")
	eventually(t, 0, "packets in the tunnel", func() error {
		before := b.encapsulated(t, "worker2")
		if r := b.cli1.dial(t, at(b.srv2.addr, whoPort), 5); r.Failed > 0 || b.encapsulated(t, "worker2")-before < 15 {
			return fmt.Errorf("%v packets: %v", b.encapsulated(t, "worker2")-before, r)
		}
		return nil
	})
	t.Run("in the tunnel", all)
}

// awaitPlane is awaitPlanes with one for all nodes.
func (l *lab) awaitPlane(t *testing.T, plane string) {
	t.Helper()
	want := map[string]string{}
	for node := range nodes {
		want[node] = plane
	}
	l.awaitPlanes(t, want)
}

// awaitPlanes waits until every node says that it has a data plane, and has nothing left of the
// other one.
func (l *lab) awaitPlanes(t *testing.T, want map[string]string) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("the data planes %v", want), func() error {
		for node, plane := range want {
			status, err := l.nodeStatus(node)
			if err != nil {
				return err
			}
			if status.Dataplane != plane {
				return fmt.Errorf("%s has %q, not %s", node, status.Dataplane, plane)
			}
			pins, err := l.exec(node, "find", "/sys/fs/bpf/weir", "-type", "f")
			if err != nil {
				return err
			}
			tables, err := l.exec(node, "nft", "list", "tables")
			if err != nil {
				return err
			}
			if standard := plane == "nftables"; standard != strings.Contains(tables, "table ip weir\n") || standard != (strings.TrimSpace(pins) == "") {
				return fmt.Errorf("%s has the tables %q and %d pins", node, tables, len(strings.Fields(pins)))
			}
		}
		return nil
	})
}

// agentsNamed checks that the agents' processes have their name, by which others find them, also
// after they started again in their own place.
func (l *lab) agentsNamed(t *testing.T) {
	t.Helper()
	for node := range nodes {
		pid, err := l.agentPID(node)
		if err != nil {
			t.Fatal(err)
		}
		if name := strings.TrimSpace(l.must(t, node, "cat", "/proc/"+pid+"/comm")); name != "weir-agent" {
			t.Errorf("the process of %s's agent is called %q", node, name)
		}
	}
}

// trial is a series of connections that goes on until it is ended, whatever becomes of them.
type trial struct {
	what string
	stop chan struct{}
	done sync.WaitGroup
	sum  dialResult
	err  error

	over func() // begins to end it
}

func (r *trial) finish() {
	r.over()
	r.done.Wait()
}

// tries begins a trial.
func (p *place) tries(t *testing.T, to string) *trial {
	r := &trial{what: fmt.Sprintf("%v dials %s", p, to), stop: make(chan struct{})}
	r.over = sync.OnceFunc(func() { close(r.stop) })
	t.Cleanup(r.finish)
	r.done.Go(func() {
		for {
			select {
			case <-r.stop:
				return
			default:
			}
			out, err := p.do(p.traffic, "dial", to, "--count", "100", "--every", "20ms", "--timeout", "500ms")
			var part dialResult
			if err == nil {
				err = json.Unmarshal([]byte(out), &part)
			}
			if err != nil {
				r.err = err
				return
			}
			r.sum.Attempts, r.sum.Failed = r.sum.Attempts+part.Attempts, r.sum.Failed+part.Failed
			r.sum.Names, r.sum.Seen = append(r.sum.Names, part.Names...), append(r.sum.Seen, part.Seen...)
		}
	})
	return r
}

// end ends it and returns what became of all connections.
func (r *trial) end(t *testing.T) dialResult {
	t.Helper()
	r.finish()
	if r.err != nil {
		t.Fatalf("%s: %v", r.what, r.err)
	}
	return r.sum
}
