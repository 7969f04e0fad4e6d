// SPDX-License-Identifier: Apache-2.0

package preview

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/past"
)

// world is a state of the cluster's pods that there may have been: in it every address is that of
// one pod, and every pod has one set of labels. Questions about other times are of other worlds.
type world struct {
	at        map[netip.Addr]*past.Pod // nil = no pod's
	named     map[model.Name]*past.Pod
	questions []*past.Question
}

// fits reports whether both ends may be in the world.
func (w *world) fits(ends ...past.End) bool {
	for _, e := range ends {
		if pod, is := w.at[e.Addr]; is && pod != e.Pod {
			return false
		}
		if e.Pod == nil {
			continue
		}
		if pod, is := w.named[e.Pod.Name]; is && pod != e.Pod {
			return false
		}
	}
	return true
}

func (w *world) put(e past.End) {
	if w.at[e.Addr] = e.Pod; e.Pod != nil {
		w.named[e.Pod.Name] = e.Pod
	}
}

// worlds puts each question into the first world that it fits into.
func worlds(all []*past.Question) (out []*world) {
	for _, q := range all {
		i := slices.IndexFunc(out, func(w *world) bool { return w.fits(q.From, q.To) })
		if i < 0 {
			i = len(out)
			out = append(out, &world{at: map[netip.Addr]*past.Pod{}, named: map[model.Name]*past.Pod{}})
		}
		out[i].put(q.From)
		out[i].put(q.To)
		out[i].questions = append(out[i].questions, q)
	}
	return out
}

// everyIPv6 has IPv6 carried: the nodes did, where records have its addresses.
var everyIPv6 = &model.Pool{Name: "ipv6", CIDR: netip.MustParsePrefix("::/0")}

// explainer answers about the pods of the world by the policies of a cluster. What the API server
// alone knows of pods is that of now: see present.
func (w *world) explainer(c *model.Cluster) *policy.Explainer {
	of := *c
	of.Pods, of.Blocks, of.Pools = &model.PodTable{}, nil, map[string]*model.Pool{everyIPv6.Name: everyIPv6}
	// All are endpoints here: so each has the address that the records say, whatever blocks say.
	of.Local = model.Local{Endpoints: map[netip.Addr]*model.LocalEndpoint{}}
	pods := map[*past.Pod]*model.Pod{}
	for _, a := range slices.SortedFunc(maps.Keys(w.at), netip.Addr.Compare) {
		was := w.at[a]
		if was == nil {
			continue
		}
		if pods[was] == nil {
			pods[was] = podOf(c, past.End{Addr: a, Pod: was})
		}
		pods[was].Addrs = append(pods[was].Addrs, a)
		of.Local.Endpoints[a] = &model.LocalEndpoint{Pod: was.Name}
	}
	for _, p := range pods {
		of.Pods.Put(p)
	}
	return policy.NewExplainer(&of)
}

// podOf is the pod of an end as it was, as far as that is known.
func podOf(c *model.Cluster, e past.End) *model.Pod {
	p := &model.Pod{Name: e.Pod.Name, Labels: e.Pod.Labels}
	if now := present(c, e); now != nil {
		p.ServiceAccount, p.Ports = now.ServiceAccount, now.Ports
	}
	return p
}

// present returns the pod of an end where it is still there: its service account and its ports do
// not change.
func present(c *model.Cluster, e past.End) *model.Pod {
	now := c.Pods.Get(e.Pod.Name)
	if now == nil || !slices.Contains(now.Addrs, e.Addr) || now.Created > e.Pod.First.Unix() {
		return nil
	}
	return now
}
