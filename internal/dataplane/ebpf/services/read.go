// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Read reads frontends and backends of what Load has read into a state. A backend that is in no
// list is read where weir_live has it. A list with a hole, and a Maglev table that is not that of
// its list, is an error.
func (s *Tables[A]) Read(st *nodestate.State) error {
	spare := map[nodestate.Frontend][]nodestate.Backend{}
	for k, in := range s.live.Tracker.All() {
		if in == 0 {
			id := FrontendOf(k.Svc)
			spare[id] = append(spare[id], nodestate.Backend{Addr: abi.FromAddr(k.Backend.Addr), Port: abi.Be16(k.Backend.Port), Spare: true})
		}
	}
	for k, v := range s.frontends.Tracker.All() {
		id := FrontendOf(v.Id)
		st.Frontends.Set(FrontendOf(k), nodestate.Service{
			ID: id, Affinity: v.Affinity, LocalOnly: v.Flags&abi.SvcLocalFrontend != 0, External: v.Flags&abi.SvcExternal != 0,
			LocalPolicy: v.Flags&abi.SvcLocal != 0, Restricted: v.Flags&abi.SvcRestricted != 0,
			HostBackend: v.Flags&abi.SvcHostBackend != 0, Mode: readMode(v.Flags),
			Maglev: v.Flags&abi.SvcMaglev != 0, Rule: nodestate.RuleID(v.Rule),
		})
		if _, done := st.Backends.Get(id); done {
			continue
		}
		all, err := s.readList(v.Id, abi.ScopeAll, v.Count)
		if err != nil {
			return err
		}
		local, err := s.readList(v.Id, abi.ScopeLocal, v.Local)
		if err != nil {
			return err
		}
		for _, b := range local {
			i := slices.Index(all, b)
			if i < 0 {
				i, all = len(all), append(all, b)
				all[i].Spare = true
			}
			all[i].Local = true
		}
		all = append(all, spare[id]...)
		slices.SortFunc(all, func(a, b nodestate.Backend) int {
			return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port))
		})
		st.Backends.Set(id, all)
	}
	for k, v := range s.frontends.Tracker.All() {
		if v.Flags&abi.SvcMaglev == 0 {
			continue
		}
		list := st.Backends.At(FrontendOf(v.Id))
		if err := s.maglev.check(v.Id, list); err != nil {
			return fmt.Errorf("frontend %s: %w", abi.ShowSvc(k), err)
		}
		if have := s.maglev.have[v.Id]; have != nil && int(v.Table) != len(have.slots) {
			return fmt.Errorf("frontend %s counts %d slots of a Maglev table of %d", abi.ShowSvc(k), v.Table, len(have.slots))
		}
	}
	return nil
}

func (s *Tables[A]) readList(id abi.SvcKey[A], scope uint8, count uint32) ([]nodestate.Backend, error) {
	id.Scope = scope
	var list []nodestate.Backend
	for slot := range count {
		b, ok := s.backends.Tracker.Actual(abi.BackendKey[A]{Svc: id, Slot: slot})
		if !ok {
			return nil, fmt.Errorf("service %s scope %d counts %d backends, and slot %d is empty", abi.ShowSvc(id), scope, count, slot)
		}
		list = append(list, nodestate.Backend{Addr: abi.FromAddr(b.Addr), Port: abi.Be16(b.Port)})
	}
	return list, nil
}

// FrontendOf returns the frontend of a key, whatever its scope.
func FrontendOf[A abi.Address](k abi.SvcKey[A]) nodestate.Frontend {
	return nodestate.Frontend{Addr: abi.FromAddr(k.Addr), Port: abi.Be16(k.Port), Proto: model.Protocol(k.Proto)}
}

func readMode(flags uint32) model.ExternalMode {
	switch {
	case flags&abi.SvcModeTunnel != 0:
		return model.ExternalModeTunnel
	case flags&abi.SvcModeDSR != 0:
		return model.ExternalModeDSR
	}
	return ""
}
