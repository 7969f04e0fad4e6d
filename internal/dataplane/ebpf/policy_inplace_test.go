// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
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

func turnOffline(t *testing.T) *Offline {
	t.Helper()
	needRoot(t)
	o, err := LoadForTest(TestOptions{Sizes: map[string]uint32{"weir_policy": 4096}})
	must(t, err)
	t.Cleanup(o.Close)
	return o
}

// holdsSaid fails the test where the map does not hold exactly what a state says.
func holdsSaid(t *testing.T, o *Offline, s *nodestate.State) {
	t.Helper()
	got, err := o.Policy()
	must(t, err)
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
	must(t, o.Apply(turnState(before, classes)))
	there := func(k abi.WeirPolicyKey) bool {
		var v abi.WeirPolicyValue
		return o.Maps["weir_policy"].Lookup(&k, &v) == nil
	}
	headGone, entryGone := map[uint64]time.Time{}, map[uint64]time.Time{}
	var epoch uint32
	o.AfterEachWrite(func() {
		for class := uint64(100); class < 100+classes; class++ {
			at := setClass{turnSet, class}
			for gone, k := range map[*map[uint64]time.Time]abi.WeirPolicyKey{&headGone: headKey, &entryGone: {Proto: 6, Port: 22, Len: 16}} {
				if _, seen := (*gone)[class]; !seen && !there(at.key(k)) {
					(*gone)[class] = time.Now()
				}
			}
		}
		if len(entryGone) < classes {
			epoch = o.Epoch()
		}
	}, nil)
	after := turnState(said{}.of(0, true, false), classes)
	must(t, o.Apply(after))
	o.AfterEachWrite(nil, nil)
	holdsSaid(t, o, after)
	if len(headGone) != classes || len(entryGone) != classes {
		t.Fatalf("%d heads and %d entries of %d went", len(headGone), len(entryGone), classes)
	}
	for class, at := range entryGone {
		if d := at.Sub(headGone[class]); d < grace {
			t.Errorf("class %d: its entry went %v after its head", class, d)
		}
	}
	if o.Epoch() == epoch {
		t.Errorf("flows that began while verdicts went are not judged again")
	}
}

// What a head leads to stays while the head cannot be deleted.
func TestTurnRemovesNoEntriesOfAHeadThatStays(t *testing.T) {
	o := turnOffline(t)
	must(t, o.Apply(turnState(said{}.of(0, true, false).of(100, false, false).of(101, false, false), 2)))
	at := setClass{turnSet, 100}
	o.tables.policy.Keep = func(k abi.WeirPolicyKey) error {
		if k == at.key(headKey) {
			return errors.New("a delete that fails for a test")
		}
		return nil
	}
	after := turnState(said{}.of(0, true, false), 2)
	if err := o.Apply(after); err == nil {
		t.Fatal("no error although a delete failed")
	}
	for class, want := range map[uint64]bool{100: true, 101: false} {
		k := setClass{turnSet, class}.key(abi.WeirPolicyKey{Proto: 6, Port: 22, Len: 16})
		var v abi.WeirPolicyValue
		if err := o.Maps["weir_policy"].Lookup(&k, &v); (err == nil) != want || allowing(v) {
			t.Errorf("class %d: its entry is there: %t, allows: %t", class, err == nil, allowing(v))
		}
	}
	o.tables.policy.Keep = nil
	must(t, o.Apply(after))
	holdsSaid(t, o, after)
}

func TestTurnFindsFreeBases(t *testing.T) {
	used := []uint16{1, 0}
	for base := 1; base < 8; base++ {
		want := min(8-base, 2)
		if got := freeBases(used); len(got) != want || want > 0 && got[0] != uint16(base*sourceBase) || slices.Contains(got, 0) {
			t.Errorf("with %v in use: %v", used, got)
		}
		used = append(used, uint16(base*sourceBase+base%2))
	}
	if got := freeBases(used); len(got) != 0 {
		t.Errorf("with all in use: %v", got)
	}
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
			must(t, o.Apply(turnState(said{}.bySource(1), 0)))
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
			must(t, o.Apply(after))
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
			must(t, o.Apply(turnState(said{}.bySource(1), 0)))
			at := setClass{set: turnSet}
			head, _ := o.tables.policy.Tracker.Actual(at.key(headKey))
			for i := range used {
				n := uint16((i+1)*sourceBase + 1)
				k := at.key(abi.WeirPolicyKey{Proto: 6, Port: uint16(200 + i), Len: 16})
				if !o.tables.put(at, abi.WeirPolicyKey{Head: 1, Sources: n}, abi.WeirPolicyValue{Verdict: abi.PolicyAllow, Rule: 5}) ||
					!o.tables.put(at, k, abi.WeirPolicyValue{Sources: n}) {
					t.Fatal(o.tables.errors())
				}
			}
			after := turnState(said{}.bySource(2), 0)
			for try := 1; try < tries; try++ {
				if err := o.Apply(after); err == nil {
					t.Fatal("no error although there were no numbers")
				}
				for k, v := range o.tables.policy.Tracker.All() {
					if k.Sources == 0 && (allowing(v) || v.Sources != 0) {
						t.Errorf("%s is %+v, with the head %+v before", abi.ShowPolicy(k), v, head)
					}
				}
			}
			must(t, o.Apply(after))
			holdsSaid(t, o, after)
		})
	}
}

// Two policies meet in as many tables of source ports as there are numbers in a base: the last one
// has its own in each base, and what would take another is denied.
func TestTurnOfMorePairsThanNumbers(t *testing.T) {
	side := verdicts{}
	for n := uint16(1); n <= 2; n++ {
		side[abi.WeirPolicyKey{Head: 1, Sources: n}] = abi.WeirPolicyValue{Verdict: abi.PolicyAllow}
	}
	m := &intersection{a: side, b: side, out: verdicts{}, tables: map[[2]uint16]uint16{}}
	numbers := verdicts{}
	for n := uint16(1); n < sourceBase-1; n++ {
		m.tables[[2]uint16{n, 1 << 15}] = n
		numbers[abi.WeirPolicyKey{Head: 1, Sources: n}] = abi.WeirPolicyValue{}
	}
	pair := func(x, y uint16) abi.WeirPolicyValue {
		return m.value(abi.WeirPolicyValue{Sources: x}, abi.WeirPolicyValue{Sources: y})
	}
	last := pair(1, 1)
	for _, v := range []abi.WeirPolicyValue{pair(1, 2), pair(2, 1)} {
		if v.Sources != 0 || allowing(v) {
			t.Errorf("without a number: %+v", v)
		}
	}
	if again := pair(1, 1); last.Sources == 0 || again != last || !allowing(m.out[abi.WeirPolicyKey{Head: 1, Sources: last.Sources}]) {
		t.Errorf("the last number: %+v, and asked again %+v", last, again)
	}
	numbers[abi.WeirPolicyKey{Head: 1, Sources: last.Sources}] = last
	if moved := numbers.shift(7 * sourceBase); len(moved) != sourceBase-1 {
		t.Errorf("%d numbers in another base, not %d", len(moved), sourceBase-1)
	}
}
