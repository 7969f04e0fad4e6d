// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"time"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	"github.com/weir-net/weir/internal/ipam"
)

// HandleOf is the name of the handle under which all addresses of a node are allocated: one for
// each container would be a write for each pod that starts.
func HandleOf(node string) string { return "weir-node." + node }

// affinityOf is how a block says whose it is.
func affinityOf(node string) string { return "host:" + node }

// position is that of an address in its block.
func position(block netip.Prefix, addr netip.Addr) int {
	a, b := block.Addr().As16(), addr.As16()
	return int(binary.BigEndian.Uint64(b[8:]) - binary.BigEndian.Uint64(a[8:]))
}

// at is the address at a position of a block.
func at(block netip.Prefix, i int) netip.Addr {
	a := block.Addr().As16()
	binary.BigEndian.PutUint64(a[8:], binary.BigEndian.Uint64(a[8:])+uint64(i))
	return netip.AddrFrom16(a).Unmap()
}

// allocation is an address with who has it.
type allocation struct {
	address netip.Addr
	handle  string
	of      map[string]string
	since   time.Time // zero = not known
}

// blockSpec is the mirror of a block of a node with the allocations that are in it.
func blockSpec(node string, block netip.Prefix, all []ipam.Record) ipamv3.IPAMBlockSpec {
	var in []allocation
	for _, r := range all {
		if !block.Contains(r.Address) {
			continue
		}
		of := map[string]string{"node": node}
		if r.Pod != "" {
			of["namespace"], of["pod"] = r.Namespace, r.Pod
		}
		if !r.Time.IsZero() {
			of["timestamp"] = r.Time.UTC().Format(time.RFC3339)
		}
		in = append(in, allocation{r.Address, HandleOf(node), of, r.Time})
	}
	return render(affinityOf(node), block, in)
}

// render is the mirror of a block with the allocations in it. Its SequenceNumber is not set.
func render(affinity string, block netip.Prefix, all []allocation) ipamv3.IPAMBlockSpec {
	size := 1 << (block.Addr().BitLen() - block.Bits())
	out := ipamv3.IPAMBlockSpec{CIDR: block.String(), Affinity: &affinity, Allocations: make([]*int, size),
		Unallocated: []int{}, Attributes: []ipamv3.AllocationAttribute{}, SequenceNumberForAllocation: map[string]int64{}}
	for _, a := range all {
		i, index := position(block, a.address), len(out.Attributes)
		out.Allocations[i] = &index
		out.Attributes = append(out.Attributes, ipamv3.AllocationAttribute{HandleID: &a.handle, Secondary: a.of})
		out.SequenceNumberForAllocation[strconv.Itoa(i)] = sequence(a.since)
	}
	for i, a := range out.Allocations {
		if a == nil {
			out.Unallocated = append(out.Unallocated, i)
		}
	}
	return out
}

// sequence is a time as clients compare it: later is more.
func sequence(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// allocated are the addresses that a mirror says are allocated.
func allocated(block netip.Prefix, spec *ipamv3.IPAMBlockSpec) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	size := 1 << (block.Addr().BitLen() - block.Bits())
	for i, a := range spec.Allocations {
		if a != nil && i < size {
			out[at(block, i)] = true
		}
	}
	return out
}

// handleSpec counts the addresses of each block.
func handleSpec(node string, blocks []netip.Prefix, all []ipam.Record) ipamv3.IPAMHandleSpec {
	out := ipamv3.IPAMHandleSpec{HandleID: HandleOf(node), Block: map[string]int{}}
	for _, b := range blocks {
		for _, r := range all {
			if b.Contains(r.Address) {
				out.Block[b.String()]++
			}
		}
	}
	return out
}

// affinitySpec says whose a block is; type is a field of newer clients.
func affinitySpec(node string, block netip.Prefix) map[string]any {
	return map[string]any{"state": "confirmed", "node": node, "type": "host", "cidr": block.String()}
}
