package calc

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

// labelsMatch reports whether labels meet every requirement of sel; nil picks everything.
func labelsMatch(sel *model.LabelSelector, labels map[string]string) bool {
	if sel == nil {
		return true
	}
	for i := range sel.Requirements {
		if !requirementMet(&sel.Requirements[i], labels) {
			return false
		}
	}
	return true
}

func requirementMet(r *model.Requirement, labels map[string]string) bool {
	v, has := labels[r.Key]
	switch r.Op {
	case model.In:
		return has && slices.Contains(r.Values, v)
	case model.NotIn:
		return !has || !slices.Contains(r.Values, v)
	case model.Exists:
		return has
	case model.DoesNotExist:
		return !has
	}
	return false
}

// selectorText is the canonical text of a selector: equal texts pick the same pods.
func selectorText(s *model.Selector) string {
	var b strings.Builder
	b.WriteString("pods ")
	switch {
	case s.Namespace != "":
		b.WriteString("in " + strconv.Quote(s.Namespace))
	case s.Namespaces == nil:
		b.WriteString("in any")
	default:
		b.WriteString("in ")
		writeLabelSelector(&b, s.Namespaces)
	}
	b.WriteString(" with ")
	writeLabelSelector(&b, s.Pods)
	return b.String()
}

func writeLabelSelector(b *strings.Builder, s *model.LabelSelector) {
	b.WriteByte('{')
	if s != nil {
		for i := range s.Requirements {
			r := &s.Requirements[i]
			if i > 0 {
				b.WriteString("; ")
			}
			b.WriteString(strconv.Quote(r.Key) + " " + string(r.Op))
			for _, v := range r.Values {
				b.WriteString(" " + strconv.Quote(v))
			}
		}
	}
	b.WriteByte('}')
}

// peerPod is a pod with the addresses by which others see it.
type peerPod struct {
	pod   *model.Pod
	addrs []netip.Addr
}

// podIndex finds the pods that selectors pick without trying every pod for every selector.
type podIndex struct {
	c       *cluster
	all     []*peerPod
	byNS    map[string][]*peerPod
	byLabel map[string]map[string][]*peerPod // key, value; keys are indexed when first asked for
}

// newPodIndex indexes the pods that have an address of their own. What the node knows of its own
// endpoints comes before what the API says, which shows a new pod's address late and an old pod's for
// too long.
func newPodIndex(c *cluster) *podIndex {
	x := &podIndex{c: c, all: make([]*peerPod, 0, len(c.Pods)), byNS: map[string][]*peerPod{},
		byLabel: map[string]map[string][]*peerPod{}}
	local := map[model.Name][]netip.Addr{}
	for a, ep := range c.Local.Endpoints {
		if c.carried(a) {
			local[ep.Pod] = append(local[ep.Pod], a)
		}
	}
	for _, p := range c.Pods {
		addrs := peerAddrs(c, p, local[p.Name])
		if len(addrs) == 0 {
			continue
		}
		pp := &peerPod{pod: p, addrs: addrs}
		x.all = append(x.all, pp)
		x.byNS[p.Name.Namespace] = append(x.byNS[p.Name.Namespace], pp)
	}
	return x
}

// peerAddrs returns the addresses by which others see a pod, with those of its endpoints here.
func peerAddrs(c *cluster, p *model.Pod, local []netip.Addr) []netip.Addr {
	if p.HostNetwork || p.Finished {
		return nil
	}
	addrs := local
	for _, a := range p.Addrs {
		if ep := c.Local.Endpoints[a]; c.carried(a) && (ep == nil || ep.Pod == p.Name) && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// matching calls f for every pod that sel picks.
func (x *podIndex) matching(sel *model.Selector, f func(*peerPod)) {
	try := func(pods []*peerPod) {
		for _, p := range pods {
			if labelsMatch(sel.Pods, p.pod.Labels) {
				f(p)
			}
		}
	}
	if sel.Namespace != "" {
		try(x.byNS[sel.Namespace])
		return
	}
	if sel.Namespaces != nil && asksForValue(sel.Pods) < 0 {
		for ns, pods := range x.byNS {
			if namespaceMatches(x.c, sel.Namespaces, ns) {
				try(pods)
			}
		}
		return
	}
	for _, pods := range x.candidates(sel.Pods) {
		if sel.Namespaces == nil {
			try(pods)
			continue
		}
		for _, p := range pods {
			if namespaceMatches(x.c, sel.Namespaces, p.pod.Name.Namespace) && labelsMatch(sel.Pods, p.pod.Labels) {
				f(p)
			}
		}
	}
}

// asksForValue returns the index of a requirement that names values, -1 when there is none.
func asksForValue(sel *model.LabelSelector) int {
	if sel == nil {
		return -1
	}
	return slices.IndexFunc(sel.Requirements, func(r model.Requirement) bool { return r.Op == model.In })
}

// candidates returns pods among which are all that sel picks: those with a value that it asks for when
// there is such a requirement, all otherwise. No pod is in two of the lists.
func (x *podIndex) candidates(sel *model.LabelSelector) [][]*peerPod {
	i := asksForValue(sel)
	if i < 0 {
		return [][]*peerPod{x.all}
	}
	r := &sel.Requirements[i]
	index := x.labelIndex(r.Key)
	out := make([][]*peerPod, 0, len(r.Values))
	for j, v := range r.Values {
		if !slices.Contains(r.Values[:j], v) {
			out = append(out, index[v])
		}
	}
	return out
}

func (x *podIndex) labelIndex(key string) map[string][]*peerPod {
	index, ok := x.byLabel[key]
	if !ok {
		index = map[string][]*peerPod{}
		for _, p := range x.all {
			if v, has := p.pod.Labels[key]; has {
				index[v] = append(index[v], p)
			}
		}
		x.byLabel[key] = index
	}
	return index
}

// namespaceMatches reports whether a namespace is picked. One that is not known (yet) has no labels
// that could be looked at, so it is picked only where labels do not matter.
func namespaceMatches(c *cluster, sel *model.LabelSelector, name string) bool {
	if sel == nil || len(sel.Requirements) == 0 {
		return true
	}
	ns := c.Namespaces[name]
	return ns != nil && labelsMatch(sel, ns.Labels)
}

// selects reports whether a selector picks a pod.
func selects(c *cluster, sel *model.Selector, p *model.Pod) bool {
	if sel.Namespace != "" {
		if sel.Namespace != p.Name.Namespace {
			return false
		}
	} else if !namespaceMatches(c, sel.Namespaces, p.Name.Namespace) {
		return false
	}
	return labelsMatch(sel.Pods, p.Labels)
}
