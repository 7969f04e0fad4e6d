// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
)

// Interfaces of nodes.
const (
	uplink = 1000 + iota
	hostDevice
	tunnelDevice
	firstPod
)

// Flow is a packet that begins a flow.
type Flow struct {
	From, To   netip.Addr
	Protocol   string // tcp, udp, icmp
	Port       uint16
	SourcePort uint16
}

func (f Flow) packet() *packet.Packet {
	switch f.Protocol {
	case "icmp":
		return packet.MustParse(fmt.Sprintf("icmp %s > %s echo id=%d seq=1 ttl=64", f.From, f.To, f.SourcePort))
	case "udp":
		return packet.MustParse(fmt.Sprintf("udp %s > %s ttl=64", netip.AddrPortFrom(f.From, f.SourcePort), netip.AddrPortFrom(f.To, f.Port)))
	}
	return packet.MustParse(fmt.Sprintf("tcp %s > %s S ttl=64", netip.AddrPortFrom(f.From, f.SourcePort), netip.AddrPortFrom(f.To, f.Port)))
}

// Flows makes random flows: between pods, to a Service, from and to nodes and the outside.
func (w *World) Flows(n int) (out []Flow) {
	pod := func() netip.Addr { return w.Pods[w.IntN(len(w.Pods))].Addr }
	for i := range n {
		f := Flow{Protocol: Pick(w, "tcp", "tcp", "udp", "icmp"), SourcePort: uint16(32000 + i*7%3000)}
		f.Port = map[string]uint16{"tcp": Pick[uint16](w, 80, 8080, 443), "udp": 53}[f.Protocol]
		switch w.IntN(8) {
		case 0:
			f.From, f.To = Pick(w, Outside...), pod()
		case 1:
			f.From, f.To = Pick(w, Nodes["n1"], Nodes["n2"]), pod()
		case 2:
			f.From, f.To = pod(), Pick(w, Outside...)
		case 3:
			f.From, f.To = pod(), Pick(w, Nodes["n1"], Nodes["n2"])
		case 4:
			f.From, f.To, f.Protocol, f.Port = pod(), ServiceAddr, "tcp", 80
		default:
			f.From, f.To = pod(), pod()
		}
		out = append(out, f)
	}
	return out
}

// Net is a world with policies in force.
type Net struct {
	w      *World
	states map[string]*nodestate.State
	pods   map[netip.Addr]*Pod
	owner  map[netip.Addr]string // the node of an address
}

// InForce computes the states of the nodes of a cluster.
func (w *World) InForce(c *model.Cluster) *Net {
	n := &Net{w: w, states: map[string]*nodestate.State{}, pods: map[netip.Addr]*Pod{}, owner: map[netip.Addr]string{}}
	for i := range w.Pods {
		n.pods[w.Pods[i].Addr] = &w.Pods[i]
		n.owner[w.Pods[i].Addr] = w.Pods[i].Node
	}
	for name, a := range Nodes {
		n.owner[a] = name
		of := *c
		of.Blocks = map[netip.Prefix]*model.Block{}
		for node, b := range blocks {
			of.Blocks[b] = &model.Block{CIDR: b, Node: node}
		}
		web := model.Name{Namespace: "a", Name: "web"}
		of.Services = map[model.Name]*model.Service{web: {Name: web, ClusterIPs: []netip.Addr{ServiceAddr}, Ports: []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80}}}}
		backend := w.Pods[0]
		of.Slices = map[model.Name]*model.EndpointSlice{web: {Name: web, Service: web, Ports: []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}},
			Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{backend.Addr}, Node: backend.Node, Ready: true, Serving: true}}}}
		of.Local = model.Local{Node: name, HostAddrs: []netip.Addr{a}, Subnets: []netip.Prefix{netip.PrefixFrom(a, 24).Masked()}, LinkMTU: 1500, Endpoints: map[netip.Addr]*model.LocalEndpoint{}}
		for i, p := range w.Pods {
			if p.Node == name {
				of.Local.Endpoints[p.Addr] = &model.LocalEndpoint{Pod: p.Name, Interface: fmt.Sprint("cali", i), IfIndex: firstPod + i, MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, Addrs: []netip.Addr{p.Addr}}
			}
		}
		n.states[name] = calc.Calc(&of)
	}
	return n
}

// seen is what a node reports of a flow.
type seen struct {
	node   string
	event  sim.Event
	result sim.Result
}

// send carries a flow's first packet. ok is false where it is dropped for another reason than the
// policy of pods.
func (n *Net) send(f Flow) (all []seen, allowed, ok bool) {
	at := n.owner[f.From]
	in := sim.In{Hook: sim.FromWorkload, Packet: f.packet()}
	switch {
	case n.pods[f.From] != nil:
		in.IfIndex = n.states[at].Addrs[f.From].IfIndex
	case at == "":
		at = n.owner[f.To]
		in.Hook, in.IfIndex = sim.FromUplink, uplink
	case at == n.owner[f.To]:
		in.Hook, in.IfIndex = sim.ToWorkload, n.states[at].Addrs[f.To].IfIndex
	default:
		in.Hook, in.IfIndex = sim.ToUplink, hostDevice
	}
	for range 2 {
		r := n.receive(at, in)
		for _, e := range r.Events {
			all = append(all, seen{at, e, r})
		}
		switch r.Action {
		case sim.Drop, sim.Answer:
			return all, false, r.Reason == reason.PolicyEgress || r.Reason == reason.PolicyIngress
		case sim.Tunnel:
			in = sim.In{Hook: sim.FromTunnel, IfIndex: tunnelDevice, Packet: r.Packet, Source: Nodes[at], VNI: n.states[at].Settings.Tunnel.VNI}
			at = n.owner[r.NextHop]
		default:
			return all, true, true
		}
	}
	return all, false, false
}

func (n *Net) receive(at string, in sim.In) sim.Result {
	node := sim.New(n.states[at], sim.Options{HostIfIndex: hostDevice, TunnelIfIndex: tunnelDevice, Listening: func() bool { return true },
		Uplinks: map[int]packet.MAC{uplink: {2, 1}},
		FIB: func(dst netip.Addr) (sim.Hop, bool) {
			return sim.Hop{IfIndex: uplink, Gateway: netip.MustParseAddr("10.0.0.254"), MTU: 1500}, dst != Nodes[at]
		}})
	return node.Receive(in)
}

// Allows says whether policy lets a flow through; ok is false where it has no say.
func (n *Net) Allows(f Flow) (allowed, ok bool) {
	_, allowed, ok = n.send(f)
	return allowed, ok
}

// Began is when flows of worlds began.
var Began = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// Records carries flows, and returns what the nodes' collectors keep of them, and the flows that
// policy had a say in.
func (n *Net) Records(t testing.TB, all []Flow) (records []*flows.Flow, of []Flow) {
	t.Helper()
	collectors := map[string]*flows.Collector{}
	for name := range Nodes {
		collectors[name] = flows.New(name, time.Minute, 1<<16, namer{n, name})
	}
	dropped := 0
	for _, f := range all {
		seen, _, ok := n.send(f)
		if !ok {
			dropped++
			continue
		}
		of = append(of, f)
		for _, s := range seen {
			n.record(collectors[s.node], s)
		}
	}
	if dropped > len(all)/4 {
		t.Errorf("%d of %d flows are dropped for another reason than policy", dropped, len(all))
	}
	for _, c := range collectors {
		c.Flush()
		c.Each(flows.Filter{}, func(f *flows.Flow) bool {
			records = append(records, f)
			return true
		})
	}
	return records, of
}

// record gives a collector what the data plane reports.
func (n *Net) record(c *flows.Collector, s seen) {
	e, state := s.event, n.states[s.node]
	end := func(x sim.End) dataplane.EventEnd { return dataplane.EventEnd{Local: x.Local, Rule: x.Rule} }
	if e.Reason != 0 {
		v := events.Event{Time: Began, Node: s.node, Verdict: flows.Denied, Reason: e.Reason.String(), Protocol: e.Proto.String(),
			Source: events.Peer{Address: e.Src, Port: e.Sport}, Destination: events.Peer{Address: e.Dst, Port: e.Dport},
			Egress: events.EndOf(state, end(e.Egress)), Ingress: events.EndOf(state, end(e.Ingress)), Service: events.ServiceOf(state, e.Service)}
		if e.Proto == model.ProtocolICMP {
			v.Source.Port, v.Destination.Port, v.ICMP = 0, 0, fmt.Sprintf("%d/%d", e.Dport>>8, e.Dport&0xff)
		}
		c.AddEvent(v)
		return
	}
	r := dataplane.FlowRecord{Src: e.Src, Dst: e.Dst, Sport: e.Sport, Dport: e.Dport, Proto: e.Proto, ToSrc: e.Src, ToDst: e.Dst, ToSport: e.Sport, ToDport: e.Dport,
		Packets: 3, Bytes: 300, Started: Began, Until: Began.Add(time.Second), Service: e.Service, Path: dataplane.PathLocal, Egress: end(e.Egress), Ingress: end(e.Ingress)}
	if e.Proto == model.ProtocolICMP { // as struct flow_key has it: an echo request is the identifier, and that and its type
		r.Sport, r.Dport = 7, 7+e.Dport>>8
		r.ToSport, r.ToDport = r.Sport, r.Dport
	}
	c.Add(r)
	r.Reply, r.Path = true, dataplane.PathDirect
	if e.Hook == sim.ToWorkload || e.Hook == sim.ToUplink {
		r.Path = dataplane.PathStack
	}
	c.Add(r)
}

// namer is what a node's agent knows.
type namer struct {
	n    *Net
	node string
}

func (b namer) State() *nodestate.State { return b.n.states[b.node] }

func (b namer) Pod(a netip.Addr) (model.Name, bool) {
	if p := b.n.pods[a]; p != nil {
		return p.Name, true
	}
	return model.Name{}, false
}

func (b namer) Describe(name model.Name, a netip.Addr) (map[string]string, string) {
	if p := b.n.pods[a]; p != nil && p.Name == name {
		return p.Labels, p.Node
	}
	return nil, ""
}

// Key is a flow as policy sees it: after a Service chose the backend, and with the message of ICMP
// (type * 256 + code) for a port.
type Key struct {
	From, To         netip.Addr
	Protocol         model.Protocol
	Port, SourcePort uint16
}

// Key returns a flow's.
func (w *World) Key(f Flow) Key {
	k := Key{From: f.From, To: f.To, Port: f.Port, SourcePort: f.SourcePort}
	switch f.Protocol {
	case "icmp":
		k.Protocol, k.Port, k.SourcePort = model.ProtocolICMP, 8<<8, 0
	case "udp":
		k.Protocol = model.ProtocolUDP
	default:
		k.Protocol = model.ProtocolTCP
	}
	if f.To == ServiceAddr {
		k.To, k.Port = w.Pods[0].Addr, 8080
	}
	return k
}
