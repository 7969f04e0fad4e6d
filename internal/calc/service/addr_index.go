// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// addrIndex knows in which EndpointSlices an address is, of those endpoints that it is about.
type addrIndex struct {
	at     map[netip.Addr]*indexedSlice   // one of them
	others map[netip.Addr][]*indexedSlice // the rest, where there are several
	slices map[model.Name]*indexedSlice   // those with endpoints that it is about
}

// indexedSlice is an EndpointSlice as it was put into an index.
type indexedSlice struct {
	name      model.Name
	endpoints []model.ServiceEndpoint
}

func newAddrIndex() addrIndex {
	return addrIndex{at: map[netip.Addr]*indexedSlice{}, others: map[netip.Addr][]*indexedSlice{}, slices: map[model.Name]*indexedSlice{}}
}

// clear empties the index.
func (x *addrIndex) clear() {
	clear(x.at)
	clear(x.others)
	clear(x.slices)
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
	}
	if sl == nil {
		return
	}
	now := &indexedSlice{name, sl.Endpoints}
	for i := range sl.Endpoints {
		if e := &sl.Endpoints[i]; about(e) {
			for _, a := range e.Addrs {
				x.add(a, now)
				x.slices[name] = now
			}
		}
	}
}

func (x *addrIndex) add(a netip.Addr, of *indexedSlice) {
	switch have := x.at[a]; {
	case have == nil:
		x.at[a] = of
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
	case x.at[a] != of:
		return
	case len(others) > 0:
		x.at[a], others = others[0], slices.Delete(others, 0, 1)
	default:
		delete(x.at, a)
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
		if first := x.at[a]; first != nil {
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
