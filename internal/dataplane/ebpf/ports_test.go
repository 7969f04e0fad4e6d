// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
)

// Two flows that share their source port, one to a Service and one straight to its backend, begin
// on two CPUs at once. The backend tells them apart in each case: one of both has another port
// there.
func TestFlowsThatBeginAtOnce(t *testing.T) {
	needRoot(t)
	// Each pair takes a port of the pod's share towards the backend (an eleventh of the range):
	// fewer than half of these.
	const lo, pairs = 1, 2000
	o, err := offline.Load(offline.Options{Programs: []string{"weir_from_workload"}, Trace: true, Sizes: map[string]uint32{"weir_flows_new": 16 * pairs}})
	nettest.Must(t, err)
	defer o.Close()
	s := nodestate.New()
	own, a, b := netip.MustParseAddr("172.31.1.207"), netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3")
	d := model.DefaultSettings()
	s.Settings = nodestate.Settings{Node: own, Timeouts: d.Timeouts, SNATFirst: 10000, SNATLast: 65535}
	s.Addrs[own] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true}
	s.Addrs[a] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: lo}
	s.Addrs[b] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: lo}
	id := nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: model.ProtocolTCP}
	s.Frontends.Set(id, nodestate.Service{ID: id})
	s.Backends.Set(id, []nodestate.Backend{{Addr: b, Port: 8080, Local: true}})
	nettest.Must(t, o.Apply(s))

	to := []string{"10.96.0.1:80", "10.244.1.3:8080"}
	var begun [2]atomic.Int64 // how many flows of each may begin
	var all sync.WaitGroup
	for i := range to {
		all.Go(func() {
			if err := onCPU(i); err != nil {
				t.Error(err)
			}
			for n := range int64(pairs) {
				frame, err := packet.MustParse(fmt.Sprintf("tcp 10.244.1.2:%d > %s S", 1000+n, to[i])).Marshal()
				if err != nil {
					t.Error(err)
				}
				ctx := make([]byte, 192)
				binary.NativeEndian.PutUint32(ctx[40:], lo) // struct __sk_buff: ifindex
				run := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Context: ctx, ContextOut: make([]byte, 192)}
				begun[i].Store(n + 1)
				for spun := 1; begun[1-i].Load() <= n; spun++ {
					if spun%1000 == 0 { // the machine may have one CPU
						runtime.Gosched()
					}
				}
				ret, err := o.Programs["weir_from_workload"].Run(run)
				if said := binary.NativeEndian.Uint32(run.ContextOut.([]byte)[48:]); err != nil || ret == 2 { // TC_ACT_SHOT; cb
					t.Errorf("flow %d to %s: %v, the program returned %d and said %#x", n, to[i], err, ret, said)
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	changed := 0
	for n := range pairs {
		var seen [2]uint16 // by the backend
		for i, dst := range to {
			port := abi.Be16(uint16(1000 + n))
			key := flowKeyOf(unix.IPPROTO_TCP, fmt.Sprintf("%s:%d", a, 1000+n), dst)
			var flow abi.FlowValue[abi.Ip4]
			if err := flowtable.LookUpFlow(o.Maps["weir_flows_new"], key, &flow); err != nil {
				t.Fatalf("flow %d to %s: %v", n, dst, err)
			}
			if seen[i] = flow.Sport; flow.Sport != port {
				changed++
			}
		}
		if seen[0] == seen[1] {
			t.Fatalf("pair %d: both flows have source port %d at the backend", n, 1000+n)
		}
	}
	if changed != pairs {
		t.Errorf("%d source ports of %d pairs were changed, want one of each", changed, pairs)
	}
}

// onCPU ties the goroutine to a thread, and that to one of the CPUs that the process may use. The
// thread ends with the goroutine.
func onCPU(i int) error {
	runtime.LockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &all); err != nil {
		return err
	}
	for cpu, left := 0, i%all.Count(); ; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		if left == 0 {
			one.Set(cpu)
			return unix.SchedSetaffinity(0, &one)
		}
		left--
	}
}
