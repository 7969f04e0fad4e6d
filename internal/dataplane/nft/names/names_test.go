// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/dataplane/answers"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestMatching holds that names match the patterns that model.DomainMatches says.
func TestMatching(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	label := func() string { return string(rune('a' + r.IntN(3))) }
	join := func(n int, wild bool) string {
		at, out := r.IntN(n), ""
		for i := range n {
			l := label()
			if wild && i == at {
				l = "*"
			}
			out += "." + l
		}
		return out[1:]
	}
	p, all := newPatterns(), map[string]nodestate.NameID{}
	for i := range 200 {
		text := join(2+r.IntN(3), r.IntN(3) > 0)
		if all[text] == 0 {
			all[text] = nodestate.NameID(i + 1)
		}
		p.add(text, all[text])
		p.add(text, all[text])
	}
	matched := 0
	for range 2000 {
		name := join(1+r.IntN(5), false)
		got := p.matching([]string{name})
		var want []nodestate.NameID
		for text, id := range all {
			if model.DomainMatches(text, name) {
				want = append(want, id)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%s matches %v, want %v", name, got, want)
		}
		matched += len(got)
	}
	if matched < 1000 {
		t.Errorf("%d matches say little", matched)
	}
}

const atPod = 7

func answerOf(ttl uint32, addrs ...netip.Addr) *answers.Answer {
	a := &answers.Answer{}
	for _, addr := range addrs {
		a.Addrs = append(a.Addrs, answers.Addr{Addr: addr, TTL: ttl})
	}
	return a
}

func addrAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

// TestAskedNames holds that the name of the question is known of each address that it led to, of a
// pod's first addresses, and as long as the address.
func TestAskedNames(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := &Plane{memory: memory{pods: map[int]*pod{atPod: {told: map[netip.Addr][]slot{}}}}}
	learn := func(name string, at netip.Addr) {
		a := answerOf(60, at)
		a.Names = []string{name, "cdn.test"}
		p.memory.learn(atPod, a, []nodestate.NameID{1}, false, 0, now)
	}
	learn("a.test", addrAt(0))
	if got, other := p.AskedName(atPod, addrAt(0)), p.AskedName(atPod+1, addrAt(0)); got != "a.test" || other != "" {
		t.Errorf("asked as %q, by another pod %q", got, other)
	}
	for i := 1; i <= askedMost; i++ {
		learn("b.test", addrAt(i))
	}
	learn("c.test", addrAt(0))
	if got, more := p.AskedName(atPod, addrAt(0)), p.AskedName(atPod, addrAt(askedMost)); got != "c.test" || more != "" || len(p.memory.pods[atPod].told) != askedMost+1 {
		t.Errorf("asked again as %q, beyond what is kept %q", got, more)
	}
	p.memory.expire(now.Add(time.Hour))
	if n := len(p.memory.pods[atPod].asked); n != 0 {
		t.Errorf("%d names stay", n)
	}
}

// TestStagedNames holds that patterns which staged policies alone have take no place from those in
// force: neither of an address that has all that it may, nor of a pod.
func TestStagedNames(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := memory{pods: map[int]*pod{atPod: {told: map[netip.Addr][]slot{}}}}
	names := func(from, n int) (out []nodestate.NameID) {
		for i := range n {
			out = append(out, nodestate.NameID(from+i))
		}
		return out
	}
	known := func() (out []nodestate.NameID) {
		for _, n := range m.of(atPod, addrAt(1), now) {
			out = append(out, n.Name)
		}
		slices.Sort(out)
		return out
	}
	m.learn(atPod, answerOf(60, addrAt(1)), names(1, 5), false, 0, now)
	m.learn(atPod, answerOf(600, addrAt(1)), names(11, 5), true, 0, now)
	if got, want := known(), append(names(1, 5), 12, 13, 15); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	m.learn(atPod, answerOf(60, addrAt(1)), names(21, 3), false, 0, now)
	if got, want := known(), append(names(1, 5), names(21, 3)...); !slices.Equal(got, want) {
		t.Errorf("those in force came, and %v is known, want %v", got, want)
	}
	if changes, _ := m.learn(atPod, answerOf(600, addrAt(1)), names(11, 1), true, 0, now); len(changes) > 0 {
		t.Errorf("a staged one takes a place: %+v", changes)
	}
	for n := range podMost {
		m.learn(atPod, answerOf(60, addrAt(n)), names(11, 1), true, 0, now)
	}
	if n := len(m.pods[atPod].told); n != podMost/2 {
		t.Errorf("%d addresses for staged policies", n)
	}
	if _, full := m.learn(atPod, answerOf(60, addrAt(podMost-1)), names(1, 1), false, 0, now); full > 0 {
		t.Error("they leave no room to those in force")
	}
	p := &podPatterns{newPatterns(), newPatterns()}
	p.inForce.add("*.test", 1)
	p.staged.add("*.test", 1)
	p.staged.add("a.test", 2)
	if inForce, staged := p.matching([]string{"a.test"}); !slices.Equal(inForce, names(1, 1)) || !slices.Equal(staged, names(2, 1)) {
		t.Errorf("in force %v, staged %v", inForce, staged)
	}
}

// TestLearn holds how long an address counts, what is written of it when it is told again, and that
// an address has eight patterns, of which the one that ends first gives its place.
func TestLearn(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := memory{pods: map[int]*pod{atPod: {told: map[netip.Addr][]slot{}}}}
	learn := func(ttl uint32, names ...nodestate.NameID) []change {
		t.Helper()
		out, full := m.learn(atPod, answerOf(ttl, addrAt(1)), names, false, 0, now)
		if full > 0 {
			t.Fatal("no room")
		}
		return out
	}
	if c := learn(1, 5); len(c) != 1 || len(c[0].set) != 2 || c[0].set[1].name != 0 || slices.Contains(c[0].had, true) {
		t.Fatalf("first: %+v", c)
	}
	if got := m.of(atPod, addrAt(1), now); len(got) != 1 || got[0].Left != ttlLeast {
		t.Errorf("counts for %v", got)
	}
	if c := learn(10, 5); c != nil {
		t.Errorf("what is known is written again: %+v", c)
	}
	if c := learn(60, 5); len(c) != 1 || !c[0].had[0] || !c[0].had[1] {
		t.Errorf("what counts for longer is not written: %+v", c)
	}
	if c := learn(20, 5); c != nil {
		t.Errorf("an answer with less time shortens: %+v", c)
	}
	for i := range nodestate.NameID(slots - 1) {
		learn(100+uint32(i), 10+i)
	}
	if c := learn(1000, 99); len(c) != 1 || !slices.Equal(c[0].gone, []nodestate.NameID{5}) {
		t.Errorf("no place is given: %+v", c)
	}
	if got := m.of(atPod, addrAt(1), now); len(got) != slots {
		t.Errorf("%d patterns", len(got))
	}
	m.expire(now.Add(time.Hour))
	if m.all != 0 || len(m.pods[atPod].told) != 0 {
		t.Errorf("%d are left", m.all)
	}
}

// TestShares holds that a pod has so many addresses, and fewer where all have many.
func TestShares(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := memory{pods: map[int]*pod{}}
	for i := range 4 {
		m.pods[i] = &pod{told: map[netip.Addr][]slot{}}
		got := 0
		for n := range podMost + 10 {
			if _, full := m.learn(i, answerOf(60, addrAt(n)), []nodestate.NameID{1}, false, 0, now); full == 0 {
				got++
			}
		}
		if want := []int{podMost, podMost, podFew, podFew}[i]; got != want {
			t.Errorf("pod %d has %d addresses, want %d", i, got, want)
		}
	}
}

// TestOneAnswer holds that a question has one answer.
func TestOneAnswer(t *testing.T) {
	t.Parallel()
	r := &reader{done: map[answered]bool{}}
	q, now := answered{client: addrAt(1), id: 3}, time.Now()
	other := q
	other.id = 4
	if !r.first(q, now) || r.first(q, now) || !r.first(other, now) {
		t.Error("a question has two answers, or none")
	}
	for i := range 3 * answersMost {
		r.first(answered{client: addrAt(i), port: uint16(i >> 16)}, now)
	}
	if n := len(r.done) + len(r.doneBefore); n > 2*answersMost {
		t.Errorf("%d are remembered", n)
	}
	if !r.first(q, now.Add(3*askedTime)) {
		t.Error("a question that is asked again has no answer")
	}
}

// TestNumbers holds that no two patterns have one number, and that none has one that means
// something else.
func TestNumbers(t *testing.T) {
	t.Parallel()
	n := nodestate.NewNames()
	for i, id := range []nodestate.NameID{1 << 40, 1 << 41, 0xffffffff, 0x17fffffff, 12} {
		n.Texts[id] = fmt.Sprint("p", i)
	}
	got := Numbers(&n)
	if len(got) != 3 || got[1<<40] != 1 || got[12] != 12 || got[0xffffffff] != 0x7fffffff {
		t.Errorf("numbers: %v", got)
	}
}
