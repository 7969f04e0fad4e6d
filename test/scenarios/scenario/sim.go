// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sim"
)

// NewSim returns the oracle as the data plane of nodes. Its choices follow from the seed.
func NewSim(seed uint64) NewCarrier {
	return func(m *Machine) (Carrier, error) {
		r := rand.New(rand.NewPCG(seed, uint64(len(m.Name))))
		return &simCarrier{machine: m, random: r}, nil
	}
}

type simCarrier struct {
	machine *Machine
	random  *rand.Rand
	node    *sim.Node
	now     time.Duration
}

func (c *simCarrier) Apply(s *nodestate.State) error {
	if c.node != nil {
		c.node.SetState(s)
		return nil
	}
	c.node = sim.New(s, sim.Options{
		Now:  func() time.Duration { return c.now },
		Pick: func(o sim.Choice) int { return c.random.IntN(len(o.From)) },
		Port: func(_ uint16, n int) int { return c.random.IntN(n) },
		FIB:  c.machine.Route, LinkMTU: c.machine.MTU, HostIfIndex: HostDevice, TunnelIfIndex: TunnelDev, Listening: func() bool { return true }, Uplinks: c.machine.Uplinks(),
	})
	return nil
}

func (c *simCarrier) Receive(in sim.In) (sim.Result, error) { return c.node.Receive(in), nil }

func (c *simCarrier) Send(s sim.Socket, dst netip.AddrPort) (netip.AddrPort, error) {
	return c.node.Send(s, dst)
}

func (c *simCarrier) Connect(s sim.Socket, dst netip.AddrPort) (netip.AddrPort, error) {
	return c.node.Connect(s, dst)
}

func (c *simCarrier) Advance(seconds int) error {
	c.now += time.Duration(seconds) * time.Second
	return nil
}
