// SPDX-License-Identifier: Apache-2.0

package httplimit

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// listenRetry is the time between two attempts to listen.
const listenRetry = time.Second

// ListenInTurn listens at an address as soon as nobody else does, and serves until ctx or the
// server ends. Two instances on one node have it in turn.
func ListenInTurn(ctx context.Context, addr, what string, log *slog.Logger, serve func(net.Listener) error) {
	for said := false; ; {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			err = serve(l)
			l.Close()
		}
		if errors.Is(err, http.ErrServerClosed) || ctx.Err() != nil {
			return
		}
		if !said {
			log.Warn("cannot serve; trying again: another instance on this node may do so", "what", what, "address", addr, "err", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenRetry):
		}
	}
}
