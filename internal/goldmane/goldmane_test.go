// SPDX-License-Identifier: Apache-2.0

package goldmane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/goldmane/api"
)

// at is a time of the tests, at the begin of a part.
var at = time.Unix(1_800_000_000, 0)

// kept are records.
type kept []*flows.Flow

func (k kept) Read(_ context.Context, q flows.Question, give func(*flows.Flow) error) error {
	for _, f := range k {
		if q.Wants(f) {
			if err := give(f); err != nil {
				return err
			}
		}
	}
	return nil
}

func pod(namespace, workload, name, node string, labels ...string) flows.Peer {
	p := flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Namespace: namespace, Pod: name, Workload: workload, Node: node, Labels: map[string]string{}}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		p.Labels[k] = v
	}
	return p
}

// records are two connections of one workload to another one by a Service, one of which has two
// records; what policy denied; and what came from outside.
func records() kept {
	from := func(n int, start, end time.Duration, ended string) *flows.Flow {
		source, destination := pod("shop", "Deployment web", fmt.Sprintf("web-5d8-%d", n), "n1", "app=web", fmt.Sprint("n=", n)), pod("db", "StatefulSet pg", "pg-0", "n2", "app=pg")
		source.Port, destination.Port = uint16(40000+n), 5432
		return &flows.Flow{Start: at.Add(start), End: at.Add(end), Node: "n2", Verdict: flows.Allowed, Protocol: "tcp", Source: source, Destination: destination, Service: "db/pg port sql", Asked: "10.96.0.1:5433",
			Ingress: &events.End{Rule: &events.Rule{Kind: "NetworkPolicy", Name: "db/clients", Tier: "default", Detail: "ingress[2]"},
				Staged: &events.Staged{Verdict: "denied", Rule: &events.Rule{Kind: "StagedNetworkPolicy", Name: "db/next", Tier: "default", Detail: "ingress[0]"}}},
			Rule: &events.Rule{Kind: "NetworkPolicy", Name: "db/clients", Tier: "default", Detail: "ingress[2]"}, Ended: ended, Sent: flows.Counters{Packets: 10, Bytes: 1000}, Received: flows.Counters{Packets: 5, Bytes: 5000}}
	}
	denied := from(3, 0, 20*time.Second, "")
	denied.Source.Namespace, denied.Verdict, denied.Reason, denied.Service = "batch", flows.Denied, "POLICY_INGRESS", ""
	denied.Rule = &events.Rule{Kind: "default-deny", Name: "db/clients", Tier: "default", Detail: "ingress"}
	denied.Ingress, denied.Sent, denied.Received = &events.End{Rule: denied.Rule}, flows.Counters{Packets: 3}, flows.Counters{}
	outside := from(4, 0, 40*time.Second, "closed")
	outside.Source, outside.Ingress, outside.Rule = flows.Peer{Address: netip.MustParseAddr("203.0.113.9")}, nil, nil
	return kept{from(1, -time.Second, 5*time.Second, ""), from(1, -time.Second, 20*time.Second, "closed"), from(2, 0, 6*time.Second, ""), denied, outside}
}

// client asks a server of records as a client of another project does.
func client(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	s.Register(g)
	go func() { _ = g.Serve(l) }() // until it is stopped
	t.Cleanup(g.Stop)
	c, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func serving(of Reader) *Server {
	return &Server{Open: func(context.Context) (Reader, func(), error) { return of, func() {}, nil }, now: func() time.Time { return at.Add(time.Minute) }}
}

func ask[Response any](ctx context.Context, c *grpc.ClientConn, method string, in proto.Message) (*Response, error) {
	out := new(Response)
	return out, c.Invoke(ctx, method, in, out)
}

// Flows are sums of records by their ends, port, verdict, policies and reporter.
func TestList(t *testing.T) {
	t.Parallel()
	c := client(t, serving(records()))
	got, err := ask[api.FlowListResult](t.Context(), c, "/goldmane.Flows/List", &api.FlowListRequest{StartTimeGte: -60, SortBy: []*api.SortOption{{SortBy: api.SortBy_SourceNamespace}}})
	if err != nil || len(got.GetFlows()) != 3 || got.GetMeta().GetTotalResults() != 3 {
		t.Fatalf("%v: %v", err, got)
	}
	hit := &api.PolicyHit{Kind: api.PolicyKind_NetworkPolicy, Namespace: "db", Name: "clients", Tier: "default", Action: api.Action_Allow, RuleIndex: 2}
	want := &api.Flow{Key: &api.FlowKey{SourceName: "web-5d8-*", SourceNamespace: "shop", SourceType: api.EndpointType_WorkloadEndpoint, DestName: "pg-*", DestNamespace: "db", DestType: api.EndpointType_WorkloadEndpoint,
		DestPort: 5432, DestServiceName: "pg", DestServiceNamespace: "db", DestServicePortName: "sql", DestServicePort: 5433, Proto: "tcp", Reporter: api.Reporter_Dst, Action: api.Action_Allow,
		Policies: &api.PolicyTrace{EnforcedPolicies: []*api.PolicyHit{hit}, PendingPolicies: []*api.PolicyHit{{Kind: api.PolicyKind_StagedNetworkPolicy, Namespace: "db", Name: "next", Tier: "default", Action: api.Action_Deny}}}},
		StartTime: at.Unix(), EndTime: at.Unix() + 30, SourceLabels: []string{"app=web"}, DestLabels: []string{"app=pg"}, PacketsIn: 30, PacketsOut: 15, BytesIn: 3000, BytesOut: 15000,
		NumConnectionsStarted: 2, NumConnectionsCompleted: 1, NumConnectionsLive: 1}
	if flow := got.GetFlows()[2].GetFlow(); !proto.Equal(flow, want) {
		t.Errorf("got\n%v\nwant\n%v", flow, want)
	}
	denied := got.GetFlows()[1].GetFlow()
	if k := denied.GetKey(); k.GetSourceNamespace() != "batch" || k.GetAction() != api.Action_Deny || denied.GetPacketsIn() != 3 ||
		k.GetPolicies().GetEnforcedPolicies()[0].GetKind() != api.PolicyKind_EndOfTier || k.GetPolicies().GetEnforcedPolicies()[0].GetTrigger().GetName() != "clients" || k.GetPolicies().GetEnforcedPolicies()[0].GetRuleIndex() != -1 {
		t.Errorf("%v", denied)
	}
	if k := got.GetFlows()[0].GetFlow().GetKey(); k.GetSourceType() != api.EndpointType_Network || k.GetSourceName() != "pub" || len(k.GetPolicies().GetEnforcedPolicies()) != 0 {
		t.Errorf("%v", k)
	}
}

// Times, filters, orders and pages count; what means nothing is refused.
func TestQuestions(t *testing.T) {
	t.Parallel()
	c := client(t, serving(records()))
	exact := func(v string) []*api.StringMatch { return []*api.StringMatch{{Value: v}} }
	for what, q := range map[string]struct {
		in   *api.FlowListRequest
		want int
	}{
		"all":              {&api.FlowListRequest{}, 3},
		"since a time":     {&api.FlowListRequest{StartTimeGte: at.Unix() + 30}, 1},
		"before a time":    {&api.FlowListRequest{StartTimeLt: -45}, 1},
		"a namespace":      {&api.FlowListRequest{Filter: &api.Filter{SourceNamespaces: exact("shop")}}, 1},
		"part of a name":   {&api.FlowListRequest{Filter: &api.Filter{SourceNames: []*api.StringMatch{{Value: "WEB", Type: api.MatchType_Fuzzy}}}}, 2},
		"a name":           {&api.FlowListRequest{Filter: &api.Filter{DestNames: exact("pg-*")}}, 3},
		"another protocol": {&api.FlowListRequest{Filter: &api.Filter{Protocols: exact("udp")}}, 0},
		"a port":           {&api.FlowListRequest{Filter: &api.Filter{DestPorts: []*api.PortMatch{{Port: 1}, {Port: 5432}}}}, 3},
		"denied":           {&api.FlowListRequest{Filter: &api.Filter{Actions: []api.Action{api.Action_Deny}}}, 1},
		"a staged policy":  {&api.FlowListRequest{Filter: &api.Filter{Policies: []*api.PolicyMatch{{Kind: api.PolicyKind_StagedNetworkPolicy, Name: "next"}}}}, 1},
		"a policy":         {&api.FlowListRequest{Filter: &api.Filter{Policies: []*api.PolicyMatch{{Namespace: "db", Name: "clients", Tier: "default"}}}}, 2},
		"another one":      {&api.FlowListRequest{Filter: &api.Filter{Policies: []*api.PolicyMatch{{Name: "other"}}}}, 0},
		"a page":           {&api.FlowListRequest{PageSize: 2, Page: 1}, 1},
		"a later page":     {&api.FlowListRequest{PageSize: 2, Page: 2}, 0},
	} {
		got, err := ask[api.FlowListResult](t.Context(), c, "/goldmane.Flows/List", q.in)
		if err != nil || len(got.GetFlows()) != q.want {
			t.Errorf("%s: %v, %d flows: %v", what, err, len(got.GetFlows()), got)
		}
		if q.in.GetPageSize() > 0 && (got.GetMeta().GetTotalPages() != 2 || got.GetMeta().GetTotalResults() != 3) {
			t.Errorf("%s: %v", what, got.GetMeta())
		}
	}
	var many []*api.StringMatch
	for range mostValues + 1 {
		many = append(many, &api.StringMatch{})
	}
	for what, in := range map[string]*api.FlowListRequest{
		"an interval": {AggregationInterval: 7}, "two orders": {SortBy: []*api.SortOption{{}, {}}}, "an order": {SortBy: []*api.SortOption{{SortBy: 99}}}, "a page": {Page: 1}, "a size": {PageSize: -1},
		"a time": {StartTimeGte: -1, StartTimeLt: -60}, "too many values": {Filter: &api.Filter{SourceNames: many}},
	} {
		if _, err := ask[api.FlowListResult](t.Context(), c, "/goldmane.Flows/List", in); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	for kind, want := range map[api.FilterType][]string{api.FilterType_FilterTypeSourceNamespace: {"batch", "shop"}, api.FilterType_FilterTypeSourceName: {"pub", "web-5d8-*"}, api.FilterType_FilterTypeDestName: {"pg-*"},
		api.FilterType_FilterTypeDestNamespace: {"db"}, api.FilterType_FilterTypePolicyTier: {"default"}, api.FilterType_FilterTypePolicyName: {"clients", "next"}} {
		got, err := ask[api.FilterHintsResult](t.Context(), c, "/goldmane.Flows/FilterHints", &api.FilterHintsRequest{Type: kind})
		var names []string
		for _, h := range got.GetHints() {
			names = append(names, h.GetValue())
		}
		if err != nil || !reflect.DeepEqual(names, want) {
			t.Errorf("%s: %v %q", kind, err, names)
		}
	}
	if _, err := ask[api.FilterHintsResult](t.Context(), c, "/goldmane.Flows/FilterHints", &api.FilterHintsRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no type: %v", err)
	}
}

// received are the answers of a stream until it ends, or so many.
func received[Response any](ctx context.Context, c *grpc.ClientConn, method string, in proto.Message, most int) (all []*Response, err error) {
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err == nil {
		err = errors.Join(stream.SendMsg(in), stream.CloseSend())
	}
	for err == nil && len(all) < most {
		r := new(Response)
		if err = stream.RecvMsg(r); err == nil {
			all = append(all, r)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return all, err
}

// A stream tells each part of time, once it is complete, by the same numbers.
func TestStream(t *testing.T) {
	t.Parallel()
	c := client(t, serving(records()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all, err := received[api.FlowResult](ctx, c, "/goldmane.Flows/Stream", &api.FlowStreamRequest{StartTimeGte: -60, AggregationInterval: 15, Filter: &api.Filter{SourceNamespaces: []*api.StringMatch{{Value: "shop"}}}}, 2)
	if err != nil || len(all) != 2 || all[0].GetId() != all[1].GetId() || all[0].GetFlow().GetStartTime() != at.Unix() || all[1].GetFlow().GetStartTime() != at.Unix()+15 ||
		all[0].GetFlow().GetEndTime() != at.Unix()+15 || all[0].GetFlow().GetPacketsIn() != 20 || all[1].GetFlow().GetPacketsIn() != 10 {
		t.Errorf("%v: %v", err, all)
	}
	short, end := context.WithTimeout(t.Context(), time.Second)
	defer end()
	if all, err := received[api.FlowResult](short, c, "/goldmane.Flows/Stream", &api.FlowStreamRequest{}, 1); status.Code(err) != codes.DeadlineExceeded || len(all) > 0 {
		t.Errorf("what is not complete is told: %v %v", err, all)
	}
	if _, err := received[api.FlowResult](t.Context(), c, "/goldmane.Flows/Stream", &api.FlowStreamRequest{AggregationInterval: 30}, 1); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
}

// What Whisker's backend asks, by the forms in which it does (its module is not at hand): without
// aggregation and sorted, by ends without a namespace, which it calls "-", and by several fields at
// once. Filters of later versions are refused, and not answered as if they were not there.
func TestWhiskersQuestions(t *testing.T) {
	t.Parallel()
	c := client(t, serving(records()))
	list := func(f *api.Filter) (int, error) {
		got, err := ask[api.FlowListResult](t.Context(), c, "/goldmane.Flows/List", &api.FlowListRequest{StartTimeGte: -900, PageSize: 100, SortBy: []*api.SortOption{{SortBy: api.SortBy_DestName}}, Filter: f})
		return len(got.GetFlows()), err
	}
	match := func(texts ...string) (out []*api.StringMatch) {
		for _, text := range texts {
			out = append(out, &api.StringMatch{Value: text})
		}
		return out
	}
	for what, q := range map[string]struct {
		of   *api.Filter
		want int
	}{
		"everything":            {&api.Filter{}, 3},
		"without a namespace":   {&api.Filter{SourceNamespaces: match("-")}, 1},
		"with one, or without":  {&api.Filter{SourceNamespaces: match("-", "shop")}, 2},
		"no end like this":      {&api.Filter{DestNamespaces: match("-")}, 0},
		"from a public network": {&api.Filter{SourceNames: match("pub")}, 1},
		"several fields":        {&api.Filter{SourceNamespaces: match("shop"), DestPorts: []*api.PortMatch{{Port: 5432}}, Actions: []api.Action{api.Action_Allow}, Protocols: match("tcp")}, 1},
		"a policy of all texts": {&api.Filter{Policies: []*api.PolicyMatch{{Kind: api.PolicyKind_StagedNetworkPolicy, Tier: "default", Namespace: "db", Name: "next", Action: api.Action_Deny}}}, 1},
	} {
		if n, err := list(q.of); err != nil || n != q.want {
			t.Errorf("%s: %d flows, %v, want %d", what, n, err, q.want)
		}
	}
	later := &api.Filter{}
	later.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 1))
	part, err := proto.Marshal(&api.StringMatch{Value: "cli", Type: api.MatchType_Fuzzy})
	if err != nil {
		t.Fatal(err)
	}
	for what, of := range map[string]*api.Filter{"a field": later, "a part of a name": {Policies: []*api.PolicyMatch{{Name: string(part)}}}} {
		if n, err := list(of); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s that is not known: %d flows, %v", what, n, err)
		}
	}
}

// Statistics say what each policy, or rule, decided, in all or by parts of the time.
func TestStatistics(t *testing.T) {
	t.Parallel()
	c := client(t, serving(records()))
	list := func(in *api.StatisticsRequest) []*api.StatisticsResult {
		all, err := received[api.StatisticsResult](t.Context(), c, "/goldmane.Statistics/List", in, 100)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	match := &api.PolicyMatch{Kind: api.PolicyKind_NetworkPolicy, Name: "clients"}
	got := list(&api.StatisticsRequest{Type: api.StatisticType_ByteCount, GroupBy: api.StatisticsGroupBy_PolicyRule, PolicyMatch: match})
	if len(got) != 1 || got[0].GetPolicy().GetRuleIndex() != 2 || got[0].GetDirection() != api.RuleDirection_Ingress || !reflect.DeepEqual(got[0].GetAllowedIn(), []int64{18000}) || len(got[0].GetX()) != 0 {
		t.Errorf("%v", got)
	}
	got = list(&api.StatisticsRequest{PolicyMatch: match, TimeSeries: true})
	if len(got) != 1 || !reflect.DeepEqual(got[0].GetAllowedIn(), []int64{30, 15}) || !reflect.DeepEqual(got[0].GetX(), []int64{at.Unix(), at.Unix() + 15}) || len(got[0].GetPassedOut()) != 2 {
		t.Errorf("%v", got)
	}
	got = list(&api.StatisticsRequest{})
	if len(got) != 2 {
		t.Fatalf("%v", got)
	}
	for _, r := range got {
		if r.GetPolicy().GetKind() == api.PolicyKind_EndOfTier && !reflect.DeepEqual(r.GetDeniedIn(), []int64{3}) {
			t.Errorf("%v", r)
		}
	}
	got = list(&api.StatisticsRequest{Type: api.StatisticType_LiveConnectionCount, PolicyMatch: match})
	if len(got) != 1 || !reflect.DeepEqual(got[0].GetAllowedIn(), []int64{2}) {
		t.Errorf("%v", got)
	}
	for _, in := range []*api.StatisticsRequest{{Type: 9}, {GroupBy: 9}, {StartTimeGte: -1, StartTimeLt: -2}} {
		if _, err := received[api.StatisticsResult](t.Context(), c, "/goldmane.Statistics/List", in, 1); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", in, err)
		}
	}
	if p := partsOf(0, 86400*15, true); p.n != 1 {
		t.Errorf("%+v", p)
	}
	if p := partsOf(15, 15+86400, true); p.n > mostParts || p.width%interval != 0 {
		t.Errorf("%+v", p)
	}
}

// Nothing is read for who may not, and what cannot be read is an error.
func TestErrors(t *testing.T) {
	t.Parallel()
	c := client(t, &Server{Open: func(context.Context) (Reader, func(), error) {
		return nil, nil, status.Error(codes.PermissionDenied, "no")
	}})
	away := client(t, serving(failing{}))
	for conn, want := range map[*grpc.ClientConn]codes.Code{c: codes.PermissionDenied, away: codes.Unavailable} {
		if _, err := ask[api.FlowListResult](t.Context(), conn, "/goldmane.Flows/List", &api.FlowListRequest{}); status.Code(err) != want {
			t.Errorf("List: %v", err)
		}
		if _, err := ask[api.FilterHintsResult](t.Context(), conn, "/goldmane.Flows/FilterHints", &api.FilterHintsRequest{Type: 1}); status.Code(err) != want {
			t.Errorf("FilterHints: %v", err)
		}
		if _, err := received[api.FlowResult](t.Context(), conn, "/goldmane.Flows/Stream", &api.FlowStreamRequest{StartTimeGte: -60}, 1); status.Code(err) != want {
			t.Errorf("Stream: %v", err)
		}
		if _, err := received[api.StatisticsResult](t.Context(), conn, "/goldmane.Statistics/List", &api.StatisticsRequest{}, 1); status.Code(err) != want {
			t.Errorf("Statistics: %v", err)
		}
	}
}

// failing cannot read.
type failing struct{}

func (failing) Read(context.Context, flows.Question, func(*flows.Flow) error) error {
	return errors.New("away")
}
