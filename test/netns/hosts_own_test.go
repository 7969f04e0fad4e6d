// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
)

// bits is the length of an address of the family.
func (fam family) bits() int {
	if fam == ipv6 {
		return 128
	}
	return 32
}

// ip runs ip with addresses of the family, in a namespace.
func (fam family) ip(t *testing.T, netns, format string, args ...any) {
	t.Helper()
	option := map[family]string{ipv4: "-4", ipv6: "-6"}[fam]
	run(t, "ip %s -n %s %s", option, netns, fmt.Sprintf(format, args...))
}

// TestHostEndpointOwnAddresses: an address that only the kernel of the node knows, on a device of
// its own, is as closed as those that Weir knows; and what the kernel routes to a second uplink is
// evaluated for the interface by which it leaves.
func TestHostEndpointOwnAddresses(t *testing.T) { inBoth(t, testHostEndpointOwnAddresses) }

func testHostEndpointOwnAddresses(t *testing.T, fam family) {
	f := newFixture(t, fam)
	own, far := fam.addr("169.254.20.10"), fam.addr("172.30.9.9")
	run(t, "ip -n %s link add local0 type bridge; ip -n %s link set local0 up", f.n1.netns, f.n1.netns)
	fam.ip(t, f.n1.netns, "addr add %s/%d dev local0", own, fam.bits())
	aside := f.newNetns("aside")
	run(t, "ip link add eth1 netns %s type veth peer name eth0 netns %s; ip -n %s link set eth1 up; ip -n %s link set eth0 up", f.n1.netns, aside, f.n1.netns, aside)
	fam.ip(t, f.n1.netns, "addr add %s/%d dev eth1", fam.addr("172.30.9.1"), fam.bits()-8)
	fam.ip(t, aside, "addr add %s/%d dev eth0", far, fam.bits()-8)
	fam.ip(t, aside, "route add default via %s", fam.addr("172.30.9.1"))
	for _, h := range []*host{f.client, f.client2} {
		fam.ip(t, h.netns, "route add %s via %s", own, fam.addr("172.30.0.8"))
		fam.ip(t, h.netns, "route add %s via %s", far, fam.addr("172.30.0.8"))
	}
	w := f.startWorker("aside", aside, "")
	for _, nw := range networks {
		f.n1.listen(nw, "169.254.20.10:9100")
		w.listen(nw, "172.30.9.9:7100")
	}
	f.apply()
	reach := func(h *host, ownAddress, asideToo bool) {
		t.Helper()
		for _, nw := range networks {
			for _, c := range []struct {
				server, addr string
				open         bool
			}{{"n1", "169.254.20.10:9100", ownAddress}, {"aside", "172.30.9.9:7100", asideToo}} {
				if c.open {
					h.reaches(c.server, nw, c.addr)
				} else {
					h.refused(nw, c.addr)
				}
			}
		}
	}
	reach(f.client, true, true)
	f.client.opens(1, "169.254.20.10:9100")

	// eth0 lets all pass, eth1 is a matter of the other one.
	f.cluster.HostEndpoints["eth0"] = &model.HostEndpoint{Name: "eth0", Node: "n1", Interface: "eth0", Labels: map[string]string{"role": "node"}}
	f.cluster.HostEndpoints["rest"] = &model.HostEndpoint{Name: "rest", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "rest"}}
	f.apply()
	reach(f.client, false, true)
	f.client.opens(2, "172.30.9.9:7100")
	f.put(forHosts("nodes", []model.Rule{fam.from(model.Allow, "172.30.0.55/32", 9100)}, nil))
	p := forHosts("forward", nil, []model.Rule{fam.from(model.Deny, "172.30.9.9/32", 7100), {Action: model.Allow}})
	p.Subject, p.ApplyOnForward = model.Selector{Expression: "role == 'rest'"}, true
	f.put(p)
	f.apply()
	reach(f.client, true, false)
	reach(f.client2, false, false)
	for id, allowed := range map[int]bool{1: true, 2: false} {
		if a := f.client.call(request{Op: "talk", ID: id, Timeout: 1000}); (a.Err == "") != allowed {
			t.Errorf("connection %d, opened before: %q (%s), allowed: %t", id, a.Reply, a.Err, allowed)
		}
	}
	w.reaches("client", "tcp", "172.30.0.55:7000") // the other way nothing forbids
}

// TestForgedAnswers: what forges answers to connections that the node never made, from where policy
// lets the node connect to, is answered by the node's stack, and makes no entry in the table of
// established connections.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	f := newFixtureAlone(t, ipv4)
	f.newClient("router", "172.30.0.1") // where answers to nobody end
	f.cluster.HostEndpoints["n1"] = &model.HostEndpoint{Name: "n1", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"}}
	f.put(forHosts("out", []model.Rule{}, []model.Rule{{Action: model.Allow}}))
	f.apply()
	const count = 400
	resets := func() int {
		lines := strings.Split(run(t, "ip netns exec %s grep ^Tcp: /proc/net/snmp", f.n1.netns), "\n")
		for i, name := range strings.Fields(lines[0]) {
			if name == "OutRsts" {
				n, err := strconv.Atoi(strings.Fields(lines[1])[i])
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("no OutRsts in %q", lines)
		return 0
	}
	before := resets()
	if a := f.client2.call(request{Op: "flood", Net: "ack", Addr: "172.30.0.8:5555", Name: packet.MAC(f.n1.mac).String(), Size: count}); a.Err != "" {
		t.Fatal(a.Err)
	}
	await.That(t, "the node's resets", func() error {
		if n := resets() - before; n < count*9/10 { // a busy CPU's queue drops some
			return fmt.Errorf("%d of %d", n, count)
		}
		return nil
	})
	f.n1.reaches("client", "tcp", "172.30.0.55:7000") // the node's own connections are there, once they are answered
	for name, least := range map[string]int{"weir_flows": 1, "weir_flows_new": 0} {
		forged, ours := f.n1.flows(name)
		if forged > 0 || ours < least {
			t.Errorf("%s: %d entries of forged answers, %d others; want none, and at least %d", name, forged, ours, least)
		}
	}
}

// flows counts the entries of a table of IPv4's flows with and without an address that flood sends
// from.
func (n *node) flows(table string) (flooded, others int) {
	n.lan.t.Helper()
	n.eachFlow(ipv4, table, func(src, dst netip.Addr, _ [5]byte) {
		if src.As4()[0] == 11 || dst.As4()[0] == 11 {
			flooded++
		} else {
			others++
		}
	})
	return flooded, others
}

// eachFlow calls see for each entry of a family's table of flows, with its addresses in IPv4's, its
// ports (source, destination, big-endian) and protocol.
func (n *node) eachFlow(fam family, table string, see func(src, dst netip.Addr, rest [5]byte)) {
	t := n.lan.t
	t.Helper()
	dir := map[family]string{ipv4: "maps", ipv6: "maps6"}[fam]
	found, err := filepath.Glob(filepath.Join(n.driver.bpffs, "*", "*", dir, table))
	if err != nil || len(found) != 1 {
		t.Fatalf("no map %s below %s: %v", table, n.driver.bpffs, err)
	}
	m, err := ebpf.LoadPinnedMap(found[0], &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var key, value []byte
	size := fam.bits() / 8
	for all := m.Iterate(); all.Next(&key, &value); { // struct flow_key
		see(netip.AddrFrom4([4]byte(key[size-4:size])), netip.AddrFrom4([4]byte(key[2*size-4:2*size])), [5]byte(key[2*size:2*size+5]))
	}
}
