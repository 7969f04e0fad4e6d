// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
)

// A pod sends more packets that policy denies than are told of all pods, and then another one sends
// one: somebody who watches learns of that one, too.
func TestHostileEventsOfOnePod(t *testing.T) {
	needRoot(t)
	for _, x := range []struct{ family, attacker, victim, peer string }{
		{hostile.IPv4, "10.244.1.9", "10.244.1.10", "9.9.9.9"}, {hostile.IPv6, "fd00:244:1::9", "fd00:244:1::10", "2001:db8::9"},
	} {
		t.Run(x.family, func(t *testing.T) {
			hostile.Record(t, "a pod's denied packets keep the events of all others away", hostile.Pod, hostile.EBPF, x.family)
			// All on one CPU, whose rate it is.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var before, one unix.CPUSet
			nettest.Must(t, unix.SchedGetaffinity(0, &before))
			defer func() { nettest.Must(t, unix.SchedSetaffinity(0, &before)) }()
			for cpu := range 1024 {
				if before.IsSet(cpu) {
					one.Set(cpu)
					break
				}
			}
			nettest.Must(t, unix.SchedSetaffinity(0, &one))
			o, err := offline.Load(offline.Options{Programs: []string{"weir_from_workload"}, EventInterval: time.Second})
			nettest.Must(t, err)
			defer o.Close()
			attacker, victim := netip.MustParseAddr(x.attacker), netip.MustParseAddr(x.victim)
			s := nodestate.New()
			s.Settings = nodestate.Settings{Timeouts: model.DefaultSettings().Timeouts, IPv6: true}
			for i, a := range []netip.Addr{attacker, victim} {
				s.Addrs[a] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 1, MAC: [6]byte{6, 0, 0, 0, 0, byte(i)},
					Egress: nodestate.Isolation{Set: nodestate.SetID(70 + i), Rule: 7}}
			}
			nettest.Must(t, o.Apply(s))
			counts := o.Maps["weir_counts"]
			if attacker.Is6() {
				counts = o.IPv6.Maps["weir_counts"]
			}
			send := func(from netip.Addr, port uint16) (limited uint64) {
				frame, err := packet.MustParse("udp " + netip.AddrPortFrom(from, port).String() + " > " + netip.AddrPortFrom(netip.MustParseAddr(x.peer), 53).String()).Marshal()
				nettest.Must(t, err)
				ctx, out := make([]byte, 192), make([]byte, 192)
				binary.NativeEndian.PutUint32(ctx[40:], 1)
				_, err = o.Programs["weir_from_workload"].Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Context: ctx, ContextOut: out})
				nettest.Must(t, err)
				limited, err = counters.Read(counts, abi.CountEventsLimited)
				nettest.Must(t, err)
				return limited
			}
			const packets = 320 // more than a CPU tells at once
			var told uint64
			for i := range packets {
				told = uint64(i+1) - send(attacker, uint16(1000+i))
			}
			if told == 0 || told > 256 {
				t.Errorf("%d of %d events of the attacker were told", told, packets)
			}
			was := uint64(packets) - told
			for i := range 4 {
				if now := send(victim, uint16(2000+i)); now != was {
					t.Fatalf("after %d events of the attacker the event %d of the victim was not told", told, i)
				}
			}
		})
	}
}
