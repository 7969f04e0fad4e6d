// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// services carries frontends, backend lists and live backends. A list names its backends by slot;
// the number of slots stands in the frontends. So that a look-up never meets a slot without a
// backend, a new slot is written before the count that includes it, and a slot is deleted after the
// count that does not.
//
// The first state is compared with the maps as a whole. Of each later one only what differs from
// the state before is looked at: see follow.
type services[A abi.Address] struct {
	frontends *table[abi.SvcKey[A], abi.SvcValue[A]]
	backends  *table[abi.BackendKey[A], abi.Backend[A]]
	live      *table[abi.LiveKey[A], uint8]
	maglev    *maglevTables[A]

	lists map[abi.SvcKey[A]][]abi.Backend[A] // by id with scope; the index is the slot
	fresh bool                               // what was read from the maps was not compared with a state yet

	// What the desired contents were made from.
	seenFrontends nodestate.Map[nodestate.Frontend, nodestate.Service]
	seenBackends  nodestate.Map[nodestate.Frontend, []nodestate.Backend]
	faces         map[nodestate.Frontend]map[nodestate.Frontend]struct{} // frontends of an id other than itself
	affine        map[nodestate.Frontend]struct{}                        // Ids with affinity
}

func newServices[A abi.Address](maps map[string]*ebpf.Map, writes *uint64) *services[A] {
	return &services[A]{
		frontends: newTable[abi.SvcKey[A], abi.SvcValue[A]]("weir_services", maps["weir_services"], abi.ShowSvc[A], writes),
		backends:  newTable[abi.BackendKey[A], abi.Backend[A]]("weir_backends", maps["weir_backends"], abi.ShowBackend[A], writes),
		live:      newTable[abi.LiveKey[A], uint8]("weir_live", maps["weir_live"], abi.ShowLive[A], writes),
		maglev:    newMaglevTables[A](maps["weir_maglev"], writes),
	}
}

// load reads the maps and recovers the slots, so that a restart moves no backend.
func (s *services[A]) load() error {
	if err := errors.Join(s.frontends.load(), s.backends.load(), s.live.load(), s.maglev.load()); err != nil {
		return err
	}
	s.lists = map[abi.SvcKey[A]][]abi.Backend[A]{}
	s.faces = map[nodestate.Frontend]map[nodestate.Frontend]struct{}{}
	s.affine = map[nodestate.Frontend]struct{}{}
	limit := uint32(s.backends.tracker.Len())
	s.fresh = true
	for k, b := range s.backends.tracker.All() {
		if k.Slot >= limit {
			// Not from us: a list has no more slots than the map has entries.
			s.backends.tracker.Unset(k)
			continue
		}
		list := s.lists[k.Svc]
		for uint32(len(list)) <= k.Slot {
			list = append(list, abi.Backend[A]{})
		}
		list[k.Slot] = b
		s.lists[k.Svc] = list
	}
	return nil
}

func (s *services[A]) desire(st *nodestate.State) {
	if s.fresh {
		s.reuse(st)
		return
	}
	s.desireChanges(st)
}

// reuse sets the whole desired contents, with the slots that are in the maps.
func (s *services[A]) reuse(st *nodestate.State) {
	s.fresh = false
	s.seenFrontends, s.seenBackends = st.Frontends, st.Backends
	for f, svc := range st.Frontends.All() {
		s.face(f, svc, true)
		if svc.Affinity > 0 {
			s.affine[svc.ID] = struct{}{}
		}
		if svc.Maglev && abi.Carries[A](svc.ID.Addr) {
			s.maglev.plan(svc.ID, true, st.Backends.At(svc.ID))
		}
	}
	wanted := make(map[abi.SvcKey[A]]bool, st.Backends.Len())
	for id, backends := range st.Backends.All() {
		if !abi.Carries[A](id.Addr) {
			continue
		}
		key := abi.ToSvc[A](id)
		wanted[key] = true
		for _, scope := range scopes {
			key.Scope = scope
			s.setList(key, place(s.lists[key], inList[A](backends, scope)))
		}
	}
	for key := range s.lists { // found in the map, and no service port has it
		id := key
		id.Scope = abi.ScopeAll
		if !wanted[id] {
			s.setList(key, nil)
		}
	}
	s.frontends.desire(s.renderFrontends(st))
	s.live.desire(s.renderLive(st))
}

// scopes are the lists of a service port.
var scopes = []uint8{abi.ScopeAll, abi.ScopeLocal}

// inList returns the backends of one list as the map has them.
func inList[A abi.Address](backends []nodestate.Backend, scope uint8) []abi.Backend[A] {
	out := make([]abi.Backend[A], 0, len(backends))
	for _, b := range backends {
		if b.InList(scope == abi.ScopeLocal) && abi.Carries[A](b.Addr) {
			out = append(out, toBackend[A](b))
		}
	}
	return out
}

func toBackend[A abi.Address](b nodestate.Backend) abi.Backend[A] {
	return abi.Backend[A]{Addr: abi.ToAddr[A](b.Addr), Port: abi.Be16(b.Port)}
}

// setList desires a whole list.
func (s *services[A]) setList(key abi.SvcKey[A], list []abi.Backend[A]) {
	for i, b := range list {
		s.backends.tracker.Set(abi.BackendKey[A]{Svc: key, Slot: uint32(i)}, b)
	}
	for i := len(list); i < len(s.lists[key]); i++ {
		s.backends.tracker.Unset(abi.BackendKey[A]{Svc: key, Slot: uint32(i)})
	}
	s.keepList(key, list)
}

func (s *services[A]) keepList(key abi.SvcKey[A], list []abi.Backend[A]) {
	if len(list) == 0 {
		delete(s.lists, key)
		return
	}
	s.lists[key] = list
}

func (s *services[A]) renderFrontends(st *nodestate.State) iter.Seq2[abi.SvcKey[A], abi.SvcValue[A]] {
	return func(yield func(abi.SvcKey[A], abi.SvcValue[A]) bool) {
		for f, svc := range st.Frontends.All() {
			if abi.Carries[A](f.Addr) && !yield(abi.ToSvc[A](f), s.frontend(svc)) {
				return
			}
		}
	}
}

// frontend is what stands at a frontend, with the lengths of the lists as they are planned.
func (s *services[A]) frontend(svc nodestate.Service) abi.SvcValue[A] {
	id := abi.ToSvc[A](svc.ID)
	local := id
	local.Scope = abi.ScopeLocal
	v := abi.SvcValue[A]{
		Id: id, Count: uint32(len(s.lists[id])), Local: uint32(len(s.lists[local])),
		Flags: serviceFlags(svc), Affinity: svc.Affinity, Rule: uint32(svc.Rule),
	}
	if svc.Maglev {
		v.Table = s.maglev.size(id)
	}
	return v
}

func serviceFlags(svc nodestate.Service) uint32 {
	return abi.FlagIf(svc.LocalOnly, abi.SvcLocalFrontend) | abi.FlagIf(svc.External, abi.SvcExternal) | abi.FlagIf(svc.LocalPolicy, abi.SvcLocal) |
		abi.FlagIf(svc.Restricted, abi.SvcRestricted) | abi.FlagIf(svc.HostBackend, abi.SvcHostBackend) | abi.FlagIf(svc.Maglev, abi.SvcMaglev) |
		abi.FlagIf(svc.Mode == model.ExternalModeTunnel, abi.SvcModeTunnel) | abi.FlagIf(svc.Mode == model.ExternalModeDSR, abi.SvcModeDSR)
}

// renderLive returns the backends of service ports that look them up again for a flow or a client,
// with the lists that they are in: UDP and SCTP, and those with affinity.
func (s *services[A]) renderLive(st *nodestate.State) iter.Seq2[abi.LiveKey[A], uint8] {
	return func(yield func(abi.LiveKey[A], uint8) bool) {
		for id, backends := range st.Backends.All() {
			if !abi.Carries[A](id.Addr) || !s.looksUp(id) {
				continue
			}
			for _, b := range backends {
				if abi.Carries[A](b.Addr) && !yield(abi.LiveKey[A]{Svc: abi.ToSvc[A](id), Backend: toBackend[A](b)}, liveIn(b)) {
					return
				}
			}
		}
	}
}

// looksUp reports whether flows or clients of a service port look its backends up again.
func (s *services[A]) looksUp(id nodestate.Frontend) bool {
	_, affine := s.affine[id]
	return affine || id.Proto != model.ProtocolTCP
}

func liveIn(b nodestate.Backend) uint8 {
	return uint8(abi.FlagIf(b.InList(false), abi.LiveAll) | abi.FlagIf(b.InList(true), abi.LiveLocal))
}

// write makes the pending writes. A frontend whose list could not be written keeps its old count.
func (s *services[A]) write() {
	s.live.write(nil)
	s.maglev.write()
	s.backends.write(nil)
	incomplete := map[abi.SvcKey[A]]error{}
	for k, err := range s.backends.tracker.Failures() {
		id := k.Svc
		id.Scope = abi.ScopeAll
		incomplete[id] = err
	}
	s.frontends.write(func(_ abi.SvcKey[A], v abi.SvcValue[A]) error {
		if err, ok := incomplete[v.Id]; ok {
			return fmt.Errorf("waits for its backends: %w", err)
		}
		return nil
	})
}

func (s *services[A]) pending() bool {
	return s.frontends.pending() || s.backends.pending() || s.live.pending() || len(s.maglev.dirty) > 0
}

// backendsPending reports whether a slot is to be written or deleted.
func (s *services[A]) backendsPending() bool { return s.backends.pending() }

// entries counts what the maps of frontends and of slots hold.
func (s *services[A]) entries() (frontends, backends int) {
	return s.frontends.tracker.Len(), s.backends.tracker.Len()
}

// remove makes the pending deletes. A slot stays while a frontend still counts it.
func (s *services[A]) remove() {
	s.frontends.remove(nil)
	counted := map[abi.SvcKey[A]]error{}
	for f, err := range s.frontends.tracker.Failures() {
		if v, ok := s.frontends.tracker.Actual(f); ok {
			counted[v.Id] = err
		}
	}
	s.backends.remove(func(k abi.BackendKey[A]) error {
		id := k.Svc
		id.Scope = abi.ScopeAll
		if err, ok := counted[id]; ok {
			return fmt.Errorf("a frontend still counts it: %w", err)
		}
		return nil
	})
	s.live.remove(nil)
	s.maglev.remove()
}

func (s *services[A]) errors() []error {
	return slices.Concat(s.frontends.errors(), s.backends.errors(), s.live.errors(), s.maglev.errors())
}
