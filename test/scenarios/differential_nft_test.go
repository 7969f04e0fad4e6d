// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
	"github.com/weir-net/weir/test/scenarios/wires"
)

const (
	nftRounds          = 12
	nftPacketsPerRound = 120
)

// TestDifferentialNFT lets connections of random pods, nodes and clients meet random policies,
// which change under way, on a kernel that the nftables driver wrote: what comes out is what the
// oracle says. There are no Services in it, and only packets that connection tracking has no
// opinion of its own about. It plays the same rounds each time; WEIR_DIFFERENTIAL plays new ones as
// for TestDifferential, WEIR_SEED=<seed> plays one.
func TestDifferentialNFT(t *testing.T) {
	r := newWires(t)
	differNFT(t, r, r.New)
}

// TestDifferentialNFTIPv6 does the same with IPv6 in the place of IPv4.
func TestDifferentialNFTIPv6(t *testing.T) {
	r := newWires(t)
	differNFT(t, r, scenario.Mirror(r.New))
}

func differNFT(t *testing.T, r *wires.Runner, make scenario.NewCarrier) {
	t.Helper()
	first, last := uint64(1), uint64(nftRounds)
	if text := os.Getenv("WEIR_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, last = seed, seed
	}
	more := func(packets uint64) bool { return packets < (last-first+1)*nftPacketsPerRound }
	if text := os.Getenv("WEIR_DIFFERENTIAL"); text != "" {
		begin := time.Now()
		var err error
		if more, err = until(text, begin); err != nil {
			t.Fatal(err)
		}
		first = uint64(begin.UnixNano())
		t.Logf("new rounds from seed %d", first)
	}
	seen, rounds := map[string]int{}, uint64(0)
	for ; more(rounds * nftPacketsPerRound); rounds++ {
		seed := first + rounds
		if err := playPolicies(r, make, seed, seen); err != nil {
			t.Fatalf("WEIR_SEED=%d: %v", seed, err)
		}
	}
	t.Logf("%d packets: %v; left to the oracle alone: %v", r.Played, seen, r.Skipped)
	if uint64(r.Played) < rounds*nftPacketsPerRound/2 {
		t.Errorf("only %d packets went through the kernel", r.Played)
	}
	if rounds >= nftRounds && (seen["allowed"] == 0 || seen["POLICY_INGRESS"] == 0 || seen["POLICY_EGRESS"] == 0 || seen["answer"] == 0 ||
		seen["HOST_INGRESS"] == 0 || seen["HOST_EGRESS"] == 0 || seen["HOST_PRE_DNAT"] == 0 || seen["TO_HOST"] == 0) {
		t.Errorf("something never happened: %v", seen)
	}
}

// talk is a connection, by its last packet that arrived.
type talk struct {
	last  *packet.Packet
	turns int
}

// policies is one round.
type policies struct {
	*crowd
	machine *scenario.Machine
	carrier scenario.Carrier
	open    []talk
	log     []string
}

func playPolicies(r *wires.Runner, make scenario.NewCarrier, seed uint64, seen map[string]int) (err error) {
	d := &policies{crowd: newCrowd(seed)}
	clear(d.c.Services)
	clear(d.c.Slices)
	d.c.Settings.MaxFlows = 512000 // the kernel's connection tracking knows no shares
	d.c.Settings.SNATPortLast = d.c.Settings.SNATPortFirst + 9999
	clear(d.mtus)
	d.own, d.aside, d.c.Local.HostAddrs = nil, nil, []netip.Addr{ownAddr}
	if seed%3 == 0 {
		d.guard()
	}
	d.tracked()
	d.machine = d.crowd.machine()
	defer func() {
		if resetErr := r.Reset(); err == nil {
			err = resetErr
		}
		if err != nil {
			err = fmt.Errorf("%w\nafter:\n  %s", err, strings.Join(d.log, "\n  "))
		}
	}()
	d.machine.State = calc.Calc(d.c)
	if d.carrier, err = make(d.machine); err != nil {
		return err
	}
	if err := d.carrier.Apply(d.machine.State); err != nil {
		return err
	}
	for i := range nftPacketsPerRound {
		if err := d.step(seen); err != nil {
			return fmt.Errorf("packet %d: %w", i, err)
		}
	}
	return nil
}

// guard gives the node's uplink a host endpoint, and a policy before Services that denies some of
// what comes.
func (d *policies) guard() {
	d.c.HostEndpoints["guard"] = &model.HostEndpoint{Name: "guard", Node: "n0", Interface: "eth0", Labels: map[string]string{"guard": "yes"}, Profiles: []string{model.ProfileDefaultAllow}}
	p := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "guard"}, Tier: model.TierDefault, Subject: model.Selector{Expression: "guard == 'yes'"},
		PreDNAT: true, ApplyOnForward: true, AppliesIngress: true,
		Ingress: []model.Rule{{Action: model.Deny, Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 80, Last: 8079}}}}}
	d.c.Policies[p.ID()] = p
}

// tracked leaves out policies that evaluate each packet by itself, which nftables lacks.
func (d *policies) tracked() {
	maps.DeleteFunc(d.c.Policies, func(_ model.PolicyID, p *model.Policy) bool { return p.DoNotTrack })
}

func (d *policies) step(seen map[string]int) error {
	if d.chance(8) {
		d.changePolicy()
		d.tracked()
		d.machine.State = calc.Calc(d.c)
		d.log = append(d.log, "policies change")
		if err := d.carrier.Apply(d.machine.State); err != nil {
			return err
		}
	}
	p, turns := d.opening(), 0
	if len(d.open) > 0 && d.chance(60) {
		i := d.IntN(len(d.open))
		p, turns = d.next(d.open[i]), d.open[i].turns+1
		d.open = append(d.open[:i], d.open[i+1:]...)
	}
	in := d.at(p)
	d.log = append(d.log, fmt.Sprintf("%s if%d from %s: %s", in.Hook, in.IfIndex, in.Source, in.Packet))
	res, err := d.carrier.Receive(in)
	if err != nil {
		return err
	}
	d.log = append(d.log, fmt.Sprintf("    %s: %s", res, res.Packet))
	switch res.Action {
	case sim.Drop:
		seen[res.Reason.String()]++
	case sim.Answer:
		seen["answer"]++
	default:
		seen["allowed"]++
		if turns < 6 {
			d.open = append(d.open, talk{res.Packet, turns})
		}
	}
	return nil
}

// changePolicy changes policies or labels.
func (d *policies) changePolicy() {
	switch d.IntN(7) {
	case 6:
		d.hostEndpoints()
	case 0:
		d.tiered()
	case 1:
		d.tiers()
	case 2:
		d.clusterPolicy()
	case 3:
		if ids := sortedPolicies(d.c.Policies); len(ids) > 0 {
			delete(d.c.Policies, one(d.crowd, ids...))
		}
	case 4:
		p := *d.anyPod()
		p.Labels = d.labels()
		d.c.Pods.Put(&p)
	default:
		d.policy()
	}
}

// opening is the first packet of a connection that a pod of the node has one end of, or the node
// itself.
func (d *policies) opening() *packet.Packet {
	own := one(d.crowd, localPods...)
	peer := one(d.crowd, one(d.crowd, localPods...), one(d.crowd, localPods...), one(d.crowd, otherPods...), one(d.crowd, outside...), ownAddr)
	if d.chance(30) {
		own, peer = ownAddr, one(d.crowd, one(d.crowd, outside...), one(d.crowd, outside...), one(d.crowd, otherPods...))
		if isPod := d.machine.State.Addrs[peer].Kind == nodestate.AddrPod || d.routeOf(peer).Node.IsValid(); isPod {
			peer = outside[0] // the path of the node's own packets to pods elsewhere is another one in each data plane
		}
	}
	if peer == own { // never leaves the pod
		peer = outside[0]
	}
	p := &packet.Packet{Type: packet.TypeIPv4, IP: packet.IPv4{Src: own, Dst: peer, TTL: 64, ID: 1}}
	if d.chance(50) {
		p.IP.Src, p.IP.Dst = peer, own
	}
	port := one[uint16](d.crowd, 80, 80, 53, 8080, 5353, 3929, 30000, 1000, 1001, 1350)
	p.SrcPort = 1000 + uint16(d.IntN(3000))
	switch d.IntN(6) {
	case 0, 1:
		p.Kind, p.IP.Proto, p.DstPort = packet.UDP, packet.ProtoUDP, port
	case 2:
		p.SrcPort = 0
		p.Kind, p.IP.Proto, p.ICMPType, p.ID = packet.Echo, packet.ProtoICMP, 8, uint16(1+d.IntN(3000))
	default:
		p.Kind, p.IP.Proto, p.DstPort, p.Flags, p.Window, p.Seq = packet.TCP, packet.ProtoTCP, port, packet.SYN, 512, 100
	}
	return p
}

// next is the next packet of a connection: the answer to the last one.
func (d *policies) next(t talk) *packet.Packet {
	p := t.last.Clone()
	p.SrcMAC, p.DstMAC, p.IP.TTL = packet.MAC{}, packet.MAC{}, 64
	p.IP.Src, p.IP.Dst, p.SrcPort, p.DstPort = p.IP.Dst, p.IP.Src, p.DstPort, p.SrcPort
	switch p.Kind {
	case packet.Echo:
		p.ICMPType = packet.AnswerType(p.ICMPType)
	case packet.TCP:
		seq, ack := p.Seq, p.Ack
		p.Seq, p.Ack = ack, seq
		switch {
		case p.Flags == packet.SYN:
			p.Flags, p.Seq, p.Ack = packet.SYN|packet.ACK, 500, seq+1
		case p.Flags&packet.SYN != 0:
			p.Flags, p.Ack = packet.ACK, seq+1
		}
	}
	return p
}

// at is the hook where a packet comes in.
func (d *policies) at(p *packet.Packet) sim.In {
	in := sim.In{Packet: p, Hook: sim.FromUplink, IfIndex: scenario.Uplink, VNI: d.machine.State.Settings.Tunnel.VNI}
	src, dst := d.machine.State.Addrs[p.IP.Src], d.machine.State.Addrs[p.IP.Dst]
	route := d.routeOf(p.IP.Src)
	switch {
	case src.Kind == nodestate.AddrEndpoint:
		in.Hook, in.IfIndex = sim.FromWorkload, src.IfIndex
	case src.Kind == nodestate.AddrHost && dst.Kind == nodestate.AddrEndpoint:
		in.Hook, in.IfIndex = sim.ToWorkload, dst.IfIndex
	case src.Kind == nodestate.AddrHost:
		in.Hook = sim.ToUplink
	case route.Tunnel:
		in.Hook, in.IfIndex, in.Source = sim.FromTunnel, scenario.TunnelDev, route.Node
	default:
		p.SrcMAC = packet.MAC(macOf(one(d.crowd, nodeAddrs[1], nodeAddrs[2])))
	}
	return in
}

// routeOf is the path to a pod of another node.
func (d *policies) routeOf(a netip.Addr) nodestate.Route {
	if known, ok := d.machine.State.Addrs[a]; ok && known.Kind == nodestate.AddrPod {
		return nodestate.Route{Node: known.Node, Tunnel: known.Tunnel}
	}
	best := -1
	var found nodestate.Route
	for p, r := range d.machine.State.Routes {
		if p.Contains(a) && p.Bits() > best {
			best, found = p.Bits(), r
		}
	}
	return found
}
