// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Ports carries weir_ports: which ports any frontend, or any backend on the node's own addresses,
// has. The programs take a missing bit as proof that a packet is not ours, so a bit is set before
// what it stands for is written, and cleared after that is gone.
type Ports struct {
	m      *ebpf.Map
	holds  [abi.PortWords]abi.WeirPortBits // what the map holds
	want   [abi.PortWords]abi.WeirPortBits
	stale  map[int]struct{} // words whose two sides may differ
	writes *uint64
	errs   map[int]error // by word: those that could not be written

	// What wants is made from: how often each port is used in each way.
	uses          map[portUse]int
	hosts         map[netip.Addr]struct{} // the node's own addresses
	seenFrontends nodestate.Map[nodestate.Frontend, nodestate.Service]
	seenBackends  nodestate.Map[nodestate.Frontend, []nodestate.Backend]
}

// portUse is a port with one enum port_bit.
type portUse struct {
	port uint16
	bit  uint8
}

// NewPorts returns the table of weir_ports, of which nothing is known before Load. writes counts
// the words that are written.
func NewPorts(m *ebpf.Map, writes *uint64) *Ports {
	return &Ports{m: m, writes: writes, uses: map[portUse]int{}, stale: map[int]struct{}{}, errs: map[int]error{}}
}

// Load reads what the map holds (BPF_MAP_LOOKUP_BATCH). The error is the kernel's.
func (p *Ports) Load() error {
	for i := range abi.PortWords {
		p.stale[i] = struct{}{}
	}
	keys := make([]uint32, abi.PortWords)
	var cursor ebpf.MapBatchCursor
	for done := 0; done < abi.PortWords; {
		n, err := p.m.BatchLookup(&cursor, keys[done:], p.holds[done:], nil)
		done += n
		if errors.Is(err, ebpf.ErrKeyNotExist) || n == 0 {
			break
		}
		if err != nil {
			return fmt.Errorf("reading map weir_ports: %w", err)
		}
	}
	return nil
}

// Desire follows a state: see changes.go. addrs says that the node's addresses may have
// changed.
func (p *Ports) Desire(s *nodestate.State, addrs bool) {
	for f, c := range nodestate.Changes(p.seenFrontends, s.Frontends, func(a, b nodestate.Service) bool { return a == b }) {
		switch {
		case c.Is && !c.Was:
			p.use(f.Port, f.Proto, abi.PortTCPFrontend, 1)
		case c.Was && !c.Is:
			p.use(f.Port, f.Proto, abi.PortTCPFrontend, -1)
		}
	}
	p.seenFrontends = s.Frontends
	before := p.hosts
	if addrs || before == nil {
		p.hosts = hostAddrs(s)
	}
	if !maps.Equal(before, p.hosts) {
		p.recount(before, s)
		return
	}
	for id, c := range nodestate.Changes(p.seenBackends, s.Backends, slices.Equal[[]nodestate.Backend]) {
		p.useHosts(before, id, c.Before, -1)
		p.useHosts(p.hosts, id, c.After, 1)
	}
	p.seenBackends = s.Backends
}

// recount counts all backends, for other addresses of the node.
func (p *Ports) recount(before map[netip.Addr]struct{}, s *nodestate.State) {
	for id, backends := range p.seenBackends.All() {
		p.useHosts(before, id, backends, -1)
	}
	for id, backends := range s.Backends.All() {
		p.useHosts(p.hosts, id, backends, 1)
	}
	p.seenBackends = s.Backends
}

func hostAddrs(s *nodestate.State) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrHost {
			out[a] = struct{}{}
		}
	}
	return out
}

func (p *Ports) useHosts(hosts map[netip.Addr]struct{}, id nodestate.Frontend, backends []nodestate.Backend, n int) {
	for _, b := range backends {
		if _, ok := hosts[b.Addr]; ok {
			p.use(b.Port, id.Proto, abi.PortTCPHost, n)
		}
	}
}

// use counts a use of a port: bit is the one for TCP. Protocols other than TCP, UDP and SCTP are
// not distinguished by port.
func (p *Ports) use(port uint16, proto model.Protocol, bit uint8, n int) {
	switch proto {
	case model.ProtocolUDP:
		bit <<= abi.PortUDP
	case model.ProtocolSCTP:
		bit <<= abi.PortSCTP
	case model.ProtocolTCP:
	default:
		return
	}
	u := portUse{port, bit}
	was := p.uses[u]
	p.uses[u] = was + n
	switch {
	case was == 0:
		p.want[port>>3].Bits[port&7] |= bit
	case was+n == 0:
		delete(p.uses, u)
		p.want[port>>3].Bits[port&7] &^= bit
	default:
		return
	}
	p.stale[int(port>>3)] = struct{}{}
}

// Errors returns a dataplane.KeyError for each word of bits that could not be written.
func (p *Ports) Errors() []error { return slices.Collect(maps.Values(p.errs)) }

// Grow sets the bits that are new.
func (p *Ports) Grow() {
	p.put(func(have, want uint8) uint8 { return have | want })
}

// Settle clears the bits that are over.
func (p *Ports) Settle() {
	p.put(func(_, want uint8) uint8 { return want })
}

func (p *Ports) put(merge func(have, want uint8) uint8) {
	for i := range p.stale {
		next := p.holds[i]
		for j := range next.Bits {
			next.Bits[j] = merge(p.holds[i].Bits[j], p.want[i].Bits[j])
		}
		if next != p.holds[i] {
			key := uint32(i)
			if err := p.m.Update(&key, &next, ebpf.UpdateAny); err != nil {
				p.errs[i] = &dataplane.KeyError{Table: "weir_ports", Key: fmt.Sprintf("%d-%d", i*8, i*8+7), Err: err}
				continue
			}
			p.holds[i] = next
			*p.writes++
		}
		delete(p.errs, i)
		if p.holds[i] == p.want[i] {
			delete(p.stale, i)
		}
	}
}
