// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/reason"
)

// kernelEnd makes a host one end of a tunnel of the kernel's to n1, to whose pods it leads.
func (h *host) kernelEnd(t *testing.T, n1 *node) {
	run(t, "ip -n %s tunnel add ipip1 mode ipip local %s remote %s; ip -n %s link set ipip1 up; ip -n %s route add 10.244.1.0/26 dev ipip1 src %s; "+
		"ip netns exec %s sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.ipip1.rp_filter=0",
		h.netns, h.addr, n1.addr, h.netns, h.netns, h.addr, h.netns)
}

// TestIPIPKernel: the programs exchange packets with a device of the kernel's at the other end: TCP
// in segments as large as it takes at once, datagrams, what fits, and policy on what is inside. A
// machine that is no node gets nothing in by such a device.
func TestIPIPKernel(t *testing.T) {
	t.Run("ebpf-IPv4", func(t *testing.T) {
		needIPIP(t)
		f := newFixture(t, ipv4)
		f.ipip(model.EncapAlways)
		f.routed = true
		f.n1.apply() // n2 has the kernel's device alone, and nothing of Weir's
		f.n2.kernelEnd(t, f.n1)
		f.a.listen("tcp", ":8090")
		f.c.listen("tcp", ":8090")
		for _, nw := range networks {
			want(t, nw+" to the device", f.a.reaches("c", nw, f.c.at("8080")), "10.244.1.2")
			want(t, nw+" from the device", f.c.reaches("a", nw, f.a.at("8080")), "10.244.2.2")
			want(t, nw+" from the machine itself", f.n2.reaches("a", nw, f.a.at("8080")), "172.30.0.9")
		}
		for range 10 {
			f.a.bulk("to the device", f.c.at("8090"))
			f.c.bulk("from the device", f.a.at("8090"))
		}
		f.a.learns("to the device", f.c.at("8080"), inIPIP)
		f.c.learns("from the device", f.a.at("8080"), inIPIP)
		p := allow("a", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("c")}})
		f.put(p)
		f.n1.apply()
		for _, nw := range networks {
			want(t, nw+" with a policy", f.c.reaches("a", nw, f.a.at("8080")), "10.244.2.2")
			f.d.refused(nw, f.a.at("8080"))
		}
		delete(f.cluster.Policies, p.ID())
		f.n1.apply()

		before := f.n1.driver.last.Dropped[reason.TunnelSource]
		f.client.kernelEnd(t, f.n1)
		f.client.refused("udp", f.a.at("8080"))
		f.n1.apply()
		if after := f.n1.driver.last.Dropped[reason.TunnelSource]; after == before {
			t.Error("what a machine that is no node sent by a device of its own was not dropped for its sender")
		}
	})
}
