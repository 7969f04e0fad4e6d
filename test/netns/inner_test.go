// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
)

// TestServiceToTheTunnel: a Service whose endpoint is the tunnel's port of a node leads nobody into
// the tunnel: neither by the node that hands on to it, nor by one that gives the flow its own
// address.
func TestServiceToTheTunnel(t *testing.T) {
	t.Parallel()
	t.Run("nft-IPv4", func(t *testing.T) {
		for name, masqueraded := range map[string]bool{"handed on": false, "masqueraded": true} {
			t.Run(name, func(t *testing.T) { testServiceToTheTunnel(t, masqueraded) })
		}
	})
}

func testServiceToTheTunnel(t *testing.T, masqueraded bool) {
	f := newFixture(t, ipv4)
	f.encapsulate(model.EncapAlways)
	set := f.cluster.Settings
	f.service("trick", "10.96.0.9", 30009)
	f.slices("trick", set.VXLANPort, []model.ServiceEndpoint{{Addrs: []netip.Addr{f.n2.addr}, Node: "n2", Ready: true, Serving: true}})
	if masqueraded { // on a node with host endpoints nothing is handed on
		f.cluster.HostEndpoints["n1"] = &model.HostEndpoint{Name: "n1", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"},
			Profiles: []string{model.ProfileDefaultAllow}}
	}
	f.apply()
	f.podsReachEachOther(t)

	mac := strings.TrimSpace(run(t, "ip netns exec %s cat /sys/class/net/vxlan.calico/address", f.n2.netns))
	inner := packet.Packet{DstMAC: packet.MAC(parseMAC(mac)), SrcMAC: packet.MAC{2, 0, 0, 0, 0, 1}, Type: packet.TypeIPv4, Kind: packet.UDP,
		IP:      packet.IPv4{Src: netip.MustParseAddr("172.30.0.55"), Dst: f.c.local.Addrs[0], Proto: packet.ProtoUDP, TTL: 64},
		SrcPort: 6000, DstPort: 8080, Payload: []byte("who are you?\n")}
	frame, err := inner.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	header := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, set.VXLANVNI<<8) // RFC 7348, 5
	f.client.call(request{Op: "bind", Addr: "172.30.0.55:6000", ID: 9})
	for range 2 { // a flow that begins, and one that goes on
		a := f.client.call(request{Op: "send", ID: 9, Addr: "172.30.0.8:30009", Data: append(header, frame...), Timeout: 1000})
		if a.Err == "" {
			t.Errorf("a packet in a packet reached a pod: %q from %s", a.Reply, a.Peer)
		}
	}
}
