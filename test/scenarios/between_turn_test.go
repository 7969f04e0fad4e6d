// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// say makes a set say something at random of a class: a head, and entries by prefixes of few ports.
func (r *crowd) say(policy *nodestate.Map[nodestate.PolicyKey, nodestate.PolicyValue], set nodestate.SetID, class nodestate.Class) {
	value := func() nodestate.PolicyValue {
		return nodestate.PolicyValue{Allow: r.chance(50), Rule: nodestate.RuleID(1 + r.IntN(3))}
	}
	key, head := nodestate.PolicyKey{Set: set, Peer: class}, value()
	for range r.IntN(6) {
		k := key
		k.Proto, k.Len = model.ProtocolTCP, one[uint8](r, 16, 15, 12, 8, 4, 0)
		k.Port = nodestate.MaskPort(one[uint16](r, 80, 81, 96, 8080, 40000), k.Len)
		policy.Set(k, value())
		head.Protos, head.Lens = nodestate.ProtoBitTCP, head.Lens|1<<k.Len
	}
	key.Head = true
	policy.Set(key, head)
}

// TestSetsTurnPortByPort changes what the sets of two pods say of each other, and of everybody
// else, under the same numbers: both evaluate the same packets.
func TestSetsTurnPortByPort(t *testing.T) {
	b := loadBetween(t, nil)
	b.all = nil
	for _, ends := range [][2]int{{0, 1}, {1, 0}} {
		for _, port := range []uint16{80, 81, 82, 96, 97, 8080, 40000, 5} {
			b.all = append(b.all, asked{src: localPods[ends[0]], dst: localPods[ends[1]], proto: model.ProtocolTCP, Ports: nodestate.Ports{Src: 1000, Dst: port}})
		}
		b.all = append(b.all, asked{src: localPods[ends[0]], dst: localPods[ends[1]], proto: model.ProtocolUDP, Ports: nodestate.Ports{Src: 1000, Dst: 80}})
	}
	r := newCrowd(5)
	for i := range 2 {
		r.localPod(i)
	}
	base := calc.Calc(r.c)
	const out, in, class = 8, 7, 100
	var before *nodestate.State
	for step := range 120 {
		after := *base
		after.Addrs = map[netip.Addr]nodestate.Addr{}
		for a, v := range base.Addrs {
			if v.Kind == nodestate.AddrEndpoint {
				v.Ingress, v.Egress = nodestate.Isolation{Set: in, Rule: 9}, nodestate.Isolation{Set: out, Rule: 9}
			}
			after.Addrs[a] = v
		}
		after.Peers, after.Policy = nodestate.Map[netip.Addr, nodestate.Class]{}, nodestate.Map[nodestate.PolicyKey, nodestate.PolicyValue]{}
		after.Peers.Set(localPods[0], class)
		after.Peers.Set(localPods[1], class)
		for _, set := range []nodestate.SetID{in, out} {
			for _, of := range []nodestate.Class{0, class} {
				if r.chance(75) {
					r.say(&after.Policy, set, of)
				}
			}
		}
		if before != nil {
			b.watch(before, &after, nil)
		}
		err := b.o.Apply(&after)
		b.unwatch()
		if err != nil || b.wrong != nil {
			t.Fatalf("change %d: %v %v", step, err, b.wrong)
		}
		if d := missing(&after, b.o); d != "" {
			t.Fatalf("change %d: %s", step, d)
		}
		before = &after
	}
	if n := b.o.ChangedInPlace(); b.cut > 0 || b.changed == 0 || n.Plain == 0 || n.Whole == 0 {
		t.Errorf("what stays allowed was cut %d times; verdicts that change were looked at %d times; %+v", b.cut, b.changed, n)
	}
}
