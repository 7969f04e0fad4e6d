// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"crypto/tls"
	"errors"
	"hash/fnv"
	"maps"
	"math"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/hubble/api/flow"
	"github.com/weir-net/weir/internal/hubble/api/observer"
	"github.com/weir-net/weir/internal/hubble/api/relay"
)

// Reader reads the records of all nodes that one user may see.
type Reader interface {
	// Read hands on those of a question until give returns an error, which it returns then: the
	// latest first, or the oldest first where the question says so.
	Read(ctx context.Context, q flows.Question, give func(*flows.Flow) error) error
	// Status is how the store is. What it says of records is about all of them, so it is asked for
	// who may see all.
	Status(ctx context.Context) (*flows.StoreStatus, error)
	All() bool
}

// Stored answers for all nodes of a cluster from the store of their records, each user what the
// user may see.
type Stored struct {
	// Open returns what reads for who asks; its errors have a status. done ends it.
	Open    func(ctx context.Context) (r Reader, done func(), err error)
	Nodes   func(ctx context.Context) ([]Node, error)
	Version string
	Began   time.Time
}

const (
	// mostLast bounds how many of the last records an answer has: they are in memory.
	mostLast = 20_000
	// lookForRecords is between two looks at the store for who follows, which is told records whose
	// end is at most lateMost ago.
	lookForRecords = 5 * time.Second
	lateMost       = 2 * time.Minute
)

// Serve answers by TLS at a listener, which it closes, until ctx ends; and so does what else is
// registered.
func (s *Stored) Serve(ctx context.Context, l net.Listener, cfg *tls.Config, also ...func(*grpc.Server)) error {
	return serve(ctx, l, func(g *grpc.Server) {
		register(g, s)
		for _, register := range also {
			register(g)
		}
	}, grpc.Creds(credentials.NewTLS(cfg)))
}

// errEnough ends reading.
var errEnough = errors.New("enough")

// question is what the store is asked for a request; its times are not exact, as in says.
func (r request) question() flows.Question {
	q := flows.Question{}
	if !r.since.IsZero() {
		q.Since = r.since.Add(-time.Millisecond)
	}
	if !r.until.IsZero() {
		q.Until = r.until.Add(time.Millisecond)
	}
	return q
}

// getFlows is as Server's. What follows is looked for every lookForRecords.
func (s *Stored) getFlows(in *observer.GetFlowsRequest, to grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	r, err := readRequest(in)
	if err != nil {
		return err
	}
	if !r.first && r.number == math.MaxUint64 {
		r.number = 0 // all, as hubble observe --all says it
	}
	if !r.first && r.number > mostLast {
		return status.Errorf(codes.InvalidArgument, "the last %d flows: %d are the most; ask for all of a time", r.number, mostLast)
	}
	ctx := to.Context()
	of, done, err := s.Open(ctx)
	if err != nil {
		return err
	}
	defer done()
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	w := &writer{r: r, to: to, c: converterOf(nodes)}
	seen := map[uint64]time.Time{}
	var lost map[string]uint64
	if r.follow {
		if lost, err = s.lostSoFar(ctx, of); err != nil {
			return err
		}
		// What is there already is not told again.
		q := flows.Question{Filter: flows.Filter{Since: time.Now().Add(-lateMost)}}
		if err := s.read(ctx, of, q, func(f *flows.Flow) error {
			seen[identify(f)] = f.End
			return nil
		}); err != nil {
			return err
		}
	}
	switch {
	case r.follow && r.number == 0 && r.since.IsZero(): // what comes from now on
	case r.number != 0 && !r.first:
		err = w.last(func(give func(*flows.Flow) error) error { return s.read(ctx, of, r.question(), give) })
	default:
		q := r.question()
		q.Oldest = true
		err = s.read(ctx, of, q, w.give)
	}
	if err != nil {
		return err
	}
	w.r.number = 0
	for r.follow && (r.until.IsZero() || time.Now().Before(r.until)) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookForRecords):
		}
		since := time.Now().Add(-lateMost)
		var fresh []*flows.Flow
		if err := s.read(ctx, of, flows.Question{Filter: flows.Filter{Since: since}}, func(f *flows.Flow) error {
			if id := identify(f); seen[id].IsZero() {
				seen[id] = f.End
				fresh = append(fresh, f)
			}
			return nil
		}); err != nil {
			return err
		}
		maps.DeleteFunc(seen, func(_ uint64, end time.Time) bool { return end.Before(since.Add(-lookForRecords)) })
		slices.SortStableFunc(fresh, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
		now, err := s.lostSoFar(ctx, of)
		if err != nil {
			return err
		}
		if err := tellLost(to, lost, now); err != nil {
			return err
		}
		lost = now
		for _, f := range fresh {
			if err := w.give(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// lostSoFar is what the store has counted as lost. It is about all records, so who may not see all
// is not told.
func (s *Stored) lostSoFar(ctx context.Context, of Reader) (map[string]uint64, error) {
	if !of.All() {
		return nil, nil
	}
	st, err := of.Status(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return st.Counted, nil
}

// lostWhere says where records are lost that no follower gets. Those that a store had and has no
// more are none.
var lostWhere = map[string]flow.LostEventSource{
	"old":      flow.LostEventSource_HUBBLE_RING_BUFFER,
	"interval": flow.LostEventSource_OBSERVER_EVENTS_QUEUE, "queue": flow.LostEventSource_OBSERVER_EVENTS_QUEUE, "time": flow.LostEventSource_OBSERVER_EVENTS_QUEUE, "large": flow.LostEventSource_OBSERVER_EVENTS_QUEUE,
	"ring": flow.LostEventSource_PERF_EVENT_RING_BUFFER, "expired": flow.LostEventSource_PERF_EVENT_RING_BUFFER, "evicted": flow.LostEventSource_PERF_EVENT_RING_BUFFER, "events": flow.LostEventSource_PERF_EVENT_RING_BUFFER,
}

// tellLost tells a follower what was lost meanwhile.
func tellLost(to grpc.ServerStreamingServer[observer.GetFlowsResponse], before, now map[string]uint64) error {
	of := map[flow.LostEventSource]uint64{}
	for why, n := range now {
		if where, is := lostWhere[why]; is {
			of[where] += grown(before[why], n)
		}
	}
	for _, where := range slices.Sorted(maps.Keys(of)) {
		if of[where] == 0 {
			continue
		}
		if err := to.Send(lostEvent("", where, of[where])); err != nil {
			return err
		}
	}
	return nil
}

// lostEvent says how many records are lost, on a node or on any.
func lostEvent(node string, where flow.LostEventSource, n uint64) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{NodeName: node, Time: timestamppb.Now(),
		ResponseTypes: &observer.GetFlowsResponse_LostEvents{LostEvents: &flow.LostEvent{Source: where, NumEventsLost: n}}}
}

// read reads, and gives errors a status.
func (s *Stored) read(ctx context.Context, of Reader, q flows.Question, give func(*flows.Flow) error) error {
	err := of.Read(ctx, q, give)
	switch _, is := status.FromError(err); {
	case err == nil || errors.Is(err, errEnough):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case is:
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

// identify tells records apart.
func identify(f *flows.Flow) uint64 {
	h := fnv.New64a()
	for _, text := range []string{f.Node, f.End.UTC().Format(time.RFC3339Nano), f.Protocol, f.ICMP, f.Verdict, f.Reason, f.Source.Address.String(), f.Destination.Address.String()} {
		_, _ = h.Write([]byte(text + "\x00")) // never fails
	}
	_, _ = h.Write([]byte{byte(f.Source.Port >> 8), byte(f.Source.Port), byte(f.Destination.Port >> 8), byte(f.Destination.Port)})
	return h.Sum64()
}

// writer sends the wanted ones of records.
type writer struct {
	r    request
	c    converter
	to   grpc.ServerStreamingServer[observer.GetFlowsResponse]
	sent uint64
}

// give sends a record that is wanted; errEnough = no more are.
func (w *writer) give(f *flows.Flow) error {
	if !w.r.in(f) {
		return nil
	}
	if w.r.first && w.r.number != 0 && w.sent == w.r.number {
		return errEnough
	}
	sent, err := w.r.send(w.c.at(f.Node), f, w.to)
	if sent {
		w.sent++
	}
	return err
}

// last sends the last records that are wanted of those that read reads, the latest first.
func (w *writer) last(read func(func(*flows.Flow) error) error) error {
	var found []*flows.Flow
	err := read(func(f *flows.Flow) error {
		if !w.r.in(f) || !w.r.wants(w.c.at(f.Node).flowOf(f)) {
			return nil
		}
		if found = append(found, f); uint64(len(found)) == w.r.number {
			return errEnough
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(found, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
	for _, f := range found {
		if err := w.give(f); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stored) serverStatus(ctx context.Context, _ *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	of, done, err := s.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	out := &observer.ServerStatusResponse{UptimeNs: uint64(time.Since(s.Began).Nanoseconds()), Version: s.Version, NumConnectedNodes: wrapperspb.UInt32(1), NumUnavailableNodes: wrapperspb.UInt32(0)}
	st, err := of.Status(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	out.NumConnectedNodes.Value, out.NumUnavailableNodes.Value = uint32(st.Nodes), uint32(len(st.Silent))
	if of.All() {
		out.NumFlows, out.MaxFlows, out.SeenFlows = uint64(st.Records), uint64(st.Records), uint64(st.Records)
	}
	return out, nil
}

// getNodes answers with the nodes of the cluster, which are those whose records the store takes but
// for the ones that it names as silent.
func (s *Stored) getNodes(ctx context.Context, _ *observer.GetNodesRequest) (*observer.GetNodesResponse, error) {
	of, done, err := s.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if !of.All() {
		return nil, status.Error(codes.PermissionDenied, "nodes are for those who may list the flows of all namespaces")
	}
	st, err := of.Status(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	out := &observer.GetNodesResponse{}
	for _, n := range nodes {
		state := relay.NodeState_NODE_CONNECTED
		if slices.Contains(st.Silent, n.Name) {
			state = relay.NodeState_NODE_UNAVAILABLE
		}
		out.Nodes = append(out.Nodes, &observer.Node{Name: n.Name, State: state})
	}
	return out, nil
}

func (s *Stored) getNamespaces(ctx context.Context, _ *observer.GetNamespacesRequest) (*observer.GetNamespacesResponse, error) {
	of, done, err := s.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	names := map[string]bool{}
	err = s.read(ctx, of, flows.Question{Filter: flows.Filter{Since: time.Now().Add(-namespacesOver)}}, func(f *flows.Flow) error {
		noteNamespaces(names, f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return namespacesOf(names), nil
}
