// SPDX-License-Identifier: Apache-2.0

package model

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// PodRef is a pod of a table, for a look until the table changes.
type PodRef struct {
	t   *PodTable
	row uint32
}

func (r PodRef) at() *podRow { return r.t.rows.at(r.row) }

// Group returns the group that the pod is in.
func (r PodRef) Group() *PodGroup { return r.t.groups.all[r.at().group] }

// Like returns a pod with what the group has in common: see PodGroup.
func (r PodRef) Like() *Pod { return r.Group().Like }

// Is reports whether the pod has this name.
func (r PodRef) Is(n Name) bool {
	at := r.at()
	return r.t.groups.all[at.group].Like.Name.Namespace == n.Namespace && string(r.t.text.bytes(at.text)) == n.Name
}

// Name returns the pod's name, made for the caller.
func (r PodRef) Name() Name {
	return Name{r.Like().Name.Namespace, string(r.t.text.bytes(r.at().text))}
}

// Node is where the API places the pod, empty while it does not.
func (r PodRef) Node() string { return r.t.nodes.text(r.at().node) }

// Addrs yields the pod's addresses, in their order.
func (r PodRef) Addrs() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for next := r.at().claim; next > 0; {
			c := r.t.claims.at(next - 1)
			if !yield(c.address()) {
				return
			}
			next = c.ofRow
		}
	}
}

// Has reports whether the pod claims an address.
func (r PodRef) Has(a netip.Addr) bool { return r.IndexOf(a) >= 0 }

// IndexOf returns at which place the pod names an address first; -1 = at none.
func (r PodRef) IndexOf(a netip.Addr) int {
	i := 0
	for have := range r.Addrs() {
		if have == a {
			return i
		}
		i++
	}
	return -1
}

// Pod returns the pod, made for the caller.
func (r PodRef) Pod() *Pod {
	at := r.at()
	p := *r.t.groups.all[at.group].Like
	p.Name.Name, p.Node, p.Created = string(r.t.text.bytes(at.text)), r.t.nodes.text(at.node), int64(at.created)
	if at.claim > 0 {
		p.Addrs = slices.Collect(r.Addrs())
	}
	if at.hasUID {
		p.UID = UUIDText(at.uid)
	}
	if at.hasExtra {
		extra := r.t.extra[r.row]
		p.Asked, p.QoS, p.Egress, p.Gateway, p.Sources, p.Floating = extra.asked, extra.qos, extra.egress, extra.gateway, extra.sources, extra.floating
		if extra.uid != "" {
			p.UID = extra.uid
		}
		if extra.created != 0 {
			p.Created = extra.created
		}
	}
	return &p
}

// OfPod looks a pod up in a map by names.
func OfPod[V any](m map[Name]V, r PodRef) (V, bool) {
	at := r.at()
	v, ok := m[Name{r.t.groups.all[at.group].Like.Name.Namespace, string(r.t.text.bytes(at.text))}]
	return v, ok
}

// Equal reports whether two pods have the same values.
func (p *Pod) Equal(o *Pod) bool {
	return p.Name == o.Name && p.Node == o.Node && p.Created == o.Created && p.UID == o.UID && slices.Equal(p.Addrs, o.Addrs) && slices.Equal(p.Asked, o.Asked) && p.QoS.Equal(o.QoS) &&
		p.Egress.Equal(o.Egress) && p.Gateway.Equal(o.Gateway) && slices.Equal(p.Sources, o.Sources) && slices.Equal(p.Floating, o.Floating) && p.alike(o)
}

// alike reports whether two pods are of one group.
func (p *Pod) alike(o *Pod) bool {
	return p.Name.Namespace == o.Name.Namespace && p.ServiceAccount == o.ServiceAccount && p.HostNetwork == o.HostNetwork && p.Finished == o.Finished &&
		maps.Equal(p.Labels, o.Labels) && slices.Equal(p.Ports, o.Ports)
}
