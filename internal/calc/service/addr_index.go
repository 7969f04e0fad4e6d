// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// addrIndex knows in which EndpointSlices an address is, of those endpoints that it is about.
type addrIndex struct {
	slices map[netip.Addr][]model.Name
	addrs  map[model.Name][]netip.Addr // the same the other way round, sorted
}

func newAddrIndex() addrIndex {
	return addrIndex{slices: map[netip.Addr][]model.Name{}, addrs: map[model.Name][]netip.Addr{}}
}

// clear empties the index.
func (x *addrIndex) clear() {
	clear(x.slices)
	clear(x.addrs)
}

// put says what endpoints of a slice the index is about: those that about holds of. A slice that is
// gone is nil.
func (x *addrIndex) put(name model.Name, sl *model.EndpointSlice, about func(*model.ServiceEndpoint) bool) {
	var addrs []netip.Addr
	if sl != nil {
		for i := range sl.Endpoints {
			if e := &sl.Endpoints[i]; about(e) {
				addrs = append(addrs, e.Addrs...)
			}
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		addrs = slices.Clip(slices.Compact(addrs))
	}
	before := x.addrs[name]
	if slices.Equal(before, addrs) {
		return
	}
	for _, a := range before {
		of := x.slices[a]
		if len(of) == 1 {
			delete(x.slices, a)
		} else if i := slices.Index(of, name); i >= 0 {
			x.slices[a] = slices.Delete(of, i, i+1)
		}
	}
	for _, a := range addrs {
		x.slices[a] = append(x.slices[a], name)
	}
	if x.addrs[name] = addrs; len(addrs) == 0 {
		delete(x.addrs, name)
	}
}

// of returns the slices that these addresses are in, some of them more than once.
func (x *addrIndex) of(addrs []netip.Addr) []model.Name {
	var out []model.Name
	for _, a := range addrs {
		out = append(out, x.slices[a]...)
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
