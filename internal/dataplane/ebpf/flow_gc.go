package ebpf

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// The programs look at time-outs when they meet an entry, so an entry that nobody meets stays until
// an LRU table needs its place. The sweep walks the tables in small batches with long pauses
// between: it removes what is expired, so that eviction meets live flows last, and counts what is
// left.

const (
	gcBatch = 2048
	// gcShare is the part of one core that the sweep may take: 1 in gcShare.
	gcShare = 200
	// gcSharePressed is the same while the table of connections is nearly full: pods are held to
	// what the last round counted.
	gcSharePressed = 20
	// gcPause is the least time between two batches, gcRest that between two rounds.
	gcPause = 20 * time.Millisecond
	gcRest  = 10 * time.Second
)

// gcTables are the tables that programs fill, with what tells that an entry is expired; nil only
// counts.
var gcTables = map[string]func(*tableGC, []byte, []byte) bool{
	"weir_flows": (*tableGC).flowExpired, "weir_flows_new": (*tableGC).flowExpired, "weir_affinity": nil, "weir_sockets": nil,
}

// tableGC walks one table.
type tableGC struct {
	name    string
	of      *loaded
	m       *ebpf.Map
	expired func(key, value []byte) bool

	proto, seen, state, flags int // offsets of fields
	now                       uint32
	timeouts                  [abi.NumTimeouts]uint32

	keys, values         any    // slices of arrays of bytes
	rawKeys, rawValues   []byte // the same
	keySize, valueSize   int
	cursor               ebpf.MapBatchCursor
	counted, removed     int     // in this round
	entries, lastRemoved int     // of the last whole round
	quotas               *quotas // of weir_flows
	begun                bool    // a round
}

func newTableGC(name string, of *loaded) (*tableGC, error) {
	m, err := of.Maps[name].Clone() // the family may be unloaded meanwhile
	if err != nil {
		return nil, fmt.Errorf("sweeping map %s: %w", name, err)
	}
	s := &tableGC{name: name, of: of, m: m, keySize: int(m.KeySize()), valueSize: int(m.ValueSize())}
	s.keys, s.rawKeys = byteArrays(s.keySize, gcBatch)
	s.values, s.rawValues = byteArrays(s.valueSize, gcBatch)
	if expired := gcTables[name]; expired != nil {
		s.expired = func(k, v []byte) bool { return expired(s, k, v) }
		key, err1 := structOf(m, "flow_key")
		value, err2 := structOf(m, "flow_value")
		if err := errors.Join(err1, err2); err != nil {
			s.close()
			return nil, fmt.Errorf("sweeping map %s: %w", name, err)
		}
		s.proto, s.seen, s.state, s.flags = offsetOf(key, "proto"), offsetOf(value, "seen"), offsetOf(value, "state"), offsetOf(value, "flags")
		if s.proto < 0 || s.seen < 0 || s.state < 0 || s.flags < 0 {
			s.close()
			return nil, fmt.Errorf("sweeping map %s: its entries tell no time", name)
		}
		if name == "weir_flows" {
			if s.quotas, err = newQuotas(of.Maps["weir_shares"], s.flags, offsetOf(value, "from")); err != nil {
				s.close()
				return nil, fmt.Errorf("sweeping map %s: %w", name, err)
			}
		}
	}
	return s, nil
}

func (s *tableGC) close() {
	s.m.Close()
	if s.quotas != nil {
		s.quotas.close()
	}
}

// pressed reports whether the table is so full that a round should not take long.
func (s *tableGC) pressed() bool { return s.quotas != nil && s.quotas.pressed(int(s.m.MaxEntries())) }

// byteArrays makes n arrays of a size, and the same memory as bytes.
func byteArrays(size, n int) (any, []byte) {
	v := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]())), n, n)
	return v.Interface(), unsafe.Slice((*byte)(v.UnsafePointer()), n*size)
}

func offsetOf(s *btf.Struct, name string) int {
	for _, m := range s.Members {
		if m.Name == name {
			return int(m.Offset.Bytes())
		}
	}
	return -1
}

// flowExpired is flow_expired of bpf/flow.h.
func (s *tableGC) flowExpired(key, value []byte) bool {
	return s.now-binary.NativeEndian.Uint32(value[s.seen:]) > flowLimit(s.timeouts, key[s.proto], value[s.state], value[s.flags], s.of.icmp) &&
		int32(s.now-binary.NativeEndian.Uint32(value[s.seen:])) > 0 // not one that was seen after now was read
}

// flowLimit is flow_timeout of bpf/flow.h.
func flowLimit(timeouts [abi.NumTimeouts]uint32, proto, state, flags, icmp uint8) uint32 {
	limit := timeouts[flowTimeout(proto, state, icmp)]
	if proto == unix.IPPROTO_UDP && state&(abi.StateReplied|abi.StateAnswered) == 0 && flags&abi.FlowHandOn == 0 {
		return limit >> abi.UnansweredShift
	}
	return limit
}

// flowTimeout is an index into the time-outs.
func flowTimeout(proto, state, icmp uint8) int {
	switch {
	case (proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_SCTP) && state&abi.StateClosing != 0 && state&abi.StateReset != 0:
		return abi.TimeoutTCPClosing
	case (proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_SCTP) && state&abi.StateClosing != 0:
		return abi.TimeoutTCPFins
	case (proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_SCTP) && state&abi.StateReplied == 0:
		return abi.TimeoutTCPSyn
	case proto == unix.IPPROTO_TCP:
		return abi.TimeoutTCPEst
	case proto == unix.IPPROTO_UDP:
		return abi.TimeoutUDP
	case proto == icmp:
		return abi.TimeoutICMP
	}
	return abi.TimeoutOther
}

// step looks at one batch and reports whether a round is over.
func (s *tableGC) step() (over bool, err error) {
	if s.quotas != nil && !s.begun {
		if err := s.quotas.begin(); err != nil {
			return true, err
		}
	}
	s.begun = true
	n, err := s.m.BatchLookup(&s.cursor, s.keys, s.values, nil)
	over = errors.Is(err, ebpf.ErrKeyNotExist)
	if err != nil && !over {
		s.cursor, s.counted, s.removed, s.begun = ebpf.MapBatchCursor{}, 0, 0, false
		return true, fmt.Errorf("looking through map %s: %w", s.name, err)
	}
	for i := range n {
		key, value := s.rawKeys[i*s.keySize:][:s.keySize], s.rawValues[i*s.valueSize:][:s.valueSize]
		if s.expired == nil || !s.expired(key, value) || !s.remove(key) {
			s.counted++
			if s.quotas != nil {
				s.quotas.note(key, value)
			}
		}
	}
	if over {
		s.entries, s.lastRemoved = s.counted, s.removed
		s.cursor, s.counted, s.removed, s.begun = ebpf.MapBatchCursor{}, 0, 0, false
		if s.quotas != nil {
			return true, s.quotas.end()
		}
	}
	return over, nil
}

// remove takes an expired entry out. A packet may have begun the flow anew since it was read: what
// was taken out tells, and is put back.
func (s *tableGC) remove(key []byte) bool {
	value := make([]byte, s.valueSize)
	if err := s.m.LookupAndDelete(key, &value); err != nil {
		return errors.Is(err, ebpf.ErrKeyNotExist)
	}
	if !s.expired(key, value) {
		_ = s.m.Update(key, value, ebpf.UpdateNoExist) // there again: a packet wrote it meanwhile
		return false
	}
	s.removed++
	return true
}

// kernelClock reads the programs' clock: units of 256 jiffies.
type kernelClock struct{ program *ebpf.Program }

func newKernelClock() (*kernelClock, error) {
	const jiffies64 = asm.FnJiffies64
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weir_clock", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		jiffies64.Call(), asm.RSh.Imm(asm.R0, 8), asm.Return()}})
	if err != nil {
		return nil, fmt.Errorf("loading the program that reads the clock: %w", err)
	}
	return &kernelClock{p}, nil
}

func (c *kernelClock) now() (uint32, error) {
	return c.program.Run(&ebpf.RunOptions{Data: make([]byte, 14)})
}

func (c *kernelClock) close() { c.program.Close() }

// collectGarbage works until ctx ends.
func (d *Driver) collectGarbage(ctx context.Context) {
	clock, err := newKernelClock()
	if err != nil {
		d.log.Error("expired flows stay until their place is needed", "error", err)
		return
	}
	defer clock.close()
	all := map[*loaded][]*tableGC{}
	defer func() { d.keepTableGCs(all, nil) }()
	for {
		d.mu.Lock()
		families := d.both()
		d.keepTableGCs(all, families) // while they cannot be closed
		d.mu.Unlock()
		for _, l := range families {
			for _, s := range all[l] {
				if !d.gcRound(ctx, s, clock) {
					return
				}
			}
		}
		if !d.rest(ctx, all) {
			return
		}
	}
}

// rest waits for the next round, shorter when a table is pressed.
func (d *Driver) rest(ctx context.Context, all map[*loaded][]*tableGC) bool {
	for range int(gcRest / time.Second) {
		if !wait(ctx, time.Second) {
			return false
		}
		for _, list := range all {
			if slices.ContainsFunc(list, (*tableGC).pressed) {
				return true
			}
		}
	}
	return true
}

// keepTableGCs makes those of families that came, and lets go of those of families that went. A
// family whose tables cannot be opened is tried again in the next round.
func (d *Driver) keepTableGCs(all map[*loaded][]*tableGC, families []*loaded) {
	for l, list := range all {
		if !slices.Contains(families, l) {
			for _, s := range list {
				s.close()
			}
			delete(all, l)
		}
	}
	for _, l := range families {
		if _, ok := all[l]; ok {
			continue
		}
		list, err := newTableGCs(l)
		if err != nil {
			d.log.Error("tables are not swept", "family", l.family, "error", err)
			continue
		}
		all[l] = list
	}
}

func newTableGCs(l *loaded) ([]*tableGC, error) {
	var out []*tableGC
	for name := range gcTables {
		s, err := newTableGC(name, l)
		if err != nil {
			for _, s := range out {
				s.close()
			}
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// gcRound goes through one table once and reports whether to go on.
func (d *Driver) gcRound(ctx context.Context, s *tableGC, clock *kernelClock) bool {
	for over := false; !over; {
		d.mu.Lock()
		known, there := d.state != nil, slices.Contains(d.both(), s.of)
		if known {
			s.timeouts = renderSettings[abi.Ip4](d.state, d.machine).Timeouts
		}
		d.mu.Unlock()
		if !known {
			return wait(ctx, time.Second)
		}
		if !there {
			return true
		}
		began := time.Now()
		var err error
		if s.now, err = clock.now(); err == nil {
			over, err = s.step()
		}
		if err != nil {
			d.log.Warn("sweeping a table", "family", s.of.family, "error", err)
			return wait(ctx, gcRest)
		}
		share := time.Duration(gcShare)
		if s.pressed() {
			share = gcSharePressed
		}
		if !wait(ctx, max(gcPause, time.Since(began)*(share-1))) {
			return false
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.of.counted == nil {
		s.of.counted = map[string]int{}
	}
	s.of.counted[s.name] = s.entries
	return true
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Pressure is how full a map is.
type Pressure struct {
	Map      string
	Family   string // ipv4 or ipv6: each has its own map; empty = both share it
	Setting  string // FelixConfiguration field that sets its size; empty = none
	Entries  int    // of tables that programs fill: at the last sweep
	Capacity int
}

// High reports whether a map is so full that somebody must know.
func (p Pressure) High() bool { return p.Entries*10 > p.Capacity*9 }

// Pressures returns how full the maps are, sorted by name. A map that was not counted yet is left
// out.
func (d *Driver) Pressures() []Pressure {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Pressure
	add := func(l *loaded, family, name string, entries int) {
		if m := l.Maps[name]; m != nil {
			out = append(out, Pressure{Map: name, Family: family, Setting: sizeSettings[name], Entries: entries, Capacity: roomOf(name, m)})
		}
	}
	add(d.loaded, "", "weir_policy", d.tables.policy.tracker.Len())
	for i, l := range d.both() {
		for table, n := range d.tables.families[i].entries() {
			add(l, l.family, "weir_"+table, n)
		}
		for name, n := range l.counted {
			add(l, l.family, name, n)
		}
	}
	slices.SortFunc(out, func(a, b Pressure) int { return cmp.Or(cmp.Compare(a.Map, b.Map), cmp.Compare(a.Family, b.Family)) })
	return out
}

// warnTables tells before a state is written which tables it does not fit into: such a state is
// written as far as it fits.
func (d *Driver) warnTables(s *nodestate.State) {
	for _, l := range d.both() {
		for name, n := range needed(s, l.family == ipv6Name) {
			if m := l.Maps[name]; m != nil && n > int(m.MaxEntries()) {
				d.log.Error("the cluster does not fit into a map; what is beyond is not carried", "map", name, "family", l.family,
					"needed", n, "entries", m.MaxEntries(), "setting", sizeSettings[name])
			}
		}
	}
}

// needed counts the entries of a family that a state wants in the tables that follow the size of
// the cluster.
func needed(s *nodestate.State, six bool) map[string]int {
	of := func(a netip.Addr) bool { return a.Is6() == six }
	n := map[string]int{}
	count := func(name string, yes bool, by int) {
		if yes {
			n[name] += by
		}
	}
	for f := range s.Frontends.All() {
		count("weir_services", of(f.Addr), 1)
	}
	for id, list := range s.Backends.All() {
		count("weir_backends", of(id.Addr), len(list))
	}
	for a := range s.Addrs {
		count("weir_addrs", of(a), 1)
	}
	for a := range s.Peers.All() {
		count("weir_peers", of(a), 1)
	}
	return n
}
