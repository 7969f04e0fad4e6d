// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ImportConnection writes a tracked connection into the flow maps, wholly or not at all, and
// reports whether it is there. With begun programs begin flows: one that has the answers already is
// theirs.
func (t *familyTables[A]) ImportConnection(from flowhandover.Importer, e conntrack.Entry, now uint32, begun bool) (bool, error) {
	f, ok := flowhandover.ImportFlow[A](from, e, now, t.current.Epoch)
	if !ok {
		return false, nil
	}
	m := t.flowsNew
	if f.Established {
		m = t.flows
	}
	put, err := flowtable.AddFlow(m, f.Back, f.Here)
	if err != nil || begun && !put {
		return false, err
	}
	if _, err := flowtable.AddFlow(m, f.Key, f.There); err != nil {
		if put {
			err = errors.Join(err, m.Delete(&f.Back))
		}
		return false, err
	}
	return true, nil
}

// FlowsOf hands on the established flows that have an end at an address, as connection tracking
// would have them, but for those that another node, or the node's stack, takes part in.
func (t *familyTables[A]) FlowsOf(a netip.Addr, now uint32, f func(conntrack.Entry)) error {
	var s abi.Settings[A]
	if err := flowtable.ReadSettingsMap(t.settings, &s); err != nil {
		return err
	}
	of := abi.ToAddr[A](a)
	return flowtable.EachFlow(t.flows, func(k abi.FlowKey[A], v abi.FlowValue[A]) {
		if k.Saddr != of && v.Daddr != of || v.Flags&(abi.FlowReply|abi.FlowViaNode|abi.FlowHandOn|abi.FlowDSR) != 0 || v.State&(abi.StateStack|abi.StateGateway) != 0 {
			return
		}
		if e, ok := flowhandover.ConntrackEntry(k, v, flowhandover.TimeLeft(&s, k, v, now)); ok {
			f(e)
		}
	})
}

// PutFlow writes a flow that another node has seen begin, in the place of what was made of packets
// from the middle of it. With over it takes the place of whatever this node has of it; else what
// this node knows in the same direction stays, as it may translate it for a pod of its own.
func (t *familyTables[A]) PutFlow(from flowhandover.Importer, e conntrack.Entry, now uint32, over bool) error {
	f, ok := flowhandover.ImportFlow[A](from, e, now, t.current.Epoch)
	if !ok {
		return nil
	}
	for _, k := range []abi.FlowKey[A]{f.Back, f.Key} {
		var there abi.FlowValue[A]
		if flowtable.LookUpFlow(t.flowsNew, k, &there) != nil && flowtable.LookUpFlow(t.flows, k, &there) != nil {
			continue
		}
		if !over && !e.Translated() && (there.Flags&abi.FlowReply != 0) == (k == f.Back) {
			return nil
		}
		if err := t.forget(k, there.After(k.Proto).Reversed()); err != nil {
			return err
		}
	}
	_, err1 := flowtable.AddFlow(t.flows, f.Back, f.Here)
	_, err2 := flowtable.AddFlow(t.flows, f.Key, f.There)
	return errors.Join(err1, err2)
}

// Knows reports whether the flow maps have a key.
func (t *familyTables[A]) Knows(of conntrack.Tuple) bool {
	k, ok := flowhandover.KeyOf[A](of)
	var v abi.FlowValue[A]
	return ok && (flowtable.LookUpFlow(t.flowsNew, k, &v) == nil || flowtable.LookUpFlow(t.flows, k, &v) == nil)
}

// ForgetImported forgets a connection that was imported.
func (t *familyTables[A]) ForgetImported(orig, answers conntrack.Tuple) error {
	var of []abi.FlowKey[A]
	for _, tuple := range []conntrack.Tuple{orig, answers} {
		if k, ok := flowhandover.KeyOf[A](tuple); ok {
			of = append(of, k)
		}
	}
	return t.forget(of...)
}

// forget deletes entries, of whichever map.
func (t *familyTables[A]) forget(of ...abi.FlowKey[A]) error {
	var errs []error
	for _, k := range of {
		for _, m := range []*ebpf.Map{t.flows, t.flowsNew} {
			if err := m.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// ImportAffinity remembers which backend a client had in another data plane, unless it is known to
// have one.
func (t *familyTables[A]) ImportAffinity(from flowhandover.Importer, a conntrack.Affinity, now uint32) error {
	svc, ok := from.State.Frontends.Get(nodestate.Frontend{Addr: a.Service.Addr(), Port: a.Service.Port(), Proto: model.Protocol(a.Proto)})
	if !ok || svc.Affinity == 0 || a.Age > time.Duration(svc.Affinity)*time.Second {
		return nil
	}
	k := abi.AffinityKey[A]{Svc: abi.ToSvc[A](svc.ID), Client: abi.Client[A]{Addr: abi.ToAddr[A](a.Client)}}
	v := abi.AffinityValue[A]{Backend: abi.Backend[A]{Addr: abi.ToAddr[A](a.Backend.Addr()), Port: abi.Be16(a.Backend.Port())},
		Seen: now - uint32(a.Age.Milliseconds()*int64(t.current.PerSecond)/1_000_000)}
	if err := t.affinity.Update(&k, unsafe.Pointer(&v), ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("remembering a client with affinity: %w", err)
	}
	return nil
}
