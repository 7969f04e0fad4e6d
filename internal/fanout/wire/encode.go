// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/model"
)

// Encoder makes messages of changes. The zero value is ready; it keeps nothing between calls.
type Encoder struct {
	Size int // at how many bytes to begin another message; 0 = the constant Size
}

// Messages yields the messages of changes, at least one; all but the last say that more follow. The
// values are named as their keys say. Equal changes give equal messages. An error, which is the
// last that is yielded, says that an object is larger than any Decoder reads.
func (e Encoder) Messages(ch *model.Changes) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		w := &writer{size: cmp.Or(e.Size, Size), yield: yield}
		w.begin()
		w.changes(ch)
		w.flush(false)
	}
}

// Marshal returns the messages that Messages yields.
func (e Encoder) Marshal(ch *model.Changes) (out [][]byte, err error) {
	for b, err := range e.Messages(ch) {
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// writer fills one message after the other.
type writer struct {
	size  int
	yield func([]byte, error) bool
	over  bool // nothing more is wanted

	m     *Message
	index map[string]uint32 // places of texts
	bytes int               // of the message, about
}

func (w *writer) begin() {
	w.m = &Message{Version: Version, Gone: &Gone{}}
	w.index = map[string]uint32{}
	w.bytes = 0
}

// room makes room for one more object, and reports whether it is wanted.
func (w *writer) room() bool {
	if w.bytes >= w.size {
		w.flush(true)
		w.begin()
	}
	return !w.over
}

func (w *writer) flush(more bool) {
	if w.over {
		return
	}
	w.m.More = more
	b, err := proto.Marshal(w.m)
	if err == nil && len(b) > MostSize {
		b, err = nil, fmt.Errorf("a message of %d bytes, of which at most %d are read", len(b), MostSize)
	}
	w.over = !w.yield(b, err) || err != nil
}

// text returns the place of a text in the message.
func (w *writer) text(s string) uint32 {
	if s == "" {
		return 0
	}
	at, ok := w.index[s]
	if !ok {
		w.m.Texts = append(w.m.Texts, []byte(s))
		at = uint32(len(w.m.Texts))
		w.index[s] = at
		w.bytes += len(s) + 3
	}
	return at
}

func (w *writer) texts(list []string) []uint32 { return each(list, w.text) }

func (w *writer) name(n model.Name) *Name {
	if n == (model.Name{}) {
		return nil
	}
	return &Name{Namespace: w.text(n.Namespace), Name: w.text(n.Name)}
}

func (w *writer) labels(m map[string]string) *Labels {
	if len(m) == 0 {
		return nil
	}
	out := &Labels{Pairs: make([]uint32, 0, 2*len(m))}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out.Pairs = append(out.Pairs, w.text(k), w.text(m[k]))
	}
	return out
}

// each converts a list.
func each[A, B any](in []A, f func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = f(v)
	}
	return out
}

// objects writes the objects of a kind in the order of their keys.
func objects[K comparable, V any, M proto.Message](w *writer, from map[K]*V, order func(a, b K) int, gone func(K), to func(*Message) *[]M, convert func(*V) M) {
	for _, k := range slices.SortedFunc(maps.Keys(from), order) {
		if !w.room() {
			return
		}
		v := from[k]
		if v == nil {
			gone(k)
			continue
		}
		m := convert(v)
		list := to(w.m)
		*list = append(*list, m)
		w.bytes += proto.Size(m) + 4
	}
}

// goneName notes names that are not there any more; to is where in the message.
func (w *writer) goneName(to func(*Gone) *[][]byte) func(string) {
	return func(name string) {
		list := to(w.m.Gone)
		*list = append(*list, []byte(name))
		w.bytes += len(name) + 2
	}
}

func (w *writer) goneNames(to func(*Gone) *[]*Names) func(model.Name) {
	return func(n model.Name) {
		list, ns := to(w.m.Gone), w.text(n.Namespace)
		if len(*list) == 0 || (*list)[len(*list)-1].Namespace != ns {
			*list = append(*list, &Names{Namespace: ns})
			w.bytes += 8
		}
		in := (*list)[len(*list)-1]
		in.Names = append(in.Names, []byte(n.Name))
		w.bytes += len(n.Name) + 2
	}
}

func (w *writer) gonePolicies(to func(*Gone) *[]*PolicyNames) func(model.PolicyID) {
	return func(id model.PolicyID) {
		list, kind, ns := to(w.m.Gone), w.text(id.Kind), w.text(id.Name.Namespace)
		if last := len(*list) - 1; last < 0 || (*list)[last].Namespace != ns || (*list)[last].Kind != kind {
			*list = append(*list, &PolicyNames{Kind: kind, Namespace: ns})
			w.bytes += 12
		}
		in := (*list)[len(*list)-1]
		in.Names = append(in.Names, []byte(id.Name.Name))
		w.bytes += len(id.Name.Name) + 2
	}
}

func byName(a, b model.Name) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func byID(a, b model.PolicyID) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), byName(a.Name, b.Name))
}

// changes writes all of them: what others refer to comes first.
func (w *writer) changes(ch *model.Changes) {
	objects(w, ch.Namespaces, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.Namespaces }),
		func(m *Message) *[]*Namespace { return &m.Namespaces }, w.namespace)
	objects(w, ch.Nodes, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.Nodes }),
		func(m *Message) *[]*Node { return &m.Nodes }, w.node)
	objects(w, ch.Pools, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.Pools }),
		func(m *Message) *[]*Pool { return &m.Pools }, w.pool)
	objects(w, ch.Blocks, netip.Prefix.Compare, func(p netip.Prefix) {
		w.m.Gone.Blocks = append(w.m.Gone.Blocks, PrefixBytes(p))
		w.bytes += 19
	}, func(m *Message) *[]*Block { return &m.Blocks }, w.block)
	objects(w, ch.BGPConfigs, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.BgpConfigs }),
		func(m *Message) *[]*BgpConfig { return &m.BgpConfigs }, w.bgpConfig)
	objects(w, ch.BGPPeers, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.BgpPeers }),
		func(m *Message) *[]*BgpPeer { return &m.BgpPeers }, w.bgpPeer)
	objects(w, ch.BGPFilters, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.BgpFilters }),
		func(m *Message) *[]*BgpFilter { return &m.BgpFilters }, w.bgpFilter)
	objects(w, ch.EgressPolicies, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.EgressPolicies }),
		func(m *Message) *[]*EgressPolicy { return &m.EgressPolicies }, w.egressPolicy)
	objects(w, ch.ServiceAccounts, byName, w.goneNames(func(g *Gone) *[]*Names { return &g.ServiceAccounts }),
		func(m *Message) *[]*ServiceAccount { return &m.ServiceAccounts }, w.serviceAccount)
	objects(w, ch.NetworkSets, byName, w.goneNames(func(g *Gone) *[]*Names { return &g.NetworkSets }),
		func(m *Message) *[]*NetworkSet { return &m.NetworkSets }, w.networkSet)
	objects(w, ch.HostEndpoints, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.HostEndpoints }),
		func(m *Message) *[]*HostEndpoint { return &m.HostEndpoints }, w.hostEndpoint)
	objects(w, ch.Tiers, strings.Compare, w.goneName(func(g *Gone) *[][]byte { return &g.Tiers }),
		func(m *Message) *[]*Tier { return &m.Tiers }, w.tier)
	objects(w, ch.Policies, byID, w.gonePolicies(func(g *Gone) *[]*PolicyNames { return &g.Policies }),
		func(m *Message) *[]*Policy { return &m.Policies }, w.policy)
	objects(w, ch.Staged, byID, w.gonePolicies(func(g *Gone) *[]*PolicyNames { return &g.Staged }),
		func(m *Message) *[]*StagedPolicy { return &m.Staged }, w.staged)
	w.pods(ch.Pods)
	objects(w, ch.Services, byName, w.goneNames(func(g *Gone) *[]*Names { return &g.Services }),
		func(m *Message) *[]*Service { return &m.Services }, w.service)
	objects(w, ch.Slices, byName, w.goneNames(func(g *Gone) *[]*Names { return &g.Slices }),
		func(m *Message) *[]*EndpointSlice { return &m.Slices }, w.slice)
	if ch.ServiceCIDRsChanged && w.room() {
		w.m.ServiceCidrs = &Prefixes{Prefixes: each(ch.ServiceCIDRs, PrefixBytes)}
		w.bytes += proto.Size(w.m.ServiceCidrs)
	}
	if ch.ReservedChanged && w.room() {
		w.m.Reserved = &Prefixes{Prefixes: each(ch.Reserved, PrefixBytes)}
	}
}
