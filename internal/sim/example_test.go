// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// A node with two pods: pod a is 10.0.0.1 behind interface 10, pod b is 10.0.0.2 behind interface
// 11 and the only backend of the Service 10.96.0.1:80. Policies let nobody into pod b but by port
// 8080.
func node() *nodestate.State {
	s := nodestate.New()
	s.Settings.Node = netip.MustParseAddr("172.31.1.1")
	s.Settings.Timeouts = model.DefaultSettings().Timeouts
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	s.Addrs[s.Settings.Node] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true}
	s.Addrs[a] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 10}
	s.Addrs[b] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 11, Ingress: nodestate.Isolation{Set: 5, Rule: 50}}
	s.Routes[netip.MustParsePrefix("10.0.0.0/24")] = nodestate.Route{Pool: true, Local: true}

	web := nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: model.ProtocolTCP}
	s.Frontends.Set(web, nodestate.Service{ID: web})
	s.Backends.Set(web, []nodestate.Backend{{Addr: b, Port: 8080, Local: true}})

	// The head decides what no entry is for, and says which entries there are: of TCP (bit 0), for
	// ports of 16 bits.
	s.Policy.Set(nodestate.PolicyKey{Set: 5, Head: true}, nodestate.PolicyValue{Rule: 52, Protos: nodestate.ProtoBitTCP, Lens: 1 << 16})
	s.Policy.Set(nodestate.PolicyKey{Set: 5, Proto: model.ProtocolTCP, Port: 8080, Len: 16}, nodestate.PolicyValue{Rule: 51, Allow: true})
	return s
}

// A connection to a Service: its first packet chooses the backend, policy evaluates what became of
// it, and answers look as if they came from the Service.
func ExampleNode_Receive() {
	n := sim.New(node(), sim.Options{})

	syn := n.Receive(sim.In{Hook: sim.FromWorkload, IfIndex: 10, Packet: packet.MustParse("tcp 10.0.0.1:40000 > 10.96.0.1:80 S")})
	fmt.Printf("%s\n  %s\n", syn, syn.Packet)

	answer := n.Receive(sim.In{Hook: sim.FromWorkload, IfIndex: 11, Packet: packet.MustParse("tcp 10.0.0.2:8080 > 10.0.0.1:40000 S.")})
	fmt.Printf("%s\n  %s\n", answer, answer.Packet)
	// Output:
	// local if11 rule=51
	//   tcp 10.0.0.1:40000 > 10.0.0.2:8080 S ttl=63 smac=ee:ee:ee:ee:ee:ee
	// local if10 rule=51
	//   tcp 10.96.0.1:80 > 10.0.0.1:40000 S. ttl=63 smac=ee:ee:ee:ee:ee:ee
}

// What is refused says why, and which rule it was.
func ExampleResult() {
	n := sim.New(node(), sim.Options{})
	r := n.Receive(sim.In{Hook: sim.FromWorkload, IfIndex: 10, Packet: packet.MustParse("tcp 10.0.0.1:40000 > 10.0.0.2:9090 S")})
	fmt.Println(r.Action == sim.Drop, r.Reason, r.Rule)
	// Output:
	// true POLICY_INGRESS 52
}

// A new state takes effect with the next packet, also on connections that are open.
func ExampleNode_SetState() {
	n := sim.New(node(), sim.Options{})
	in := sim.In{Hook: sim.FromWorkload, IfIndex: 10}

	in.Packet = packet.MustParse("tcp 10.0.0.1:40000 > 10.0.0.2:8080 S")
	fmt.Println(n.Receive(in).Rule)

	shut := node()
	shut.Policy.Delete(nodestate.PolicyKey{Set: 5, Proto: model.ProtocolTCP, Port: 8080, Len: 16})
	n.SetState(shut)

	in.Packet = packet.MustParse("tcp 10.0.0.1:40000 > 10.0.0.2:8080 .")
	fmt.Println(n.Receive(in).Reason)
	// Output:
	// 51
	// POLICY_INGRESS
}
