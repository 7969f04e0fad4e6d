// SPDX-License-Identifier: Apache-2.0

package ebpf

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
	"github.com/weir-net/weir/internal/nodestate"
)

func flowKeyOf(proto uint8, src, dst string) abi.FlowKey[abi.Ip4] {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return abi.FlowKey[abi.Ip4]{Saddr: abi.ToAddr[abi.Ip4](s.Addr()), Daddr: abi.ToAddr[abi.Ip4](d.Addr()), Sport: abi.Be16(s.Port()), Dport: abi.Be16(d.Port()), Proto: proto}
}

// flowTo is an entry that makes of a packet another.
func flowTo(after abi.FlowKey[abi.Ip4], state, flags, action uint8) abi.FlowValue[abi.Ip4] {
	return abi.FlowValue[abi.Ip4]{Saddr: after.Saddr, Daddr: after.Daddr, Sport: after.Sport, Dport: after.Dport, State: state, Flags: flags, Action: action}
}

// TestImportWhollyOrNot: a connection of which one direction finds no room is not taken over, and
// leaves nothing.
func TestImportWhollyOrNot(t *testing.T) {
	needRoot(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(abi.FlowKey[abi.Ip4]{})), ValueSize: uint32(unsafe.Sizeof(abi.FlowValue[abi.Ip4]{})), MaxEntries: 1})
	must(t, err)
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
	took, err := f.importConnection(from, e, 1000, false)
	if took || err == nil {
		t.Errorf("taken over %v, %v", took, err)
	}
	must(t, flowtable.EachFlow(m, func(k abi.FlowKey[abi.Ip4], _ abi.FlowValue[abi.Ip4]) { t.Errorf("%+v is left", k) }))
}
