// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
)

// The records of a node can be lost, whole or in part. So they are not all that is asked before an
// address is given: the kernel knows which interface of a pod an address leads to, and the API
// which pod of this node has it.

// heldElsewhere says who has an address of which there is no record, "" when nobody does. An error
// says that it cannot be found out.
func (a *Allocator) heldElsewhere(addr netip.Addr, req *Request) (string, error) {
	if a.opt.Kept != nil && !req.Granted {
		if why := a.opt.Kept(addr); why != "" {
			return why, nil
		}
	}
	if a.opt.Refuse != nil {
		if why := a.opt.Refuse(addr); why != "" {
			return why, nil
		}
	}
	if a.opt.Routed != nil {
		if why, err := a.opt.Routed(addr); err != nil || why != "" {
			return why, err
		}
	}
	// What pods of other nodes say they have does not count: those nodes write it.
	if a.opt.Owner != nil {
		if pod, on, ok := a.opt.Owner(addr); ok && on == a.node && pod != req.PodName() {
			return "pod " + pod.String() + " has it by its status", nil
		}
	}
	return "", nil
}

// setAside keeps an address, which pick took, from being given until recheck finds it free; with an
// error it is given back.
func (a *Allocator) setAside(addr netip.Addr, held string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		delete(a.taken, addr)
		return
	}
	a.taken[addr], a.aside[addr] = Record{Address: addr, Node: a.node}, held
	a.log.Warn("an address without a record is in use, and is not given", "address", addr.String(), "reason", held)
}

// recheck frees addresses that were set aside and that nobody has any more.
func (a *Allocator) recheck() {
	a.mu.Lock()
	held := maps.Clone(a.aside)
	a.mu.Unlock()
	for addr := range held {
		why, err := a.heldElsewhere(addr, &Request{})
		if err != nil {
			continue
		}
		a.mu.Lock()
		if a.aside[addr] = why; why == "" {
			delete(a.aside, addr)
			if r := a.taken[addr]; r.ContainerID == "" && a.broken[addr] == nil {
				delete(a.taken, addr)
			}
		}
		a.mu.Unlock()
	}
}

// keep writes the files of records that are known and that no file has: the disk was full when they
// were found.
func (a *Allocator) keep() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for addr, r := range a.unkept {
		if a.taken[addr] != r {
			delete(a.unkept, addr)
			continue
		}
		err := a.store.replace(r)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			continue
		}
		delete(a.unkept, addr)
		delete(a.broken, addr)
		a.log.Info("wrote the record of an address that could not be written before", "address", addr.String())
	}
}

// canRecord returns an error while records of running pods cannot be written: what is not recorded
// is not given.
func (a *Allocator) canRecord() error {
	a.keep()
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.unrecorded(); len(p) > 0 {
		return errors.New(p[0].String())
	}
	return nil
}

// unrecorded reports records that no file has; mu is held.
func (a *Allocator) unrecorded() []Problem {
	if len(a.unkept) == 0 {
		return nil
	}
	first := slices.SortedFunc(maps.Keys(a.unkept), netip.Addr.Compare)[0]
	return []Problem{{Object: "directory " + a.store.dir, Value: strconv.Itoa(len(a.unkept)) + " addresses",
		Message: "the records of addresses of running pods cannot be written, " + first.String() + " among them: these pods go on, and no pod gets an address until there is room",
		Action:  "free space (or inodes) on the disk, or mount it writable"}}
}
