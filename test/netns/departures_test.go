// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/reason"
)

// needFQ is for tests of what waits in queues of the kind fq.
func needFQ(t *testing.T, netns string) {
	t.Helper()
	if out, err := exec.Command("tc", "-n", netns, "qdisc", "add", "dev", "lo", "root", "fq").CombinedOutput(); err != nil {
		t.Skipf("this kernel has no queue of the kind fq: %s", out)
	}
	run(t, "tc -n %s qdisc del dev lo root", netns)
}

// waited is how many packets a node has led to the devices in which they wait.
func (n *node) waited(t *testing.T) (packets int) {
	t.Helper()
	text := run(t, "ip netns exec %s sh -c 'cat /sys/class/net/weirq*/statistics/tx_packets'", n.netns)
	if _, err := fmt.Sscan(text, &packets); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return packets
}

// rootQueue is the queue of a node's uplink.
func (n *node) rootQueue(t *testing.T) string {
	t.Helper()
	return run(t, "tc -n %s qdisc show dev eth0 root", n.netns)
}

// TestDepartures holds that pods are held to their egress bandwidth by departure times: at the
// uplink what surely leaves the node, in the pod's device what may not, as what is for a Service;
// that a queue that somebody chose for an uplink stays, and limits are in force all the same; that
// what cannot wait is counted; and that nothing is left of it afterwards.
func TestDepartures(t *testing.T) { inEBPF(t, testDepartures) }

func testDepartures(t *testing.T, fam family) {
	const rate = 4e6 // bits a second; kernels that have fq run in an emulator
	ms := 1500
	if nettest.Measuring() {
		ms = 10_000
	}
	f := newFixture(t, fam)
	needFQ(t, f.n1.netns)
	f.n1.driver.kill()
	f.n1.driver.times = true
	f.n1.driver.start()
	f.sinks()
	f.service("sink", "10.96.0.78", 30078, f.b)
	f.slices("sink", 8091, []model.ServiceEndpoint{{Addrs: f.b.local.Addrs[:1], Node: "n1", Ready: true, Serving: true}})
	f.apply()
	free := func(from, to *pod) {
		t.Helper()
		best := 0.0 // of some tries: an emulated processor stands still now and then
		for range 10 {
			if best = max(best, from.gbits(to.at("8091"), 300)*1e9); best >= 3*rate {
				return
			}
		}
		t.Errorf("%.3g bit/s from %s to %s, whom nothing limits", best, from.name, to.name)
	}
	// With link packets wait at the uplink alone.
	held := func(what, addr string, link bool) {
		t.Helper()
		before := f.n1.waited(t)
		f.held(what, f.a, addr, rate, ms)
		if n := f.n1.waited(t) - before; (n < 20) != link {
			t.Errorf("%s: %d packets waited in the pod's device", what, n)
		}
	}
	before := f.n1.rootQueue(t)
	run(t, "tc -n %s qdisc replace dev eth0 root handle 7: pfifo limit 1000", f.n1.netns)
	f.limited(&model.QoS{Egress: model.Limits{Bandwidth: rate}})
	if got := f.n1.rootQueue(t); !strings.Contains(got, "pfifo 7:") {
		t.Errorf("the queue that somebody chose is %q now", got)
	}
	held("egress to another node, with another queue", f.c.at("8091"), false)
	f.limited(nil)
	if got := f.n1.rootQueue(t); !strings.Contains(got, "pfifo 7:") {
		t.Errorf("the queue that somebody chose is %q afterwards", got)
	}
	run(t, "tc -n %s qdisc del dev eth0 root", f.n1.netns)

	f.limited(&model.QoS{Egress: model.Limits{Bandwidth: rate}})
	// Of a device with several queues each has fq, below mq.
	if root, all := f.n1.rootQueue(t), run(t, "tc -n %s qdisc show dev eth0", f.n1.netns); !strings.Contains(root, " 5e1d: root") || !strings.Contains(all, "qdisc fq ") {
		t.Errorf("the uplink's queues are\n%s", all)
	}
	held("egress to another node", f.c.at("8091"), true)
	held("egress on one node", f.b.at("8091"), false)
	held("egress to a Service of the node", "10.96.0.78:80", false)
	free(f.c, f.a)
	free(f.b, f.c)
	f.encapsulate(model.EncapAlways)
	f.apply()
	held("egress in the tunnel", f.c.at("8091"), true)

	f.countDatagrams(f.c.worker)
	f.limited(&model.QoS{Egress: model.Limits{Bandwidth: 8000}})
	n, got, _, seconds := f.datagrams(f.a.worker, f.c.worker, f.c.at("8095"), 500, 1000)
	if got > n/2 {
		t.Errorf("%d of %d datagrams arrived in %.1f s", got, n, seconds)
	}
	f.apply()
	if dropped := int(f.n1.driver.last.Dropped[reason.Bandwidth]); dropped < n/2 || dropped > n {
		t.Errorf("%d of %d datagrams were dropped as too late", dropped, n)
	}

	f.limited(nil)
	free(f.a, f.b)
	free(f.a, f.c)
	if got := f.n1.rootQueue(t); got != before {
		t.Errorf("the uplink's queue was %q and is %q", before, got)
	}
	if text := run(t, "ip -n %s link", f.n1.netns); strings.Contains(text, "weirq") {
		t.Errorf("a device is left:\n%s", text)
	}
}
