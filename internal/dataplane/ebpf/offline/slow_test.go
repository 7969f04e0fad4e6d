// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// onOneCPU keeps the test on a CPU until it ends: what programs hand over is a CPU's own.
func onOneCPU(t *testing.T) {
	t.Helper()
	var before, one unix.CPUSet
	runtime.LockOSThread()
	nettest.Must(t, unix.SchedGetaffinity(0, &before))
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	nettest.Must(t, unix.SchedSetaffinity(0, &one))
	t.Cleanup(func() {
		nettest.Must(t, unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	})
}

// A packet at a pod's interface is taken for one that another program hands over only where one
// does: not by what stands in skb->cb, and not after a call that failed.
func TestHandedOverByNobody(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	onOneCPU(t)
	o, err := Load(Options{Programs: []string{"weir_from_uplink", object.SlowProgram}})
	nettest.Must(t, err)
	defer o.Close()
	s := dryRunState()
	s.Settings.Timeouts = model.DefaultSettings().Timeouts
	server, own := netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("172.31.1.207")
	s.Addrs[own] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true}
	pod := s.Addrs[server]
	pod.Ingress = nodestate.Isolation{Set: 7, Rule: 9} // port 80 alone
	s.Addrs[server] = pod
	nettest.Must(t, o.Apply(s))
	run := func(program, text string, cb uint32) (ret, left uint32) {
		t.Helper()
		frame, err := packet.MustParse(text).Marshal()
		nettest.Must(t, err)
		const size, at = 192, 48
		ctx, out := make([]byte, size), make([]byte, size)
		binary.NativeEndian.PutUint32(ctx[40:], 1) // ifindex
		binary.NativeEndian.PutUint32(ctx[at:], cb)
		ret, err = o.Programs[program].Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Context: ctx, ContextOut: out})
		nettest.Must(t, err)
		return ret, binary.NativeEndian.Uint32(out[at:])
	}
	dropped := func() (reasons []reason.Reason) {
		t.Helper()
		drops, err := o.Drops()
		nettest.Must(t, err)
		for _, d := range drops {
			reasons = append(reasons, slices.Repeat([]reason.Reason{reason.Reason(d.Reason)}, int(d.Packets))...)
		}
		return reasons
	}
	const allowed, denied = "icmp 203.0.113.7 > 172.31.1.207 echo id=1", "tcp 203.0.113.7:1 > 10.244.1.3:81 S"
	if ret, left := run("weir_from_uplink", allowed, 0); ret == 2 || left != 0 {
		t.Fatalf("the program returns %d, and leaves %#x: %v", ret, left, dropped())
	}
	nettest.Must(t, o.ResetFlows())
	nettest.Must(t, o.Maps[object.CallsOfSlow].Delete(uint32(0)))
	ret, hint := run("weir_from_uplink", allowed, 0)
	if got := dropped(); ret != 2 || hint == 0 || !slices.Equal(got, []reason.Reason{reason.Internal}) {
		t.Fatalf("without what it calls the program returns %d, and leaves %#x: %v", ret, hint, got)
	}
	nettest.Must(t, o.ResetFlows())
	ret, _ = run(object.SlowProgram, denied, hint)
	if got := dropped(); ret != 2 || !slices.Equal(got, []reason.Reason{reason.PolicyIngress}) {
		t.Errorf("with what a call leaves the program returns %d: %v", ret, got)
	}
}
