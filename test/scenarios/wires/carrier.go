// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// Open opens a driver for the network namespace of the calling thread, in which there is an uplink
// eth0. It works only while it is called.
type Open func(m *scenario.Machine) (dataplane.Driver, error)

// Runner plays scenarios. It is for one goroutine.
type Runner struct {
	driver Open
	open   []*carrier
	now    time.Duration // of the node that is ahead

	// Skipped are the kinds of packets, with their number, that were left to the oracle alone:
	// nobody can send them here.
	Skipped map[string]int
	// Played is how many packets went through the data plane.
	Played int
}

// NewRunner returns a runner for a driver.
func NewRunner(driver Open) *Runner { return &Runner{driver: driver, Skipped: map[string]int{}} }

// Reset ends a scenario: its drivers are closed and its network namespaces go.
func (r *Runner) Reset() error {
	var errs []error
	for _, c := range r.open {
		errs = append(errs, c.place.in(c.driver.Close), c.place.close())
	}
	r.open, r.now = nil, 0
	return errors.Join(errs...)
}

// New makes the data plane of a node.
func (r *Runner) New(m *scenario.Machine) (scenario.Carrier, error) {
	p, err := newPlace()
	if err != nil {
		return nil, err
	}
	c := &carrier{runner: r, place: p, machine: m, links: map[int]net.HardwareAddr{}, who: map[[6]byte]netip.Addr{}, pods: map[netip.Addr]pod{}, older: map[exchange]bool{}}
	err = p.in(func() error {
		if err := errors.Join(p.uplink(m), leadToNodes(m)); err != nil {
			return err
		}
		c.driver, err = r.driver(m)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	r.open = append(r.open, c)
	return c, nil
}

// leadToNodes leads what is for other nodes to their routes, as package wireguard does, but for the
// tunnel's own packets.
func leadToNodes(m *scenario.Machine) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Invert = family, 99, kernel.NodeRouteTable, true
		port := m.State.Settings.Tunnel.Port
		r.IPProto, r.Dport = unix.IPPROTO_UDP, netlink.NewRulePortRange(port, port)
		errs = append(errs, netlink.RuleAdd(r))
	}
	return errors.Join(errs...)
}

// carrier is one node: the driver in its namespace, and the oracle alongside it.
type carrier struct {
	runner  *Runner
	place   *place
	machine *scenario.Machine
	driver  dataplane.Driver
	state   *nodestate.State
	now     time.Duration

	// oracles are the nodes that agree with all that was seen: what was chosen does not always show
	// at once.
	oracles []*sim.Node
	guess   guess

	links  map[int]net.HardwareAddr // MAC addresses in the node, by index
	tunnel int                      // index of the VXLAN device, 0 = none
	pods   map[netip.Addr]pod       // that the node has a route to
	who    map[[6]byte]netip.Addr   // neighbours that the node learned, by MAC address
	ahead  []step                   // hooks that the last packet has met already
	events []dataplane.Event        // of the packet at hand
	older  map[exchange]bool        // what the node's own processes exchanged before there were host endpoints
}

// pod is where an address of a pod is.
type pod struct {
	ifindex int
	mac     [6]byte
}

// guess is a choice that the oracle makes for the packet at hand.
type guess struct {
	backend int
	options int // how many there were; 0 = none was asked for
	sport   uint16
}

// Apply implements scenario.Carrier.
func (c *carrier) Apply(s *nodestate.State) error {
	err := c.place.in(func() error {
		if err := c.interfaces(s); err != nil {
			return err
		}
		if err := c.driver.Apply(context.Background(), s, nodestate.All()); err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		if err := c.place.ready(); err != nil {
			return err
		}
		return c.readLinks()
	})
	if err != nil {
		return err
	}
	if c.oracles == nil {
		c.oracles = []*sim.Node{sim.New(s, sim.Options{
			Now:  func() time.Duration { return c.now },
			Pick: c.pick,
			Port: func(first uint16, n int) int { return min(max(int(c.guess.sport)-int(first), 0), n-1) }, Undivided: true,
			FIB: c.machine.Route, LinkMTU: c.machine.MTU, HostIfIndex: scenario.HostDevice, TunnelIfIndex: scenario.TunnelDev,
			Listening: func() bool { return true }, Uplinks: c.machine.Uplinks(),
		})}
	} else {
		for _, o := range c.oracles {
			o.SetState(s)
		}
	}
	c.state = s
	return nil
}

func (c *carrier) pick(o sim.Choice) int {
	c.guess.options = len(o.From)
	return c.guess.backend % len(o.From)
}

// interfaces makes those of the state's pods, and removes others. Call it inside.
func (c *carrier) interfaces(s *nodestate.State) error {
	wanted := map[int]bool{scenario.Uplink: true}
	for addr, a := range s.Addrs {
		if a.Kind != nodestate.AddrEndpoint {
			continue
		}
		wanted[a.IfIndex] = true
		if err := c.place.link(a.IfIndex, a.Interface, nil); err != nil {
			return err
		}
		if known := (pod{a.IfIndex, a.MAC}); c.pods[addr] != known {
			if err := c.place.pod(a.IfIndex, addr, a.MAC); err != nil {
				return err
			}
			c.pods[addr] = known
		}
	}
	maps.DeleteFunc(c.pods, func(_ netip.Addr, p pod) bool { return !wanted[p.ifindex] })
	for _, index := range slices.Sorted(maps.Keys(c.place.farOf)) {
		if !wanted[index] {
			if err := c.place.unlink(index); err != nil {
				return err
			}
			continue
		}
		if err := c.place.mtu(index, c.machine.MTU(index)); err != nil {
			return err
		}
	}
	return nil
}

// readLinks finds the MAC addresses of the node's interfaces, which the driver may set, and its
// VXLAN device. Call it inside.
func (c *carrier) readLinks() error {
	all, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	before := c.tunnel
	c.tunnel = 0
	for _, l := range all {
		c.links[l.Attrs().Index] = l.Attrs().HardwareAddr
		if l.Type() == "vxlan" {
			c.tunnel = l.Attrs().Index
		}
	}
	if c.tunnel != 0 && before == 0 {
		return passTunnel(c.machine.State.Settings.Tunnel.Port)
	}
	return nil
}

// Send implements scenario.Carrier.
func (c *carrier) Send(sim.Socket, netip.AddrPort) (netip.AddrPort, error) {
	return netip.AddrPort{}, scenario.ErrNoSockets
}

// Connect implements scenario.Carrier.
func (c *carrier) Connect(sim.Socket, netip.AddrPort) (netip.AddrPort, error) {
	return netip.AddrPort{}, scenario.ErrNoSockets
}

const noTime = "the clock of a whole kernel cannot be moved"

// Advance implements scenario.Carrier: a moment passes in earnest, once for all nodes.
func (c *carrier) Advance(seconds int) error {
	if seconds > scenario.Moment {
		return errors.New(noTime)
	}
	c.now += time.Duration(seconds) * time.Second
	if ahead := c.now - c.runner.now; ahead > 0 {
		time.Sleep(ahead)
		c.runner.now = c.now
	}
	return nil
}

// Lacks implements scenario.Limited.
func (c *carrier) Lacks(need string) string {
	if need == scenario.FeatureTime {
		return noTime
	}
	return dataplane.Lacks(c.driver)[dataplane.Feature(need)]
}

// errCannot says that nobody can make the kernel see this packet at this hook.
var errCannot = errors.New("cannot be sent")

// Receive implements scenario.Carrier. The packet goes through the whole node at once; the hooks
// that it meets there are reported one after the other, as they are asked for.
func (c *carrier) Receive(in sim.In) (sim.Result, error) {
	if len(c.ahead) > 0 && c.ahead[0].in.Hook == in.Hook && c.ahead[0].in.Packet.String() == in.Packet.String() {
		r := c.ahead[0].result
		c.ahead = c.ahead[1:]
		return r, nil
	}
	c.ahead = nil
	got, err := c.carry(in)
	if errors.Is(err, errCannot) {
		c.runner.Skipped[err.Error()]++
		return c.agree(in, nil, false)
	}
	if err != nil {
		return sim.Result{}, err
	}
	c.runner.Played++
	return c.agree(in, got, true)
}

// maxOracles bounds how many possible pasts are kept.
const maxOracles = 64

// agree lets the oracle receive the packet, with each choice that it may make, and keeps what
// agrees with what came out.
func (c *carrier) agree(in sim.In, got []outcome, compare bool) (sim.Result, error) {
	_, reported := c.driver.(Reporter)
	var kept []*sim.Node
	var first []step
	var why string
	c.guess = guess{}
	if len(got) == 1 && got[0].packet.Kind != packet.Frame {
		c.guess.sport, _ = got[0].packet.Ports()
	}
	for _, o := range c.oracles {
		for c.guess.backend = 0; ; c.guess.backend++ {
			c.guess.options = 0
			try := o.Clone()
			steps, want := through(c.machine, try, in)
			d := ""
			if compare {
				if d = differs(in, got, want); d != "" && knewBefore(in, got, steps) {
					d = ""
				}
				if d == "" && reported {
					d = c.unlike(steps)
				}
				if d != "" && c.knew(in, got, steps) {
					d = ""
				}
			}
			if d == "" {
				if first == nil {
					first = steps
				}
				if !slices.ContainsFunc(kept, try.Same) && len(kept) < maxOracles {
					kept = append(kept, try)
				}
			} else if why == "" {
				why = fmt.Sprintf("%s if%d %s: %s\n  data plane: %v\n  oracle:     %s: %s", in.Hook, in.IfIndex, in.Packet, d, got, want, steps[len(steps)-1].result)
			}
			if c.guess.backend+1 >= c.guess.options {
				break
			}
		}
	}
	if first == nil {
		return sim.Result{}, errors.New(why + c.dump())
	}
	c.oracles, c.ahead = kept, first[1:]
	c.remember(in.Packet)
	return first[0].result, nil
}

// dump is the whole ruleset and the flows, where WEIR_DUMP asks for them.
func (c *carrier) dump() string {
	if os.Getenv("WEIR_DUMP") == "" {
		return ""
	}
	var text []byte
	err := c.place.in(func() error {
		for _, args := range [][]string{{"nft", "list", "ruleset"}, {"ip", "route"}, {"ip", "-d", "addr"}, {"cat", "/proc/net/nf_conntrack"}} {
			out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
			if text = append(text, out...); err != nil {
				text = fmt.Appendf(text, "%v: %v\n", args, err)
			}
		}
		return nil
	})
	return fmt.Sprintf("\n%s%v", text, err)
}

// carry sends a packet to the node and returns what comes out.
func (c *carrier) carry(in sim.In) ([]outcome, error) {
	var out []outcome
	err := c.place.in(func() error {
		if _, err := c.collect(nil); err != nil { // what was said before
			return err
		}
		if _, err := c.reported(); err != nil {
			return err
		}
		if err := c.inject(in); err != nil {
			return err
		}
		var err error
		if out, err = c.collect(nil); err != nil {
			return err
		}
		c.events, err = c.reported()
		return err
	})
	return out, err
}

// collect returns what came out, and answers the node's requests for its neighbours. Call it
// inside.
func (c *carrier) collect(out []outcome) ([]outcome, error) {
	for {
		frames, err := c.place.port.drain()
		if err != nil {
			return out, err
		}
		reported := false
		for _, f := range frames {
			if a, ok := asks(f.data); ok {
				index, mac := c.place.nodeOf[f.far], c.macOf(a)
				c.who[mac] = a
				if err := c.place.neighbour(index, a, mac); err != nil {
					return out, err
				}
				reported = true
				continue
			}
			if chatter(f.data) && !answers(f.data) {
				continue
			}
			o, err := c.saw(f)
			if err != nil {
				return out, err
			}
			out = append(out, o)
		}
		if reported {
			continue // what waited for a neighbour comes now
		}
		arrived, err := c.place.arrived.Waiting()
		for _, a := range arrived {
			f := binary.BigEndian.AppendUint16(make([]byte, 12), 0x0800)
			if len(a.Packet) > 0 && a.Packet[0]>>4 == 6 {
				f = binary.BigEndian.AppendUint16(make([]byte, 12), 0x86dd)
			}
			f = append(f, a.Packet...)
			if chatter(f) {
				continue
			}
			p, err := packet.Unmarshal(f)
			if err != nil {
				return out, err
			}
			out = append(out, outcome{where: host, packet: p})
		}
		return out, err
	}
}

// saw reads a frame that came out of an interface.
func (c *carrier) saw(f frame) (outcome, error) {
	index := c.place.nodeOf[f.far]
	if index != scenario.Uplink {
		p, err := packet.Unmarshal(f.data)
		return outcome{where: atPod(index), packet: p}, err
	}
	if _, dst, vni, inner, ok := carried(f.data, c.state.Settings.Tunnel.Port); ok && vni == c.state.Settings.Tunnel.VNI {
		p, err := packet.Unmarshal(inner)
		return outcome{where: atTunnel(dst), packet: p}, err
	}
	p, err := packet.Unmarshal(f.data)
	if err != nil {
		return outcome{}, err
	}
	next, ok := c.who[p.DstMAC]
	if !ok {
		for a, known := range c.state.Addrs {
			if known.Kind == nodestate.AddrNode && known.MAC == p.DstMAC && a.Is4() == p.IP.Src.Is4() {
				next, ok = known.Node, true
			}
		}
	}
	if !ok {
		return outcome{where: "uplink, to " + p.DstMAC.String(), packet: p}, nil
	}
	return outcome{where: atUplink(next), packet: p}, nil
}
