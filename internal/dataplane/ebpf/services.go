package ebpf

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// services carries frontends, backend lists and live backends. A list names its backends by slot; the
// number of slots stands in the frontends. So that a look-up never meets a slot without a backend, a new
// slot is written before the count that includes it, and a slot is deleted after the count that does not.
type services[A address] struct {
	frontends *table[svcKey[A], svcValue[A]]
	backends  *table[backendKey[A], backend[A]]
	live      *table[liveKey[A], uint8]

	lists   map[svcKey[A]][]backend[A] // by id with scope; the index is the slot
	planned map[nodestate.Frontend][]nodestate.Backend
	fresh   bool // lists were read from the map and not compared with a state yet
}

func newServices[A address](maps map[string]*ebpf.Map, writes *uint64) *services[A] {
	return &services[A]{
		frontends: newTable[svcKey[A], svcValue[A]]("weir_services", maps["weir_services"], showSvc[A], writes),
		backends:  newTable[backendKey[A], backend[A]]("weir_backends", maps["weir_backends"], showBackend[A], writes),
		live:      newTable[liveKey[A], uint8]("weir_live", maps["weir_live"], showLive[A], writes),
	}
}

// load reads the maps and recovers the slots, so that a restart moves no backend.
func (s *services[A]) load() error {
	if err := errors.Join(s.frontends.load(), s.backends.load(), s.live.load()); err != nil {
		return err
	}
	s.lists = map[svcKey[A]][]backend[A]{}
	s.planned = map[nodestate.Frontend][]nodestate.Backend{}
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
			list = append(list, backend[A]{})
		}
		list[k.Slot] = b
		s.lists[k.Svc] = list
	}
	return nil
}

func (s *services[A]) desire(st *nodestate.State) {
	s.desireBackends(st)
	s.frontends.desire(s.renderFrontends(st))
	s.live.desire(renderLive[A](st))
}

// desireBackends plans the lists whose backends changed.
func (s *services[A]) desireBackends(st *nodestate.State) {
	for id, backends := range st.Backends.All() {
		// States are never changed in place: the same slice is the same list.
		if before, ok := s.planned[id]; ok && sameSlice(before, backends) {
			continue
		}
		s.plan(id, backends)
		s.planned[id] = backends
	}
	for id := range s.planned {
		if _, ok := st.Backends.Get(id); !ok {
			s.plan(id, nil)
			delete(s.planned, id)
		}
	}
	if s.fresh {
		s.forgetStrangers(st)
		s.fresh = false
	}
}

// forgetStrangers empties the lists that were found in the map and that no service port has.
func (s *services[A]) forgetStrangers(st *nodestate.State) {
	wanted := make(map[svcKey[A]]bool, st.Backends.Len())
	for id := range st.Backends.Keys() {
		wanted[toSvc[A](id)] = true
	}
	for k := range s.lists {
		id := k
		id.Scope = scopeAll
		if !wanted[id] {
			s.setList(k, nil)
		}
	}
}

func sameSlice(a, b []nodestate.Backend) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func (s *services[A]) plan(id nodestate.Frontend, backends []nodestate.Backend) {
	var all, local []backend[A]
	for _, b := range backends {
		if !carries[A](b.Addr) {
			continue
		}
		w := backend[A]{Addr: toAddr[A](b.Addr), Port: be16(b.Port)}
		if b.InList(false) {
			all = append(all, w)
		}
		if b.InList(true) {
			local = append(local, w)
		}
	}
	key := toSvc[A](id)
	s.setList(key, place(s.lists[key], all))
	key.Scope = scopeLocal
	s.setList(key, place(s.lists[key], local))
}

func (s *services[A]) setList(key svcKey[A], list []backend[A]) {
	for i, b := range list {
		s.backends.tracker.Set(backendKey[A]{Svc: key, Slot: uint32(i)}, b)
	}
	for i := len(list); i < len(s.lists[key]); i++ {
		s.backends.tracker.Unset(backendKey[A]{Svc: key, Slot: uint32(i)})
	}
	if len(list) == 0 {
		delete(s.lists, key)
		return
	}
	s.lists[key] = list
}

func (s *services[A]) renderFrontends(st *nodestate.State) iter.Seq2[svcKey[A], svcValue[A]] {
	return func(yield func(svcKey[A], svcValue[A]) bool) {
		for f, svc := range st.Frontends.All() {
			if !carries[A](f.Addr) {
				continue
			}
			id := toSvc[A](svc.ID)
			local := id
			local.Scope = scopeLocal
			v := svcValue[A]{
				Id: id, Count: uint32(len(s.lists[id])), Local: uint32(len(s.lists[local])),
				Flags: serviceFlags(svc), Affinity: svc.Affinity, Rule: uint32(svc.Rule),
			}
			if !yield(toSvc[A](f), v) {
				return
			}
		}
	}
}

func serviceFlags(svc nodestate.Service) uint32 {
	return flags[uint32](bit{svc.LocalOnly, svcLocalFrontend}, bit{svc.External, svcExternal}, bit{svc.LocalPolicy, svcLocal},
		bit{svc.Restricted, svcRestricted},
		bit{svc.Mode == model.ExternalModeTunnel, svcModeTunnel}, bit{svc.Mode == model.ExternalModeDSR, svcModeDSR})
}

// renderLive returns the backends of service ports that look them up again for a flow or a client, with
// the lists that they are in: UDP and SCTP, and those with affinity.
func renderLive[A address](st *nodestate.State) iter.Seq2[liveKey[A], uint8] {
	affine := map[nodestate.Frontend]bool{}
	for _, svc := range st.Frontends.All() {
		if svc.Affinity > 0 {
			affine[svc.ID] = true
		}
	}
	return func(yield func(liveKey[A], uint8) bool) {
		for id, backends := range st.Backends.All() {
			if id.Proto == model.ProtocolTCP && !affine[id] {
				continue
			}
			for _, b := range backends {
				if !carries[A](b.Addr) {
					continue
				}
				key := liveKey[A]{Svc: toSvc[A](id), Backend: backend[A]{Addr: toAddr[A](b.Addr), Port: be16(b.Port)}}
				in := flags[uint8](bit{b.InList(false), liveAll}, bit{b.InList(true), liveLocal})
				if !yield(key, in) {
					return
				}
			}
		}
	}
}

func (s *services[A]) pending() bool {
	return s.frontends.pending() || s.backends.pending() || s.live.pending()
}

// write makes the pending writes. A frontend whose list could not be written keeps its old count.
func (s *services[A]) write() {
	s.live.write(nil)
	s.backends.write(nil)
	incomplete := map[svcKey[A]]error{}
	for k, err := range s.backends.tracker.Failures() {
		id := k.Svc
		id.Scope = scopeAll
		incomplete[id] = err
	}
	s.frontends.write(func(_ svcKey[A], v svcValue[A]) error {
		if err, ok := incomplete[v.Id]; ok {
			return fmt.Errorf("waits for its backends: %w", err)
		}
		return nil
	})
}

// remove makes the pending deletes. A slot stays while a frontend still counts it.
func (s *services[A]) remove() {
	s.frontends.remove(nil)
	counted := map[svcKey[A]]error{}
	for f, err := range s.frontends.tracker.Failures() {
		if v, ok := s.frontends.tracker.Actual(f); ok {
			counted[v.Id] = err
		}
	}
	s.backends.remove(func(k backendKey[A]) error {
		id := k.Svc
		id.Scope = scopeAll
		if err, ok := counted[id]; ok {
			return fmt.Errorf("a frontend still counts it: %w", err)
		}
		return nil
	})
	s.live.remove(nil)
}

func (s *services[A]) errors() []error {
	return slices.Concat(s.frontends.errors(), s.backends.errors(), s.live.errors())
}
