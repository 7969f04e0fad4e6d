// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"net/netip"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// Batch is what changed since the batch before it, squashed: of several changes of one object only
// the last one is here. In every map a nil value says that the object is gone. Values are never
// changed after they were handed on.
type Batch struct {
	// Full is set in the first batch, which holds the whole cluster. Where another one is, it comes
	// from somebody else, and takes the place of all that was there.
	Full bool

	// Changes are what changed of the model.
	model.Changes

	// PoolOrder lists the names of all pools, the oldest first, when Pools is not empty.
	PoolOrder []string
	// Reservations are the CIDRs of IPReservations by object.
	Reservations map[string]*Reservation
	// IPAM is the IPAMConfiguration "default" when it changed; its zero value when it is gone.
	IPAM *IPAMConfig
	// Configs are the FelixConfigurations by name, for internal/config.
	Configs map[string]*FelixConfig

	// Problems are those of all objects, when the set of problems changed (ProblemsChanged).
	Problems        []weirv1.Problem
	ProblemsChanged bool
}

// ServiceCIDR is a networking.k8s.io/v1 ServiceCIDR (KEP-1880).
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

// Reservation is an IPReservation.
type Reservation struct {
	Name  string
	CIDRs []netip.Prefix
}

// IPAMConfig is an IPAMConfiguration.
type IPAMConfig struct {
	StrictAffinity bool
	MaxBlocks      int // per node, 0 = no limit
	// VMAddresses: virtual machines of KubeVirt keep their addresses.
	VMAddresses bool
}

// FelixConfig is a FelixConfiguration as it was written: spec as decoded JSON.
type FelixConfig struct {
	Name string
	Spec map[string]any
}

// Empty reports whether nothing changed.
func (b *Batch) Empty() bool {
	return !b.Full && b.Changes.Empty() && len(b.Reservations) == 0 && b.IPAM == nil && len(b.Configs) == 0 && !b.ProblemsChanged
}

// Merge adds a later batch: of one object only the last change is kept.
func (b *Batch) Merge(later *Batch) {
	if later.Full {
		b.Full, b.Changes = true, later.Changes
	} else {
		b.Changes.Merge(&later.Changes)
	}
	if later.PoolOrder != nil {
		b.PoolOrder = later.PoolOrder
	}
	if later.IPAM != nil {
		b.IPAM = later.IPAM
	}
	model.Overlay(&b.Reservations, later.Reservations)
	model.Overlay(&b.Configs, later.Configs)
	if later.ProblemsChanged {
		b.Problems, b.ProblemsChanged = later.Problems, true
	}
}

// NoteOwn keeps which pods of a node there are.
func (b *Batch) NoteOwn(own map[model.Name]*model.Pod, node string) {
	if b.Full {
		clear(own)
	}
	for name, p := range b.Pods {
		if p != nil && p.Node == node {
			own[name] = p
		} else {
			delete(own, name)
		}
	}
}

// Apply changes the cluster, and says what of it is dirty: everything but the settings and what the
// machine says, where the batch is full. What a cluster has and a full batch does not is gone.
// Configs, IPAM and Problems are not part of a cluster: the caller looks at them itself.
func (b *Batch) Apply(c *model.Cluster) model.Dirty {
	if b.Full {
		b.Replace(c)
	}
	d := b.Changes.Apply(c)
	if b.Full {
		d.Add(model.AllKinds &^ (model.KindLocal | model.KindSettings))
	}
	return d
}

// put records a change in one of a batch's maps.
func put[K comparable, V any](m *map[K]*V, k K, v *V) {
	if *m == nil {
		*m = map[K]*V{}
	}
	(*m)[k] = v
}

// problems holds what is wrong with each object.
type problems struct {
	byObject map[string][]weirv1.Problem
	changed  bool
}

func (p *problems) set(object string, list []weirv1.Problem) {
	if slices.Equal(p.byObject[object], list) {
		return
	}
	if len(list) == 0 {
		delete(p.byObject, object)
	} else {
		p.byObject[object] = list
	}
	p.changed = true
}

func (p *problems) all() []weirv1.Problem {
	var out []weirv1.Problem
	for _, o := range slices.Sorted(maps.Keys(p.byObject)) {
		out = append(out, p.byObject[o]...)
	}
	return out
}
