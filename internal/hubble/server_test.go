// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/hubble/api/flow"
	"github.com/weir-net/weir/internal/hubble/api/observer"
	"github.com/weir-net/weir/internal/hubble/api/peer"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// names knows two pods and a rule.
type names struct{ state *nodestate.State }

func newNames() names {
	s := nodestate.New()
	s.Rules.Set(7, nodestate.Rule{Kind: "NetworkPolicy", Name: "db/clients", Tier: "default", Detail: "ingress[0]"})
	return names{s}
}

func (n names) State() *nodestate.State { return n.state }

func (names) Pod(a netip.Addr) (model.Name, bool) {
	switch a {
	case webAddr:
		return model.Name{Namespace: web.Namespace, Name: web.Pod}, true
	case pgAddr:
		return model.Name{Namespace: pg.Namespace, Name: pg.Pod}, true
	}
	return model.Name{}, false
}

func (names) Describe(pod model.Name, _ netip.Addr) (map[string]string, string) {
	switch pod.Namespace {
	case "shop":
		return web.Labels, "n1"
	case "db":
		return pg.Labels, "n1"
	}
	return nil, ""
}

// testServer is a server at a socket, with what it serves.
type testServer struct {
	*Server
	socket string
	lost   atomic.Uint64 // in the data plane
}

// newTestServer serves what record and deny add, at most 8 records.
func newTestServer(t *testing.T) *testServer {
	t.Helper()
	return newTestServerOf(t, "n1")
}

// newTestServerOf is newTestServer of another node.
func newTestServerOf(t *testing.T, node string) *testServer {
	t.Helper()
	s := &testServer{socket: filepath.Join(t.TempDir(), SocketName)}
	records := flows.New(node, time.Minute, 8, newNames())
	s.Server = &Server{Node: node, Records: records, Version: "v1.2.3", Began: time.Now(),
		Nodes: func() []Node { return []Node{{"n1", []netip.Addr{ownAddr}}, {"n2", []netip.Addr{farAddr}}} },
		Status: func() flows.Status {
			st := records.Status()
			st.Lost["ring"] = s.lost.Load()
			return st
		}}
	serving(t, func(ctx context.Context) error { return s.ServeSocket(ctx, s.socket) })
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(s.socket); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	return s
}

// serving runs a server until the test ends.
func serving(t *testing.T, serve func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
}

// record adds a connection of web to pg from a port, which ended some seconds after began.
func (s *testServer) record(sport uint16, after int) {
	until := began.Add(time.Duration(after) * time.Second)
	s.Records.Add(dataplane.FlowRecord{
		Src: webAddr, Sport: sport, Dst: pgAddr, Dport: 5432, ToSrc: webAddr, ToSport: sport, ToDst: pgAddr, ToDport: 5432, Proto: model.ProtocolTCP,
		Packets: 3, Bytes: 300, TCPFlags: 18, Started: began, Until: until, Path: dataplane.PathLocal, Egress: dataplane.EventEnd{Local: true}, Ingress: dataplane.EventEnd{Local: true, Rule: 7},
	})
}

// deny adds what somebody outside tried.
func (s *testServer) deny(after int) {
	s.Records.AddEvent(events.Event{Time: began.Add(time.Duration(after) * time.Second), Verdict: "denied", Reason: "POLICY_INGRESS", Protocol: "tcp",
		Source: events.Peer{Address: outside, Port: 1}, Destination: events.Peer{Address: pgAddr, Port: 5432}, Ingress: &events.End{Rule: &events.Rule{Kind: "default-deny", Name: "db/clients"}}})
}

// dial connects to the server at its socket.
func (s *testServer) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// stream asks a method that streams.
func stream[Response any](ctx context.Context, t *testing.T, conn *grpc.ClientConn, method string, in any) grpc.ServerStreamingClient[Response] {
	t.Helper()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(in); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return &grpc.GenericClientStream[any, Response]{ClientStream: s}
}

// ask returns what is answered to GetFlows: of each the port of the client, "lost 3", or the error.
func (s *testServer) ask(t *testing.T, in *observer.GetFlowsRequest) (out []string) {
	t.Helper()
	from := stream[observer.GetFlowsResponse](t.Context(), t, s.dial(t), "/observer.Observer/GetFlows", in)
	for {
		answer, err := from.Recv()
		if err != nil {
			if status.Code(err) != codes.Unknown {
				out = append(out, status.Code(err).String())
			}
			return out
		}
		out = append(out, wordOf(answer))
	}
}

func wordOf(r *observer.GetFlowsResponse) string {
	if l := r.GetLostEvents(); l != nil {
		return fmt.Sprintf("%s %d", l.GetSource(), l.GetNumEventsLost())
	}
	return fmt.Sprint(r.GetFlow().GetL4().GetTCP().GetSourcePort())
}

// Which records are answered, and in which order.
func TestGetFlows(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	for i := range 6 {
		s.record(uint16(100+i), 10*i)
	}
	s.Records.Flush()
	s.deny(25)
	s.Records.Flush()
	at := func(after int) *timestamppb.Timestamp {
		return timestamppb.New(began.Add(time.Duration(after) * time.Second))
	}
	for _, c := range []struct {
		what string
		in   *observer.GetFlowsRequest
		want string
	}{
		{"all, by their end", &observer.GetFlowsRequest{}, "100 101 102 1 103 104 105"},
		{"the last", &observer.GetFlowsRequest{Number: 2}, "104 105"},
		{"the first", &observer.GetFlowsRequest{Number: 2, First: true}, "100 101"},
		{"since", &observer.GetFlowsRequest{Since: at(30)}, "103 104 105"},
		{"until", &observer.GetFlowsRequest{Until: at(10)}, "100 101"},
		{"from to", &observer.GetFlowsRequest{Since: at(10), Until: at(25)}, "101 102 1"},
		{"the last of a time", &observer.GetFlowsRequest{Since: at(10), Until: at(25), Number: 1}, "1"},
		{"the last that a filter wants", &observer.GetFlowsRequest{Number: 2, Whitelist: []*flow.FlowFilter{{SourcePort: []string{"100-102"}}}}, "101 102"},
		{"the first that a filter wants", &observer.GetFlowsRequest{Number: 1, First: true, Whitelist: []*flow.FlowFilter{{Verdict: []flow.Verdict{flow.Verdict_DROPPED}}}}, "1"},
		{"what a filter does not want", &observer.GetFlowsRequest{Blacklist: []*flow.FlowFilter{{SourcePod: []string{"shop/"}}}}, "1"},
		{"the first of what is to come", &observer.GetFlowsRequest{First: true, Follow: true}, "InvalidArgument"},
		{"a filter that means nothing", &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{{SourceIp: []string{"x"}}}}, "InvalidArgument"},
		{"a time that is none", &observer.GetFlowsRequest{Since: &timestamppb.Timestamp{Nanos: -1}}, "InvalidArgument"},
		{"fields that there are not", &observer.GetFlowsRequest{FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"colour"}}}, "InvalidArgument"},
	} {
		if got := strings.Join(s.ask(t, c.in), " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	from := stream[observer.GetFlowsResponse](t.Context(), t, s.dial(t), "/observer.Observer/GetFlows", &observer.GetFlowsRequest{Number: 1, FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"source.pod_name", "verdict"}}})
	answer, err := from.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if f := answer.GetFlow(); f.GetSource().GetPodName() != web.Pod || f.GetVerdict() != flow.Verdict_FORWARDED || f.GetSource().GetNamespace() != "" || f.GetIP() != nil {
		t.Errorf("two fields: %v", f)
	}
}

// Who follows gets what comes, and is told what was lost: in the data plane, and because it was too
// slow.
func TestFollow(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	s.record(1, 0)
	s.Records.Flush()
	from := stream[observer.GetFlowsResponse](t.Context(), t, s.dial(t), "/observer.Observer/GetFlows", &observer.GetFlowsRequest{Number: 1, Follow: true})
	next := func() string {
		t.Helper()
		answer, err := from.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return wordOf(answer)
	}
	if got := next(); got != "1" {
		t.Fatalf("the last one: %s", got)
	}
	s.record(2, 1)
	s.lost.Add(5)
	s.Records.Flush()
	if got := []string{next(), next()}; !slices.Equal(got, []string{"PERF_EVENT_RING_BUFFER 5", "2"}) {
		t.Errorf("the next one: %q", got)
	}
	for i := range 11 { // three more than are kept, before anybody reads
		s.record(uint16(10+i), 10+i)
	}
	s.Records.Flush()
	if got := next(); got != "HUBBLE_RING_BUFFER 3" {
		t.Errorf("too slow: %s", got)
	}
	seen := map[string]bool{}
	for range 8 {
		seen[next()] = true
	}
	if len(seen) != 8 {
		t.Errorf("the rest: %v", seen)
	}
	// Without a number only what comes is sent, and a time ends it.
	in := &observer.GetFlowsRequest{Follow: true, Until: timestamppb.New(time.Now().Add(-time.Second))}
	if got := s.ask(t, in); len(got) != 0 {
		t.Errorf("until a time that is over: %q", got)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	for i := range 10 {
		s.record(uint16(i), 3600) // within the last minute, however long this takes
		s.Records.Flush()
	}
	conn := s.dial(t)
	var st observer.ServerStatusResponse
	if err := conn.Invoke(t.Context(), "/observer.Observer/ServerStatus", &observer.ServerStatusRequest{}, &st); err != nil {
		t.Fatal(err)
	}
	if st.GetNumFlows() != 8 || st.GetMaxFlows() != 8 || st.GetSeenFlows() != 10 || st.GetVersion() != "v1.2.3" || st.GetUptimeNs() == 0 || st.GetFlowsRate() != 8./60 {
		t.Errorf("%v", &st)
	}
	var namespaces observer.GetNamespacesResponse
	if err := conn.Invoke(t.Context(), "/observer.Observer/GetNamespaces", &observer.GetNamespacesRequest{}, &namespaces); err != nil {
		t.Fatal(err)
	}
	if l := namespaces.GetNamespaces(); len(l) != 2 || l[0].GetNamespace() != "db" || l[1].GetNamespace() != "shop" {
		t.Errorf("%v", l)
	}
	var nodes observer.GetNodesResponse
	if err := conn.Invoke(t.Context(), "/observer.Observer/GetNodes", &observer.GetNodesRequest{}, &nodes); err != nil {
		t.Fatal(err)
	}
	if l := nodes.GetNodes(); len(l) != 1 || l[0].GetName() != "n1" || l[0].GetTls().GetEnabled() || l[0].GetAddress() != "" {
		t.Errorf("%v", l)
	}
	for _, method := range []string{"GetAgentEvents", "GetDebugEvents"} {
		from := stream[observer.GetAgentEventsResponse](t.Context(), t, conn, "/observer.Observer/"+method, &observer.GetAgentEventsRequest{})
		if _, err := from.Recv(); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "Weir has no") {
			t.Errorf("%s: %v", method, err)
		}
	}
	if _, err := stream[peer.ChangeNotification](t.Context(), t, conn, "/peer.Peer/Notify", &peer.NotifyRequest{}).Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("peers without a port: %v", err)
	}
}

// A relay is told all nodes, and what becomes of them.
func TestPeers(t *testing.T) {
	t.Parallel()
	a := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	var nodes []Node
	s := &Server{Node: "n1", Port: 4244, Nodes: func() []Node { return nodes }}
	told := map[string]string{}
	for _, c := range []struct {
		nodes []Node
		want  string
	}{
		{[]Node{{"n2", a("192.0.2.2")}, {"n1.example", a("2001:db8::1")}, {"none", nil}}, "PEER_ADDED n1.example [2001:db8::1]:4244 n1-example.default.hubble-grpc.cilium.io, PEER_ADDED n2 192.0.2.2:4244 n2.default.hubble-grpc.cilium.io"},
		{[]Node{{"n2", a("192.0.2.2")}, {"n1.example", a("2001:db8::1")}}, ""},
		{[]Node{{"n2", a("192.0.2.3")}}, "PEER_UPDATED n2 192.0.2.3:4244 n2.default.hubble-grpc.cilium.io, PEER_DELETED n1.example [2001:db8::1]:4244 n1-example.default.hubble-grpc.cilium.io"},
	} {
		nodes = c.nodes
		var got []string
		for _, n := range s.changes(told) {
			got = append(got, fmt.Sprintf("%s %s %s %s", n.GetType(), n.GetName(), n.GetAddress(), n.GetTls().GetServerName()))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%v: %s", c.nodes, text)
		}
	}
}

// The socket is for root alone.
func TestSocket(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	if info, err := os.Stat(s.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
