// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
)

// allocateFixed takes one given address.
func (a *Allocator) allocateFixed(ctx context.Context, req Request, addr netip.Addr) (Record, error) {
	var p *pool
	own := req.Granted
	if !own {
		var err error
		if p, own, err = a.fixedPool(addr, &req); err != nil {
			return Record{}, err
		}
	}
	if err := a.freeFor(addr, &req); err != nil {
		return Record{}, err
	}
	if !own {
		if err := a.claimBlockOf(ctx, p, addr); err != nil {
			return Record{}, err
		}
	}
	a.mu.Lock()
	if err := a.takenHere(addr); err != nil {
		a.mu.Unlock()
		return Record{}, err
	}
	a.taken[addr] = a.pending(addr, req.Record)
	delete(a.cooling, addr)
	a.mu.Unlock()
	r, err := a.commit(addr, req.Record)
	if errors.Is(err, fs.ErrExist) {
		have, _ := a.store.read(addr)
		return Record{}, &Error{fmt.Sprintf("address %s is already taken by %s on this node", addr, have.holder())}
	}
	return r, err
}

// freeFor returns an error when somebody has the address.
func (a *Allocator) freeFor(addr netip.Addr, req *Request) error {
	a.mu.Lock()
	err := a.takenHere(addr)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	held, err := a.heldElsewhere(addr, req)
	if err == nil && held != "" {
		err = &Error{fmt.Sprintf("address %s cannot be given to a pod: %s", addr, held)}
	}
	return err
}

// takenHere returns an error when a record has the address; mu is held.
func (a *Allocator) takenHere(addr netip.Addr) error {
	have, ok := a.taken[addr]
	if why, aside := a.aside[addr]; ok && aside {
		return &Error{fmt.Sprintf("address %s cannot be given to a pod: %s", addr, why)}
	}
	if ok {
		return &Error{fmt.Sprintf("address %s is already taken by %s on this node", addr, have.holder())}
	}
	return nil
}

// fixedPool returns the pool of an address, and whether a block of this node has it.
func (a *Allocator) fixedPool(addr netip.Addr, req *Request) (p *pool, own bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.pools, func(p *pool) bool { return p.CIDR.Contains(addr) })
	switch {
	case i < 0:
		return nil, false, &Error{fmt.Sprintf("address %s lies in no usable IPPool; the pools are: %s", addr, a.poolNames())}
	case !a.pools[i].usable():
		return nil, false, &Error{fmt.Sprintf("address %s lies in IPPool %s, which is disabled or deleted, or its allowedUses lack Workload", addr, a.pools[i].Name)}
	}
	if p := a.pools[i]; !p.admits(req) {
		if req.NamespaceLabels == nil {
			return nil, false, fmt.Errorf("namespace %s is not known yet, and IPPool %s has a namespaceSelector", req.Namespace, p.Name)
		}
		return nil, false, &Error{fmt.Sprintf("address %s lies in IPPool %s, whose namespaceSelector does not match namespace %s", addr, p.Name, req.Namespace)}
	}
	for _, b := range a.own {
		if b.cidr.Contains(addr) && !b.releasing {
			return a.pools[i], true, nil
		}
	}
	return a.pools[i], false, nil
}

// claimBlockOf claims the block of a fixed address. When another node has it, the address must be
// reserved, so that the other node does not give it too.
func (a *Allocator) claimBlockOf(ctx context.Context, p *pool, addr netip.Addr) error {
	a.claiming.Lock()
	defer a.claiming.Unlock()
	all, err := a.refresh(ctx)
	if err != nil {
		return fmt.Errorf("claim the block of address %s: %w", addr, err)
	}
	cidr, _ := addr.Prefix(p.BlockBits)
	node := ""
	overlap := false
	for _, b := range all {
		if b.CIDR.Contains(addr) {
			node = b.Node
		}
		overlap = overlap || b.CIDR.Overlaps(cidr)
	}
	if node == "" && !overlap {
		err := a.claim(ctx, cidr, p.Name)
		if err == nil || !errors.Is(err, ErrTaken) {
			return err
		}
		if all, err = a.refresh(ctx); err != nil {
			return fmt.Errorf("claim the block of address %s: %w", addr, err)
		}
		for _, b := range all {
			if b.CIDR.Contains(addr) {
				node = b.Node
			}
		}
	}
	if node == a.node {
		return nil
	}
	if a.opt.Owner != nil {
		if pod, on, ok := a.opt.Owner(addr); ok {
			return &Error{fmt.Sprintf("address %s is already taken by pod %s on node %s", addr, pod, on)}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.reserved(addr) {
		return &Error{fmt.Sprintf("address %s lies in block %s of node %s, which may give it to another pod: cover it by an IPReservation, or choose an address outside of that block", addr, cidr, node)}
	}
	return nil
}
