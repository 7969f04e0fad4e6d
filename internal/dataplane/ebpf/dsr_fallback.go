// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/dataplane/ebpf/tables"
)

// dsrFallbackSource is what DSRFallback reads of a family, its own as long as it reads.
type dsrFallbackSource struct {
	walk   func(now uint32) ([]tables.DSRClient, error)
	close  func() error
	counts *ebpf.Map
}

// dsrFallbackSources are those of the families that the node carries now.
func (d *Driver) dsrFallbackSources() ([]dsrFallbackSource, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []dsrFallbackSource
	for i, l := range d.both() {
		counts, err := l.Maps["weir_counts"].Clone() // the family may be unloaded meanwhile
		if err != nil {
			closeDSRFallback(out)
			return nil, fmt.Errorf("opening map weir_counts: %w", err)
		}
		walk, done, err := d.tables.Families()[i].DSRFallback()
		if err != nil {
			counts.Close()
			closeDSRFallback(out)
			return nil, err
		}
		out = append(out, dsrFallbackSource{walk, done, counts})
	}
	return out, nil
}

func closeDSRFallback(all []dsrFallbackSource) {
	for _, s := range all {
		_ = s.close() // nothing was written to it
		s.counts.Close()
	}
}

// DSRFallback reads the clients that fell back. The walk over a full map takes a while: nothing
// waits for it.
func (d *Driver) DSRFallback() (dataplane.DSRFallback, error) {
	sources, err := d.dsrFallbackSources()
	if err != nil {
		return dataplane.DSRFallback{}, err
	}
	defer closeDSRFallback(sources)
	var out dataplane.DSRFallback
	var all []tables.DSRClient
	for _, s := range sources {
		some, err := s.walk(d.machine.Clock.Now())
		if err != nil {
			return dataplane.DSRFallback{}, err
		}
		all = append(all, some...)
		n, err := counters.Read(s.counts, abi.CountDSRFallen)
		if err != nil {
			return dataplane.DSRFallback{}, err
		}
		out.Total += n
	}
	slices.SortFunc(all, func(a, b tables.DSRClient) int { return cmp.Or(cmp.Compare(a.Age, b.Age), a.Addr.Compare(b.Addr)) })
	for _, c := range all {
		out.Clients = append(out.Clients, c.Addr)
	}
	return out, nil
}
