// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"io/fs"
	"net/netip"
	"time"
)

// rescan takes over what changed in the directory without us: files that weir ipam release removed,
// and files that another process wrote.
func (a *Allocator) rescan() {
	a.keep()
	a.recheck()
	a.forget(a.compare())
}

// compare takes over files that are new, and returns the records whose files are gone.
func (a *Allocator) compare() (gone []Record) {
	good, bad, strange, err := a.store.list()
	if err != nil {
		a.log.Warn("cannot look at the allocations", "error", err)
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.strange = strange
	for addr := range good {
		if _, ok := a.taken[addr]; !ok {
			a.adopt(addr)
		}
	}
	for addr := range bad {
		if _, ok := a.taken[addr]; !ok {
			a.adopt(addr)
		}
	}
	for addr, r := range a.taken {
		_, isGood := good[addr]
		_, isBad := bad[addr]
		_, wasBad := a.broken[addr]
		// No container and not broken: an allocation in the making, whose file comes next.
		_, unkept := a.unkept[addr]
		if inMaking := r.ContainerID == "" && !wasBad; !inMaking && !isGood && !isBad && !unkept {
			gone = append(gone, r)
		}
	}
	return gone
}

// forget frees addresses whose files somebody removed, unless their interface is there: then the
// file is written again.
func (a *Allocator) forget(gone []Record) {
	for _, r := range gone {
		used := a.opt.InUse != nil && r.ContainerID != "" && a.opt.InUse(r)
		a.mu.Lock()
		switch {
		case a.taken[r.Address] != r:
		case !used:
			a.adopt(r.Address)
		default:
			a.log.Warn("the file of an address in use was removed; writing it again", "address", r.Address.String(), "pod", r.PodName().String())
			if err := a.store.create(r); err != nil && !errors.Is(err, fs.ErrExist) {
				a.unkept[r.Address] = r
				a.log.Error("cannot write the file of an address in use", "address", r.Address.String(), "error", err)
			}
		}
		a.mu.Unlock()
	}
}

// Stale finds allocations whose owner is gone. It remembers since when; the caller keeps one for as
// long as it reconciles.
type Stale struct {
	Grace   time.Duration
	missing map[netip.Addr]missing
}

type missing struct {
	container string
	since     time.Time
}

// Find returns the records for which live has been false in every call for at least Grace. live is
// true when the interface of the record exists, or its container, or its pod without a newer
// container.
func (s *Stale) Find(records []Record, live func(Record) bool, now time.Time) []Record {
	next := map[netip.Addr]missing{}
	var out []Record
	for _, r := range records {
		if r.ContainerID == "" || live(r) {
			continue
		}
		m, ok := s.missing[r.Address]
		if !ok || m.container != r.ContainerID {
			m = missing{r.ContainerID, now}
		}
		next[r.Address] = m
		if now.Sub(m.since) >= s.Grace {
			out = append(out, r)
		}
	}
	s.missing = next
	return out
}
