// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// Options are what a node needs in addition to its state. Nothing here is read from the machine.
type Options struct {
	// Now is the node's clock; only differences count.
	Now func() time.Duration
	// Pick returns the index in Choice.From of the backend to take.
	Pick func(Choice) int
	// Port returns where in a range of n ports the search for a free one begins, counted from
	// first. Where a pod has windows of the range alone, it begins there when that is in one of
	// them.
	Port func(first uint16, n int) int
	// Undivided says that the whole range is everybody's, as with the kernel's connection tracking.
	Undivided bool
	// FIB is the kernel's routing, false when it has no route.
	FIB func(dst netip.Addr) (Hop, bool)
	// LinkMTU is the MTU of an interface in bytes, 0 when it is not known.
	LinkMTU func(ifindex int) int
	// HostIfIndex is the interface by which host processes reach pool addresses (weir0),
	// TunnelIfIndex the VXLAN device.
	HostIfIndex, TunnelIfIndex int
	// Uplinks are the MAC addresses of the uplinks by interface index.
	Uplinks map[int]packet.MAC
	// Listening says whether somebody listens to events: then flows that are allowed are reported,
	// too.
	Listening func() bool
	// NoTunnel says that the node has no VXLAN device.
	NoTunnel bool
}

// Node is one node. It is not safe for concurrent use.
type Node struct {
	state *nodestate.State
	opts  Options
	epoch uint32
	links map[packet.MAC]nodestate.Client // nodes, by the MAC address of their uplink: their address of each family

	flows, half map[flowKey]*flow
	shares      map[netip.Addr]int // entries among flows that a pod began, ever; of no address: all
	affinity    map[affinityKey]affinityEntry
	maglev      map[nodestate.Frontend][]int32 // Maglev tables of the state, as they are needed
	tries       map[netip.Addr]tries           // by client
	fallen      map[netip.Addr]time.Duration   // clients that get no direct answers, since when
	sockets     map[socketKey]netip.AddrPort   // what was asked for, by what was got
	chosen      map[socketKey]chosen           // what was got, by what was asked for
	firsts      map[fragmentKey]firstFragment
	kept        []keptFragment // oldest first
	events      []Event
	evaluated   *Event // for the packet at hand: what was evaluated last; nil = nothing
	again       bool   // it is of a flow that was there
	alone       bool   // host endpoints allow it by itself, without tracking
	unseen      bool   // so it passed, whatever flow there is
	service     nodestate.Frontend
	sender      netip.Addr                  // whose egress policy is evaluated
	told        map[told][]nodestate.NameID // what DNS told pods
}

// told is an address that the pod at an interface was told.
type told struct {
	ifindex int
	addr    netip.Addr
}

// Tell has the pod at an interface told by DNS, before it sends anything, that a name, in lower
// case and without the last dot, has an address. The oracle forgets none.
func (n *Node) Tell(ifindex int, name string, addr netip.Addr) {
	if n.told == nil {
		n.told = map[told][]nodestate.NameID{}
	}
	key := told{ifindex, addr}
	n.told[key] = append(n.told[key], n.state.Names.Matching(name)...)
}

// New returns a node without flows. Options.Now, Pick and Port default to a clock that does not
// move and to the first choice.
func New(s *nodestate.State, o Options) *Node {
	if o.Now == nil {
		o.Now = func() time.Duration { return 0 }
	}
	if o.Pick == nil {
		o.Pick = func(Choice) int { return 0 }
	}
	if o.Port == nil {
		o.Port = func(uint16, int) int { return 0 }
	}
	if o.FIB == nil {
		o.FIB = func(netip.Addr) (Hop, bool) { return Hop{}, false }
	}
	if o.Listening == nil {
		o.Listening = func() bool { return false }
	}
	if o.LinkMTU == nil {
		o.LinkMTU = func(int) int { return 0 }
	}
	n := &Node{
		opts: o, flows: map[flowKey]*flow{}, half: map[flowKey]*flow{},
		affinity: map[affinityKey]affinityEntry{}, sockets: map[socketKey]netip.AddrPort{}, chosen: map[socketKey]chosen{}, firsts: map[fragmentKey]firstFragment{},
		shares: map[netip.Addr]int{}, tries: map[netip.Addr]tries{}, fallen: map[netip.Addr]time.Duration{},
	}
	n.SetState(s)
	return n
}

// SetState replaces the state and moves the epoch on.
func (n *Node) SetState(s *nodestate.State) {
	n.epoch++
	n.ReplaceState(s)
}

// ReplaceState replaces the state by one that means the same for every flow that is open: none is
// evaluated again.
func (n *Node) ReplaceState(s *nodestate.State) {
	n.state = s
	n.maglev = map[nodestate.Frontend][]int32{}
	n.links = map[packet.MAC]nodestate.Client{}
	for _, a := range s.Addrs {
		if a.Kind == nodestate.AddrNode && a.MAC != [6]byte{} {
			n.links[a.MAC] = n.links[a.MAC].With(a.Node)
		}
	}
}

// Clone returns a node that goes on from here on its own.
func (n *Node) Clone() *Node {
	c := *n
	c.flows, c.half = cloneFlows(n.flows), cloneFlows(n.half)
	c.affinity, c.sockets, c.chosen = maps.Clone(n.affinity), maps.Clone(n.sockets), maps.Clone(n.chosen)
	c.firsts, c.kept = maps.Clone(n.firsts), slices.Clone(n.kept)
	c.shares = maps.Clone(n.shares)
	c.tries, c.fallen = maps.Clone(n.tries), maps.Clone(n.fallen)
	return &c
}

func cloneFlows(m map[flowKey]*flow) map[flowKey]*flow {
	out := make(map[flowKey]*flow, len(m))
	for k, f := range m {
		v := *f
		out[k] = &v
	}
	return out
}

// dropped is how the steps say that a packet ends.
type dropped struct {
	reason reason.Reason
	rule   nodestate.RuleID
	mtu    int  // TooBig
	reset  bool // of a connection that was open, and is denied now
}
