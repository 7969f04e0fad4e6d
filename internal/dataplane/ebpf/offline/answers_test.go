// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// However many packets ask for a Service without backends, only so many are answered; all are
// counted.
func TestAnswersAreLimited(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	const burst, packets = 4, 100
	o, err := Load(Options{Programs: []string{"weir_from_uplink", object.SlowProgram}, Trace: true, Answers: 1, Burst: burst})
	nettest.Must(t, err)
	defer o.Close()
	s := nodestate.New()
	own := netip.MustParseAddr("172.31.1.207")
	s.Settings = nodestate.Settings{Node: own, Timeouts: model.DefaultSettings().Timeouts}
	s.Addrs[own] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true}
	id := nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: model.ProtocolTCP}
	s.Frontends.Set(id, nodestate.Service{ID: id, Rule: 70})
	nettest.Must(t, o.Apply(s))
	frame, err := packet.MustParse("tcp 9.9.9.9:1 > 10.96.0.1:80 S").Marshal()
	nettest.Must(t, err)

	begin, answered := time.Now(), 0
	for range packets {
		const size, ifindex, cb = 192, 40, 48
		ctx, out := make([]byte, size), make([]byte, size)
		binary.NativeEndian.PutUint32(ctx[ifindex:], 1)
		run := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Context: ctx, ContextOut: out}
		_, err := o.Programs["weir_from_uplink"].Run(run)
		nettest.Must(t, err)
		switch said := binary.NativeEndian.Uint32(out[cb:]); said {
		case 0x200 + uint32(reason.NoBackend):
			answered++
		case 0x100 + uint32(reason.NoBackend):
		default:
			t.Fatalf("the program said %#x", said)
		}
	}
	// Each CPU has its own rate, and the test may run on any.
	if most := runtime.NumCPU() * (burst + int(time.Since(begin)/time.Second) + 1); answered == 0 || answered > most {
		t.Errorf("%d of %d packets answered, want 1 to %d", answered, packets, most)
	}
	counts, err := o.Answers()
	nettest.Must(t, err)
	if got := counts["reset"]; got != uint64(answered) || counts["limited"] != uint64(packets-answered) {
		t.Errorf("%d answered, counted %v", answered, counts)
	}
	drops, err := o.Drops()
	nettest.Must(t, err)
	if len(drops) != 1 || drops[0] != (dataplane.Drop{Reason: uint32(reason.NoBackend), Rule: 70, Packets: packets, Bytes: uint64(packets * len(frame))}) {
		t.Errorf("counted %+v", drops)
	}
}
