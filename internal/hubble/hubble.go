// SPDX-License-Identifier: Apache-2.0

// Package hubble serves Hubble's API (observer.Observer, peer.Peer) over a node's flow records, for
// the hubble CLI and hubble-relay as they are. A record of flows.Collector is one Flow: what one
// connection did in one interval, in the direction in which it began. Records are converted when
// somebody asks; nothing is kept twice. The API is for root at a socket of the node, and by TCP for
// clients with a certificate of the authority that is given.
package hubble

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/grpcmethod"
	"github.com/weir-net/weir/internal/hubble/api/observer"
	"github.com/weir-net/weir/internal/hubble/api/peer"
)

// SocketName is the socket's in the agent's folder for what need not survive a reboot.
const SocketName = "hubble.sock"

// Node is a node of the cluster.
type Node struct {
	Name  string
	Addrs []netip.Addr // the first is where its agent is asked
}

// Server answers for one node.
type Server struct {
	Node    string
	Records *flows.Collector
	// Status is that of the records, with what the data plane lost.
	Status  func() flows.Status
	Nodes   func() []Node // of the cluster, this one among them
	Version string
	Began   time.Time

	// Port is where agents serve the API by TLS; 0 = they do not.
	Port uint16

	fault atomic.Pointer[error] // what keeps it from listening there
}

// observing is what answers as observer.Observer.
type observing interface {
	getFlows(in *observer.GetFlowsRequest, to grpc.ServerStreamingServer[observer.GetFlowsResponse]) error
	getNodes(ctx context.Context, in *observer.GetNodesRequest) (*observer.GetNodesResponse, error)
	getNamespaces(ctx context.Context, in *observer.GetNamespacesRequest) (*observer.GetNamespacesResponse, error)
	serverStatus(ctx context.Context, in *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error)
}

// register has g answer by s.
func register(g *grpc.Server, s observing) {
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "observer.Observer", Metadata: "observer/observer.proto",
		Methods: []grpc.MethodDesc{
			grpcmethod.Unary("observer.Observer", "GetNodes", s.getNodes), grpcmethod.Unary("observer.Observer", "GetNamespaces", s.getNamespaces),
			grpcmethod.Unary("observer.Observer", "ServerStatus", s.serverStatus),
		},
		Streams: []grpc.StreamDesc{
			grpcmethod.Streaming("GetFlows", s.getFlows),
			grpcmethod.Streaming("GetAgentEvents", func(*observer.GetAgentEventsRequest, grpc.ServerStreamingServer[observer.GetAgentEventsResponse]) error {
				return status.Error(codes.Unimplemented, "Weir has no agent events: Events of Kubernetes and weir status say what its agents do")
			}),
			grpcmethod.Streaming("GetDebugEvents", func(*observer.GetDebugEventsRequest, grpc.ServerStreamingServer[observer.GetDebugEventsResponse]) error {
				return status.Error(codes.Unimplemented, "Weir has no debug events: weir why says what becomes of a packet")
			}),
		}}, nil)
}

// registerPeers has g name the nodes by s.
func (s *Server) registerPeers(g *grpc.Server) {
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "peer.Peer", Metadata: "peer/peer.proto",
		Streams: []grpc.StreamDesc{grpcmethod.Streaming("Notify", func(_ *peer.NotifyRequest, to grpc.ServerStreamingServer[peer.ChangeNotification]) error {
			return s.notify(to)
		})}}, nil)
}
