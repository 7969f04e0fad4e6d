// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/hubble/api/observer"
	"github.com/weir-net/weir/internal/hubble/api/relay"
	"github.com/weir-net/weir/internal/hubble/servername"
)

const (
	// rateOver is what ServerStatus' rate is about (observer.proto).
	rateOver = time.Minute
	// namespacesOver is how long ago a namespace's last record may be (observer.proto).
	namespacesOver = time.Hour
)

func (s *Server) serverStatus(context.Context, *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	records, first, _ := s.Records.From(0)
	recent, since := 0, time.Now().Add(-rateOver)
	for _, f := range records {
		if f.End.After(since) {
			recent++
		}
	}
	kept := uint64(len(records))
	return &observer.ServerStatusResponse{
		NumFlows: kept, MaxFlows: uint64(s.Records.Most()), SeenFlows: first + kept, UptimeNs: s.uptime(), Version: s.Version,
		NumConnectedNodes: wrapperspb.UInt32(1), NumUnavailableNodes: wrapperspb.UInt32(0), FlowsRate: float64(recent) / rateOver.Seconds(),
	}, nil
}

func (s *Server) uptime() uint64 { return uint64(time.Since(s.Began).Nanoseconds()) }

// getNodes answers with this node alone; a relay asks all of them.
func (s *Server) getNodes(context.Context, *observer.GetNodesRequest) (*observer.GetNodesResponse, error) {
	records, first, _ := s.Records.From(0)
	kept := uint64(len(records))
	out := &observer.Node{Name: s.Node, Version: s.Version, State: relay.NodeState_NODE_CONNECTED, Tls: &observer.TLS{Enabled: s.Port != 0},
		UptimeNs: s.uptime(), NumFlows: kept, MaxFlows: uint64(s.Records.Most()), SeenFlows: first + kept}
	if s.Port != 0 {
		out.Tls.ServerName = servername.Of(s.Node)
		for _, n := range s.Nodes() {
			if n.Name == s.Node && len(n.Addrs) > 0 {
				out.Address = net.JoinHostPort(n.Addrs[0].String(), strconv.Itoa(int(s.Port)))
			}
		}
	}
	return &observer.GetNodesResponse{Nodes: []*observer.Node{out}}, nil
}

// getNamespaces answers with the namespaces of pods that records of the last hour are about.
func (s *Server) getNamespaces(context.Context, *observer.GetNamespacesRequest) (*observer.GetNamespacesResponse, error) {
	records, _, _ := s.Records.From(0)
	names, since := map[string]bool{}, time.Now().Add(-namespacesOver)
	for _, f := range records {
		if !f.End.After(since) {
			continue
		}
		noteNamespaces(names, f)
	}
	return namespacesOf(names), nil
}

func noteNamespaces(names map[string]bool, f *flows.Flow) {
	for _, p := range []flows.Peer{f.Source, f.Destination} {
		if p.Namespace != "" {
			names[p.Namespace] = true
		}
	}
}

func namespacesOf(names map[string]bool) *observer.GetNamespacesResponse {
	out := &observer.GetNamespacesResponse{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out.Namespaces = append(out.Namespaces, &observer.Namespace{Namespace: name})
	}
	return out
}
