// SPDX-License-Identifier: Apache-2.0

// Package grpcmethod describes methods of gRPC services by functions, where only the messages of an
// API are generated and not its servers.
package grpcmethod

import (
	"context"

	"google.golang.org/grpc"
)

// Unary describes a method with one answer.
func Unary[Request, Response any](service, name string, answer func(context.Context, *Request) (*Response, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := new(Request)
		if err := decode(in); err != nil {
			return nil, err
		}
		if intercept == nil {
			return answer(ctx, in)
		}
		return intercept(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/" + service + "/" + name}, func(ctx context.Context, in any) (any, error) {
			return answer(ctx, in.(*Request))
		})
	}}
}

// Streaming describes a method with a stream of answers.
func Streaming[Request, Response any](name string, answer func(*Request, grpc.ServerStreamingServer[Response]) error) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
		in := new(Request)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		return answer(in, &grpc.GenericServerStream[Request, Response]{ServerStream: stream})
	}}
}
