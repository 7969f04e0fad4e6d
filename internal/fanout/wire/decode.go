// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/model"
)

// Decoder reads messages. What it hands out shares texts, and pods share labels and ports, with
// what it handed out before. It is for one goroutine.
type Decoder struct {
	// Expression says whether an expression of the selector language can be read (package
	// selector): a newer sender may have more operators. Rules and subjects with one that cannot
	// are not understood; nil = none can.
	Expression func(text string) error

	shared model.Shared
}

// Decoded is what a message says.
type Decoded struct {
	Changes *model.Changes
	More    bool // another message of the same changes follows
	// NotUnderstood names rules and policies that a newer sender wrote in a way that is not known
	// here, at most mostNotUnderstood of them: they allow nothing, or deny everything.
	NotUnderstood []string
}

const mostNotUnderstood = 20

// Decode reads a message. An error names the field that is malformed.
func (d *Decoder) Decode(b []byte) (*Decoded, error) {
	if len(b) > MostSize {
		return nil, fmt.Errorf("a message of %d bytes, of which at most %d are read", len(b), MostSize)
	}
	var m Message
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	if m.Version != Version {
		return nil, fmt.Errorf("a message of version %d, known is %d", m.Version, Version)
	}
	r := &reader{d: d, texts: make([]string, len(m.Texts))}
	for i, t := range m.Texts {
		r.texts[i] = d.shared.Text(string(t))
	}
	out := &Decoded{Changes: &model.Changes{}, More: m.More}
	r.changes(&m, out)
	if r.err != nil {
		return nil, fmt.Errorf("%s: %w", r.where, r.err)
	}
	return out, nil
}

// put reads objects of a kind into their map.
func put[K comparable, V, M any](r *reader, field string, in []*M, into *map[K]*V, f func(*M) (K, *V)) {
	for i, m := range in {
		if r.err != nil {
			return
		}
		k, v := f(m)
		if r.err != nil {
			r.within(fmt.Sprintf("%s[%d]", field, i))
			return
		}
		set(into, len(in), k, v)
	}
}

func set[K comparable, V any](into *map[K]*V, hint int, k K, v *V) {
	if *into == nil {
		*into = make(map[K]*V, hint)
	}
	(*into)[k] = v
}

func gone[V any](r *reader, field string, names [][]byte, into *map[string]*V) {
	put(r, field, values(names), into, func(name *[]byte) (string, *V) { return r.key("", *name), nil })
}

func goneIn[V any](r *reader, field string, in []*Names, into *map[model.Name]*V) {
	for i, names := range in {
		at := fmt.Sprintf("%s[%d]", field, i)
		ns := r.text(at+".namespace", names.Namespace)
		put(r, at+".names", values(names.Names), into, func(name *[]byte) (model.Name, *V) {
			return model.Name{Namespace: ns, Name: r.key("", *name)}, nil
		})
	}
}

func gonePolicies[V any](r *reader, field string, in []*PolicyNames, into *map[model.PolicyID]*V) {
	for i, names := range in {
		at := fmt.Sprintf("%s[%d]", field, i)
		id := model.PolicyID{Kind: r.text(at+".kind", names.Kind), Name: model.Name{Namespace: r.text(at+".namespace", names.Namespace)}}
		put(r, at+".names", values(names.Names), into, func(name *[]byte) (model.PolicyID, *V) {
			id.Name.Name = r.key("", *name)
			return id, nil
		})
	}
}

// values are the places of a list's values.
func values[T any](in []T) []*T {
	out := make([]*T, len(in))
	for i := range in {
		out[i] = &in[i]
	}
	return out
}

func (r *reader) changes(m *Message, out *Decoded) {
	ch := out.Changes
	r.gone(m.GetGone(), ch)
	put(r, "namespaces", m.Namespaces, &ch.Namespaces, r.namespace)
	put(r, "nodes", m.Nodes, &ch.Nodes, r.node)
	put(r, "pools", m.Pools, &ch.Pools, r.pool)
	put(r, "blocks", m.Blocks, &ch.Blocks, r.block)
	put(r, "bgp_configs", m.BgpConfigs, &ch.BGPConfigs, r.bgpConfig)
	put(r, "bgp_peers", m.BgpPeers, &ch.BGPPeers, r.bgpPeer)
	put(r, "bgp_filters", m.BgpFilters, &ch.BGPFilters, r.bgpFilter)
	put(r, "egress_policies", m.EgressPolicies, &ch.EgressPolicies, r.egressPolicy)
	put(r, "service_accounts", m.ServiceAccounts, &ch.ServiceAccounts, r.serviceAccount)
	put(r, "network_sets", m.NetworkSets, &ch.NetworkSets, r.networkSet)
	put(r, "host_endpoints", m.HostEndpoints, &ch.HostEndpoints, r.hostEndpoint)
	put(r, "tiers", m.Tiers, &ch.Tiers, r.tier)
	put(r, "policies", m.Policies, &ch.Policies, func(p *Policy) (model.PolicyID, *model.Policy) {
		v := r.policy(p, out)
		return v.ID(), v
	})
	put(r, "staged", m.Staged, &ch.Staged, func(s *StagedPolicy) (model.PolicyID, *model.StagedPolicy) {
		v := r.staged(s, out)
		return v.Policy.ID(), v
	})
	r.pods(m.Pods, ch)
	put(r, "services", m.Services, &ch.Services, r.service)
	put(r, "slices", m.Slices, &ch.Slices, r.slice)
	if m.ServiceCidrs != nil {
		ch.ServiceCIDRs, ch.ServiceCIDRsChanged = list(r, "service_cidrs.prefixes", m.ServiceCidrs.Prefixes, r.prefix), true
	}
	if m.Reserved != nil {
		ch.Reserved, ch.ReservedChanged = list(r, "reserved.prefixes", m.Reserved.Prefixes, r.prefix), true
	}
}

func (r *reader) gone(g *Gone, ch *model.Changes) {
	if g == nil {
		return
	}
	gone(r, "gone.namespaces", g.Namespaces, &ch.Namespaces)
	goneIn(r, "gone.pods", g.Pods, &ch.Pods)
	gone(r, "gone.nodes", g.Nodes, &ch.Nodes)
	goneIn(r, "gone.services", g.Services, &ch.Services)
	goneIn(r, "gone.slices", g.Slices, &ch.Slices)
	gonePolicies(r, "gone.policies", g.Policies, &ch.Policies)
	gonePolicies(r, "gone.staged", g.Staged, &ch.Staged)
	gone(r, "gone.tiers", g.Tiers, &ch.Tiers)
	goneIn(r, "gone.network_sets", g.NetworkSets, &ch.NetworkSets)
	goneIn(r, "gone.service_accounts", g.ServiceAccounts, &ch.ServiceAccounts)
	gone(r, "gone.host_endpoints", g.HostEndpoints, &ch.HostEndpoints)
	gone(r, "gone.pools", g.Pools, &ch.Pools)
	gone(r, "gone.bgp_configs", g.BgpConfigs, &ch.BGPConfigs)
	gone(r, "gone.bgp_peers", g.BgpPeers, &ch.BGPPeers)
	gone(r, "gone.bgp_filters", g.BgpFilters, &ch.BGPFilters)
	gone(r, "gone.egress_policies", g.EgressPolicies, &ch.EgressPolicies)
	put(r, "gone.blocks", values(g.Blocks), &ch.Blocks, func(b *[]byte) (netip.Prefix, *model.Block) {
		p := r.prefix(*b)
		if !p.IsValid() {
			r.fail("", "no prefix")
		}
		return p, nil
	})
}
