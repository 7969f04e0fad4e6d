// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// desireChanges desires what differs from the state that was followed before.
func (s *Tables[A]) desireChanges(st *nodestate.State) {
	touched := map[nodestate.Frontend]struct{}{} // ids
	for f, c := range nodestate.Changes(s.seenFrontends, st.Frontends, func(a, b nodestate.Service) bool { return a == b }) {
		if c.Was {
			s.face(f, c.Before, false)
			touched[c.Before.ID] = struct{}{}
		}
		if c.Is {
			s.face(f, c.After, true)
			touched[c.After.ID] = struct{}{}
		} else if abi.Carries[A](f.Addr) {
			s.frontends.Tracker.Unset(abi.ToSvc[A](f))
		}
	}
	for id := range nodestate.Changes(s.seenBackends, st.Backends, slices.Equal[[]nodestate.Backend]) {
		touched[id] = struct{}{}
	}
	for id := range touched {
		if abi.Carries[A](id.Addr) {
			s.desirePort(st, id)
		}
	}
	s.seenFrontends, s.seenBackends = st.Frontends, st.Backends
}

// desirePort brings a service port's lists, live backends and frontends up to date.
func (s *Tables[A]) desirePort(st *nodestate.State, id nodestate.Frontend) {
	before, now := s.seenBackends.At(id), st.Backends.At(id)
	key := abi.ToSvc[A](id)
	for _, scope := range scopes {
		key.Scope = scope
		s.changeList(key, before, now)
	}
	looked := s.looksUp(id)
	s.noteAffinity(st, id)
	looks := s.looksUp(id)
	for b, c := range differences(before, now, looked, looks) {
		k := abi.LiveKey[A]{Svc: abi.ToSvc[A](id), Backend: toBackend[A](b)}
		switch {
		case !abi.Carries[A](b.Addr):
		case c.Is:
			s.live.Tracker.Set(k, liveIn(c.After))
		default:
			s.live.Tracker.Unset(k)
		}
	}
	s.maglev.plan(id, s.anyFrontend(st, id, func(svc nodestate.Service) bool { return svc.Maglev }), now)
	set := func(f nodestate.Frontend) {
		if svc, ok := st.Frontends.Get(f); ok && svc.ID == id && abi.Carries[A](f.Addr) {
			s.frontends.Tracker.Set(abi.ToSvc[A](f), s.frontend(svc))
		}
	}
	set(id)
	for f := range s.faces[id] {
		set(f)
	}
}

// changeList gives the backends that come to a list slots, those of backends that go first.
func (s *Tables[A]) changeList(key abi.SvcKey[A], before, now []nodestate.Backend) {
	in := func(b nodestate.Backend) bool { return b.InList(key.Scope == abi.ScopeLocal) && abi.Carries[A](b.Addr) }
	var gone, come []abi.Backend[A]
	for b, c := range differences(before, now, true, true) {
		was, is := c.Was && in(c.Before), c.Is && in(c.After)
		switch {
		case was && !is:
			gone = append(gone, toBackend[A](b))
		case is && !was:
			come = append(come, toBackend[A](b))
		}
	}
	if len(gone)+len(come) == 0 {
		return
	}
	list := s.lists[key]
	if len(gone) > 16 { // to find each by walking the list would take longer
		s.setList(key, place(list, inList[A](now, key.Scope)))
		return
	}
	holes := make([]int, 0, len(gone))
	for _, b := range gone {
		holes = append(holes, slices.Index(list, b))
	}
	slices.Sort(holes)
	set := func(slot int, b abi.Backend[A]) {
		list[slot] = b
		s.backends.Tracker.Set(abi.BackendKey[A]{Svc: key, Slot: uint32(slot)}, b)
	}
	for _, b := range come {
		if len(holes) == 0 {
			list = append(list, b)
			set(len(list)-1, b)
			continue
		}
		set(holes[0], b)
		holes = holes[1:]
	}
	for len(holes) > 0 { // fill with the last
		last := len(list) - 1
		if holes[len(holes)-1] == last {
			holes = holes[:len(holes)-1]
		} else {
			set(holes[0], list[last])
			holes = holes[1:]
		}
		list = list[:last]
		s.backends.Tracker.Unset(abi.BackendKey[A]{Svc: key, Slot: uint32(last)})
	}
	s.keepList(key, list)
}

// face notes a frontend of an id, or forgets it.
func (s *Tables[A]) face(f nodestate.Frontend, svc nodestate.Service, is bool) {
	if f == svc.ID || !abi.Carries[A](f.Addr) {
		return
	}
	of := s.faces[svc.ID]
	switch {
	case is && of == nil:
		s.faces[svc.ID] = map[nodestate.Frontend]struct{}{f: {}}
	case is:
		of[f] = struct{}{}
	case len(of) == 1:
		delete(s.faces, svc.ID)
	default:
		delete(of, f)
	}
}

// anyFrontend reports whether any frontend of an id is so.
func (s *Tables[A]) anyFrontend(st *nodestate.State, id nodestate.Frontend, so func(nodestate.Service) bool) bool {
	is := func(f nodestate.Frontend) bool {
		svc := st.Frontends.At(f)
		return svc.ID == id && so(svc)
	}
	if is(id) {
		return true
	}
	for f := range s.faces[id] {
		if is(f) {
			return true
		}
	}
	return false
}

// noteAffinity follows whether any frontend of an id asks for affinity.
func (s *Tables[A]) noteAffinity(st *nodestate.State, id nodestate.Frontend) {
	if s.anyFrontend(st, id, func(svc nodestate.Service) bool { return svc.Affinity > 0 }) {
		s.affine[id] = struct{}{}
	} else {
		delete(s.affine, id)
	}
}

// differences walks what differs between two lists that are sorted by address and port, by the
// addresses and ports alone: the backend that it names, and what it is in each. With left or right
// false that list counts as empty.
func differences(before, now []nodestate.Backend, left, right bool) func(yield func(nodestate.Backend, nodestate.Change[nodestate.Backend]) bool) {
	return func(yield func(nodestate.Backend, nodestate.Change[nodestate.Backend]) bool) {
		if !left {
			before = nil
		}
		if !right {
			now = nil
		}
		for len(before) > 0 || len(now) > 0 {
			var order int
			switch {
			case len(before) == 0:
				order = 1
			case len(now) == 0:
				order = -1
			default:
				order = cmp.Or(before[0].Addr.Compare(now[0].Addr), cmp.Compare(before[0].Port, now[0].Port))
			}
			goOn := true
			switch {
			case order < 0:
				goOn = yield(before[0], nodestate.Change[nodestate.Backend]{Before: before[0], Was: true})
				before = before[1:]
			case order > 0:
				goOn = yield(now[0], nodestate.Change[nodestate.Backend]{After: now[0], Is: true})
				now = now[1:]
			default:
				if before[0] != now[0] {
					goOn = yield(now[0], nodestate.Change[nodestate.Backend]{Before: before[0], After: now[0], Was: true, Is: true})
				}
				before, now = before[1:], now[1:]
			}
			if !goOn {
				return
			}
		}
	}
}
