// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// choice gives the oracle what the programs chose at random for the packet at hand.
type choice struct {
	set    *set
	layout *layouts

	known   bool // a flow shows it
	backend nodestate.Backend
	sport   uint16

	guessing bool // nothing shows it
	guess    int
	options  int // how many backends there were to guess from

	wrong error // they chose what they must not
}

// read finds the flow that the packet began.
func (c *choice) read(p *packet.Packet) {
	c.backend, c.sport, c.known = c.set.chosen(c.layout, p)
}

// pick is sim.Options.Pick.
func (c *choice) pick(o sim.Choice) int {
	b, ok := c.backend, c.known
	if c.guessing && o.Service.Affinity > 0 {
		b, ok = c.set.affinity(c.layout, o.Service.ID, o.Client)
	}
	i := slices.IndexFunc(o.From, func(e nodestate.Backend) bool { return e.Addr == b.Addr && e.Port == b.Port })
	switch {
	case ok && i >= 0:
		return i
	case c.guessing:
		c.options = len(o.From)
		return c.guess % len(o.From)
	case ok:
		c.wrong = fmt.Errorf("the programs chose %v:%d, which is not one of %v", b.Addr, b.Port, o.From)
	default:
		c.wrong = fmt.Errorf("the programs chose no backend, the oracle does from %v", o.From)
	}
	return 0
}

// port is sim.Options.Port. What the programs took shows in the packet too.
func (c *choice) port(first uint16, n int) int {
	if c.known && c.sport >= first && int(c.sport-first) < n {
		return int(c.sport - first)
	}
	return 0
}

// affinity is the backend that the programs remember for a client of a service.
func (s *set) affinity(both *layouts, id nodestate.Frontend, client netip.Addr) (nodestate.Backend, bool) {
	l, maps := s.of(both, id.Addr)
	// struct affinity_key: svc (addr, port, proto, scope), client (addr, netns)
	key := binary.BigEndian.AppendUint16(id.Addr.AsSlice(), id.Port)
	key = append(append(key, uint8(id.Proto), 0), client.AsSlice()...)
	key = append(key, make([]byte, 8)...)
	value := make([]byte, l.affinitySize)
	if err := maps["weir_affinity"].Lookup(key, &value); err != nil {
		return nodestate.Backend{}, false
	}
	return backendAt(value[l.affinityBackend:], id.Addr), true
}

// backendAt reads a struct backend of the family of a.
func backendAt(b []byte, a netip.Addr) nodestate.Backend {
	n := a.BitLen() / 8
	addr, _ := netip.AddrFromSlice(b[:n])
	return nodestate.Backend{Addr: addr, Port: binary.BigEndian.Uint16(b[n:])}
}
