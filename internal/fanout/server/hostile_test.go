// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/fanout/report"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// raw opens a stream by hand.
func (p *place) raw(t *testing.T, token string) stream.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(p.cert)
	conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{ServerName: "fanout.test", RootCAs: roots})),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MostSize*2)),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10)) // which otherwise grow, whoever reads
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	s, err := stream.Follow(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// endOf reads a stream to its end.
func endOf(s stream.Client) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

// received returns the names of pods that came until the end of the first changes.
func received(t *testing.T, s stream.Client) map[model.Name]bool {
	t.Helper()
	out := map[model.Name]bool{}
	for {
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Changes) == 0 {
			continue
		}
		d, err := (&wire.Decoder{}).Decode(resp.Changes)
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range d.Changes.Pods {
			out[name] = p != nil
		}
		if !resp.More {
			return out
		}
	}
}

// Who cannot prove to be the agent of a Node that exists gets nothing.
func TestHostileClientsOfFanOut(t *testing.T) {
	hostile.Record(t, "somebody without an agent's token, or with one of a Node that is gone, asks a fan-out for the cluster", hostile.Pod, hostile.ControlPlane, hostile.Both)
	t.Parallel()
	p := newPlace(t, nil)
	p.fill(fleet(3, 4))
	p.tokens.expire("n1 agent-old")
	for what, token := range map[string]string{"without a token": "", "with rubbish": "rubbish", "with one that expired": "n1 agent-old", "of a Node that is not there": "n77 agent-n77"} {
		s := p.raw(t, token)
		_ = s.Send(&stream.Request{Endpoints: &stream.Endpoints{}}) // may have been refused already
		if err := endOf(s); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", what, err)
		}
	}
	s := p.raw(t, tokenOf("n1"))
	_ = s.Send(&stream.Request{Endpoints: &stream.Endpoints{All: []*stream.Endpoint{{Addrs: [][]byte{{1, 2, 3}}}}}})
	if err := endOf(s); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an address of three bytes: %v", err)
	}
}

// A node gets the policies and peers of its own pods, whichever it says that it has.
func TestHostileEndpointsOfOthers(t *testing.T) {
	hostile.Record(t, "a compromised node says that it has the pods of other nodes, to read their policies and peers from a fan-out", hostile.Node, hostile.ControlPlane, hostile.Both)
	t.Parallel()
	c := fleet(3, 4)
	for name, pod := range c.Pods.ByName() { // on n0 is no pod that a policy selects
		if pod.Node == "n0" && name.Namespace == "b" {
			c.Pods.Delete(name)
		}
	}
	p := newPlace(t, nil)
	p.fill(c)
	victim := model.Name{Namespace: "b", Name: "pod-1-1"}
	s := p.raw(t, tokenOf("n0"))
	claim := stream.EndpointsFrom(map[netip.Addr]model.Name{netip.MustParseAddr("10.0.0.250"): victim})
	if err := s.Send(&stream.Request{Endpoints: claim}); err != nil {
		t.Fatal(err)
	}
	for name := range received(t, s) {
		if c.Pods.Get(name).Node != "n0" {
			t.Errorf("the node was sent pod %s of node %s", name, c.Pods.Get(name).Node)
		}
	}
	// What is not placed yet may be its own: it gets what that needs.
	young := &model.Pod{Name: model.Name{Namespace: "b", Name: "young"}, UID: "young"}
	change(c, pods(young), p)
	claim = stream.EndpointsFrom(map[netip.Addr]model.Name{netip.MustParseAddr("10.0.0.250"): young.Name})
	if err := s.Send(&stream.Request{Endpoints: claim}); err != nil {
		t.Fatal(err)
	}
	if got := received(t, s); !got[model.Name{Namespace: "a", Name: "pod-1-0"}] {
		t.Errorf("the node was not sent the peers of its new pod: %v", got)
	}
}

// An agent whose pod or Node is gone, or whose token ends, is left.
func TestHostileAgentThatIsGone(t *testing.T) {
	hostile.Record(t, "an agent's token is used after its pod or Node is gone, or after it expired", hostile.Node, hostile.ControlPlane, hostile.Both)
	t.Parallel()
	c := fleet(4, 2)
	p := newPlace(t, func(cfg *Config) { cfg.ReviewEvery = 100 * time.Millisecond })
	p.fill(c)
	streams := map[string]stream.Client{}
	for _, node := range []string{"n0", "n1", "n2", "n3"} {
		streams[node] = p.raw(t, tokenOf(node))
		if err := streams[node].Send(&stream.Request{Endpoints: &stream.Endpoints{}}); err != nil {
			t.Fatal(err)
		}
		received(t, streams[node])
	}
	change(c, &model.Changes{Pods: map[model.Name]*model.Pod{{Namespace: "kube-system", Name: "weir-n0"}: nil}}, p)
	change(c, &model.Changes{Nodes: map[string]*model.Node{"n1": nil}}, p)
	p.tokens.expire(tokenOf("n2"))
	for node, why := range map[string]string{"n0": "pod is gone", "n1": "Node is gone", "n2": "does not count"} {
		if err := endOf(streams[node]); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), why) {
			t.Errorf("agent of %s: %v", node, err)
		}
	}
	if got := p.server.Followers(); len(got) != 1 || got[0].Node != "n3" {
		t.Errorf("still served: %+v", got)
	}
	// Another agent of the node takes the place of the one before.
	again := p.raw(t, tokenOf("n3"))
	if err := again.Send(&stream.Request{Endpoints: &stream.Endpoints{}}); err != nil {
		t.Fatal(err)
	}
	received(t, again)
	if err := endOf(streams["n3"]); status.Code(err) != codes.Aborted {
		t.Errorf("the agent before: %v", err)
	}
}

// An agent that does not read gets the last of many changes, and nothing is kept for it but which
// objects changed.
func TestHostileAgentThatDoesNotRead(t *testing.T) {
	hostile.Record(t, "an agent does not read what a fan-out sends it", hostile.Node, hostile.ControlPlane, hostile.Both)
	t.Parallel()
	c := fleet(2, 2)
	p := newPlace(t, nil)
	p.fill(c)
	s := p.raw(t, tokenOf("n0"))
	if err := s.Send(&stream.Request{Endpoints: &stream.Endpoints{}}); err != nil {
		t.Fatal(err)
	}
	received(t, s)
	space := *c.Namespaces["a"]
	const rounds = 3000
	for i := range rounds { // some 60 MB in all, if each were sent
		now := space
		now.Labels = map[string]string{"n": strings.Repeat("x", 20_000), "i": string(rune('a' + i%26))}
		change(c, &model.Changes{Namespaces: map[string]*model.Namespace{"a": &now}}, p)
		if i%100 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	messages := 0
	for end := false; !end; {
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Changes) == 0 {
			continue
		}
		messages++
		d, err := (&wire.Decoder{}).Decode(resp.Changes)
		if err != nil {
			t.Fatal(err)
		}
		got := d.Changes.Namespaces["a"]
		end = got != nil && got.Labels["i"] == c.Namespaces["a"].Labels["i"] && len(p.server.Followers()) == 1 && p.server.Followers()[0].Behind == 0
	}
	if messages > rounds/4 {
		t.Errorf("%d messages for %d changes that were not read", messages, rounds)
	}
}

// TestAnotherReplica holds that an agent goes on with another replica when its own ends or is out
// of touch with the API server, and gets there what it has not.
func TestAnotherReplica(t *testing.T) {
	t.Parallel()
	c := fleet(3, 4)
	one, two := newPlace(t, nil), newPlace(t, nil)
	one.fill(c)
	a := newAgent(t, "n1", tokenOf("n1"), one, two)
	eventually(t, "the snapshot of the first", func() bool { return a.has(t, c, "n1") })
	if at := a.Status().FanOut; at != one.addr {
		t.Fatalf("it is fed by %q, want %q: the other one is not ready", at, one.addr)
	}
	// The second one knows what the first one does not.
	gone := model.Name{Namespace: "b", Name: "pod-1-1"}
	later := clone(c)
	later.Pods.Delete(gone)
	two.fill(later)
	one.stop()
	eventually(t, "the part as the second has it", func() bool { return a.has(t, later, "n1") })
	a.mu.Lock()
	fulls := a.fulls
	a.mu.Unlock()
	if st := a.Status(); st.FanOut != two.addr || !st.Connected || fulls != 1 {
		t.Errorf("status %+v, %d snapshots", st, fulls)
	}
	began := time.Now()
	eventually(t, "what was said last, which is new", func() bool { return a.Status().AsOf.After(began) })
	lost := time.Now().Add(-time.Minute)
	two.setStatus(watch.Status{Synced: true, Connected: false, Since: lost, Err: "connection refused"})
	eventually(t, "that the fan-out is out of touch", func() bool { st := a.Status(); return !st.Connected && strings.Contains(st.Err, "connection refused") })
	// It is as old as that after the fan-out has ended, too.
	two.stop()
	eventually(t, "that no fan-out is there", func() bool { return a.Status().FanOut == "" })
	if st := a.Status(); st.AsOf.After(began) || st.AsOf.Before(lost.Add(-time.Minute)) || !st.Since.After(lost) {
		t.Errorf("as of %s, lost at %s: %+v", st.AsOf, lost, st)
	}
}

// TestOutOfTouch holds that an agent leaves a replica that has lost the API server for one that has
// it.
func TestOutOfTouch(t *testing.T) {
	t.Parallel()
	c := fleet(3, 4)
	places := []*place{newPlace(t, nil), newPlace(t, nil)}
	for _, p := range places {
		p.fill(c)
	}
	a := newAgent(t, "n1", tokenOf("n1"), places...)
	eventually(t, "the snapshot", func() bool { return a.has(t, c, "n1") })
	at, other := places[0], places[1]
	if a.Status().FanOut == other.addr {
		at, other = other, at
	}
	at.setStatus(watch.Status{Synced: true, Connected: false, Since: time.Now().Add(-time.Minute), Err: "connection refused"})
	eventually(t, "the other replica", func() bool { st := a.Status(); return st.FanOut == other.addr && st.Connected })
	now := *c.Pods.Get(model.Name{Namespace: "a", Name: "pod-0-0"})
	now.UID = "again"
	change(c, pods(&now), places...)
	eventually(t, "what changed", func() bool { return a.has(t, c, "n1") })
}

// TestConnectionsOfAgentsAreKept holds that agents that have proved who they are do not count among
// the connections that one address may have.
func TestConnectionsOfAgentsAreKept(t *testing.T) {
	t.Parallel()
	c := fleet(2*maxPerSource, 1)
	p := newPlace(t, nil)
	p.fill(c)
	for node := range c.Nodes {
		s := p.raw(t, tokenOf(node))
		if err := s.Send(&stream.Request{Endpoints: &stream.Endpoints{}}); err != nil {
			t.Fatal(err)
		}
		received(t, s)
	}
	if n := len(p.server.Followers()); n != len(c.Nodes) {
		t.Errorf("%d of %d agents are served", n, len(c.Nodes))
	}
}

// Agents that do not read their snapshots keep others from theirs for a while only.
func TestHostileSnapshotsThatAreNotRead(t *testing.T) {
	hostile.Record(t, "agents of many compromised nodes do not read their snapshots, so that others wait for theirs", hostile.Node, hostile.ControlPlane, hostile.Both)
	t.Parallel()
	c := fleet(2*maxSnapshots+1, 1)
	for i := range 400 { // more than a stream's window takes
		ns := &model.Namespace{Name: fmt.Sprint("large-", i), Labels: map[string]string{"l": fmt.Sprint(i, strings.Repeat("x", 10_000))}}
		c.Namespaces[ns.Name] = ns
	}
	p := newPlace(t, func(cfg *Config) { cfg.SnapshotWithin = 200 * time.Millisecond })
	p.fill(c)
	for i := range 2 * maxSnapshots {
		s := p.raw(t, tokenOf(fmt.Sprint("n", i)))
		if err := s.Send(&stream.Request{Endpoints: &stream.Endpoints{}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the agents that do not read", func() bool { return len(p.server.Followers()) == 2*maxSnapshots })
	eventually(t, "that they are said to be behind", func() bool {
		return !slices.ContainsFunc(p.server.Followers(), func(f report.Agent) bool { return f.Behind < 300*time.Millisecond })
	})
	last := fmt.Sprint("n", 2*maxSnapshots)
	a := newAgent(t, last, tokenOf(last), p)
	eventually(t, "the snapshot of one that reads", func() bool { return a.has(t, c, last) })
}
