// SPDX-License-Identifier: Apache-2.0

package model

import "maps"

// Kind names the kinds of objects of a Cluster, as bits.
type Kind uint32

// The kinds, one a field of Cluster.
const (
	KindNamespaces Kind = 1 << iota
	KindPods
	KindNodes
	KindServices
	KindSlices
	KindPolicies
	KindPools
	KindBlocks
	KindSettings
	KindLocal
	KindServiceCIDRs
	KindTiers
	KindNetworkSets
	KindServiceAccounts
	KindHostEndpoints
	KindReservations
	KindBGP
	KindEgressPolicies

	AllKinds Kind = 1<<iota - 1
)

// Dirty says what of a Cluster may have changed since it was looked at before. A bit of Kinds
// represents every object of that kind; Pods, Services and Slices name single ones, for the kinds
// that are many and change often. The zero value says that nothing changed.
type Dirty struct {
	Kinds    Kind
	Pods     map[Name]*Pod // as they were when they were marked first; nil = they were not there
	Services map[Name]struct{}
	Slices   map[Name]struct{}
}

// AllDirty says that everything may have changed.
func AllDirty() Dirty { return Dirty{Kinds: AllKinds} }

// Has reports whether any object of the kinds may have changed as a whole kind.
func (d *Dirty) Has(k Kind) bool { return d.Kinds&k != 0 }

// Empty reports whether nothing changed.
func (d *Dirty) Empty() bool { return d.Kinds == 0 && len(d.Pods)+len(d.Services)+len(d.Slices) == 0 }

// Add marks whole kinds.
func (d *Dirty) Add(k Kind) { d.Kinds |= k }

// AddPod marks one Pod, before which it is nil where it was not there.
func (d *Dirty) AddPod(n Name, before *Pod) {
	if _, marked := d.Pods[n]; !marked {
		if d.Pods == nil {
			d.Pods = map[Name]*Pod{}
		}
		d.Pods[n] = before
	}
}

// AddService marks one Service.
func (d *Dirty) AddService(n Name) { add(&d.Services, n) }

// AddSlice marks one EndpointSlice.
func (d *Dirty) AddSlice(n Name) { add(&d.Slices, n) }

// Merge marks everything that o marks.
func (d *Dirty) Merge(o Dirty) {
	d.Kinds |= o.Kinds
	for n, before := range o.Pods {
		d.AddPod(n, before)
	}
	merge(&d.Services, o.Services)
	merge(&d.Slices, o.Slices)
}

func merge(into *map[Name]struct{}, names map[Name]struct{}) {
	if len(names) == 0 {
		return
	}
	if *into == nil {
		*into = map[Name]struct{}{}
	}
	maps.Copy(*into, names)
}

func add(set *map[Name]struct{}, n Name) {
	if *set == nil {
		*set = map[Name]struct{}{}
	}
	(*set)[n] = struct{}{}
}
