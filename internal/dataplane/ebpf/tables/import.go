// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"fmt"
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

// Knows reports whether the flow maps have a key.
func (t *familyTables[A]) Knows(of conntrack.Tuple) bool {
	k, ok := flowhandover.KeyOf[A](of)
	var v abi.FlowValue[A]
	return ok && (flowtable.LookUpFlow(t.flowsNew, k, &v) == nil || flowtable.LookUpFlow(t.flows, k, &v) == nil)
}

// ForgetImported forgets a connection that was imported.
func (t *familyTables[A]) ForgetImported(orig, answers conntrack.Tuple) error {
	var errs []error
	for _, of := range []conntrack.Tuple{orig, answers} {
		k, ok := flowhandover.KeyOf[A](of)
		if !ok {
			continue
		}
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
