package ebpf

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

// Fallen are the outside clients that get their answers by the node that they ask, because straight ones
// (direct server return) did not arrive.
type Fallen struct {
	Clients []netip.Addr // now, the latest first
	Total   uint64       // times that a client fell back since the programs were loaded
}

type fallenClient struct {
	addr netip.Addr
	age  int32 // clock units
}

// Fallen reads the clients that fell back.
func (d *Driver) Fallen() (Fallen, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out Fallen
	var all []fallenClient
	for i, l := range d.both() {
		some, err := d.tables.families[i].fallen(d.machine.clock.now())
		if err != nil {
			return Fallen{}, err
		}
		all = append(all, some...)
		n, err := readCount(l.Maps["weir_counts"], countDSRFallen)
		if err != nil {
			return Fallen{}, err
		}
		out.Total += n
	}
	slices.SortFunc(all, func(a, b fallenClient) int { return cmp.Or(cmp.Compare(a.age, b.age), a.addr.Compare(b.addr)) })
	for _, c := range all {
		out.Clients = append(out.Clients, c.addr)
	}
	return out, nil
}

// fallen leaves out clients that are due to be tried again.
func (t *familyTables[A]) fallen(now uint32) ([]fallenClient, error) {
	var out []fallenClient
	retry := int32(t.current.Timeouts[timeoutDSRRetry])
	it := t.fallenMap.Iterate()
	var client A
	for since := uint32(0); it.Next(&client, &since); {
		if age := int32(now - since); age <= retry {
			out = append(out, fallenClient{fromAddr(client), age})
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("reading map weir_dsr_fallen: %w", err)
	}
	return out, nil
}

// readCount adds up one counter of all CPUs.
func readCount(m *ebpf.Map, which uint32) (uint64, error) {
	var cpus []uint64
	if err := m.Lookup(which, &cpus); err != nil {
		return 0, fmt.Errorf("reading map weir_counts: %w", err)
	}
	var n uint64
	for _, c := range cpus {
		n += c
	}
	return n, nil
}
