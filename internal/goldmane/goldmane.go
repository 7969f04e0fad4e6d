// SPDX-License-Identifier: Apache-2.0

// Package goldmane serves Goldmane's APIs Flows and Statistics, which Calico's Whisker asks, over
// the store of flow records. Records of one key (the ends, the port, what was decided by which
// policies, and at which end) are one flow of the time that is asked for. Records are read and
// summed when somebody asks; nothing is kept.
package goldmane

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/goldmane/api"
	"github.com/weir-net/weir/internal/grpcmethod"
)

// Reader reads the records of all nodes that one user may see.
type Reader interface {
	// Read hands on those of a question until give returns an error, which it returns then.
	Read(ctx context.Context, q flows.Question, give func(*flows.Flow) error) error
}

// Server answers each user what the user may see.
type Server struct {
	// Open returns what reads for who asks; its errors have a status. done ends it.
	Open func(ctx context.Context) (r Reader, done func(), err error)
	now  func() time.Time
}

const (
	// interval is the width of the parts of time, seconds, that flows are told by.
	interval = 15
	// mostFlows bounds the keys of an answer: they are in memory.
	mostFlows = 20_000
	// mostConnections bounds the connections that are told apart; numbers of more are not known.
	mostConnections = 200_000
	// mostValues bounds the values of a field of a filter.
	mostValues = 1024
	// mostParts bounds the parts of a time series.
	mostParts = 960
)

// Register has g answer by s.
func (s *Server) Register(g *grpc.Server) {
	if s.now == nil {
		s.now = time.Now
	}
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "goldmane.Flows", Metadata: "goldmane.proto",
		Methods: []grpc.MethodDesc{grpcmethod.Unary("goldmane.Flows", "List", s.list), grpcmethod.Unary("goldmane.Flows", "FilterHints", s.hints)},
		Streams: []grpc.StreamDesc{grpcmethod.Streaming("Stream", s.stream)}}, nil)
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "goldmane.Statistics", Metadata: "goldmane.proto", Streams: []grpc.StreamDesc{grpcmethod.Streaming("List", s.statistics)}}, nil)
}

// span is a time: from on, and before until.
type span struct{ from, until time.Time }

// spanOf reads the times of a request.
func spanOf(from, until int64, now time.Time) (span, error) {
	at := func(seconds int64, zero time.Time) time.Time {
		switch {
		case seconds == 0:
			return zero
		case seconds < 0:
			return now.Add(max(time.Duration(seconds), -1<<32) * time.Second)
		}
		return time.Unix(seconds, 0)
	}
	s := span{at(from, time.Time{}), at(until, now)}
	if !s.from.Before(s.until) {
		return s, status.Error(codes.InvalidArgument, "the time that is asked for ends before it begins")
	}
	return s, nil
}

// read hands on the records that ended in a time.
func (s *Server) read(ctx context.Context, r Reader, of span, give func(*flows.Flow) error) error {
	q := flows.Question{Filter: flows.Filter{Until: of.until}}
	if !of.from.IsZero() {
		q.Since = of.from.Add(-time.Millisecond)
	}
	err := r.Read(ctx, q, func(f *flows.Flow) error {
		if f.End.Before(of.from) || !f.End.Before(of.until) {
			return nil
		}
		return give(f)
	})
	switch _, is := status.FromError(err); {
	case err == nil || is:
		return err
	case errors.Is(err, errTooMany):
		return status.Errorf(codes.ResourceExhausted, "there are more than %d flows: ask for a shorter time", mostFlows)
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Unavailable, err.Error())
}

// sums are the flows of a time that a filter wants.
func (s *Server) sums(ctx context.Context, in *api.Filter, of span) ([]*api.FlowResult, error) {
	f, err := newFilter(in)
	if err != nil {
		return nil, err
	}
	r, done, err := s.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	a := newSums(f)
	if err := s.read(ctx, r, of, a.add); err != nil {
		return nil, err
	}
	return a.results(), nil
}

func (s *Server) list(ctx context.Context, in *api.FlowListRequest) (*api.FlowListResult, error) {
	if n := in.GetAggregationInterval(); n < 0 || n%interval != 0 {
		return nil, status.Errorf(codes.InvalidArgument, "aggregation interval %d: a multiple of %d seconds", n, interval)
	}
	less, err := sortedBy(in.GetSortBy())
	if err != nil {
		return nil, err
	}
	of, err := spanOf(in.GetStartTimeGte(), in.GetStartTimeLt(), s.now())
	if err != nil {
		return nil, err
	}
	all, err := s.sums(ctx, in.GetFilter(), of)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, less)
	page, meta, err := pageOf(all, in.GetPage(), in.GetPageSize())
	if err != nil {
		return nil, err
	}
	return &api.FlowListResult{Meta: meta, Flows: page}, nil
}

// pageOf is a page of all; without a size all are one.
func pageOf[T any](all []T, page, size int64) ([]T, *api.ListMetadata, error) {
	total := int64(len(all))
	meta := &api.ListMetadata{TotalPages: 1, TotalResults: total}
	switch {
	case page < 0 || size < 0 || size == 0 && page > 0:
		return nil, nil, status.Error(codes.InvalidArgument, "a page needs its size, and neither is below zero")
	case size == 0:
		return all, meta, nil
	}
	meta.TotalPages = (total + size - 1) / size
	if page >= meta.TotalPages {
		return nil, meta, nil
	}
	return all[page*size : min(total, (page+1)*size)], meta, nil
}

// stream tells the flows of each part of time once it is over for as long again, as nodes tell
// their records up to an interval late.
func (s *Server) stream(in *api.FlowStreamRequest, to grpc.ServerStreamingServer[api.FlowResult]) error {
	if n := in.GetAggregationInterval(); n != 0 && n != interval {
		return status.Errorf(codes.InvalidArgument, "aggregation interval %d: it is %d seconds", n, interval)
	}
	f, err := newFilter(in.GetFilter())
	if err != nil {
		return err
	}
	ctx := to.Context()
	r, done, err := s.Open(ctx)
	if err != nil {
		return err
	}
	defer done()
	now := s.now()
	next := now
	if in.GetStartTimeGte() != 0 {
		of, err := spanOf(in.GetStartTimeGte(), 0, now)
		if err != nil {
			return err
		}
		next = of.from
	}
	const width = interval * time.Second
	for next = next.Truncate(width); ; next = next.Add(width) {
		if wait := next.Add(2 * width).Sub(s.now()); wait > 0 {
			select {
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			case <-time.After(wait):
			}
		}
		a := newSums(f)
		if err := s.read(ctx, r, span{next, next.Add(width)}, a.add); err != nil {
			return err
		}
		for _, one := range a.results() {
			if err := to.Send(one); err != nil {
				return err
			}
		}
	}
}

// hints answers with the values that a field has in flows that a filter wants.
func (s *Server) hints(ctx context.Context, in *api.FilterHintsRequest) (*api.FilterHintsResult, error) {
	values := map[api.FilterType]func(*api.FlowKey) []string{
		api.FilterType_FilterTypeDestName:        func(k *api.FlowKey) []string { return []string{k.GetDestName()} },
		api.FilterType_FilterTypeSourceName:      func(k *api.FlowKey) []string { return []string{k.GetSourceName()} },
		api.FilterType_FilterTypeDestNamespace:   func(k *api.FlowKey) []string { return []string{k.GetDestNamespace()} },
		api.FilterType_FilterTypeSourceNamespace: func(k *api.FlowKey) []string { return []string{k.GetSourceNamespace()} },
		api.FilterType_FilterTypePolicyTier:      func(k *api.FlowKey) []string { return ofPolicies(k, (*api.PolicyHit).GetTier) },
		api.FilterType_FilterTypePolicyName:      func(k *api.FlowKey) []string { return ofPolicies(k, (*api.PolicyHit).GetName) },
	}[in.GetType()]
	if values == nil {
		return nil, status.Errorf(codes.InvalidArgument, "there is no type %d of filters", in.GetType())
	}
	of, err := spanOf(in.GetStartTimeGte(), in.GetStartTimeLt(), s.now())
	if err != nil {
		return nil, err
	}
	all, err := s.sums(ctx, in.GetFilter(), of)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range all {
		names = append(names, values(r.GetFlow().GetKey())...)
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == "" })
	page, meta, err := pageOf(names, in.GetPage(), in.GetPageSize())
	if err != nil {
		return nil, err
	}
	out := &api.FilterHintsResult{Meta: meta}
	for _, n := range page {
		out.Hints = append(out.Hints, &api.FilterHint{Value: n})
	}
	return out, nil
}

func ofPolicies(k *api.FlowKey, value func(*api.PolicyHit) string) (out []string) {
	for _, h := range hitsOf(k) {
		out = append(out, value(h))
	}
	return out
}
