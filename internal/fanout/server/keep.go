// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/weir-net/weir/internal/httplimit"
)

// keeping are credentials that remember the connection, for keep.
type keeping struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (k keeping) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := k.TransportCredentials.ServerHandshake(raw)
	if tls, ok := info.(credentials.TLSInfo); ok {
		info = kept{tls, raw}
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (k keeping) Clone() credentials.TransportCredentials {
	return keeping{k.TransportCredentials.Clone()}
}

type kept struct {
	credentials.TLSInfo
	conn net.Conn
}

// keep takes a connection that has proved to be an agent's out of the budget of those that have
// not, which anybody may use up. Of a node there is one.
func keep(ctx context.Context) {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(kept); ok {
			httplimit.Keep(info.conn)
		}
	}
}
