// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// inIPIP is how many bytes fit into IP in IP on the test's link.
const inIPIP = 1480

// ipip makes the pool one of IP in IP.
func (f *fixture) ipip(mode model.EncapMode) {
	p := *f.cluster.Pools["default"]
	p.VXLAN, p.IPIP = model.EncapNever, mode
	f.cluster.Pools["default"] = &p
}

// TestIPIP: pods, Services, node ports and the nodes' own processes reach pods of other nodes by IP
// in IP, with segments as large as the device takes at once, and senders learn what fits.
func TestIPIP(t *testing.T) {
	for _, routed := range []bool{false, true} {
		t.Run(map[bool]string{false: "ebpf-link", true: "ebpf-routed"}[routed], func(t *testing.T) {
			f := newFixture(t, ipv4)
			f.routed = routed
			f.ipip(model.EncapAlways)
			f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
			f.service("dns", "10.96.0.2", 30002, f.c)
			f.apply()
			for _, w := range []*worker{f.a.worker, f.c.worker, f.n1.worker} {
				w.listen("tcp", ":8090")
			}
			f.echoService("bulk", "10.96.0.4", 30004, f.c)
			f.apply()
			f.podsReachEachOther(t)
			f.policyHolds(t)
			f.a.bulk("pod", f.c.at("8090"))
			f.c.bulk("pod, the other way", f.a.at("8090"))
			f.a.bulk("Service", "10.96.0.4:80")
			f.n1.bulk("node to pod", f.c.at("8090"))
			f.n1.bulk("node to Service", "10.96.0.4:80")
			f.client.bulk("node port, backend elsewhere", "172.30.0.8:30004")
			f.client.bulk("node port, backend there", "172.30.0.9:30004")
			f.a.learns("pod", f.c.at("8080"), inIPIP)
			f.a.learns("Service", "10.96.0.2:80", inIPIP)
			if routed {
				f.client.learns("node port, handed on", "172.30.0.8:30002", inIPIP)
				if dev := run(t, "ip -n %s -s -j link show vxlan.calico", f.n1.netns); !strings.Contains(dev, `"tx":{"bytes":0,`) {
					t.Errorf("something went by VXLAN: %s", dev)
				}
			}
		})
	}
}

// TestIPIPLive: a pool's mode changes between none, IP in IP and VXLAN while connections are open.
// None is lost, and what is sent while both nodes know the same arrives.
func TestIPIPLive(t *testing.T) {
	t.Run("ebpf-IPv4", func(t *testing.T) {
		f := newFixture(t, ipv4)
		f.apply()
		f.c.listen("tcp", ":8090")
		if a := f.a.call(request{Op: "open", Net: "tcp", Addr: f.c.at("8080"), ID: 1}); a.Err != "" {
			t.Fatal(a.Err)
		}
		for i, change := range []func(){
			func() { f.ipip(model.EncapAlways) }, func() { f.ipip(model.EncapNever); f.encapsulate(model.EncapAlways) }, func() { f.ipip(model.EncapAlways) },
			func() { f.ipip(model.EncapNever) }, func() { f.ipip(model.EncapAlways) },
		} {
			change()
			f.apply()
			if a := f.a.call(request{Op: "talk", ID: 1, Timeout: 20_000}); a.Err != "" {
				t.Errorf("after change %d the open connection says %s", i+1, a.Err)
			}
			f.a.bulk("a new connection", f.c.at("8090"))
		}
	})
}
