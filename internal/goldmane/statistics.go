// SPDX-License-Identifier: Apache-2.0

package goldmane

import (
	"cmp"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/goldmane/api"
)

// series are statistics of one policy or rule in a direction: by part of the time, of what came in
// and went out.
type series struct {
	result                                   *api.StatisticsResult
	allowedIn, allowedOut, deniedIn, deniedO map[int64]int64
}

// statistics answers with what policies, or rules, decided.
func (s *Server) statistics(in *api.StatisticsRequest, to grpc.ServerStreamingServer[api.StatisticsResult]) error {
	if in.GetGroupBy() != api.StatisticsGroupBy_Policy && in.GetGroupBy() != api.StatisticsGroupBy_PolicyRule {
		return status.Errorf(codes.InvalidArgument, "there is no group %d", in.GetGroupBy())
	}
	if in.GetType() < api.StatisticType_PacketCount || in.GetType() > api.StatisticType_LiveConnectionCount {
		return status.Errorf(codes.InvalidArgument, "there is no statistic %d", in.GetType())
	}
	of, err := spanOf(in.GetStartTimeGte(), in.GetStartTimeLt(), s.now())
	if err != nil {
		return err
	}
	r, done, err := s.Open(to.Context())
	if err != nil {
		return err
	}
	defer done()
	all := map[string]*series{}
	// The oldest record is not known before all are read, so records go into parts of the least
	// width.
	err = s.read(to.Context(), r, of, func(f *flows.Flow) error {
		for _, reporter := range reportersOf(f) {
			if err := count(all, in, f, reporter); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	keys := make([]string, 0, len(all))
	first, last := int64(0), int64(0)
	for key, one := range all {
		keys = append(keys, key)
		for _, m := range []map[int64]int64{one.allowedIn, one.allowedOut, one.deniedIn, one.deniedO} {
			for at := range m {
				if first == 0 || at < first {
					first = at
				}
				last = max(last, at)
			}
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(a, b) })
	parts := partsOf(first, last, in.GetTimeSeries())
	for _, key := range keys {
		if err := to.Send(all[key].told(parts)); err != nil {
			return err
		}
	}
	return nil
}

// count counts a record for the policies that an end's flow names as in force.
func count(all map[string]*series, in *api.StatisticsRequest, f *flows.Flow, reporter api.Reporter) error {
	k := keyOf(f, reporter)
	sent, received := amounts(in.GetType(), f)
	direction := api.RuleDirection_Egress
	if reporter == api.Reporter_Dst {
		direction = api.RuleDirection_Ingress
	}
	for _, h := range k.GetPolicies().GetEnforcedPolicies() {
		if in.GetPolicyMatch() != nil && !isPolicy(in.GetPolicyMatch(), h) && (h.GetTrigger() == nil || !isPolicy(in.GetPolicyMatch(), h.GetTrigger())) {
			continue
		}
		result := &api.StatisticsResult{Policy: h, Direction: direction, GroupBy: in.GetGroupBy(), Type: in.GetType()}
		if in.GetGroupBy() == api.StatisticsGroupBy_Policy {
			result.Policy = proto.CloneOf(h)
			result.Policy.Action, result.Policy.RuleIndex, result.Direction = 0, 0, api.RuleDirection_Any
		}
		key, err := encoded(result)
		if err != nil {
			return err
		}
		of := all[key]
		if of == nil {
			if len(all) >= mostFlows {
				return errTooMany
			}
			of = &series{result: result, allowedIn: map[int64]int64{}, allowedOut: map[int64]int64{}, deniedIn: map[int64]int64{}, deniedO: map[int64]int64{}}
			all[key] = of
		}
		at := f.End.Unix() / interval * interval
		to := map[bool]map[int64]int64{true: of.allowedIn, false: of.allowedOut}
		if f.Verdict != flows.Allowed {
			to = map[bool]map[int64]int64{true: of.deniedIn, false: of.deniedO}
		}
		// A rule for what comes in decides on connections from outside: all of these is its own.
		to[reporter == api.Reporter_Dst][at] += sent + received
	}
	return nil
}

// amounts are what a record carried of a statistic, in both directions.
func amounts(of api.StatisticType, f *flows.Flow) (sent, received int64) {
	switch of {
	case api.StatisticType_PacketCount:
		return int64(f.Sent.Packets), int64(f.Received.Packets)
	case api.StatisticType_ByteCount:
		return int64(f.Sent.Bytes), int64(f.Received.Bytes)
	}
	if f.Verdict == flows.Allowed && f.Ended == "" && f.Connections == 0 {
		return 1, 0 // of its interval
	}
	return 0, 0
}

// parts are those of a time series: the first begins at from.
type parts struct {
	from, width int64
	n           int
	series      bool
}

// partsOf divides a time into as many parts as are told at most.
func partsOf(first, last int64, series bool) parts {
	if !series || first == 0 {
		return parts{n: 1}
	}
	p := parts{from: first, width: interval, series: true}
	for (last-first)/p.width >= mostParts {
		p.width += interval
	}
	p.n = int((last-first)/p.width) + 1
	return p
}

// told is a series by parts.
func (s *series) told(p parts) *api.StatisticsResult {
	values := func(of map[int64]int64) []int64 {
		out := make([]int64, p.n)
		for at, n := range of {
			i := int64(0)
			if p.series {
				i = (at - p.from) / p.width
			}
			out[i] += n
		}
		return out
	}
	out := s.result
	out.AllowedIn, out.AllowedOut, out.DeniedIn, out.DeniedOut = values(s.allowedIn), values(s.allowedOut), values(s.deniedIn), values(s.deniedO)
	out.PassedIn, out.PassedOut = make([]int64, p.n), make([]int64, p.n)
	for i := range p.n {
		if p.series {
			out.X = append(out.X, p.from+int64(i)*p.width)
		}
	}
	return out
}
