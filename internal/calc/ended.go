package calc

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// The node knows first that a pod of its own is gone: its interface is. The EndpointSlice says so seconds later, more on a
// busy machine. An endpoint on this node whose address lies in a block of this node, and that no interface here has, has
// ended: what is sent there is refused.

// own keeps what tells the endpoints that have ended.
type own struct {
	endpoints map[netip.Addr]struct{}
	blocks    []netip.Prefix                         // of this node, sorted
	slices    map[netip.Addr]map[model.Name]struct{} // in which EndpointSlices an address is named as one on this node
	addrs     map[model.Name]map[netip.Addr]struct{} // the same the other way round
}

func newOwn() own {
	return own{slices: map[netip.Addr]map[model.Name]struct{}{}, addrs: map[model.Name]map[netip.Addr]struct{}{}}
}

// forget empties the index of slices.
func (o *own) forget() {
	clear(o.slices)
	clear(o.addrs)
}

// ended reports whether an address that an EndpointSlice places on this node is nobody's any more.
func (o *own) ended(a netip.Addr) bool {
	if _, there := o.endpoints[a]; there {
		return false
	}
	return slices.ContainsFunc(o.blocks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// index brings the index up to date with one slice; nil when it is gone.
func (o *own) index(c *cluster, name model.Name, sl *model.EndpointSlice) {
	for a := range o.addrs[name] {
		delete(o.slices[a], name)
		if len(o.slices[a]) == 0 {
			delete(o.slices, a)
		}
	}
	delete(o.addrs, name)
	if sl == nil {
		return
	}
	for i := range sl.Endpoints {
		if e := &sl.Endpoints[i]; e.Node == c.Local.Node {
			for _, a := range e.Addrs {
				o.add(name, a)
			}
		}
	}
}

func (o *own) add(name model.Name, a netip.Addr) {
	if o.slices[a] == nil {
		o.slices[a] = map[model.Name]struct{}{}
	}
	if o.addrs[name] == nil {
		o.addrs[name] = map[netip.Addr]struct{}{}
	}
	o.slices[a][name], o.addrs[name][a] = struct{}{}, struct{}{}
}

// follow takes over what interfaces and blocks the node has now. It returns the slices whose endpoints may have ended by
// it, or be there again.
func (o *own) follow(c *cluster, dirty *Dirty) map[model.Name]struct{} {
	out := map[model.Name]struct{}{}
	if dirty.Has(model.KindLocal) {
		now := make(map[netip.Addr]struct{}, len(c.Local.Endpoints))
		for a := range c.Local.Endpoints {
			now[a] = struct{}{}
			if _, before := o.endpoints[a]; !before {
				maps.Copy(out, o.slices[a])
			}
		}
		for a := range o.endpoints {
			if _, still := now[a]; !still {
				maps.Copy(out, o.slices[a])
			}
		}
		o.endpoints = now
	}
	if dirty.Has(model.KindBlocks | model.KindLocal) {
		if blocks := blocksOf(c); !slices.Equal(blocks, o.blocks) {
			o.blocks = blocks
			for name := range o.addrs {
				out[name] = struct{}{}
			}
		}
	}
	return out
}

// blocksOf returns the blocks of this node.
func blocksOf(c *cluster) []netip.Prefix {
	var out []netip.Prefix
	for _, b := range c.Blocks {
		if b.Node == c.Local.Node && b.Node != "" && b.CIDR.IsValid() {
			out = append(out, b.CIDR.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
