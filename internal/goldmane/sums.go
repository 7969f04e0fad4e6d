// SPDX-License-Identifier: Apache-2.0

package goldmane

import (
	"cmp"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/goldmane/api"
)

var errTooMany = errors.New("there are too many flows")

// sums are flows by their keys.
type sums struct {
	filter      filter
	flows       map[string]*sum // by the encoded key
	connections map[uint64]*connection
}

type sum struct {
	flow     *api.Flow
	from, to map[string]string // labels that all pods of an end have
	started  int64
}

// connection is one of which there was a record. Records are read in no order.
type connection struct {
	of    *sum
	last  time.Time
	ended bool
}

func newSums(f filter) *sums {
	return &sums{filter: f, flows: map[string]*sum{}, connections: map[uint64]*connection{}}
}

// add counts a record: once for each end that its node speaks for.
func (a *sums) add(r *flows.Flow) error {
	for _, reporter := range reportersOf(r) {
		key := keyOf(r, reporter)
		if !a.filter.wants(key) {
			continue
		}
		text, err := encoded(key)
		if err != nil {
			return err
		}
		of := a.flows[text]
		if of == nil {
			if len(a.flows) >= mostFlows {
				return errTooMany
			}
			of = &sum{flow: &api.Flow{Key: key}, from: r.Source.Labels, to: r.Destination.Labels}
			a.flows[text] = of
		}
		of.add(r, reporter)
		a.note(of, r, reporter)
	}
	return nil
}

func (s *sum) add(r *flows.Flow, reporter api.Reporter) {
	f := s.flow
	in, out := &r.Sent, &r.Received
	if reporter == api.Reporter_Src {
		in, out = out, in
	}
	f.PacketsIn += int64(in.Packets)
	f.PacketsOut += int64(out.Packets)
	f.BytesIn += int64(in.Bytes)
	f.BytesOut += int64(out.Bytes)
	if end := r.End.Unix() / interval * interval; f.StartTime == 0 || end < f.StartTime {
		f.StartTime = end
	}
	f.EndTime = max(f.EndTime, r.End.Unix()/interval*interval+interval)
	s.from, s.to = common(s.from, r.Source.Labels), common(s.to, r.Destination.Labels)
}

// common are the labels that both have.
func common(a, b map[string]string) map[string]string {
	same := true
	for k, v := range a {
		if of, is := b[k]; !is || of != v {
			same = false
			break
		}
	}
	if same {
		return a
	}
	out := map[string]string{}
	for k, v := range a {
		if of, is := b[k]; is && of == v {
			out[k] = v
		}
	}
	return out
}

// note keeps how the record's connection is. What was denied is no connection.
func (a *sums) note(of *sum, r *flows.Flow, reporter api.Reporter) {
	if r.Verdict != flows.Allowed {
		of.started++
		return
	}
	h := fnv.New64a()
	for _, text := range []string{reporter.String(), r.Node, r.Protocol, r.ICMP, r.Source.Address.String(), r.Destination.Address.String(), r.Start.UTC().Format(time.RFC3339Nano)} {
		_, _ = h.Write([]byte(text + "\x00")) // never fails
	}
	_, _ = h.Write([]byte{byte(r.Source.Port >> 8), byte(r.Source.Port), byte(r.Destination.Port >> 8), byte(r.Destination.Port)})
	id := h.Sum64()
	c := a.connections[id]
	if c == nil {
		if len(a.connections) >= mostConnections {
			return
		}
		c = &connection{of: of}
		a.connections[id] = c
		of.started++
	}
	if !r.End.Before(c.last) {
		c.last = r.End
	}
	c.ended = c.ended || r.Ended != "" || r.Connections > 0
}

// results are the flows.
func (a *sums) results() []*api.FlowResult {
	for _, c := range a.connections {
		if c.ended {
			c.of.flow.NumConnectionsCompleted++
		} else {
			c.of.flow.NumConnectionsLive++
		}
	}
	out := make([]*api.FlowResult, 0, len(a.flows))
	for key, of := range a.flows {
		of.flow.NumConnectionsStarted = of.started
		of.flow.SourceLabels, of.flow.DestLabels = texts(of.from), texts(of.to)
		h := fnv.New64a()
		_, _ = h.Write([]byte(key)) // never fails
		out = append(out, &api.FlowResult{Id: int64(h.Sum64() >> 1), Flow: of.flow})
	}
	slices.SortFunc(out, func(a, b *api.FlowResult) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return out
}

func texts(labels map[string]string) []string {
	out := make([]string, 0, len(labels))
	for k, v := range labels {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// sortedBy is the order of flows: by their begin, the latest first, or by a field.
func sortedBy(options []*api.SortOption) (func(a, b *api.FlowResult) int, error) {
	if len(options) > 1 {
		return nil, status.Error(codes.InvalidArgument, "flows are sorted by one field")
	}
	by := api.SortBy_Time
	if len(options) == 1 {
		by = options[0].GetSortBy()
	}
	latest := func(a, b *api.Flow) int { return -cmp.Compare(a.GetStartTime(), b.GetStartTime()) }
	text := func(of func(*api.FlowKey) string) func(a, b *api.Flow) int {
		return func(a, b *api.Flow) int { return cmp.Or(cmp.Compare(of(a.GetKey()), of(b.GetKey())), latest(a, b)) }
	}
	kind := func(of func(*api.FlowKey) api.EndpointType) func(a, b *api.Flow) int {
		return func(a, b *api.Flow) int { return cmp.Or(cmp.Compare(of(a.GetKey()), of(b.GetKey())), latest(a, b)) }
	}
	less := map[api.SortBy]func(a, b *api.Flow) int{
		api.SortBy_Time: latest, api.SortBy_DestName: text((*api.FlowKey).GetDestName), api.SortBy_DestNamespace: text((*api.FlowKey).GetDestNamespace),
		api.SortBy_SourceName: text((*api.FlowKey).GetSourceName), api.SortBy_SourceNamespace: text((*api.FlowKey).GetSourceNamespace),
		api.SortBy_DestType: kind((*api.FlowKey).GetDestType), api.SortBy_SourceType: kind((*api.FlowKey).GetSourceType),
	}[by]
	if less == nil {
		return nil, status.Errorf(codes.InvalidArgument, "there is no order %d", by)
	}
	return func(a, b *api.FlowResult) int { return less(a.GetFlow(), b.GetFlow()) }, nil
}

// reportersOf are the ends that a record's node speaks for: pods of the node. Where it is neither
// end's, it stands at the begin.
func reportersOf(r *flows.Flow) (out []api.Reporter) {
	if r.Source.Pod != "" && r.Source.Node == r.Node {
		out = append(out, api.Reporter_Src)
	}
	if r.Destination.Pod != "" && r.Destination.Node == r.Node && !deniedAtBegin(r) {
		out = append(out, api.Reporter_Dst)
	}
	if out == nil {
		out = append(out, api.Reporter_Src)
	}
	return out
}

// deniedAtBegin is true where policy at the source denied, and the destination said nothing.
func deniedAtBegin(r *flows.Flow) bool { return r.Reason == "POLICY_EGRESS" }

// keyOf is the key of the flow that a record is of, as an end reports it.
func keyOf(r *flows.Flow, reporter api.Reporter) *api.FlowKey {
	k := &api.FlowKey{DestPort: int64(r.Destination.Port), Proto: r.Protocol, Reporter: reporter, Action: api.Action_Allow}
	k.SourceName, k.SourceNamespace, k.SourceType = endOf(&r.Source)
	k.DestName, k.DestNamespace, k.DestType = endOf(&r.Destination)
	if r.Verdict != flows.Allowed {
		k.Action = api.Action_Deny
	}
	if name, port, is := strings.Cut(r.Service, " port "); is {
		k.DestServiceNamespace, k.DestServiceName, _ = strings.Cut(name, "/")
		k.DestServicePortName = port
		if at := strings.LastIndexByte(r.Asked, ':'); at >= 0 {
			k.DestServicePort, _ = strconv.ParseInt(r.Asked[at+1:], 10, 64) // 0 = not known
		}
	}
	end := r.Egress
	if reporter == api.Reporter_Dst {
		end = r.Ingress
	}
	k.Policies = traceOf(end, r.Rule, k.GetAction())
	return k
}

// endOf names an end: pods of one workload by what their names begin with.
func endOf(p *flows.Peer) (name, namespace string, kind api.EndpointType) {
	switch {
	case p.Pod != "":
		name = p.Pod
		if at := strings.LastIndexByte(name, '-'); at > 0 && p.Workload != "" {
			name = name[:at+1] + "*"
		}
		return name, p.Namespace, api.EndpointType_WorkloadEndpoint
	case p.Node != "":
		return p.Node, "", api.EndpointType_HostEndpoint
	case p.Address.IsPrivate() || p.Address.IsLoopback() || p.Address.IsLinkLocalUnicast():
		return "pvt", "", api.EndpointType_Network
	}
	return "pub", "", api.EndpointType_Network
}

// traceOf says which rule decided at an end, and which one would with staged policies. What the
// end's node does not know is what decided, where that is known.
func traceOf(end *events.End, decided *events.Rule, action api.Action) *api.PolicyTrace {
	rule := decided
	if end != nil && end.Rule != nil {
		rule = end.Rule
	}
	out := &api.PolicyTrace{}
	if h := hitOf(rule, action); h != nil {
		out.EnforcedPolicies = append(out.EnforcedPolicies, h)
		out.PendingPolicies = append(out.PendingPolicies, h)
	}
	if end != nil && end.Staged != nil {
		would := api.Action_Deny
		if end.Staged.Verdict == flows.Allowed {
			would = api.Action_Allow
		}
		if h := hitOf(end.Staged.Rule, would); h != nil {
			out.PendingPolicies = []*api.PolicyHit{h}
		}
	}
	return out
}
