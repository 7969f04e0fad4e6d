// SPDX-License-Identifier: Apache-2.0

package names

import (
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/answers"
	"github.com/weir-net/weir/internal/nodestate"
)

// What pods are told is bounded as on nodes with eBPF (bpf/abi.h).
const (
	slots   = 8     // patterns of an address of a pod
	podMost = 32768 // addresses of a pod
	podFew  = 1024  // the same while all pods have allFew
	allFew  = 65536
	// askedMost is of how many addresses of a pod the name that was asked for is known.
	askedMost = podFew
	ttlLeast  = 10 * time.Second
	ttlMost   = 7 * 24 * time.Hour
	// grace is for how long the kernel has what is over: what is told again meanwhile, and ends no
	// later than that, is not written again.
	grace = time.Second
)

// slot says that a name of a pattern led to an address.
type slot struct {
	name   nodestate.NameID
	until  time.Time
	staged bool // staged policies alone have the pattern: it gives its place to any other
}

// comesBefore reports whether a slot gives its place rather than another one.
func (s slot) comesBefore(o slot) bool {
	if s.staged != o.staged {
		return s.staged
	}
	return s.until.Before(o.until)
}

// pod is what the pod at an interface was told.
type pod struct {
	addrs []netip.Addr
	told  map[netip.Addr][]slot
	// asked are the names that the pod asked for and that led to addresses of told, last; of
	// askedMost of them at most.
	asked map[netip.Addr]string
}

// memory is what pods were told, as the kernel has it too.
type memory struct {
	pods map[int]*pod // by the index of the interface
	all  int          // addresses, of all pods
}

// change is what has to be written of an address: the elements of its slots, where a slot without a
// name is that of number 0.
type change struct {
	ifindex int
	addr    netip.Addr
	set     []slot
	had     []bool // of set: it is there already, with another time
	gone    []nodestate.NameID
}

// learn notes the addresses of an answer with patterns of its names, which staged policies alone
// may have. full is how many found no room.
func (m *memory) learn(ifindex int, a *answers.Answer, patterns []nodestate.NameID, staged bool, extra time.Duration, now time.Time) (changes []change, full int) {
	p := m.pods[ifindex]
	if p == nil || len(patterns) == 0 {
		return nil, 0
	}
	for _, one := range a.Addrs {
		addr := one.Addr.Unmap()
		have, known := p.told[addr]
		if !known {
			if m.full(p, staged) {
				full++
				continue
			}
			m.all++
		}
		ttl := min(max(time.Duration(one.TTL)*time.Second, ttlLeast), ttlMost)
		p.noteAsked(addr, a.Names)
		c := change{ifindex: ifindex, addr: addr}
		p.told[addr] = note(have, patterns, staged, now.Add(ttl+extra), now, &c)
		if len(c.set) > 0 {
			changes = append(changes, c)
		}
	}
	return changes, full
}

// full reports whether a pod may have no further address. Those for staged policies alone take half
// of its room at most.
func (m *memory) full(p *pod, staged bool) bool {
	most := podMost
	if m.all >= allFew {
		most = podFew
	}
	if staged {
		most /= 2
	}
	return len(p.told) >= most
}

// note notes patterns in the slots of an address. What is over, or would be next, gives its place;
// to staged patterns only what is over, or staged too.
func note(have []slot, patterns []nodestate.NameID, staged bool, until, now time.Time, c *change) []slot {
	last := latest(have)
	for _, name := range patterns {
		take := -1
		for i, s := range have {
			if s.name == name {
				take = i
				break
			}
		}
		switch {
		case take >= 0:
		case len(have) < slots:
			have = append(have, slot{name: name})
			take = len(have) - 1
		default:
			take = 0
			for i, s := range have {
				if s.comesBefore(have[take]) {
					take = i
				}
			}
			if s := have[take]; staged && !s.staged && s.until.After(now) {
				continue
			}
			c.gone = append(c.gone, have[take].name)
			have[take] = slot{name: name}
		}
		have[take].staged = staged
		before := have[take].until
		if !until.After(before.Add(grace)) {
			continue
		}
		have[take].until = until
		c.set, c.had = append(c.set, have[take]), append(c.had, before.Add(grace).After(now))
	}
	if len(c.set) > 0 && until.After(last) {
		c.set, c.had = append(c.set, slot{until: until}), append(c.had, last.Add(grace).After(now))
	}
	return have
}

func latest(have []slot) (last time.Time) {
	for _, s := range have {
		if s.until.After(last) {
			last = s.until
		}
	}
	return last
}

// noteAsked notes which name was asked for: the first of an answer.
func (p *pod) noteAsked(addr netip.Addr, names []string) {
	if _, known := p.asked[addr]; len(names) == 0 || !known && len(p.asked) >= askedMost {
		return
	}
	if p.asked == nil {
		p.asked = map[netip.Addr]string{}
	}
	p.asked[addr] = names[0]
}

// forget forgets an address.
func (p *pod) forget(addr netip.Addr) {
	delete(p.told, addr)
	delete(p.asked, addr)
}

// expire forgets what is over.
func (m *memory) expire(now time.Time) {
	for _, p := range m.pods {
		for addr, have := range p.told {
			if latest(have).Add(grace).Before(now) {
				p.forget(addr)
				m.all--
			}
		}
	}
}

// drop forgets a pod.
func (m *memory) drop(ifindex int) {
	if p := m.pods[ifindex]; p != nil {
		m.all -= len(p.told)
		delete(m.pods, ifindex)
	}
}

// of returns the patterns that led a pod to an address and count.
func (m *memory) of(ifindex int, addr netip.Addr, now time.Time) (out []dataplane.NamedBy) {
	if p := m.pods[ifindex]; p != nil {
		for _, s := range p.told[addr] {
			if left := s.until.Sub(now); left > 0 {
				out = append(out, dataplane.NamedBy{Name: s.name, Left: left.Truncate(time.Second)})
			}
		}
	}
	return out
}
