// SPDX-License-Identifier: Apache-2.0

package tables_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/dataplane/ebpf/tables"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// turnSet is the set of the endpoint in turnState.
const turnSet = 7

type said map[nodestate.PolicyKey]nodestate.PolicyValue

// of are verdicts on a class: what the head allows, and what TCP to port 22 is.
func (s said) of(class nodestate.Class, head, ssh bool) said {
	s[nodestate.PolicyKey{Set: turnSet, Peer: class, Head: true}] = nodestate.PolicyValue{Allow: head, Rule: 1, Protos: nodestate.ProtoBitTCP, Lens: 1 << 16}
	s[nodestate.PolicyKey{Set: turnSet, Peer: class, Proto: model.ProtocolTCP, Port: 22, Len: 16}] = nodestate.PolicyValue{Allow: ssh, Rule: 2}
	return s
}

// bySource makes source ports decide about everybody's TCP to some ports, otherwise with each
// number.
func (s said) bySource(other uint16) said {
	s.of(0, false, false)
	for n := uint16(1); n <= 3; n++ {
		s[nodestate.PolicyKey{Set: turnSet, Proto: model.ProtocolTCP, Port: 100 + n, Len: 16}] = nodestate.PolicyValue{Sources: n}
		s[nodestate.PolicyKey{Set: turnSet, Sources: n, Head: true}] = nodestate.PolicyValue{Allow: true, Rule: 3, Lens: 1 << 16}
		s[nodestate.PolicyKey{Set: turnSet, Sources: n, Port: 1000*other + n, Len: 16}] = nodestate.PolicyValue{Rule: 4}
	}
	return s
}

// turnState is a state of one endpoint whose set says something, and of as many classes of peers as
// is said.
func turnState(says said, classes int) *nodestate.State {
	s := nodestate.New()
	s.Settings.Node, s.Settings.SNATFirst, s.Settings.SNATLast = netip.MustParseAddr("172.31.1.207"), 20000, 29999
	s.Addrs[netip.MustParseAddr("10.244.1.2")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 1, Egress: nodestate.Isolation{Set: turnSet, Rule: 9}}
	for c := range classes {
		s.Peers.Set(netip.AddrFrom4([4]byte{10, 244, 2, byte(c)}), nodestate.Class(100+c))
	}
	for k, v := range says {
		s.Policy.Set(k, v)
	}
	return s
}

func turnOffline(t *testing.T) *offline.Node {
	t.Helper()
	nettest.NeedRoot(t, "loading programs")
	o, err := offline.Load(offline.Options{Programs: []string{}, Sizes: map[string]uint32{"weir_policy": 4096}})
	nettest.Must(t, err)
	t.Cleanup(o.Close)
	return o
}

// holdsSaid fails the test where the map does not hold exactly what a state says.
func holdsSaid(t *testing.T, o *offline.Node, s *nodestate.State) {
	t.Helper()
	got, err := o.Policy()
	nettest.Must(t, err)
	if !nodestate.EqualMaps(got.Policy, s.Policy) {
		t.Fatalf("%d verdicts in the map, not the %d of the state", got.Policy.Len(), s.Policy.Len())
	}
}

// A set that is in use says nothing of its own of classes any more, which are in use, too. Who has
// read one of their heads finds the entries for a grace after it; and flows that began meanwhile
// are evaluated again.
func TestTurnRemovesEntriesAGraceAfterHeads(t *testing.T) {
	const classes = 20
	o := turnOffline(t)
	before := said{}.of(0, true, false)
	for c := range classes {
		before.of(nodestate.Class(100+c), false, false)
	}
	nettest.Must(t, o.Apply(turnState(before, classes)))
	there := func(k abi.WeirPolicyKey) bool {
		var v abi.WeirPolicyValue
		return o.Maps["weir_policy"].Lookup(&k, &v) == nil
	}
	headGone, entryGone := map[uint64]time.Time{}, map[uint64]time.Time{}
	var epoch uint32
	o.AfterEachWrite(func() {
		for class := uint64(100); class < 100+classes; class++ {
			for gone, k := range map[*map[uint64]time.Time]abi.WeirPolicyKey{&headGone: tables.HeadKey, &entryGone: {Proto: 6, Port: 22, Len: 16}} {
				if _, seen := (*gone)[class]; !seen && !there(tables.KeyOf(turnSet, class, k)) {
					(*gone)[class] = time.Now()
				}
			}
		}
		if len(entryGone) < classes {
			epoch = o.Epoch()
		}
	}, nil)
	after := turnState(said{}.of(0, true, false), classes)
	nettest.Must(t, o.Apply(after))
	o.AfterEachWrite(nil, nil)
	holdsSaid(t, o, after)
	if len(headGone) != classes || len(entryGone) != classes {
		t.Fatalf("%d heads and %d entries of %d went", len(headGone), len(entryGone), classes)
	}
	for class, at := range entryGone {
		if d := at.Sub(headGone[class]); d < tables.Grace {
			t.Errorf("class %d: its entry went %v after its head", class, d)
		}
	}
	if o.Epoch() == epoch {
		t.Errorf("flows that began while verdicts went are not evaluated again")
	}
}

// What a head leads to stays while the head cannot be deleted.
func TestTurnRemovesNoEntriesOfAHeadThatStays(t *testing.T) {
	o := turnOffline(t)
	nettest.Must(t, o.Apply(turnState(said{}.of(0, true, false).of(100, false, false).of(101, false, false), 2)))
	head := tables.KeyOf(turnSet, 100, tables.HeadKey)
	o.Tables.KeepVerdicts(func(k abi.WeirPolicyKey) error {
		if k == head {
			return errors.New("a delete that fails for a test")
		}
		return nil
	})
	after := turnState(said{}.of(0, true, false), 2)
	if err := o.Apply(after); err == nil {
		t.Fatal("no error although a delete failed")
	}
	for class, want := range map[uint64]bool{100: true, 101: false} {
		k := tables.KeyOf(turnSet, class, abi.WeirPolicyKey{Proto: 6, Port: 22, Len: 16})
		var v abi.WeirPolicyValue
		if err := o.Maps["weir_policy"].Lookup(&k, &v); (err == nil) != want || tables.Allowing(v) {
			t.Errorf("class %d: its entry is there: %t, allows: %t", class, err == nil, tables.Allowing(v))
		}
	}
	o.Tables.KeepVerdicts(nil)
	nettest.Must(t, o.Apply(after))
	holdsSaid(t, o, after)
}

// Changes about source ports fail again and again, each at another write, and are made once writes
// succeed.
func TestTurnFailsInARow(t *testing.T) {
	for name, cut := range map[string]func(try int) int{
		"early":           func(int) int { return 3 },
		"ever later":      func(try int) int { return try },
		"ever earlier":    func(try int) int { return 16 - try },
		"here and there":  func(try int) int { return 1 + try*7%13 },
		"among the heads": func(int) int { return 8 },
	} {
		t.Run(name, func(t *testing.T) {
			o := turnOffline(t)
			nettest.Must(t, o.Apply(turnState(said{}.bySource(1), 0)))
			after := turnState(said{}.bySource(2), 0)
			failed := 0
			for try := range 12 {
				n := 0
				o.AfterEachWrite(nil, func() error {
					if n++; n > cut(try) {
						return errors.New("a write that fails for a test")
					}
					return nil
				})
				if o.Apply(after) != nil {
					failed++
				}
			}
			o.AfterEachWrite(nil, nil)
			nettest.Must(t, o.Apply(after))
			holdsSaid(t, o, after)
			if failed < 6 {
				t.Errorf("only %d tries failed", failed)
			}
		})
	}
}

// Entries lead to tables of nearly all bases. With one base left the change is made at once, with
// none at the second try; what counts in between is a denial.
func TestTurnWithoutFreeBases(t *testing.T) {
	for used, tries := range map[int]int{5: 1, 6: 1, 7: 2} {
		t.Run(fmt.Sprint(used), func(t *testing.T) {
			o := turnOffline(t)
			nettest.Must(t, o.Apply(turnState(said{}.bySource(1), 0)))
			head, _ := o.Tables.VerdictTracker().Actual(tables.KeyOf(turnSet, 0, tables.HeadKey))
			for i := range used {
				n := uint16((i+1)*tables.SourceBase + 1)
				k := abi.WeirPolicyKey{Proto: 6, Port: uint16(200 + i), Len: 16}
				if !o.Tables.Put(turnSet, 0, abi.WeirPolicyKey{Head: 1, Sources: n}, abi.WeirPolicyValue{Verdict: abi.PolicyAllow, Rule: 5}) ||
					!o.Tables.Put(turnSet, 0, k, abi.WeirPolicyValue{Sources: n}) {
					t.Fatal(o.Tables.Errors())
				}
			}
			after := turnState(said{}.bySource(2), 0)
			for try := 1; try < tries; try++ {
				if err := o.Apply(after); err == nil {
					t.Fatal("no error although there were no numbers")
				}
				for k, v := range o.Tables.VerdictTracker().All() {
					if k.Sources == 0 && (tables.Allowing(v) || v.Sources != 0) {
						t.Errorf("%s is %+v, with the head %+v before", abi.ShowPolicy(k), v, head)
					}
				}
			}
			nettest.Must(t, o.Apply(after))
			holdsSaid(t, o, after)
		})
	}
}
