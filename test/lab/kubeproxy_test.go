// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// In the changes of one round at most so many datagrams may be lost, alongside those that the
// kernel dropped because a CPU's queue or a socket's buffer was full, and so many new connections
// fail (see "Known limits" in docs/design/nftables.md), where the machine has nothing else to do
// (-judge): nodes differ for as long as their agents take to start. Otherwise it may be the share
// of all that goes with some ten seconds of a busy machine.
const (
	fewDatagrams = 100
	fewDials     = 30
	longestGap   = 5000 // ms; 0.8 to 1.1 s were measured on a busy machine
	busyShare    = 0.05
	// serversRan is for how long a server may have waited for a processor where its buffer (some
	// 200 KB, 300 datagrams) did not run over by that.
	serversRan = 300 * time.Millisecond
)

// TestFromKubeProxy goes from a real kube-proxy to Weir and back by the commands that the
// documentation names, with connections of all kinds open from before each step, and new ones all
// the time. "by nftables" waits until Weir's nftables data plane carries Services, and kube-proxy's
// rules are gone, before eBPF is switched on; "at once" does not wait, and "eBPF first" has eBPF
// before kube-proxy goes.
func TestFromKubeProxy(t *testing.T) {
	alongside = &lab{name: *proxyFlag, bin: all.bin, traffic: all.traffic, tests: 1}
	alongside.inParallel(t)
	p := newProxied(t)
	cases := []struct{ mode, how string }{{"iptables", "by nftables"}, {"nftables", "at once"}}
	if *proxyAll {
		cases = []struct{ mode, how string }{{"iptables", "by nftables"}, {"iptables", "at once"}, {"iptables", "eBPF first"},
			{"nftables", "by nftables"}, {"nftables", "at once"}, {"nftables", "eBPF first"}}
	}
	for _, mode := range []string{"iptables", "nftables"} { // each time that the mode changes, all kube-proxies start anew
		t.Run("one node has eBPF, "+mode, func(t *testing.T) { p.oneFirst(t, mode) })
		for _, c := range cases {
			if c.mode == mode {
				t.Run(c.mode+" "+c.how, func(t *testing.T) { p.thereAndBack(t, c.mode, c.how) })
			}
		}
	}
}

// round is one way from kube-proxy to eBPF and back.
type round struct {
	*proxied
	open    []*opened
	dropped int // by full queues and buffers, before
	lost    int // datagrams
	sent    int
	failed  int // new connections
	tried   int
	waited  time.Duration // a server for a processor, at most
}

// oneFirst gives one node eBPF, while the others have a kube-proxy: what it hands on is translated
// by the node of the backend, with the client's address, and all else by kube-proxy.
func (p *proxied) oneFirst(t *testing.T, mode string) {
	p.eBPF(t, false)
	p.withProxy(t)
	p.proxyMode(t, mode)
	p.awaitPlane(t, "nftables")
	p.awaitServices(t, "kube-proxy")
	// What a client opened in the case before stays translated as kube-proxy did for half a minute,
	// on the node that has eBPF too, and a new socket may have the port of one of so many.
	for _, addr := range []string{client1Addr, client2Addr} {
		p.must(t, "worker1", "sh", "-c", "conntrack -D -p udp -s "+addr+" >/dev/null 2>&1; left=$(conntrack -L -p udp -s "+addr+" 2>/dev/null) && test -z \"$left\"")
	}
	p.mustKubectl(t, `{"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "node.worker1"}, "spec": {"bpfEnabled": true}}`, "apply", "-f", "-")
	t.Cleanup(func() {
		p.mustKubectl(t, "", "delete", "felixconfigurations.projectcalico.org", "node.worker1")
		p.awaitPlane(t, "nftables")
		p.agentsReady(t, 0, nil)
	})
	p.awaitPlanes(t, map[string]string{"cp": "nftables", "worker1": "eBPF", "worker2": "nftables"})
	p.agentsReady(t, 0, nil)
	for i, addr := range map[int]string{1: client1Addr, 2: client2Addr} {
		c := p.client(i)
		c.reaches(t, at(worker1Addr, nodePort2+nodeWho), "srv2", addr)
		c.reaches(t, at(worker1Addr, nodePort2+nodeUDP), "srv2", addr, "--udp")
		c.reaches(t, at(worker1Addr, nodePort1+nodeWho), "srv1", addr)
		c.reaches(t, at(worker2Addr, nodePort2+nodeWho), "srv2", worker2Addr)
		c.reaches(t, at(worker2Addr, nodePort1+nodeWho), "srv1", worker2Addr)
		c.reaches(t, at(worker2Addr, nodePortLocal+nodeWho), "srv2", addr)
	}
	for ip, name := range map[string]string{p.ip1: "srv1", p.ip2: "srv2"} {
		for _, from := range []*place{p.cli1, p.cli2, p.host("cp", cpAddr), p.host("worker1", worker1Addr)} {
			from.reaches(t, at(ip, whoPort), name, "")
		}
	}
}

func (p *proxied) thereAndBack(t *testing.T, mode, how string) {
	figures.begin(t)
	p.eBPF(t, false)
	p.withProxy(t)
	p.proxyMode(t, mode)
	p.awaitPlane(t, "nftables")
	p.awaitServices(t, "kube-proxy")
	p.carriedBy(t, "kube-proxy")
	p.client(1).begin(t, "server", "--until-stdin-ends", fmt.Sprintf("--echo=%d", echoPort), fmt.Sprintf("--udp=%d", udpPort))
	r := &round{proxied: p, dropped: p.machineDrops(t, p.pods()...)}
	r.begin(t, "kube-proxy", false)
	tries := p.newOnes(t)
	r.measureMachine(t)
	began := time.Now()
	r.there(t, how)
	note(t, "from kube-proxy to eBPF without its rules (s)", time.Since(began).Seconds())
	p.agentsReady(t, 0, nil)
	p.carriedBy(t, "Weir")
	r.begin(t, "eBPF", true)
	r.newOnesWent(t, "to eBPF", tries)
	r.noteWaits(t, "to eBPF")
	tries = p.newOnes(t)
	r.back(t, mode)
	r.newOnesWent(t, "back", tries)
	r.noteWaits(t, "back")
	r.end(t)
}

// measureMachine says how long servers wait for a processor while nothing changes, with the same
// connections.
func (r *round) measureMachine(t *testing.T) {
	t.Helper()
	r.serversWaited(t) // forgets what was before
	time.Sleep(3 * time.Second)
	r.noteWaits(t, "while nothing changes")
}

// noteWaits notes for how long a server waited for a processor since the last call.
func (r *round) noteWaits(t *testing.T, when string) {
	t.Helper()
	longest := r.serversWaited(t)
	note(t, "longest wait of a server for a processor, "+when+" (ms)", float64(longest.Milliseconds()))
	r.waited = max(r.waited, longest)
}

// begin opens connections.
func (r *round) begin(t *testing.T, since string, few bool) {
	t.Helper()
	r.open = append(r.open, r.proxied.open(t, since, r.kinds(few)))
}

// step does something and notes how long it took; no connection may have ended by then.
func (r *round) step(t *testing.T, what string, f func(t *testing.T)) {
	t.Helper()
	began := time.Now()
	f(t)
	note(t, what+" (s)", time.Since(began).Seconds())
	for _, o := range r.open {
		o.alive(t, what)
	}
}

// there goes from kube-proxy to eBPF.
func (r *round) there(t *testing.T, how string) {
	t.Helper()
	toEBPF := func(t *testing.T) { r.awaitPlane(t, "eBPF") }
	switch how {
	case "by nftables":
		r.withoutProxy(t)
		r.step(t, "Weir carries Services", func(t *testing.T) { r.awaitServices(t, "Weir") })
		r.begin(t, "nftables with rules of kube-proxy", true)
		r.step(t, "kube-proxy's rules are gone", r.awaitNoRules)
		r.carriedBy(t, "Weir")
		r.eBPF(t, true)
		r.step(t, "all nodes have eBPF", toEBPF)
	case "at once":
		r.withoutProxy(t)
		r.eBPF(t, true)
		r.step(t, "all nodes have eBPF", toEBPF)
		r.begin(t, "eBPF with rules of kube-proxy", true)
		r.step(t, "kube-proxy's rules are gone", r.awaitNoRules)
	case "eBPF first":
		r.eBPF(t, true)
		r.step(t, "all nodes have eBPF", toEBPF)
		r.begin(t, "eBPF alongside kube-proxy", true)
		r.carriedBy(t, "Weir")
		r.withoutProxy(t)
		r.step(t, "kube-proxy's rules are gone", r.awaitNoRules)
	}
}

// back goes from eBPF to kube-proxy.
func (r *round) back(t *testing.T, mode string) {
	t.Helper()
	used := r.agentCPU(t, "worker2")
	r.eBPF(t, false)
	r.step(t, "all nodes have nftables", func(t *testing.T) { r.awaitPlane(t, "nftables") })
	r.carriedBy(t, "Weir")
	note(t, "processor time of worker2's agent, to nftables (ms)", float64((r.agentCPU(t, "worker2") - used).Milliseconds()))
	r.withProxy(t)
	r.step(t, "kube-proxy carries Services again", func(t *testing.T) { r.awaitServices(t, "kube-proxy") })
	r.proxyRuns(t, mode)
	r.carriedBy(t, "kube-proxy")
	r.notInTheWay(t)
	r.step(t, "kube-proxy has carried Services", func(*testing.T) { time.Sleep(3 * time.Second) })
}

// end ends all connections, and says what was lost.
func (r *round) end(t *testing.T) {
	t.Helper()
	ran := r.waited <= serversRan
	if !ran {
		fmt.Printf("    %s: this machine let a server wait %v for a processor: datagrams that its buffer had no room for are judged with those that the kernel counts, not by flow\n",
			t.Name(), r.waited)
	}
	var open []*running
	for _, o := range r.open {
		open = append(append(open, o.tcp...), o.datagrams...)
	}
	stopAll(open)
	gap := 0.0
	for _, o := range r.open {
		g, lost, sent := o.end(t, ran)
		gap, r.lost, r.sent = max(gap, g), r.lost+lost, r.sent+sent
	}
	full := r.machineDrops(t, r.pods()...) - r.dropped
	note(t, "longest gap of a connection (ms)", gap)
	note(t, "datagrams lost", float64(r.lost))
	note(t, "packets dropped by full queues and buffers of the machine", float64(full))
	note(t, "new connections that failed", float64(r.failed))
	datagrams, dials := fewDatagrams, fewDials
	if !*strictTiming {
		datagrams, dials = max(datagrams, int(busyShare*float64(r.sent))), max(dials, int(busyShare*float64(r.tried)))
	}
	if r.lost > full+datagrams {
		t.Errorf("%d datagrams of %d were lost, and full queues and buffers dropped %d packets", r.lost, r.sent, full)
	}
	if *strictTiming && gap > longestGap {
		t.Errorf("a connection stopped for %.0f ms", gap)
	}
	if r.failed > dials {
		t.Errorf("%d new connections of %d failed", r.failed, r.tried)
	}
}

// carriedBy determines who carries Services by whom a backend sees: kube-proxy puts the node's
// address in the client's place, Weir does not. All kinds of new connections work.
func (p *proxied) carriedBy(t *testing.T, who string) {
	t.Helper()
	seen := client1Addr
	if who == "kube-proxy" {
		seen = worker1Addr
	}
	eventually(t, 0, "what backends see is what "+who+" makes", func() error {
		if r := p.client(1).dial(t, at(worker1Addr, nodePortSeen+nodeWho), 3); r.Failed > 0 || strings.Join(r.Seen, " ") != seen {
			return fmt.Errorf("%v, want %s", r, seen)
		}
		return nil
	})
	p.client(1).reaches(t, at(worker1Addr, nodePortSeen+nodeWho), "srv2", seen)
	p.client(1).reaches(t, at(worker1Addr, nodePortSeen+nodeUDP), "srv2", seen, "--udp")
	p.client(2).reaches(t, at(worker2Addr, nodePortLocal+nodeWho), "srv2", client2Addr)
	for _, from := range []*place{p.cli1, p.cli2, p.host("cp", cpAddr), p.host("worker1", worker1Addr)} {
		for ip, name := range map[string]string{p.ip1: "srv1", p.ip2: "srv2"} {
			from.reaches(t, at(ip, whoPort), name, "")
			from.reaches(t, at(ip, udpPort), name, "", "--udp")
		}
	}
	p.srv1.reaches(t, at(p.ip1, whoPort), "srv1", "")
}

// notInTheWay looks that nothing of Weir's is where kube-proxy's rules do their work: no Service in
// the maps in which anybody's packets are looked up, no look-up in the others but for what another
// node sent, and there is no table of a switch and no program.
func (p *proxied) notInTheWay(t *testing.T) {
	t.Helper()
	for node := range nodes {
		for _, name := range []string{"services", "node-ports"} {
			if out := p.must(t, node, "nft", "list", "map", "ip", "weir", name); strings.Contains(out, "elements") {
				t.Errorf("%s: Services in Weir's tables alongside kube-proxy: %s", node, out)
			}
		}
		choices := 0
		for line := range strings.Lines(p.must(t, node, "nft", "list", "table", "ip", "weir")) {
			if line = strings.TrimSpace(line); !strings.Contains(line, " goto choose") {
				continue
			}
			choices++
			empty := strings.Contains(line, "@services goto") || strings.Contains(line, "@node-ports goto") || strings.Contains(line, "@host-ports goto") || strings.Contains(line, "@loopback-ports goto")
			fromNode := strings.HasPrefix(line, "meta mark & 0x1fff0000 != 0x00000000 ") // a node's number
			for _, sender := range []string{"@node-homes", "@node-links", "@nodes-bare"} {
				fromNode = fromNode || strings.Contains(line, sender)
			}
			if !empty && !fromNode {
				t.Errorf("%s: Weir's tables translate alongside kube-proxy by the rule %q", node, line)
			}
		}
		if choices < 5 {
			t.Errorf("%s: only %d rules of Weir's tables choose a backend", node, choices)
		}
		if out := p.must(t, node, "nft", "list", "tables"); strings.Contains(out, "weir-switch") || strings.Contains(out, "weir-kept") {
			t.Errorf("%s: %s", node, out)
		}
		if out := p.must(t, node, "bpftool", "net", "show"); strings.Contains(out, "weir") {
			t.Errorf("%s: programs alongside kube-proxy: %s", node, out)
		}
	}
}

// newOnes begins new connections, all the time.
func (p *proxied) newOnes(t *testing.T) []*running {
	t.Helper()
	dial := func(from *place, to string, args ...string) *running {
		return from.begin(t, append([]string{"dial", to, "--every", "50ms", "--timeout", "10s"}, args...)...)
	}
	return []*running{
		dial(p.cli1, at(p.ip2, whoPort)), dial(p.cli1, at(p.ip2, udpPort), "--udp"),
		dial(p.client(1), at(worker1Addr, nodePort2+nodeWho)), dial(p.client(1), at(worker1Addr, nodePort2+nodeUDP), "--udp"),
		dial(p.host("cp", cpAddr), at(p.ip12, whoPort)), dial(p.host("cp", cpAddr), at(p.ip12, udpPort), "--udp"),
	}
}

// newOnesWent counts how many failed, and how many had to send their SYN again.
func (r *round) newOnesWent(t *testing.T, when string, tries []*running) {
	t.Helper()
	attempts, failed, slow := map[bool]int{}, map[bool]int{}, 0
	stopAll(tries)
	for _, try := range tries {
		udp := strings.HasSuffix(try.what, "--udp")
		d := result[dialResult](t, try)
		if d.Failed > 0 || d.Slow > 0 {
			fmt.Printf("    %s: %v\n", try.what, d)
		}
		attempts[udp], failed[udp], slow = attempts[udp]+d.Attempts, failed[udp]+d.Failed, slow+d.Slow
		if d.Attempts < 100 {
			t.Errorf("%s: %v", try.what, d)
		}
	}
	r.failed, r.lost = r.failed+failed[false], r.lost+failed[true]
	r.tried, r.sent = r.tried+attempts[false], r.sent+attempts[true]
	note(t, "new connections, "+when+", TCP", float64(attempts[false]))
	note(t, "new connections, "+when+", TCP that failed", float64(failed[false]))
	note(t, "new connections, "+when+", TCP whose SYN was sent again", float64(slow))
	note(t, "new connections, "+when+", UDP", float64(attempts[true]))
	note(t, "new connections, "+when+", UDP without an answer", float64(failed[true]))
}
