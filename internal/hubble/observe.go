// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/hubble/api/flow"
	"github.com/weir-net/weir/internal/hubble/api/observer"
)

// request is what GetFlows was asked, read.
type request struct {
	filter
	number       uint64 // 0 = all
	first        bool   // the first of them, not the last
	since, until time.Time
	follow       bool
	mask         *fieldmaskpb.FieldMask // nil = all fields
}

func readRequest(in *observer.GetFlowsRequest) (r request, err error) {
	r = request{number: in.GetNumber(), first: in.GetFirst(), follow: in.GetFollow(), mask: in.GetFieldMask()}
	for _, t := range []struct {
		name string
		is   *timestamppb.Timestamp
		to   *time.Time
	}{{"since", in.GetSince(), &r.since}, {"until", in.GetUntil(), &r.until}} {
		if t.is == nil {
			continue
		}
		if err := t.is.CheckValid(); err != nil {
			return r, status.Errorf(codes.InvalidArgument, "%s: %v", t.name, err)
		}
		*t.to = t.is.AsTime()
	}
	switch {
	case r.first && r.follow:
		return r, status.Error(codes.InvalidArgument, "first and follow exclude each other")
	case r.mask != nil && len(r.mask.GetPaths()) == 0:
		r.mask = nil
	case r.mask != nil && !r.mask.IsValid(&flow.Flow{}):
		return r, status.Errorf(codes.InvalidArgument, "field mask %q names fields that a flow does not have", r.mask.GetPaths())
	}
	if r.filter, err = newFilter(in.GetWhitelist(), in.GetBlacklist()); err != nil {
		return r, status.Error(codes.InvalidArgument, err.Error())
	}
	return r, nil
}

// in says whether a record is of the time that was asked for.
func (r request) in(f *flows.Flow) bool {
	return (r.since.IsZero() || !f.End.Before(r.since)) && (r.until.IsZero() || !f.End.After(r.until))
}

// getFlows answers with records by their end, oldest first, and goes on with those of the following
// intervals where it is to.
func (s *Server) getFlows(in *observer.GetFlowsRequest, to grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	r, err := readRequest(in)
	if err != nil {
		return err
	}
	records, first, flushed := s.Records.From(0)
	next := first + uint64(len(records))
	if r.follow && r.number == 0 && r.since.IsZero() {
		records = nil // what comes from now on
	}
	lost := s.lost()
	if err := s.send(r, records, to); err != nil {
		return err
	}
	for r.follow && (r.until.IsZero() || time.Now().Before(r.until)) {
		select {
		case <-to.Context().Done():
			return to.Context().Err()
		case <-flushed:
		}
		records, first, flushed = s.Records.From(next)
		now := s.lost()
		for _, l := range []struct {
			n     uint64
			where flow.LostEventSource
		}{
			{first - next, flow.LostEventSource_HUBBLE_RING_BUFFER}, {grown(lost.queue, now.queue), flow.LostEventSource_OBSERVER_EVENTS_QUEUE},
			{grown(lost.ring, now.ring), flow.LostEventSource_PERF_EVENT_RING_BUFFER},
		} {
			if l.n == 0 {
				continue
			}
			if err := to.Send(lostEvent(s.Node, l.where, l.n)); err != nil {
				return err
			}
		}
		next, lost, r.number = first+uint64(len(records)), now, 0
		if err := s.send(r, records, to); err != nil {
			return err
		}
	}
	return nil
}

// counted is what was lost before it was a record: in the agent, and between the data plane and it.
type counted struct{ queue, ring uint64 }

func (s *Server) lost() counted {
	l := s.Status().Lost
	return counted{queue: l["interval"], ring: l["ring"] + l["expired"] + l["evicted"] + l["events"]}
}

// grown is by how much a counter grew, which begins again with another data plane.
func grown(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// send sends those of the records that are wanted, oldest first.
func (s *Server) send(r request, records []*flows.Flow, to grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	records = slices.DeleteFunc(records, func(f *flows.Flow) bool { return !r.in(f) })
	slices.SortStableFunc(records, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
	c := s.newConverter()
	if r.number != 0 && !r.first {
		records = r.last(c, records)
	}
	sent := uint64(0)
	for _, f := range records {
		if r.first && r.number != 0 && sent == r.number {
			return nil
		}
		one, err := r.send(c, f, to)
		if err != nil {
			return err
		}
		if one {
			sent++
		}
	}
	return nil
}

// send sends a record if it is wanted.
func (r request) send(c converter, f *flows.Flow, to grpc.ServerStreamingServer[observer.GetFlowsResponse]) (sent bool, err error) {
	out := c.flowOf(f)
	if !r.wants(out) {
		return false, nil
	}
	if err := extend(out, f); err != nil {
		return false, status.Error(codes.Internal, err.Error())
	}
	mask(out, r.mask)
	return true, to.Send(&observer.GetFlowsResponse{NodeName: f.Node, Time: timestamppb.New(f.End), ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: out}})
}

// last returns the last records that are wanted, as many as there should be. What they are
// converted to is not kept: it is many times as large.
func (r request) last(c converter, records []*flows.Flow) []*flows.Flow {
	var out []*flows.Flow
	for i := len(records) - 1; i >= 0 && uint64(len(out)) < r.number; i-- {
		if r.wants(c.flowOf(records[i])) {
			out = append(out, records[i])
		}
	}
	slices.Reverse(out)
	return out
}

// mask leaves of a Flow what a field mask names; nil = all.
func mask(f *flow.Flow, m *fieldmaskpb.FieldMask) {
	if m == nil {
		return
	}
	whole := proto.Clone(f)
	proto.Reset(f)
	for _, path := range m.GetPaths() {
		copyField(f.ProtoReflect(), whole.ProtoReflect(), path)
	}
}

// copyField copies the field at a path, "source.pod_name", where it is set.
func copyField(to, from protoreflect.Message, path string) {
	name, rest, deeper := strings.Cut(path, ".")
	field := from.Descriptor().Fields().ByName(protoreflect.Name(name))
	switch {
	case field == nil || !from.Has(field):
	case deeper && field.Message() != nil && !field.IsList():
		copyField(to.Mutable(field).Message(), from.Get(field).Message(), rest)
	default:
		to.Set(field, from.Get(field))
	}
}
