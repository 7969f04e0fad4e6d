// SPDX-License-Identifier: Apache-2.0

package micro

import (
	"strings"
	"testing"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// What programs in XDP return (linux/bpf.h).
const (
	xdpDrop = 1
	xdpPass = 2
)

const xdpBatches = 60

// withUntracked makes a host endpoint of all interfaces evaluate each packet by itself: what peers
// send is denied, UDP port 5353 is allowed both ways, and no rule is about the rest.
func withUntracked(s *nodestate.State, peers int) {
	const in, out nodestate.SetID = 78, 79
	s.HostEndpoints = map[nodestate.HostInterface]nodestate.HostEndpoint{{}: {Name: "node",
		UntrackedIngress: nodestate.Isolation{Set: in, Rule: 1}, UntrackedEgress: nodestate.Isolation{Set: out, Rule: 1}}}
	for i := range peers {
		class := nodestate.Class(1000 + i)
		s.Peers.Set(peer(i), class)
		s.Policy.Set(nodestate.PolicyKey{Set: in, Peer: class, Head: true}, nodestate.PolicyValue{Rule: 2})
	}
	s.Policy.Set(nodestate.PolicyKey{Set: in, Head: true}, nodestate.PolicyValue{Allow: true, Undecided: true, Rule: 1, Protos: nodestate.ProtoBitUDP, Lens: 1 << 16})
	s.Policy.Set(nodestate.PolicyKey{Set: in, Proto: model.ProtocolUDP, Port: 5353, Len: 16}, nodestate.PolicyValue{Allow: true, Rule: 3})
	s.Policy.Set(nodestate.PolicyKey{Set: out, Head: true}, nodestate.PolicyValue{Allow: true, Rule: 3})
}

// BenchmarkUntracked is policy that evaluates each packet by itself (doNotTrack).
func BenchmarkUntracked(b *testing.B) {
	const peers = 10000
	f := node(b, 0)
	s := newState(f.links)
	withUntracked(s, peers)
	if err := f.Apply(s); err != nil {
		b.Fatal(err)
	}
	nothing, err := cilium.NewProgram(&cilium.ProgramSpec{Name: "empty", Type: cilium.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	if err != nil {
		b.Fatal(err)
	}
	defer nothing.Close()
	const denied, allowed, other = "udp 172.20.3.9:1000 > 10.0.0.1:53 ttl=255", "udp 172.30.0.1:1000 > 10.0.0.1:5353 ttl=255", "tcp 172.30.0.1:1000 > 10.0.0.1:22 . ttl=255"
	for _, c := range []struct {
		name, packet string
		want         uint32
	}{{"doNotTrack, denied", denied, xdpDrop}, {"doNotTrack, allowed", allowed, xdpPass}, {"doNotTrack, no rule is about it", other, xdpPass}} {
		b.Run(c.name, func(b *testing.B) { f.inXDP(b, nothing, c.name, marshal(c.packet), c.want) })
	}
	b.Run("BehindXDP", func(b *testing.B) {
		f.established(b, "doNotTrack without XDP, denied", fromUplink, f.links.uplink, denied, actShot)
		f.established(b, "doNotTrack without XDP, allowed", fromUplink, f.links.uplink, allowed, actOK)
	})
}

// inXDP measures weir_arrive, less a program that does nothing. A frame has room for 15 stamps: of
// those that pass, later runs of a call lack the four stores of one.
//
// The kernel waits for a grace period of RCU with each call for a program of XDP: xdpBatches is how
// many there are.
func (f *fixture) inXDP(b *testing.B, nothing *cilium.Program, name string, frame []byte, want uint32) {
	b.Helper()
	const program = "weir_arrive"
	none, _, err := many(nothing, [][]byte{frame}, f.links.uplink, hot, xdpBatches, xdpPass)
	if err != nil {
		b.Fatal(err)
	}
	r := Row{Name: name, Program: strings.TrimPrefix(program, "weir_"), Mode: "hot", EmptyNS: none, Packets: xdpBatches * hot}
	for range b.N {
		median, p99, err := many(f.Programs[program], [][]byte{frame}, f.links.uplink, hot, xdpBatches, want)
		if err != nil {
			b.Fatal(err)
		}
		r.NS, r.P99 = median-none, p99-none
	}
	b.ReportMetric(r.NS, "ns/packet")
	b.ReportMetric(0, "ns/op")
	record(r)
}
