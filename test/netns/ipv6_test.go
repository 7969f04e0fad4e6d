// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// TestSeveralAddresses: a node's uplink has an address that the cluster does not know it by, and
// that the kernel prefers as a source. What nodes send each other bears the one that it is known
// by.
func TestSeveralAddresses(t *testing.T) {
	f := newFixture(t, ipv6)
	for _, n := range f.nodes {
		run(t, "ip -n %s addr add %s/120 dev eth0 nodad", n.netns, sixOf("172.30.0.77"))
	}
	f.encapsulate(model.EncapAlways)
	f.routed = true
	f.service("far", "10.96.0.2", 30002, f.c)
	f.apply()
	for _, nw := range networks {
		want(t, nw+" other node", f.a.reaches("c", nw, f.c.at("8080")), "10.244.1.2")
		want(t, nw+" node to a pod elsewhere", f.n1.reaches("c", nw, f.c.at("8080")), "172.30.0.8")
		want(t, nw+" client by a node", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
		want(t, nw+" outside, translated", f.a.reaches("client", nw, "172.30.0.55:7000"), "172.30.0.8")
	}
}

// TestIPv6SwitchedOnAndOff: a node of IPv4 begins to carry IPv6 and stops again. Connections of
// IPv4 see nothing of it.
func TestIPv6SwitchedOnAndOff(t *testing.T) {
	f := newFixture(t, ipv6)
	f.service("far", "10.96.0.2", 30002, f.c)
	carry := func(on bool) {
		t.Helper()
		f.cluster.Settings.IPv6Support = on
		f.apply()
	}
	four := func(when string) {
		t.Helper()
		if a := f.a.callIn(ipv4, request{Op: "talk", ID: 4}); a.Err != "" {
			t.Errorf("%s: a connection of IPv4: %s", when, a.Err)
		}
		if a := f.client.callIn(ipv4, request{Op: "get", Net: "tcp", Addr: "172.30.0.8:30002"}); a.Err != "" {
			t.Errorf("%s: a new connection of IPv4: %s", when, a.Err)
		}
	}
	carry(false)
	if a := f.a.callIn(ipv4, request{Op: "open", Net: "tcp", Addr: f.c.at("8080"), ID: 4}); a.Err != "" {
		t.Fatal(a.Err)
	}
	for i := range 2 {
		four("without IPv6")
		f.a.refused("tcp", f.c.at("8080"))
		f.client.refused("tcp", "172.30.0.8:30002")
		carry(true)
		four("with IPv6")
		for _, nw := range networks {
			f.a.reaches("c", nw, f.c.at("8080"))
			f.a.reaches("c", nw, "10.96.0.2:80")
			f.n1.reaches("c", nw, "10.96.0.2:80")
			f.client.reaches("c", nw, "172.30.0.8:30002")
		}
		if a := f.a.call(request{Op: "open", Net: "tcp", Addr: f.c.at("8080"), ID: 60 + i}); a.Err != "" {
			t.Fatal(a.Err)
		}
		carry(false)
		if a := f.a.call(request{Op: "talk", ID: 60 + i, Timeout: 400}); a.Err == "" {
			t.Error("a connection of IPv6 goes on although the node does not carry it")
		}
	}
}

// TestIPv6Restart: each node's driver is killed and started again, with connections of both
// families open all the time, of pods, the node's processes and clients.
func TestIPv6Restart(t *testing.T) {
	f := newFixture(t, ipv6)
	f.service("far", "10.96.0.2", 30002, f.c)
	f.apply()
	open := map[string]*worker{f.c.at("8080"): f.a.worker, "10.96.0.2:80": f.n1.worker, "172.30.0.8:30002": f.client.worker}
	check := func(when, op string) {
		t.Helper()
		for addr, w := range open {
			for id, nw := range networks {
				if a := w.call(request{Op: op, Net: nw, Addr: addr, ID: id}); a.Err != "" {
					t.Errorf("%s: %s -> %s %s: %s", when, w.name, nw, addr, a.Err)
				}
			}
		}
	}
	check("at first", "open")
	for range 2 {
		for _, n := range f.nodes {
			n.driver.kill()
		}
		check("while no process is there", "talk")
		for _, n := range f.nodes {
			n.startAgain(t)
		}
		check("after the restart", "talk")
	}
	f.n1.reaches("c", "udp", "10.96.0.2:80")
}
