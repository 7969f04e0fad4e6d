// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/model"
)

// mostShared is how much of a name may be the one before: lengths up to it are one byte, and names
// cannot become much longer than what is sent of them.
const mostShared = 127

// alike are pods of one namespace and account with equal labels and ports.
type alike struct {
	like *model.Pod
	pods []*model.Pod // sorted by name
}

func (a *alike) has(p *model.Pod) bool {
	return a.like.Name.Namespace == p.Name.Namespace && a.like.ServiceAccount == p.ServiceAccount &&
		maps.Equal(a.like.Labels, p.Labels) && slices.Equal(a.like.Ports, p.Ports)
}

// seed makes hashes of labels unknown to those who write the objects.
var seed = maphash.MakeSeed()

// groups puts pods that are alike into groups, in the order of their first pods' names.
func groups(pods map[model.Name]*model.Pod) []*alike {
	type looks struct {
		namespace, account string
		hash               uint64
	}
	byLooks := map[looks][]*alike{}
	var out []*alike
	for _, p := range pods {
		if p == nil {
			continue
		}
		at := looks{namespace: p.Name.Namespace, account: p.ServiceAccount}
		for k, v := range p.Labels {
			at.hash += maphash.Comparable(seed, [2]string{k, v}) // in no order
		}
		for i := range p.Ports {
			at.hash = at.hash*31 + maphash.Comparable(seed, p.Ports[i])
		}
		i := slices.IndexFunc(byLooks[at], func(a *alike) bool { return a.has(p) })
		if i < 0 {
			i = len(byLooks[at])
			a := &alike{like: p}
			byLooks[at], out = append(byLooks[at], a), append(out, a)
		}
		a := byLooks[at][i]
		a.pods = append(a.pods, p)
	}
	for _, a := range out {
		slices.SortFunc(a.pods, func(p, q *model.Pod) int { return strings.Compare(p.Name.Name, q.Name.Name) })
	}
	slices.SortFunc(out, func(a, b *alike) int { return byName(a.pods[0].Name, b.pods[0].Name) })
	return out
}

// pods writes pods in groups, one after the other, and begins a group anew in another message.
func (w *writer) pods(pods map[model.Name]*model.Pod) {
	gone := w.goneNames(func(g *Gone) *[]*Names { return &g.Pods })
	var names []model.Name
	for n, p := range pods {
		if p == nil {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, byName)
	for _, n := range names {
		if !w.room() {
			return
		}
		gone(n)
	}
	for _, a := range groups(pods) {
		var in *Message // that has the group
		var g *PodGroup
		before := ""
		oldest := slices.MinFunc(a.pods, func(p, q *model.Pod) int { return cmp.Compare(p.Created, q.Created) }).Created
		for _, p := range a.pods {
			if !w.room() {
				return
			}
			if in != w.m {
				in, before = w.m, ""
				g = &PodGroup{Namespace: w.text(p.Name.Namespace), ServiceAccount: w.text(p.ServiceAccount), Labels: w.labels(p.Labels),
					Ports: each(p.Ports, w.podPort), Created: oldest}
				w.m.Pods = append(w.m.Pods, g)
				w.bytes += proto.Size(g) + 4
			}
			m := w.pod(p, before, oldest)
			g.Pods = append(g.Pods, m)
			before = p.Name.Name
			w.bytes += proto.Size(m) + 2
		}
	}
}

// pod converts a pod that comes after one of another name.
func (w *writer) pod(p *model.Pod, before string, oldest int64) *Pod {
	name := p.Name.Name
	shared := 0
	for shared < min(len(before), len(name), mostShared) && before[shared] == name[shared] {
		shared++
	}
	out := &Pod{NameShared: uint32(shared), Name: []byte(name[shared:]), Node: w.text(p.Node), Addrs: each(p.Addrs, addrBytes), Created: p.Created - oldest,
		HostNetwork: p.HostNetwork, Finished: p.Finished, Asked: each(p.Asked, addrBytes), Qos: qosMessage(p.QoS),
		Egress: w.egressClient(p.Egress), Gateway: w.egressGateway(p.Gateway), Sources: each(p.Sources, PrefixBytes), Floating: each(p.Floating, addrBytes)}
	if uid, ok := model.ParseUUID(p.UID); ok {
		out.Uid = uid[:]
	} else {
		out.UidText = []byte(p.UID)
	}
	return out
}
