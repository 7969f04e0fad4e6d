// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/conformance"
	"github.com/weir-net/weir/internal/nodestate"
)

// BenchmarkEndpoint is the driver's part of a pod's start on a node with 100 pods: one more
// endpoint, and its programs.
func BenchmarkEndpoint(b *testing.B) {
	n := newBench(b)
	d := n.open(b)
	s := conformance.Random(6, nil)
	for i := range 100 {
		addEndpoint(s, i, n.veth(fmt.Sprintf("cali-b%d", i), fmt.Sprintf("b%d", i)))
	}
	if err := d.Apply(context.Background(), s, nodestate.All()); err != nil {
		b.Fatal(err)
	}
	more := n.veth("cali-more", "more")
	for b.Loop() {
		next := *s
		next.Addrs = map[netip.Addr]nodestate.Addr{}
		for k, v := range s.Addrs {
			next.Addrs[k] = v
		}
		addEndpoint(&next, 200, more)
		if err := d.Apply(context.Background(), &next, nodestate.Keys{Tables: nodestate.TableAddrs}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := d.Apply(context.Background(), s, nodestate.Keys{Tables: nodestate.TableAddrs}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func addEndpoint(s *nodestate.State, i int, ifc conformance.Interface) {
	s.Addrs[netip.AddrFrom4([4]byte{10, 244, 5, byte(i)})] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: ifc.Name, IfIndex: ifc.Index}
}

// BenchmarkCheck is what the driver looks at a few times a second, on a node with 100 pods.
func BenchmarkCheck(b *testing.B) {
	n := newBench(b)
	d := n.open(b)
	s := conformance.Random(6, nil)
	for i := range 100 {
		addEndpoint(s, i, n.veth(fmt.Sprintf("cali-b%d", i), fmt.Sprintf("b%d", i)))
	}
	if err := d.Apply(context.Background(), s, nodestate.All()); err != nil {
		b.Fatal(err)
	}
	for range 3 {
		d.check(false)
	}
	b.ReportAllocs()
	for b.Loop() {
		d.check(false)
	}
}
