// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Tables carries frontends, backend lists and live backends. A list names its backends by slot;
// the number of slots is in the frontends. So that a look-up never meets a slot without a
// backend, a new slot is written before the count that includes it, and a slot is deleted after the
// count that does not.
//
// The first state is compared with the maps as a whole. Of each later one only what differs from
// the state before is looked at: see changes.go.
type Tables[A abi.Address] struct {
	frontends *maptable.Table[abi.SvcKey[A], abi.SvcValue[A]]
	backends  *maptable.Table[abi.BackendKey[A], abi.Backend[A]]
	live      *maptable.Table[abi.LiveKey[A], uint8]
	maglev    *maglevTables[A]

	lists map[abi.SvcKey[A]][]abi.Backend[A] // by id with scope; the index is the slot
	fresh bool                               // what was read from the maps was not compared with a state yet

	// What the desired contents were made from.
	seenFrontends nodestate.Map[nodestate.Frontend, nodestate.Service]
	seenBackends  nodestate.Map[nodestate.Frontend, []nodestate.Backend]
	faces         map[nodestate.Frontend]map[nodestate.Frontend]struct{} // frontends of an id other than itself
	affine        map[nodestate.Frontend]struct{}                        // Ids with affinity
}

// New returns the tables of the maps of a family, by their names. writes counts what is written and
// deleted.
func New[A abi.Address](maps map[string]*ebpf.Map, writes *uint64) *Tables[A] {
	return &Tables[A]{
		frontends: maptable.New[abi.SvcKey[A], abi.SvcValue[A]]("weir_services", maps["weir_services"], abi.ShowSvc[A], writes),
		backends:  maptable.New[abi.BackendKey[A], abi.Backend[A]]("weir_backends", maps["weir_backends"], abi.ShowBackend[A], writes),
		live:      maptable.New[abi.LiveKey[A], uint8]("weir_live", maps["weir_live"], abi.ShowLive[A], writes),
		maglev:    newMaglevTables[A](maps["weir_maglev"], writes),
	}
}

// Load reads the maps and recovers the slots, so that a restart moves no backend. The error is the
// kernel's.
func (s *Tables[A]) Load() error {
	if err := errors.Join(s.frontends.Load(), s.backends.Load(), s.live.Load(), s.maglev.load()); err != nil {
		return err
	}
	s.lists = map[abi.SvcKey[A]][]abi.Backend[A]{}
	s.faces = map[nodestate.Frontend]map[nodestate.Frontend]struct{}{}
	s.affine = map[nodestate.Frontend]struct{}{}
	limit := uint32(s.backends.Tracker.Len())
	s.fresh = true
	for k, b := range s.backends.Tracker.All() {
		if k.Slot >= limit {
			// Not from us: a list has no more slots than the map has entries.
			s.backends.Tracker.Unset(k)
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

// Desire follows a state, the first one as a whole.
func (s *Tables[A]) Desire(st *nodestate.State) {
	if s.fresh {
		s.reuse(st)
		return
	}
	s.desireChanges(st)
}

// reuse sets the whole desired contents, with the slots that are in the maps.
func (s *Tables[A]) reuse(st *nodestate.State) {
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
	s.frontends.Desire(s.renderFrontends(st))
	s.live.Desire(s.renderLive(st))
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
func (s *Tables[A]) setList(key abi.SvcKey[A], list []abi.Backend[A]) {
	for i, b := range list {
		s.backends.Tracker.Set(abi.BackendKey[A]{Svc: key, Slot: uint32(i)}, b)
	}
	for i := len(list); i < len(s.lists[key]); i++ {
		s.backends.Tracker.Unset(abi.BackendKey[A]{Svc: key, Slot: uint32(i)})
	}
	s.keepList(key, list)
}

func (s *Tables[A]) keepList(key abi.SvcKey[A], list []abi.Backend[A]) {
	if len(list) == 0 {
		delete(s.lists, key)
		return
	}
	s.lists[key] = list
}

func (s *Tables[A]) renderFrontends(st *nodestate.State) iter.Seq2[abi.SvcKey[A], abi.SvcValue[A]] {
	return func(yield func(abi.SvcKey[A], abi.SvcValue[A]) bool) {
		for f, svc := range st.Frontends.All() {
			if abi.Carries[A](f.Addr) && !yield(abi.ToSvc[A](f), s.frontend(svc)) {
				return
			}
		}
	}
}

// frontend is what is stored at a frontend, with the lengths of the lists as they are planned.
func (s *Tables[A]) frontend(svc nodestate.Service) abi.SvcValue[A] {
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
func (s *Tables[A]) renderLive(st *nodestate.State) iter.Seq2[abi.LiveKey[A], uint8] {
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
func (s *Tables[A]) looksUp(id nodestate.Frontend) bool {
	_, affine := s.affine[id]
	return affine || id.Proto != model.ProtocolTCP
}

func liveIn(b nodestate.Backend) uint8 {
	return uint8(abi.FlagIf(b.InList(false), abi.LiveAll) | abi.FlagIf(b.InList(true), abi.LiveLocal))
}

// Write makes the pending writes. A frontend whose list could not be written keeps its old count.
func (s *Tables[A]) Write() {
	s.live.Write(nil)
	s.maglev.write()
	s.backends.Write(nil)
	incomplete := map[abi.SvcKey[A]]error{}
	for k, err := range s.backends.Tracker.Failures() {
		id := k.Svc
		id.Scope = abi.ScopeAll
		incomplete[id] = err
	}
	s.frontends.Write(func(_ abi.SvcKey[A], v abi.SvcValue[A]) error {
		if err, ok := incomplete[v.Id]; ok {
			return fmt.Errorf("waits for its backends: %w", err)
		}
		return nil
	})
}

// Pending reports whether anything is to be written or deleted.
func (s *Tables[A]) Pending() bool {
	return s.frontends.Pending() || s.backends.Pending() || s.live.Pending() || len(s.maglev.dirty) > 0
}

// BackendsPending reports whether a slot is to be written or deleted.
func (s *Tables[A]) BackendsPending() bool { return s.backends.Pending() }

// Entries counts what the maps of frontends and of slots hold.
func (s *Tables[A]) Entries() (frontends, backends int) {
	return s.frontends.Tracker.Len(), s.backends.Tracker.Len()
}

// Remove makes the pending deletes. A slot stays while a frontend still counts it.
func (s *Tables[A]) Remove() {
	s.frontends.Remove(nil)
	counted := map[abi.SvcKey[A]]error{}
	for f, err := range s.frontends.Tracker.Failures() {
		if v, ok := s.frontends.Tracker.Actual(f); ok {
			counted[v.Id] = err
		}
	}
	s.backends.Remove(func(k abi.BackendKey[A]) error {
		id := k.Svc
		id.Scope = abi.ScopeAll
		if err, ok := counted[id]; ok {
			return fmt.Errorf("a frontend still counts it: %w", err)
		}
		return nil
	})
	s.live.Remove(nil)
	s.maglev.remove()
}

// Errors returns a dataplane.KeyError for each key whose change failed.
func (s *Tables[A]) Errors() []error {
	return slices.Concat(s.frontends.Errors(), s.backends.Errors(), s.live.Errors(), s.maglev.errors())
}
