// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// BlockName is the name of the IPAMBlock object of a block.
func BlockName(cidr netip.Prefix) string { return weirv1.BlockName(cidr) }

func (s *store) loadBlocks() []Block {
	var out []Block
	if data, err := os.ReadFile(filepath.Join(s.dir, blocksFile)); err == nil && json.Unmarshal(data, &out) != nil {
		return nil // a cache: the API has them too
	}
	return slices.DeleteFunc(out, func(b Block) bool { return !b.CIDR.IsValid() })
}

// saveBlocks keeps the node's blocks on disk, so that pods start after a restart while the API
// server is away; mu is held.
func (a *Allocator) saveBlocks() {
	var out []Block
	for _, b := range a.own {
		if !b.releasing {
			out = append(out, Block{CIDR: b.cidr, Node: a.node})
		}
	}
	slices.SortFunc(out, func(x, y Block) int { return strings.Compare(x.CIDR.String(), y.CIDR.String()) })
	data, err := json.Marshal(out)
	if err == nil {
		err = a.store.put(blocksFile, data)
	}
	if err != nil {
		a.log.Warn("cannot keep the list of this node's blocks on disk", "error", err)
	}
}

// refresh reads the blocks of all nodes and takes over which of them are ours. The caller holds
// claiming.
func (a *Allocator) refresh(ctx context.Context) ([]Block, error) {
	all, err := a.blocks.List(ctx)
	var lost []netip.Prefix
	a.mu.Lock()
	defer func() {
		a.mu.Unlock()
		for _, cidr := range lost {
			a.reclaim(ctx, cidr)
		}
	}()
	if a.listErr = err; err != nil {
		return nil, fmt.Errorf("read the IPAM blocks: %w", err)
	}
	owner := map[netip.Prefix]string{}
	for _, b := range all {
		owner[b.CIDR] = b.Node
	}
	clear(a.conflict)
	changed := false
	for cidr, node := range owner {
		if node == a.node && a.own[cidr] == nil {
			a.own[cidr] = &ownBlock{cidr: cidr}
			changed = true
		}
	}
	for cidr, b := range a.own {
		switch node := owner[cidr]; {
		case node == a.node:
			b.releasing = false // from a conflict that somebody resolved
		case a.used(b) == 0:
			delete(a.own, cidr)
			changed = true
		case node != "":
			a.conflict[cidr] = node
			b.releasing = true // give nothing more from it
		default:
			lost = append(lost, cidr)
		}
	}
	if changed {
		a.saveBlocks()
	}
	return all, nil
}

// reclaim claims again a block that somebody deleted while it has allocations.
func (a *Allocator) reclaim(ctx context.Context, cidr netip.Prefix) {
	a.mu.Lock()
	name := ""
	for _, p := range a.pools {
		if p.CIDR.Contains(cidr.Addr()) {
			name = p.Name
		}
	}
	a.mu.Unlock()
	a.log.Warn("a block with allocations was deleted; claiming it again", "block", cidr)
	if err := a.claim(ctx, cidr, name); err != nil {
		a.log.Error("cannot claim the block again", "block", cidr, "error", err)
	}
}

// claim makes cidr a block of this node; the caller holds claiming.
func (a *Allocator) claim(ctx context.Context, cidr netip.Prefix, pool string) error {
	step("claim:before")
	err := a.blocks.Claim(ctx, cidr, pool)
	step("claim:after")
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if !errors.Is(err, ErrTaken) {
			a.listErr = err
		}
		return fmt.Errorf("claim block %s of IPPool %s: %w", cidr, pool, err)
	}
	a.listErr = nil
	if a.own[cidr] == nil {
		a.own[cidr] = &ownBlock{cidr: cidr}
	}
	a.log.Info("claimed a block", "block", cidr, "pool", pool)
	a.saveBlocks()
	return nil
}

// claimFor claims a block for one of the pools, unless one has a free address meanwhile.
func (a *Allocator) claimFor(ctx context.Context, pools []*pool, v6 bool) error {
	a.claiming.Lock()
	defer a.claiming.Unlock()
	a.mu.Lock()
	free := a.free(pools)
	a.mu.Unlock()
	if free > 0 {
		return nil
	}
	ok, err := a.claimOne(ctx, pools)
	if err != nil {
		return err
	}
	if !ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.exhausted(pools)
	}
	return nil
}

// claimOne claims the first free block of the pools. False: there is none, or the node has as many
// as it may have. The caller holds claiming.
func (a *Allocator) claimOne(ctx context.Context, pools []*pool) (bool, error) {
	all, err := a.refresh(ctx)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	full := a.cfg.MaxBlocks > 0 && len(a.own) >= a.cfg.MaxBlocks
	free := a.free(pools) // refresh may have found blocks of ours
	a.mu.Unlock()
	if free > 0 {
		return true, nil
	}
	return a.claimNew(ctx, pools, all, full)
}

func (a *Allocator) claimNew(ctx context.Context, pools []*pool, all []Block, full bool) (bool, error) {
	if full {
		return false, nil
	}
	used := map[netip.Prefix]bool{}
	for _, b := range all {
		used[b.CIDR] = true
	}
	a.mu.Lock()
	reserved := a.cfg.Reservations
	a.mu.Unlock()
	for _, p := range pools {
		for {
			cidr, ok := p.freeBlock(a.node, used, reserved)
			if !ok {
				break
			}
			err := a.claim(ctx, cidr, p.Name)
			if err == nil {
				return true, nil
			}
			if !errors.Is(err, ErrTaken) {
				return false, err
			}
			used[cidr] = true
		}
	}
	return false, nil
}

// exhausted says that the pools have no address left for this node; mu is held.
func (a *Allocator) exhausted(pools []*pool) error {
	var tried []string
	for _, p := range pools {
		own := a.ownIn(p)
		n := 0
		for _, b := range own {
			n += a.used(b)
		}
		tried = append(tried, fmt.Sprintf("IPPool %s (%s: %d blocks of this node with %d addresses taken, no other block to claim)", p.Name, p.CIDR, len(own), n))
	}
	limit := ""
	if a.cfg.MaxBlocks > 0 && len(a.own) >= a.cfg.MaxBlocks {
		limit = fmt.Sprintf(" The node has the %d blocks that IPAMConfiguration maxBlocksPerHost allows.", a.cfg.MaxBlocks)
	}
	return &Error{fmt.Sprintf("no free address for node %s, pools tried: %s.%s Add an IPPool, make IPReservations smaller, or delete pods; weir ipam check finds addresses and blocks that leaked",
		a.node, strings.Join(tried, "; "), limit)}
}

// shortage returns the problems of families in which no address can be given any more; mu is held.
func (a *Allocator) shortage() []Problem {
	var out []Problem
	for _, v6 := range []bool{false, true} {
		pools := a.automaticPools(v6)
		switch {
		case len(pools) == 0 && v6 == a.cfg.NoIPv4 && len(a.pools) > 0:
			out = append(out, Problem{Object: "IPPools", Message: fmt.Sprintf("none gives %s addresses to node %s: %s", map[bool]string{false: "IPv4", true: "IPv6"}[v6], a.node, a.whyNoPool(v6)),
				Action: "correct one of them, or create one"})
		case len(pools) > 0 && a.noBlock[v6] && a.free(pools) == 0:
			var names []string
			for _, p := range pools {
				names = append(names, p.Name)
			}
			out = append(out, Problem{Object: "IPPool " + strings.Join(names, ", "), Field: "spec.cidr", Message: a.exhausted(pools).Error()})
		}
	}
	return out
}

// used returns the number of allocations in a block; mu is held.
func (a *Allocator) used(b *ownBlock) int {
	n := 0
	for addr := range a.taken {
		if b.cidr.Contains(addr) {
			n++
		}
	}
	return n
}

// freeIn returns the number of addresses of a block that may be given; mu is held.
func (a *Allocator) freeIn(b *ownBlock) int {
	if b.releasing {
		return 0
	}
	n := 0
	for i := range addrsOf(b.cidr) {
		addr := offset(b.cidr.Addr(), i)
		if _, taken := a.taken[addr]; !taken && !a.reserved(addr) {
			n++
		}
	}
	return n
}

func (a *Allocator) free(pools []*pool) int {
	n := 0
	for _, p := range pools {
		for _, b := range a.ownIn(p) {
			n += a.freeIn(b)
		}
	}
	return n
}

// Gives reports whether a pool gives addresses of a family to pods of this node that do not ask for
// one.
func (a *Allocator) Gives(v6 bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.automaticPools(v6)) > 0
}

// Free counts the addresses that pods can get without the API: those left in this node's blocks of
// the pools that it uses without being asked.
func (a *Allocator) Free() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.free(a.automaticPools(false)) + a.free(a.automaticPools(true))
}

// Run claims blocks ahead of need and gives back those that are not needed, until ctx ends.
func (a *Allocator) Run(ctx context.Context) error {
	rescan := time.NewTicker(a.opt.Rescan)
	defer rescan.Stop()
	var refreshed time.Time
	retry, backoff := make(<-chan time.Time), time.Second
	for {
		var err error
		if time.Since(refreshed) >= a.opt.Refresh {
			if err = a.Refresh(ctx); err == nil {
				refreshed = time.Now()
			}
		}
		if err == nil {
			err = a.Maintain(ctx)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("cannot keep the address blocks up to date", "error", err, "retry", backoff)
			retry = time.After(backoff)
			backoff = min(2*backoff, 30*time.Second)
		} else {
			backoff = time.Second
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-retry:
		case <-rescan.C:
			a.rescan()
			if err := a.releaseIdle(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("cannot release idle blocks", "error", err)
			}
		}
	}
}

// Refresh compares the node's blocks with the API.
func (a *Allocator) Refresh(ctx context.Context) error {
	a.claiming.Lock()
	defer a.claiming.Unlock()
	_, err := a.refresh(ctx)
	return err
}

// Maintain claims blocks until each family has as many free addresses as the low-water mark says,
// if there are blocks to claim.
func (a *Allocator) Maintain(ctx context.Context) error {
	if a.locked() {
		return nil
	}
	a.claiming.Lock()
	defer a.claiming.Unlock()
	return errors.Join(a.claimAhead(ctx, false), a.claimAhead(ctx, true))
}

// automaticPools returns the pools that this node uses without being asked; mu is held.
func (a *Allocator) automaticPools(v6 bool) []*pool {
	var out []*pool
	for _, p := range a.pools {
		if p.automatic() && p.CIDR.Addr().Is6() == v6 {
			out = append(out, p)
		}
	}
	return out
}

func (a *Allocator) claimAhead(ctx context.Context, v6 bool) error {
	for {
		a.mu.Lock()
		pools := a.automaticPools(v6)
		enough := len(pools) == 0 || a.free(pools) >= a.opt.LowWater
		full := a.cfg.MaxBlocks > 0 && len(a.own) >= a.cfg.MaxBlocks
		a.mu.Unlock()
		if enough || full {
			a.mu.Lock()
			a.noBlock[v6] = full
			a.mu.Unlock()
			return nil
		}
		all, err := a.refresh(ctx)
		if err != nil {
			return err
		}
		a.mu.Lock()
		enough = a.free(pools) >= a.opt.LowWater
		a.mu.Unlock()
		if enough {
			return nil
		}
		// No block left is not an error before an address is asked for; Problems reports it.
		ok, err := a.claimNew(ctx, pools, all, false)
		a.mu.Lock()
		a.noBlock[v6] = err == nil && !ok
		a.mu.Unlock()
		if err != nil || !ok {
			return err
		}
	}
}

// releaseIdle gives back blocks that have been empty for long and are not needed: never the last of
// the node in its family that is in a pool, never one with an allocation.
func (a *Allocator) releaseIdle(ctx context.Context) error {
	a.claiming.Lock()
	defer a.claiming.Unlock()
	var errs []error
	for _, cidr := range a.idle() {
		err := a.blocks.Release(ctx, cidr)
		a.mu.Lock()
		if err != nil {
			errs = append(errs, fmt.Errorf("release block %s: %w", cidr, err))
			if b := a.own[cidr]; b != nil {
				b.releasing = false
			}
		} else {
			delete(a.own, cidr)
			a.log.Info("released an idle block", "block", cidr)
		}
		a.saveBlocks()
		a.mu.Unlock()
	}
	return errors.Join(errs...)
}

// idle chooses the blocks to give back and marks them, so that nothing is given from them.
func (a *Allocator) idle() []netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.opt.Now()
	var out []netip.Prefix
	if len(a.pools) == 0 {
		return nil // not configured yet, or all pools deleted: what is needed is not known
	}
	for _, v6 := range []bool{false, true} {
		var blocks []*ownBlock
		for _, b := range slices.Collect(maps.Values(a.own)) {
			if b.cidr.Addr().Is6() == v6 && !b.releasing {
				blocks = append(blocks, b)
			}
		}
		slices.SortFunc(blocks, func(x, y *ownBlock) int { return y.cidr.Addr().Compare(x.cidr.Addr()) })
		left, free := len(blocks), a.free(a.automaticPools(v6))
		for _, b := range blocks {
			if a.used(b) > 0 {
				b.idleSince = time.Time{}
				continue
			}
			if b.idleSince.IsZero() {
				b.idleSince = now
			}
			n := 0
			if a.isAutomatic(b) {
				n = a.freeIn(b)
			}
			// Nothing is given from a block of a pool that is gone or was deleted, and the latter
			// waits for it: it goes at once.
			if a.inPool(b) && (left < 2 || now.Sub(b.idleSince) < a.opt.BlockIdle || n > 0 && free-n < 2*a.opt.LowWater) {
				continue
			}
			b.releasing = true
			left, free = left-1, free-n
			out = append(out, b.cidr)
		}
	}
	if len(out) > 0 {
		a.saveBlocks()
	}
	return out
}

func (a *Allocator) inPool(b *ownBlock) bool {
	return slices.ContainsFunc(a.pools, func(p *pool) bool { return p.Deleted == 0 && p.CIDR.Contains(b.cidr.Addr()) })
}

func (a *Allocator) isAutomatic(b *ownBlock) bool {
	return slices.ContainsFunc(a.pools, func(p *pool) bool { return p.automatic() && p.CIDR.Contains(b.cidr.Addr()) })
}
