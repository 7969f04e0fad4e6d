// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// pool is a pool that passed validation.
type pool struct {
	model.Pool
	forNode bool // its nodeSelector matches this node
	// namespaces picks those whose pods get addresses of the pool; nil = all.
	namespaces *selector.Selector
	closed     bool // its namespaceSelector cannot be read: no pod gets any
}

// automatic reports whether addresses of the pool are given without being asked for, to pods of
// every namespace.
func (p *pool) automatic() bool { return p.unasked() && p.namespaces == nil && !p.closed }

// unasked reports whether addresses of the pool are given without being asked for.
func (p *pool) unasked() bool { return p.forNode && p.usable() && !p.Manual }

// admits reports whether the pods of a request's namespace get addresses of the pool.
func (p *pool) admits(req *Request) bool {
	return !p.closed && (p.namespaces == nil || req.NamespaceLabels != nil && p.namespaces.Matches(req.NamespaceLabels))
}

func (p *pool) usable() bool { return p.Gives() && p.Workload }

const (
	maxBlockAddrs = 16      // bits
	maxSearch     = 1 << 20 // blocks looked at for a free one: more than there are nodes times their blocks
)

// validatePools returns the pools that may be used, and what is wrong with the others.
func validatePools(cfg Config) ([]*pool, []Problem) {
	var pools []*pool
	var problems []Problem
	for _, mp := range cfg.Pools {
		bad := func(field, value, action, format string, args ...any) {
			problems = append(problems, Problem{Object: "IPPool " + mp.Name, Field: field, Value: value,
				Message: fmt.Sprintf(format, args...), Action: action})
		}
		if !mp.CIDR.IsValid() || mp.CIDR != mp.CIDR.Masked() || mp.CIDR.Addr().Is4In6() {
			bad("spec.cidr", mp.CIDR.String(), "correct it", "is not a network address with its prefix length; the pool is not used")
			continue
		}
		if bits := mp.CIDR.Addr().BitLen(); mp.BlockBits < mp.CIDR.Bits() || mp.BlockBits > bits || bits-mp.BlockBits > maxBlockAddrs {
			bad("spec.blockSize", strconv.Itoa(mp.BlockBits), fmt.Sprintf("choose %d..%d", max(mp.CIDR.Bits(), bits-maxBlockAddrs), bits),
				"does not fit the pool %s; the pool is not used", mp.CIDR)
			continue
		}
		if i := slices.IndexFunc(pools, func(p *pool) bool { return p.CIDR.Overlaps(mp.CIDR) }); i >= 0 {
			bad("spec.cidr", mp.CIDR.String(), "delete it or change its cidr",
				"overlaps %s of IPPool %s; the later one, IPPool %s, is not used", pools[i].CIDR, pools[i].Name, mp.Name)
			continue
		}
		sel, err := selector.Parse(mp.NodeSelector)
		if err != nil {
			bad("spec.nodeSelector", mp.NodeSelector, "correct it", "%v; the pool gives addresses to no node", err)
		}
		next := &pool{Pool: mp, forNode: err == nil && sel.Matches(cfg.NodeLabels)}
		if s := mp.NamespaceSelector; s != "" && s != "all()" {
			if next.namespaces, err = selector.Parse(s); err != nil {
				next.closed = true
				bad("spec.namespaceSelector", s, "correct it", "%v; the pool gives addresses to no namespace", err)
			}
		}
		pools = append(pools, next)
	}
	return pools, problems
}

// offset returns base + n.
func offset(base netip.Addr, n uint64) netip.Addr {
	if base.Is4() {
		b := base.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := base.As16()
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	if lo+n < lo {
		hi++
	}
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo+n)
	return netip.AddrFrom16(b)
}

// blockCount returns the number of blocks of a pool, at most 2^47: nobody has more nodes.
func (p *pool) blockCount() uint64 { return 1 << min(p.BlockBits-p.CIDR.Bits(), 47) }

// block returns the i-th block.
func (p *pool) block(i uint64) netip.Prefix {
	return netip.PrefixFrom(offset(p.CIDR.Addr(), i<<(p.CIDR.Addr().BitLen()-p.BlockBits)), p.BlockBits)
}

// freeBlock returns a block that overlaps none in use and is not reserved as a whole. Nodes begin
// to look at different places, so that two that claim at once seldom want the same one.
func (p *pool) freeBlock(node string, used map[netip.Prefix]bool, reserved []netip.Prefix) (netip.Prefix, bool) {
	var odd []netip.Prefix // of another size, from before the pool's blockSize was changed
	for b := range used {
		if b.Bits() != p.BlockBits && b.Overlaps(p.CIDR) {
			odd = append(odd, b)
		}
	}
	h := fnv.New64a()
	h.Write([]byte(node))
	n := p.blockCount()
	first := h.Sum64() % n
	for i := range min(n, maxSearch) {
		b := p.block((first + i) % n)
		if used[b] || slices.ContainsFunc(odd, b.Overlaps) {
			continue
		}
		if !slices.ContainsFunc(reserved, func(r netip.Prefix) bool { return r.Bits() <= b.Bits() && r.Overlaps(b) }) {
			return b, true
		}
	}
	return netip.Prefix{}, false
}

func addrsOf(block netip.Prefix) uint64 { return 1 << (block.Addr().BitLen() - block.Bits()) }

// UsablePools returns those of the pools, the oldest first, that pass validation: of two that
// overlap the later one does not.
func UsablePools(all []model.Pool) []model.Pool {
	pools, _ := validatePools(Config{Pools: all})
	out := make([]model.Pool, 0, len(pools))
	for _, p := range pools {
		out = append(out, p.Pool)
	}
	return out
}

// FreeBlocks yields the blocks of a pool that overlap none of used and are not reserved as a whole,
// the lowest first.
func FreeBlocks(mp model.Pool, used, reserved []netip.Prefix) iter.Seq[netip.Prefix] {
	p := &pool{Pool: mp}
	taken := make(map[netip.Prefix]bool, len(used))
	var odd []netip.Prefix
	for _, u := range used {
		if taken[u] = true; u.Bits() != p.BlockBits && u.Overlaps(p.CIDR) {
			odd = append(odd, u)
		}
	}
	return func(yield func(netip.Prefix) bool) {
		for i := range min(p.blockCount(), maxSearch) {
			b := p.block(i)
			if taken[b] || slices.ContainsFunc(odd, b.Overlaps) ||
				slices.ContainsFunc(reserved, func(r netip.Prefix) bool { return r.Bits() <= b.Bits() && r.Overlaps(b) }) {
				continue
			}
			if !yield(b) {
				return
			}
		}
	}
}
