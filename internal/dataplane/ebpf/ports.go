package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ports carries weir_ports: which ports any frontend, or any backend on the node's own addresses, has. The
// programs take a missing bit as proof that a packet is not ours, so a bit is set before what it stands
// for is written, and cleared after that is gone.
type ports struct {
	m      *ebpf.Map
	holds  [portWords]weirPortBits // what the map holds
	want   [portWords]weirPortBits
	writes *uint64
	err    error
}

// The bits, enum port_bit of the programs.
const (
	portWords       = 8192
	portTCPFrontend = 1
	portTCPHost     = 4
	portShiftUDP    = 1
	portShiftSCTP   = 4
)

func newPorts(m *ebpf.Map, writes *uint64) *ports { return &ports{m: m, writes: writes} }

func (p *ports) load() error {
	keys := make([]uint32, portWords)
	var cursor ebpf.MapBatchCursor
	for done := 0; done < portWords; {
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

func (p *ports) desire(s *nodestate.State) {
	p.want = [portWords]weirPortBits{}
	for f := range s.Frontends.Keys() {
		p.set(f.Port, f.Proto, portTCPFrontend)
	}
	for id, backends := range s.Backends.All() {
		for _, b := range backends {
			if s.Addrs[b.Addr].Kind == nodestate.AddrHost {
				p.set(b.Port, id.Proto, portTCPHost)
			}
		}
	}
}

// set sets a TCP bit, or its like for UDP or SCTP. Other protocols are not told apart by port.
func (p *ports) set(port uint16, proto model.Protocol, bit uint8) {
	switch proto {
	case model.ProtocolUDP:
		bit <<= portShiftUDP
	case model.ProtocolSCTP:
		bit <<= portShiftSCTP
	case model.ProtocolTCP:
	default:
		return
	}
	p.want[port>>3].Bits[port&7] |= bit
}

// grow sets the bits that are new.
func (p *ports) grow() {
	p.put(func(have, want uint8) uint8 { return have | want })
}

// settle clears the bits that are over.
func (p *ports) settle() {
	p.put(func(_, want uint8) uint8 { return want })
}

func (p *ports) put(merge func(have, want uint8) uint8) {
	p.err = nil
	for i := range p.want {
		next := p.holds[i]
		for j := range next.Bits {
			next.Bits[j] = merge(p.holds[i].Bits[j], p.want[i].Bits[j])
		}
		if next == p.holds[i] {
			continue
		}
		key := uint32(i)
		if err := p.m.Update(&key, &next, ebpf.UpdateAny); err != nil {
			p.err = errors.Join(p.err, &dataplane.KeyError{Table: "weir_ports", Key: fmt.Sprintf("%d-%d", i*8, i*8+7), Err: err})
			continue
		}
		p.holds[i] = next
		*p.writes++
	}
}
