// SPDX-License-Identifier: Apache-2.0

// Package httpserve serves the agent's HTTP ports where the configuration says: a Listener has one
// handler at an address that may change while it serves, within bounds for callers that nobody has
// authenticated (package httplimit). MetricsTLS adds TLS: where metrics are to be protected and
// cannot be exactly so, they are not served.
package httpserve

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/httplimit"
)

// Listener serves one handler at an address that may change.
type Listener struct {
	What string
	Log  *slog.Logger

	want   string // host:port; empty = nothing
	server *http.Server
	failed bool
	tls    *tls.Config // nil = without encryption
}

// Ensure listens where it should.
func (l *Listener) Ensure(want string, handler http.Handler) {
	if want == l.want && (want == "" || l.server != nil) {
		return
	}
	l.Close()
	l.want = want
	if want == "" {
		return
	}
	ln, err := net.Listen("tcp", want)
	if err != nil {
		if !l.failed {
			l.Log.Error("cannot serve; trying again", "what", l.What, "address", want, "error", err)
		}
		l.failed = true
		return
	}
	l.failed = false
	server := httplimit.NewServer(handler)
	l.server = server
	l.Log.Info("serving", "what", l.What, "address", ln.Addr().String())
	ln = httplimit.NewListener(ln, httplimit.DefaultTotal, httplimit.DefaultPerSource)
	if l.tls != nil {
		ln = tls.NewListener(ln, l.tls)
	}
	go func() {
		if err := server.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			l.Log.Error("serving ended", "what", l.What, "error", err)
		}
	}()
}

func (l *Listener) Close() {
	if l.server != nil {
		l.server.Close()
		l.server = nil
	}
}

func Address(e config.Endpoint) string {
	if !e.Enabled {
		return ""
	}
	return HostPort(e.Host, e.Port)
}

// HostPort joins a host, empty for all addresses, and a port.
func HostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
