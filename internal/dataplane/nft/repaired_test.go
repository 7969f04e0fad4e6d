// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"log/slog"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ranges is nftables whose list of a set has an element that is a range.
type ranges struct{ knftables.Interface }

func (r ranges) ListElements(ctx context.Context, kind, name string) ([]*knftables.Element, error) {
	found, err := r.Interface.ListElements(ctx, kind, name)
	if name == expr.SetBlocks {
		for _, e := range found {
			e.Key = []string{""}
		}
	}
	return found, err
}

// TestUnreadableElement: a set that cannot be read is written anew.
func TestUnreadableElement(t *testing.T) {
	d, fakes := fakeDriver(t)
	apply(t, d, small())
	before := fakes[knftables.IPv4Family].Dump()
	next, err := New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true, Tables: func(f knftables.Family) (knftables.Interface, error) {
		return ranges{fakes[f]}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, next, small())
	if got := fakes[knftables.IPv4Family].Dump(); got != before || next.Status().Writes == 0 {
		t.Errorf("after %d operations:\n%s", next.Status().Writes, got)
	}
}

// TestRestartEndsWhatWasHandedOn: flows that were handed on to a node whose last backend went while
// nothing of Weir ran are ended.
func TestRestartEndsWhatWasHandedOn(t *testing.T) {
	for _, affinity := range []uint32{0, 10800} {
		d, fakes := fakeDriver(t)
		s := small()
		id := nodestate.Frontend{Addr: addr("10.96.0.7"), Port: 53, Proto: model.ProtocolUDP}
		face := nodestate.Frontend{Addr: addr("0.0.0.0"), Port: 30053, Proto: model.ProtocolUDP}
		s.Frontends.Set(id, nodestate.Service{ID: id, Affinity: affinity})
		s.Frontends.Set(face, nodestate.Service{ID: id, External: true, Affinity: affinity})
		here := nodestate.Backend{Addr: addr("10.244.1.2"), Port: 53, Local: true}
		s.Backends.Set(id, []nodestate.Backend{here, {Addr: addr("10.244.2.2"), Port: 53}})
		apply(t, d, s)
		node, ok := d.tables[table.Family{}].numbers.ByNode[addr("172.30.0.9")]
		if !ok {
			t.Fatal("the other node has no number")
		}
		s.Backends.Set(id, []nodestate.Backend{here})
		next := openFake(t, fakes)
		apply(t, next, s)
		if !next.tables[table.Family{}].services.EndsHandedOn(node, face) {
			t.Errorf("affinity %d: nothing ends what was handed on", affinity)
		}
	}
}
