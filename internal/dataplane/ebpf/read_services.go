// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// read reads frontends and backends. A backend that is in no list is read where weir_live
// has it.
func (s *services[A]) read(st *nodestate.State) error {
	spare := map[nodestate.Frontend][]nodestate.Backend{}
	for k, in := range s.live.tracker.All() {
		if in == 0 {
			id := readFrontend(k.Svc)
			spare[id] = append(spare[id], nodestate.Backend{Addr: abi.FromAddr(k.Backend.Addr), Port: abi.Be16(k.Backend.Port), Spare: true})
		}
	}
	for k, v := range s.frontends.tracker.All() {
		id := readFrontend(v.Id)
		st.Frontends.Set(readFrontend(k), nodestate.Service{
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
	for k, v := range s.frontends.tracker.All() {
		if v.Flags&abi.SvcMaglev == 0 {
			continue
		}
		list := st.Backends.At(readFrontend(v.Id))
		if err := s.maglev.check(v.Id, list); err != nil {
			return fmt.Errorf("frontend %s: %w", abi.ShowSvc(k), err)
		}
		if have := s.maglev.have[v.Id]; have != nil && int(v.Table) != len(have.slots) {
			return fmt.Errorf("frontend %s counts %d slots of a Maglev table of %d", abi.ShowSvc(k), v.Table, len(have.slots))
		}
	}
	return nil
}

func (s *services[A]) readList(id abi.SvcKey[A], scope uint8, count uint32) ([]nodestate.Backend, error) {
	id.Scope = scope
	var list []nodestate.Backend
	for slot := range count {
		b, ok := s.backends.tracker.Actual(abi.BackendKey[A]{Svc: id, Slot: slot})
		if !ok {
			return nil, fmt.Errorf("service %s scope %d counts %d backends, and slot %d is empty", abi.ShowSvc(id), scope, count, slot)
		}
		list = append(list, nodestate.Backend{Addr: abi.FromAddr(b.Addr), Port: abi.Be16(b.Port)})
	}
	return list, nil
}

func readFrontend[A abi.Address](k abi.SvcKey[A]) nodestate.Frontend {
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
