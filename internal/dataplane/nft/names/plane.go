// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/answers"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Plane is what a network namespace's pods were told, and the rules by which that is learned.
type Plane struct {
	log      *slog.Logger
	queueing queueing
	lacks    error // why no answer can be read

	noted, unasked, unread, full atomic.Uint64

	mu      sync.Mutex
	memory  memory
	writer  *writer
	left    []found // by the driver before, until the first state is there
	six     bool    // the node carries IPv6
	extra   time.Duration
	numbers map[nodestate.NameID]uint32
	// byNumber is the other way round; it is not changed, but replaced.
	byNumber map[uint32]nodestate.NameID
	began    began
	asks     map[netip.Addr]int   // pods that have names, with their interfaces
	knows    map[int]*podPatterns // by interface
	rules    rules                // as they should be
	written  map[table.Family]*rules
	commits  uint32  // of tables of rules
	beater   *beater // while answers are read
	pushed   bool    // elements of what is known are in the kernel
	before   [3]uint64
	counted  map[table.Family][3]uint64
}

// New finds out whether the kernel can lead answers to the agent. Nothing is written before Apply.
func New(log *slog.Logger) (*Plane, error) {
	p := &Plane{log: log, memory: memory{pods: map[int]*pod{}}, written: map[table.Family]*rules{}, counted: map[table.Family][3]uint64{}}
	p.queueing, p.lacks = findQueueing()
	var err error
	p.writer, err = newWriter()
	return p, err
}

// Close lets go. What was written stays.
func (p *Plane) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writer.close()
}

// Lacks says why no answer can be read; nil = they can.
func (p *Plane) Lacks() error { return p.lacks }

// Adopt reads what a driver before has left, before tables are written anew.
func (p *Plane) Adopt() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nftables: %w", err)
	}
	var errs []error
	for _, f := range table.Families {
		all, err := read(conn, f)
		p.left, errs = append(p.left, all...), append(errs, err)
	}
	return errors.Join(errs...)
}

// Apply follows a state whose policy is in force. remade says that the table of a family was made
// anew, without what pods were told.
func (p *Plane) Apply(s *nodestate.State, remade bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := p.follow(s)
	errs := []error{p.adopt(), p.writer.write(gone)}
	if remade || !p.pushed {
		errs = append(errs, p.push())
	}
	return errors.Join(append(errs, p.writeRules())...)
}

// follow takes over which pods there are, what they may know, and the numbers of patterns. It
// returns the elements of what is known no more.
func (p *Plane) follow(s *nodestate.State) (gone []element) {
	named := s.Names.SetsWithNames()
	bySet := map[nodestate.SetID][]nodestate.NameID{}
	for k := range s.Names.Sets {
		bySet[k.Set] = append(bySet[k.Set], k.Name)
	}
	p.six, p.extra = s.Settings.IPv6, time.Duration(s.Names.ExtraTTL)*time.Second
	p.asks, p.knows = map[netip.Addr]int{}, map[int]*podPatterns{}
	numbers := Numbers(&s.Names)
	pods := map[int][]netip.Addr{}
	if len(named) > 0 || len(p.memory.pods) > 0 {
		for a, v := range s.Addrs {
			index := v.IfIndex
			if v.Kind != nodestate.AddrEndpoint || index == 0 {
				continue
			}
			pods[index] = append(pods[index], a)
			staged := s.Staged[a].Egress.Set
			if !named[v.Egress.Set] && !named[staged] {
				continue
			}
			p.asks[a] = index
			if p.knows[index] == nil {
				p.knows[index] = &podPatterns{newPatterns(), newPatterns()}
			}
			p.knows[index].inForce.addAll(bySet[v.Egress.Set], s.Names.Texts, numbers)
			p.knows[index].staged.addAll(bySet[staged], s.Names.Texts, numbers)
		}
	}
	for index, known := range p.memory.pods {
		slices.SortFunc(pods[index], netip.Addr.Compare)
		if !slices.Equal(known.addrs, pods[index]) { // another pod's, or gone
			gone = append(gone, p.elements(index, nil)...)
			p.memory.drop(index)
		}
	}
	for index := range p.knows {
		if p.memory.pods[index] == nil {
			slices.SortFunc(pods[index], netip.Addr.Compare)
			p.memory.pods[index] = &pod{addrs: pods[index], told: map[netip.Addr][]slot{}}
		}
	}
	if !maps.Equal(numbers, p.numbers) {
		gone = append(gone, p.forget(numbers)...)
		p.byNumber = map[uint32]nodestate.NameID{}
		for id, n := range numbers {
			p.byNumber[n] = id
		}
	}
	p.numbers = numbers
	p.rules = rules{pods: slices.SortedFunc(maps.Keys(p.asks), netip.Addr.Compare), servers: s.Names.Servers}
	return gone
}

// forget takes out the patterns that policy has no more.
func (p *Plane) forget(numbers map[nodestate.NameID]uint32) (gone []element) {
	for index, known := range p.memory.pods {
		for addr, have := range known.told {
			var keep []slot
			for _, s := range have {
				if _, has := numbers[s.name]; has {
					keep = append(keep, s)
				} else {
					gone = append(gone, p.elementsOf(change{ifindex: index, addr: addr, gone: []nodestate.NameID{s.name}})...)
				}
			}
			if len(keep) == len(have) {
				continue
			}
			if known.told[addr] = keep; len(keep) == 0 {
				gone = append(gone, p.elementsOf(change{ifindex: index, addr: addr, gone: []nodestate.NameID{0}})...)
				known.forget(addr)
				p.memory.all--
			}
		}
	}
	return gone
}

// numberOf is the number of a pattern in elements; 0 has no name.
func (p *Plane) numberOf(name nodestate.NameID) uint32 {
	if name == 0 {
		return 0
	}
	return number(name)
}

// elementsOf are what a change writes.
func (p *Plane) elementsOf(c change) (out []element) {
	known := p.memory.pods[c.ifindex]
	if known == nil {
		return nil
	}
	now := time.Now()
	for _, a := range known.addrs {
		if a.Is4() != c.addr.Is4() {
			continue
		}
		add := func(remove bool, s slot) {
			out = append(out, element{six: a.Is6(), remove: remove, key: keyOf(a, c.addr, p.numberOf(s.name)),
				comment: commentOf(c.ifindex, s.name), left: s.until.Add(grace).Sub(now)})
		}
		for _, name := range c.gone {
			add(true, slot{name: name})
		}
		for i, s := range c.set {
			if c.had[i] { // an element that is there keeps its time
				add(true, s)
			}
			add(false, s)
		}
	}
	return out
}

// elements are all of a pod: to be removed, or with their times where now is given.
func (p *Plane) elements(index int, now *time.Time) (out []element) {
	for addr, have := range p.memory.pods[index].told {
		all := append(slices.Clone(have), slot{until: latest(have)})
		c := change{ifindex: index, addr: addr}
		for _, s := range all {
			switch {
			case now == nil:
				c.gone = append(c.gone, s.name)
			case s.until.After(*now):
				c.set, c.had = append(c.set, s), append(c.had, false)
			}
		}
		out = append(out, p.elementsOf(c)...)
	}
	return out
}

// adopt takes over what is left of a driver before, where it is about pods and patterns that the
// state has; the rest is removed.
func (p *Plane) adopt() error {
	now := time.Now()
	var gone []element
	for _, f := range p.left {
		index, name, ok := readComment(f.comment)
		known := p.memory.pods[index]
		if !ok || known == nil || !slices.Contains(known.addrs, f.pod) || f.number != p.numberOf(name) || name != 0 && p.numbers[name] == 0 {
			gone = append(gone, element{six: f.pod.Is6(), remove: true, key: keyOf(f.pod, f.addr, f.number)})
			continue
		}
		if name != 0 {
			until := now.Add(f.left - grace)
			if _, is := known.told[f.addr]; !is {
				p.memory.all++
			}
			known.told[f.addr] = note(known.told[f.addr], []nodestate.NameID{name}, false, until, now, &change{})
		}
	}
	p.left = nil
	return p.writer.write(gone)
}

// push writes all that is known: elements that are there stay as they are.
func (p *Plane) push() error {
	now := time.Now()
	var all []element
	for index := range p.memory.pods {
		all = append(all, p.elements(index, &now)...)
	}
	err := p.writer.write(all)
	p.pushed = err == nil
	return err
}

// writeRules makes the tables what they should be: none while no pod has names.
func (p *Plane) writeRules() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nftables: %w", err)
	}
	var errs []error
	for _, f := range table.Families {
		was := p.written[f]
		wanted := p.lacks == nil && len(p.rules.pods) > 0 && len(p.rules.servers) > 0 && (!f.Six || p.six)
		switch {
		case !wanted:
			if was == nil || len(was.pods) > 0 {
				changed, err := remove(conn, f)
				p.note(f, changed, err, &rules{})
				errs = append(errs, err)
			}
		case was != nil && p.rules.equal(*was):
		default:
			changed := true
			there, err := intact(f)
			if err == nil && there {
				changed, err = p.rules.follow(conn, f)
			} else if err == nil {
				err = p.rules.write(conn, f, p.queueing)
			}
			now := p.rules
			p.note(f, changed, err, &now)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (p *Plane) note(f table.Family, changed bool, err error, now *rules) {
	if err != nil {
		delete(p.written, f)
		return
	}
	p.written[f] = now
	if changed {
		p.commits++
	}
	if changed && p.beater != nil { // new rules lead answers here from the first one on
		p.beater.send()
	}
}

// Check looks whether somebody else changed the tables of rules; they are written anew with the
// next Apply then.
func (p *Plane) Check() (broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f, r := range p.written {
		if len(r.pods) == 0 {
			continue
		}
		if there, err := intact(f); err == nil && !there {
			delete(p.written, f)
			broken = true
		}
	}
	return broken
}

// Generation reads the number of changes of nftables, and how many of these were the plane's.
func (p *Plane) Generation(read func() (uint32, error)) (now, ours uint32, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, err = read()
	return now, p.commits + p.writer.commits, err
}

// NamesOf returns the patterns that led the pod at an interface to an address, and count.
func (p *Plane) NamesOf(ifindex int, a netip.Addr) []dataplane.NamedBy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.memory.of(ifindex, a, time.Now())
}

// AskedName returns the name that the pod at an interface asked for and that led to an address;
// empty = none is known.
func (p *Plane) AskedName(ifindex int, a netip.Addr) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.memory.pods[ifindex]; known != nil {
		return known.asked[a]
	}
	return ""
}

// Counts returns how many answers became what of, in the words of dataplane.Reporter.Names.
func (p *Plane) Counts() (map[string]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	sum := p.before
	for _, f := range table.Families {
		last := p.counted[f]
		for i, chain := range []string{chainUntrusted, chainUnasked, chainUnread} {
			n, err := table.CounterIn(TableName, f, chain)
			errs = append(errs, err)
			if n[0] < last[i] { // the table was made anew
				p.before[i] += last[i]
				sum[i] += last[i]
			}
			last[i] = n[0]
			sum[i] += n[0]
		}
		p.counted[f] = last
	}
	return map[string]uint64{"noted": p.noted.Load(), "untrusted": sum[0], "unasked": sum[1] + p.unasked.Load(), "unread": sum[2] + p.unread.Load(), "full": p.full.Load()},
		errors.Join(errs...)
}

// learn notes an answer, and returns what has to be written of it.
func (p *Plane) learn(ifindex int, a *answers.Answer, now time.Time) (out []element) {
	known := p.knows[ifindex]
	if known == nil {
		return nil
	}
	inForce, staged := known.matching(a.Names)
	if len(a.Addrs) > 0 && len(inForce)+len(staged) > 0 {
		p.noted.Add(1)
	}
	changes, full := p.memory.learn(ifindex, a, inForce, false, p.extra, now)
	if more, without := p.memory.learn(ifindex, a, staged, true, p.extra, now); len(staged) > 0 {
		changes, full = append(changes, more...), max(full, without)
	}
	p.full.Add(uint64(full))
	for _, c := range changes {
		out = append(out, p.elementsOf(c)...)
	}
	return out
}
