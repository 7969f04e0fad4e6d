// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/packet"
)

// TestVLANInterfaces: the node's own VLAN interface on an uplink works as without Weir, in both
// directions, and nothing of the VLAN is taken for the uplink's own network.
func TestVLANInterfaces(t *testing.T) { inBoth(t, testVLANInterfaces) }

func testVLANInterfaces(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 30001, f.b)
	f.apply()
	f.podsReachEachOther(t)
	for ns, addr := range map[string]string{f.n1.netns: "172.40.0.8", f.client.netns: "172.40.0.55"} {
		addVLAN(t, ns)
		fam.ip(t, ns, "addr add %s/%d dev eth0.100", fam.addr(addr), fam.bits()-8)
	}
	f.apply()
	for _, nw := range networks {
		for _, p := range []*worker{f.n1.worker, f.client.worker} {
			p.listen(nw, ":9200")
		}
		want(t, nw+" into the VLAN", f.n1.reaches("client", nw, "172.40.0.55:9200"), "172.40.0.8")
		want(t, nw+" out of the VLAN", f.client.reaches("n1", nw, "172.40.0.8:9200"), "172.40.0.55")
	}
	f.podsReachEachOther(t)
	if f.dataplane() == "nft" {
		return // to nftables a VLAN's interface is one as any other
	}

	// In the VLAN nobody is a pod or a Service: the programs of eth0 balance nothing of it.
	client, b := newWire(t, f.client.netns, "eth0"), newWire(t, f.prefix+"-b", "eth0")
	frame := func(text string, tags ...uint32) []byte {
		p, err := packet.Parse(fmt.Sprintf("udp %s > %s ttl=64 data=%q", netip.AddrPortFrom(netip.MustParseAddr(fam.addr("172.30.0.55")), 6000),
			netip.AddrPortFrom(netip.MustParseAddr(fam.addr("172.30.0.8")), 30001), text))
		if err != nil {
			t.Fatal(err)
		}
		return tagged(t, *p, client.mac, f.n1.mac, tags...)
	}
	client.send(frame("of the VLAN", tag100))
	client.control(b, frame("of the link"), "of the link")
	if b.saw("of the VLAN") {
		t.Error("a frame of the VLAN was balanced as one of the uplink")
	}
}

// addVLAN makes eth0.100 in a namespace, or skips the test where the kernel has no such interfaces.
func addVLAN(t *testing.T, ns string) {
	t.Helper()
	out, err := exec.Command("ip", "-n", ns, "link", "add", "link", "eth0", "name", "eth0.100", "type", "vlan", "id", "100").CombinedOutput()
	if strings.Contains(string(out), "Unknown device type") || strings.Contains(string(out), "Operation not supported") {
		t.Skipf("the kernel has no VLAN interfaces (8021q): %s", strings.TrimSpace(string(out)))
	}
	if err != nil {
		t.Fatalf("making eth0.100 in %s: %v: %s", ns, err, out)
	}
	run(t, "ip -n %s link set eth0.100 up", ns)
}
