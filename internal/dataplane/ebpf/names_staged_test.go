// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
)

const (
	stagedSet   = nodestate.SetID(17)
	byName      = nodestate.SetID(18) // what names of either set lead to: it allows
	denyRule    = nodestate.RuleID(70)
	stagedDeny  = nodestate.RuleID(71)
	stagedAllow = nodestate.RuleID(72)
)

// stage gives the pod staged policies of egress that deny what is not of these patterns, whose
// numbers begin at 200. What is in force denies.
func (a *answers) stage(patterns ...string) {
	a.t.Helper()
	v := a.s.Addrs[podAddr]
	v.Egress = nodestate.Isolation{Set: setOfPod, Rule: denyRule}
	a.s.Addrs[podAddr] = v
	a.s.Staged[podAddr] = nodestate.StagedIsolation{Egress: nodestate.Isolation{Set: stagedSet, Rule: stagedDeny}}
	a.s.Policy.Set(nodestate.PolicyKey{Set: byName, Head: true}, nodestate.PolicyValue{Allow: true, Rule: stagedAllow})
	for i, p := range patterns {
		id, has := a.s.Names.Patterns[p]
		if !has {
			id = nodestate.NameID(200 + i)
			a.s.Names.Patterns[p] = id
		}
		a.s.Names.Sets[nodestate.NameKey{Set: stagedSet, Name: id}] = byName
	}
	nettest.Must(a.t, a.node.Apply(a.s))
}

// sends has the pod send a first packet to an address, and returns what is reported of it.
func (a *answers) sends(to string, port uint16) dataplane.Event {
	a.t.Helper()
	frame, err := packet.MustParse("udp " + netip.AddrPortFrom(podAddr, port).String() + " > " + netip.AddrPortFrom(netip.MustParseAddr(to), 7000).String()).Marshal()
	nettest.Must(a.t, err)
	events, err := a.node.Events()
	nettest.Must(a.t, err)
	defer events.Close()
	ctx, out := make([]byte, 192), make([]byte, 192)
	binary.NativeEndian.PutUint32(ctx[40:], podIfindex)
	_, err = a.node.Programs["weir_from_workload"].Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Context: ctx, ContextOut: out})
	nettest.Must(a.t, err)
	e, err := events.Read()
	nettest.Must(a.t, err)
	return e
}

// TestStagedNames holds that events say what staged policies with names would decide, of addresses
// that only they asked for, and that policy in force decides as without them.
func TestStagedNames(t *testing.T) {
	t.Parallel()
	a := answersWith(t, []string{"weir_from_workload"}, "force.test")
	a.stage("*.staged.test")
	a.answer(message(t, true, "a.staged.test.", record{"a.staged.test.", "198.18.0.1", 60}))
	if got := a.told("198.18.0.1"); !slices.Equal(got, []uint64{200}) {
		t.Fatalf("the pod knows %v", got)
	}
	if got := flowtable.AskedName(a.node.Maps["weir_name_said"], podIfindex, netip.MustParseAddr("198.18.0.1")); got != "a.staged.test" {
		t.Errorf("the pod asked for %q", got)
	}
	for i, c := range []struct {
		to     string
		denied bool
		rule   nodestate.RuleID
	}{{"198.18.0.1", false, stagedAllow}, {"198.18.0.2", true, stagedDeny}} {
		e := a.sends(c.to, uint16(30000+i))
		if want := (dataplane.EventEnd{Local: true, Rule: denyRule, Staged: true, StagedDenied: c.denied, StagedRule: c.rule}); e.Allowed || e.Egress != want {
			t.Errorf("%s: allowed %t, %+v, want %+v", c.to, e.Allowed, e.Egress, want)
		}
	}
	// The staged policy comes into force, and the name need not be asked again.
	a.s.Names.Sets[nodestate.NameKey{Set: setOfPod, Name: 200}] = byName
	delete(a.s.Staged, podAddr)
	nettest.Must(t, a.node.Apply(a.s))
	nettest.Must(t, a.node.Listen(true))
	if e := a.sends("198.18.0.1", 30010); !e.Allowed || e.Egress != (dataplane.EventEnd{Local: true, Rule: stagedAllow}) {
		t.Errorf("in force: allowed %t, %+v", e.Allowed, e.Egress)
	}
}

// TestStagedNamesTakeNoPlace holds that patterns which staged policies alone have take no place
// from those in force: neither of one answer, of an address, nor of a pod.
func TestStagedNamesTakeNoPlace(t *testing.T) {
	t.Parallel()
	force := []string{"x.test", "*.x.test", "*.a.x.test", "*.b.a.x.test", "c.b.a.x.test"}
	a := answersWith(t, []string{"weir_from_workload"}, force...)
	a.stage("*.test", "y.test", "*.y.test", "*.a.y.test", "*.b.a.y.test", "c.b.a.y.test")
	inForce := func(addr string) (n int) {
		for _, id := range a.told(addr) {
			if id < 200 {
				n++
			}
		}
		return n
	}
	// One chain of names that eleven patterns match, the staged ones first.
	chain := message(t, true, "c.b.a.y.test.", record{"c.b.a.y.test.", "c.b.a.x.test.", 600}, record{"c.b.a.x.test.", "x.test.", 600}, record{"x.test.", "198.18.0.1", 600})
	a.answer(chain)
	if got := a.told("198.18.0.1"); len(got) != abi.NamedSlots || inForce("198.18.0.1") != len(force) {
		t.Errorf("one answer: %v", got)
	}
	// Patterns in force come after staged ones that end later, and staged ones come again.
	a.answer(message(t, true, "c.b.a.y.test.", record{"c.b.a.y.test.", "198.18.0.2", 6000}))
	a.answer(message(t, true, "c.b.a.x.test.", record{"c.b.a.x.test.", "x.test.", 60}, record{"x.test.", "198.18.0.2", 60}))
	a.answer(message(t, true, "c.b.a.y.test.", record{"c.b.a.y.test.", "198.18.0.2", 6000}))
	if got := a.told("198.18.0.2"); len(got) != abi.NamedSlots || inForce("198.18.0.2") != len(force) {
		t.Errorf("one address: %v", got)
	}
	nettest.Must(t, a.node.Maps["weir_name_used"].Put(uint32(podIfindex), uint32(abi.NamedMost/2)))
	a.answer(message(t, true, "y.test.", record{"y.test.", "198.18.0.3", 60}))
	a.answer(message(t, true, "x.test.", record{"x.test.", "198.18.0.4", 60}))
	if a.told("198.18.0.3") != nil || inForce("198.18.0.4") != 1 {
		t.Errorf("one pod: staged %v, in force %v", a.told("198.18.0.3"), a.told("198.18.0.4"))
	}
}
