// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/progtest"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// Runner keeps loaded programs and network namespaces from one scenario to the next. It is for one
// goroutine.
type Runner struct {
	sets   map[string]*set // by the node's name
	layout *layouts
	hz     int
	open   []*carrier
	free   map[string]*namespace // by who uses it, see likeness

	// Skipped counts lines of scenarios that nobody can play here: those about sockets.
	Skipped int
}

// NewRunner returns a runner that has loaded nothing yet.
func NewRunner() (*Runner, error) {
	hz, err := kernel.HZ()
	if err != nil {
		return nil, err
	}
	return &Runner{sets: map[string]*set{}, hz: hz, free: map[string]*namespace{}}, nil
}

// Close unloads the programs.
func (r *Runner) Close() error {
	errs := []error{r.Reset()}
	for _, s := range r.sets {
		s.close()
	}
	for _, ns := range r.free {
		errs = append(errs, ns.close())
	}
	clear(r.free)
	return errors.Join(errs...)
}

// mostFree is how many network namespaces a Runner keeps.
const mostFree = 16

// Reset ends a scenario. Network namespaces take the kernel longer to make and to remove than a
// scenario takes: those that a machine with the same addresses can use as they are stay.
func (r *Runner) Reset() error {
	var errs []error
	for _, c := range r.open {
		like := likeness(c.machine)
		if c.ns.plain() && r.free[like] == nil && len(r.free) < mostFree {
			r.free[like] = c.ns
		} else {
			errs = append(errs, c.ns.close())
		}
	}
	r.open = nil
	return errors.Join(errs...)
}

// likeness says who can use a machine's network namespace after it.
func likeness(m *scenario.Machine) string { return fmt.Sprint(m.Addr, m.Addr6, m.Subnets) }

// Frames is a Carrier that takes frames as bytes.
type Frames interface {
	scenario.Carrier
	ReceiveFrame(in sim.In, frame []byte) (sim.Result, error)
}

// New makes the data plane of a node, which is one of Frames; programs that an earlier scenario
// loaded are used again, without their flows, so that a state is also written over another one.
func (r *Runner) New(m *scenario.Machine) (scenario.Carrier, error) {
	s := r.sets[m.Name]
	var err error
	if s == nil {
		if s, err = load(scenario.HostDevice, scenario.TunnelDev); err != nil {
			return nil, err
		}
		r.sets[m.Name] = s
	}
	if err := s.ResetFlows(); err != nil {
		return nil, err
	}
	if r.layout == nil {
		if r.layout, err = newLayouts(s); err != nil {
			return nil, err
		}
	}
	ns := r.free[likeness(m)]
	if ns == nil {
		if ns, err = newNamespace(); err != nil {
			return nil, err
		}
	}
	delete(r.free, likeness(m))
	c := &carrier{runner: r, set: s, ns: ns, machine: m, begin: time.Now()}
	r.open = append(r.open, c)
	return c, nil
}

// carrier is one node: the programs, and the oracle alongside them.
type carrier struct {
	runner  *Runner
	set     *set
	ns      *namespace
	machine *scenario.Machine
	oracle  *sim.Node
	begin   time.Time
	jumped  time.Duration // by Advance

	choice choice
}

// Apply implements scenario.Carrier.
func (c *carrier) Apply(s *nodestate.State) error {
	if c.oracle == nil {
		c.oracle = sim.New(s, sim.Options{
			// The programs' clock runs, so the oracle's does.
			Now:  func() time.Duration { return c.jumped + time.Since(c.begin) },
			Pick: func(o sim.Choice) int { return c.choice.pick(o) },
			Port: func(first uint16, n int) int { return c.choice.port(first, n) },
			FIB:  c.machine.Route, LinkMTU: c.machine.MTU, HostIfIndex: scenario.HostDevice, TunnelIfIndex: scenario.TunnelDev,
			Listening: func() bool { return true }, Uplinks: c.machine.Uplinks(),
		})
	}
	err := c.ns.in(func() error {
		m := c.machine
		if err := c.ns.uplink(scenario.Uplink, m); err != nil {
			return err
		}
		if err := c.ns.surroundings(m); err != nil {
			return err
		}
		indexes := []int{scenario.HostDevice, scenario.TunnelDev}
		for _, a := range s.Addrs {
			if a.Kind == nodestate.AddrEndpoint {
				indexes = append(indexes, a.IfIndex)
			}
		}
		for _, i := range indexes {
			if _, err := c.ns.link(i); err != nil {
				return err
			}
		}
		ranges := maps.Clone(s.Settings.PoolRoutes)
		maps.Copy(ranges, s.Settings.NodeRoutes)
		if err := c.ns.unroute(ranges); err != nil {
			return err
		}
		for _, i := range append(indexes, scenario.Uplink) {
			if err := c.ns.mtu(i, m.MTU(i)); err != nil {
				return err
			}
		}
		for p := range ranges {
			if err := c.ns.route(p, scenario.HostDevice); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	macs := map[int][6]byte{}
	for index, mac := range c.machine.Uplinks() {
		macs[index] = mac
	}
	c.set.SetUplinks(macs)
	before := c.set.Epoch()
	if err := c.set.Apply(s); err != nil {
		return err
	}
	if c.set.Epoch() == before { // nothing that matters to this node changed
		c.oracle.ReplaceState(s)
	} else {
		c.oracle.SetState(s)
	}
	return nil
}

// Send implements scenario.Carrier.
func (c *carrier) Send(sim.Socket, netip.AddrPort) (netip.AddrPort, error) {
	return netip.AddrPort{}, scenario.ErrNoSockets
}

// Connect implements scenario.Carrier: BPF_PROG_TEST_RUN runs no socket programs.
func (c *carrier) Connect(sim.Socket, netip.AddrPort) (netip.AddrPort, error) {
	c.runner.Skipped++
	return netip.AddrPort{}, scenario.ErrNoSockets
}

// Advance implements scenario.Carrier: the kernel's clock cannot be moved, so what it is compared
// with is.
func (c *carrier) Advance(seconds int) error {
	c.jumped += time.Duration(seconds) * time.Second
	return c.set.age(c.runner.layout, uint32(seconds*c.runner.hz/256+1), uint16(seconds*c.runner.hz/16+1))
}

// Receive implements scenario.Carrier. Programs and oracle must agree on all but Ethernet addresses
// that the kernel sets later.
func (c *carrier) Receive(in sim.In) (sim.Result, error) {
	frame, err := in.Packet.Marshal()
	if err != nil {
		return sim.Result{}, err
	}
	return c.ReceiveFrame(in, frame)
}

// ReceiveFrame is Receive of a frame with all its bytes, of which in.Packet shows what the text
// form has.
func (c *carrier) ReceiveFrame(in sim.In, frame []byte) (sim.Result, error) {
	var got sim.Result
	own, to := c.machine.Uplinks()[in.IfIndex], in.Packet.DstMAC
	if in.Hook == sim.FromUplink && to == (packet.MAC{}) { // whoever says nothing means this machine: XDP looks at the address itself
		in.Packet, frame, to = in.Packet.Clone(), bytes.Clone(frame), own
		in.Packet.DstMAC = own
		copy(frame, own[:])
	}
	in.Other = in.Other || in.Hook == sim.FromUplink && to[0]&1 == 0 && to != own
	err := c.ns.in(func() (err error) {
		if _, err := c.set.reported(); err != nil { // what a packet before left unread
			return err
		}
		if err = c.ns.frames.drain(); err != nil {
			return err
		}
		if got, err = c.set.run(in, frame); err != nil || len(got.Again) == 0 {
			return err
		}
		frames, err := c.ns.frames.frames(in.IfIndex, len(got.Again))
		for i, p := range frames {
			got.Again[i].Packet = p
		}
		return err
	})
	if errors.Is(err, progtest.ErrNotRunnable) {
		return c.oracle.Receive(in), nil
	}
	if err != nil {
		return got, err
	}
	if got.Events, err = c.set.reported(); err != nil {
		return got, err
	}
	if got.Action == sim.Drop || got.Action == sim.Answer {
		return got, c.agreeOnDrop(in, got)
	}
	c.choice = choice{set: c.set, layout: c.runner.layout}
	if in.Packet.Kind != packet.Frame && in.Packet.Kind != packet.Error {
		c.choice.read(inside(in.Packet))
	}
	want := c.oracle.Receive(in)
	if c.choice.wrong != nil {
		return got, fmt.Errorf("%w; programs: %s: %s; oracle: %s: %s", c.choice.wrong, got, got.Packet, want, want.Packet)
	}
	return got, differ(in, got, want)
}

// inside is what a packet that comes in IP in IP carries: a flow begins with that.
func inside(p *packet.Packet) *packet.Packet {
	if inner, err := packet.Unwrap(p); err == nil && inner.Kind != packet.Frame && inner.Kind != packet.Error {
		return inner
	}
	return p
}

// agreeOnDrop finds out whether the oracle drops too. A packet may be dropped after its flow began
// (TTL): then the flow shows what was chosen. Else it is written down nowhere but in an affinity,
// and any choice that ends the same way will do.
func (c *carrier) agreeOnDrop(in sim.In, got sim.Result) error {
	var first error
	for i := -1; ; i++ {
		c.choice = choice{set: c.set, layout: c.runner.layout, guess: max(i, 0), guessing: true}
		if i < 0 && in.Packet.Kind != packet.Frame && in.Packet.Kind != packet.Error {
			c.choice.read(inside(in.Packet))
		}
		try := c.oracle.Clone()
		err := differ(in, got, try.Receive(in))
		if err == nil {
			c.oracle = try
			return nil
		}
		if first == nil {
			first = err
		}
		if i+1 >= max(c.choice.options, 1) {
			return first
		}
	}
}

// ErrDiffer is what Receive returns where programs and oracle do not agree on what becomes of a
// packet. Its other errors are about playing packets at all.
var ErrDiffer = errors.New("programs and oracle differ")

func differ(in sim.In, got, want sim.Result) error {
	if a, b := canonical(got), canonical(want); a != b {
		return fmt.Errorf("%w on %s if%d %s\n  programs: %s\n  oracle:   %s", ErrDiffer, in.Hook, in.IfIndex, in.Packet, a, b)
	}
	return nil
}

func canonical(r sim.Result) string {
	p := r.Packet.Clone()
	p.SrcMAC, p.DstMAC = packet.MAC{}, packet.MAC{}
	s := fmt.Sprintf("%s mac=%s: %s", r, r.MAC, p)
	for _, e := range r.Events {
		s += fmt.Sprintf("; event %s", e)
	}
	for _, again := range r.Again {
		s += fmt.Sprintf("; again %s", again.Packet)
	}
	return s
}
