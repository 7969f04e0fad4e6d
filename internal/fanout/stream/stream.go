// SPDX-License-Identifier: Apache-2.0

// Package stream is what a fan-out and an agent say to each other: the gRPC method Follow, by which
// an agent says which interfaces its node has and gets what the node needs of the cluster, and the
// conversions of its messages (stream.proto). What changed of the model is encoded by package wire.
package stream

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
)

//go:generate go -C ../../../hack/tools run ./gen-proto internal/fanout/stream/stream.proto

const (
	service = "weir.fanout.stream.v1.FanOut"
	method  = "Follow"
)

// MostRequest bounds a Request, bytes: the endpoints of some thousand pods.
const MostRequest = 1 << 20

// Server is a fan-out's end, Client an agent's.
type (
	Server = grpc.BidiStreamingServer[Request, Response]
	Client = grpc.BidiStreamingClient[Request, Response]
)

var follow = grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}

// Register has a server answer Follow.
func Register(s *grpc.Server, handler func(Server) error) {
	desc := follow
	desc.Handler = func(_ any, stream grpc.ServerStream) error {
		return handler(&grpc.GenericServerStream[Request, Response]{ServerStream: stream})
	}
	s.RegisterService(&grpc.ServiceDesc{ServiceName: service, Streams: []grpc.StreamDesc{desc}, Metadata: "internal/fanout/stream/stream.proto"}, nil)
}

// Follow asks a fan-out.
func Follow(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (Client, error) {
	s, err := conn.NewStream(ctx, &follow, "/"+service+"/"+method, opts...)
	if err != nil {
		return nil, fmt.Errorf("ask the fan-out: %w", err)
	}
	return &grpc.GenericClientStream[Request, Response]{ClientStream: s}, nil
}
