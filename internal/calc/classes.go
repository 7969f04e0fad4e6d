package calc

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// class is a set of atoms that are true of some addresses and no others.
type class struct {
	atoms []*atom // sorted by index
	text  string
	id    nodestate.Class
	users int // addresses and regions that are in it
}

func (c *class) has(a *atom) bool {
	_, found := slices.BinarySearchFunc(c.atoms, a.index, func(x *atom, want int32) int { return int(x.index - want) })
	return found
}

// classes is the partition of addresses that the atoms make.
type classes struct {
	atoms  []*atom
	byKey  map[string]*class // "" is not in it: class 0
	withOf [][]*class        // by atom index: the classes in which it is true
	peers  map[netip.Addr]*class
	cidrs  map[netip.Prefix]*class // nil: class 0

	intern  *atoms
	named   map[portName]bool
	regions *regions
	members *members
}

// classify finds the classes of pods' addresses and of the regions between CIDRs.
func classify(c *cluster, x *atoms, named map[portName]bool) *classes {
	pods := newPodIndex(c)
	for n := range named {
		if n.service != (model.Name{}) {
			x.servicePorts(n)
		}
	}
	if len(named) > 0 {
		for _, p := range pods.all {
			for n := range named {
				for _, number := range ownPorts(p.pod, n) {
					x.port(n, number)
				}
			}
		}
	}
	k := &classes{atoms: x.sorted(), byKey: map[string]*class{}, peers: map[netip.Addr]*class{},
		cidrs: map[netip.Prefix]*class{}, intern: x, named: named, members: newMembers(c, pods.all)}
	k.withOf = make([][]*class, len(k.atoms))
	k.regions = newRegions(k.atoms)

	members := map[netip.Addr][]int32{}
	for _, a := range k.atoms {
		k.each(pods, a, func(addr netip.Addr) {
			of := members[addr]
			if n := len(of); n == 0 || of[n-1] != a.index {
				members[addr] = append(of, a.index)
			}
		})
	}
	for addr, of := range members {
		k.peers[addr] = k.of(k.fold(addr, of))
		k.peers[addr].users++
	}
	for p := range k.regions.boundaries.values {
		c := k.of(k.regions.at(p))
		if k.cidrs[p] = c; c != nil {
			c.users++
		}
	}
	return k
}

// fold adds the CIDR atoms that are true of an address to its others, and sorts them.
func (k *classes) fold(addr netip.Addr, of []int32) []int32 {
	of = append(of, k.regions.at(netip.PrefixFrom(addr, addr.BitLen()))...)
	slices.Sort(of)
	return slices.Compact(of)
}

// each calls f for the addresses of the pods of which an atom is true.
func (k *classes) each(pods *podIndex, a *atom, f func(netip.Addr)) {
	all := func(p *peerPod) {
		for _, addr := range p.addrs {
			f(addr)
		}
	}
	switch {
	case a.pods != nil:
		pods.matching(a.pods, all)
	case a.expr != nil:
		pods.expressed(a.expr, all)
	case a.named != nil:
		for _, p := range pods.all {
			if slices.Contains(ownPorts(p.pod, *a.named), a.number) {
				all(p)
			}
		}
	}
}

// of interns the class of a sorted set of atoms; nil is class 0.
func (k *classes) of(indexes []int32) *class {
	if len(indexes) == 0 {
		return nil
	}
	key := classKey(indexes)
	if c, ok := k.byKey[key]; ok {
		return c
	}
	c := &class{}
	var text strings.Builder
	for _, i := range indexes {
		c.atoms = append(c.atoms, k.atoms[i])
		text.WriteString(k.atoms[i].text)
		text.WriteByte('\n')
		k.withOf[i] = append(k.withOf[i], c)
	}
	c.text = text.String()
	k.byKey[key] = c
	return c
}

func classKey(indexes []int32) string {
	key := make([]byte, 0, 4*len(indexes))
	for _, i := range indexes {
		key = binary.BigEndian.AppendUint32(key, uint32(i))
	}
	return string(key)
}

// number gives the classes their numbers and writes the tables of look-up 1. A prefix is left out
// where the next longer region around it has the same class.
func (k *classes) number(out *policyTables) {
	texts := make([]string, 0, len(k.byKey))
	for _, c := range k.byKey {
		texts = append(texts, c.text)
	}
	numbers := assign(digest64[nodestate.Class], texts)
	for _, c := range k.byKey {
		c.id = numbers[c.text]
	}
	peers := out.peers.Edit()
	for a, c := range k.peers {
		peers.Set(a, c.id)
	}
	out.peers = peers.Map()
	index := newPrefixes[*class]()
	for p, c := range k.cidrs {
		index.set(p, c)
	}
	for p, c := range k.cidrs {
		if c == enclosing(index, p) {
			continue
		}
		var id nodestate.Class
		if c != nil {
			id = c.id
		}
		out.peerCIDRs[p] = id
	}
}

// enclosing returns the class of the smallest region around p, p itself not counted.
func enclosing(index *prefixes[*class], p netip.Prefix) (around *class) {
	index.containing(p, func(q netip.Prefix, v *class) bool {
		if q == p {
			return true
		}
		around = v
		return false
	})
	return around
}

// regions tells which CIDR atoms are true between the boundaries of CIDRs and excepts.
type regions struct {
	boundaries *prefixes[struct{}]
	cidrs      *prefixes[[]*atom]
	excepts    *prefixes[[]*atom]
}

func newRegions(all []*atom) *regions {
	r := &regions{boundaries: newPrefixes[struct{}](), cidrs: newPrefixes[[]*atom](), excepts: newPrefixes[[]*atom]()}
	for _, a := range all {
		for _, p := range a.cidrs {
			r.boundaries.set(p, struct{}{})
			r.cidrs.set(p, append(r.cidrs.values[p], a))
		}
		for _, e := range a.except {
			r.boundaries.set(e, struct{}{})
			r.excepts.set(e, append(r.excepts.values[e], a))
		}
	}
	return r
}

// at returns the sorted indexes of the atoms that are true of the region of a prefix: of its addresses
// that no longer prefix contains.
func (r *regions) at(p netip.Prefix) []int32 {
	var excluded []*atom
	r.excepts.containing(p, func(_ netip.Prefix, of []*atom) bool {
		excluded = append(excluded, of...)
		return true
	})
	var out []int32
	r.cidrs.containing(p, func(_ netip.Prefix, of []*atom) bool {
		for _, a := range of {
			if !slices.Contains(excluded, a) {
				out = append(out, a.index)
			}
		}
		return true
	})
	slices.Sort(out)
	return slices.Compact(out)
}
