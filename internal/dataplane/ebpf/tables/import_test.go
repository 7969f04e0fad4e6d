// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestImportWhollyOrNot: a connection of which one direction finds no room is not taken over, and
// leaves nothing.
func TestImportWhollyOrNot(t *testing.T) {
	nettest.NeedRoot(t, "making maps")
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(abi.FlowKey[abi.Ip4]{})), ValueSize: uint32(unsafe.Sizeof(abi.FlowValue[abi.Ip4]{})), MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	pod, backend := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.2.3")
	s := nodestate.New()
	s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrEndpoint}
	e := conntrack.Entry{Orig: conntrack.Tuple{Src: pod, Dst: backend, SrcPort: 40000, DstPort: 8080, Proto: unix.IPPROTO_TCP}, Status: conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed}
	e.Reply, e.TCP.State = e.Orig.Reversed(), conntrack.TCPEstablished
	from := flowhandover.Importer{State: s, Which: flowhandover.ImportAll, Ifindex: func(nodestate.Addr) int { return 7 }}
	if _, ok := flowhandover.ImportFlow[abi.Ip4](from, e, 1000, 1); !ok {
		t.Fatal("the connection is none of ours")
	}
	f := &familyTables[abi.Ip4]{flows: m, flowsNew: m}
	took, err := f.ImportConnection(from, e, 1000, false)
	if took || err == nil {
		t.Errorf("taken over %v, %v", took, err)
	}
	if err := flowtable.EachFlow(m, func(k abi.FlowKey[abi.Ip4], _ abi.FlowValue[abi.Ip4]) { t.Errorf("%+v is left", k) }); err != nil {
		t.Error(err)
	}
}
