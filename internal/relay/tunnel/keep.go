// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/weir-net/weir/internal/peerauth/trust"
)

// Keep keeps a connection to each instance of a server and answers its questions, until ctx ends.
// addrs returns the addresses of the instances themselves: no Service is in the path.
func (to Server) Keep(ctx context.Context, dialer *net.Dialer, folder trust.Folder, questions http.Handler, addrs func() []string, log *slog.Logger) {
	handler := to.mux(folder, questions)
	connected := map[string]context.CancelFunc{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		there := map[string]bool{}
		for _, addr := range addrs() {
			there[addr] = true
			if connected[addr] == nil {
				one, cancel := context.WithCancel(ctx)
				connected[addr] = cancel
				go (&link{to: to, addr: addr, dialer: dialer, folder: folder, handler: handler, log: log, retry: time.Second}).keep(one)
			}
		}
		for addr, cancel := range connected {
			if !there[addr] {
				cancel()
				delete(connected, addr)
			}
		}
		select {
		case <-ctx.Done():
			for _, cancel := range connected {
				cancel()
			}
			return
		case <-tick.C:
		}
	}
}

// mux are the questions, and the one for the token.
func (to Server) mux(folder trust.Folder, questions http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+TokenPath, func(w http.ResponseWriter, _ *http.Request) {
		token, err := to.Token(folder)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(token)) // who asked may have gone
	})
	mux.Handle("/", questions)
	return mux
}

// link is the connection to one instance of a server.
type link struct {
	to      Server
	addr    string
	dialer  *net.Dialer
	folder  trust.Folder
	handler http.Handler
	log     *slog.Logger
	retry   time.Duration // the first time between two attempts; it grows
}

// maxRetry bounds the time between two attempts.
const maxRetry = 30 * time.Second

// keep connects again and again until ctx ends.
func (l *link) keep(ctx context.Context) {
	said := ""
	for wait := l.retry; ctx.Err() == nil; {
		began := time.Now()
		err := l.to.Answer(ctx, l.dialer, l.addr, l.folder, l.handler)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(began) > maxRetry {
			wait, said = l.retry, "" // it was connected
		} else if said != err.Error() {
			said = err.Error()
			l.log.Info("no connection to a server; trying again", "name", l.to.Name, "address", l.addr, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)): // not all nodes at once
		}
		wait = min(2*wait, maxRetry)
	}
}
