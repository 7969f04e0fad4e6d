// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
)

// limited gives pod a of a fixture limits.
func (f *fixture) limited(q *model.QoS) {
	f.a.obj.QoS = q
	f.cluster.Pods.Put(f.a.obj)
	f.apply()
}

// datagrams sends some and returns how many were sent in how many seconds, how many arrived, and
// the traffic class of the last.
func (f *fixture) datagrams(from, to *worker, addr string, rate, ms int) (sent, arrived, class int, seconds float64) {
	f.t.Helper()
	to.call(request{Op: "received"})
	a := from.call(request{Op: "pace", Addr: addr, Size: rate, Every: ms, Timeout: 60_000})
	if a.Err != "" {
		f.t.Fatalf("%s: %s", from.name, a.Err)
	}
	sent = a.Counters["sent"]
	for quiet := 0; quiet < 3 && arrived < sent; quiet++ { // a busy machine reads some later
		time.Sleep(100 * time.Millisecond)
		got := to.call(request{Op: "received"})
		n := got.Counters["datagrams"]
		if n != got.Counters["with"] {
			f.t.Fatalf("%d datagrams, the traffic class of %d", n, got.Counters["with"])
		}
		if arrived, class = arrived+n, got.Counters["tos"]; n > 0 {
			quiet = 0
		}
	}
	return sent, arrived, class, float64(a.Counters["µs"]) / 1e6
}

func (f *fixture) countDatagrams(all ...*worker) {
	f.t.Helper()
	for _, w := range all {
		if a := w.call(request{Op: "count datagrams", Addr: ":8095"}); a.Err != "" {
			f.t.Fatal(a.Err)
		}
	}
}

// TestPacketRate holds that a pod sends, and gets, no more packets in a second than it may, and not
// much less; that other pods, and the other direction, have no part in it; and that what the node's
// own processes send it is not limited.
func TestPacketRate(t *testing.T) { inBoth(t, testPacketRate) }

func testPacketRate(t *testing.T, fam family) {
	const rate, burst, sent, ms = 100, 20, 500, 1500
	f := newFixture(t, fam)
	f.countDatagrams(f.a.worker, f.b.worker, f.c.worker, f.n1.worker)
	f.apply()
	free := func(what string, from, to *worker, addr string) {
		t.Helper()
		if n, got, _, _ := f.datagrams(from, to, addr, sent, 300); got < n-mostLost {
			t.Errorf("%s: %d of %d arrived, which nothing limits", what, got, n)
		}
	}
	held := func(what string, from, to *worker, addr string) {
		t.Helper()
		n, got, _, seconds := f.datagrams(from, to, addr, sent, ms)
		most := burst + rate*seconds
		// When a busy machine holds the sender up for longer than a burst, the rate of that time is
		// lost.
		if least := rate * seconds * 0.5; float64(got) > most+2 || float64(got) < least {
			t.Errorf("%s: %d of %d arrived in %.2f s, want %.0f to %.0f", what, got, n, seconds, least, most)
		}
	}
	a, b, c, n1 := f.a.worker, f.b.worker, f.c.worker, f.n1.worker
	free("before", a, c, f.c.at("8095"))
	limit := model.Limits{PacketRate: rate, PacketBurst: burst}
	f.limited(&model.QoS{Egress: limit})
	held("egress to another node", a, c, f.c.at("8095"))
	held("egress on one node", a, b, f.b.at("8095"))
	held("egress to the node", a, n1, f.n1.addr.String()+":8095")
	free("the other direction", c, a, f.a.at("8095"))
	free("another pod", b, c, f.c.at("8095"))
	f.limited(&model.QoS{Ingress: limit})
	held("ingress from another node", c, a, f.a.at("8095"))
	held("ingress on one node", b, a, f.a.at("8095"))
	free("ingress from the node's own processes", n1, a, f.a.at("8095"))
	free("the other direction", a, c, f.c.at("8095"))
	free("another pod", c, b, f.b.at("8095"))
	f.limited(&model.QoS{Ingress: limit, Egress: model.Limits{Bandwidth: 100e6, PacketRate: rate, PacketBurst: burst}})
	held("with a queue", a, c, f.c.at("8095"))
	held("with a queue, ingress", c, a, f.a.at("8095"))
	f.limited(nil)
	free("after", a, c, f.c.at("8095"))
	free("after", c, a, f.a.at("8095"))
}

// TestDSCP holds that a pod's packets that leave the cluster bear the DSCP that it should give
// them, with ECN as it was, and that those that stay bear what the pod gave them.
func TestDSCP(t *testing.T) { inBoth(t, testDSCP) }

func testDSCP(t *testing.T, fam family) {
	const own, ef = 8<<2 | 2, 46<<2 | 2
	f := newFixture(t, fam)
	f.countDatagrams(f.b.worker, f.c.worker, f.n1.worker, f.n2.worker, f.client.worker)
	class := func(what string, to *worker, addr string, want int) {
		t.Helper()
		n, got, class, _ := f.datagrams(f.a.worker, to, addr, 50, 200)
		if got < n-mostLost {
			t.Errorf("%s: %d of %d arrived", what, got, n)
		}
		if class != want {
			t.Errorf("%s: traffic class %#x, want %#x", what, class, want)
		}
	}
	outside := f.client.addr.String() + ":8095"
	f.apply()
	class("without", f.client.worker, outside, own)
	for _, masqueraded := range []bool{true, false} {
		for i := range f.cluster.Pools {
			f.cluster.Pools[i].NATOutgoing = masqueraded
		}
		f.limited(&model.QoS{DSCP: 46 + 1})
		class("out of the cluster", f.client.worker, outside, ef)
		class("to a pod of the node", f.b.worker, f.b.at("8095"), own)
		class("to a pod of another node", f.c.worker, f.c.at("8095"), own)
		class("to the node", f.n1.worker, f.n1.addr.String()+":8095", own)
		class("to another node", f.n2.worker, f.n2.addr.String()+":8095", own)
	}
	f.limited(&model.QoS{DSCP: 0 + 1, Egress: model.Limits{Bandwidth: 100e6}})
	class("DSCP 0, after a queue", f.client.worker, outside, 2)
	f.limited(nil)
	class("after", f.client.worker, outside, own)
}

// TestMaxConnections holds that a pod has no more connections open, in either direction, than it
// may; that one too many is reset at once, also by a Service; that what ended, or was refused, does
// not count; and that what the node's own processes open is not counted.
func TestMaxConnections(t *testing.T) { inBoth(t, testMaxConnections) }

func testMaxConnections(t *testing.T, fam family) {
	const most = 3
	f := newFixture(t, fam)
	f.service("limited", "10.96.0.77", 30077, f.a)
	f.apply()
	next := 100
	opens := func(what string, from *worker, addr string) int {
		t.Helper()
		next++
		if a := from.call(request{Op: "open", Net: "tcp", Addr: addr, ID: next}); a.Err != "" {
			t.Fatalf("%s: %s", what, a.Err)
		}
		return next
	}
	refused := func(what string, from *worker, addr string) {
		t.Helper()
		next++
		if a := from.call(request{Op: "open", Net: "tcp", Addr: addr, ID: next, Timeout: 5000}); !strings.Contains(a.Err, "connection refused") {
			t.Errorf("%s: got %q (%s), want a reset", what, a.Reply, a.Err)
		}
	}
	closes := func(from *worker, id int, what string, again *worker, addr string) {
		t.Helper()
		from.call(request{Op: "close", ID: id})
		await.That(t, what, func() error {
			next++
			if a := again.call(request{Op: "open", Net: "tcp", Addr: addr, ID: next, Timeout: 5000}); a.Err != "" {
				return errors.New(a.Err)
			}
			return nil
		})
	}
	a, b, c, n1 := f.a.worker, f.b.worker, f.c.worker, f.n1.worker
	limit := model.Limits{Connections: most}
	f.limited(&model.QoS{Egress: limit})
	for range 2 * most {
		if got := a.get("tcp", f.c.at("9999"), 5000); !strings.Contains(got.Err, "refused") {
			t.Fatalf("a port that nobody listens at: %q", got.Err)
		}
	}
	time.Sleep(100 * time.Millisecond) // the kernel's ct count knows of an end some jiffies later
	var ids []int
	for range most {
		ids = append(ids, opens("egress, as many as it may", a, f.c.at("8080")))
	}
	refused("egress, one more", a, f.c.at("8080"))
	refused("egress, one more, on one node", a, f.b.at("8080"))
	other := opens("the other direction", c, f.a.at("8080"))
	closes(a, ids[0], "another one, when one is closed", a, f.b.at("8080"))
	refused("egress, one more again", a, f.c.at("8080"))
	c.call(request{Op: "close", ID: other})

	f.limited(&model.QoS{Ingress: limit})
	ids = nil
	for range most {
		// What was closed a moment ago may count as older than the limit until it is looked for
		// again.
		await.That(t, "ingress, as many as it may", func() error {
			next++
			if a := c.call(request{Op: "open", Net: "tcp", Addr: f.a.at("8080"), ID: next, Timeout: 5000}); a.Err != "" {
				return errors.New(a.Err)
			}
			ids = append(ids, next)
			return nil
		})
	}
	refused("ingress, one more", c, f.a.at("8080"))
	refused("ingress, one more, on one node", b, f.a.at("8080"))
	refused("ingress, by a Service", b, "10.96.0.77:80")
	refused("ingress, by a node port", f.client.worker, f.n1.addr.String()+":30077")
	opens("the node's own processes", n1, f.a.at("8080"))
	opens("the other direction", a, f.c.at("8080"))
	closes(c, ids[0], "another one, when one is closed", b, "10.96.0.77:80")

	f.limited(nil)
	opens("after", c, f.a.at("8080"))
	opens("after", a, f.c.at("8080"))
}

// TestOlderConnections holds that connections that were open when a limit came take places of it,
// in either direction, until they are over; what the node's own processes opened takes none.
func TestOlderConnections(t *testing.T) { inBoth(t, testOlderConnections) }

func testOlderConnections(t *testing.T, fam family) {
	const most = 3
	f := newFixture(t, fam)
	f.n1.driver.kill()
	f.n1.driver.runs = true
	f.n1.driver.start()
	f.apply()
	next, open := 100, map[int]*worker{}
	opens := func(from *worker, addr string) (id int, err error) {
		next++
		if a := from.call(request{Op: "open", Net: "tcp", Addr: addr, ID: next, Timeout: 5000}); a.Err != "" {
			return next, errors.New(a.Err)
		}
		open[next] = from
		return next, nil
	}
	closes := func(id int) {
		open[id].call(request{Op: "close", ID: id})
		delete(open, id)
	}
	for what, d := range map[string][2]*worker{"egress": {f.a.worker, f.c.worker}, "ingress": {f.c.worker, f.a.worker}} {
		from, at, q := d[0], f.c.at("8080"), &model.QoS{Egress: model.Limits{Connections: most}}
		if what == "ingress" {
			at, q = f.a.at("8080"), &model.QoS{Ingress: model.Limits{Connections: most}}
		}
		ids := []int{}
		for range most {
			id, err := opens(from, at)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			ids = append(ids, id)
		}
		if _, err := opens(f.n1.worker, f.a.at("8080")); err != nil {
			t.Fatal(err)
		}
		f.limited(q)
		await.That(t, what+": one more is refused", func() error {
			id, err := opens(from, at)
			if err == nil {
				closes(id)
				return errors.New("it was opened")
			}
			if !strings.Contains(err.Error(), "connection refused") {
				t.Fatalf("%s: %v, want a reset", what, err)
			}
			return nil
		})
		closes(ids[0])
		await.That(t, what+": one more, when one of them is over", func() error {
			_, err := opens(from, at)
			return err
		})
		for range 2 {
			if _, err := opens(from, at); err == nil {
				t.Errorf("%s: one more again is open", what)
			}
		}
		f.limited(nil)
		for id := range open {
			closes(id)
		}
	}
}

// TestHostDSCP holds that what a node's own processes send out of the cluster by an interface bears
// the DSCP of its host endpoint, with ECN as it was; that what stays, and what pods send, does not.
func TestHostDSCP(t *testing.T) { inBoth(t, testHostDSCP) }

func testHostDSCP(t *testing.T, fam family) {
	const own, ef, cs3 = 8<<2 | 2, 46<<2 | 2, 24<<2 | 2
	f := newFixture(t, fam)
	f.countDatagrams(f.a.worker, f.c.worker, f.n2.worker, f.client.worker)
	class := func(what string, from, to *worker, addr string, want int) {
		t.Helper()
		n, got, class, _ := f.datagrams(from, to, addr, 50, 200)
		if got < n-mostLost {
			t.Errorf("%s: %d of %d arrived", what, got, n)
		}
		if class != want {
			t.Errorf("%s: traffic class %#x, want %#x", what, class, want)
		}
	}
	outside, n1 := f.client.addr.String()+":8095", f.n1.worker
	endpoint := func(name, at string, dscp uint8) {
		f.cluster.HostEndpoints[name] = &model.HostEndpoint{Name: name, Node: "n1", Interface: at, DSCP: dscp, Profiles: []string{model.ProfileDefaultAllow}}
	}
	endpoint("all", model.AllInterfaces, 0)
	f.apply()
	class("without", n1, f.client.worker, outside, own)
	endpoint("all", model.AllInterfaces, 46+1)
	f.apply()
	class("out of the cluster", n1, f.client.worker, outside, ef)
	class("to a pod of the node", n1, f.a.worker, f.a.at("8095"), own)
	class("to a pod of another node", n1, f.c.worker, f.c.at("8095"), own)
	class("to another node", n1, f.n2.worker, f.n2.addr.String()+":8095", own)
	class("of a pod", f.a.worker, f.client.worker, outside, own)
	endpoint("eth0", "eth0", 24+1)
	f.apply()
	class("by an interface with an endpoint of its own", n1, f.client.worker, outside, cs3)
	f.limited(&model.QoS{DSCP: 46 + 1})
	class("of a pod with one of its own", f.a.worker, f.client.worker, outside, ef)
	endpoint("eth0", "eth0", 0)
	f.apply()
	class("by an interface whose endpoint has none", n1, f.client.worker, outside, own)
	f.limited(nil)
	delete(f.cluster.HostEndpoints, "all")
	delete(f.cluster.HostEndpoints, "eth0")
	f.apply()
	class("after", n1, f.client.worker, outside, own)
}

// TestQoSSwitch holds that a pod with all limits has them in either data plane, and that nothing of
// the other one is left.
func TestQoSSwitch(t *testing.T) {
	t.Parallel()
	inEBPF(t, testQoSSwitch)
}

func testQoSSwitch(t *testing.T, fam family) {
	const rate, burst, most, ef = 100, 40, 2, 46<<2 | 2
	f := newFixture(t, fam)
	f.countDatagrams(f.a.worker, f.c.worker, f.client.worker)
	limit := model.Limits{Bandwidth: 50e6, PacketRate: rate, PacketBurst: burst, Connections: most}
	f.limited(&model.QoS{Ingress: limit, Egress: limit, DSCP: 46 + 1})
	next := 100
	for _, plane := range []string{"", "nft", "ebpf"} {
		if plane != "" {
			f.n1.goOver(t, plane)
		}
		if has := strings.Contains(run(t, "ip netns exec %s nft list tables", f.n1.netns), "inet weir"); has != (plane == "nft") {
			t.Errorf("%q: a table of limits is there: %t", plane, has)
		}
		for what, d := range map[string][2]*pod{"egress": {f.a, f.c}, "ingress": {f.c, f.a}} {
			n, got, _, seconds := f.datagrams(d[0].worker, d[1].worker, d[1].at("8095"), 500, 1000)
			if float64(got) > burst+rate*seconds+2 || float64(got) < rate*seconds*0.8 {
				t.Errorf("%q: %s: %d of %d datagrams arrived in %.2f s", plane, what, got, n, seconds)
			}
		}
		if _, _, class, _ := f.datagrams(f.a.worker, f.client.worker, f.client.addr.String()+":8095", 50, 200); class != ef {
			t.Errorf("%q: traffic class %#x", plane, class)
		}
		for what, d := range map[string][2]*pod{"egress": {f.a, f.c}, "ingress": {f.c, f.a}} {
			from, addr := d[0].worker, d[1].at("8080")
			for range most {
				next++
				if a := from.call(request{Op: "open", Net: "tcp", Addr: addr, ID: next}); a.Err != "" {
					t.Fatalf("%q: %s: %s", plane, what, a.Err)
				}
			}
			if a := from.get("tcp", addr, 5000); !strings.Contains(a.Err, "connection refused") {
				t.Errorf("%q: %s: one connection more: %q (%s)", plane, what, a.Reply, a.Err)
			}
			for id := next - most + 1; id <= next; id++ {
				from.call(request{Op: "close", ID: id})
			}
		}
	}
}
