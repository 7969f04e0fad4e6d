// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/fanout/digest"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodeview"
)

// leave ends the replica that feeds an agent, which knows another one, and waits until it has what
// the node is to have.
func (a *agent) leave(t *testing.T, from *place, c *model.Cluster, node string) {
	t.Helper()
	a.mu.Lock()
	clear(a.gone)
	a.mu.Unlock()
	from.stop()
	eventually(t, "the part by the other replica", func() bool { return a.has(t, c, node) })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fulls != 1 {
		t.Errorf("%d snapshots", a.fulls)
	}
	for name := range a.gone {
		if a.mirror.Pods.Get(name) != nil {
			t.Errorf("pod %s was gone for a while", name)
		}
	}
}

// TestDeltaAtAnotherReplica holds that after any changes that an agent has missed it has from a
// replica that has never seen it what a snapshot would have given it, by what differs alone, and
// that what it has got wrong is put right.
func TestDeltaAtAnotherReplica(t *testing.T) {
	t.Parallel()
	const node, rounds, changes, live = "n1", 4, 800, 30
	w := newWorld(6, 12)
	at := newPlace(t, nil)
	at.fill(w.c)
	var places []*place
	for range rounds + 1 {
		places = append(places, newPlace(t, nil))
	}
	a := newAgentAt(t, node, tokenOf(node), []string{at.addr}, append(places, at)...)
	eventually(t, "the snapshot", func() bool { return a.has(t, w.c, node) })
	for round, next := range places {
		next.fill(w.c)
		for range changes {
			change(w.c, w.random(), next)
		}
		a.mu.Lock()
		a.spoil(w.Rand)
		a.addrs = []string{next.addr}
		a.mu.Unlock()
		a.leave(t, at, w.c, node)
		for range live {
			change(w.c, w.random(), next)
		}
		eventually(t, fmt.Sprint("what changes after move ", round), func() bool { return a.has(t, w.c, node) })
		at = next
	}
}

// spoil makes some of what an agent has wrong.
func (a *agent) spoil(r *rand.Rand) {
	names := slices.SortedFunc(maps.Keys(a.mirror.Pods.ByName()), func(a, b model.Name) int { return r.IntN(3) - 1 })
	for i, name := range names[:min(len(names), 6)] {
		now := *a.mirror.Pods.Get(name)
		switch i % 3 {
		case 0:
			a.mirror.Pods.Delete(name)
		case 1:
			now.Labels = map[string]string{"app": "wrong"}
			a.mirror.Pods.Put(&now)
		case 2:
			now.Name.Name = fmt.Sprint("ghost-", r.Uint32())
			a.mirror.Pods.Put(&now)
		}
	}
	for id, p := range a.mirror.Policies {
		now := *p
		now.Ingress = nil
		a.mirror.Policies[id] = &now
		break
	}
	a.mirror.Reservations = append(slices.Clone(a.mirror.Reservations), netip.MustParsePrefix("198.51.100.0/24"))
}

// followed is what a stream brought until its first changes were whole.
type followed struct {
	changes         *model.Changes
	delta           *stream.Delta
	snapshot        bool
	bytes, messages int
}

func first(t *testing.T, s stream.Client) *followed {
	t.Helper()
	out := &followed{changes: &model.Changes{}}
	for d := (&wire.Decoder{Expression: func(string) error { return nil }}); ; {
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Changes) > 0 {
			got, err := d.Decode(resp.Changes)
			if err != nil {
				t.Fatal(err)
			}
			out.changes.Merge(got.Changes)
			out.bytes += len(resp.Changes)
			out.messages++
		}
		if resp.Snapshot || resp.Delta != nil {
			out.snapshot, out.delta = resp.Snapshot, resp.Delta
			if resp.Settings == nil || resp.More {
				t.Error("the last message brings no settings, or says that more follows")
			}
			return out
		}
	}
}

// hello says hello as the agent of a node.
func (p *place) hello(t *testing.T, node string, held *stream.Held) stream.Client {
	t.Helper()
	s := p.raw(t, tokenOf(node))
	if err := s.Send(&stream.Request{Endpoints: &stream.Endpoints{}, Held: held}); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDeltaIsSmall holds that an agent that has everything is sent nothing, one that lacks a pod
// little more than that, and one whose digests are of a version that is not known everything.
func TestDeltaIsSmall(t *testing.T) {
	t.Parallel()
	const node = "n1"
	c := fleet(40, 100)
	p := newPlace(t, nil)
	p.fill(c)
	whole := first(t, p.hello(t, node, nil))
	if !whole.snapshot || len(whole.changes.Pods) < 2000 {
		t.Fatalf("the first stream brought %d pods", len(whole.changes.Pods))
	}
	have := model.NewCluster()
	whole.changes.Apply(have)
	held := stream.HeldFrom(digest.HeldOf(have))
	same := first(t, p.hello(t, node, held))
	if same.delta == nil || len(same.delta.Replaced) > 0 || !same.changes.Empty() {
		t.Errorf("who has everything was sent %d bytes, %v", same.bytes, same.delta)
	}
	now := *c.Pods.Get(model.Name{Namespace: "a", Name: "pod-7-8"})
	now.UID = "again"
	change(c, pods(&now), p)
	one := first(t, p.hello(t, node, held))
	if len(one.changes.Pods) == 0 || len(one.changes.Pods) > 100 || len(one.changes.Services)+len(one.changes.Nodes)+len(one.changes.Policies) > 0 {
		t.Errorf("for one pod %d pods came, %d Services, %d Nodes", len(one.changes.Pods), len(one.changes.Services), len(one.changes.Nodes))
	}
	held.Version++
	if newer := first(t, p.hello(t, node, held)); !newer.snapshot {
		t.Error("digests of a version that is not known brought no snapshot")
	}
}

// TestDeltasAreMadeOnce holds that agents which lack the same of a part are sent the same messages:
// what they lack.
func TestDeltasAreMadeOnce(t *testing.T) {
	t.Parallel()
	const rounds = 20
	c := fleet(4, 200)
	s := New(Config{Interval: 1})
	p := &place{t: t, server: s}
	p.fill(c)
	view := func(node string) ([]*nodeview.Part, digest.Lists) {
		n := s.index.Add(node)
		defer s.index.Remove(n)
		parts, own := n.Snapshot()
		return parts, digest.Of(own)
	}
	held := map[string]digest.Held{}
	for _, node := range []string{"n1", "n2"} {
		base := digest.Lists{}
		parts, own := view(node)
		for _, part := range parts {
			maps.Copy(base, digest.Of(part.Changes()))
		}
		held[node] = base.Held(own)
	}
	for i := range rounds { // pods of other nodes, in other buckets
		now := *c.Pods.Get(model.Name{Namespace: "a", Name: fmt.Sprintf("pod-0-%d", 2*i)})
		now.UID = "again"
		change(c, pods(&now), p)
		made := 0
		var sent [][]byte
		for _, node := range []string{"n1", "n2"} {
			parts, own := view(node)
			for _, part := range parts {
				lists := digest.Of(part.Changes())
				lacks := held[node].Compare(lists, own)
				if part.Changes().Pods[now.Name] == nil {
					continue
				}
				messages, err := part.Piece(lacks.Key(lists), func() ([][]byte, error) {
					made++
					return wire.Encoder{}.Marshal(lacks.Pick(part.Changes()))
				})
				if err != nil || len(messages) != 1 {
					t.Fatal(len(messages), err)
				}
				sent = append(sent, messages[0])
				if got, err := (&wire.Decoder{}).Decode(messages[0]); err != nil || got.Changes.Pods[now.Name] == nil || got.Changes.Pods[now.Name].UID != "again" || len(got.Changes.Pods) == len(part.Changes().Pods) {
					t.Fatalf("round %d: %d of %d pods came, %v", i, len(got.Changes.Pods), len(part.Changes().Pods), err)
				}
			}
		}
		if made != 1 || len(sent) != 2 || &sent[0][0] != &sent[1][0] {
			t.Fatalf("round %d: what two nodes lack was encoded %d times, and sent %d times", i, made, len(sent))
		}
	}
}

// TestChangesAfterDelta holds that an agent that says hello gets what changes while it waits, in
// order.
func TestChangesAfterDelta(t *testing.T) {
	t.Parallel()
	c := fleet(3, 4)
	p := newPlace(t, nil)
	p.fill(c)
	have := model.NewCluster()
	first(t, p.hello(t, "n1", nil)).changes.Apply(have)
	s := p.hello(t, "n1", stream.HeldFrom(digest.HeldOf(have)))
	eventually(t, "the second stream", func() bool { return len(p.server.Followers()) == 1 })
	for i := range 100 {
		now := *c.Pods.Get(model.Name{Namespace: "a", Name: "pod-0-0"})
		now.UID = fmt.Sprint("again-", i)
		change(c, pods(&now), p)
	}
	got := first(t, s)
	for last := ""; last != "again-99"; {
		if pod := got.changes.Pods[model.Name{Namespace: "a", Name: "pod-0-0"}]; pod != nil {
			last = pod.UID
		}
		if last == "again-99" {
			break
		}
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Changes) > 0 {
			d, err := (&wire.Decoder{}).Decode(resp.Changes)
			if err != nil {
				t.Fatal(err)
			}
			got.changes = d.Changes
		}
	}
}

// What an agent says that it has costs a fan-out no more than a snapshot, and what is malformed is
// refused.
func TestHostileDigests(t *testing.T) {
	hostile.Record(t, "a compromised node says that it has what it has not, or rubbish, to have a fan-out work and send without bounds", hostile.Node, hostile.ControlPlane, hostile.Both)
	t.Parallel()
	const node = "n1"
	c := fleet(40, 100)
	p := newPlace(t, nil)
	p.fill(c)
	whole := first(t, p.hello(t, node, nil))
	have := model.NewCluster()
	whole.changes.Apply(have)
	r := rand.New(rand.NewPCG(3, 4))
	scope := func(kind uint32, ns string, bits uint32, size int) *stream.HeldScope {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return &stream.HeldScope{Kind: kind, Namespace: []byte(ns), Bits: bits, Digests: b}
	}
	held := func(scopes ...*stream.HeldScope) *stream.Held {
		return &stream.Held{Version: digest.Version, Scopes: scopes}
	}
	many := held()
	for i := range digest.MostScopes + 1 {
		many.Scopes = append(many.Scopes, scope(2, fmt.Sprint(i), 0, 16))
	}
	for what, h := range map[string]*stream.Held{"a kind that there is not": held(scope(99, "", 0, 16)), "kind 0": held(scope(0, "", 0, 16)), "too few digests": held(scope(2, "a", 2, 48)),
		"too many digests": held(scope(2, "a", 0, 17)), "no digests": held(scope(2, "a", 0, 0)), "too many buckets": held(scope(2, "a", 31, 16)), "4 billion bits": held(scope(2, "a", 1<<32-1, 16)),
		"too many buckets in all": held(scope(2, "a", 12, 16<<12), scope(2, "b", 12, 16<<12), scope(2, "c", 12, 16<<12), scope(2, "d", 12, 16<<12), scope(2, "e", 12, 16<<12), scope(2, "f", 12, 16<<12), scope(2, "g", 0, 16)),
		"a scope twice":           held(scope(2, "a", 0, 16), scope(2, "a", 0, 16)), "too many scopes": many} {
		if err := endOf(p.hello(t, node, h)); status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Half of the digests are right, so that what differs is encoded for this node alone.
	half := stream.HeldFrom(digest.HeldOf(have))
	for _, s := range half.Scopes {
		for i := 0; i < len(s.Digests); i += 32 {
			s.Digests[i] ^= 1
		}
	}
	rubbish := held()
	for kind := range uint32(digest.LastKind) {
		for _, ns := range []string{"", "a", "b", "nowhere"} {
			rubbish.Scopes = append(rubbish.Scopes, scope(kind+1, ns, 7, 16<<7))
		}
	}
	for what, h := range map[string]*stream.Held{"half of it is right": half, "rubbish": rubbish} {
		got := first(t, p.hello(t, node, h))
		if got.delta == nil || got.bytes > whole.bytes*3/2 {
			t.Errorf("%s: %d bytes, where a snapshot has %d", what, got.bytes, whole.bytes)
		}
		// Applied to what it really has, what it was sent is right still.
		c := clone(have)
		replaced, err := got.delta.Buckets()
		if err != nil {
			t.Fatal(err)
		}
		digest.Settle(got.changes, c, replaced)
		got.changes.Apply(c)
		if string(encoded(t, c)) != string(encoded(t, have)) {
			t.Errorf("%s: the agent has something else than before", what)
		}
	}
}

// world is a cluster that changes at random.
type world struct {
	*rand.Rand
	c       *model.Cluster
	changes int
}

func newWorld(nodes, podsEach int) *world {
	return &world{Rand: rand.New(rand.NewPCG(5, 6)), c: fleet(nodes, podsEach)}
}

func (w *world) space() string { return []string{"a", "b", "c"}[w.IntN(3)] }
func (w *world) app() string   { return fmt.Sprint("app", w.IntN(4)) }

func (w *world) requires() *model.LabelSelector {
	return &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{w.app()}}}}
}

func (w *world) addr() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(w.IntN(len(w.c.Nodes))), byte(1 + w.IntN(60))})
}

func (w *world) policy() *model.Policy {
	ns := w.space()
	p := &model.Policy{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: ns, Name: fmt.Sprint("p", w.IntN(6))}, Tier: model.TierDefault, AppliesIngress: true,
		Subject: model.Selector{Namespace: ns, Pods: w.requires()}}
	for range 1 + w.IntN(3) {
		rule := model.Rule{Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: uint16(w.IntN(9)), Last: 9}}}
		switch w.IntN(5) {
		case 0:
			rule.Peers = []model.Peer{{Pods: &model.Selector{Namespace: w.space(), Pods: w.requires()}}}
		case 1:
			rule.Peers = []model.Peer{{Pods: &model.Selector{Namespaces: &model.LabelSelector{Requirements: []model.Requirement{{Key: "team", Op: model.Exists}}}}}}
		case 2:
			rule.Other = &model.Entity{Selector: fmt.Sprintf("app == '%s'", w.app())}
		case 3:
			rule.Other = &model.Entity{Service: model.Name{Namespace: w.space(), Name: "s1"}}
		case 4:
			rule.Ports = []model.PortRange{{Protocol: model.ProtocolTCP, Named: "http"}}
			p.AppliesEgress, p.Egress = true, []model.Rule{rule}
		}
		p.Ingress = append(p.Ingress, rule)
	}
	return p
}

func put[K comparable, V any](w *world, into *map[K]*V, k K, v *V) {
	if w.IntN(3) == 0 {
		v = nil
	}
	*into = map[K]*V{k: v}
}

// random returns a change of an object of some kind.
func (w *world) random() *model.Changes {
	w.changes++
	ch, uid := &model.Changes{}, fmt.Sprint("uid-", w.changes)
	name := func(prefix string, n int) model.Name {
		return model.Name{Namespace: w.space(), Name: fmt.Sprint(prefix, w.IntN(n))}
	}
	switch kind := w.IntN(24); kind {
	case 0:
		ns := w.space()
		put(w, &ch.Namespaces, ns, &model.Namespace{Name: ns, Labels: map[string]string{[]string{"team", "name"}[w.IntN(2)]: ns}})
	case 1:
		n := *w.c.Nodes[fmt.Sprint("n", w.IntN(len(w.c.Nodes)))]
		n.NotReady, n.Labels = w.IntN(2) == 0, map[string]string{"zone": w.app()}
		ch.Nodes = map[string]*model.Node{n.Name: &n}
	case 2:
		p := w.policy()
		p.Kind = model.KindStagedKubernetesNetworkPolicy
		put(w, &ch.Staged, p.ID(), &model.StagedPolicy{Policy: *p})
	case 3:
		s := &model.Service{Name: name("s", 3), ClusterIPs: []netip.Addr{w.addr()}, ExternalIPs: []netip.Addr{w.addr()}, UID: uid}
		put(w, &ch.Services, s.Name, s)
	case 4, 5:
		s := &model.EndpointSlice{Name: name("s", 3), NotCarried: w.IntN(2) == 0, Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{w.addr()}, Ready: w.IntN(2) == 0}}}
		s.Service = model.Name{Namespace: s.Name.Namespace, Name: "s1"}
		put(w, &ch.Slices, s.Name, s)
	case 6:
		s := &model.NetworkSet{Name: name("set", 3), Labels: map[string]string{"app": w.app()}, Nets: []netip.Prefix{netip.PrefixFrom(w.addr(), 24).Masked()}}
		put(w, &ch.NetworkSets, s.Name, s)
	case 7:
		s := &model.ServiceAccount{Name: name("sa", 2), Labels: map[string]string{"app": w.app()}}
		put(w, &ch.ServiceAccounts, s.Name, s)
	case 8:
		h := &model.HostEndpoint{Name: fmt.Sprint("h", w.IntN(3)), Node: fmt.Sprint("n", w.IntN(3)), Interface: "*", Labels: map[string]string{"app": w.app()}}
		put(w, &ch.HostEndpoints, h.Name, h)
	case 9:
		t := &model.Tier{Name: fmt.Sprint("t", w.IntN(3)), Order: float64(w.IntN(9))}
		put(w, &ch.Tiers, t.Name, t)
	case 10:
		b := &model.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(w.IntN(9)), 0}), 24), Node: fmt.Sprint("n", w.IntN(6)), UID: uid}
		put(w, &ch.Blocks, b.CIDR, b)
	case 11:
		p := &model.Pool{Name: "other", CIDR: netip.MustParsePrefix("10.128.0.0/16"), BlockBits: 24 + w.IntN(4)}
		put(w, &ch.Pools, p.Name, p)
	case 12:
		ch.ReservedChanged, ch.Reserved = true, []netip.Prefix{netip.PrefixFrom(w.addr(), 30).Masked()}
		ch.ServiceCIDRsChanged, ch.ServiceCIDRs = w.IntN(2) == 0, []netip.Prefix{netip.PrefixFrom(w.addr(), 16).Masked()}
	case 13, 14, 15:
		p := w.policy()
		put(w, &ch.Policies, p.ID(), p)
	default:
		p := &model.Pod{Name: name("pod-x-", 60), Node: fmt.Sprint("n", w.IntN(len(w.c.Nodes))), Addrs: []netip.Addr{w.addr()}, UID: uid, Labels: map[string]string{"app": w.app(), "other": w.app()},
			ServiceAccount: fmt.Sprint("sa", w.IntN(2)), HostNetwork: w.IntN(20) == 0, Finished: w.IntN(20) == 0}
		if w.IntN(2) == 0 {
			p.Ports = []model.PodPort{{Name: []string{"", "http"}[w.IntN(2)], Protocol: model.ProtocolTCP, Port: 80}}
		}
		put(w, &ch.Pods, p.Name, p)
	}
	return ch
}
