// SPDX-License-Identifier: Apache-2.0

package micro

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// The policies of a node, as many as there are, are about 110 pods, of which podB is the first.
// Their rules, ten each, select all of 100,000 addresses; which of them a rule selects is up to a
// thousand groups.
const (
	selected     = 100000
	isolatedPods = 110
	mostGroups   = 1000
	rulesEach    = 10
	roundPackets = 2000
	policyRounds = 12
)

func selectedAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, byte(20 + i>>16), byte(i >> 8), byte(i)})
}

// groupsOf says how many groups of addresses the rules of so many policies distinguish.
func groupsOf(policies int) int { return min(rulesEach*policies, mostGroups) }

// withPolicies adds the verdicts of policies as calc makes them: policy i is about pod i modulo
// 110; its rule r lets one group reach the TCP port 8080+r. Without policies the addresses have
// their classes all the same.
func withPolicies(s *nodestate.State, policies int) {
	groups := groupsOf(max(policies, 1))
	for i := range selected {
		s.Peers.Set(selectedAddr(i), class(i%groups))
	}
	verdicts := s.Policy.Edit()
	for i := range policies {
		set := nodestate.SetID(i%isolatedPods + 1)
		for r := range rulesEach {
			key := nodestate.PolicyKey{Set: set, Peer: class((rulesEach*(i/isolatedPods) + r + rulesEach*(i%isolatedPods)) % groups)}
			head, entry := key, key
			head.Head = true
			entry.Proto, entry.Port, entry.Len = model.ProtocolTCP, uint16(8080+r), 16
			verdicts.Set(head, nodestate.PolicyValue{Rule: 2, Protos: nodestate.ProtoBitTCP, Lens: 1 << 16})
			verdicts.Set(entry, nodestate.PolicyValue{Allow: true, Rule: nodestate.RuleID(3 + i*rulesEach + r)})
		}
	}
	s.Policy = verdicts.Map()
	if policies > 0 {
		b := s.Addrs[podB]
		b.Ingress = nodestate.Isolation{Set: 1, Rule: 1}
		s.Addrs[podB] = b
	}
}

// class is the number of a group's class, as spread out as calc's are.
func class(group int) nodestate.Class { return nodestate.Class(uint64(group+1) * 0x9e3779b97f4a7c15) }

// BenchmarkPolicies measures what policy adds to the first packet of a flow with 1 to 10,000
// policies, in one run and in turns: the difference to the same packets where the pod is not
// isolated. Packets come from one address that the policies allow, or from all that the pod's rules
// name, at random.
func BenchmarkPolicies(b *testing.B) {
	l, err := shared()
	if err != nil {
		b.Fatal(err)
	}
	sizes := []int{0, 1, 100, 1000, 10000}
	var nodes []*fixture
	for _, n := range sizes {
		o, err := offline.Load(offline.Options{HostDevice: l.links.host, Sizes: map[string]uint32{"weir_flows": 512000, "weir_flows_new": 128000}})
		if err != nil {
			b.Fatal(err)
		}
		defer o.Close()
		s := newState(l.links)
		withPolicies(s, n)
		if err := o.Apply(s); err != nil {
			b.Fatal(err)
		}
		nodes = append(nodes, &fixture{Node: o, links: l.links})
	}
	for range b.N {
		for _, what := range []string{"one comes", "all come"} {
			samples := make([][]float64, len(sizes))
			for round := range policyRounds {
				for i := range nodes {
					at := (i + round) % len(nodes)
					samples[at] = append(samples[at], nodes[at].firstPackets(b, sizes[at], what == "all come")...)
				}
			}
			none := bench.Summarize(samples[0])
			for i, n := range sizes[1:] {
				s := bench.Summarize(samples[i+1])
				r := Row{Name: fmt.Sprintf("policy of a new flow, %d policies, %d addresses, %s", n, selected, what), Program: "from_uplink",
					Mode: "cold", NS: s.P50 - none.P50, P99: s.P99 - none.P99, EmptyNS: none.P50, Packets: len(samples[i+1])}
				b.ReportMetric(r.NS, fmt.Sprintf("ns/%d-%s", n, what[:3]))
				record(r)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
}

// firstPackets sends the first packets of flows that a pod's policy allows, and returns the ns of
// each.
func (f *fixture) firstPackets(b *testing.B, policies int, all bool) []float64 {
	b.Helper()
	if err := f.ResetFlows(); err != nil {
		b.Fatal(err)
	}
	groups := groupsOf(max(policies, 1))
	of := (max(policies, 1) + isolatedPods - 1) / isolatedPods // policies about podB
	frames := make([][]byte, roundPackets)
	for i := range frames {
		rule, turn := 0, 0
		if all {
			rule, turn = rand.IntN(of*rulesEach), rand.IntN(selected/groups)
		}
		from := selectedAddr(rule%groups + groups*turn)
		frames[i] = marshal(fmt.Sprintf("tcp %s:%d > 10.244.1.3:%d S ttl=64", from, 1024+i, 8080+rule%rulesEach))
	}
	samples, err := each(f.Programs[fromUplink], frames, f.links.uplink, 1, len(frames), actRedirect)
	if err != nil {
		b.Fatal(err)
	}
	return samples
}
