// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// mostProblems bounds the problems of objects that are sent: a NodeStatus shows fewer.
const mostProblems = 100

// Extra is what agents read of the cluster that is no part of its model, as the batches of a watch
// bring it. The zero value is that of a cluster without any.
type Extra struct {
	PoolOrder    []string
	Reservations map[string]*watch.Reservation
	IPAM         *watch.IPAMConfig
	Configs      map[string]*watch.FelixConfig
	Problems     []weirv1.Problem
}

// Update takes over what changed, and reports whether anything did.
func (e *Extra) Update(b *watch.Batch) bool {
	changed := b.Full
	if len(b.Pools) > 0 {
		e.PoolOrder, changed = b.PoolOrder, true
	}
	if b.IPAM != nil {
		e.IPAM, changed = b.IPAM, true
	}
	if b.ProblemsChanged {
		e.Problems, changed = b.Problems, true
	}
	changed = update(&e.Reservations, b.Reservations) || changed
	return update(&e.Configs, b.Configs) || changed
}

func update[V any](into *map[string]*V, changes map[string]*V) bool {
	if *into == nil {
		*into = map[string]*V{}
	}
	for name, v := range changes {
		if v == nil {
			delete(*into, name)
		} else {
			(*into)[name] = v
		}
	}
	return len(changes) > 0
}

// Settings returns what one node gets of it: of the configurations those of all and its own.
func (e *Extra) Settings(node string) (*Settings, error) {
	out := &Settings{PoolOrder: texts(e.PoolOrder)}
	for _, name := range slices.Sorted(maps.Keys(e.Reservations)) {
		r := &Reservation{Name: []byte(name)}
		for _, p := range e.Reservations[name].CIDRs {
			r.Cidrs = append(r.Cidrs, wire.PrefixBytes(p))
		}
		out.Reservations = append(out.Reservations, r)
	}
	if c := e.IPAM; c != nil {
		out.Ipam = &Ipam{StrictAffinity: c.StrictAffinity, MaxBlocks: int64(c.MaxBlocks), VmAddresses: c.VMAddresses}
	}
	for _, name := range []string{"default", config.OfNode(node)} {
		if c := e.Configs[name]; c != nil {
			spec, err := json.Marshal(c.Spec)
			if err != nil {
				return nil, fmt.Errorf("encode FelixConfiguration %s: %w", name, err)
			}
			out.FelixConfigurations = append(out.FelixConfigurations, &FelixConfiguration{Name: []byte(name), Spec: spec})
		}
	}
	for _, p := range e.Problems[:min(len(e.Problems), mostProblems)] {
		out.Problems = append(out.Problems, &Problem{Object: []byte(p.Object), Field: []byte(p.Field), Value: []byte(p.Value), Message: []byte(p.Message),
			Action: []byte(p.Action)})
	}
	return out, nil
}

// ExtraOf returns what settings say.
func ExtraOf(s *Settings) (*Extra, error) {
	out := &Extra{Reservations: map[string]*watch.Reservation{}, Configs: map[string]*watch.FelixConfig{}}
	for _, name := range s.PoolOrder {
		out.PoolOrder = append(out.PoolOrder, string(name))
	}
	for _, r := range s.Reservations {
		v := &watch.Reservation{Name: string(r.Name)}
		for _, b := range r.Cidrs {
			p, err := wire.ParsePrefix(b)
			if err != nil {
				return nil, fmt.Errorf("reservation %s: %w", r.Name, err)
			}
			v.CIDRs = append(v.CIDRs, p)
		}
		out.Reservations[v.Name] = v
	}
	out.IPAM = &watch.IPAMConfig{StrictAffinity: true}
	if c := s.Ipam; c != nil {
		if c.MaxBlocks < 0 {
			return nil, fmt.Errorf("%d blocks of a node at most", c.MaxBlocks)
		}
		out.IPAM = &watch.IPAMConfig{StrictAffinity: c.StrictAffinity, MaxBlocks: int(c.MaxBlocks), VMAddresses: c.VmAddresses}
	}
	for _, c := range s.FelixConfigurations {
		v := &watch.FelixConfig{Name: string(c.Name)}
		if err := json.Unmarshal(c.Spec, &v.Spec); err != nil {
			return nil, fmt.Errorf("FelixConfiguration %s: %w", c.Name, err)
		}
		out.Configs[v.Name] = v
	}
	for _, p := range s.Problems {
		out.Problems = append(out.Problems, weirv1.Problem{Object: string(p.Object), Field: string(p.Field), Value: string(p.Value), Message: string(p.Message),
			Action: string(p.Action)})
	}
	return out, nil
}

// Since adds to a batch what differs from before.
func (e *Extra) Since(before *Extra, b *watch.Batch) {
	b.PoolOrder, b.IPAM = e.PoolOrder, e.IPAM
	b.Problems, b.ProblemsChanged = e.Problems, true
	b.Reservations, b.Configs = differing(before.Reservations, e.Reservations), differing(before.Configs, e.Configs)
}

func differing[V any](before, now map[string]*V) map[string]*V {
	out := map[string]*V{}
	for name, v := range now {
		if !reflect.DeepEqual(v, before[name]) {
			out[name] = v
		}
	}
	for name := range before {
		if now[name] == nil {
			out[name] = nil
		}
	}
	return out
}

// MapOf makes what a message has of texts by name. The values are bytes: a text of the API need not
// be UTF-8, which the strings of messages have to be.
func MapOf(m map[string]string) map[string][]byte {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string][]byte, len(m))
	for k, v := range m {
		out[k] = []byte(v)
	}
	return out
}

// TextsOf is the inverse of MapOf; it is never nil.
func TextsOf(m map[string][]byte) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = string(v)
	}
	return out
}

func texts(list []string) (out [][]byte) {
	for _, s := range list {
		out = append(out, []byte(s))
	}
	return out
}

// EndpointsFrom makes a message of which pods have which addresses.
func EndpointsFrom(all map[netip.Addr]model.Name) *Endpoints {
	byPod := map[model.Name][][]byte{}
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		byPod[all[a]] = append(byPod[all[a]], a.AsSlice())
	}
	out := &Endpoints{}
	order := func(a, b model.Name) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	for _, n := range slices.SortedFunc(maps.Keys(byPod), order) {
		out.All = append(out.All, &Endpoint{Namespace: []byte(n.Namespace), Name: []byte(n.Name), Addrs: byPod[n]})
	}
	return out
}

// mostEndpointAddrs bounds the addresses of a node's endpoints: a kubelet runs at most some
// hundred pods.
const mostEndpointAddrs = 8192

// Addrs returns which pods have which addresses.
func (x *Endpoints) Addrs() (map[netip.Addr]model.Name, error) {
	out := map[netip.Addr]model.Name{}
	for _, e := range x.GetAll() {
		for _, b := range e.Addrs {
			a, ok := netip.AddrFromSlice(b)
			if !ok {
				return nil, fmt.Errorf("an address of %d bytes", len(b))
			}
			if len(out) == mostEndpointAddrs {
				return nil, fmt.Errorf("more than %d addresses", mostEndpointAddrs)
			}
			out[a] = model.Name{Namespace: string(e.Namespace), Name: string(e.Name)}
		}
	}
	return out, nil
}
