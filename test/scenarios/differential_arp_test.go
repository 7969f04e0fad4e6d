// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"bytes"
	"net/netip"

	"github.com/weir-net/weir/internal/packet"
)

// arp makes a packet an ARP request, mostly for an address that the node may announce.
func (d *differential) arp(p *packet.Packet) {
	asker, target := one(d.crowd, append(addrs("0.0.0.0"), outside...)...), one(d.crowd, append(append(append([]netip.Addr{ownAddr}, linkVIPs...), linkVIPs...), otherVIPs...)...)
	if d.chance(5) {
		asker = target
	}
	op := one[byte](d.crowd, 1, 1, 1, 1, 1, 1, 1, 2, 0)
	mac := macOf(asker)
	p.DstMAC = one(d.crowd, packet.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, d.machine.MAC, d.machine.MAC, packet.MAC{2, 9, 9, 9, 9, 9})
	p.Payload = bytes.Join([][]byte{{0, 1, 8, 0, 6, 4, 0, op}, mac[:], asker.AsSlice(), make([]byte, 6), target.AsSlice(), make([]byte, one(d.crowd, 0, 0, 0, 1, d.IntN(20)))}, nil)
}
