// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// Records returns all allocations of the node, by address. Those whose file cannot be read have no
// ContainerID.
func (a *Allocator) Records() []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return sorted(slices.Collect(maps.Values(a.taken)))
}

// OwnBlocks returns the blocks of the node, by address. Those that are being given back are left
// out.
func (a *Allocator) OwnBlocks() []netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []netip.Prefix
	for cidr, b := range a.own {
		if !b.releasing {
			out = append(out, cidr)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

// ReleaseUnused frees an address as ReleaseAddress does, unless the kernel has a route for it to a
// pod, its interface is there, or a pod of this node has it by the API: held says so then.
func (a *Allocator) ReleaseUnused(addr netip.Addr) (held string, err error) {
	a.mu.Lock()
	r, ok := a.taken[addr]
	a.mu.Unlock()
	if !ok {
		return "", nil
	}
	if held, err = a.heldElsewhere(addr, &Request{}); held != "" || err != nil {
		return held, err
	}
	if r.ContainerID == "" || a.opt.InUse != nil && a.opt.InUse(r) {
		return r.holder() + " has it", nil
	}
	return "", a.release(r, true)
}

// Lookup returns the allocations of one interface of a container.
func (a *Allocator) Lookup(containerID, ifname string) []Record {
	return a.find(func(r Record) bool { return r.ContainerID == containerID && r.IfName == ifname })
}

// ByPod returns the allocations of a pod, whatever the container.
func (a *Allocator) ByPod(pod model.Name) []Record {
	return a.find(func(r Record) bool { return r.PodName() == pod })
}

func (a *Allocator) find(keep func(Record) bool) []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Record
	for _, r := range a.taken {
		if r.ContainerID != "" && keep(r) {
			out = append(out, r)
		}
	}
	return sorted(out)
}

func sorted(rs []Record) []Record {
	slices.SortFunc(rs, func(x, y Record) int { return x.Address.Compare(y.Address) })
	return rs
}

// pending holds an address until its file does.
func (a *Allocator) pending(addr netip.Addr, r Record) Record {
	return Record{Address: addr, Node: a.node, Namespace: r.Namespace, Pod: r.Pod}
}

// commit writes the file of an address that taken holds already, and fills in its record.
func (a *Allocator) commit(addr netip.Addr, template Record) (Record, error) {
	r := template
	r.Address, r.Node, r.Time = addr, a.node, a.opt.Now().UTC()
	err := a.store.create(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil:
		a.taken[addr] = r
	case errors.Is(err, fs.ErrExist):
		a.adopt(addr) // written by another process: its word counts
	default:
		delete(a.taken, addr)
	}
	return r, err
}

// adopt takes over what the file of an address says; mu is held.
func (a *Allocator) adopt(addr netip.Addr) {
	r, err := a.store.read(addr)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		delete(a.taken, addr)
		delete(a.broken, addr)
	case err != nil:
		a.taken[addr] = Record{Address: addr, Node: a.node}
		a.broken[addr] = err
	default:
		a.taken[addr] = r
		delete(a.broken, addr)
	}
}

// Release frees the addresses of one interface of a container and returns what was freed. Nothing
// to free is fine.
func (a *Allocator) Release(containerID, ifname string) ([]Record, error) {
	var errs []error
	var out []Record
	for _, r := range a.Lookup(containerID, ifname) {
		if err := a.release(r, true); err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(errs...)
}

// ReleaseAddress frees one address, also one whose file cannot be read. The caller knows that
// nobody uses it.
func (a *Allocator) ReleaseAddress(addr netip.Addr) error {
	a.mu.Lock()
	r, ok := a.taken[addr]
	a.mu.Unlock()
	if !ok {
		return &Error{fmt.Sprintf("address %s is not allocated on node %s", addr, a.node)}
	}
	return a.release(r, true)
}

// release frees the address if it still is what r says.
func (a *Allocator) release(r Record, cool bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken[r.Address] != r {
		return nil
	}
	if err := a.store.remove(r.Address); err != nil {
		return err
	}
	delete(a.unkept, r.Address)
	delete(a.taken, r.Address)
	delete(a.broken, r.Address)
	if cool {
		a.cooling[r.Address] = a.opt.Now().Add(a.opt.Cooldown)
	}
	return nil
}

// Restore writes a record that was rebuilt from the machine, over a file that cannot be read or
// that is missing. A readable record of the address is left alone, and reported as an error when it
// is about another container.
func (a *Allocator) Restore(r Record) error {
	r.Node = a.node
	a.mu.Lock()
	defer a.mu.Unlock()
	_, broken := a.broken[r.Address]
	_, aside := a.aside[r.Address]
	if have, ok := a.taken[r.Address]; ok && !broken && !aside {
		if have.ContainerID != r.ContainerID {
			return fmt.Errorf("address %s belongs to %s by its file and to %s by the interface %s", r.Address, have.holder(), r.holder(), r.HostInterface)
		}
		return nil
	}
	r.Time = a.opt.Now().UTC()
	// A broken file is replaced; where there is none, create guards against another process.
	write := a.store.create
	if broken {
		write = a.store.replace
	}
	err := write(r)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("restore the allocation of %s: %w", r.Address, err)
	}
	a.taken[r.Address] = r
	delete(a.aside, r.Address)
	if err != nil { // the pod goes on, and the address stays its own; keep writes the file
		a.unkept[r.Address] = r
		a.log.Error("cannot write the record of an address in use; trying again", "address", r.Address.String(), "error", err)
		return nil
	}
	delete(a.broken, r.Address)
	return nil
}
