// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nettest"
)

const (
	contextSize = 192 // of struct __sk_buff
	shot        = 2   // TC_ACT_SHOT
	redirected  = 7   // TC_ACT_REDIRECT
)

// sends runs a program on a packet that has a time of departure already, and returns its verdict
// and what became of that time.
func sends(t *testing.T, p *ebpf.Program, packet []byte, at uint64) (verdict uint32, tstamp uint64) {
	t.Helper()
	in, out := make([]byte, contextSize), make([]byte, contextSize)
	binary.NativeEndian.PutUint64(in[tstampAt:], at)
	verdict, err := p.Run(&ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: in, ContextOut: out})
	nettest.Must(t, err)
	return verdict, binary.NativeEndian.Uint64(out[tstampAt:])
}

// TestDepartureTimes holds that with departure times no pod's own time of departure counts, that a
// limited pod's packets get times that are as far apart as its rate says, in its device or, where
// they surely leave the node, at the uplink, and that what would wait too long is dropped.
func TestDepartureTimes(t *testing.T) {
	nettest.NeedRoot(t, "loads programs")
	load := func(c Constants) (*Collection, *Programs) {
		t.Helper()
		small := map[string]uint32{"weir_flows": 1024, "weir_flows_new": 1024, "weir_peers": 1024, "weir_peer_cidrs": 1024}
		l, err := OpenMaps(nil, "", small, c, slog.New(slog.DiscardHandler))
		nettest.Must(t, err)
		t.Cleanup(func() { l.Close() })
		p, err := loadPrograms(l, nil, "weir_from_workload", LimitedProgram)
		nettest.Must(t, err)
		t.Cleanup(p.Close)
		return l, p
	}
	const bytes, rate = 114, 11 // one in ten seconds, longer than the machine may be busy
	const took = bytes * time.Second / rate
	const wait = 10 * took
	packet := make([]byte, bytes)
	copy(packet[12:], []byte{0x08, 0x00, 0x45, 0, 0, bytes - 14, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 10, 244, 1, 2, 203, 0, 113, 7, 0x30, 0x39, 0, 7, 0, bytes - 34})
	_, without := load(Constants{})
	if _, at := sends(t, without.Programs["weir_from_workload"], packet, 123); at != 123 {
		t.Errorf("without departure times a pod's own is %d, not 123", at)
	}
	l, with := load(Constants{Departures: true})
	if _, at := sends(t, with.Programs["weir_from_workload"], packet, 123); at != 0 {
		t.Errorf("a pod's own time of departure is %d still", at)
	}
	from := with.Programs[LimitedProgram]
	const ifindex = uint32(1)
	nettest.Must(t, l.Maps[Queues].Put(ifindex, ifindex))
	if verdict, at := sends(t, from, packet, 123); verdict != redirected || at != 0 {
		t.Errorf("a pod whose device has a rate: verdict %d, time %d", verdict, at)
	}
	for name, flags := range map[string]uint32{"device": 0, "uplink": abi.DepartureLinks} {
		nettest.Must(t, l.Maps[Departures].Put(ifindex, abi.WeirDeparture{Rate: rate, Wait: uint64(wait), Flags: flags}))
		var last uint64
		began, waits, late := now(t), 0, 0
		for range 20 {
			verdict, at := sends(t, from, packet, 123)
			if at == 0 { // it would be too late
				if late++; verdict != shot {
					t.Errorf("%s: verdict %d of a packet that is late", name, verdict)
				}
				continue
			}
			if waits++; (verdict == redirected) != (flags == 0) {
				t.Errorf("%s: verdict %d of a packet that waits", name, verdict)
			}
			if apart := time.Duration(at - last); last != 0 && apart != took {
				t.Errorf("%s: two departures are %s apart", name, apart)
			}
			last = at
		}
		// Some more find room the longer the test itself takes.
		if more := int((now(t) - began) / uint64(took)); waits < 10 || waits > 10+more+1 || waits+late != 20 {
			t.Errorf("%s: %d packets wait for up to %s, %d are late", name, waits, wait, late)
		}
	}
	// What may stay on the node waits in the device.
	nettest.Must(t, l.Maps[Departures].Put(ifindex, abi.WeirDeparture{Rate: 1e9, Wait: uint64(wait), Flags: abi.DepartureLinks}))
	dst := abi.Ip4{203, 0, 113, 7}
	waits := func(what string, want bool) {
		t.Helper()
		if verdict, _ := sends(t, from, packet, 0); (verdict == redirected) != want {
			t.Errorf("%s: verdict %d", what, verdict)
		}
	}
	waits("outside", false)
	service := abi.SvcKey[abi.Ip4]{Addr: dst, Port: 7 << 8, Proto: unix.IPPROTO_UDP}
	nettest.Must(t, l.Maps["weir_services"].Put(service, make([]byte, l.Maps["weir_services"].ValueSize())))
	waits("a Service", true)
	nettest.Must(t, l.Maps["weir_services"].Delete(service))
	value := make([]byte, l.Maps["weir_addrs"].ValueSize())
	for kind, want := range map[uint8]bool{abi.AddrHost: true, abi.AddrEndpoint: true, abi.AddrNode: true, abi.AddrPod: false} {
		addr := abi.WeirAddrValue{Kind: kind}
		n, err := binary.Encode(value, binary.NativeEndian, addr)
		nettest.Must(t, err)
		if n > len(value) {
			t.Fatalf("%d bytes of %d", n, len(value))
		}
		nettest.Must(t, l.Maps["weir_addrs"].Put(dst, value))
		waits("an address of kind "+string('0'+rune(kind)), want)
	}
}

// now is the programs' clock.
func now(t *testing.T) uint64 {
	t.Helper()
	var ts unix.Timespec
	nettest.Must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return uint64(ts.Nano())
}
