// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// round is what happened to a node, so that it can be played again, or in part.
type round struct {
	mtus   map[int]int // as in scenario.Machine, like own and aside
	own    []netip.Addr
	aside  []netip.Prefix
	events []event // the first one is a cluster
}

// event is one thing that happens: the cluster becomes this one, seconds pass, or a packet arrives.
type event struct {
	cluster *model.Cluster
	seconds int
	in      *sim.In
}

// bench is what carries the packets of rounds.
type bench struct {
	make  scenario.NewCarrier
	state func(*model.Cluster) *nodestate.State
	reset func() error
}

// differs is an error about a packet: not about the state that it met.
type differs struct{ error }

func (d differs) Unwrap() error { return d.error }

// snapshot copies a cluster. Objects in it are replaced and never changed.
func snapshot(c *model.Cluster) *model.Cluster {
	s := *c
	s.Namespaces, s.Pods, s.Nodes, s.Services, s.Slices = maps.Clone(c.Namespaces), c.Pods.Clone(), maps.Clone(c.Nodes), maps.Clone(c.Services), maps.Clone(c.Slices)
	s.Policies, s.Staged, s.Tiers, s.NetworkSets = maps.Clone(c.Policies), maps.Clone(c.Staged), maps.Clone(c.Tiers), maps.Clone(c.NetworkSets)
	s.ServiceAccounts, s.Pools, s.Blocks, s.Local.Endpoints = maps.Clone(c.ServiceAccounts), maps.Clone(c.Pools), maps.Clone(c.Blocks), maps.Clone(c.Local.Endpoints)
	s.HostEndpoints, s.BGPPeers = maps.Clone(c.HostEndpoints), maps.Clone(c.BGPPeers)
	return &s
}

// play plays a round. What a packet sets free comes in again, and what follows from a packet
// otherwise is in the round itself.
func (r *round) play(b bench) (err error) {
	m := (&crowd{mtus: r.mtus, own: r.own, aside: r.aside}).machine()
	var carrier scenario.Carrier
	defer func() { err = errors.Join(err, b.reset()) }()
	for i, e := range r.events {
		switch {
		case e.cluster != nil:
			m.State = b.state(e.cluster)
			if carrier == nil {
				if carrier, err = b.make(m); err != nil {
					return err
				}
			}
			err = carrier.Apply(m.State)
		case e.seconds > 0:
			err = carrier.Advance(e.seconds)
		default:
			err = arrive(carrier, *e.in)
		}
		if err != nil {
			return fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	return nil
}

// arrive hands a packet over, and then those that it set free.
func arrive(c scenario.Carrier, in sim.In) error {
	in.Packet = in.Packet.Clone()
	res, err := c.Receive(in)
	if errors.Is(err, scenario.ErrNoMirror) {
		return nil
	}
	if err != nil {
		return differs{err}
	}
	for _, again := range res.Again {
		if err := arrive(c, again); err != nil {
			return err
		}
	}
	return nil
}
