// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// addrIndex knows in which EndpointSlices an address is, of those endpoints that it is about. There
// are as many addresses as a cluster's Services have endpoints: what is kept for each is small.
type addrIndex struct {
	at4    map[[4]byte]uint32             // the number of one of them, by an IPv4 address
	at6    map[netip.Addr]uint32          // and by one of IPv6
	others map[netip.Addr][]*indexedSlice // the rest, where there are several
	slices map[model.Name]*indexedSlice   // those with endpoints that it is about
	byNum  []*indexedSlice                // nil: the number is in free
	free   []uint32
}

// indexedSlice is an EndpointSlice as it was put into an index.
type indexedSlice struct {
	name      model.Name
	endpoints []model.ServiceEndpoint
	num       uint32 // while it is in slices
}

func newAddrIndex() addrIndex {
	return addrIndex{at4: map[[4]byte]uint32{}, at6: map[netip.Addr]uint32{},
		others: map[netip.Addr][]*indexedSlice{}, slices: map[model.Name]*indexedSlice{}}
}

// clear empties the index.
func (x *addrIndex) clear() { *x = newAddrIndex() }

// first returns one of the slices that an address is in, nil where there is none.
func (x *addrIndex) first(a netip.Addr) *indexedSlice {
	num, ok := uint32(0), false
	if a.Is4() {
		num, ok = x.at4[a.As4()]
	} else {
		num, ok = x.at6[a]
	}
	if !ok {
		return nil
	}
	return x.byNum[num]
}

// setFirst makes first return a slice for an address, or nothing where it is nil.
func (x *addrIndex) setFirst(a netip.Addr, of *indexedSlice) {
	switch {
	case of == nil && a.Is4():
		delete(x.at4, a.As4())
	case of == nil:
		delete(x.at6, a)
	case a.Is4():
		x.at4[a.As4()] = of.num
	default:
		x.at6[a] = of.num
	}
}

// number gives a slice a number.
func (x *addrIndex) number(of *indexedSlice) {
	if last := len(x.free) - 1; last >= 0 {
		of.num, x.free = x.free[last], x.free[:last]
		x.byNum[of.num] = of
		return
	}
	of.num = uint32(len(x.byNum))
	x.byNum = append(x.byNum, of)
}

// put says what endpoints of a slice the index is about: those that about holds of. A slice that is
// gone is nil.
func (x *addrIndex) put(name model.Name, sl *model.EndpointSlice, about func(*model.ServiceEndpoint) bool) {
	if before := x.slices[name]; before != nil {
		for i := range before.endpoints {
			for _, a := range before.endpoints[i].Addrs {
				x.remove(a, before)
			}
		}
		delete(x.slices, name)
		x.byNum[before.num] = nil
		x.free = append(x.free, before.num)
	}
	if sl == nil {
		return
	}
	now := &indexedSlice{name: name, endpoints: sl.Endpoints}
	for i := range sl.Endpoints {
		if e := &sl.Endpoints[i]; about(e) {
			for _, a := range e.Addrs {
				if x.slices[name] != now {
					x.number(now)
					x.slices[name] = now
				}
				x.add(a, now)
			}
		}
	}
}

func (x *addrIndex) add(a netip.Addr, of *indexedSlice) {
	switch have := x.first(a); {
	case have == nil:
		x.setFirst(a, of)
	case have != of && !slices.Contains(x.others[a], of):
		x.others[a] = append(x.others[a], of)
	}
}

// remove does nothing where the index is not about the address in the slice.
func (x *addrIndex) remove(a netip.Addr, of *indexedSlice) {
	others := x.others[a]
	switch i := slices.Index(others, of); {
	case i >= 0:
		others = slices.Delete(others, i, i+1)
	case x.first(a) != of:
		return
	case len(others) > 0:
		x.setFirst(a, others[0])
		others = slices.Delete(others, 0, 1)
	default:
		x.setFirst(a, nil)
	}
	if len(others) > 0 {
		x.others[a] = others
	} else {
		delete(x.others, a)
	}
}

// of returns the slices that these addresses are in, some of them more than once.
func (x *addrIndex) of(addrs []netip.Addr) []model.Name {
	var out []model.Name
	for _, a := range addrs {
		if first := x.first(a); first != nil {
			out = append(out, first.name)
			for _, o := range x.others[a] {
				out = append(out, o.name)
			}
		}
	}
	return out
}

// localAddrs are the addresses of the endpoints that this node has interfaces for.
type localAddrs map[netip.Addr]struct{}

func (h localAddrs) has(a netip.Addr) bool {
	_, ok := h[a]
	return ok
}

// update takes over what interfaces the node has now, and returns the addresses that came or went
// with them.
func (h *localAddrs) update(endpoints map[netip.Addr]*model.LocalEndpoint) []netip.Addr {
	var moved []netip.Addr
	now := make(localAddrs, len(endpoints))
	for a := range endpoints {
		now[a] = struct{}{}
		if !h.has(a) {
			moved = append(moved, a)
		}
	}
	for a := range *h {
		if !now.has(a) {
			moved = append(moved, a)
		}
	}
	*h = now
	return moved
}
