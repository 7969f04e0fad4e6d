// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
)

// book is who has which address: the blocks of load balancers as they were read, with what was
// changed since.
type book struct {
	blocks map[netip.Prefix]*page
	others []netip.Prefix // blocks of nodes
	holder map[netip.Addr]ipam.ServiceAddress
	byUID  map[types.UID][]netip.Addr
}

// page is one block of load balancers.
type page struct {
	object  *weirv1.IPAMBlock // as it was read; nil: to be claimed
	pool    string
	addrs   map[netip.Addr]bool
	changed bool
}

func newBook(blocks []weirv1.IPAMBlock) *book {
	b := &book{blocks: map[netip.Prefix]*page{}, holder: map[netip.Addr]ipam.ServiceAddress{}, byUID: map[types.UID][]netip.Addr{}}
	for i := range blocks {
		o := &blocks[i]
		block, ok := ipam.ConvertBlock(o)
		switch {
		case !ok:
			continue
		case block.Node != weirv1.LoadBalancers:
			b.others = append(b.others, block.CIDR)
			continue
		}
		p := &page{object: o, pool: block.Pool, addrs: map[netip.Addr]bool{}}
		b.blocks[block.CIDR] = p
		for _, s := range block.Services {
			b.enter(p, s)
		}
		p.changed = false
	}
	return b
}

// of returns the addresses of a Service, in the order in which it got them.
func (b *book) of(uid types.UID) []netip.Addr { return slices.Clone(b.byUID[uid]) }

func (b *book) enter(p *page, s ipam.ServiceAddress) {
	p.addrs[s.Address], p.changed = true, true
	b.holder[s.Address] = s
	uid := types.UID(s.UID)
	b.byUID[uid] = append(b.byUID[uid], s.Address)
}

// release frees an address.
func (b *book) release(a netip.Addr) {
	s, ok := b.holder[a]
	if !ok {
		return
	}
	delete(b.holder, a)
	uid := types.UID(s.UID)
	if b.byUID[uid] = slices.DeleteFunc(b.byUID[uid], func(x netip.Addr) bool { return x == a }); len(b.byUID[uid]) == 0 {
		delete(b.byUID, uid)
	}
	for cidr, p := range b.blocks {
		if cidr.Contains(a) {
			delete(p.addrs, a)
			p.changed = true
		}
	}
}

// claim enters one address of a pool, and claims its block where nobody has it.
func (b *book) claim(pool *lbPool, a netip.Addr, s *corev1.Service) error {
	if h, taken := b.holder[a]; taken {
		return fmt.Errorf("%s belongs to Service %s", a, h.Service)
	}
	for _, o := range b.others {
		if o.Contains(a) {
			return fmt.Errorf("%s lies in block %s of a node, which gives it to pods", a, o)
		}
	}
	p := b.pageOf(a)
	if p == nil {
		cidr, err := a.Prefix(pool.BlockBits)
		if err != nil || b.overlaps(cidr) {
			return fmt.Errorf("%s lies in no block that could be claimed: another one overlaps %s", a, cidr)
		}
		p = b.open(cidr, pool.Name)
	}
	b.enter(p, entry(a, s))
	return nil
}

// claimAny enters the lowest free address of a pool.
func (b *book) claimAny(pool *lbPool, s *corev1.Service, reserved func(netip.Addr) bool, reservations []netip.Prefix) (netip.Addr, bool) {
	var ours []netip.Prefix
	for cidr := range b.blocks {
		if pool.CIDR.Contains(cidr.Addr()) {
			ours = append(ours, cidr)
		}
	}
	slices.SortFunc(ours, func(x, y netip.Prefix) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), x.Bits()-y.Bits())
	})
	for _, cidr := range ours {
		if a, ok := b.free(cidr, pool.CIDR, reserved); ok {
			b.enter(b.blocks[cidr], entry(a, s))
			return a, true
		}
	}
	used := append(slices.Clone(ours), b.others...)
	for cidr := range ipam.FreeBlocks(pool.Pool, used, reservations) {
		if a, ok := b.free(cidr, pool.CIDR, reserved); ok {
			b.enter(b.open(cidr, pool.Name), entry(a, s))
			return a, true
		}
	}
	return netip.Addr{}, false
}

// free returns the lowest address of a block that nobody has. The addresses that some systems take
// for a network's own or its broadcast, .0 and .255, are given only when asked for.
func (b *book) free(cidr, pool netip.Prefix, reserved func(netip.Addr) bool) (netip.Addr, bool) {
	if p := b.blocks[cidr]; p != nil {
		if size := cidr.Addr().BitLen() - cidr.Bits(); size < 31 && len(p.addrs) == 1<<size {
			return netip.Addr{}, false
		}
	}
	for a := cidr.Addr(); a.IsValid() && cidr.Contains(a); a = a.Next() {
		if _, taken := b.holder[a]; taken || reserved(a) || !pool.Contains(a) {
			continue
		}
		if last := a.AsSlice()[len(a.AsSlice())-1]; a.Is4() && (last == 0 || last == 255) && pool.Bits() < 31 {
			continue
		}
		if a.Is6() && a == pool.Addr() && pool.Bits() < 127 {
			continue // the subnet-router anycast address (RFC 4291 2.6.1)
		}
		return a, true
	}
	return netip.Addr{}, false
}

func (b *book) pageOf(a netip.Addr) *page {
	for cidr, p := range b.blocks {
		if cidr.Contains(a) {
			return p
		}
	}
	return nil
}

func (b *book) overlaps(cidr netip.Prefix) bool {
	for have := range b.blocks {
		if have.Overlaps(cidr) {
			return true
		}
	}
	return slices.ContainsFunc(b.others, cidr.Overlaps)
}

func (b *book) open(cidr netip.Prefix, pool string) *page {
	p := &page{pool: pool, addrs: map[netip.Addr]bool{}}
	b.blocks[cidr] = p
	return p
}

func entry(a netip.Addr, s *corev1.Service) ipam.ServiceAddress {
	return ipam.ServiceAddress{Address: a, Service: model.Name{Namespace: s.Namespace, Name: s.Name}, UID: string(s.UID)}
}

// object returns the IPAMBlock of a page as it is to be written.
func (b *book) object(cidr netip.Prefix, p *page) *weirv1.IPAMBlock {
	var o weirv1.IPAMBlock
	if p.object != nil {
		p.object.DeepCopyInto(&o)
	} else {
		o.Name = weirv1.BlockName(cidr)
		o.Spec = weirv1.IPAMBlockSpec{CIDR: cidr.String(), Node: weirv1.LoadBalancers, Pool: p.pool}
	}
	o.Spec.Allocations = nil
	for _, a := range slices.SortedFunc(maps.Keys(p.addrs), netip.Addr.Compare) {
		h := b.holder[a]
		o.Spec.Allocations = append(o.Spec.Allocations, weirv1.Allocation{Address: a.String(), Service: h.Service.String(), UID: h.UID})
	}
	return &o
}
