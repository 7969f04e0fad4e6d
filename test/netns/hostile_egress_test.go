// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/packet"
)

const attackEgressInvalid = "a pod that leaves by egress gateways alone sends what connection tracking takes for no flow, and its own address is seen outside"

// TestHostileEgressInvalid: segments of TCP that begin no connection and belong to none, and
// answers to nothing, leave by no gateway, and not without one either. Those of a pod that is no
// client do: the listener sees them.
func TestHostileEgressInvalid(t *testing.T) {
	inEither(t, func(t *testing.T, fam family) {
		record(t, attackEgressInvalid, hostile.Tenant, fam)
		f := egressFixture(t, fam)
		f.gateways("c")
		f.apply()
		client, other := f.talker(f.a), f.talker(f.b)
		out := f.listener()
		out.hears(client, 1) // neighbours are known
		seen := map[netip.Addr]int{}
		for range 20 {
			client.sendOdd()
		}
		await.That(t, "what a pod sends that is no client arrives", func() error {
			other.sendOdd()
			if out.segments(seen); seen[other.src] == 0 {
				return errors.New("nothing came")
			}
			return nil
		})
		out.segments(seen)
		if seen[client.src] > 0 {
			t.Errorf("%d segments came from the client's own address", seen[client.src])
		}
	})
}

// sendOdd sends segments that connection tracking knows no flow for.
func (k *talker) sendOdd() {
	for i, flags := range []uint8{0, packet.FIN, packet.SYN | packet.FIN, packet.RST, packet.FIN | packet.PSH} {
		p := packet.Packet{Type: packet.TypeIPv4, Kind: packet.TCP, IP: packet.IPv4{Src: k.src, Dst: k.dst, Proto: packet.ProtoTCP, TTL: 64},
			SrcPort: uint16(20000 + i), DstPort: 7778, Flags: flags, Window: 1024}
		if k.src.Is6() {
			p.Type = packet.TypeIPv6
		}
		frame := tagged(k.t, p, k.wire.mac, [6]byte{0xee, 0xee, 0xee, 0xee, 0xee, 0xee})
		if err := unix.Sendto(k.wire.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: k.wire.index}); err != nil {
			k.t.Errorf("sending a frame: %v", err)
		}
	}
}

// segments counts those of sendOdd that have come in, by their sources.
func (l *listener) segments(by map[netip.Addr]int) {
	l.wire.t.Helper()
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(l.wire.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			l.wire.t.Fatalf("reading a frame: %v", err)
		}
		frame := buf[:n]
		switch {
		case n >= 54 && binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP && frame[23] == unix.IPPROTO_TCP && binary.BigEndian.Uint16(frame[36:]) == 7778:
			by[netip.AddrFrom4([4]byte(frame[26:]))]++
		case n >= 74 && binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IPV6 && frame[20] == unix.IPPROTO_TCP && binary.BigEndian.Uint16(frame[56:]) == 7778:
			by[netip.AddrFrom16([16]byte(frame[22:]))]++
		}
	}
}
