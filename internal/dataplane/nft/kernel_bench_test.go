// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// large is a node with Services of five endpoints each, and pods whose sets know peers.
func large(services, sets, classes int) *nodestate.State {
	s := small()
	s.Settings.IPv6 = false
	a := func(base, i int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(base + i>>16), byte(i >> 8), byte(i)})
	}
	for i := range services {
		id := nodestate.Frontend{Addr: a(96, i), Port: 80, Proto: model.ProtocolTCP}
		s.Frontends.Set(id, nodestate.Service{ID: id})
		var backends []nodestate.Backend
		for j := range 5 {
			backends = append(backends, nodestate.Backend{Addr: a(200, i*5+j), Port: 8080})
		}
		s.Backends.Set(id, backends)
	}
	for i := range sets {
		pod := a(244, 256+i)
		set := nodestate.SetID(i + 1)
		s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: fmt.Sprintf("cali%d", 100+i), Ingress: nodestate.Isolation{Set: set, Rule: 1}}
		for j := range classes {
			class := nodestate.Class(j + 1)
			s.Policy.Set(nodestate.PolicyKey{Set: set, Peer: class, Head: true}, nodestate.PolicyValue{Rule: 2, Protos: nodestate.ProtoBitTCP, Lens: 1 << 16})
			s.Policy.Set(nodestate.PolicyKey{Set: set, Peer: class, Proto: model.ProtocolTCP, Port: uint16(1000 + (i+j)%50), Len: 16}, nodestate.PolicyValue{Allow: true, Rule: 3})
		}
	}
	for j := range classes {
		s.Peers.Set(a(180, j), nodestate.Class(j+1))
	}
	return s
}

// BenchmarkEndpoint is what the change of one endpoint takes on a real kernel, by what is in
// the table: Services of five endpoints, and pairs of sets and classes.
func BenchmarkEndpoint(b *testing.B) {
	for _, of := range []struct{ services, sets, classes int }{{10, 0, 0}, {10_000, 0, 0}, {10, 50, 100}, {10_000, 50, 100}} {
		b.Run(fmt.Sprintf("services-%d/pairs-%d", of.services, of.sets*of.classes), func(b *testing.B) {
			nettest.Run(b, func(string) error { return benchEndpoint(b, large(of.services, of.sets, of.classes)) })
		})
	}
}

func benchEndpoint(b *testing.B, s *nodestate.State) error {
	d, err := New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true})
	if err != nil {
		return err
	}
	if err := d.Apply(context.Background(), s, nodestate.All()); err != nil {
		return err
	}
	id := nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.5"), Port: 80, Proto: model.ProtocolTCP}
	all := s.Backends.At(id)
	b.ResetTimer()
	for i := range b.N {
		next := *s
		backends := append([]nodestate.Backend(nil), all...)
		backends[i%len(backends)].Port = uint16(9000 + i%1000)
		next.Backends.Set(id, backends)
		if err := d.Apply(context.Background(), &next, nodestate.All()); err != nil {
			return err
		}
		s = &next
	}
	return nil
}
