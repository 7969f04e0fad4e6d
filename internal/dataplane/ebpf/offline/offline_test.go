// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/dryrun"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// digestMaps is what all maps hold, by family and name.
func digestMaps(t *testing.T, o *Node) map[string][32]byte {
	t.Helper()
	out := map[string][32]byte{}
	for family, all := range map[string]map[string]*ebpf.Map{"4 ": o.Maps, "6 ": o.IPv6.Maps} {
		for name, m := range all {
			if object.IsUnpinned(name) || name == object.ProgramsOfIPv6 || name == object.ProgramOfIPIP || name == "weir_maglev" || m.Type() == ebpf.RingBuf {
				continue
			}
			var entries [][]byte
			for key, err := m.NextKeyBytes(nil); key != nil; key, err = m.NextKeyBytes(key) {
				nettest.Must(t, err)
				value, err := m.LookupBytes(key) // of all CPUs
				nettest.Must(t, err)
				entries = append(entries, slices.Concat(key, value))
			}
			slices.SortFunc(entries, bytes.Compare)
			out[family+name] = sha256.Sum256(bytes.Join(entries, nil))
		}
	}
	return out
}

func dryRunState() *nodestate.State {
	s := nodestate.New()
	s.Settings.Node, s.Settings.SNATFirst, s.Settings.SNATLast = netip.MustParseAddr("172.31.1.207"), 20000, 29999
	client, server := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3")
	s.Addrs[client] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 1, Egress: nodestate.Isolation{Set: 7, Rule: 9}}
	s.Addrs[server] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 1}
	p := s.Policy.Edit()
	p.Set(nodestate.PolicyKey{Set: 7, Head: true}, nodestate.PolicyValue{Rule: 9, Protos: nodestate.ProtoBitTCP, Lens: 1 << 16})
	p.Set(nodestate.PolicyKey{Set: 7, Proto: model.ProtocolTCP, Port: 80, Len: 16}, nodestate.PolicyValue{Allow: true, Rule: 8})
	s.Policy = p.Map()
	return s
}

func synTo(port uint16) []byte {
	b := make([]byte, 14+20+20)
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	ip, tcp := b[14:34], b[34:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], 40)
	copy(ip[12:], []byte{10, 244, 1, 2})
	copy(ip[16:], []byte{10, 244, 1, 3})
	binary.BigEndian.PutUint16(tcp, 50000)
	binary.BigEndian.PutUint16(tcp[2:], port)
	tcp[12], tcp[13] = 5<<4, 2
	return b
}

// runSyn runs from_workload at the loopback device and returns the decision and the rule that it
// left in cb.
func runSyn(t *testing.T, p *ebpf.Program, port uint16) (decision, rule uint32) {
	t.Helper()
	ctx := make([]byte, 192)
	binary.NativeEndian.PutUint32(ctx[36:], 1)
	binary.NativeEndian.PutUint32(ctx[40:], 1)
	out := &ebpf.RunOptions{Data: synTo(port), DataOut: make([]byte, 512), Context: ctx, ContextOut: make([]byte, 192)}
	_, err := p.Run(out)
	nettest.Must(t, err)
	cb := out.ContextOut.([]byte)[48:]
	return binary.NativeEndian.Uint32(cb), binary.NativeEndian.Uint32(cb[12:])
}

// A dry run decides as the programs do, changes nothing of theirs, follows their tables and leaves
// nothing behind.
func TestDryRun(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	o, err := Load(Options{Programs: []string{"weir_from_workload"}, Trace: true})
	nettest.Must(t, err)
	defer o.Close()
	s := dryRunState()
	nettest.Must(t, o.Apply(s))
	const program = "weir_from_workload"
	if d, rule := runSyn(t, o.Programs[program], 80); d != 2 || rule != 8 { // 1 + local
		t.Fatalf("the programs say %#x by rule %d", d, rule)
	}
	before := digestMaps(t, o)
	if len(before) < 20 {
		t.Fatalf("only %d maps are compared", len(before))
	}
	r, err := o.NewDryRun([]string{program})
	nettest.Must(t, err)
	defer r.Close()
	for range 3 {
		if d, rule := runSyn(t, r.Programs[program], 80); d != 2 || rule != 8 {
			t.Errorf("allowed: %#x by rule %d", d, rule)
		}
		if d, rule := runSyn(t, r.Programs[program], 81); d != 0x102 || rule != 9 { // 0x100 + POLICY_EGRESS
			t.Errorf("denied: %#x by rule %d", d, rule)
		}
	}
	k := dryrun.FlowKey{Src: netip.MustParseAddr("10.244.1.2"), Dst: netip.MustParseAddr("10.244.1.3"), SrcPort: 50000, DstPort: 80, Proto: model.ProtocolTCP}
	nettest.Must(t, r.Forget())
	if found, established, err := r.CopyFlow(k); !found || established || err != nil {
		t.Errorf("the half-open flow: %t %t %v", found, established, err)
	}
	k.DstPort = 82
	if found, _, err := r.CopyFlow(k); found || err != nil {
		t.Errorf("a flow that is not there: %t %v", found, err)
	}
	if after := digestMaps(t, o); !maps.Equal(before, after) {
		for name := range before {
			if before[name] != after[name] {
				t.Errorf("map %s is not what it was", name)
			}
		}
	}
	// A pod that has its share of a table that is nearly full begins nothing, once that is copied.
	for _, pod := range [][]byte{k.Src.AsSlice(), make([]byte, 4)} {
		nettest.Must(t, o.Maps["weir_shares"].Put(pod, flowtable.QuotaValue{Counted: 1 << 20}))
	}
	nettest.Must(t, r.Forget())
	if d, _ := runSyn(t, r.Programs[program], 80); d != 2 {
		t.Errorf("before the share is copied: %#x", d)
	}
	nettest.Must(t, r.Forget())
	nettest.Must(t, r.CopyShare(k.Src))
	if d, _ := runSyn(t, r.Programs[program], 80); d != 0x100+uint32(reason.Share) {
		t.Errorf("by its share: %#x", d)
	}
	// The same instructions, and the same tables: a change of these counts at once.
	ours, err := r.Programs[program].Info()
	nettest.Must(t, err)
	theirs, err := o.Programs[program].Info()
	nettest.Must(t, err)
	if ours.Tag != theirs.Tag || ours.Tag == "" {
		t.Errorf("tags %s and %s", ours.Tag, theirs.Tag)
	}
	next := dryRunState()
	p := next.Policy.Edit()
	p.Set(nodestate.PolicyKey{Set: 7, Proto: model.ProtocolTCP, Port: 80, Len: 16}, nodestate.PolicyValue{Rule: 10})
	next.Policy = p.Map()
	nettest.Must(t, o.Apply(next))
	if d, rule := runSyn(t, r.Programs[program], 80); d != 0x102 || rule != 10 {
		t.Errorf("after a change: %#x by rule %d", d, rule)
	}
}
